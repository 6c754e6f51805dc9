"""Evaluates an expression of sizes, known before JAX: shapes, dims and step counts of loops."""

from __future__ import annotations

import math
from collections.abc import Mapping

from runner.base.layout import Mesh
from runner.graph.language import bounds
from runner.graph.language.check import missing_axis
from runner.graph.language.operators import BY_NAME
from runner.graph.language.syntax import Expression
from runner.graph.term import Apply, Const, Group, Listed, Name, Term, mapped, names

_LONGEST = 100_000
"""The most elements that a comprehension may have."""


def written_out(
    expression: Expression, sizes: Mapping[str, int], mesh: Mesh | None = None, unknown: frozenset[str] = frozenset()
) -> Expression:
    """Replace each comprehension by the list of its elements.

    Raises `SyntaxFault` where the elements depend on arrays. A comprehension that depends on `unknown` names becomes an
    empty list.
    """
    known = _written_out(expression, expression.term, sizes, mesh, unknown)
    return expression if known is expression.term else Expression(expression.text, known)


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
                    known = ", ".join(sizes) or "none"
                    raise expression.fault(f"no dim '{name}'; the dims are: {known}", term)
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

    bounds.check(expression, sizes, mesh)
    return value(expression.term)
