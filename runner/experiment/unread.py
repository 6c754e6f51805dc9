"""Warns of each line that nothing reads, with its collectives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from runner.experiment.model import Experiment, Flat, Loop, Section
from runner.graph.language.operations import OPERATIONS
from runner.graph.model import Graph, walk


def warnings(experiment: Experiment) -> list[str]:
    """A warning for each line that no output depends on: the compiler removes it.

    Lines inside a call of Python have none, as they stand in no file; the call has one.
    """
    held = {name for expected in experiment.expected.values() for name in expected.layouts}
    needed: dict[Section, set[str]] = {
        "graph": {*experiment.results, *experiment.constraints, *held},
        "per_device": set(experiment.results),
    }
    return [
        f"nothing reads '{path}' of {section}: the compiler removes it{_with(experiment.computed(section), statement)}"
        for section, names in needed.items()
        for path, statement in _unread(experiment.lines(section), names)
        if statement.line.path not in experiment.frames[section]
    ]


def _unread(statements: Sequence[Flat], needed: Iterable[str], path: str = "") -> Iterator[tuple[str, Flat]]:
    """The statements that no later statement and no output reads, in order."""
    needed, unread = set(needed), list[tuple[str, Flat]]()
    for statement in reversed(statements):
        if not statement.defines & needed:
            unread.append((f"{path}{statement.name}", statement))
            continue
        needed |= statement.names
        if isinstance(statement, Loop):
            own = f"{statement.name}."
            inside = statement.wanted | {name.removeprefix(own) for name in needed if name.startswith(own)}
            unread += reversed(list(_unread(statement.body, inside, f"{path}{statement.name}.")))
    yield from reversed(unread)


def _with(computed: Graph, statement: Flat) -> str:
    """The collectives that are removed with a statement, as text."""
    path = statement.line.path
    gone = [
        equation.operation
        for equation in walk(computed)
        if equation.source.line.path == path or equation.source.line.path.startswith(f"{path}/")
    ]
    rows = (OPERATIONS.get(name) for name in dict.fromkeys(gone))
    collectives = [row.name for row in rows if row is not None and row.kind == "collective"]
    return f", and its {' and '.join(collectives)}, which no check counts" if collectives else ""
