"""An expression as a tree: what text is parsed to and printed from.

A term is nested like its text and refers to values by name. In a graph, each operation of it becomes an equation, which
refers to values by number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Any, Generic, Literal, TypeAlias, TypeGuard, TypeVar, cast

Part = TypeVar("Part", covariant=True)

Span: TypeAlias = tuple[int, int]
"""The half-open span of bytes from which a part was parsed."""

Literals: TypeAlias = bool | int | float | complex | str | EllipsisType | None

Spelled: TypeAlias = Literal["call", "operator", "index", ".T", "name"]
"""How an operation is written: `sum(x)`, `a + b`, `x[0]`, `x.T`, or, for a line without a call, a name or a literal."""


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a value (`A`, `ring.acc`) or of a size."""

    name: str
    at: Span | None = field(default=None, compare=False)

    @property
    def head(self) -> str:
        """The name up to the first dot: `ring` for `ring.acc`, `A` for `A`."""
        return self.name.partition(".")[0]

    @property
    def carried(self) -> bool:
        """Whether it names a result of a repeat: `ring.acc`."""
        return "." in self.name


@dataclass(frozen=True, slots=True, eq=False)
class Const:
    """A Python literal: a number, a string, True, None, `...`; 1, 1.0 and True are different."""

    value: Literals
    at: Span | None = None

    def __eq__(self, other: object) -> bool:
        # In Python 1 == True and -0.0 == 0.0.
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
    """A slice in an index; an omitted bound is `Const(None)`."""

    lower: Part
    upper: Part
    step: Part
    at: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Apply:
    """A call of an operation or of one of the experiment's own functions, with operands by position and by name."""

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
    """A lambda."""

    parameters: tuple[str, ...]
    body: Term
    at: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Listed:
    """A comprehension over one range, `[(i, (i + 1) % n) for i in range(n)]`; `bounds` are the range's arguments."""

    element: Term
    index: str
    bounds: tuple[Term, ...]
    at: Span | None = field(default=None, compare=False)


Term: TypeAlias = "Name | Const | Apply | Group[Term] | Slice[Term] | Lambda | Listed"

_Kind = TypeVar("_Kind", bound="Term")

NOTHING = Const(None)


def name_of(term: Term) -> str | None:
    """The text of a term that is a name: `A`, `ring.acc`, or `A.T`, which looks like one; None for any other term."""
    match term:
        case Name(name=name):
            return name
        case Apply(spelled=".T", operands=(Name() as x,)) if not x.carried:
            return f"{x.name}.T"
        case _:
            return None


def characters(text: str, at: Span | None) -> Span:
    """Convert a half-open span of UTF-8 bytes of `text` to one of characters; None gives the whole text."""
    if at is None:
        return 0, len(text)
    if text.isascii():
        return at[0], max(at[1], at[0] + 1)
    start, end = (len(text.encode()[:column].decode(errors="ignore")) for column in at)
    return start, max(end, start + 1)


def bare(term: Term | None) -> str | None:
    """The text of a term that is only a name, `A` or `ring.acc`; None for any other."""
    return term.name if isinstance(term, Name) else None


def element_of(term: Term) -> tuple[str, int] | None:
    """The name and the position of a term such as `parts[1]`; None for any other."""
    match term:
        case Apply(operands=(Name(name=name), Const(value=int(at))), spelled="index"):
            return name, at
        case _:
            return None


def elements(part: object) -> tuple[Any, ...] | None:
    """The elements of a term or an operand that is a tuple or a list; None for any other."""
    return cast("Group[Any]", part).items if isinstance(part, Group) else None


def spelled(term: Term) -> Spelled | None:
    """How a term's operation is written; None for a term that applies none."""
    return term.spelled if isinstance(term, Apply) else None


def calls(term: Term, names: Container[str] | None = None) -> TypeGuard[Apply]:
    """Whether a term is a call, of one of `names` if they are given."""
    return isinstance(term, Apply) and term.spelled == "call" and (names is None or term.operation in names)


def operates(term: Term, names: Container[str] | None = None) -> TypeGuard[Apply]:
    """Whether a term applies an operator, one of these operations if `names` are given."""
    return isinstance(term, Apply) and term.spelled == "operator" and (names is None or term.operation in names)


def children(term: Term) -> tuple[Term, ...]:
    """The direct subterms of a term, in Python's order of evaluation (for a comprehension, the element first)."""
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
    """Yield a term and all its subterms, parents first."""
    yield term
    for child in children(term):
        yield from within(child)


def nesting(term: Term) -> int:
    """The depth of a term: 0 for a name."""
    return max((nesting(child) + 1 for child in children(term)), default=0)


def mapped(term: _Kind, visit: Callable[[Term], Term]) -> _Kind:
    """Apply `visit` to the children of a term; returns the same object where it returned each child itself."""
    old = children(term)
    new = tuple(map(visit, old))
    return term if all(part is new_part for part, new_part in zip(old, new, strict=True)) else remade(term, new)


