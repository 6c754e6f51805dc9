"""A term in; its text out, formatted as `ast.unparse` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from enum import IntEnum
from typing import TypeAlias

from runner.graph.term import NOTHING, Apply, Const, Group, Lambda, Listed, Name, Slice, Term, remade
from runner.language.operations.arguments import AT
from runner.language.operators import BY_NAME

_INFINITE = "1e309"
"""The literal for infinity, beyond the largest float."""


class _Place(IntEnum):
    """The position of a term, ordered by precedence: a term that binds less strongly gets parentheses.

    A slice's bound may be omitted. In the brackets of an index, a tuple has no parentheses; in those of an update, a
    single element has no comma either.
    """

    BOUND = -3
    UPDATE = -2
    INDEX = -1
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
    "|": _Place.OR, "^": _Place.XOR, "&": _Place.AND, "<<": _Place.SHIFT, ">>": _Place.SHIFT, "+": _Place.SUM,
    "-": _Place.SUM, "*": _Place.PRODUCT, "/": _Place.PRODUCT, "//": _Place.PRODUCT, "%": _Place.PRODUCT,
    "@": _Place.PRODUCT, "**": _Place.POWER,
}  # fmt: skip

_Piece: TypeAlias = "str | tuple[Term, _Place]"
"""Text, or a child and its position."""


def text(term: Term) -> str:
    """Print a term: `psum(A @ B, 'x')`."""
    texts: list[str] = []
    _print(term, _Place.LAMBDA, texts.append)
    return "".join(texts)


def written(term: Term) -> tuple[str, Term]:
    """Print a term; return the text, and the term with the spans of all its parts in that text."""
    writing = _Writing()
    whole = writing.put(term, _Place.LAMBDA)
    return "".join(writing.texts), whole


class _Writing:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self._end = 0

    def put(self, term: Term, place: _Place) -> Term:
        if place is _Place.BOUND and term == NOTHING:
            return NOTHING
        enclosed = _binds(term) < place
        self._add("(" if enclosed else "")
        start = self._end
        parts: list[Term] = []
        for piece in _pieces(term, place):
            if isinstance(piece, str):
                self._add(piece)
            else:
                parts.append(self.put(*piece))
        whole = replace(remade(term, tuple(parts)), at=(start, self._end))
        self._add(")" if enclosed else "")
        return whole

    def _add(self, written: str) -> None:
        self.texts.append(written)
        self._end += len(written.encode())


def _print(term: Term, place: _Place, add: Callable[[str], None]) -> None:
    enclosed = _binds(term) < place
    if enclosed:
        add("(")
    for piece in _pieces(term, place):
        if isinstance(piece, str):
            add(piece)
        else:
            _print(*piece, add)
    if enclosed:
        add(")")


def _binds(term: Term) -> _Place:
    match term:
        case Lambda():
            return _Place.LAMBDA
        case Apply(spelled="operator", operation=operation, operands=operands):
            single = len(operands) == 1
            return _Place.SIGN if single else _BINDS.get(BY_NAME[operation].symbol, _Place.COMPARISON)
        case _:
            return _Place.ATOM


def _pieces(term: Term, place: _Place) -> Iterator[_Piece]:
    """Yield the children of a term in order, and the text between them."""
    match term:
        case Name(name=name):
            yield name
        case Const(value=value):
            yield "" if place is _Place.BOUND and term == NOTHING else _constant(value)
        case Group(items=items, kind=kind):
            opening, closing = "[]" if kind == "list" else "()"
            bare = kind == "tuple" and bool(items) and place in (_Place.INDEX, _Place.UPDATE)
            comma = kind == "tuple" and len(items) == 1 and place is not _Place.UPDATE
            yield "" if bare else opening
            yield from _joined((item, _Place.LAMBDA) for item in items)
            yield ("," if comma else "") + ("" if bare else closing)
        case Slice(lower=lower, upper=upper, step=step):
            yield from ((lower, _Place.BOUND), ":", (upper, _Place.BOUND), "" if step == NOTHING else ":")
            yield step, _Place.BOUND
        case Lambda(parameters=parameters, body=body):
            yield f"lambda {', '.join(parameters)}: " if parameters else "lambda: "
            yield body, _Place.LAMBDA
        case Listed(element=element, index=index, bounds=bounds):
            yield from ("[", (element, _Place.LAMBDA), f" for {index} in range(")
            yield from _joined((bound, _Place.LAMBDA) for bound in bounds)
            yield ")]"
        case Apply():
            yield from _applied(term)


def _applied(term: Apply) -> Iterator[_Piece]:
    match term:
        case Apply(spelled="operator", operands=(operand,)):
            yield from (BY_NAME[term.operation].symbol, (operand, _Place.SIGN))
        case Apply(spelled="operator", operands=(left, right)):
            binds, symbol = _binds(term), BY_NAME[term.operation].symbol
            over = _Place(binds + 1)
            before = binds if binds not in (_Place.COMPARISON, _Place.POWER) else over
            after = over if binds is not _Place.POWER else binds
            yield from ((left, before), f" {symbol} ", (right, after))
        case Apply(spelled="index", operands=(x, index)):
            yield from ((x, _Place.ATOM), "[", (index, _Place.INDEX), "]")
        case Apply(spelled=".T", operands=(x,)):
            yield from ((x, _Place.ATOM), f"{_gap(x)}.T")
        case Apply(operation=operation, operands=(x, index, *values)) if operation.startswith(AT):
            yield from ((x, _Place.ATOM), f"{_gap(x)}.at[", (index, _Place.UPDATE), f"].{operation.removeprefix(AT)}(")
            yield from _arguments(values, term.named)
        case Apply(operation=operation, operands=operands):
            yield f"{operation}("
            yield from _arguments(operands, term.named)


def _gap(term: Term) -> str:
    # A dot right after an integer would be its decimal point.
    return " " if isinstance(term, Const) and isinstance(term.value, int) and not isinstance(term.value, bool) else ""


def _arguments(operands: Iterable[Term], named: Iterable[tuple[str, Term]]) -> Iterator[_Piece]:
    between = ""
    for name, operand in (*(("", operand) for operand in operands), *named):
        yield from (f"{between}{name}{'=' if name else ''}", (operand, _Place.LAMBDA))
        between = ", "
    yield ")"


def _joined(parts: Iterable[tuple[Term, _Place]]) -> Iterator[_Piece]:
    for at, part in enumerate(parts):
        if at:
            yield ", "
        yield part


def _constant(value: object) -> str:
    if value is ...:
        return "..."
    if isinstance(value, float | complex):
        return repr(value).replace("inf", _INFINITE).replace("nan", f"({_INFINITE}-{_INFINITE})")
    return repr(value)
