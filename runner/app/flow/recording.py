"""Takes the lines, arrays and outputs of a run; returns their entries in the record, and those of modes and keys."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, get_args

import numpy as np

from runner.base import codec, dtypes
from runner.base.faults import Key, key_text
from runner.base.layout import Typed
from runner.compiled.evidence.model import Collective
from runner.compiled.why.least import gaps
from runner.experiment.config.sources import Sources
from runner.experiment.model import Experiment, Line
from runner.experiment.program import Program
from runner.experiment.rules import LogicalAxisRule
from runner.experiment.source_text import NO_SOURCE, SourceText
from runner.graph.language import python_source
from runner.graph.language.lines import calls_in, expressions, line_of, repeat
from runner.graph.language.lines import lines as lines_of
from runner.graph.language.syntax import parse
from runner.graph.model import Graph
from runner.graph.source import SECTIONS, Frame, Source
from runner.graph.spelling import Spelling
from runner.graph.term import Term, elements, name_of, within
from runner.link.events import Ranges, Types
from runner.link.target import Output, ProgramRun
from runner.reports.record.model import (
    AppliedRule,
    Asker,
    CompiledProgram,
    Held,
    LogicalSpec,
    Mode,
    OutputRecord,
    ProgramRecord,
    RecordedLine,
    alike,
    compiled_on_mesh,
)

_RECORDED_VALUES = 1000
"""The largest number of elements of an output whose values are recorded."""

_LISTED = 64
"""The largest number of devices for which the record lists what each of them holds."""


def shards(
    held: Iterable[tuple[int, Ranges]], device_ids: list[int], process_of: Mapping[int, int] = MappingProxyType({})
) -> list[Held] | None:
    """What each device holds, in the order of the mesh, like `addressable_shards`; None for too many devices.

    `process_of` gives the process of each device, where there are several.
    """
    if len(device_ids) > _LISTED:
        return None
    return [
        Held(
            device=device,
            index=[list(part) for part in ranges],
            shape=[stop - start for start, stop in ranges],
            process=process_of.get(device),
        )
        for device, ranges in sorted(held, key=lambda shard: device_ids.index(shard[0]))
    ]


def output_of(run: ProgramRun, output: Output) -> OutputRecord:
    """The record's entry for an output."""
    parts = sorted({tuple(stop - start for start, stop in place.ranges) for place in output.places})
    text = values = None
    if output.held:
        whole = output.whole()
        kind = dtypes.dtype(output.dtype).kind
        plain = whole.astype(np.float64) if kind == "float" else whole.astype(object) if kind == "int" else whole
        text, values = str(whole), codec.one_nan(plain.tolist()) if whole.size <= _RECORDED_VALUES else None
    return OutputRecord(
        shape=list(output.shape),
        dtype=output.dtype,
        spec=None if output.spec is None else output.spec.padded(len(output.shape)),
        shard_shape=list(parts[0]),
        shards_from=run.program if run.program.on_mesh else "spec",
        shards=shards(
            ((place.device, place.ranges) for place in output.places), run.ran.device_ids, run.ran.process_of
        ),
        text=text,
        values=values,
    )


_Types: TypeAlias = Mapping[str, Typed]


def lines(experiment: Experiment, derived: Experiment | None, types: Types) -> dict[str, list[RecordedLine]]:
    """The lines of `graph`, of `per_device`, of the derived program and of functions that have references."""
    arrays = {array.name: array.name for array in experiment.arrays}
    sections: dict[str, Graph] = {section: experiment.computed(section) for section in SECTIONS}
    if derived is not None:
        sections["derived"] = derived.computed("per_device")
    frames = {**experiment.frames, "derived": _derived_frames(experiment, derived)}
    texts: dict[str, SourceText] = {**experiment.source_text}
    if experiment.written is not None:
        sections["written"] = experiment.written.computed("graph")
        frames["written"] = experiment.written.frames["graph"]
        texts["written"] = experiment.written.source_text["graph"]
    return {
        name: [
            replace(line, frame=frames[name].get(line.line))
            for line in _Lines(graph, types.nodes.get(name, {}), texts.get(name, NO_SOURCE)).of(graph, dict(arrays))
        ]
        for name, graph in sections.items()
        if graph.equations
    }


