"""The lines of a section: what they are called and say, where they are written, in what they stand."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from runner.faults import Key
from runner.language.check import Section
from runner.language.syntax import Expression


@dataclass(frozen=True)
class Checkpoint:
    """What is kept of a function or of a repeat's body for the backward pass, which computes the rest once more.

    - `policy`: the name of one of `jax.checkpoint_policies`; None: JAX's own, which keeps nothing.
    - `names`: what such a policy is made with, if it is: the names of `checkpoint_name`.
    """

    policy: str | None = None
    names: tuple[str, ...] = ()

    @property
    def written(self) -> Any:
        """As the YAML has it."""
        if self.policy is None:
            return True
        return {self.policy: list(self.names)} if self.names else self.policy


@dataclass(frozen=True)
class Call:
    """A call of a function of the experiment's own, in the place of which the function's lines stand.

    - `label`: what the lines around it call its result; `results`: the names there of all that it gives.
    - `arguments`: for each parameter that is given a value, the name there of that value.
    - `checkpoint`: what is kept of it for the backward pass; None: everything.
    - `branch`: the number of JAX's branch that it is, if it stands in a call of `cond` or `switch`.
    - `chooses`: whether it is one of these, in which the calls stand that are chosen between; its argument is what the
      choice hangs on.
    """

    function: str
    label: str
    results: tuple[str, ...]
    arguments: tuple[tuple[str, str], ...]
    checkpoint: Checkpoint | None = None
    branch: int | None = None
    chooses: bool = False

    @property
    def scope(self) -> str:
        """The named scope of its lines; of a branch it is JAX's."""
        return self.label if self.branch is None else f"branch_{self.branch}_fun"


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


Start: TypeAlias = Literal["carry", "over"]
"""What a repeat begins with: what it carries, or what it takes a slice of in each step."""


@dataclass(frozen=True)
class Line:
    """The identity of a line of a section, or of what a repeat begins with: `first` says as what.

    `loops` are the repeats that it stands in, outermost first. Printed it is as evidence and messages have it: `C`,
    `ring.acc`. `origin` is where it is written, which is no part of its identity; None for a line that is the house's.
    """

    name: str
    loops: tuple[str, ...] = ()
    first: Start | None = None
    origin: Origin | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return ".".join((*self.loops, self.name))

    @cached_property
    def key(self) -> Key:
        """Where it stands in the section: `("ring", "body", "acc")`."""
        within = ["body"] * (len(self.loops) - 1) + [self.first or "body"]
        return (*(part for pair in zip(self.loops, within, strict=False) for part in pair), self.name)

    @cached_property
    def path(self) -> str:
        """Its key as one word, which no other line of the section has: `ring/body/acc`."""
        return "/".join(map(str, self.key))

    def inside(self, name: str, *, first: Start | None = None) -> Line:
        """A line of the body of the repeat that stands here, or what it begins with."""
        origin = None if self.origin is None or not first else replace(self.origin, key=(*self.origin.key, first, name))
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
        around = tuple(call.scope for call in self.calls[within:])
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

    def end(self, carried: str) -> str:
        """The path of what a carried name has at the end of a step."""
        return f"{self.line.path}/{carried}"

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
