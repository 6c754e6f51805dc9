"""Gives a record the names of a user's Python: source lines for lines, paths for the leaves of trees.

For readers. Code that looks up lines, such as the drawing of the graph, takes the original record.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.compiled.estimate.model import Estimate, bottleneck
from runner.compiled.evidence import words
from runner.compiled.evidence.model import Collective, CompilerWarning, Profile, Reason
from runner.compiled.why.least import joined, parts
from runner.experiment.program import Program
from runner.graph.sharding.propagation import Planned
from runner.reports.record.model import CompiledProgram, Mode, Pictures, Record
from runner.reports.record.verdicts import (
    FileChecks,
    OutputVerdict,
    SectionsVerdict,
    Undecided,
    ValueOutput,
    ValueVerdict,
)

Names = Mapping[str, str]


def lines_of(program: str, sections: Container[str]) -> str:
    """Return which of the recorded `sections` has the lines that a program runs."""
    known = Program(program)
    if known.whole and "written" in sections:
        return "written"
    return "derived" if known is Program.DERIVED else known.section


def names_of(record: Record) -> dict[str, Names]:
    """Return, by section, the readers' names of lines, arrays and outputs: `llama.py:41 q = x @ w.q`, `params/q`."""
    names: dict[str, Names] = {}
    for section, lines in record.lines.items():
        added = {line.line: _of_leaf(line.line, record.paths) for line in lines if section == "derived"}
        places = {line.line: str(line.frame) for line in lines if line.frame is not None}
        names[section] = {**added, **record.paths, **places}
    return names


def _of_leaf(line: str, paths: Names) -> str:
    """Return a line of the derived program that moves a leaf, `w_q_gathered`, with its path: `w/q_gathered`."""
    leaf = max((name for name in paths if line.startswith(f"{name}_")), key=len, default="")
    return f"{paths[leaf]}{line.removeprefix(leaf)}" if leaf else line


def readable(record: Record) -> Record:
    """Return the record with readers' names: `llama.py:41 q = x @ w.q` for a line, and `params/q` for a leaf."""
    names = names_of(record)
    if not record.paths and not any(names.values()):
        return record
    # Keys of a call from Python have no place in a file: a reason names the array, as the tables do.
    given = {
        key: _array(key, record.paths) or place for key, place in record.places.items() if not _IN_FILE.search(place)
    }
    programs = {
        name: _with_arguments(readable_program(program, names.get(lines_of(name, names), record.paths)), given)
        if isinstance(program, CompiledProgram)
        else program
        for name, program in record.programs.items()
    }
    return replace(
        record,
        programs=programs,
        modes=record.modes and [_mode(mode, names) for mode in record.modes],
        checks=_checks(record.checks, names),
        arrays={record.paths.get(name, name): array for name, array in record.arrays.items()},
        pictures=record.pictures and _pictures(record.pictures, record.paths),
        show=record.show if isinstance(record.show, str) else _all(record.show, record.paths),
    )


def name_collectives(record: Record) -> None:
    """Write into a record of a user's Python what tables say of its collectives: `of`, and the text of each reason."""
    shown = readable(record)
    if shown is record:
        return
    for name, program in record.programs.items():
        names = shown.programs[name]
        if not isinstance(program, CompiledProgram) or not isinstance(names, CompiledProgram):
            continue
        pairs = zip(program.collectives or [], names.collectives or [], strict=True)
        collectives = [_named(entry, readable_entry) for entry, readable_entry in pairs]
        record.programs[name] = replace(program, collectives=program.collectives and collectives)


def _named(entry: Collective, shown: Collective) -> Collective:
    why = replace(entry.why, text=shown.why.text) if entry.why and shown.why else entry.why
    return replace(entry, of=words.subject(shown), why=why)


_IN_FILE = re.compile(r":\d+:\d+$")


def _array(key: str, paths: Names) -> str:
    """Return the readers' name of the array whose layout a key has, `p/w` for `arrays.p_w.spec`; none for others."""
    section, _, rest = key.partition(".")
    name = rest.removesuffix(".spec")
    return paths.get(name, name) if section == "arrays" else ""


def _with_arguments(program: CompiledProgram, given: Names) -> CompiledProgram:
    """Return a program whose reasons name the arrays of a call, `p/w`, for keys, `arrays.p_w.spec`."""
    if not given or program.collectives is None:
        return program
    key = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, sorted(given, key=len, reverse=True)))})(?![\w.])")

    def of_call(why: Reason) -> Reason:
        return replace(why, text=key.sub(lambda name: given[name[0]], why.text), keys=_all(why.keys, given))

    collectives = [
        entry if entry.why is None else replace(entry, why=of_call(entry.why)) for entry in program.collectives
    ]
    return replace(program, collectives=collectives)


