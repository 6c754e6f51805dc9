"""A condition as text in; a predicate on rows of a sweep out: `bytes_sent < 1e6 and program == "auto"`.

It compares columns with numbers and texts, joined by `and`, `or` and `not`, which the expressions of experiments do not
have. Python parses it; only the known syntax is evaluated.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable
from typing import Any

from runner.faults import nearest
from runner.record.measures import Row

_OPERATORS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}

Condition = Callable[[Row], bool]


class NoCondition(Exception):
    """A text is not a condition; the message says why."""


def parse(text: str, names: Iterable[str]) -> Condition:
    """Parse the condition; `names` are the columns. Raises `NoCondition`."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise NoCondition(f"{text!r} is no condition: {error.msg}; bytes_sent < 1e6, for example") from None
    return _condition(tree, tuple(names))


def _condition(tree: ast.expr, names: tuple[str, ...]) -> Condition:
    match tree:
        case ast.BoolOp(op=joined, values=values):
            parts = [_condition(value, names) for value in values]
            every = all if isinstance(joined, ast.And) else any
            return lambda row: every(part(row) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _condition(operand, names)
            return lambda row: not inner(row)
        case ast.Compare(left=left, ops=operators, comparators=others):
            return _comparison([left, *others], operators, names)
        case _:
            raise NoCondition(f"'{ast.unparse(tree)}' is no comparison; bytes_sent < 1e6, for example")


def _comparison(terms: list[ast.expr], operators: list[ast.cmpop], names: tuple[str, ...]) -> Condition:
    for comparison in operators:
        if type(comparison) not in _OPERATORS:
            raise NoCondition("a comparison is one of <, <=, >, >=, ==, !=")
    values = [_value(term, names) for term in terms]

    def holds(row: Row) -> bool:
        ends = [value(row) for value in values]
        pairs = zip(ends, ends[1:], operators, strict=False)
        return all(_compared(a, b, _OPERATORS[type(operator)]) for a, b, operator in pairs)

    return holds


def _value(term: ast.expr, names: tuple[str, ...]) -> Callable[[Row], Any]:
    match term:
        case ast.Constant(value=int() | float() | str() as value):
            return lambda row: value
        case ast.Name() | ast.Attribute():
            name = ast.unparse(term)
            if name not in names:
                raise NoCondition(f"no column '{name}'{nearest(name, names) or '; there are ' + ', '.join(names)}")
            return lambda row: row.value(name)
        case _:
            raise NoCondition(f"'{ast.unparse(term)}' is neither a column nor a number nor a text")


def _compared(value: Any, bound: Any, by: Callable[[Any, Any], bool]) -> bool:
    """Compare two values: an unknown value is neither less nor greater, and equal to nothing."""
    if value is None or bound is None:
        return False
    try:
        return by(float(value), float(bound))
    except (TypeError, ValueError):
        return by(str(value), str(bound))
