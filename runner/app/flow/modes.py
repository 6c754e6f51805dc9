"""Takes the programs of a record; returns what each leaves to the compiler, and what it costs to write the rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from runner.compiled.evidence.model import Collective
from runner.compiled.why.least import gaps
from runner.experiment.program import Program
from runner.graph.language import python_source
from runner.reports.record.model import Asker, CompiledProgram, Mode, ProgramRecord, alike, compiled_on_mesh


def modes(programs: Mapping[str, ProgramRecord], folder: Path) -> list[Mode]:
    """Return for each program on the mesh its view, who decides layouts and communication, its bytes and its number of
    lines.

    The `programs` are those of a record, whose files are in `folder`.
    """
    compared = compiled_on_mesh(programs)
    same = alike(compared)
    sent = {name: program.bytes_sent for name, program in same.items() if program.bytes_sent is not None}
    least = gaps({name: program.collectives or [] for name, program in same.items()}, sent)
    return [
        Mode(
            program=name,
            view="global" if Program(name).whole else "per device",
            placed_by=Program(name).placed_by,
            communicated_by=_asked(program),
            bytes_sent=program.bytes_sent,
            bytes_sent_min=program.bytes_sent_min,
            gap=least.get(name),
            lines=_lines(folder / f"program_{name}.py"),
        )
        for name, program in compared.items()
    ]


def _asked(program: CompiledProgram) -> list[Asker] | None:
    """Return who asked for the collectives, in a fixed order."""
    if program.collectives is None or program.collectives_missing:
        return None
    asked = {_by(collective) for collective in program.collectives if not collective.alone}
    return [by for by in get_args(Asker) if by in asked]


def _by(collective: Collective) -> Asker:
    return "compiler" if collective.inserted else "differentiation" if collective.gradient else "program"


def _lines(file: Path) -> int:
    """The lines of code of the function `program` in a program's file."""
    function = python_source.function(file.read_text(encoding="utf-8"), "program")
    assert function is not None, file
    lines = map(str.strip, function.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)
