"""Warns of each line that nothing reads, with its collectives."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from runner.experiment.model import Experiment, Section
from runner.graph.language.lines import line_of, repeat
from runner.graph.language.operations import OPERATIONS
from runner.graph.model import Graph, dependencies, walk
from runner.graph.source import Line


def warnings(experiment: Experiment) -> list[str]:
    """A warning for each line that no output depends on: the compiler removes it.

    Lines inside a call of Python have none, as they stand in no file; the call has one.
    """
    held = {name for expected in experiment.expected.values() for name in expected.layouts}
    needed: dict[Section, set[str]] = {
        "graph": {*experiment.results, *experiment.constraints, *held},
        "per_device": set(experiment.results),
    }
    warnings: list[str] = []
    for section, names in needed.items():
        graph = experiment.computed(section)
        for line in _unread(graph, names, ()):
            if line.path not in experiment.frames[section]:
                removed = _with(graph, line)
                warnings.append(f"nothing reads '{line}' of {section}: the compiler removes it{removed}")
    return warnings


def _unread(graph: Graph, names: Collection[str], needed: Iterable[int]) -> Iterator[Line]:
    """The lines and repeats that no later line reads, and of which no value has one of the `names` or is `needed`."""
    needed, unread = {*needed, *(graph.names[name] for name in names if name in graph.names)}, list[Line]()
    for equation in reversed(graph.equations):
        loop = repeat(equation)
        if needed.isdisjoint(value.number for value in equation.results):
            if loop is not None or (equation.source.whole and equation.source.line.first is None):
                unread.append(line_of(equation))
            continue
        needed |= dependencies(equation)
        if loop is not None:
            own = f"{loop.name}."
            inside = {name.removeprefix(own) for name in names if name.startswith(own)}
            unread += reversed(list(_unread(loop.body, inside, loop.body.outputs)))
    yield from reversed(unread)


def _with(computed: Graph, line: Line) -> str:
    """The collectives that are removed with a line, as text."""
    path = line.path
    gone = [
        equation.operation
        for equation in walk(computed)
        if equation.source.line.path == path or equation.source.line.path.startswith(f"{path}/")
    ]
    rows = (OPERATIONS.get(name) for name in dict.fromkeys(gone))
    collectives = [row.name for row in rows if row is not None and row.kind == "collective"]
    return f", and its {' and '.join(collectives)}, which no check counts" if collectives else ""
