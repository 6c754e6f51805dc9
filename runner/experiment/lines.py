"""The lines of a section: what they are called and say, where they are written, in what they stand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from runner.faults import Key
from runner.language.check import Section
from runner.language.syntax import Expression


@dataclass(frozen=True)
class Call:
    """A call of a function of the experiment's own, in the place of which the function's lines stand.

    - `label`: what the lines around it call its result; `results`: the names there of all that it gives.
    - `arguments`: for each parameter that is given a value, the name there of that value.
    """

    function: str
    label: str
    results: tuple[str, ...]
    arguments: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Origin:
    """Where a line is written.

    - `key`: in the configuration; `uses`: the lines that call the function that it stands in, innermost first.
    - `calls`: the calls in the place of which it stands, outermost first; `label`: its name in the function.
    - `result`: whether it is what the innermost call gives, and has no scope of its own.
    - `gives`: into how many names the lines after it take its value apart; 0: into none.
    """

    key: Key
    uses: tuple[Key, ...] = ()
    calls: tuple[Call, ...] = ()
    label: str = ""
    result: bool = False
    gives: int = 0


@dataclass(frozen=True)
class Line:
    """The identity of a line of a section, or of what a carried name of a repeat starts as, which is its `first`.

    `loops` are the repeats that it stands in, outermost first. Printed it is as evidence and messages have it: `C`,
    `ring.acc`. `origin` is where it is written, which is no part of its identity; None for a line that is the house's.
    """

    name: str
    loops: tuple[str, ...] = ()
    first: bool = False
    origin: Origin | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return ".".join((*self.loops, self.name))

    @cached_property
    def key(self) -> Key:
        """Where it stands in the section: `("ring", "body", "acc")`."""
        within = ["body"] * (len(self.loops) - 1) + ["carry" if self.first else "body"]
        return (*(part for pair in zip(self.loops, within, strict=False) for part in pair), self.name)

    @cached_property
    def path(self) -> str:
        """Its key as one word, which no other line of the section has: `ring/body/acc`."""
        return "/".join(map(str, self.key))

    def inside(self, name: str, *, first: bool = False) -> Line:
        """A line of the body of the repeat that stands here, or the first value of a name that it carries."""
        origin = (
            None if self.origin is None or not first else replace(self.origin, key=(*self.origin.key, "carry", name))
        )
        return Line(name, (*self.loops, self.name), first, origin)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of functions in the place of which it stands, outermost first."""
        return () if self.origin is None else self.origin.calls

    @property
    def label(self) -> str:
        """Its name in the function that it stands in."""
        return self.origin.label if self.origin is not None and self.origin.label else self.name

    def scopes(self, within: int = 0) -> tuple[str, ...]:
        """The named scopes of its operations, outermost first, without those of `within` calls: `("y", "gate")`."""
        around = tuple(call.label for call in self.calls[within:])
        return around if self.origin is not None and self.origin.result and around else (*around, self.label)

    def written(self, section: Section) -> tuple[Key, tuple[Key, ...]]:
        """Its key in the configuration, and the keys of the lines that call the function that it stands in."""
        return ((section, *self.key), ()) if self.origin is None else (self.origin.key, self.origin.uses)


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
    """A repeat: `body` runs `steps` times over the carried values, then `name.carry` are names."""

    line: Line
    steps: int
    index: str
    carry: tuple[tuple[str, Expression], ...]
    body: tuple[Statement, ...]
    unroll: bool

    @property
    def name(self) -> str:
        """What the names of its results begin with."""
        return self.line.name

    def first(self, carried: str) -> Line:
        """What a carried name starts as."""
        return self.line.inside(carried, first=True)

    def end(self, carried: str) -> str:
        """The path of what a carried name has at the end of a step."""
        return f"{self.line.path}/{carried}"

    def result(self, carried: str) -> str:
        """The path of what a carried name has after the last step: its name, where the repeat stands in no other."""
        return f"{self.line.path}.{carried}"

    @property
    def defines(self) -> frozenset[str]:
        """The names of what is carried, after the last step: `ring.acc`."""
        return frozenset(f"{self.name}.{carried}" for carried, _ in self.carry)

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name in its expressions, those of its body too."""
        parts = (*(first for _, first in self.carry), *self.body)
        return frozenset[str]().union(*(part.names for part in parts))


Statement = Node | Loop


def expressions(statements: Iterable[Statement]) -> Iterator[tuple[Line, Expression]]:
    """Every expression of some statements and of what stands inside them, with its line."""
    for statement in statements:
        if isinstance(statement, Node):
            yield statement.line, statement.expression
            continue
        for name, first in statement.carry:
            yield statement.first(name), first
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


def results(statements: Iterable[Statement]) -> set[str]:
    """The names of values after `statements`: `C`, `ring.acc`."""
    return {name for statement in statements for name in statement.defines}


def lines(statements: Iterable[Statement]) -> Iterator[str]:
    """The lines of a section as evidence names them: `C`, of a loop `ring` and `ring.lhs`."""
    for statement in statements:
        yield str(statement.line)
        if isinstance(statement, Loop):
            yield from lines(statement.body)
