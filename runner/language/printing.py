"""A term in; its text out, as Python would print it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from runner.graph.term import NOTHING, Apply, Const, Group, Lambda, Listed, Name, Slice, Term
from runner.language.operations.arguments import AT
from runner.language.operators import BY_NAME

_INFINITE = "1e309"
"""How a number beyond the largest float is written."""


class _Binds(IntEnum):
    """How strongly an operator binds; a part that binds less than its place asks for stands in parentheses."""

    LAMBDA = 0
    COMPARISON = 1
    OR = 2
    XOR = 3
    AND = 4
    SHIFT = 5
    SUM = 6
    PRODUCT = 7
    SIGN = 8
    POWER = 9
    BELOW_POWER = 10
    ATOM = 11


_BINDS = {
    "|": _Binds.OR, "^": _Binds.XOR, "&": _Binds.AND, "<<": _Binds.SHIFT, ">>": _Binds.SHIFT, "+": _Binds.SUM,
    "-": _Binds.SUM, "*": _Binds.PRODUCT, "/": _Binds.PRODUCT, "//": _Binds.PRODUCT, "%": _Binds.PRODUCT,
    "@": _Binds.PRODUCT, "**": _Binds.POWER,
}  # fmt: skip


def text(term: Term) -> str:
    """A term as text of the language: `psum(A @ B, 'x')`."""
    return _text(term, _Binds.LAMBDA)


def _text(term: Term, asked: _Binds) -> str:
    match term:
        case Name(name=name):
            return name
        case Const(value=value):
            return _constant(value)
        case Group(items=items, kind="list"):
            return f"[{_all(items)}]"
        case Group(items=items):
            return f"({_all(items)}{',' if len(items) == 1 else ''})"
        case Slice(lower=lower, upper=upper, step=step):
            return f"{_bound(lower)}:{_bound(upper)}" + (f":{_bound(step)}" if step != NOTHING else "")
        case Lambda(parameters=parameters, body=body):
            head = f"lambda {', '.join(parameters)}" if parameters else "lambda"
            return _enclosed(f"{head}: {text(body)}", asked > _Binds.LAMBDA)
        case Listed(element=element, index=index, bounds=bounds):
            return f"[{text(element)} for {index} in range({_all(bounds)})]"
        case Apply(spelled="operator"):
            return _operator(term, asked)
        case Apply(spelled="index", operands=(x, index)):
            return f"{_text(x, _Binds.ATOM)}[{_index(index)}]"
        case Apply(spelled=".T", operands=(x,)):
            return f"{_attributed(x)}.T"
        case Apply(operation=operation) if operation.startswith(AT):
            x, index, *_ = term.operands
            alone = index.items[0] if isinstance(index, Group) and len(index.items) == 1 else index
            method = operation.removeprefix(AT)
            return f"{_attributed(x)}.at[{_index(alone)}].{method}({_arguments(term, 2)})"
        case Apply(operation=operation):
            return f"{operation}({_arguments(term)})"


def _attributed(term: Term) -> str:
    # A dot behind an integer would be its decimal point.
    integer = isinstance(term, Const) and isinstance(term.value, int) and not isinstance(term.value, bool)
    return _text(term, _Binds.ATOM) + (" " if integer else "")


def _operator(term: Apply, asked: _Binds) -> str:
    operator = BY_NAME[term.operation]
    if len(term.operands) == 1:
        return _enclosed(f"{operator.symbol}{_text(term.operands[0], _Binds.SIGN)}", asked > _Binds.SIGN)
    left, right = term.operands
    binds = _BINDS.get(operator.symbol, _Binds.COMPARISON)
    over = _Binds(binds + 1)
    before, after = (over, over) if binds is _Binds.COMPARISON else (binds, over)
    if binds is _Binds.POWER:
        before, after = over, binds
    return _enclosed(f"{_text(left, before)} {operator.symbol} {_text(right, after)}", asked > binds)


def _enclosed(written: str, parentheses: bool) -> str:
    return f"({written})" if parentheses else written


def _all(terms: Iterable[Term]) -> str:
    return ", ".join(map(text, terms))


def _arguments(term: Apply, start: int = 0) -> str:
    named = (f"{name}={text(operand)}" for name, operand in term.named)
    return ", ".join((*map(text, term.operands[start:]), *named))


def _index(index: Term) -> str:
    if isinstance(index, Group) and index.kind == "tuple" and index.items:
        return _all(index.items) + ("," if len(index.items) == 1 else "")
    return text(index)


def _bound(bound: Term) -> str:
    return "" if bound == NOTHING else text(bound)


def _constant(value: object) -> str:
    if value is ...:
        return "..."
    if isinstance(value, float | complex):
        return repr(value).replace("inf", _INFINITE).replace("nan", f"({_INFINITE}-{_INFINITE})")
    return repr(value)