def _derived_frames(experiment: Experiment, derived: Experiment | None) -> Mapping[str, Frame]:
    """The places of the lines of the derived program in the user's Python, by name.

    A derived line has the name of the line that it is derived from; a further one, such as a gathered value, begins
    with it: `y_gathered`.
    """
    frames = dict(experiment.frames["graph"])
    if derived is None or not frames:
        return frames
    known = {str(line) for line, _ in expressions(experiment.computed("graph"))}
    for line, _ in expressions(derived.computed("per_device")):
        name = str(line)
        parts = [] if name in known else name.split("_")
        starts = ("_".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
        of = next((start for start in starts if start in known), None)
        if of in frames:
            frames[name] = frames[of]
    return frames


class _Lines:
    """The entries of the lines of one section."""

    def __init__(self, graph: Graph, types: _Types, source: SourceText) -> None:
        self._spelling, self._types, self._source = Spelling.of(graph), types, source

    def of(self, graph: Graph, scope: dict[str, str]) -> Iterator[RecordedLine]:
        """The entries of a graph's lines and of those inside; `scope` maps names to values, and gets what they give."""
        for equation in lines_of(graph):
            line, loop = line_of(equation), repeat(equation)
            if loop is None:
                yield self._line(line, equation.source, self._spelling.equation(equation), scope)
                scope[line.name] = line.path
                continue
            yield RecordedLine(path=line.path, line=str(line), expression=None, reads=[], steps=loop.form.steps)
            inside = {name: of for name, of in scope.items() if name not in loop.bound}
            for start, operand in zip(loop.form.starts, equation.operands, strict=True):
                yield self._line(start.line, start, self._spelling.operand(operand), scope)
                inside[start.line.name] = start.line.path
            yield from self.of(loop.body, inside)
            last = (*((name, name) for name in loop.carry), *loop.stack.items())
            scope.update({f"{line.name}.{name}": inside[inner] for name, inner in last if inner in inside})

    def _line(self, line: Line, written: Source, term: Term, scope: Mapping[str, str]) -> RecordedLine:
        given = [operand for call, row in calls_in(term) if row.kind == "collective" for operand in call.operands]
        shape, dtype = self._types.get(line.path, (None, None))
        python = str(line) in self._source.frames
        return RecordedLine(
            path=line.path,
            line=str(line),
            source=self._source.of(term) if python else None,
            variable=self._source.name(line.name) if python else None,
            expression=_text(written),
            reads=_read(within(term), scope),
            sent=_read(given, scope),
            shape=None if shape is None else list(shape),
            dtype=dtype,
        )


def _text(written: Source) -> str:
    """The text of a line; of one of the results that a function returns together, its part of their text."""
    start, end = written.span
    part = written.text[start:end]
    return part if part != written.text and _is_group(written.text) else written.text


@functools.lru_cache(maxsize=1)
def _is_group(text: str) -> bool:
    """Whether a text is that of several results, which as many lines have."""
    return elements(parse(text).term) is not None


def _read(terms: Iterable[Term], scope: Mapping[str, str]) -> list[str]:
    """The values that the names in some terms stand for, in their order."""
    names = map(name_of, terms)
    return list(dict.fromkeys(scope[name] for name in names if name is not None and name in scope))


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


def logical(experiment: Experiment, sources: Sources) -> dict[str, LogicalSpec]:
    """For each key of a spec with logical names, the mesh axes that it resolves to, and the rules that were applied."""
    specs = experiment.logical.values()
    used = {rule for spec in specs for rule in (*spec.rules, *spec.dropped) if rule is not None}
    places = sources.places({key_text(rule.key): rule.key for rule in used})

    def applied(rule: LogicalAxisRule) -> AppliedRule:
        key = key_text(rule.key)
        return AppliedRule(name=rule.name, axes=list(rule.axes), key=key, place=places.get(key))

    return {
        key_text(key): LogicalSpec(
            written=spec.written,
            spec=spec.spec,
            rules=[None if rule is None else applied(rule) for rule in spec.rules],
            dropped=[applied(rule) for rule in spec.dropped],
        )
        for key, spec in experiment.logical.items()
    }


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
