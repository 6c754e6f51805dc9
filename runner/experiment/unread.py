"""An experiment in; the lines that nothing reads out, in words, with what they would have communicated."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from runner.experiment.model import Experiment, Loop, Section, Statement, expressions
from runner.language.operations import OPERATIONS


def warnings(experiment: Experiment) -> list[str]:
    """What is to be said of each line that no output depends on: the compiler removes it."""
    held = {name for expected in experiment.expected.values() for name in expected.layouts}
    needed: dict[Section, set[str]] = {
        "graph": {*experiment.results, *experiment.constraints, *held},
        "per_device": set(experiment.results),
    }
    return [
        f"nothing reads '{path}' of {section}: the compiler removes it{_with(statement)}"
        for section, names in needed.items()
        for path, statement in _unread(experiment.section(section), names)
    ]


def _unread(statements: Sequence[Statement], needed: Iterable[str], path: str = "") -> Iterator[tuple[str, Statement]]:
    """The statements that nothing below them needs, in the order in which they stand."""
    needed, found = set(needed), list[tuple[str, Statement]]()
    for statement in reversed(statements):
        if not statement.defines & needed:
            found.append((f"{path}{statement.name}", statement))
            continue
        needed |= statement.names
        if isinstance(statement, Loop):
            own = f"{statement.name}."
            inside = statement.wanted | {name.removeprefix(own) for name in needed if name.startswith(own)}
            found += reversed(list(_unread(statement.body, inside, f"{path}{statement.name}.")))
    yield from reversed(found)


def _with(statement: Statement) -> str:
    """The collectives that go with a statement."""
    called = [
        node.func.id
        for _, expression in expressions([statement])
        for node in ast.walk(expression.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    collectives = list(dict.fromkeys(name for name in called if OPERATIONS[name].kind == "collective"))
    return f", and its {' and '.join(collectives)}, which no count has" if collectives else ""
