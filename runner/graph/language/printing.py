"""Prints a term as `ast.unparse` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from enum import IntEnum
from typing import TypeAlias

from runner.graph.language.operations.row import AT
from runner.graph.language.operators import BY_NAME
from runner.graph.term import NOTHING, Apply, Const, Group, Lambda, Listed, Name, Slice, Term, remade

_INFINITE = "1e309"
"""The literal for infinity, beyond the largest float."""


class _Rank(IntEnum):
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
    "|": _Rank.OR, "^": _Rank.XOR, "&": _Rank.AND, "<<": _Rank.SHIFT, ">>": _Rank.SHIFT, "+": _Rank.SUM,
    "-": _Rank.SUM, "*": _Rank.PRODUCT, "/": _Rank.PRODUCT, "//": _Rank.PRODUCT, "%": _Rank.PRODUCT,
    "@": _Rank.PRODUCT, "**": _Rank.POWER,
}  # fmt: skip

_Piece: TypeAlias = "str | tuple[Term, _Rank]"
"""Text, or a child and its position."""


def text(term: Term) -> str:
    """Print a term: `psum(A @ B, 'x')`."""
    texts: list[str] = []
    _print(term, _Rank.LAMBDA, texts.append)
    return "".join(texts)


def is_within(term: Term, most: int) -> bool:
    """Whether the text of a term has at most so many characters; a long one is not printed to its end."""
    left = most

    def add(piece: str) -> None:
        nonlocal left
        left -= len(piece)
        if left < 0:
            raise _TooLongError

    try:
        _print(term, _Rank.LAMBDA, add)
    except _TooLongError:
        return False
    return True


class _TooLongError(Exception):
    """The text has more characters than are allowed."""


def written(term: Term) -> tuple[str, Term]:
    """Print a term; return the text, and the term with the spans of all its parts in that text."""
    writing = _Writing()
    whole = writing.put(term, _Rank.LAMBDA)
    return "".join(writing.texts), whole


class _Writing:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self._end = 0

    def put(self, term: Term, place: _Rank) -> Term:
        if place is _Rank.BOUND and term == NOTHING:
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


def _print(term: Term, place: _Rank, add: Callable[[str], None]) -> None:
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


def _binds(term: Term) -> _Rank:
    match term:
        case Lambda():
            return _Rank.LAMBDA
        case Apply(spelled="operator", operation=operation, operands=operands):
            single = len(operands) == 1
            return _Rank.SIGN if single else _BINDS.get(BY_NAME[operation].symbol, _Rank.COMPARISON)
        case _:
            return _Rank.ATOM


def _pieces(term: Term, place: _Rank) -> Iterator[_Piece]:
    """Yield the children of a term in order, and the text between them."""
    match term:
        case Name(name=name):
            yield name
        case Const(value=value):
            yield "" if place is _Rank.BOUND and term == NOTHING else _constant(value)
        case Group(items=items, kind=kind):
            opening, closing = "[]" if kind == "list" else "()"
            bare = kind == "tuple" and bool(items) and place in (_Rank.INDEX, _Rank.UPDATE)
            comma = kind == "tuple" and len(items) == 1 and place is not _Rank.UPDATE
            yield "" if bare else opening
            yield from _joined((item, _Rank.LAMBDA) for item in items)
            yield ("," if comma else "") + ("" if bare else closing)
        case Slice(lower=lower, upper=upper, step=step):
            yield from ((lower, _Rank.BOUND), ":", (upper, _Rank.BOUND), "" if step == NOTHING else ":")
            yield step, _Rank.BOUND
        case Lambda(parameters=parameters, body=body):
            yield f"lambda {', '.join(parameters)}: " if parameters else "lambda: "
            yield body, _Rank.LAMBDA
        case Listed(element=element, index=index, bounds=bounds):
            yield from ("[", (element, _Rank.LAMBDA), f" for {index} in range(")
            yield from _joined((bound, _Rank.LAMBDA) for bound in bounds)
            yield ")]"
        case Apply():
            yield from _applied(term)


def _applied(term: Apply) -> Iterator[_Piece]:
    match term:
        case Apply(spelled="operator", operands=(operand,)):
            yield from (BY_NAME[term.operation].symbol, (operand, _Rank.SIGN))
        case Apply(spelled="operator", operands=(left, right)):
            binds, symbol = _binds(term), BY_NAME[term.operation].symbol
            over = _Rank(binds + 1)
            before = binds if binds not in (_Rank.COMPARISON, _Rank.POWER) else over
            after = over if binds is not _Rank.POWER else binds
            yield from ((left, before), f" {symbol} ", (right, after))
        case Apply(spelled="index", operands=(x, index)):
            yield from ((x, _Rank.ATOM), "[", (index, _Rank.INDEX), "]")
        case Apply(spelled=".T", operands=(x,)):
            yield from ((x, _Rank.ATOM), f"{_gap(x)}.T")
        case Apply(operation=operation, operands=(x, index, *values)) if operation.startswith(AT):
            yield from ((x, _Rank.ATOM), f"{_gap(x)}.at[", (index, _Rank.UPDATE), f"].{operation.removeprefix(AT)}(")
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
        yield from (f"{between}{name}{'=' if name else ''}", (operand, _Rank.LAMBDA))
        between = ", "
    yield ")"


def _joined(parts: Iterable[tuple[Term, _Rank]]) -> Iterator[_Piece]:
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
