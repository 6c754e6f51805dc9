"""Checks a parsed expression against the names in scope, without JAX."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from runner.base.faults import nearest
from runner.base.layout import Mesh
from runner.base.lazy import dataclass
from runner.graph.language import jax_spellings
from runner.graph.language.forms import CALLING
from runner.graph.language.operations import COMPUTATIONS, CONSTANTS, OPERATIONS, OUTSIDE, PADDINGS, Operation
from runner.graph.language.syntax import AT_ALONE, NO_ATTRIBUTE, Expression
from runner.graph.source import Section
from runner.graph.term import Apply, Const, Group, Lambda, Name, Term, calls, children, mapped, within


@dataclass
class VisibleNames:
    """The names that an expression may use.

    - `values`: arrays and earlier nodes; `sizes`: the dims; `loops`: the carries of earlier repeats.
    - `later`: the names of later lines, for the message about order.
    - `static`: the earlier lines that are integers known without arrays.
    - `parameters`: those of a function that is checked by itself, whose arguments are not known.
    - `functions`: the experiment's own functions, whose calls have been inlined already.
    - `generated`: names that the reader made, which messages leave out; `bound`: the parameters of the lambda around
      the expression, whose arguments stand there already.
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
    generated: set[str] = field(default_factory=set[str])
    bound: tuple[str, ...] = ()

    def nested(self) -> VisibleNames:
        """Return a copy to which the names of a loop's body can be added."""
        return replace(
            self,
            values=set(self.values),
            loops=dict(self.loops),
            static=dict(self.static),
            lengths=dict(self.lengths),
        )

    def called(self, arguments: Mapping[str, str]) -> VisibleNames:
        """Return the scope of a function's lines; `arguments` maps its parameters to names of this scope."""
        return replace(
            self,
            values=set(arguments),
            loops={},
            later={},
            static={own: self.static[name] for own, name in arguments.items() if name in self.static},
            lengths={own: self.lengths[name] for own, name in arguments.items() if name in self.lengths},
            parameters=frozenset(arguments) if self.parameters else frozenset(),
        )


def check(expression: Expression, scope: VisibleNames) -> None:
    """Raise `SyntaxFault` for a name, an operation, an argument or a mesh axis that does not exist."""
    # Lambdas are checked first: they cannot read enclosing values.
    for part in within(expression.term):
        if isinstance(part, Lambda):
            _check_lambda(expression, part, scope)
    _check(expression, expression.term, scope)


def canonical(expression: Expression) -> Expression:
    """Rewrite an expression so that JAX and the oracle read it alike.

    Lists among the arguments of collectives become tuples, since JAX requires them to be hashable. Random draws get the
    table's default dtype, since JAX's depends on `jax_enable_x64`.
    """
    known = canonical_term(expression.term)
    return expression if known is expression.term else Expression(expression.text, known)


def canonical_term(term: Term) -> Term:
    """Rewrite the term of an expression as `canonical` does."""
    term = mapped(term, canonical_term)
    if not calls(term, OPERATIONS):
        return term
    row = OPERATIONS[term.operation]
    if row.random and "dtype='" in row.arguments:
        return _with_dtype(term, row.signature)
    if not row.over.does:
        return term
    first = 1 if row.arguments.startswith("x") else 0
    operands = (*term.operands[:first], *map(_tupled, term.operands[first:]))
    return replace(term, operands=operands, named=tuple((name, _tupled(operand)) for name, operand in term.named))


def _with_dtype(call: Apply, signature: inspect.Signature) -> Apply:
    position = list(signature.parameters).index("dtype")
    if len(call.operands) > position or "dtype" in dict(call.named):
        return call
    return replace(call, named=(*call.named, ("dtype", Const(signature.parameters["dtype"].default, call.at))))


def _tupled(term: Term) -> Term:
    return Group(tuple(map(_tupled, term.items)), at=term.at) if isinstance(term, Group) else term


