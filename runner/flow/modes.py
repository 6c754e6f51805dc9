"""The programs of a record in; what each leaves to the compiler, and what it costs to say the rest, out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from runner.evidence.model import Collective
from runner.record import code
from runner.record.model import Asker, CompiledProgram, Mode, Placer, ProgramRecord, View
from runner.why.least import gaps

_VIEW: dict[str, View] = {
    "auto": "global",
    "constraint": "global",
    "explicit": "global",
    "derived": "per device",
    "shard_map": "per device",
}
_PLACED_BY: dict[str, Placer] = {
    "auto": "compiler",
    "constraint": "constraints",
    "explicit": "types",
    "derived": "specs",
    "shard_map": "specs",
}
"""What decides where the values lie that are computed: where constraints are silent, the compiler."""


def modes(programs: Mapping[str, ProgramRecord], folder: Path) -> list[Mode]:
    """Per program on the mesh its view, who places values and who communicates, the bytes, the lines of its file.

    The `programs` are those of a record, whose files lie in `folder`.
    """
    compared = {name: found for name, found in programs.items() if name in _VIEW and isinstance(found, CompiledProgram)}
    sent = {name: found.bytes_sent for name, found in compared.items() if found.bytes_sent is not None}
    least = gaps({name: found.collectives or [] for name, found in compared.items()}, sent)
    return [
        Mode(
            program=name,
            view=_VIEW[name],
            placed_by=_PLACED_BY[name],
            communicated_by=_asked(found),
            bytes_sent=found.bytes_sent,
            bytes_sent_min=found.bytes_sent_min,
            gap=least.get(name),
            lines=_lines(folder / f"program_{name}.py"),
        )
        for name, found in compared.items()
    ]


def _asked(found: CompiledProgram) -> list[Asker] | None:
    """Who asked for the collectives, in an order of their own."""
    if found.collectives is None or found.collectives_missing:
        return None
    asked = {_by(one) for one in found.collectives if not one.alone}
    return [by for by in get_args(Asker) if by in asked]


def _by(one: Collective) -> Asker:
    return "compiler" if one.inserted else "differentiation" if one.gradient else "program"


def _lines(file: Path) -> int:
    """The lines of code of the function `program` in a program's file."""
    function = code.function(file.read_text(encoding="utf-8"))
    assert function is not None, file
    lines = map(str.strip, function.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)
