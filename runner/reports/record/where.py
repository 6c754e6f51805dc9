"""Reads a condition on the rows of a sweep: `bytes_sent < 1e6 and program == "auto"`.

It compares columns with numbers and texts, joined by `and`, `or` and `not`, which the expressions of experiments do not
have. Python parses it; only the known syntax is evaluated.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from runner.base.faults import nearest
from runner.graph.language import python_source
from runner.graph.language.python_source import PythonPart
from runner.reports.record.measures import Row

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}

Condition = Callable[[Row], bool]


class NoCondition(Exception):
    """A text is not a condition; the message says why."""


def parse(text: str, names: Iterable[str]) -> Condition:
    """Parse the condition; `names` are the columns. Raises `NoCondition`."""
    try:
        tree = python_source.expression(text)
    except SyntaxError as error:
        raise NoCondition(f"{text!r} is not a condition: {error.msg}; bytes_sent < 1e6, for example") from None
    return _condition(tree, tuple(names))


def _condition(tree: PythonPart, names: tuple[str, ...]) -> Condition:
    match tree:
        case PythonPart(kind="and" | "or", inside=inside):
            parts = [_condition(part, names) for part in inside]
            every = all if tree.kind == "and" else any
            return lambda row: every(part(row) for part in parts)
        case PythonPart(kind="not", inside=(operand,)):
            inner = _condition(operand, names)
            return lambda row: not inner(row)
        case PythonPart(kind="comparison", inside=inside, words=words):
            return _comparison(inside, words, names)
        case _:
            raise NoCondition(f"'{tree.text}' is not a comparison; bytes_sent < 1e6, for example")


def _comparison(parts: Sequence[PythonPart], words: Sequence[str], names: tuple[str, ...]) -> Condition:
    if not set(words) <= _OPERATORS.keys():
        raise NoCondition(f"a comparison must be one of {', '.join(_OPERATORS)}")
    values = [_value(part, names) for part in parts]

    def holds(row: Row) -> bool:
        ends = [value(row) for value in values]
        return all(_compared(a, b, _OPERATORS[word]) for a, b, word in zip(ends, ends[1:], words, strict=False))

    return holds


def _value(part: PythonPart, names: tuple[str, ...]) -> Callable[[Row], Any]:
    match part:
        case PythonPart(kind="literal", value=int() | float() | str() as value):
            return lambda row: value
        case PythonPart(kind="name", text=name):
            if name not in names:
                raise NoCondition(f"no column '{name}'{nearest(name, names) or '; there are ' + ', '.join(names)}")
            return lambda row: row.value(name)
        case _:
            raise NoCondition(f"'{part.text}' is neither a column nor a number nor a text")


def _compared(value: Any, bound: Any, by: Callable[[Any, Any], bool]) -> bool:
    """Compare two values: an unknown value is neither less nor greater, and equal to nothing."""
    if value is None or bound is None:
        return False
    try:
        return by(float(value), float(bound))
    except (TypeError, ValueError):
        return by(str(value), str(bound))
