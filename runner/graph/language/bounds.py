"""Refuses an expression in which Python would compute a number or list that is far too large.

Python evaluates the parts without arrays by itself, so their sizes are computed first: `9**9**9` has hundreds of
millions of digits, `[1] * 10**9` a billion elements.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.base.layout import Mesh
from runner.base.lazy import dataclass
from runner.graph.language.operators import BY_NAME, COMPARISONS
from runner.graph.language.syntax import Expression
from runner.graph.term import Apply, Const, Group, Name, Term, children, within

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
                return known(value, term)
            case Const(value=str() as text):
                return _Sequence(len(text))
            case Group():
                return _Sequence(sum(part.elements if isinstance(part, _Sequence) else 1 for part in parts))
            case Name(name=name) if name in sizes:
                return known(sizes[name], term)
            case Apply(operation="axis_size", operands=(argument,), named=()) if mesh is not None:
                axes = [each.value for each in within(argument) if isinstance(each, Const)]
                return known(mesh.axis_size([str(axis) for axis in axes if axis in mesh.axes]), term)
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
            return known(BY_NAME[operation].python(left.value, right.value), term)
        except ZeroDivisionError:
            # The evaluation reports it.
            return None

    def known(value: int, term: Term) -> _Integer:
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
