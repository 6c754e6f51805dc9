"""Finds the repairs that explicit sharding (`AxisType.Explicit`) requires of an experiment's graph.

The graph is evaluated under an abstract mesh whose axes are Explicit, except those that the file declares Auto, which
types, reshards and `out_sharding=` ignore. A user's own Python function is called as it is. If the types refuse a call,
the first repair that they accept is used, of those that `runner/graph/sharding/repairs.py` proposes. The repairs are
plain data, from which `runner/programs/global_view.py` writes `out_sharding=` and `reshard`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, NoReturn

import jax
from jax.sharding import NamedSharding

from runner.base.faults import invalid
from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.experiment.imported import Imported
from runner.experiment.model import Experiment
from runner.graph.language.operations import row_of
from runner.graph.model import Equation, Graph
from runner.graph.sharding.repairs import OperandLayout, Repair, candidates, of_lookup
from runner.graph.source import FunctionCall
from runner.programs.types import Repairs
from runner.worker import calls, setting
from runner.worker.gradient import places
from runner.worker.imported import called, raised_in
from runner.worker.refusing import refusal as describe
from runner.worker.specs import partition, structs
from runner.worker.versions import Literal, abstract_mesh
from runner.worker.walk import REFUSALS, Walker


def repairs(experiment: Experiment, *, through: bool = False, chosen: Repairs | None = None) -> Repairs:
    """Return the repairs that make the graph's types agree. Raises `InvalidExperiment` if no repair does.

    - `through`: whether to repair the lines of the user's functions too, which no program can, instead of calling them.
    - `chosen`: receives the repairs line by line, those before a line that none repairs too.

    JAX builds some operations from others only during lowering; if the types refuse these, `runner/worker/execute.py`
    reports it.
    """
    imports = experiment.imports
    mesh = abstract_mesh(experiment.mesh, experiment.mesh.explicit)
    # The meshes that a user's function holds have devices.
    mesh = setting.mesh(experiment, explicit=True) if imports.functions else mesh
    chosen = Repairs() if chosen is None else chosen

    def walker(values: dict[str, Any]) -> _Explicit:
        explicit = _Explicit(experiment, values, mesh=mesh, repairs=chosen, through=through)
        explicit.constrain_arrays()
        return explicit

    def computed(*arrays: Any) -> dict[str, Any]:
        here = walker(dict(zip((a.name for a in experiment.arrays), arrays, strict=True)))
        here.run(experiment.before("graph"), "graph")
        passed = {name: here.values[name] for name in experiment.passed("graph")}
        return passed | {
            name: here.values[name] for name in experiment.results if hasattr(here.values.get(name), "shape")
        }

    def after(arrays: tuple[Any, ...], known: dict[str, Any]) -> dict[str, Any]:
        """Evaluate the lines that read gradients, after each gradient is resharded to its output's spec."""
        values = dict(zip((a.name for a in experiment.arrays), arrays, strict=True)) | known
        here = walker(values)
        for name in experiment.forward.outputs:
            padded = _wanted(experiment, experiment.outputs[name], values[name])
            if _typed(values[name]) != padded:
                chosen.returned[name] = padded
                values[name] = calls.reshard(values[name], NamedSharding(mesh, partition(padded)))
        here.run(experiment.after("graph"), "graph")
        return {name: here.values[name] for name in experiment.outputs}

    def whole(*arrays: Any) -> list[Any]:
        arrays = arrays[: len(experiment.arrays)]
        outputs = computed(*arrays) if experiment.grad is None else _with_gradients(experiment, computed, arrays)
        if experiment.reads_gradients:
            outputs = after(arrays, outputs)
        for name, value in outputs.items():
            if name in imports.open:
                continue
            padded = _wanted(experiment, experiment.outputs[name], value)
            if _typed(value) != padded:
                chosen.returned[name] = padded
        return list(outputs.values())

    with setting.within(mesh if imports.within else getattr(mesh, "abstract_mesh", mesh)):
        traced = calls.jit(whole).trace(*structs(experiment, mesh))
    chosen.constant = not _depends(traced.jaxpr.jaxpr)
    return chosen


