"""Finds the keys of the file that the reasons of a record's collectives name."""

from __future__ import annotations

from collections.abc import Iterable

from runner.base.faults import Key
from runner.reports.record.model import CompiledProgram


def keys(programs: Iterable[CompiledProgram]) -> dict[str, Key]:
    """Return the keys as in reasons (`arrays.w1.spec`, `outputs.grad.w1`), each with its parts."""
    parts_of: dict[str, Key] = {}
    for program in programs:
        for collective in program.collectives or ():
            parts_of |= {key: _parts(key) for key in (collective.why.keys if collective.why else ())}
    return parts_of


def _parts(key: str) -> Key:
    section, _, rest = key.partition(".")
    if section in ("outputs", "constraints"):
        # The names of gradients and of what loops carry have dots.
        return section, rest
    return (section, *rest.split("."))
