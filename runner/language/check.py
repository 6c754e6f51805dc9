"""A parsed expression and the names that stand before it in; nothing out, or the fault that is known without JAX."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from runner.faults import nearest
from runner.graph.source import Section
from runner.language.forms import CALLING
from runner.language.operations import COMPUTATIONS, CONSTANTS, OPERATIONS, OUTSIDE, PADDINGS, Operation
from runner.language.syntax import AT_ALONE, Expression
from runner.layout import Mesh


@dataclass
class Scope:
    """The names that an expression may use.

    - `values`: arrays and earlier nodes; `sizes`: the dims; `loops`: the carries of earlier repeats.
    - `later`: names that stand further down, for the message about order.
    - `static`: the earlier lines that are integers, known without arrays.
    - `parameters`: those of a function that is read by itself, of which nobody knows yet what they stand for.
    - `functions`: the experiment's own, each call of which has become its lines already.
    """

    section: Section
    mesh: Mesh
    values: set[str] = field(default_factory=set[str])
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    loops: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    later: Mapping[str, Expression | None] = field(default_factory=dict[str, Expression | None])
    static: dict[str, int] = field(default_factory=dict[str, int])
    parameters: frozenset[str] = frozenset()
    functions: tuple[str, ...] = ()
    lengths: dict[str, int] = field(default_factory=dict[str, int])

    def nested(self) -> Scope:
        """A copy to which the names of a loop's body can be added."""
        return replace(
            self,
            values=set(self.values),
            loops=dict(self.loops),
            static=dict(self.static),
            lengths=dict(self.lengths),
        )


def check(expression: Expression, scope: Scope) -> None:
    """Raise `SyntaxFault` for a name, an operation, an argument or a mesh axis that does not exist."""
    _check(expression, expression.tree, scope)


