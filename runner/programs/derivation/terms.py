"""Makes terms from a template, or from an operation and its arguments."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from types import EllipsisType
from typing import TypeAlias

from runner.graph.language.lines import at_index, operator
from runner.graph.language.operations import OPERATIONS
from runner.graph.language.syntax import parse
from runner.graph.model import INDEX, Equation, Operand, literal
from runner.graph.term import NOTHING, Apply, Const, Group, Literals, Slice, Term, bare, calls, mapped, placed

ALL = Slice(NOTHING, NOTHING, NOTHING)
"""The slice `:`."""

Part: TypeAlias = "Term | Literals | Sequence[Part]"
"""A value for a placeholder of a template."""


def built(template: str, **parts: Part) -> Term:
    """Fill a template: `built("psum({x}, {over})", x=term, over=("x",))`.

    A tuple of one string is written as a string, as axes are. A string is a literal or, where the template calls it,
    the name of an operation: `{f}({x})`.
    """
    terms = {f"_{name}": _term(part) for name, part in parts.items()}
    called = {f"_{name}": part for name, part in parts.items() if isinstance(part, str)}

    def filled(term: Term) -> Term:
        if (name := bare(term)) is not None:
            return terms.get(name, term)
        term = mapped(term, filled)
        return replace(term, operation=called[term.operation]) if calls(term, called) else term

    return filled(_template(template))


@cache
def _template(template: str) -> Term:
    """The parsed template, with the name `_x` for `{x}`."""
    return placed(parse(re.sub(r"\{(\w+)\}", r"_\1", template)).term, None)


def _term(part: Part) -> Term:
    match part:
        case (str(axis),):
            return Const(axis)
        case _:
            return constant(part)


def constant(part: Part) -> Term:
    """The term of a number, string, None, tuple or list; terms stay as they are."""
    match part:
        case int() | float() if part < 0:
            return operator("negative", Const(-part))
        case None | bool() | int() | float() | complex() | str() | EllipsisType():
            return Const(part)
        case Sequence():
            return Group(tuple(map(constant, part)), "list" if isinstance(part, list) else "tuple")
        case _:
            return part


def gathered(x: Term, over: tuple[str, ...], **keywords: Part) -> Apply:
    """`all_gather(x, 'x', axis=0)`: an all-gather over mesh axes."""
    return Apply("all_gather", (x, _term(over)), tuple((name, constant(value)) for name, value in keywords.items()))


def elements_of(x: Term, count: int) -> list[Term]:
    """The terms `x[0]`, `x[1]`, …"""
    return [at_index(x, Const(i)) for i in range(count)]


def indexed(x: Term, items: Sequence[Term]) -> Term:
    """`x[:, None]`, from the entries between the brackets."""
    return at_index(x, items[0] if len(items) == 1 else Group(tuple(items)))


def spread(mask: Term, after: int) -> Term:
    """Broadcast a mask of one dimension over `after` further dimensions."""
    return indexed(mask, [ALL, *[NOTHING] * after]) if after else mask


def number(value: float) -> Term:
    """A number that a scan begins with: an integer, or an infinity."""
    return built("-inf" if value < 0 else "inf") if math.isinf(value) else Const(int(value))


def divided(term: Term, parts: int) -> Term:
    """A size divided by the number of parts: `B // 4`, `16`."""
    if parts == 1:
        return term
    if isinstance(size := literal(term), int):
        return Const(size // parts)
    return built("{n} // {parts}", n=term, parts=parts)


@cache
def _places(operation: str, count: int) -> tuple[str, ...]:
    """The places of `count` positional arguments; those of a variadic parameter are `*arrays[0]`, …"""
    if operation == INDEX:
        return "x", "index"
    places: list[str] = []
    for parameter in OPERATIONS[operation].signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            places += [f"*{parameter.name}[{i}]" for i in range(count - len(places))]
        else:
            places.append(parameter.name)
    return tuple(places[:count])


def arguments(equation: Equation) -> list[tuple[str, Operand]]:
    """The arguments of an operation with their places, in order."""
    places = _places(equation.operation, len(equation.operands))
    return [*zip(places, equation.operands, strict=True), *equation.named]


def rebuilt(equation: Equation, visit: Callable[[str, Operand], Term]) -> Apply:
    """The operation with each argument replaced by `visit(place, argument)`."""
    made = [visit(place, part) for place, part in arguments(equation)]
    count = len(equation.operands)
    named = tuple((name, part) for (name, _), part in zip(equation.named, made[count:], strict=True))
    return Apply(equation.operation, tuple(made[:count]), named, equation.spelled)
