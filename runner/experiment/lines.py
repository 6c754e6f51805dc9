"""The lines of a section: what they are called and say, where they are written, in what they stand."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from runner.graph.source import Call, Checkpoint, Line, Origin, Start
from runner.language.syntax import Expression

__all__ = [
    "Call", "Checkpoint", "Line", "Loop", "Node", "Origin", "Start", "Statement",
    "apart", "entered_by", "expressions", "lines", "paths", "results",
]  # fmt: skip


@dataclass(frozen=True)
class Node:
    """One line with the expression that it stands for."""

    line: Line
    expression: Expression

    @property
    def name(self) -> str:
        """The name that the lines after it read."""
        return self.line.name

    @property
    def defines(self) -> frozenset[str]:
        """The name that it gives."""
        return frozenset((self.name,))

    @property
    def names(self) -> frozenset[str]:
        """Every name in its expression."""
        return self.expression.names


@dataclass(frozen=True)
class Loop:
    """A repeat: `body` runs `steps` times over the carried values, then `name.carry` are names.

    - `over`: for a name in the body the values of which it is a slice in each step, along their first dimension.
    - `stack`: the names of what the steps' values are stacked to, each with the name in the body.
    - `checkpoint`: what is kept of a step for the backward pass; None: everything.
    - `counted`: the lines of which its number of steps is made.
    - `locally`: what a function in which it stands calls the values that are stacked.
    """

    line: Line
    steps: int
    index: str
    carry: tuple[tuple[str, Expression], ...]
    body: tuple[Statement, ...]
    unroll: bool
    over: tuple[tuple[str, Expression], ...] = ()
    stack: tuple[tuple[str, str], ...] = ()
    checkpoint: Checkpoint | None = None
    counted: frozenset[str] = frozenset()
    locally: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the names of its results begin with."""
        return self.line.name

    @property
    def scans(self) -> bool:
        """Whether its steps take slices, or are stacked."""
        return bool(self.over or self.stack)

    @property
    def given(self) -> tuple[str, ...]:
        """The names that its body begins with, but for the index."""
        return tuple(name for name, _ in (*self.carry, *self.over))

    @property
    def results(self) -> tuple[str, ...]:
        """What there is after the last step: the names that it carries, then those of what is stacked."""
        return tuple(name for name, _ in (*self.carry, *self.stack))

    @property
    def wanted(self) -> frozenset[str]:
        """The names of the body that are read after a step."""
        return frozenset((*(name for name, _ in self.carry), *(inner for _, inner in self.stack)))

    def stack_of(self, result: str) -> str:
        """The name in the body of what is stacked under that name."""
        return dict(self.stack)[result]

    def firsts(self) -> Iterator[tuple[Line, Expression]]:
        """What it begins with, in the order in which it stands."""
        yield from ((self.line.inside(name, first="carry"), expression) for name, expression in self.carry)
        yield from ((self.line.inside(name, first="over"), expression) for name, expression in self.over)

    def first(self, carried: str) -> Line:
        """What a carried name starts as."""
        return self.line.inside(carried, first="carry")

    def whole(self, name: str) -> Line:
        """What a name of the body is a slice of."""
        return self.line.inside(name, first="over")

    def result(self, carried: str) -> str:
        """The path of what there is of a name after the last step: its name, where the repeat stands in no other."""
        return f"{self.line.path}.{carried}"

    @property
    def defines(self) -> frozenset[str]:
        """The names of what there is after the last step: `ring.acc`."""
        return frozenset(f"{self.name}.{result}" for result in self.results)

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name in its expressions, those of its body too."""
        parts = (*(first for _, first in self.firsts()), *self.body)
        return self.counted.union(*(part.names for part in parts))


Statement = Node | Loop


def expressions(statements: Iterable[Statement]) -> Iterator[tuple[Line, Expression]]:
    """Every expression of some statements and of what stands inside them, with its line."""
    for statement in statements:
        if isinstance(statement, Node):
            yield statement.line, statement.expression
            continue
        yield from statement.firsts()
        yield from expressions(statement.body)


def entered_by(statements: Iterable[Statement], names: set[str]) -> list[Statement]:
    """The statements that some of these names enter."""
    found: list[Statement] = []
    names = set(names)
    for statement in statements:
        if statement.names & names:
            found.append(statement)
            names |= statement.defines
    return found


def apart(some: Iterable[Statement], of: Iterable[Statement]) -> tuple[Statement, ...]:
    """Some statements of a section; those of a call of which some are missing no longer stand in a function."""
    there = tuple(some)
    whole = Counter(call for statement in of for call in _around(statement))
    runs = Counter(call for call, _ in itertools.groupby(statement.line.calls[:1] for statement in there))
    mine = Counter(call for statement in there for call in _around(statement))
    broken = {call for call, count in mine.items() if count != whole[call] or runs[call] > 1}
    return tuple(_alone(each) if broken & set(_around(each)) else each for each in there)


def _around(statement: Statement) -> list[tuple[Call, ...]]:
    """The calls that a statement stands in, each with those around it."""
    calls = statement.line.calls
    return [calls[: i + 1] for i in range(len(calls))]


def _alone(statement: Statement) -> Statement:
    """A statement with the names that it has in the section."""
    if isinstance(statement, Node):
        return replace(statement, expression=replace(statement.expression, local=None))
    starts = {
        what: tuple((name, replace(first, local=None)) for name, first in firsts)
        for what, firsts in (("carry", statement.carry), ("over", statement.over))
    }
    return replace(statement, body=tuple(map(_alone, statement.body)), **starts)


def results(statements: Iterable[Statement]) -> set[str]:
    """The names of values after `statements`: `C`, `ring.acc`."""
    return {name for statement in statements for name in statement.defines}


def lines(statements: Iterable[Statement]) -> Iterator[str]:
    """The lines of a section as evidence names them: `C`, of a loop `ring` and `ring.lhs`."""
    for statement in statements:
        yield str(statement.line)
        if isinstance(statement, Loop):
            yield from lines(statement.body)


def paths(statements: Iterable[Statement]) -> Iterator[tuple[str, str]]:
    """The path of each value, and the name by which a constraint knows it: `layers.h` also inside of `layers`."""
    for statement in statements:
        yield statement.line.path, str(statement.line)
        if isinstance(statement, Loop):
            yield from ((statement.result(name), f"{statement.line}.{name}") for name in statement.results)
            yield from paths(statement.body)