def canonical(expression: Expression) -> Expression:
    """The expression as both JAX and the oracle read it alike.

    The lists among the arguments of collectives become tuples, since JAX wants them hashable; random values get the
    dtype that the table gives them, since JAX's own default depends on whether 64 bits are switched on.
    """
    for call in ast.walk(expression.tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            operation = OPERATIONS.get(call.func.id)
            if operation is not None and operation.random and "dtype='" in operation.arguments:
                _name_dtype(call, operation.signature)
            if operation is not None and operation.over is not None:
                first = 1 if operation.arguments.startswith("x") else 0
                call.args[first:] = [_tupled(argument) for argument in call.args[first:]]
                for keyword in call.keywords:
                    keyword.value = _tupled(keyword.value)
    return expression


def _name_dtype(call: ast.Call, signature: inspect.Signature) -> None:
    position = list(signature.parameters).index("dtype")
    if len(call.args) <= position and all(keyword.arg != "dtype" for keyword in call.keywords):
        default = ast.copy_location(ast.Constant(signature.parameters["dtype"].default), call)
        call.keywords.append(ast.copy_location(ast.keyword("dtype", default), call))


def _tupled(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.List | ast.Tuple):
        return ast.copy_location(ast.Tuple([_tupled(element) for element in node.elts]), node)
    return node


def _check(expression: Expression, node: ast.AST, scope: Scope) -> None:
    match node:
        case ast.Name(id=name):
            _check_name(expression, node, name, scope)
        case ast.Attribute(value=ast.Name(id=name), attr=carry) if name in scope.loops:
            if carry not in scope.loops[name]:
                if name == "grad":
                    raise expression.fault(
                        f"there is no gradient of '{carry}'{nearest(carry, scope.loops[name])}; "
                        f"grad.wrt names {', '.join(scope.loops[name])}",
                        node,
                    )
                raise expression.fault(
                    f"the repeat '{name}' carries no '{carry}'; it carries {', '.join(scope.loops[name])}", node
                )
        case ast.Attribute(value=value, attr=attribute):
            if attribute != "T" and isinstance(value, ast.Name) and value.id == "grad":
                message = f"there are no gradients: grad: {{of: LOSS, wrt: [{attribute}]}} says what is differentiated"
                raise expression.fault(message, node)
            if attribute == "at":
                raise expression.fault(AT_ALONE, node)
            if attribute != "T":
                raise expression.fault(
                    f"attribute '.{attribute}' is not part of the language; only .T and the carries of a repeat are",
                    node,
                )
            _check(expression, value, scope)
        case ast.Lambda():
            _check_lambda(expression, node, scope)
        case ast.Call(func=ast.Name(id=name) as function):
            _check_call(expression, node, name, function, scope)
        case _:
            for child in ast.iter_child_nodes(node):
                _check(expression, child, scope)


def _check_name(expression: Expression, node: ast.Name, name: str, scope: Scope) -> None:
    if name in scope.values or name in scope.sizes or name in CONSTANTS:
        return
    if name in scope.loops:
        carries = ", ".join(f"{name}.{carry}" for carry in scope.loops[name])
        raise expression.fault(f"'{name}' is a repeat; its results are {carries}", node)
    if name in scope.later:
        raise expression.fault(f"'{name}' is used before it stands; the lines run in order, so move it up", node)
    if name in OPERATIONS:
        raise expression.fault(f"'{name}' is an operation; call it: {name}(…)", node)
    known = sorted({*scope.values, *scope.sizes, *scope.loops})
    raise expression.fault(f"no array, dim or earlier name '{name}'{nearest(name, known) or _names(known)}", node)


def _names(known: list[str]) -> str:
    return f"; there are {', '.join(known)}" if known and len(known) <= 12 else ""


def _check_call(expression: Expression, node: ast.Call, name: str, function: ast.Name, scope: Scope) -> None:
    operation = OPERATIONS.get(name)
    if operation is None and name in CALLING:
        raise expression.fault(f"'{name}' cannot stand in a function that combines two values", function)
    if operation is None:
        what = "operation or function" if scope.functions else "operation"
        known = (name for name in OPERATIONS if name.isidentifier())
        raise expression.fault(f"no {what} '{name}'{nearest(name, (*scope.functions, *CALLING, *known))}", function)
    if scope.section == "graph" and operation.over is not None:
        raise expression.fault(
            f"'{name}' is a collective; graph computes on whole arrays and has none; it belongs in per_device", function
        )
    for child in (*node.args, *node.keywords):
        _check(expression, child, scope)
    try:
        bound = operation.signature.bind(*node.args, **{str(k.arg): k.value for k in node.keywords})
    except TypeError as error:
        raise expression.fault(f"{name}(): {error}; it takes ({_arguments(operation.signature)})", node) from None
    if "axis_name" in bound.arguments:
        _check_axes(expression, bound.arguments["axis_name"], scope)
    if operation.function is not None:
        _check_function(expression, bound.arguments[operation.function], operation)
    if "to" in bound.arguments and operation.over is not None and not _is_parameter(bound.arguments["to"], scope):
        _check_choice(expression, bound.arguments["to"], "argument 'to'", operation.over.to)
    if operation.method is not None and not _is_none(bound.arguments.get("mode")):
        _check_choice(expression, bound.arguments["mode"], "mode", OUTSIDE)
    padding = bound.arguments.get("padding")
    if isinstance(padding, ast.Constant):
        _check_choice(expression, padding, "padding", PADDINGS, " or a pair of integers for each dimension")


def _check_function(expression: Expression, node: ast.expr, operation: Operation) -> None:
    otherwise = ""
    if operation.combines:
        if isinstance(node, ast.Lambda):
            return
        otherwise = ", a function of the experiment's own of two parameters, or a lambda of two"
    _check_choice(expression, node, str(operation.function), COMPUTATIONS, otherwise)


def _check_lambda(expression: Expression, node: ast.Lambda, scope: Scope) -> None:
    """What combines two values reads them and the dims, and nothing else."""
    own = [each.arg for each in node.args.args]
    for name in own:
        if name in scope.sizes or name in CONSTANTS:
            raise expression.fault(f"'{name}' is a dim already; a name means one thing", node)
    for part in ast.walk(node.body):
        operation = (
            OPERATIONS.get(part.func.id) if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) else None
        )
        if operation is not None and (operation.over is not None or operation.random or operation.function):
            raise expression.fault(f"'{operation.name}' cannot stand in a function that combines two values", part)
    inside = replace(scope, values={*own, *scope.parameters}, loops={}, later={})
    _check(expression, node.body, inside)


def _check_choice(
    expression: Expression, node: ast.expr, argument: str, choices: Iterable[str], otherwise: str = ""
) -> None:
    if not (isinstance(node, ast.Constant) and node.value in tuple(choices)):
        raise expression.fault(f"the {argument} is one of {', '.join(map(repr, choices))}{otherwise}", node)


def _is_none(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def _arguments(signature: inspect.Signature) -> str:
    return str(signature).removeprefix("(").removesuffix(")")


def _is_parameter(node: ast.expr, scope: Scope) -> bool:
    return isinstance(node, ast.Name) and node.id in scope.parameters


def _check_axes(expression: Expression, node: ast.expr, scope: Scope) -> None:
    mesh = scope.mesh
    if _is_parameter(node, scope):
        return
    if isinstance(node, ast.Tuple | ast.List):
        for element in node.elts:
            _check_axes(expression, element, scope)
        axes = [element.value for element in node.elts if isinstance(element, ast.Constant)]
        if len(set(axes)) < len(axes):
            raise expression.fault("a mesh axis stands twice", node)
        return
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        raise expression.fault("the axis_name must be a mesh axis in quotes, or a tuple of them", node)
    if node.value not in mesh.axes:
        raise expression.fault(missing_axis(node.value, mesh), node)


def missing_axis(axis: object, mesh: Mesh) -> str:
    """The message for a mesh axis that is not there, or that `per_device` leaves to the compiler."""
    if axis in mesh.automatic:
        manual = ", ".join(mesh.axes)
        return f"mesh axis '{axis}' is automatic here: per_device is manual over {manual} (manual: [{manual}])"
    return f"mesh axis '{axis}' does not exist; the mesh has {', '.join(mesh.axes)}"
