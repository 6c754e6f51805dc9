"""Reads what a module takes and returns: its arguments, their layouts, and the results that reuse their memory."""

from __future__ import annotations

import re

from runner.base.layout import Mesh
from runner.base.lazy import pattern
from runner.compiled.evidence import hlo_sharding
from runner.compiled.evidence.hlo import Instruction, Module, Shape
from runner.compiled.explanation.model import Argument

_ALIASES = pattern(r"\binput_output_alias=\{(.*?) \}(?=,|$)")
_ALIAS = pattern(r"\{([\d, ]*)\}: \((\d+), \{[\d, ]*\}(?:, (?:may|must)-alias)?\)")
_ENTRY = pattern(r"^ENTRY .*?^\}", re.MULTILINE | re.DOTALL)
_NAMED = pattern(r"parameter\((\d+)\).*?op_name=\"([^\"]*)\"")
_DONORS = pattern(r"\bbuffer_donor=\{(.*?)\}(?:,|$)")
_DONOR = pattern(r"\((\d+), \{")


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


def aliases(head: str) -> dict[int, str]:
    """The result, such as `1` or `0, 1`, that takes the memory of each such parameter, in a module's first line."""
    return {int(number): output for part in _ALIASES.findall(head) for output, number in _ALIAS.findall(part)}


def aliased(text: str) -> frozenset[str]:
    """The names of the arguments whose memory results take, in the text of a compiled module."""
    numbers, entry = aliases(text.partition("\n")[0]), _ENTRY.search(text)
    named = _NAMED.findall(entry[0]) if entry is not None and numbers else ()
    return frozenset(name for number, name in named if int(number) in numbers)