def mapped_outside(term: Term, visit: Callable[[Term], Term]) -> Term:
    """Like `mapped`, but a function that combines two values stays as it is."""
    return term if isinstance(term, Lambda) else mapped(term, visit)


def remade(term: _Kind, parts: tuple[Term, ...]) -> _Kind:
    """Replace the children of a term by as many others."""
    made: Term = term
    match term:
        case Apply(operands=operands, named=named):
            names = (name for name, _ in named)
            by_name = tuple(zip(names, parts[len(operands) :], strict=True))
            made = replace(term, operands=parts[: len(operands)], named=by_name)
        case Group():
            made = replace(term, items=parts)
        case Slice():
            made = Slice(*parts, at=term.at)
        case Lambda():
            made = replace(term, body=parts[0])
        case Listed():
            made = replace(term, element=parts[0], bounds=parts[1:])
        case Name() | Const():
            pass
    return cast("_Kind", made)


def placed(term: Term, at: Span | None) -> Term:
    """Set the span of a term and all its subterms."""
    return replace(mapped(term, lambda part: placed(part, at)), at=at)


def substituted(term: Term, values: Callable[[str], Term | None]) -> Term:
    """Replace each name for which `values(name)` is not None; the parameters of a lambda and an index are kept.

    `ring.acc` is replaced by `values("ring.acc")`, or else by `NAME.acc` where `values("ring")` is a name. Replacements
    take the span of the name.
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
        case Lambda(parameters=parameters):
            return mapped(
                term, lambda part: substituted(part, lambda name: None if name in parameters else values(name))
            )
        case Listed(index=index, bounds=bounds):
            element = substituted(term.element, lambda name: None if name == index else values(name))
            return remade(term, (element, *(substituted(bound, values) for bound in bounds)))
        case _:
            return mapped(term, lambda part: substituted(part, values))


def swapped(term: Term, old: Term, new: Term) -> Term:
    """Replace the subterm that is the object `old` by `new`."""
    return new if term is old else mapped(term, lambda part: swapped(part, old, new))


def names(term: Term) -> list[str]:
    """The names in a term, parameters of lambdas included, with repetitions, in the order of the text."""
    return [part.name for part in within(term) if isinstance(part, Name)]


def names_outside_tuples(term: Term) -> Iterator[str]:
    """The names in a term that are in no tuple, as positions and shapes are."""
    if isinstance(term, Name):
        yield term.name
    for part in () if isinstance(term, Group) and term.kind == "tuple" else children(term):
        yield from names_outside_tuples(part)


def heads(term: Term) -> list[str]:
    """Like `names`, each up to its first dot: the names of values, sizes and repeats."""
    return [part.head for part in within(term) if isinstance(part, Name)]


def written(term: Term) -> Any:
    """A term as data for JSON, without the places of its parts.

    A name is a string, a number is itself, and any other term is a list that begins with what it is.
    """
    match term:
        case Name(name=name):
            return name
        case Const(value=value):
            return _literal(value)
        case Apply(operation=operation, operands=operands, named=named, spelled=spelled):
            by_name = {name: written(operand) for name, operand in named}
            return [spelled, operation, *map(written, operands), *([by_name] if by_name else ())]
        case Group(items=items, kind=kind):
            return [kind, *map(written, items)]
        case Slice(lower=lower, upper=upper, step=step):
            return ["slice", written(lower), written(upper), written(step)]
        case Lambda(parameters=parameters, body=body):
            return ["lambda", list(parameters), written(body)]
        case Listed():
            raise AssertionError(term)  # Only a user writes a comprehension.


def _literal(value: Any) -> Any:
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, str):
        return ["text", value]
    return ["ellipsis"] if value is ... else ["number", repr(value)]


def term_of(data: Any) -> Term:
    """Build a term from what `written` returns."""
    if isinstance(data, str):
        return Name(data)
    if not isinstance(data, list):
        return Const(data)
    kind, *parts = cast("list[Any]", data)
    match kind:
        case "call" | "operator" | "index" | ".T" | "name":
            return _apply_of(kind, parts)
        case "tuple" | "list":
            return Group(tuple(map(term_of, parts)), kind)
        case "slice":
            lower, upper, step = map(term_of, parts)
            return Slice(lower, upper, step)
        case "lambda":
            return Lambda(tuple(parts[0]), term_of(parts[1]))
        case "text":
            return Const(parts[0])
        case "ellipsis":
            return Const(...)
        case _:
            # What repr writes, infinities and NaN among it.
            return Const(complex(parts[0]) if "j" in parts[0] else float(parts[0]))


def _apply_of(spelled: Spelled, parts: list[Any]) -> Term:
    operation, *operands = parts
    named: dict[str, Any] = operands.pop() if operands and isinstance(operands[-1], dict) else {}
    by_name = tuple((name, term_of(operand)) for name, operand in named.items())
    return Apply(operation, tuple(map(term_of, operands)), by_name, spelled)