def _with_gradients(
    experiment: Experiment, computed: Callable[..., dict[str, Any]], arrays: tuple[Any, ...]
) -> dict[str, Any]:
    """Evaluate results and gradients. A cotangent's type has the sharding of its primal, which JAX may refuse."""
    assert experiment.grad is not None
    of = experiment.grad.of

    def forward(*arrays: Any) -> tuple[Any, dict[str, Any]]:
        results = computed(*arrays)
        return results[of], results

    try:
        gradients, results = calls.grad(forward, argnums=places(experiment), has_aux=True)(*arrays)
    except REFUSALS as error:
        raise invalid(("grad", "of"), f"the gradient of '{of}': {describe(error, [])}") from None
    return results | dict(zip(experiment.grad.names, gradients, strict=True))


def _depends(jaxpr: Any) -> bool:
    """Whether an output depends on an argument; `jit` drops unused arguments."""
    depending = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        if depending & _variables(equation.invars):
            depending |= set(equation.outvars)
    return bool(depending & _variables(jaxpr.outvars))


def _variables(operands: Sequence[Any]) -> set[Any]:
    """The operands that are variables, and not literals."""
    return {operand for operand in operands if not isinstance(operand, Literal)}


def _typed(value: Any) -> Spec:
    """The spec in a value's type, one entry per dimension."""
    kind = jax.typeof(value)
    return Spec.of(kind.sharding.spec).padded(len(kind.shape))


def _wanted(experiment: Experiment, spec: Spec, value: Any) -> Spec:
    """The sharding that a value's type must have to have the layout `spec`."""
    return spec.over(experiment.mesh.explicit).padded(len(value.shape))


def _index(equation: Equation, operands: Sequence[Any]) -> tuple[Any, ...] | None:
    """The index of a lookup, `x[:, rows]`; None for any other call."""
    if equation.operation != "take" or len(equation.operands) != 2:
        return None
    named = zip((name for name, _ in equation.named), operands[2:], strict=True)
    axis = next((value for name, value in named if name == "axis"), None)
    return (*[slice(None)] * axis, operands[1]) if isinstance(axis, int) and axis >= 0 else None


def _held(operand: Any) -> Any:
    """An array as plain data; any other operand unchanged."""
    if not hasattr(operand, "shape"):
        return operand
    return OperandLayout(_typed(operand), tuple(operand.shape), operand.dtype.itemsize)


def _by_number(equation: Equation, operands: Sequence[Any]) -> bool:
    """Whether a call updates an array by a number, which JAX 0.12 broadcasts to an array without a mesh."""
    operation = row_of(equation.operation)
    if equation.spelled != "call" or operation.method in (None, "get"):
        return False
    values = equation.argument("values", operation.signature)
    pairs = zip(equation.flat, operands, strict=True)
    return any(each is values and not hasattr(operand, "shape") for each, operand in pairs)


