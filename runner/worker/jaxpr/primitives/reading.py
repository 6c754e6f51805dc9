"""Writes the expression of an application of any primitive."""

from __future__ import annotations

from dataclasses import replace

from runner.graph.term import Term
from runner.worker.jaxpr.primitives import algebra, collectives, elementwise, indexing, random_bits, reducing, shaping
from runner.worker.jaxpr.primitives.registry import READERS, REFERENCE, Application, Unread, of_their_dtype

FAMILIES = (algebra, collectives, elementwise, indexing, random_bits, reducing, shaping)
"""The modules that register readers."""


def expression(application: Application) -> Term:
    """The expression of an application. Raises `Unread`."""
    read = READERS.get(application.name)
    if read is None:
        raise Unread(f"no expression for the primitive '{application.name}': {REFERENCE}")
    if application.name == "broadcast_in_dim":
        return read(application)
    operands = of_their_dtype(application.operands, application.inputs, application.outputs[0])
    return read(replace(application, operands=operands))