def _check(expression: Expression, term: Term, scope: VisibleNames) -> None:
    match term:
        case Name(name=name):
            loop, _, carry = name.partition(".")
            if carry:
                _check_carry(expression, term, loop, carry, scope)
            else:
                _check_name(expression, term, name, scope)
        case Apply(spelled=".T", operands=(Name(name=name),)) if name in scope.loops:
            _check_carry(expression, term, name, "T", scope)
        case Apply(spelled="call"):
            _check_call(expression, term, scope)
        case Lambda():
            return
        case _:
            for child in children(term):
                _check(expression, child, scope)


def _check_carry(expression: Expression, term: Term, loop: str, carry: str, scope: VisibleNames) -> None:
    carries = scope.loops.get(loop)
    if carries is None:
        if loop == "grad":
            message = f"there are no gradients: write grad: {{of: LOSS, wrt: [{carry}]}}"
            raise expression.fault(message, term)
        if carry == "at":
            raise expression.fault(AT_ALONE, term)
        message = jax_spellings.attribute(loop, carry) if loop in scope.values else None
        raise expression.fault(message or NO_ATTRIBUTE.format(carry), term)
    if carry in carries:
        return
    if loop == "grad":
        hint = nearest(carry, carries)
        message = f"there is no gradient of '{carry}'{hint}; grad.wrt names {', '.join(carries)}"
        raise expression.fault(message, term)
    raise expression.fault(f"the repeat '{loop}' carries no '{carry}'; it carries {', '.join(carries)}", term)


def _check_name(expression: Expression, node: Term, name: str, scope: VisibleNames) -> None:
    if name in scope.values or name in scope.sizes or name in CONSTANTS:
        return
    if name in scope.loops:
        carries = ", ".join(f"{name}.{carry}" for carry in scope.loops[name])
        raise expression.fault(f"'{name}' is a repeat; its results are {carries}", node)
    if name in scope.later:
        raise expression.fault(f"'{name}' is used before it is assigned; the lines run in order, so move it up", node)
    if name in OPERATIONS:
        raise expression.fault(f"'{name}' is an operation; call it: {name}(…)", node)
    known = sorted({*scope.values, *scope.sizes, *scope.loops, *scope.bound} - scope.generated)
    raise expression.fault(f"no array, dim or earlier name '{name}'{nearest(name, known) or _names(known)}", node)


def _names(known: list[str]) -> str:
    return f"; there are {', '.join(known)}" if known and len(known) <= 12 else ""


def _check_call(expression: Expression, call: Apply, scope: VisibleNames) -> None:
    name = call.operation
    operation = OPERATIONS.get(name)
    if operation is None and name in CALLING:
        raise expression.fault(
            f"'{name}' cannot be used in a function that combines two values", callee(expression, call)
        )
    if operation is None and name in jax_spellings.RENAMED:
        arguments = [Expression.of(operand).text for operand in call.operands]
        arguments += [f"{word}={Expression.of(operand).text}" for word, operand in call.named]
        raise expression.fault(jax_spellings.renamed(name, arguments), callee(expression, call))
    if operation is None:
        what = "operation or function" if scope.functions else "operation"
        known = (name for name in OPERATIONS if name.isidentifier())
        key = jax_spellings.AS_KEYS.get(name)
        hint = f"; {key}" if key else nearest(name, (*scope.functions, *CALLING, *known))
        raise expression.fault(f"no {what} '{name}'{hint}", callee(expression, call))
    if scope.section == "graph" and operation.over.does:
        message = f"'{name}' is a collective; graph computes on whole arrays and has none; it belongs in per_device"
        raise expression.fault(message, callee(expression, call))
    for child in call.arguments:
        _check(expression, child, scope)
    try:
        bound = operation.signature.bind(*call.operands, **dict(call.named))
    except TypeError as error:
        own = "; precision is a key of the experiment" if "'precision'" in str(error) else ""
        message = f"{name}(): {error}; it takes ({_arguments(operation.signature)}){own}"
        raise expression.fault(message, call) from None
    if "axis_name" in bound.arguments:
        _check_axes(expression, bound.arguments["axis_name"], scope)
    if operation.function is not None:
        _check_function(expression, bound.arguments[operation.function], operation)
    if "to" in bound.arguments and not _is_parameter(bound.arguments["to"], scope):
        _check_choice(expression, bound.arguments["to"], "argument 'to'", operation.over.to)
    if operation.method is not None and not _is_none(bound.arguments.get("mode")):
        _check_choice(expression, bound.arguments["mode"], "mode", OUTSIDE)
    padding = bound.arguments.get("padding")
    if isinstance(padding, Const):
        _check_choice(expression, padding, "padding", PADDINGS, " or a pair of integers for each dimension")


