"""Reads the plain values of a configuration: names, sizes and literals."""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterable, Mapping
from typing import Any

from runner.base.faults import Fault, InvalidExperiment, Key, invalid, nearest
from runner.base.layout import Mesh
from runner.base.untyped import is_list, is_mapping
from runner.base.words import listed
from runner.experiment.forms import EXPRESSION, IDENTIFIER, NAME, SIZE, check, choices, yaml_hint
from runner.experiment.showing import MESH, WORDS
from runner.graph.language import static
from runner.graph.language.check import canonical
from runner.graph.language.operations import CONSTANTS, row_of
from runner.graph.language.operators import BY_NAME, COMPARISONS
from runner.graph.language.syntax import Expression, SyntaxFault, on_one_line, parse
from runner.graph.term import names, operates


def check_name(name: Any, key: Key) -> None:
    check(name, key, NAME)
    if keyword.iskeyword(name):
        raise invalid(key, f"'{name}' is a keyword of Python and cannot be a name")
    if name in CONSTANTS:
        raise invalid(key, f"'{name}' is a number in every expression; a name means one thing")
    # `mean: mean(A)` is natural and unambiguous; a line called psum that does not sum over devices would mislead.
    if row_of(name).over.does:
        raise invalid(key, f"'{name}' is a collective in every expression; a name means one thing")


def counted(things: Any, singular: str, plural: str | None = None) -> str:
    return f"{len(things)} {singular if len(things) == 1 else plural or singular + 's'}"


def read_expression(text: object, key: Key) -> Expression:
    return canonical(parsed(text, key))


def parsed(text: object, key: Key) -> Expression:
    check(text, key, EXPRESSION)
    try:
        return parse(str(text))
    except SyntaxFault as fault:
        raise InvalidExperiment(located(key, str(text), fault)) from None


def located(key: Key, text: str, fault: SyntaxFault, uses: tuple[Key, ...] = ()) -> Fault:
    """A fault inside the expression `text` at `key`, in a function that the lines at `uses` call."""
    return Fault(key, fault.message, on_one_line(text), fault.start, fault.end, uses)


def check_text(value: object, key: Key = ()) -> None:
    """Raise `InvalidExperiment` for an unpaired surrogate, which an escape in YAML or a byte of a shell can make."""
    if (
        isinstance(value, str)
        and not value.isascii()
        and (half := next((c for c in value if "\ud800" <= c <= "\udfff"), None)) is not None
    ):
        raise invalid(key, f'{half!r} in it is a lone surrogate: write "\\U0001F600", or the character')
    if is_mapping(value):
        for name, part in value.items():
            check_text(name, key)
            check_text(part, (*key, str(name)))
    elif is_list(value):
        for i, part in enumerate(value):
            check_text(part, (*key, i))


def read_size(value: object, key: Key, sizes: Mapping[str, int], mesh: Mesh | None = None) -> int:
    """Return an integer, or the value of an expression of dims. Raises `InvalidExperiment`."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and IDENTIFIER.match(value) and value not in sizes:
        raise _no_dim(value, key, sizes)
    check(value, key, SIZE)
    expression = read_expression(value, key)
    try:
        return static.evaluate(expression, sizes, mesh)
    except SyntaxFault as fault:
        raise InvalidExperiment(located(key, expression.text, fault)) from None


def _no_dim(name: str, key: Key, dims: Mapping[str, int]) -> InvalidExperiment:
    before = " before it" if key[:1] == ("dims",) else ""
    known = f"; the dims{before} are {', '.join(dims)}" if dims else f"; there are no dims{before}"
    return invalid(key, f"no dim '{name}'{nearest(name, dims) or known}")


def read_dims(config: Mapping[str, Any]) -> dict[str, int]:
    dims: dict[str, int] = {}
    for name, value in config.items():
        key = ("dims", name)
        check_name(name, key)
        dims[name] = _dim(name, value, key, dims)
    return dims


def _dim(name: str, value: object, key: Key, dims: Mapping[str, int]) -> int:
    size = read_size(value, key, dims)
    if size < 1:
        raise invalid(key, f"the dim '{name}' is {size}; a size is at least 1")
    return size


def check_required(required: object, dims: Mapping[str, int], mesh: Mesh) -> None:
    """Raise `InvalidExperiment` for the first comparison of `require` that is false for the dims."""
    if not is_list(required):
        return
    for i, text in enumerate(required):
        key = ("require", i)
        expression = read_expression(text, key)
        term = expression.term
        if not operates(term, COMPARISONS):
            raise invalid(key, f"{text!r} is not a comparison; write one of dims, such as M >= S")
        try:
            first, second = (static.evaluate(Expression(expression.text, end), dims, mesh) for end in term.operands)
        except SyntaxFault as fault:
            raise InvalidExperiment(located(key, expression.text, fault)) from None
        if not BY_NAME[term.operation].python(first, second):
            read = dict.fromkeys(names(term))
            sizes = [f"{name} is {dims[name]}" for name in read if name in dims]
            raise invalid(key, f"{expression.text} does not hold" + (f": {listed(sizes)}" if sizes else ""))


def read_verify_dims(config: Mapping[str, Any], dims: Mapping[str, int]) -> dict[str, int]:
    smaller: dict[str, int] = {}
    for name, value in config.items():
        key = ("verify_dims", name)
        if name not in dims:
            raise _no_dim(name, key, dims)
        smaller[name] = _dim(name, value, key, dims)
    return smaller


def read_show(show: object, names: Iterable[str]) -> str | tuple[str, ...]:
    """One of the words, or the names of arrays and outputs to show."""
    known = (MESH, *names)
    if isinstance(show, str):
        if show in WORDS or show in known:
            return show if show in WORDS else (show,)
        raise invalid(
            ("show",), f"nothing is called '{show}'{nearest(show, (*WORDS, *known)) or choices((*WORDS, *known))}"
        )
    if not is_list(show):
        raise invalid(("show",), f"{show!r} is not the name of an array or output{yaml_hint(show)}{choices(WORDS)}")
    for i, name in enumerate(show):
        if name not in known:
            hint = yaml_hint(name) or nearest(str(name), known) or choices(known)
            raise invalid(("show", i), f"no array or output is called {name!r}{hint}")
    return tuple(show)


def rectangular(value: Any, key: Key) -> tuple[int, ...]:
    """The shape of a number or nested list of numbers. Raises `InvalidExperiment` if it is ragged."""
    if not is_list(value):
        if not isinstance(value, bool | int | float):
            raise invalid(key, f"{value!r} is not a number")
        return ()
    shapes = [rectangular(entry, (*key, i)) for i, entry in enumerate(value)]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise invalid((*key, i), f"the rows have different shapes: {list(shapes[0])} and {list(shape)}")
    return (len(value), *(shapes[0] if shapes else ()))


def size_text(shape: tuple[int, ...]) -> str:
    """`4 × 4 = 16`, for messages."""
    return " × ".join(map(str, shape)) + (f" = {math.prod(shape)}" if len(shape) > 1 else "") if shape else "1"
