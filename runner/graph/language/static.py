"""Evaluates an expression of sizes, known before JAX: shapes, dims and step counts of loops.

Python evaluates the parts of an expression without arrays by itself, so their sizes are computed first, and those far
too large are refused: `9**9**9` has hundreds of millions of digits, `[1] * 10**9` a billion elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from runner.base.layout import Mesh
from runner.base.lazy import dataclass
from runner.graph.language.check import missing_axis
from runner.graph.language.operators import BY_NAME, COMPARISONS
from runner.graph.language.syntax import Expression
from runner.graph.term import Apply, Const, Group, Listed, Name, Term, children, mapped, names, within

_LONGEST = 100_000
"""The most elements that a comprehension may have."""


def written_out(
    expression: Expression, sizes: Mapping[str, int], mesh: Mesh | None = None, unknown: frozenset[str] = frozenset()
) -> Expression:
    """Replace each comprehension by the list of its elements.

    Raises `SyntaxFault` where the elements depend on arrays. A comprehension that depends on `unknown` names becomes an
    empty list.
    """
    term = _written_out(expression, expression.term, sizes, mesh, unknown)
    return expression if term is expression.term else Expression(expression.text, term)


def _written_out(
    expression: Expression, term: Term, sizes: Mapping[str, int], mesh: Mesh | None, unknown: frozenset[str]
) -> Term:
    if not isinstance(term, Listed):
        return mapped(term, lambda part: _written_out(expression, part, sizes, mesh, unknown))
    if not unknown.isdisjoint(names(term)):
        return Group((), "list", term.at)
    bounds_ = [evaluate(Expression(expression.text, part), sizes, mesh) for part in term.bounds]
    if len(bounds_) == 3 and bounds_[2] == 0:
        raise expression.fault("the step of a range cannot be 0", term)
    steps = range(*bounds_)
    if len(steps) > _LONGEST:
        raise expression.fault(f"it has {len(steps):,} elements; the limit is {_LONGEST:,}", term)

    def element(part: Term, i: int) -> Term:
        if isinstance(part, Group):
            return mapped(part, lambda inner: element(inner, i))
        return Const(evaluate(Expression(expression.text, part), {**sizes, term.index: i}, mesh), part.at)

    return Group(tuple(element(term.element, i) for i in steps), "list", term.at)


def evaluate(expression: Expression, sizes: Mapping[str, int], mesh: Mesh | None = None) -> int:
    """Evaluate an integer expression.

    `sizes` are the dims; with a `mesh`, `axis_size('x')` is allowed. Raises `SyntaxFault` for anything else.
    """

    def value(term: Term) -> int:
        match term:
            case Const(value=int() as number) if not isinstance(number, bool):
                return number
            case Name(name=name) if not term.carried:
                if name not in sizes:
                    dims = ", ".join(sizes) or "none"
                    raise expression.fault(f"no dim '{name}'; the dims are: {dims}", term)
                return sizes[name]
            case Apply(operation="negative", spelled="operator", operands=(operand,)):
                return -value(operand)
            case Apply(operation="bitwise_xor", spelled="operator"):
                raise expression.fault("'^' is Python's exclusive or; a power is written **", term)
            case Apply(operation="divide", spelled="operator"):
                raise expression.fault("sizes are integers: use // instead of /", term)
            case Apply(operation=operation, spelled="operator", operands=(left, right)) if BY_NAME[operation].exact:
                first, second, how = value(left), value(right), BY_NAME[operation]
                if how.natural and second < 0:
                    what = "the shift of a size" if how.kind == "bits" else "sizes are integers: the exponent"
                    raise expression.fault(f"{what} is at least 0", term)
                try:
                    return how.python(first, second)
                except ZeroDivisionError:
                    raise expression.fault("division by zero", term) from None
            case Apply(operation="axis_size", operands=(argument,), named=()) if mesh is not None:
                return axis_size(argument)
            case _:
                raise expression.fault("a size is made of integers, dims and + - * // % ** << >> & | only", term)

    def axis_size(term: Term) -> int:
        assert mesh is not None
        if isinstance(term, Group):
            return math.prod(map(axis_size, term.items))
        if isinstance(term, Const) and term.value in mesh.sizes:
            return mesh.sizes[str(term.value)]
        if not isinstance(term, Const):
            raise expression.fault("axis_size takes the name of a mesh axis, in quotes", term)
        raise expression.fault(missing_axis(term.value, mesh), term)

    check(expression, sizes, mesh)
    return value(expression.term)


_BITS = 128
"""The bits of an integer at most: dtypes have up to 64, and intermediate results of a `//` or a `%` may need more."""

_ELEMENTS = 1_000_000
"""The longest list, tuple or string that an expression may make."""


@dataclass(frozen=True)
class _Integer:
    """An integer of at most `bits` bits; `value` is None where not known."""

    bits: int
    value: int | None = None


@dataclass(frozen=True)
class _Sequence:
    """A list, a tuple or a string; `elements` includes those of nested ones."""

    elements: int


_Static = _Integer | _Sequence | None
"""The static value of a part; None for an array or a number of unknown size."""


def check(expression: Expression, sizes: Mapping[str, int], mesh: Mesh | None = None) -> None:
    """Raise `SyntaxFault` where `expression` makes an integer or a sequence beyond the limits, apart from arrays.

    `sizes` are the dims; with a `mesh`, `axis_size` is evaluated.
    """

    def visit(term: Term) -> _Static:
        parts = [visit(child) for child in children(term)]
        match term:
            case Const(value=bool()):
                return None
            case Const(value=int() as value):
                return integer(value, term)
            case Const(value=str() as text):
                return _Sequence(len(text))
            case Group():
                return _Sequence(sum(part.elements if isinstance(part, _Sequence) else 1 for part in parts))
            case Name(name=name) if name in sizes:
                return integer(sizes[name], term)
            case Apply(operation="axis_size", operands=(argument,), named=()) if mesh is not None:
                axes = [axis.value for axis in within(argument) if isinstance(axis, Const)]
                return integer(mesh.axis_size([str(axis) for axis in axes if axis in mesh.axes]), term)
            case Apply(operation="negative", spelled="operator"):
                (inner,) = parts
                if isinstance(inner, _Integer) and inner.value is not None:
                    return _Integer(inner.bits, -inner.value)
                return inner if isinstance(inner, _Integer) else None
            case Apply(operation=operation, spelled="operator", operands=(_, _)) if operation not in COMPARISONS:
                return binary(term, operation, *parts)
            case _:
                return None

    def binary(term: Term, operation: str, left: _Static, right: _Static) -> _Static:
        if operation == "multiply" and isinstance(left, _Integer) and isinstance(right, _Sequence):
            left, right = right, left
        if isinstance(left, _Sequence):
            if operation == "multiply" and isinstance(right, _Integer) and right.value is not None:
                return bounded(left.elements * max(right.value, 0), term)
            if operation == "add" and isinstance(right, _Sequence):
                return bounded(left.elements + right.elements, term)
            return None
        if not isinstance(left, _Integer) or not isinstance(right, _Integer):
            return None
        negative = right.value is not None and right.value < 0
        if negative and BY_NAME[operation].natural:
            # A fraction, or an error that the evaluation reports.
            return None
        bits = _bits(operation, left, right)
        if bits is None:
            return None
        if bits > _BITS:
            raise expression.fault(
                f"it makes an integer of {'about ' if bits > 1024 else ''}{bits:,} bits, and no dtype has more than 64",
                term,
            )
        if not BY_NAME[operation].exact or left.value is None or right.value is None:
            return _Integer(bits)
        try:
            return integer(BY_NAME[operation].python(left.value, right.value), term)
        except ZeroDivisionError:
            # The evaluation reports it.
            return None

    def integer(value: int, term: Term) -> _Integer:
        if value.bit_length() > _BITS:
            raise expression.fault(f"the integer has {value.bit_length():,} bits, and no dtype has more than 64", term)
        return _Integer(value.bit_length(), value)

    def bounded(elements: int, term: Term) -> _Sequence:
        if elements > _ELEMENTS:
            many = f"it makes {elements:,} elements in a list or a text"
            raise expression.fault(f"{many}; the limit is {_ELEMENTS:,}", term)
        return _Sequence(elements)

    visit(expression.term)


def _bits(operation: str, left: _Integer, right: _Integer) -> int | None:
    """The most bits of the result; None where not known."""
    if operation == "multiply":
        return left.bits + right.bits
    if operation == "power":
        if left.bits <= 1:
            return 1
        return None if right.value is None else left.bits * right.value
    if operation == "left_shift":
        return None if right.value is None else left.bits + right.value
    if operation in ("add", "subtract"):
        return max(left.bits, right.bits) + 1
    return max(left.bits, right.bits)
