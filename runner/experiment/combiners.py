"""An expression that names functions which combine two values in; the same with a lambda in the place of each, out."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from runner.experiment.frames import Place
from runner.experiment.functions import Function
from runner.experiment.plain import read_expression
from runner.faults import Fault, InvalidExperiment
from runner.language import trees
from runner.language.operations import combination
from runner.untyped import is_mapping


def combined(tree: ast.expr, functions: Mapping[str, Function], place: Place) -> ast.expr:
    """`associative_scan(combine, …)` with what `combine` says in its place."""
    for node in trees.nodes(tree):
        if not isinstance(node, ast.Call):
            continue
        named = combination(node)
        if isinstance(named, ast.Name) and named.id in functions:
            made = _lambda(functions[named.id], named, functions, place)
            return combined(trees.swapped(tree, named, made), functions, place)
    return tree


def _lambda(function: Function, named: ast.Name, functions: Mapping[str, Function], place: Place) -> ast.Lambda:
    if len(function.parameters) != 2:
        count = len(function.parameters)
        message = f"what combines two values has two parameters; {function} has {count}"
        raise place.fault(message, named)
    known: dict[str, ast.expr] = {}
    section = place.scope.section
    for line in (*function.body(section), function.result(section)):
        key = line.key
        if is_mapping(line.value) or len(line.names) != 1:
            message = f"'{function.name}' combines two values, and so has neither repeats nor lines of several names"
            raise InvalidExperiment(Fault(key, message, uses=(place.key, *place.frame.uses)))
        body = _Inlined(known).visit(read_expression(line.value, key).tree)
        calls = [
            part.func.id for part in ast.walk(body) if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)
        ]
        inner = next((name for name in calls if name in functions), None)
        if inner is not None:
            message = f"'{function.name}' combines two values, and so cannot call the function '{inner}'"
            raise InvalidExperiment(Fault(key, message, uses=(place.key, *place.frame.uses)))
        known[line.names[0]] = body
    parameters = [ast.arg(name) for name in function.parameters]
    arguments = ast.arguments(posonlyargs=[], args=parameters, kwonlyargs=[], kw_defaults=[], defaults=[])
    made = ast.Lambda(arguments, known["result"])
    for part in ast.walk(made):
        # It stands where its name does, for messages.
        if isinstance(part, ast.expr):
            ast.copy_location(part, named)
    return made


class _Inlined(ast.NodeTransformer):
    """Lines of a function in the place of their names; builds new nodes."""

    def __init__(self, known: Mapping[str, ast.expr]) -> None:
        self._known = known

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return type(node)(**trees.fields(node, self.visit))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._known.get(node.id) or ast.Name(node.id, ast.Load())
