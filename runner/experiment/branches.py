"""Statements in; the same with the lines of a choice together, as JAX has them, out.

What `cond` and `switch` became (`runner/experiment/choosing.py`) is one choice again where all of it is there; where
some line was taken out, it is the lines that it is made of, of which all are computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runner.experiment.lines import Call, Loop, Node, Statement


@dataclass(frozen=True)
class Branch:
    """One of the calls between which a choice is made: its lines, the last of which are what it gives."""

    call: Call
    lines: tuple[Statement, ...]

    @property
    def gives(self) -> tuple[Statement, ...]:
        """The lines with what it gives."""
        return self.lines[-len(self.call.results) :]


@dataclass(frozen=True)
class Choice:
    """A call of `cond` or `switch`.

    - `branches`: in JAX's order; `results`: the lines that take the values of one of them.
    - `depth`: in how many calls the lines of a branch stand.
    """

    call: Call
    branches: tuple[Branch, ...]
    results: tuple[Node, ...]
    depth: int


def parts(statements: Sequence[Statement], depth: int = 0) -> Iterator[Statement | Choice]:
    """The statements, which stand in `depth` calls, with each choice that is whole in one."""
    for calls, group in itertools.groupby(statements, lambda statement: around(statement, depth)):
        lines = tuple(group)
        choice = None if calls is None else _whole(calls, lines)
        yield from lines if choice is None else [choice]


def around(statement: Statement, depth: int = 0) -> tuple[Call, ...] | None:
    """The calls down to the outermost choice that a statement, which stands in `depth` calls, is of."""
    calls = statement.line.calls
    at = next((i for i in range(depth, len(calls)) if calls[i].chooses), None)
    return None if at is None else calls[: at + 1]


def together(needing: Sequence[Statement], statements: Sequence[Statement]) -> list[Statement]:
    """Those of the statements that are `needing`, with all that is of the same choices as one of these."""
    chosen = {around(statement) for statement in needing} - {None}
    return [statement for statement in statements if statement in needing or around(statement) in chosen]


def choice_of(depth: int, lines: Sequence[Statement]) -> Choice | None:
    """The choice that the lines of a call are, which stands in `depth` calls, if they are all there.

    A choice in a branch of another one may have the same names as that.
    """
    return _whole(lines[0].line.calls[: depth + 1], tuple(lines))


def _whole(calls: tuple[Call, ...], lines: tuple[Statement, ...]) -> Choice | None:
    made, depth = calls[-1], len(calls)
    count = len(made.results)
    results = [line for line in lines[-count:] if isinstance(line, Node) and line.line.calls == calls]
    inner = lines[:-count]
    if len(results) < count or any(len(line.line.calls) <= depth for line in inner):
        return None
    branches = [
        Branch(call, tuple(group)) for call, group in itertools.groupby(inner, lambda line: line.line.calls[depth])
    ]
    if [branch.call.branch for branch in branches] != list(range(len(branches))) or len(branches) < _least(made):
        return None
    for branch in branches:
        given = [line.name for line in branch.gives if isinstance(line, Node) and len(line.line.calls) == depth + 1]
        if len(given) < count or any(name not in line.names for name, line in zip(given, results, strict=True)):
            return None
    return Choice(made, tuple(branches), tuple(results), depth + 1)


def complete(statements: Sequence[Statement], depth: int = 0) -> bool:
    """Whether every choice among statements that stand in `depth` calls is whole."""
    for part in parts(statements, depth):
        if isinstance(part, Choice):
            if not all(complete(branch.lines, part.depth) for branch in part.branches):
                return False
            continue
        inside = part.body if isinstance(part, Loop) else ()
        if any(call.chooses for call in part.line.calls[depth:]) or not complete(inside, len(part.line.calls)):
            return False
    return True


def _least(call: Call) -> int:
    return 2 if call.function == "cond" else 1
