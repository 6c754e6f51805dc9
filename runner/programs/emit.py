"""Writes an equation that a line names, and the unnamed ones nested in it, as an expression in JAX."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from runner.base.layout import Spec
from runner.experiment.identifiers import Identifiers
from runner.experiment.model import Experiment
from runner.graph.language.lines import at_index, axes_of, operator
from runner.graph.language.operations import COMPUTATIONS, CONSTANTS, OPERATIONS
from runner.graph.language.operations.row import AT
from runner.graph.language.printing import text
from runner.graph.model import (
    CombiningFunction,
    Equation,
    Graph,
    Operand,
    Ref,
    Size,
    entries,
    inside,
    kind_of,
    literal,
    with_parts,
)
from runner.graph.sharding.repairs import Repair
from runner.graph.term import NOTHING, Apply, Const, Group, Lambda, Listed, Name, Term, elements, operates
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
            case Size(name=name):
                return Name(f"jnp.{name}" if name in CONSTANTS else self._names[name])
            case CombiningFunction(body=body):
                return self._function(body)
            case _:
                return with_parts(operand, [self._operand(part) for part in inside(operand)])

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
        value, *where = _laid_out(map(self._operand, (x, *entries(index))), repair)
        operands = (value, Group(tuple(where)) if kind_of(index) == "tuple" else where[0])
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
            Name(COMPUTATIONS[name].jax)
            if operand is names_function and isinstance(name := literal(operand), str)
            else self._operand(operand)
            for operand in equation.flat
        )
        flat = iter(_laid_out(written, repair))
        operands = tuple(_packed(operand, flat) for operand in equation.operands)
        named = {name: _packed(operand, flat) for name, operand in equation.named}
        if self._under_vmap:
            # vmap has no varying axes.
            named.pop("to", None)
        if operation.over.does:
            named = dict(self._moved(equation, name, value) for name, value in named.items())
        called = operation.name if operation.method is not None else operation.jax
        return Apply(called, operands, (*named.items(), *_out_sharding(repair)))

    def _moved(self, equation: Equation, name: str, value: Term) -> tuple[str, Term]:
        """A keyword argument; `shift=` becomes the permutation `perm=`."""
        if name != "shift":
            return name, value
        axes = equation.argument("axis_name", OPERATIONS[equation.operation].signature)
        size = Const(self._experiment.mesh.axis_size(literal(axes)))
        back = operates(value, ("negative",))
        moved = operator("subtract" if back else "add", Name("j"), value.operands[0] if back else value)
        return "perm", Listed(Group((Name("j"), operator("remainder", moved, size))), "j", (size,))


def _packed(operand: Operand, flat: Iterator[Term]) -> Term:
    """An operand's expression, with lists and tuples put together again."""
    items = elements(operand)
    return next(flat) if items is None else with_parts(operand, [next(flat) for _ in items])


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
