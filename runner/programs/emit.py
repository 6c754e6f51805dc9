"""Writes an equation that a line names, and the unnamed ones nested in it, as an expression in JAX."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from runner.base.layout import Spec
from runner.experiment.identifiers import Identifiers
from runner.experiment.model import Experiment
from runner.graph.language.operations import COMPUTATIONS, CONSTANTS, OPERATIONS
from runner.graph.language.operations.arguments import AT
from runner.graph.language.parts import at_index, axes_of, operator
from runner.graph.language.printing import text
from runner.graph.model import CombiningFunction, Equation, Graph, Operand, Ref, Size, literal
from runner.graph.sharding.repairs import Repair
from runner.graph.term import NOTHING, Apply, Const, Group, Lambda, Listed, Name, Slice, Term
from runner.programs.spelling import RESHARD


class Emit:
    """Writes equations as JAX expressions.

    - `named`: the identifiers of named values; `parts`: the equations that define unnamed ones.
    """

    def __init__(
        self,
        experiment: Experiment,
        names: Identifiers,
        named: Mapping[int, str],
        parts: Mapping[int, Equation],
        repairs: Mapping[int, Repair],
        under_vmap: bool,
    ) -> None:
        self._experiment = experiment
        self._names = names
        self._named = named
        self._parts = parts
        self._repairs = repairs
        self._under_vmap = under_vmap

    def text(self, equation: Equation) -> str:
        """Write the expression of an equation."""
        return text(self._equation(equation))

    def _operand(self, operand: Operand) -> Term:
        match operand:
            case Ref(number=number) if number in self._parts:
                return self._equation(self._parts[number])
            case Ref(number=number):
                return Name(self._names[self._named[number]])
            case Const():
                return operand
            case Size(name=name):
                return Name(f"jnp.{name}" if name in CONSTANTS else self._names[name])
            case Group(items=items, kind=kind):
                return Group(tuple(map(self._operand, items)), kind)
            case Slice(lower=lower, upper=upper, step=step):
                return Slice(self._operand(lower), self._operand(upper), self._operand(step))
            case CombiningFunction(body=body):
                return self._function(body)

    def _function(self, body: Graph) -> Term:
        inputs = body.inputs
        names = self._names.within([value.name for value in inputs])
        named = {**self._named, **{value.number: value.name for value in inputs}}
        *parts, result = body.equations
        inner = {equation.results[0].number: equation for equation in parts}
        inside = Emit(self._experiment, names, named, inner, self._repairs, self._under_vmap)
        return Lambda(tuple(names[value.name] for value in inputs), inside._equation(result))

    def _equation(self, equation: Equation) -> Term:
        repair = self._repairs.get(equation.source.part, Repair())
        match equation.spelled:
            case "name":
                return self._operand(equation.operands[0])
            case ".T":
                return Apply("transpose", (self._operand(equation.operands[0]),), spelled=".T")
            case "operator":
                return self._operator(equation, repair)
            case "index":
                return self._index(equation, repair)
            case "call":
                return self._call(equation, repair)

    def _operator(self, equation: Equation, repair: Repair) -> Term:
        operands = _laid_out(map(self._operand, equation.operands), repair)
        if repair.out_sharding is not None:
            return Apply("jnp.matmul", operands, _out_sharding(repair))
        return Apply(equation.operation, operands, spelled="operator")

    def _index(self, equation: Equation, repair: Repair) -> Term:
        x, index = equation.operands
        parts = index.items if isinstance(index, Group) and index.kind == "tuple" else None
        value, *where = _laid_out(map(self._operand, (x, *((index,) if parts is None else parts))), repair)
        operands = (value, where[0] if parts is None else Group(tuple(where)))
        if repair.out_sharding is None:
            return at_index(*operands)
        return Apply(f"{AT}get", operands, _out_sharding(repair))

    def _call(self, equation: Equation, repair: Repair) -> Term:
        operation = OPERATIONS[equation.operation]
        if self._under_vmap and operation.casts_axes:
            # vmap has no varying axes.
            return self._operand(equation.operands[0])
        names_function = equation.argument(operation.function, operation.signature)
        written = (
            Name(COMPUTATIONS[str(operand.value)].jax)
            if isinstance(operand, Const) and operand is names_function
            else self._operand(operand)
            for operand in equation.flat
        )
        flat = iter(_laid_out(written, repair))
        operands = tuple(_packed(operand, flat) for operand in equation.operands)
        named = {name: _packed(operand, flat) for name, operand in equation.named}
        if self._under_vmap:
            # vmap has no varying axes.
            named.pop("to", None)
        if operation.over is not None:
            named = dict(self._moved(equation, name, value) for name, value in named.items())
        called = operation.name if operation.method is not None else operation.jax
        return Apply(called, operands, (*named.items(), *_out_sharding(repair)))

    def _moved(self, equation: Equation, name: str, value: Term) -> tuple[str, Term]:
        """A keyword argument; `shift=` becomes the permutation `perm=`."""
        if name != "shift":
            return name, value
        axes = equation.argument("axis_name", OPERATIONS[equation.operation].signature)
        size = Const(self._experiment.mesh.axis_size(literal(axes)))
        match value:
            case Apply(operation="negative", operands=(by,), spelled="operator"):
                moved = operator("subtract", Name("j"), by)
            case by:
                moved = operator("add", Name("j"), by)
        return "perm", Listed(Group((Name("j"), operator("remainder", moved, size))), "j", (size,))


def _packed(operand: Operand, flat: Iterator[Term]) -> Term:
    """An operand's expression, with lists and tuples put together again."""
    if not isinstance(operand, Group):
        return next(flat)
    return Group(tuple(next(flat) for _ in operand.items), operand.kind)


def _laid_out(operands: Iterable[Term], repair: Repair) -> tuple[Term, ...]:
    return tuple(
        Apply(RESHARD, (operand, _sharding(repair.operands[i]))) if i in repair.operands else operand
        for i, operand in enumerate(operands)
    )


def _out_sharding(repair: Repair) -> tuple[tuple[str, Term], ...]:
    return () if repair.out_sharding is None else (("out_sharding", _sharding(repair.out_sharding)),)


def _sharding(spec: Spec) -> Term:
    entries = (axes_of(axes) if axes else NOTHING for axes in spec)
    return Apply("NamedSharding", (Name("mesh"), Apply("P", tuple(entries))))
