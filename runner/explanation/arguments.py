"""Reads what a module takes and returns: its arguments, their layouts, and the results that reuse their memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

from runner.evidence import hlo_sharding
from runner.evidence.hlo import Instruction, Module, Shape
from runner.explanation.model import Argument
from runner.layout import Mesh
from runner.words import bytes_text, listed

_ALIASES = re.compile(r"\binput_output_alias=\{(.*?) \}(?=,|$)")
_ALIAS = re.compile(r"\{([\d, ]*)\}: \((\d+), \{[\d, ]*\}(?:, (may|must)-alias)?\)")
_DONORS = re.compile(r"\bbuffer_donor=\{(.*?)\}(?:,|$)")
_DONOR = re.compile(r"\((\d+), \{")

_NAMED = 4
"""How many arguments a sentence names."""


@dataclass(frozen=True)
class Taken:
    """The arguments of a module, and sentences about their donation."""

    arguments: list[Argument]
    notes: list[str]

    @property
    def aliased(self) -> int:
        """The bytes of results that lie in the memory of an argument."""
        return sum(argument.bytes for argument in self.arguments if argument.output is not None)


def read(module: Module, head: str, mesh: Mesh) -> Taken:
    """The arguments of a module; `head` is the first line of its text, which says what is donated."""
    aliases = {int(number): (output, kind == "must") for output, number, kind in _aliases(head)}
    parameters = module.entry.parameters if module.entry is not None else {}
    arguments: list[Argument] = []
    for number, parameter in sorted(parameters.items()):
        for at, shape in enumerate(parameter.shapes):
            output, must = aliases.get(number, (None, False)) if len(parameter.shapes) == 1 else (None, False)
            arguments.append(
                Argument(
                    name=_name(parameter) + (f"[{at}]" if len(parameter.shapes) > 1 else ""),
                    dtype=shape.dtype,
                    shape=shape.dims,
                    bytes=shape.bytes,
                    spec=hlo_sharding.spec(parameter.attribute("sharding") or "", len(shape.dims), mesh),
                    output=output,
                    must=must,
                )
            )
    donors = [int(number) for part in _DONORS.findall(head) for number in _DONOR.findall(part)]
    unused = [parameters[number] for number in donors if number in parameters and number not in aliases]
    return Taken(arguments, _unusable(unused))


def results(module: Module) -> tuple[Shape, ...]:
    """The arrays that a module returns."""
    root = module.entry.root if module.entry is not None else None
    return () if root is None else root.shapes


def _aliases(head: str) -> list[tuple[str, str, str]]:
    return [match for part in _ALIASES.findall(head) for match in _ALIAS.findall(part)]


def _name(parameter: Instruction) -> str:
    """The path of an argument in the caller's tree; else the name of the parameter."""
    return parameter.op_name.replace("\\", "") or parameter.name


def _unusable(parameters: list[Instruction]) -> list[str]:
    """A sentence about donated arguments whose memory no result reuses."""
    if not parameters:
        return []
    size = bytes_text(sum(parameter.bytes for parameter in parameters))
    names = [_name(parameter) for parameter in parameters]
    shown = names[:_NAMED] + ([f"{len(names) - _NAMED} more"] if len(names) > _NAMED else [])
    are = "is donated, but no result reuses its" if len(names) == 1 else "are donated, but no result reuses their"
    return [f"{listed(shown)} {are} memory ({size} a device)"]