@dataclass
class _Explicit(Walker):
    mesh: Any = field(kw_only=True)
    repairs: Repairs = field(kw_only=True)
    """Collects what the types require."""
    through: bool = field(kw_only=True, default=False)
    """Whether the lines of the user's functions are evaluated, instead of calling them."""

    def _sharding(self, spec: Spec) -> NamedSharding:
        return NamedSharding(self.mesh, partition(spec))

    def _promised(self, path: str) -> Spec | None:
        spec = {**self.experiment.outputs, **self.experiment.constrained}.get(path)
        return None if spec is None else spec.over(self.experiment.mesh.explicit)

    def constrain_arrays(self) -> None:
        for name, spec in self.experiment.constraints.items():
            if name in self.values:
                self.values[name] = self._settled(name, self.values[name], spec)

    def _settled(self, path: str, value: Any, spec: Spec) -> Any:
        """Reshard `value` to `spec` and record that at `path`, unless it already has that layout."""
        padded = _wanted(self.experiment, spec, value)
        if _typed(value) == padded:
            return value
        self.repairs.reshard[path] = padded
        return calls.reshard(value, self._sharding(padded))

    def settle(self, path: str, value: Any) -> Any:
        spec = self._promised(path)
        return value if spec is None or not hasattr(value, "shape") else self._settled(path, value, spec)

    def taken_apart(self, path: str, value: Any) -> Any:
        """Gather the leading dimension: `jax.lax.scan` slices along an unsharded one."""
        return self._settled(path, value, Spec(((), *_typed(value)[1:])))

    def carried(self, path: str, value: Any, start: Any) -> Any:
        """Reshard a loop's carry to the sharding with which it enters the body."""
        if not hasattr(value, "shape"):
            return value
        lies, entered = _typed(value), _typed(start)
        if any(axes and not before for axes, before in zip(lies, entered, strict=True)):
            self.repairs.gathered[path] = lies
        return self._settled(path, value, entered)

    def inside(self, call: FunctionCall, body: Graph, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Evaluate a function's body; a user's own Python function is called, since nothing inside can be repaired."""
        imports = self.experiment.imports
        if call.function not in imports.functions or self.through:
            return super().inside(call, body, arguments)
        context = contextlib.nullcontext() if imports.within else setting.without()
        try:
            with context:
                given = called(imports, call.function, {v.name: a for v, a in zip(body.inputs, arguments, strict=True)})
        except REFUSALS as refusal:
            self._refuse_inside(imports.functions[call.function], refusal, body)
        values = (given,) if len(body.outputs) == 1 else tuple(given)
        paths = (body.producers[output].source.line.path for output in body.outputs)
        return tuple(self.settle(path, value) for path, value in zip(paths, values, strict=True))

    def _refuse_inside(self, function: Imported, refusal: Exception, body: Graph) -> NoReturn:
        frame = raised_in(refusal, function)
        where = f"{frame}: " if frame else ""
        _, uses = body.producers[body.outputs[0]].source.line.written("graph")
        raise invalid(
            uses[-1],
            f"JAX's sharding types need a change inside {function.call}, which no program can make. "
            f"{where}{describe(refusal, [])}",
        ) from None

    def apply(self, equation: Equation, call: Callable[..., Any], operands: list[Any]) -> Any:
        if self.combining:
            return call(*operands)
        path, part = equation.source.line.path, equation.source.part
        if not any(hasattr(operand, "shape") for operand in operands) or _by_number(equation, operands):
            self.repairs.makes = True
        known = self.repairs.calls.get(path, {}).get(part)
        if known is not None:
            # A later step of the same loop body.
            return self._attempt(equation, call, operands, known)
        try:
            return call(*operands)
        except REFUSALS as refusal:
            promised = self._promised(path) if equation.source.whole else None
            held = [_held(operand) for operand in operands]
            for repair in [
                *self._lookups(equation, operands),
                *candidates(equation, held, self.experiment.mesh, promised),
            ]:
                try:
                    result = self._attempt(equation, call, operands, repair)
                except REFUSALS:
                    continue
                self.repairs.calls.setdefault(path, {})[part] = repair
                return result
            message = "no resharding of its operands makes its sharding types agree"
            return self.refuse(f"{message}. {describe(refusal, operands)}", equation.source)

    def _lookups(self, equation: Equation, operands: list[Any]) -> list[Repair]:
        """The repair of a lookup in the user's function, which takes an `out_sharding` as `.at[…].get`."""
        index = _index(equation, operands) if self.through else None
        held = [_held(operand) for operand in operands[:2]]
        if index is None or not all(isinstance(operand, OperandLayout) for operand in held):
            return []
        spec = of_lookup(held[0], len(index) - 1, held[1])
        return [] if spec is None else [Repair(out_sharding=spec)]

    def _attempt(self, equation: Equation, call: Callable[..., Any], operands: list[Any], repair: Repair) -> Any:
        moved = [
            calls.reshard(operand, self._sharding(repair.operands[i])) if i in repair.operands else operand
            for i, operand in enumerate(operands)
        ]
        if repair.out_sharding is None:
            return call(*moved)
        out = self._sharding(repair.out_sharding)
        if equation.spelled == "operator":
            return jax.numpy.matmul(*moved, out_sharding=out)
        index = _index(equation, operands)
        if index is not None:
            return operands[0].at[index].get(out_sharding=out)
        return call(*moved, out_sharding=out)
