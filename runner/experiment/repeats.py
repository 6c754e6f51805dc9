"""Reads what a line runs several times: the keys and steps of a repeat, and functions that combine two values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runner.base.faults import Fault, InvalidExperiment, Key, invalid
from runner.base.untyped import is_mapping
from runner.experiment.forms import FORMS, IDENTIFIER, check
from runner.experiment.frames import Place, ReadingFrame
from runner.experiment.functions import DefinedFunction
from runner.experiment.plain import check_name, read_expression, read_size
from runner.graph.language import static
from runner.graph.language.check import VisibleNames
from runner.graph.language.operations import combination
from runner.graph.language.printing import text
from runner.graph.language.syntax import Expression, SyntaxFault
from runner.graph.term import Lambda, Term, bare, calls, mapped_outside, placed, substituted, swapped, within


def read_steps(
    config: Mapping[str, Any], frame: ReadingFrame, key: Key, dims: Mapping[str, int], scope: VisibleNames
) -> tuple[int | None, frozenset[str]]:
    """The number of steps, and the lines that compute it; that of a `while` is not known."""
    if "repeat" not in config:
        return None, frozenset()
    value, at = config["repeat"], (*key, "repeat")
    if isinstance(value, str) and scope.parameters and scope.values & read_expression(value, at).names:
        # Its value is known where the function is called.
        return 1, frozenset()
    if isinstance(value, str) and frame.statics:
        value = text(substituted(read_expression(value, at).term, frame.statics.get))
    sizes = {**dims, **scope.static}
    if isinstance(value, str) and IDENTIFIER.match(value) and value not in sizes and value in scope.values:
        message = (
            f"no dim '{value}'; the number of steps cannot depend on arrays: write it with integers, dims, or lines of "
            "these"
        )
        raise InvalidExperiment(replace(invalid(at, message).fault, uses=frame.uses))
    try:
        steps = read_size(value, at, sizes, scope.mesh if scope.section == "per_device" else None)
    except InvalidExperiment as error:
        raise InvalidExperiment(replace(error.fault, uses=frame.uses)) from None
    least = 1 if config.get("over") or config.get("stack") else 0
    if steps < least:
        raise invalid(at, f"the repeat '{key[-1]}' has {steps} steps{'; a scan has at least one' if least else ''}")
    read = read_expression(value, at).names if isinstance(value, str) else frozenset[str]()
    return steps, read & scope.static.keys()


def known_without_arrays(expression: Expression, scope: VisibleNames) -> int | None:
    """The integer value of a line that depends on sizes alone; None for others."""
    mesh = scope.mesh if scope.section == "per_device" else None
    try:
        return static.evaluate(expression, {**scope.sizes, **scope.static}, mesh)
    except SyntaxFault:
        return None


def check_repeat(config: Mapping[str, Any], key: Key, name: str, dims: Mapping[str, int]) -> None:
    """Raise `InvalidExperiment` for invalid keys and names of a repeat or a `while`."""
    check(config, key, FORMS["while" if "while" in config else "repeat"], name)
    _check_names(config, key, dims)
    going, carry = config.get("while"), config.get("carry", {})
    if going is not None and going not in carry:
        message = f"'{going}' is not carried; the carried value of that name says whether another step is taken"
        raise invalid((*key, "while"), message)
    if going is not None and going not in config["body"]:
        raise invalid((*key, "while"), f"the body has no line '{going}', so the while would never end")


def _check_names(config: Mapping[str, Any], key: Key, dims: Mapping[str, int]) -> None:
    # The names of the body are checked where its lines are read.
    carry, over, stack = (config.get(entry, {}) for entry in ("carry", "over", "stack"))
    indices = [config.get("index", "i")] if "repeat" in config else []
    given = [*((n, "index") for n in indices), *((n, "carry") for n in carry), *((n, "over") for n in over)]
    for inner, where in [*given, *((n, "stack") for n in stack)]:
        check_name(inner, (*key, where))
        if inner in dims:
            raise invalid((*key, where), f"'{inner}' is a dim already; a name means one thing")
    for inner in config["body"]:
        if inner in dims:
            raise invalid((*key, "body"), f"'{inner}' is a dim already; a name means one thing")
    for index in indices:
        if index in carry or index in over or index in config["body"]:
            raise invalid((*key, "index"), f"'{index}' counts the steps and cannot be assigned")
    for name in over:
        if name in carry:
            raise invalid((*key, "over", name), f"'{name}' is carried already; a name means one thing")
        if name in config["body"]:
            raise invalid((*key, "body", name), f"'{name}' is a slice in each step; choose another name")
    for name in stack:
        if name in carry:
            raise invalid((*key, "stack", name), f"'{name}' is carried already; give the stacked values another name")


def combined(term: Term, functions: Mapping[str, DefinedFunction], place: Place) -> Term:
    """`associative_scan(combine, …)` with the body of `combine` in its place."""
    if calls(term):
        function = combination(term.operation, term.operands, term.named)
        name = bare(function)
        if function is not None and name is not None and name in functions:
            term = swapped(term, function, _lambda(functions[name], function, functions, place))
    return mapped_outside(term, lambda part: combined(part, functions, place))


def _lambda(function: DefinedFunction, named: Term, functions: Mapping[str, DefinedFunction], place: Place) -> Lambda:
    if len(function.parameters) != 2:
        count = len(function.parameters)
        message = f"a function that combines two values has two parameters; {function} has {count}"
        raise place.fault(message, named)
    if function.captured:
        message = (
            f"a function that combines two values reads nothing else; '{function.name}' reads '{function.captured[0]}'"
        )
        raise place.fault(message, named)
    known: dict[str, Term] = {}
    section = place.scope.section
    for line in (*function.body(section), function.result(section)):
        key = line.key
        if is_mapping(line.value) or len(line.names) != 1:
            message = f"'{function.name}' combines two values: it cannot have repeats, or lines with several names"
            raise InvalidExperiment(Fault(key, message, uses=(place.key, *place.frame.uses)))
        body = substituted(read_expression(line.value, key).term, known.get)
        inner = next((part.operation for part in within(body) if calls(part, functions)), None)
        if inner is not None:
            message = f"'{function.name}' combines two values: it cannot call the function '{inner}'"
            raise InvalidExperiment(Fault(key, message, uses=(place.key, *place.frame.uses)))
        known[line.names[0]] = body
    # It has the columns of the name, so that messages point there.
    return Lambda(function.parameters, placed(known["result"], named.at), named.at)