def callee(expression: Expression, call: Apply) -> Term:
    """The name in the text that a call calls; the call itself, where that name is not in its text."""
    name = call.operation.encode()
    start = -1 if call.at is None else expression.text.encode().find(name, *call.at)
    return call if start < 0 else Name(call.operation, (start, start + len(name)))


def _check_function(expression: Expression, node: Term, operation: Operation) -> None:
    otherwise = ""
    if operation.combines:
        if isinstance(node, Lambda):
            return
        otherwise = ", a function of the experiment with two parameters, or a lambda with two"
    _check_choice(expression, node, str(operation.function), COMPUTATIONS, otherwise)


def _check_lambda(expression: Expression, node: Lambda, scope: VisibleNames) -> None:
    """Check a function that combines two values: it may read its parameters and the dims only."""
    own = node.parameters
    for name in own:
        if name in scope.sizes or name in CONSTANTS:
            raise expression.fault(f"'{name}' is a dim already; a name means one thing", node)
    for part in within(node.body):
        operation = OPERATIONS[part.operation] if calls(part, OPERATIONS) else None
        if operation is not None and (operation.over.does or operation.random or operation.function):
            raise expression.fault(f"'{operation.name}' cannot be used in a function that combines two values", part)
    inside = replace(scope, values={*own, *scope.parameters}, loops={}, later={})
    _check(expression, node.body, inside)


def _check_choice(
    expression: Expression, node: Term, argument: str, choices: Iterable[str], otherwise: str = ""
) -> None:
    if not (isinstance(node, Const) and node.value in tuple(choices)):
        raise expression.fault(f"the {argument} must be one of {', '.join(map(repr, choices))}{otherwise}", node)


def _is_none(node: Term | None) -> bool:
    return node is None or (isinstance(node, Const) and node.value is None)


def _arguments(signature: inspect.Signature) -> str:
    return str(signature).removeprefix("(").removesuffix(")")


def _is_parameter(node: Term, scope: VisibleNames) -> bool:
    return isinstance(node, Name) and node.name in scope.parameters


def _check_axes(expression: Expression, node: Term, scope: VisibleNames) -> None:
    mesh = scope.mesh
    if _is_parameter(node, scope):
        return
    if isinstance(node, Group):
        for element in node.items:
            _check_axes(expression, element, scope)
        axes = [element.value for element in node.items if isinstance(element, Const)]
        if len(set(axes)) < len(axes):
            raise expression.fault("a mesh axis appears twice", node)
        return
    if not (isinstance(node, Const) and isinstance(node.value, str)):
        raise expression.fault("the axis_name must be a mesh axis in quotes, or a tuple of them", node)
    if node.value not in mesh.axes:
        raise expression.fault(missing_axis(node.value, mesh), node)


def missing_axis(axis: object, mesh: Mesh) -> str:
    """Return the message for a mesh axis that does not exist, or that `per_device` leaves to the compiler."""
    if axis in mesh.automatic:
        manual = ", ".join(mesh.axes)
        return f"mesh axis '{axis}' is automatic here: per_device is manual over {manual} (manual: [{manual}])"
    written = "; YAML writes None as null" if axis == "None" else ""
    return f"mesh axis '{axis}' does not exist; the mesh has {', '.join(mesh.axes)}{written}"
