"""The functions of an experiment as the YAML has them in; the same, checked as far as no call is needed, out."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from runner.experiment.checkpoints import read_checkpoint
from runner.experiment.lines import Checkpoint
from runner.experiment.plain import check_name, located
from runner.experiment.written import Written, all_names, is_choice, of, targets
from runner.faults import InvalidExperiment, Key, invalid
from runner.graph.source import Section
from runner.language.forms import CALLING
from runner.language.operations import CONSTANTS, OPERATIONS
from runner.language.syntax import SyntaxFault, on_one_line, span
from runner.untyped import is_list, is_mapping

RESULT = "result"
"""The name of the line that says what a function gives."""

CHECKPOINT = "checkpoint"
"""The key that says what is kept of a function for the backward pass."""

_SHOWN = 100
"""How much of what is no signature a message has."""

_FORM = "write NAME(x, y): EXPRESSION, or NAME: {of: [x, y], result: EXPRESSION}"


@dataclass(frozen=True)
class Function:
    """One function.

    - `signature`: its parameters, of which those with a default may be left out of a call.
    - `lines`: as the YAML has them, among them `result`, which `alone` is all that there is.
    - `checkpoint`: what is kept of a call for the backward pass; None: everything.
    """

    name: str
    signature: inspect.Signature
    lines: Mapping[str, Any]
    key: Key
    alone: bool
    checkpoint: Checkpoint | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of what it is called with."""
        return tuple(self.signature.parameters)

    def body(self, section: Section) -> list[Written]:
        """Its lines in a section, but for the last."""
        rest = {name: value for name, value in self.lines.items() if name != RESULT}
        return of(rest, self.key, section, shared=True)

    def result(self, section: Section) -> Written:
        """The line that says what it gives."""
        found = of({RESULT: self.lines[RESULT]}, self.key, section, shared=True)
        if not found:
            raise invalid((*self.key, RESULT), f"the function '{self.name}' gives nothing in {section}")
        (line,) = found
        return replace(line, key=(*self.key, *line.key[len(self.key) + 1 :])) if self.alone else line

    @cached_property
    def bound_in_repeats(self) -> frozenset[str]:
        """The names that its repeats give values to inside them, which an argument of that name would be hidden by."""
        return frozenset(_inside(self.lines.values()))

    @cached_property
    def own(self) -> frozenset[str]:
        """Every name that it has."""
        return frozenset({*self.parameters, *self.bound_in_repeats, *(name for name, _ in all_names(self.lines, ()))})

    @property
    def differs(self) -> bool:
        """Whether some line of it is another one in each section."""
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


def read_functions(config: Mapping[str, Any], taken: Mapping[str, str]) -> dict[str, Function]:
    """The functions by their names. `taken` says what the names are that mean something else already."""
    found: dict[str, Function] = {}
    for written, value in config.items():
        key = ("functions", written)
        function = _read(written, value, key)
        if function.name in found:
            raise invalid(key, f"the function '{function.name}' stands twice")
        what = "an operation" if function.name in (*OPERATIONS, *CALLING) else taken.get(function.name)
        if what is not None:
            raise invalid(key, f"'{function.name}' is {what} already; a name means one thing")
        _check_names(function, taken)
        found[function.name] = function
    for function in found.values():
        for name in (*function.parameters, *(name for name, _ in all_names(function.lines, ()))):
            if name in found:
                raise invalid(function.key, f"'{name}' is a function already; a name means one thing")
    return found


def _read(written: object, value: Any, key: Key) -> Function:
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
            raise invalid(key, f"the function '{name}' does not say what it is of; {_FORM}")
        of_ = lines.pop("of")
        parameters: list[Any] = of_ if is_list(of_) else [of_]
        signature = _signature(f"{name}({', '.join(map(str, parameters))})", (*key, "of"))
    checkpoint = read_checkpoint(lines.pop(CHECKPOINT, None), (*key, CHECKPOINT))
    if RESULT not in lines:
        raise invalid(key, f"the function '{name.strip()}' has no '{RESULT}': the line that says what it gives")
    return Function(name.strip(), signature, lines, key, not mapping, checkpoint)


def _signature(text: str, key: Key) -> inspect.Signature:
    text = on_one_line(text)
    try:
        (function,) = ast.parse(f"def {text}: pass").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # A ValueError of several statements too.
        function = None
    match function:
        case ast.FunctionDef(returns=None, body=[ast.Pass()]):
            pass
        case _:
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
            raise invalid(key, f"'{shown}' is not a name with parameters; {_FORM}")
    arguments = function.args
    given = arguments.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
        raise invalid(key, "a function has parameters by their names, no '*' and no '/'")
    defaults: list[Any] = [inspect.Parameter.empty] * (len(given) - len(arguments.defaults))
    for default in arguments.defaults:
        try:
            defaults.append(_default(default))
        except (ValueError, TypeError, RecursionError, MemoryError):
            message = f"the default '{ast.unparse(default)}' is not a number, a text, or a tuple of them"
            raise invalid(key, message) from None
    parameters: list[inspect.Parameter] = []
    for position, (parameter, default) in enumerate(zip(given, defaults, strict=True)):
        check_name(parameter.arg, key)
        if any(parameter.arg == earlier.arg for earlier in given[:position]):
            raise invalid(key, f"the parameter '{parameter.arg}' stands twice; a name means one thing")
        parameters.append(inspect.Parameter(parameter.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default))
    return inspect.Signature(parameters)


def _default(node: ast.expr) -> Any:
    """The value of a parameter that a call leaves out. Raises `ValueError` for what an expression cannot have."""
    value = ast.literal_eval(node)
    for part in ast.walk(node):
        if isinstance(part, ast.Dict | ast.Set | ast.JoinedStr) or (
            isinstance(part, ast.Constant) and isinstance(part.value, bytes)
        ):
            raise ValueError(ast.unparse(node))
    return value


def _check_names(function: Function, taken: Mapping[str, str]) -> None:
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


def bind(function: Function, call: ast.Call, key: Key, text: str, uses: tuple[Key, ...]) -> dict[str, ast.expr]:
    """The argument of each parameter, defaults too. Raises `InvalidExperiment` where they do not fit."""
    try:
        bound = function.signature.bind(*call.args, **{str(k.arg): k.value for k in call.keywords})
    except TypeError as error:
        message = f"{function.name}(): {error}; it takes {function.signature}"
        raise InvalidExperiment(located(key, text, at(text, message, call), uses)) from None
    found: dict[str, ast.expr] = {}
    for name, parameter in function.signature.parameters.items():
        given = bound.arguments.get(name)
        found[name] = given if given is not None else ast.parse(repr(parameter.default), mode="eval").body
    return found


def at(text: str, message: str, node: ast.AST) -> SyntaxFault:
    """A fault at a node of the expression `text`."""
    return SyntaxFault(message, *span(text, node))


def is_static(tree: ast.expr, dims: Mapping[str, int]) -> bool:
    """Whether an argument is known without arrays: numbers, texts, dims, and tuples and arithmetic of them."""
    match tree:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name in dims or name in CONSTANTS
        case ast.UnaryOp(operand=operand):
            return is_static(operand, dims)
        case ast.BinOp(left=left, right=right):
            return is_static(left, dims) and is_static(right, dims)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return all(is_static(element, dims) for element in elements)
        case _:
            return False
