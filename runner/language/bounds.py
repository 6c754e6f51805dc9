"""An expression and the sizes that it knows in; nothing out, or the fault that it makes numbers no array can hold.

What Python itself would compute, before any array is there, is computed here first, by its size: `9**9**9` has hundreds
of millions of digits, `[1] * 10**9` as many elements.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runner.language.syntax import Expression
from runner.layout import Mesh

_BITS = 128
"""No dtype has more than 64; the other half is for what comes before a `//` or a `%`."""

_ELEMENTS = 1_000_000
"""The longest list, tuple or text that an expression may make."""


@dataclass(frozen=True)
class _Integer:
    """A number of so many bits at most; its value where it is known."""

    bits: int
    value: int | None = None


@dataclass(frozen=True)
class _Sequence:
    """A list, a tuple or a text of so many elements, those of its elements counted too."""

    elements: int


_Static = _Integer | _Sequence | None
"""None: an array, or a number of which nothing is known."""

EXACT: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b,
    ast.LShift: lambda a, b: a << b,
    ast.RShift: lambda a, b: a >> b,
    ast.BitAnd: lambda a, b: a & b,
    ast.BitOr: lambda a, b: a | b,
    ast.BitXor: lambda a, b: a ^ b,
}
"""The operations that make integers of integers."""


def check(expression: Expression, sizes: Mapping[str, int], mesh: Mesh | None = None) -> None:
    """Raise `SyntaxFault` where `expression` makes an integer or a sequence beyond all bounds, before arrays come in.

    `sizes` are the dims; a `mesh` tells what `axis_size` is.
    """

    def visit(node: ast.AST) -> _Static:
        parts = {id(child): visit(child) for child in ast.iter_child_nodes(node)}
        match node:
            case ast.Constant(value=bool()):
                return None
            case ast.Constant(value=int() as value):
                return known(value, node)
            case ast.Constant(value=str() as text):
                return _Sequence(len(text))
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                inside = [parts[id(element)] for element in elements]
                return _Sequence(sum(each.elements if isinstance(each, _Sequence) else 1 for each in inside))
            case ast.Name(id=name) if name in sizes:
                return known(sizes[name], node)
            case ast.Call(func=ast.Name(id="axis_size"), args=[argument], keywords=[]) if mesh is not None:
                axes = [each.value for each in ast.walk(argument) if isinstance(each, ast.Constant)]
                return known(mesh.axis_size([axis for axis in axes if axis in mesh.axes]), node)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = parts[id(operand)]
                if isinstance(inner, _Integer) and inner.value is not None:
                    return _Integer(inner.bits, -inner.value)
                return inner if isinstance(inner, _Integer) else None
            case ast.BinOp(left=left, op=op, right=right):
                return binary(node, type(op), parts[id(left)], parts[id(right)])
            case _:
                return None

    def binary(node: ast.BinOp, op: type[ast.operator], left: _Static, right: _Static) -> _Static:
        if op is ast.Mult and isinstance(left, _Integer) and isinstance(right, _Sequence):
            left, right = right, left
        if isinstance(left, _Sequence):
            if op is ast.Mult and isinstance(right, _Integer) and right.value is not None:
                return bounded(left.elements * max(right.value, 0), node)
            if op is ast.Add and isinstance(right, _Sequence):
                return bounded(left.elements + right.elements, node)
            return None
        if not isinstance(left, _Integer) or not isinstance(right, _Integer):
            return None
        negative, zero = right.value is not None and right.value < 0, right.value == 0
        if (negative and op in (ast.Pow, ast.LShift, ast.RShift)) or (zero and op in (ast.FloorDiv, ast.Mod)):
            # A fraction, or Python's own fault, which the one who evaluates it tells.
            return None
        bits = _bits(op, left, right)
        if bits is None:
            return None
        if bits > _BITS:
            raise expression.fault(
                f"it makes an integer of {'about ' if bits > 1024 else ''}{bits:,} bits, and no dtype has more than 64",
                node,
            )
        if op in EXACT and left.value is not None and right.value is not None:
            return known(EXACT[op](left.value, right.value), node)
        return _Integer(bits)

    def known(value: int, node: ast.AST) -> _Integer:
        if value.bit_length() > _BITS:
            raise expression.fault(f"the integer has {value.bit_length():,} bits, and no dtype has more than 64", node)
        return _Integer(value.bit_length(), value)

    def bounded(elements: int, node: ast.AST) -> _Sequence:
        if elements > _ELEMENTS:
            many = f"it makes {elements:,} elements in a list or a text"
            raise expression.fault(f"{many}; {_ELEMENTS:,} are the most", node)
        return _Sequence(elements)

    visit(expression.tree)


def _bits(op: type[ast.operator], left: _Integer, right: _Integer) -> int | None:
    """How many bits the result has at most; None where nothing is known of it."""
    if op is ast.Mult:
        return left.bits + right.bits
    if op is ast.Pow:
        if left.bits <= 1:
            return 1
        return None if right.value is None else left.bits * right.value
    if op is ast.LShift:
        return None if right.value is None else left.bits + right.value
    if op is ast.Add or op is ast.Sub:
        return max(left.bits, right.bits) + 1
    return max(left.bits, right.bits)
