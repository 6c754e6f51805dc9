"""Finds the parts of a term and the operations that they call, and replaces parts."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace
from typing import Any

from runner.graph.language.operations import OPERATIONS, Operation
from runner.graph.language.operators import BY_NAME
from runner.graph.model import INDEX
from runner.graph.term import Apply, Const, Group, Lambda, Listed, Slice, Term, children, within


def parts(term: Term) -> Iterator[Term]:
    """Yield the parts of an expression that have a value of their own, parents first."""
    yield term
    match term:
        case Lambda() | Listed():
            return
        case Apply(spelled="index", operands=(x, Group(items=items, kind="tuple"))):
            inside = (x, *items)
        case _:
            inside = children(term)
    for part in inside:
        if not isinstance(part, Slice):
            yield from parts(part)


def called(term: Term) -> Operation | None:
    """The row of the operation that a term calls, by name or by an operator; None where it calls none."""
    match term:
        case Apply(operation=operation, spelled="call" | "operator"):
            return OPERATIONS[operation]
        case _:
            return None


def calls_in(term: Term) -> Iterator[tuple[Apply, Operation]]:
    """Yield each call of an operation in a term, by name or by an operator, with its row, parents first."""
    for part in within(term):
        row = called(part)
        if isinstance(part, Apply) and row is not None:
            yield part, row


def operator(operation: str, *operands: Term) -> Apply:
    """Build a unary or binary operator term: `operator("add", a, b)` is `a + b`."""
    return Apply(operation, operands, spelled="operator")


def computed(operation: str, *operands: Term) -> Apply:
    """Build what an operation computes of operands: an operator term if it has an operator, else a call."""
    return operator(operation, *operands) if operation in BY_NAME else Apply(operation, operands)


def at_index(x: Term, index: Term) -> Apply:
    """Build `x[index]`; `index` may be a tuple."""
    return Apply(INDEX, (x, index), spelled="index")


def plus(term: Term, by: int) -> Term:
    """Build `term + by`, or `term - by` for a negative number; an integer literal is evaluated."""
    if isinstance(term, Const) and isinstance(term.value, int) and not isinstance(term.value, bool):
        return Const(term.value + by)
    return operator("add" if by > 0 else "subtract", term, Const(abs(by)))


def transposed(term: Term) -> Term:
    """Build `x.T`; `x.T` becomes `x`."""
    if isinstance(term, Apply) and term.spelled == ".T":
        return term.operands[0]
    return Apply("transpose", (term,), spelled=".T")


def axes_of(axes: tuple[str, ...]) -> Term:
    """Build the argument for mesh axes: `'x'`, `('x', 'y')`."""
    names = tuple(map(Const, axes))
    return names[0] if len(names) == 1 else Group(names)


def value_of(term: Term, operators: Container[str] = BY_NAME) -> Any:
    """The value of a term of literals, tuples, lists and these operators. Raises `ValueError` for any other."""
    match term:
        case Const(value=value):
            return value
        case Group(items=items, kind=kind):
            return (list if kind == "list" else tuple)(value_of(item, operators) for item in items)
        case Apply(operation=operation, operands=operands, spelled="operator") if operation in operators:
            return BY_NAME[operation].python(*(value_of(operand, operators) for operand in operands))
        case _:
            raise ValueError(term)


def place_of(call: Apply, parameter: str) -> int | str | None:
    """The position or the name by which a call gives `parameter`; None where it does not."""
    row = called(call)
    if parameter in dict(call.named):
        return parameter
    names = [] if row is None else list(row.signature.parameters)[: len(call.operands)]
    return names.index(parameter) if parameter in names else None


def argument(call: Apply, at: int | str) -> Term:
    """The argument of a call at a position or with a name."""
    return call.operands[at] if isinstance(at, int) else dict(call.named)[at]


def with_argument(call: Apply, at: int | str, new: Term) -> Apply:
    """Replace the argument of a call at a position or with a name."""
    if isinstance(at, int):
        return replace(call, operands=(*call.operands[:at], new, *call.operands[at + 1 :]))
    return replace(call, named=tuple((name, new if name == at else old) for name, old in call.named))
