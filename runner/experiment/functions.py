"""Reads the experiment's functions, and checks everything that can be checked without a call."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from runner.base.faults import InvalidExperiment, Key, invalid
from runner.base.lazy import dataclass
from runner.base.untyped import is_list, is_mapping
from runner.experiment.plain import check_name, located
from runner.experiment.remat import read_checkpoint
from runner.experiment.traced import TracedLines
from runner.experiment.written import WrittenLine, all_names, is_choice, of, targets
from runner.graph.language.forms import CALLING
from runner.graph.language.lines import value_of
from runner.graph.language.operations import CONSTANTS, OPERATIONS
from runner.graph.language.operators import COMPARISONS
from runner.graph.language.syntax import SyntaxFault, fault_in, header, on_one_line, parse
from runner.graph.model import literal
from runner.graph.source import Checkpoint, Section
from runner.graph.term import NOTHING, Apply, Name, Term, bare, calls, children, elements, heads, operates, within

RESULT = "result"
"""The name of the line that says what a function returns."""

CHECKPOINT = "checkpoint"
"""The key with a function's checkpoint policy."""

_SHOWN = 100
"""The number of characters of an invalid signature that a message shows."""

_FORM = "write NAME(x, y): EXPRESSION, or NAME: {of: [x, y], result: EXPRESSION}"


@dataclass(frozen=True)
class DefinedFunction:
    """A function of the experiment.

    - `signature`: its parameters; those with a default may be omitted in a call.
    - `lines`: as the YAML has them, including `result`; `alone`: whether `result` is the only line.
    - `checkpoint`: what of a call is kept for the backward pass; None: everything.
    - `captured`: the arrays of the experiment that its lines read, or those of a function that it calls.
    - `traced`: the lines of a function that was read from Python, in the place of `lines`.
    """

    name: str
    signature: inspect.Signature
    lines: Mapping[str, Any]
    key: Key
    alone: bool
    checkpoint: Checkpoint | None = None
    captured: tuple[str, ...] = ()
    traced: TracedLines | None = None

    @classmethod
    def traced_as(cls, name: str, lines: TracedLines) -> DefinedFunction:
        """The function of this name with lines that were read from Python."""
        parameters = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in lines.parameters]
        return cls(name, inspect.Signature(parameters), {}, ("functions", name), alone=False, traced=lines)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its parameters, without what it captures."""
        return tuple(self.signature.parameters)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its parameters and of the arrays that it captures."""
        return (*self.parameters, *self.captured)

    def body(self, section: Section) -> list[WrittenLine]:
        """Its lines without the last, in a section."""
        rest = {name: value for name, value in self.lines.items() if name != RESULT}
        return of(rest, self.key, section, shared=True)

    def result(self, section: Section) -> WrittenLine:
        """The line with its result, in a section."""
        written = of({RESULT: self.lines[RESULT]}, self.key, section, shared=True)
        if not written:
            raise invalid((*self.key, RESULT), f"the function '{self.name}' has no result in {section}")
        (line,) = written
        return replace(line, key=(*self.key, *line.key[len(self.key) + 1 :])) if self.alone else line

    @cached_property
    def bound_in_repeats(self) -> frozenset[str]:
        """The names that its repeats define inside, which would hide an argument of that name."""
        return frozenset(_inside(self.lines.values())) if self.traced is None else self.traced.bound_in_loops

    @cached_property
    def own(self) -> frozenset[str]:
        """Every name that it binds to a value of its own: parameters, lines, and what its repeats define."""
        if self.traced is not None:
            return self.traced.names
        return frozenset({*self.parameters, *self.bound_in_repeats, *(name for name, _ in all_names(self.lines, ()))})

    @property
    def differs(self) -> bool:
        """Whether the sections have different versions of some line."""
        return any(map(is_choice, self.lines.values()))

    def __str__(self) -> str:
        return f"{self.name}{self.signature}"


def _inside(values: Any) -> Iterator[str]:
    for value in values:
        if not is_mapping(value):
            continue
        if is_choice(value):
            yield from _inside(value.values())
            continue
        carry, over, body = (value.get(entry) for entry in ("carry", "over", "body"))
        yield str(value.get("index", "i"))
        yield from map(str, (*(carry if is_mapping(carry) else ()), *(over if is_mapping(over) else ())))
        if is_mapping(body):
            yield from (name for name, _ in all_names(body, ()))
            yield from _inside(body.values())


def read_functions(
    config: Mapping[str, Any], taken: Mapping[str, str], arrays: Collection[str]
) -> dict[str, DefinedFunction]:
    """The functions by their names. `taken` maps names with another meaning to that meaning.

    A function may read the `arrays` of the experiment, as a Python function reads what is around it.
    """
    functions: dict[str, DefinedFunction] = {}
    for written, value in config.items():
        key = ("functions", written)
        function = _read(written, value, key)
        if function.name in functions:
            raise invalid(key, f"the function '{function.name}' appears twice")
        what = "an operation" if function.name in (*OPERATIONS, *CALLING) else taken.get(function.name)
        if what is not None:
            raise invalid(key, f"'{function.name}' is {what} already; a name means one thing")
        _check_names(function, taken)
        functions[function.name] = function
    for function in functions.values():
        for name in (*function.parameters, *(name for name, _ in all_names(function.lines, ()))):
            if name in functions:
                raise invalid(function.key, f"'{name}' is a function already; a name means one thing")
    return _capturing(functions, arrays)


