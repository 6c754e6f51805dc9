"""Adds what the oracles show to the fault of an output that JAX does not know to be replicated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from runner.base.faults import LEFT_OUT, Fault
from runner.base.layout import Layout, Typed
from runner.checks import oracles
from runner.checks.reference import interpret
from runner.experiment.data import Arrays
from runner.experiment.model import Experiment

if TYPE_CHECKING:
    from runner.checks.diagnosis.search import Refused


def explained(experiment: Experiment, arrays: Arrays | None, fault: Fault, refused: Refused) -> Fault:
    """The fault, and for an output that differs between devices the edit that would mend it."""
    if arrays is None or not fault.message.endswith(LEFT_OUT):
        return fault
    name = str(fault.key[1])
    if experiment.reads_gradients:
        # The gradients are not computed yet.
        return fault
    graph = interpret(experiment, "graph", arrays, keep=experiment.results)
    if _same_everywhere(experiment, arrays, name, graph.values[name][0] if experiment.graph else None):
        same = "by the reference it is the same there, but JAX cannot infer it"
        message = f"{fault.message.removesuffix(LEFT_OUT)}{same}: add a psum or pmax, or check_vma: false"
        return replace(fault, message=message)
    if not experiment.graph:
        return fault
    from runner.checks.diagnosis import search

    first = {name: graph.values[name][0] for name in experiment.results}
    outputs = {name: Typed(np.shape(value), _dtype_of(value)) for name, value in first.items()}
    context = oracles.consult(experiment, arrays, outputs, {})
    return replace(fault, message="\n".join([fault.message, *search.diagnose(context, refused)]))


def _same_everywhere(experiment: Experiment, arrays: Arrays, name: str, graph: Any) -> bool:
    """Whether the devices' copies of an output are equal by the reference, and equal to the graph's."""
    mesh, spec = experiment.mesh, experiment.outputs[name].over(experiment.manual.axes)
    held = interpret(experiment, "per_device", arrays, keep=[name]).values[name]
    sharding = {axis for axes in spec for axis in axes}
    groups = mesh.groups([axis for axis in mesh.axes if axis not in sharding])
    if not all(np.array_equal(held[first], held[position]) for first, *copies in groups for position in copies):
        return False
    return graph is None or np.allclose(Layout(mesh, np.shape(graph), spec).assembled(held), graph)


def _dtype_of(value: Any) -> str:
    kind = np.asarray(value).dtype
    return "float32" if kind == np.float64 else "complex64" if kind == np.complex128 else str(kind)
