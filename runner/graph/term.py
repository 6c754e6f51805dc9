"""One expression as data, before its values have numbers: what text says, and what is written as text again.

A term is nested as a person writes it. A graph has the same parts, but each operation in it is an equation, and what an
equation reads are values.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Generic, Literal, TypeAlias, TypeGuard, TypeVar

Part = TypeVar("Part", covariant=True)

Span: TypeAlias = tuple[int, int]
"""The half-open span of bytes from which a part was read."""

Literals: TypeAlias = bool | int | float | complex | str | EllipsisType | None

Spelled: TypeAlias = Literal["call", "operator", "index", ".T", "name"]
"""How an operation is written: `sum(x)`, `a + b`, `x[0]`, `x.T`, or as the name or the literal that its line is."""


@dataclass(frozen=True, slots=True)
class Name:
    """What is read by a name: a value (`A`, `ring.acc`) or a size."""

    name: str
    at: Span | None = field(default=None, compare=False)

    @property
    def head(self) -> str:
        """What stands before the dot: `ring` of `ring.acc`; `A` of `A`."""
        return self.name.partition(".")[0]

    @property
    def carried(self) -> bool:
        """Whether it is what a repeat gives: `ring.acc`."""
        return "." in self.name


@dataclass(frozen=True, slots=True, eq=False)
class Const:
    """What Python has literally: a number, a text, True, None, `...`; 1, 1.0 and True are three."""

    value: Literals
    at: Span | None = None

    def __eq__(self, other: object) -> bool:
        # To Python 1 is True, and -0.0 is 0.0.
        return isinstance(other, Const) and (self.value is other.value or repr(self.value) == repr(other.value))

    def __hash__(self) -> int:
        return hash(repr(self.value))


@dataclass(frozen=True, slots=True)
class Group(Generic[Part]):
    """A tuple or a list."""

    items: tuple[Part, ...]
    kind: Literal["tuple", "list"] = "tuple"
    at: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Slice(Generic[Part]):
    """A slice of an index; what it leaves out is `Const(None)`."""

    lower: Part
    upper: Part
    step: Part
    at: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Apply:
    """An operation, or a function of the experiment's own, of operands: by position, and by name."""

    operation: str
    operands: tuple[Term, ...]
    named: tuple[tuple[str, Term], ...] = ()
    spelled: Spelled = "call"
    at: Span | None = field(default=None, compare=False)

    @property
    def arguments(self) -> tuple[Term, ...]:
        """All operands, those by position first."""
        return (*self.operands, *(operand for _, operand in self.named)) if self.named else self.operands


@dataclass(frozen=True, slots=True)
class Lambda:
    """A function that is written where it is used."""

    parameters: tuple[str, ...]
    body: Term
    at: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Listed:
    """A list over one range: `[(i, (i + 1) % n) for i in range(n)]`; `bounds` are the range's arguments."""

    element: Term
    index: str
    bounds: tuple[Term, ...]
    at: Span | None = field(default=None, compare=False)


Term: TypeAlias = "Name | Const | Apply | Group[Term] | Slice[Term] | Lambda | Listed"

NOTHING = Const(None)


def name_of(term: Term) -> str | None:
    """The name that a term is: `A`, `ring.acc` (or `A.T`, which looks like one); None for any other term."""
    match term:
        case Name(name=name):
            return name
        case Apply(spelled=".T", operands=(Name() as x,)) if not x.carried:
            return f"{x.name}.T"
        case _:
            return None


def characters(text: str, at: Span | None) -> Span:
    """The half-open span of characters of `text` of what stands there; of what stands nowhere, all of it."""
    if at is None:
        return 0, len(text)
    start, end = (len(text.encode()[:column].decode(errors="ignore")) for column in at)
    return start, max(end, start + 1)


def calls(term: Term, names: Container[str]) -> TypeGuard[Apply]:
    """Whether a term is a call, by its name, of one of these."""
    return isinstance(term, Apply) and term.spelled == "call" and term.operation in names


def children(term: Term) -> tuple[Term, ...]:
    """The terms that a term is made of, in the order in which Python evaluates them."""
    match term:
        case Apply():
            return term.arguments
        case Group(items=items):
            return items
        case Slice(lower=lower, upper=upper, step=step):
            return (lower, upper, step)
        case Lambda(body=body):
            return (body,)
        case Listed(element=element, bounds=bounds):
            return (element, *bounds)
        case Name() | Const():
            return ()


def within(term: Term) -> Iterator[Term]:
    """A term and all terms in it, each before its own."""
    yield term
    for child in children(term):
        yield from within(child)


def nesting(term: Term) -> int:
    """How many levels a term nests: 0 for a name."""
    return max((nesting(child) + 1 for child in children(term)), default=0)


def mapped(term: Term, visit: Callable[[Term], Term]) -> Term:
    """A term of what `visit` makes of its children; the same object where these are the same."""
    old = children(term)
    new = tuple(map(visit, old))
    return term if all(part is new_part for part, new_part in zip(old, new, strict=True)) else remade(term, new)


def remade(term: Term, parts: tuple[Term, ...]) -> Term:
    """A term with other children, as many as it has."""
    match term:
        case Apply(operands=operands, named=named):
            names = (name for name, _ in named)
            given = tuple(zip(names, parts[len(operands) :], strict=True))
            return replace(term, operands=parts[: len(operands)], named=given)
        case Group():
            return replace(term, items=parts)
        case Slice():
            return Slice(*parts, at=term.at)
        case Lambda():
            return replace(term, body=parts[0])
        case Listed():
            return replace(term, element=parts[0], bounds=parts[1:])
        case Name() | Const():
            return term


def placed(term: Term, at: Span | None) -> Term:
    """A term all of which stands in one place."""
    return replace(mapped(term, lambda part: placed(part, at)), at=at)


def substituted(term: Term, values: Callable[[str], Term | None]) -> Term:
    """A term with `values(name)` in the place of each name that has one; a lambda's own names stay.

    Of `ring.acc` that is `values("ring.acc")`, or `acc` of the name that `values("ring")` is. What is put in stands
    where the name did.
    """
    match term:
        case Name(name=name):
            value = values(name)
            if value is not None:
                return placed(value, term.at)
            loop, _, carried = name.partition(".")
            inner = values(loop) if carried else None
            return Name(f"{inner.name}.{carried}", term.at) if isinstance(inner, Name) else term
        case Apply(spelled=".T", operands=(Name(name=loop),)) if (value := values(f"{loop}.T")) is not None:
            return placed(value, term.at)
        case Lambda(parameters=own):
            return mapped(term, lambda part: substituted(part, lambda name: None if name in own else values(name)))
        case Listed(index=index, bounds=bounds):
            element = substituted(term.element, lambda name: None if name == index else values(name))
            return remade(term, (element, *(substituted(bound, values) for bound in bounds)))
        case _:
            return mapped(term, lambda part: substituted(part, values))


def swapped(term: Term, old: Term, new: Term) -> Term:
    """A term with `new` in the place of the very part `old` of it."""
    return new if term is old else mapped(term, lambda part: swapped(part, old, new))


def names(term: Term) -> list[str]:
    """The names that a term reads, those that its lambdas have for themselves too, in the order of the text."""
    return [part.name for part in within(term) if isinstance(part, Name)]


def heads(term: Term) -> list[str]:
    """The same without what stands behind a dot: the names of values, sizes and repeats."""
    return [part.head for part in within(term) if isinstance(part, Name)]