def readable_program(program: CompiledProgram, names: Names) -> CompiledProgram:
    """Return a program with readers' names for its lines, if there are any."""
    if not names:
        return program
    return replace(
        program,
        outputs={names.get(name, name): output for name, output in program.outputs.items()},
        checks=program.checks.but(value=_value(program.checks.value, names)),
        lowered=program.lowered
        and [replace(collective, line=_name(collective.line, names)) for collective in program.lowered],
        collectives=program.collectives and [words.renamed(collective, names) for collective in program.collectives],
        compiler_warnings=program.compiler_warnings
        and [_warning(warning, names) for warning in program.compiler_warnings],
        profile=program.profile and _profile(program.profile, names),
        estimate=program.estimate and _estimate(program.estimate, names),
        plan=program.plan and _plan(program.plan, names),
    )


def _mode(mode: Mode, names: Mapping[str, Names]) -> Mode:
    """Return a mode whose gap has readers' names; lines with the same name are one, and are left out if equal."""
    if mode.gap is None:
        return mode
    known = {**names.get(lines_of(mode.gap.program, names), {}), **names.get(lines_of(mode.program, names), {})}
    lines: dict[str, list[int]] = {}
    for line, (mine, theirs) in mode.gap.lines.items():
        name = joined(dict.fromkeys(known.get(part, part) for part in parts(line)))
        before = lines.get(name, [0, 0])
        lines[name] = [before[0] + mine, before[1] + theirs]
    different = {line: sent for line, sent in lines.items() if sent[0] != sent[1]}
    return replace(mode, gap=replace(mode.gap, lines=different))


def _all(lines: Sequence[str], names: Names) -> list[str]:
    return [names.get(line, line) for line in lines]


def _name(line: str | None, names: Names) -> str | None:
    return None if line is None else names.get(line, line)


def _checks(checks: FileChecks, names: Mapping[str, Names]) -> FileChecks:
    """Return the checks of a file with readers' names for the deciding lines."""
    verdict = checks.sections
    if not isinstance(verdict, SectionsVerdict):
        return checks
    outputs = {
        name: replace(output, undecided=_undecided(output.undecided, names)) for name, output in verdict.outputs.items()
    }
    return checks.but(sections=replace(verdict, outputs=outputs))


def _undecided(undecided: Undecided | None, names: Mapping[str, Names]) -> Undecided | None:
    if undecided is None:
        return None
    places = [
        replace(place, line=names.get(place.section or "", {}).get(place.line, place.line))
        for place in undecided.places
    ]
    return replace(undecided, places=places)


def _value(verdict: Any, names: Names) -> Any:
    """Return a verdict on values with readers' names for the deciding lines."""
    if not isinstance(verdict, ValueVerdict):
        return verdict
    outputs: dict[str, ValueOutput | OutputVerdict] = {}
    for name, output in verdict.outputs.items():
        if isinstance(output, ValueOutput) and output.undecided:
            places = [replace(place, line=names.get(place.line, place.line)) for place in output.undecided.places]
            output = replace(output, undecided=replace(output.undecided, places=places))
        outputs[names.get(name, name)] = output
    return replace(verdict, outputs=outputs, note=_with_outputs(verdict.note, verdict.outputs, names))


def _with_outputs(note: str | None, outputs: Iterable[str], names: Names) -> str | None:
    """Return a note with readers' names for the outputs in it."""
    renamed = sorted((name for name in outputs if name in names), key=len, reverse=True)
    if note is None or not renamed:
        return note
    return re.sub(rf"\b(?:{'|'.join(map(re.escape, renamed))})\b", lambda name: names[name[0]], note)


def _pictures(pictures: Pictures, names: Names) -> Pictures:
    return replace(
        pictures, arrays=[replace(array, name=names.get(array.name, array.name)) for array in pictures.arrays]
    )


def _warning(warning: CompilerWarning, names: Names) -> CompilerWarning:
    return replace(warning, node=_name(warning.node, names))


def _profile(profile: Profile, names: Names) -> Profile:
    return replace(
        profile,
        nodes=[replace(node, node=_name(node.node, names), nodes=_all(node.nodes, names)) for node in profile.nodes],
        collectives=[
            replace(collective, node=_name(collective.node, names), nodes=_all(collective.nodes, names))
            for collective in profile.collectives
        ],
    )


def _estimate(estimate: Estimate, names: Names) -> Estimate:
    lines = [replace(line, nodes=_all(line.nodes, names)) for line in estimate.lines]
    collectives = [replace(collective, nodes=_all(collective.nodes, names)) for collective in estimate.collectives]
    longest = bottleneck(lines, collectives, estimate.seconds)
    return replace(estimate, lines=lines, collectives=collectives, bottleneck=longest)


def _plan(plan: Planned, names: Names) -> Planned:
    if plan.collectives is None:
        return plan
    moves = (replace(move, line=_name(move.line, names), of=names.get(move.of, move.of)) for move in plan.collectives)
    return replace(plan, collectives=tuple(moves))
