"""Compiles the definition of an operation by others: lines of the language, the last of which is the result.

A definition reads `exp = exp(x); exp / sum(exp, axis)`: each line but the last is named, by the name before ` = `.
`given(where, a, b)` is `a` where the call gives the argument `where`, neither None nor False, and otherwise `b`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from runner.graph.language.operations import CONSTANTS, OPERATIONS
from runner.graph.language.syntax import parse
from runner.graph.term import Apply, Const, Group, Name, Term, mapped, names

Lines = tuple[tuple[tuple[str, Term], ...], Term]
"""The named lines of a definition, and its result."""


@functools.cache
def read(definition: str) -> Lines:
    """Parse a definition."""
    *named, last = definition.split("; ")
    lines = tuple(line.partition(" = ")[::2] for line in named)
    return tuple((name, _bound(parse(text).term)) for name, text in lines), _bound(parse(last).term)


@functools.cache
def names_read(definition: str) -> tuple[str, ...]:
    """The names that a definition reads, as often as it does."""
    lines, last = read(definition)
    return tuple(name for term in (*(term for _, term in lines), last) for name in names(term))


def _bound(term: Term) -> Term:
    """A term whose calls have by name only what cannot be given by position."""
    term = mapped(term, _bound)
    if not isinstance(term, Apply) or not term.named:
        return term
    bound = OPERATIONS[term.operation].signature.bind(*term.operands, **dict(term.named))
    return replace(term, operands=bound.args, named=tuple(bound.kwargs.items()))


def compiled(
    definition: str,
    function_of: Callable[[Apply], Callable[..., Any]],
    named: Callable[[str, Any], Any] = lambda name, value: value,
) -> Callable[[Mapping[str, Any]], Any]:
    """The function from the arguments of a call, by name, to its result.

    - `function_of`: gives for each operation in the definition the function from its operands to its value.
    - `named`: gives the value by which later lines know the line of this name.
    """
    lines, last = read(definition)
    steps = [(name, _part(term, function_of)) for name, term in lines]
    result = _part(last, function_of)

    def compute(arguments: Mapping[str, Any]) -> Any:
        values = {**CONSTANTS, **arguments}
        for name, step in steps:
            values[name] = named(name, step(values))
        return result(values)

    return compute


def _part(term: Term, function_of: Callable[[Apply], Callable[..., Any]]) -> Callable[[dict[str, Any]], Any]:
    match term:
        case Const(value=value):
            return lambda values: value
        case Name(name=name):
            return lambda values: values[name]
        case Group(items=items):
            parts = [_part(item, function_of) for item in items]
            return lambda values: tuple(part(values) for part in parts)
        case Apply(operation="given", operands=(Name(name=name), *branches)):
            then, otherwise = (_part(branch, function_of) for branch in branches)
            return lambda values: otherwise(values) if values[name] is None or values[name] is False else then(values)
        case Apply(operands=operands, named=named):
            function = function_of(term)
            parts = [_part(operand, function_of) for operand in operands]
            more = [(name, _part(operand, function_of)) for name, operand in named]
            return lambda values: function(*(part(values) for part in parts), **{n: part(values) for n, part in more})
        case _:
            raise AssertionError(term)  # definitions have no lambdas, slices or comprehensions
