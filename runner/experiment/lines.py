"""The statements of a section: lines, repeats, calls of functions and choices; and the same as single lines.

Calls and choices contain lines, in the names of the function. `flat` replaces them by these lines, under the names that
they have in the section.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar, cast

from runner.graph.language.syntax import Expression
from runner.graph.model import ASSUMED_STEPS, Region
from runner.graph.source import Checkpoint, FunctionCall, Line, Origin, Start
from runner.graph.term import Name, Term, substituted

__all__ = [
    "Checkpoint",
    "Choice",
    "Flat",
    "FunctionCall",
    "Invocation",
    "Line",
    "Loop",
    "Node",
    "Origin",
    "Start",
    "Statement",
    "Unit",
    "enclosed",
    "entered_by",
    "expressions",
    "flat",
    "in_section",
    "inside",
    "lines",
    "paths",
    "regions",
    "rejoined",
    "renamed",
    "results",
    "scopes",
    "units",
    "with_inside",
]  # fmt: skip


@dataclass(frozen=True)
class Named:
    """A line, which defines one name."""

    line: Line

    @property
    def name(self) -> str:
        """The name by which later lines read it."""
        return self.line.name

    @property
    def defines(self) -> frozenset[str]:
        """The name as a tuple, for statements that may define several."""
        return frozenset((self.name,))


@dataclass(frozen=True)
class Node(Named):
    """A line with its expression, in the names of the lines around it."""

    expression: Expression

    @property
    def names(self) -> frozenset[str]:
        """Every name in its expression."""
        return self.expression.names


class Compound:
    """A statement that contains statements."""

    @cached_property
    def single(self) -> tuple[tuple[Flat, ...], ...]:
        """Its single lines in the section, those of a choice together."""
        return tuple(_flat((cast("Statement", self),), {}))


@dataclass(frozen=True)
class Invocation(Compound):
    """A call of a function of the experiment's own, or of a lambda that a choice selects.

    - `call`: the function, its arguments and its results, in the names around it.
    - `body`: its lines; `gives`: the lines of its results, one each. Both are in the function's own names.
    """

    call: FunctionCall
    body: tuple[Statement, ...]
    gives: tuple[Node, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names around it that are its arguments."""
        return frozenset(name for _, name in self.call.arguments)


