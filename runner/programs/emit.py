"""An equation of a line in, with the equations that no line names in it; the expression of JAX that they are out."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from runner.experiment.model import Experiment
from runner.graph.model import Const, Equation, Function, Group, Operand, Ref, Size, Slice, literal
from runner.language import trees
from runner.language.bridge import SYNTAX
from runner.language.operations import COMPUTATIONS, CONSTANTS, OPERATIONS
from runner.programs.names import Names
from runner.programs.spelling import resharded, sharding
from runner.sharding.repairs import Repair


class Emit:
    """Spells equations as expressions of JAX.

    - `named`: what lines call the values that they may read, `parts` the equations that give those which none names.
    """

    def __init__(
        self,
        experiment: Experiment,
        names: Names,
        named: Mapping[int, str],
        parts: Mapping[int, Equation],
        repairs: Mapping[str, Repair],
        under_vmap: bool,
    ) -> None:
        self._experiment = experiment
        self._names = names
        self._named = named
        self._parts = parts
        self._repairs = repairs
        self._under_vmap = under_vmap

    def text(self, equation: Equation) -> str:
        """The expression of an equation."""
        return ast.unparse(ast.fix_missing_locations(self._equation(equation)))

    def _operand(self, operand: Operand) -> ast.expr:
        match operand:
            case Ref(number=number) if number in self._parts:
                return self._equation(self._parts[number])
            case Ref(number=number):
                return ast.Name(self._names[self._named[number]])
            case Const(value=value):
                return ast.Constant(value)
            case Size(name=name):
                return _parse(f"jnp.{name}") if name in CONSTANTS else ast.Name(self._names[name])
            case Group(items=items, kind=kind):
                elements = list(map(self._operand, items))
                return ast.Tuple(elements) if kind == "tuple" else ast.List(elements)
            case Slice(lower=lower, upper=upper, step=step):
                parts = (None if part == Const(None) else self._operand(part) for part in (lower, upper, step))
                return ast.Slice(*parts)
            case Function():
                return self._function(operand)

    def _function(self, function: Function) -> ast.expr:
        inputs, body = function.body.inputs, function.body
        names = self._names.within([value.name for value in inputs])
        named = {**self._named, **{value.number: value.name for value in inputs}}
        *parts, result = body.equations
        inner = {equation.results[0].number: equation for equation in parts}
        inside = Emit(self._experiment, names, named, inner, self._repairs, self._under_vmap)
        parameters = [ast.arg(names[value.name]) for value in inputs]
        arguments = ast.arguments(posonlyargs=[], args=parameters, kwonlyargs=[], kw_defaults=[], defaults=[])
        return ast.Lambda(arguments, inside._equation(result))

    def _equation(self, equation: Equation) -> ast.expr:
        repair = self._repairs.get(equation.source.place or "", Repair())
        match equation.spelled:
            case "name":
                return self._operand(equation.operands[0])
            case ".T":
                return ast.Attribute(self._operand(equation.operands[0]), "T")
            case "operator":
                return self._operator(equation, repair)
            case "index":
                return self._index(equation, repair)
            case "call":
                return self._call(equation, repair)

    def _operator(self, equation: Equation, repair: Repair) -> ast.expr:
        operands = _laid_out(list(map(self._operand, equation.operands)), repair)
        if repair.out_sharding is not None:
            return ast.Call(_parse("jnp.matmul"), operands, [_out_sharding(repair)])
        return SYNTAX[equation.operation](*operands)

    def _index(self, equation: Equation, repair: Repair) -> ast.expr:
        x, index = equation.operands
        parts = index.items if isinstance(index, Group) and index.kind == "tuple" else None
        value, *where = _laid_out(list(map(self._operand, (x, *((index,) if parts is None else parts)))), repair)
        at = where[0] if parts is None else ast.Tuple(where)
        if repair.out_sharding is None:
            return ast.Subscript(value, at)
        get = ast.Attribute(ast.Subscript(ast.Attribute(value, "at"), at), "get")
        return ast.Call(get, [], [_out_sharding(repair)])

    def _call(self, equation: Equation, repair: Repair) -> ast.expr:
        operation = OPERATIONS[equation.operation]
        if self._under_vmap and operation.over is not None and operation.over.does == "cast":
            # vmap knows no varying axes.
            return self._operand(equation.operands[0])
        names_function = equation.argument(operation.function, operation.signature)
        written = [
            _parse(COMPUTATIONS[str(operand.value)])
            if isinstance(operand, Const) and operand is names_function
            else self._operand(operand)
            for operand in equation.flat
        ]
        flat = iter(_laid_out(written, repair))
        positional = [_packed(operand, flat) for operand in equation.operands]
        # vmap knows no varying axes.
        named = {name: _packed(operand, flat) for name, operand in equation.named}
        keywords = [
            ast.keyword(name, value) for name, value in named.items() if not (self._under_vmap and name == "to")
        ]
        if operation.over is not None:
            keywords = [self._shift(equation, k) if k.arg == "shift" else k for k in keywords]
        if repair.out_sharding is not None:
            keywords.append(_out_sharding(repair))
        if operation.method is not None:
            return trees.method_call(operation.method, positional, keywords)
        return ast.Call(_parse(operation.jax), positional, keywords)

    def _shift(self, equation: Equation, shift: ast.keyword) -> ast.keyword:
        """`shift=` as the permutation that it stands for."""
        axes = equation.argument("axis_name", OPERATIONS[equation.operation].signature)
        size = self._experiment.mesh.axis_size(literal(axes))
        match shift.value:
            case ast.UnaryOp(op=ast.USub(), operand=by):
                moved = ast.BinOp(ast.Name("j"), ast.Sub(), by)
            case by:
                moved = ast.BinOp(ast.Name("j"), ast.Add(), by)
        return ast.keyword("perm", _parse(f"[(j, ({ast.unparse(moved)}) % {size}) for j in range({size})]"))


def _packed(operand: Operand, flat: Iterator[ast.expr]) -> ast.expr:
    """What stands for an operand, of which lists and tuples were taken apart."""
    if not isinstance(operand, Group):
        return next(flat)
    elements = [next(flat) for _ in operand.items]
    return ast.Tuple(elements) if operand.kind == "tuple" else ast.List(elements)


def _laid_out(operands: Sequence[ast.expr], repair: Repair) -> list[ast.expr]:
    return [
        _parse(resharded(ast.unparse(ast.fix_missing_locations(operand)), repair.operands[i]))
        if i in repair.operands
        else operand
        for i, operand in enumerate(operands)
    ]


def _out_sharding(repair: Repair) -> ast.keyword:
    assert repair.out_sharding is not None
    return ast.keyword("out_sharding", _parse(sharding(repair.out_sharding)))


def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
