"""Replaces the names of functions that combine two values by lambdas."""

from __future__ import annotations

from collections.abc import Mapping

from runner.base.faults import Fault, InvalidExperiment
from runner.base.untyped import is_mapping
from runner.experiment.frames import Place
from runner.experiment.functions import DefinedFunction
from runner.experiment.plain import read_expression
from runner.graph.language.operations import combination
from runner.graph.term import Lambda, Term, bare, calls, mapped_outside, placed, substituted, swapped, within


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