def _capturing(functions: Mapping[str, DefinedFunction], arrays: Collection[str]) -> dict[str, DefinedFunction]:
    """Return the functions with the arrays that each captures, in the order of the arrays."""
    read = {name: set(_names_in(function.lines)) - function.own for name, function in functions.items()}
    called = {name: [other for other in names if other in functions] for name, names in read.items()}
    changed = True
    while changed:
        changed = False
        for name, others in called.items():
            more = {array for other in others for array in read[other] if array in arrays} - read[name]
            read[name] |= more
            changed = changed or bool(more)
    return {
        name: replace(function, captured=tuple(array for array in arrays if array in read[name]))
        for name, function in functions.items()
    }


def terms_in(value: Any, section: Section | None = None) -> Iterator[Term]:
    """Yield the terms of the expressions in lines, which may be repeats.

    `section`: where a line differs between the sections, only its expression there counts.
    """
    if section is not None and is_choice(value):
        value = value.get(section)
    if is_mapping(value):
        for part in value.values():
            yield from terms_in(part, section)
    elif isinstance(value, str):
        try:
            term = parse(value).term
        except SyntaxFault:
            # The reader of the line reports it.
            return
        yield term


def _names_in(value: Any) -> Iterator[str]:
    """Yield the names of values and functions in the expressions of lines."""
    for term in terms_in(value):
        yield from heads(term)
        yield from (part.operation for part in within(term) if calls(part))


def _read(written: object, value: Any, key: Key) -> DefinedFunction:
    if not isinstance(written, str):
        raise invalid(key, f"{written!r} is not a function; {_FORM}")
    mapping = is_mapping(value) and not is_choice(value)
    lines: dict[str, Any] = {**value} if is_mapping(value) and mapping else {RESULT: value}
    name, parenthesis, _ = written.partition("(")
    check_name(name.strip(), key)
    if parenthesis:
        if "of" in lines:
            raise invalid((*key, "of"), f"'{name}' has its parameters in parentheses already; leave out 'of'")
        signature = _signature(written, key)
    else:
        if "of" not in lines:
            raise invalid(key, f"the function '{name}' has no parameters; {_FORM}")
        of_ = lines.pop("of")
        parameters: list[Any] = of_ if is_list(of_) else [of_]
        signature = _signature(f"{name}({', '.join(map(str, parameters))})", (*key, "of"))
    checkpoint = read_checkpoint(lines.pop(CHECKPOINT, None), (*key, CHECKPOINT))
    if RESULT not in lines:
        raise invalid(key, f"the function '{name.strip()}' has no '{RESULT}', the line with its value")
    return DefinedFunction(name.strip(), signature, lines, key, not mapping, checkpoint)


def _signature(text: str, key: Key) -> inspect.Signature:
    text = on_one_line(text)
    try:
        given = header(text)
    except SyntaxFault as fault:
        raise invalid(key, fault.message) from None
    if given is None:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise invalid(key, f"'{shown}' is not a name with parameters; {_FORM}")
    parameters: dict[str, inspect.Parameter] = {}
    for name, default in given:
        try:
            value = inspect.Parameter.empty if default is None else value_of(parse(default).term, _SIGNS)
        except (SyntaxFault, ValueError):
            raise invalid(key, f"the default '{default}' is not a number, a text, or a tuple of them") from None
        check_name(name, key)
        if name in parameters:
            raise invalid(key, f"the parameter '{name}' appears twice; a name means one thing")
        parameters[name] = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=value)
    return inspect.Signature(list(parameters.values()))


_SIGNS = ("negative", "positive")
"""The operators that a default may have."""


def _check_names(function: DefinedFunction, taken: Mapping[str, str]) -> None:
    for name in function.parameters:
        if taken.get(name) == "a dim":
            raise invalid(function.key, f"'{name}' is a dim already; a name means one thing")
    for written in function.lines:
        for name in targets(written, (*function.key, written)):
            key = (*function.key, written)
            if name in function.parameters:
                raise invalid(key, f"'{name}' is a parameter already; a name means one thing")
            if taken.get(name) == "a dim":
                raise invalid(key, f"'{name}' is a dim already; a name means one thing")


def bind(function: DefinedFunction, call: Apply, key: Key, text: str, uses: tuple[Key, ...]) -> dict[str, Term]:
    """The argument of each parameter, with defaults, and the arrays that the function captures.

    Raises `InvalidExperiment` if the arguments do not fit.
    """
    try:
        bound = function.signature.bind(*call.operands, **dict(call.named))
    except TypeError as error:
        message = f"{function.name}(): {error}; it takes {function.signature}"
        raise InvalidExperiment(located(key, text, fault_in(text, message, call.at), uses)) from None
    arguments: dict[str, Term] = {
        name: bound.arguments[name] if name in bound.arguments else parse(repr(parameter.default)).term
        for name, parameter in function.signature.parameters.items()
    }
    return arguments | {name: Name(name, call.at) for name in function.captured}


def is_static(term: Term, dims: Mapping[str, int]) -> bool:
    """Whether an argument is static: numbers, texts, dims, and tuples and arithmetic of them."""
    name, parts = bare(term), elements(term)
    if name is not None:
        return name in dims or name in CONSTANTS
    if parts is None and not (operates(term) and term.operation not in COMPARISONS):
        return literal(term) is not None or term == NOTHING
    return all(is_static(part, dims) for part in children(term))
