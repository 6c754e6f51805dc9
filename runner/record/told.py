"""A record in; the same with the places of the user's Python in the stead of the names that its lines have, out.

For those who read. What looks lines up, such as a drawing of the graph, takes the record as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from runner.estimate.model import Estimate
from runner.evidence import words
from runner.evidence.model import CompilerWarning, Profile
from runner.experiment.program import Program
from runner.record.model import CompiledProgram, Record
from runner.sharding.plan import Planned

Names = Mapping[str, str]


def lines_of(program: str) -> str:
    """Which lines of a record a program was written from."""
    return "derived" if Program(program) is Program.DERIVED else Program(program).section


def told(record: Record) -> Record:
    """The record whose programs tell `llama.py:41 q = x @ w.q` where they name that line."""
    names = {
        section: {line.line: str(line.frame) for line in lines if line.frame is not None}
        for section, lines in record.lines.items()
    }
    if not any(names.values()):
        return record
    programs = {
        name: _program(program, names.get(lines_of(name), {})) if isinstance(program, CompiledProgram) else program
        for name, program in record.programs.items()
    }
    return replace(record, programs=programs)


def _program(program: CompiledProgram, names: Names) -> CompiledProgram:
    return replace(
        program,
        collectives=program.collectives and [words.told(each, names) for each in program.collectives],
        compiler_warnings=program.compiler_warnings and [_warning(each, names) for each in program.compiler_warnings],
        profile=program.profile and _profile(program.profile, names),
        estimate=program.estimate and _estimate(program.estimate, names),
        plan=program.plan and _plan(program.plan, names),
    )


def _all(lines: Sequence[str], names: Names) -> list[str]:
    return [names.get(line, line) for line in lines]


def _one(line: str | None, names: Names) -> str | None:
    return None if line is None else names.get(line, line)


def _warning(warning: CompilerWarning, names: Names) -> CompilerWarning:
    return replace(warning, node=_one(warning.node, names))


def _profile(profile: Profile, names: Names) -> Profile:
    return replace(
        profile,
        nodes=[replace(each, node=_one(each.node, names), nodes=_all(each.nodes, names)) for each in profile.nodes],
        collectives=[
            replace(each, node=_one(each.node, names), nodes=_all(each.nodes, names)) for each in profile.collectives
        ],
    )


def _estimate(estimate: Estimate, names: Names) -> Estimate:
    return replace(
        estimate,
        lines=[replace(each, nodes=_all(each.nodes, names)) for each in estimate.lines],
        collectives=[replace(each, nodes=_all(each.nodes, names)) for each in estimate.collectives],
    )


def _plan(plan: Planned, names: Names) -> Planned:
    if plan.collectives is None:
        return plan
    moves = (replace(each, line=_one(each.line, names), of=names.get(each.of, each.of)) for each in plan.collectives)
    return replace(plan, collectives=tuple(moves))