@dataclass(frozen=True)
class Choice(Compound):
    """A call of `cond` or `switch`.

    - `call`: its argument is the predicate or index; `branches`: in JAX's order.
    - `gives`: for each result the line that selects one branch's value where all are computed.
    """

    call: FunctionCall
    branches: tuple[Invocation, ...]
    gives: tuple[Node, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names around it that its predicate and the arguments of its branches read."""
        return frozenset(name for _, name in self.call.arguments).union(*(branch.names for branch in self.branches))


Inside = TypeVar("Inside", bound="Statement", covariant=True)


@dataclass(frozen=True)
class Loop(Compound, Generic[Inside]):
    """A repeat: `body` runs `steps` times over the carried values; then `name.carry` are names.

    With a `region` it is a `shard_map`: `body` runs once on all devices, on the shards of what it is `over`, and the
    shards of what the `stack` names are joined to the results. Without a number of steps it is a `while`, which takes a
    step as long as the carried value `going` is true, and has no index.

    - `over`: for a name in the body, the array of which it is a slice in each step, along the first dimension.
    - `stack`: the names of the stacked results, each with its name in the body.
    - `checkpoint`: what is kept of a step for the backward pass; None: everything.
    - `counted`: the lines from which its number of steps is computed.
    """

    line: Line
    steps: int | None
    index: str
    carry: tuple[tuple[str, Expression], ...]
    body: tuple[Inside, ...]
    unroll: bool
    over: tuple[tuple[str, Expression], ...] = ()
    stack: tuple[tuple[str, str], ...] = ()
    checkpoint: Checkpoint | None = None
    counted: frozenset[str] = frozenset()
    region: Region | None = None
    going: str = ""

    @property
    def counted_steps(self) -> int:
        """The number of steps for which its costs are counted."""
        return ASSUMED_STEPS if self.steps is None else self.steps

    @property
    def often(self) -> str:
        """Its number of steps in words."""
        if self.steps is None:
            return f"steps while {self.going}"
        return f"{self.steps} step{'s' if self.steps != 1 else ''}"

    @property
    def name(self) -> str:
        """The first part of its results' names."""
        return self.line.name

    @property
    def scans(self) -> bool:
        """Whether its steps take slices, or are stacked."""
        return bool(self.over or self.stack)

    @property
    def given(self) -> tuple[str, ...]:
        """The names that its body starts with, without the index."""
        return tuple(name for name, _ in (*self.carry, *self.over))

    @property
    def bound(self) -> tuple[str, ...]:
        """The names that its body starts with, the index last where it has one."""
        return self.given if self.region is not None or self.going else (*self.given, self.index)

    @property
    def results(self) -> tuple[str, ...]:
        """The results after the last step: the carried names, then the stacked ones."""
        return tuple(name for name, _ in (*self.carry, *self.stack))

    @property
    def wanted(self) -> frozenset[str]:
        """The names of the body that are read after a step."""
        return frozenset((*(name for name, _ in self.carry), *(inner for _, inner in self.stack)))

    def stack_of(self, result: str) -> str:
        """The name in the body of a stacked result."""
        return dict(self.stack)[result]

    def firsts(self) -> Iterator[tuple[Line, Expression]]:
        """The initial values, in their order in the file."""
        yield from ((self.line.inside(name, first="carry"), expression) for name, expression in self.carry)
        yield from ((self.line.inside(name, first="over"), expression) for name, expression in self.over)

    def first(self, carried: str) -> Line:
        """The initial value of a carried name."""
        return self.line.inside(carried, first="carry")

    def whole(self, name: str) -> Line:
        """The array that a name of the body is a slice of."""
        return self.line.inside(name, first="over")

    def result(self, carried: str) -> str:
        """The path of a result after the last step: its name, if the repeat is not inside another."""
        return f"{self.line.path}.{carried}"

    @property
    def defines(self) -> frozenset[str]:
        """The names of the results after the last step: `ring.acc`."""
        return frozenset(f"{self.name}.{result}" for result in self.results)

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name in its expressions, including those of its body."""
        parts = (*(first for _, first in self.firsts()), *self.body)
        return self.counted.union(*(part.names for part in parts))


Statement: TypeAlias = "Node | Loop[Statement] | Invocation | Choice"
"""The statements of a section or a function."""

Flat: TypeAlias = "Node | Loop[Flat]"
"""The statements of a section with calls replaced by the functions' lines."""


def inside(statement: Statement) -> tuple[Statement, ...]:
    """The statements inside a statement, those of its results last."""
    match statement:
        case Node():
            return ()
        case Loop(body=body):
            return body
        case Invocation(body=body, gives=gives):
            return (*body, *gives)
        case Choice(branches=branches, gives=gives):
            return (*branches, *gives)


def with_inside(statement: Statement, parts: Sequence[Any]) -> Statement:
    """A statement with its inner statements replaced by as many others of the same kinds."""
    match statement:
        case Node():
            return statement
        case Loop():
            return replace(statement, body=tuple(parts))
        case Invocation(body=body):
            return replace(statement, body=tuple(parts[: len(body)]), gives=tuple(parts[len(body) :]))
        case Choice(branches=branches):
            return replace(statement, branches=tuple(parts[: len(branches)]), gives=tuple(parts[len(branches) :]))


def enclosed(
    statements: Iterable[Statement], around: tuple[Invocation | Choice, ...] = ()
) -> Iterator[tuple[Line, tuple[Invocation | Choice, ...]]]:
    """The lines inside calls and choices with their enclosing statements, outermost first; ordered as in `flat`."""
    for statement in statements:
        if isinstance(statement, Invocation | Choice):
            yield from enclosed(inside(statement), (*around, statement))
            continue
        if around:
            yield statement.line, around
        if isinstance(statement, Loop):
            yield from ((line, around) for line, _ in statement.firsts() if around)
            yield from enclosed(statement.body, around)


def flat(statements: Iterable[Statement]) -> tuple[Flat, ...]:
    """The single lines of the statements of a section, with the names that they have there.

    A function's lines replace its call. The lines of all branches replace a choice, followed by the lines that select
    one branch's values.
    """
    return tuple(line for statement in statements for together in _single(statement) for line in together)


def _single(statement: Statement) -> tuple[tuple[Flat, ...], ...]:
    return ((statement,),) if isinstance(statement, Node) else statement.single


@dataclass(frozen=True, eq=False)
class Unit:
    """Single lines of a section that stay together when it is divided: one line, or those of a choice.

    `statement` is the position of the statement that they belong to.
    """

    statement: int
    lines: tuple[Flat, ...]

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name in its lines."""
        return frozenset[str]().union(*(line.names for line in self.lines))

    @cached_property
    def defines(self) -> frozenset[str]:
        """The names that its lines define."""
        return frozenset[str]().union(*(line.defines for line in self.lines))


def units(statements: Iterable[Statement]) -> tuple[Unit, ...]:
    """The single lines of the statements of a section, those of a choice together."""
    numbered = enumerate(statements)
    return tuple(Unit(position, together) for position, statement in numbered for together in _single(statement))


def rejoined(kept: Iterable[Unit], statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """The kept units: a statement if all of its units are kept, otherwise single lines."""
    whole = Counter(unit.statement for unit in units(statements))
    there: list[Statement] = []
    for position, group in itertools.groupby(kept, lambda unit: unit.statement):
        parts = tuple(group)
        if len(parts) == whole[position]:
            there.append(statements[position])
        else:
            there += (line for unit in parts for line in unit.lines)
    return tuple(there)


def _flat(statements: Iterable[Statement], names: dict[str, Name]) -> Iterator[tuple[Flat, ...]]:
    """The single lines of statements, those of a choice together.

    `names` maps names of the statements to names of the section; the names that they define are added.
    """
    for statement in statements:
        match statement:
            case Node(line=line):
                yield (_node(statement, names),)
                _name_result(line, line.label, names)
            case Loop(line=line):
                yield (_loop(statement, names),)
                _name_result(line, line.label, names)
            case Invocation(call=call, body=body, gives=gives):
                own = {parameter: names.get(name, Name(name)) for parameter, name in call.arguments}
                yield from _flat(body, own)
                for result, give in zip(call.results, gives, strict=True):
                    yield (_node(give, own),)
                    _name_result(give.line, result, names)
            case Choice(branches=branches, gives=gives):
                known = dict(names)
                lines = list(itertools.chain.from_iterable(_flat(branches, known)))
                yield (*lines, *(_node(give, known) for give in gives))
                for give in gives:
                    _name_result(give.line, give.line.label, names)


Position: TypeAlias = tuple[int, ...]
"""The position of a statement in a section: its number, then its number within the enclosing statement, and so on."""


def scopes(statements: Iterable[Statement]) -> Iterator[tuple[Position, Node | Loop[Statement], dict[str, Name]]]:
    """Every line and repeat with its position, and what the names around it, of its function, are in the section."""
    yield from _scopes(statements, (), {})


def _scopes(
    statements: Iterable[Statement], position: Position, names: dict[str, Name]
) -> Iterator[tuple[Position, Node | Loop[Statement], dict[str, Name]]]:
    for number, statement in enumerate(statements):
        here = (*position, number)
        match statement:
            case Node(line=line):
                yield here, statement, dict(names)
                _name_result(line, line.label, names)
            case Loop(line=line):
                yield here, statement, dict(names)
                own = {name: known for name, known in names.items() if name not in statement.bound}
                yield from _scopes(statement.body, here, own)
                _name_result(line, line.label, names)
            case Invocation(call=call):
                own = {parameter: names.get(name, Name(name)) for parameter, name in call.arguments}
                yield from _scopes(inside(statement), here, own)
                for result, give in zip(call.results, statement.gives, strict=True):
                    _name_result(give.line, result, names)
            case Choice():
                known = dict(names)
                yield from _scopes(inside(statement), here, known)
                for give in statement.gives:
                    _name_result(give.line, give.line.label, names)


def in_section(node: Node, names: Mapping[str, Name]) -> Node:
    """A line of a function as the section has it; `names` are as `scopes` gives them."""
    return _node(node, names)


def _name_result(line: Line, name: str, names: dict[str, Name]) -> None:
    """Add to `names` the section's names for the results that the statements call `name`."""
    if name == line.name:
        names.pop(name, None)
    else:
        names[name] = Name(line.name)


def _node(node: Node, names: Mapping[str, Name]) -> Node:
    expression = _renamed(node.expression, names)
    return node if expression is node.expression else Node(node.line, expression)


def _loop(loop: Loop[Statement], names: Mapping[str, Name]) -> Loop[Flat]:
    own = {name: known for name, known in names.items() if name not in loop.bound}
    return Loop(
        loop.line,
        loop.steps,
        loop.index,
        carry=tuple((name, _renamed(first, names)) for name, first in loop.carry),
        body=tuple(itertools.chain.from_iterable(_flat(loop.body, own))),
        unroll=loop.unroll,
        over=tuple((name, _renamed(whole, names)) for name, whole in loop.over),
        stack=tuple((name, _name(inner, own)) for name, inner in loop.stack),
        checkpoint=loop.checkpoint,
        counted=frozenset(_name(name, names) for name in loop.counted),
        region=loop.region,
        going=loop.going,
    )


def renamed(loop: Loop[Flat], line: Line, known: Mapping[str, Term]) -> Loop[Flat]:
    """The loop at another `line`, with terms in the place of names that it reads from around it."""
    within = {*loop.bound, *(name for statement in loop.body for name in statement.defines)}
    own = {name: term for name, term in known.items() if name not in within}
    return replace(
        loop,
        line=line,
        carry=tuple((name, _renamed(first, known)) for name, first in loop.carry),
        over=tuple((name, _renamed(whole, known)) for name, whole in loop.over),
        body=tuple(
            renamed(inner, inner.line, own)
            if isinstance(inner, Loop)
            else replace(inner, expression=_renamed(inner.expression, own))
            for inner in loop.body
        ),
    )


def _renamed(expression: Expression, names: Mapping[str, Term]) -> Expression:
    term = substituted(expression.term, names.get)
    return expression if term is expression.term else replace(expression, term=term)


def _name(name: str, names: Mapping[str, Name]) -> str:
    head, dot, carried = name.partition(".")
    return f"{names[head].name}{dot}{carried}" if head in names else name


def regions(statements: Iterable[Flat]) -> Iterator[Region]:
    """The `shard_map`s of the user's own in some lines and in the lines inside them."""
    for statement in statements:
        if isinstance(statement, Loop):
            if statement.region is not None:
                yield statement.region
            yield from regions(statement.body)


def expressions(statements: Iterable[Flat]) -> Iterator[tuple[Line, Expression]]:
    """Every expression of some lines and of the lines inside them, with its line."""
    for statement in statements:
        if isinstance(statement, Node):
            yield statement.line, statement.expression
            continue
        yield from statement.firsts()
        yield from expressions(statement.body)


Reading = TypeVar("Reading", bound="Flat | Unit")


def entered_by(parts: Iterable[Reading], names: Iterable[str]) -> list[Reading]:
    """The lines or units that depend on some of these names."""
    entered: list[Reading] = []
    known = set(names)
    for part in parts:
        if part.names & known:
            entered.append(part)
            known |= part.defines
    return entered


def results(statements: Iterable[Flat]) -> set[str]:
    """The names of values after `statements`: `C`, `ring.acc`."""
    return {name for statement in statements for name in statement.defines}


def lines(statements: Iterable[Flat]) -> Iterator[str]:
    """The lines of a section as evidence names them: `C`, of a loop `ring` and `ring.lhs`."""
    for statement in statements:
        yield str(statement.line)
        if isinstance(statement, Loop):
            yield from lines(statement.body)


def paths(statements: Iterable[Flat]) -> Iterator[tuple[str, str]]:
    """The path of each value, and its name in a constraint: `layers.h`, also for a value inside `layers`."""
    for statement in statements:
        yield statement.line.path, str(statement.line)
        if isinstance(statement, Loop):
            yield from ((statement.result(name), f"{statement.line}.{name}") for name in statement.results)
            yield from paths(statement.body)
