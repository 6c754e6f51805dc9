"""Reads what a module takes and returns: its arguments, their layouts, and the results that reuse their memory."""

from __future__ import annotations

import re

from runner.base.layout import Mesh
from runner.compiled.evidence import hlo_sharding
from runner.compiled.evidence.aliases import aliases
from runner.compiled.evidence.hlo import Instruction, Module, Shape
from runner.compiled.explanation.model import Argument

_DONORS = re.compile(r"\bbuffer_donor=\{(.*?)\}(?:,|$)")
_DONOR = re.compile(r"\((\d+), \{")


def read(module: Module, head: str, mesh: Mesh) -> list[Argument]:
    """The arguments of a module; `head` is the first line of its text, which says what is donated."""
    outputs = aliases(head)
    donors = {int(number) for part in _DONORS.findall(head) for number in _DONOR.findall(part)}
    parameters = module.entry.parameters if module.entry is not None else {}
    arguments: list[Argument] = []
    for number, parameter in sorted(parameters.items()):
        for at, shape in enumerate(parameter.shapes):
            arguments.append(
                Argument(
                    name=_name(parameter) + (f"[{at}]" if len(parameter.shapes) > 1 else ""),
                    dtype=shape.dtype,
                    shape=shape.dims,
                    bytes=shape.bytes,
                    spec=hlo_sharding.spec(parameter.attribute("sharding") or "", len(shape.dims), mesh),
                    donated=number in donors or number in outputs,
                    output=outputs.get(number) if len(parameter.shapes) == 1 else None,
                )
            )
    return arguments


def results(module: Module) -> tuple[Shape, ...]:
    """The arrays that a module returns."""
    root = module.entry.root if module.entry is not None else None
    return () if root is None else root.shapes


def _name(parameter: Instruction) -> str:
    """The path of an argument in the caller's tree; else the name of the parameter."""
    return parameter.op_name.replace("\\", "") or parameter.name
