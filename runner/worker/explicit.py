"""An experiment in; what explicit sharding (`AxisType.Explicit`) asks of its graph out.

The graph is evaluated under an abstract mesh whose axes are Explicit. Where the types refuse a call, the first repair
that they accept is taken: the sharding of the result where JAX lets it be named, else the resharding of operands that
leaves the fewest bytes on a device. What is found is plain data, from which `runner/programs/explicit.py` writes
`out_sharding=` and `reshard`.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from runner import dtypes
from runner.experiment.model import Experiment
from runner.faults import invalid
from runner.layout import Spec
from runner.programs.source import Repair, Repairs
from runner.worker.gradient import places
from runner.worker.specs import partition
from runner.worker.versions import abstract_mesh
from runner.worker.walk import REFUSALS, Walker
from runner.worker.walk import refusal as describe


def repairs(experiment: Experiment) -> Repairs:
    """The repairs that make the graph's types agree. Raises `InvalidExperiment` where none of them does.

    JAX puts some operations together from others only when it lowers them; what the types refuse then,
    `runner/worker/execute.py` reports.
    """
    mesh = abstract_mesh(experiment.mesh, AxisType.Explicit)
    found: dict[str, dict[int, Repair]] = {}
    reshard: dict[str, Spec] = {}
    returned: dict[str, Spec] = {}

    def computed(*arrays: Any) -> dict[str, Any]:
        values = dict(zip((a.name for a in experiment.arrays), arrays, strict=True))
        walker = _Explicit(experiment, values, mesh=mesh, found=found, reshard=reshard)
        walker.constrain_arrays()
        walker.run(experiment.graph, ("graph",))
        return {name: walker.values[name] for name in experiment.results if hasattr(walker.values.get(name), "shape")}

    def whole(*arrays: Any) -> list[Any]:
        outputs = computed(*arrays) if experiment.grad is None else _with_gradients(experiment, computed, arrays)
        for name, value in outputs.items():
            padded = experiment.outputs[name].padded(len(value.shape))
            if _typed(value) != padded:
                returned[name] = padded
        return list(outputs.values())

    structs = [
        jax.ShapeDtypeStruct(
            a.shape, dtypes.dtype(a.dtype).numpy, sharding=NamedSharding(mesh, partition(a.layout.spec))
        )
        for a in experiment.arrays
    ]
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.jit(whole).trace(*structs)
    return Repairs(found, reshard, returned, constant=not _depends(traced.jaxpr.jaxpr))


def _with_gradients(
    experiment: Experiment, computed: Callable[..., dict[str, Any]], arrays: tuple[Any, ...]
) -> dict[str, Any]:
    """The results and the gradients. A cotangent's type has the sharding of its primal, so that JAX may refuse one."""
    assert experiment.grad is not None
    of = experiment.grad.of

    def forward(*arrays: Any) -> tuple[Any, dict[str, Any]]:
        results = computed(*arrays)
        return results[of], results

    try:
        gradients, results = jax.grad(forward, argnums=places(experiment), has_aux=True)(*arrays)
    except REFUSALS as error:
        raise invalid(("grad", "of"), f"the gradient of '{of}': {describe(error, [])}") from None
    return results | dict(zip(experiment.grad.names, gradients, strict=True))


def _depends(jaxpr: Any) -> bool:
    """Whether some output depends on an argument; `jit` drops the arguments that none needs."""
    depending = set(map(id, jaxpr.invars))
    for equation in jaxpr.eqns:
        if depending & set(map(id, equation.invars)):
            depending |= set(map(id, equation.outvars))
    return bool(depending & set(map(id, jaxpr.outvars)))


def _typed(value: Any) -> Spec:
    """The spec in a value's type, one entry per dimension."""
    kind = jax.typeof(value)
    return Spec.of(kind.sharding.spec).padded(len(kind.shape))


@dataclass
class _Explicit(Walker):
    mesh: AbstractMesh = field(kw_only=True)
    found: dict[str, dict[int, Repair]] = field(kw_only=True)
    reshard: dict[str, Spec] = field(kw_only=True)

    def _sharding(self, spec: Spec) -> NamedSharding:
        return NamedSharding(self.mesh, partition(spec))

    def _promised(self, path: str) -> Spec | None:
        return {**self.experiment.outputs, **self.experiment.constraints}.get(path)

    def constrain_arrays(self) -> None:
        for name, spec in self.experiment.constraints.items():
            if name in self.values:
                self.values[name] = self._settled(name, self.values[name], spec)

    def _settled(self, path: str, value: Any, spec: Spec) -> Any:
        """`value` resharded to `spec`, noted at `path`, unless it lies so already."""
        padded = spec.padded(len(value.shape))
        if _typed(value) == padded:
            return value
        self.reshard[path] = padded
        return jax.reshard(value, self._sharding(padded))

    def settle(self, path: str, value: Any) -> Any:
        spec = self._promised(path)
        return value if spec is None or not hasattr(value, "shape") else self._settled(path, value, spec)

    def carried(self, path: str, value: Any, start: Any) -> Any:
        """A loop's carry keeps the sharding with which it enters the body."""
        return self._settled(path, value, _typed(start)) if hasattr(value, "shape") else value

    def apply(self, node: ast.expr, call: Callable[..., Any], operands: list[Any]) -> Any:
        place = next(i for i, other in enumerate(ast.walk(self._expression.tree)) if other is node)
        known = self.found.get(self._path, {}).get(place)
        if known is not None:
            # A later step of the same loop body.
            return self._attempt(node, call, operands, known)
        try:
            return call(*operands)
        except REFUSALS as refusal:
            for repair in self._candidates(node, operands):
                try:
                    result = self._attempt(node, call, operands, repair)
                except REFUSALS:
                    continue
                self.found.setdefault(self._path, {})[place] = repair
                return result
            raise self._expression.fault(
                f"its sharding types agree under no resharding of the operands. {describe(refusal, operands)}", node
            ) from None

    def _attempt(self, node: ast.expr, call: Callable[..., Any], operands: list[Any], repair: Repair) -> Any:
        moved = [
            jax.reshard(operand, self._sharding(repair.operands[i])) if i in repair.operands else operand
            for i, operand in enumerate(operands)
        ]
        if repair.out_sharding is None:
            return call(*moved)
        out = self._sharding(repair.out_sharding)
        if isinstance(node, ast.BinOp):
            return jax.numpy.matmul(*moved, out_sharding=out)
        return call(*moved, out_sharding=out)

    def _candidates(self, node: ast.expr, operands: list[Any]) -> Iterator[Repair]:
        specs = {i: _typed(operand) for i, operand in enumerate(operands) if hasattr(operand, "shape")}
        if node is self._expression.tree and _takes_out_sharding(node):
            promised = self._promised(self._path)
            if promised is not None:
                yield Repair(out_sharding=promised)
        derived = _gathered(node, specs, operands) or _contracted(node, specs, operands)
        if derived is not None:
            yield Repair(out_sharding=derived)
        shapes = {i: tuple(operands[i].shape) for i in specs}
        sizes = {i: math.prod(shapes[i]) * operands[i].dtype.itemsize for i in specs}

        def cost(moved: dict[int, Spec]) -> tuple[float, int, tuple[int, ...]]:
            held = [sizes[i] / math.prod(map(self.experiment.mesh.axis_size, spec)) for i, spec in moved.items()]
            # Where all is equal, what stands first keeps its layout.
            return sum(held), len(moved), tuple(-i for i in moved)

        found = {
            tuple(moved.items()): moved
            for moved in _resharded(specs, shapes)
            if moved and all(self._divides(spec, shapes[i]) for i, spec in moved.items())
        }
        for moved in sorted(found.values(), key=cost):
            yield Repair(operands=moved)

    def _divides(self, spec: Spec, shape: tuple[int, ...]) -> bool:
        return all(n % self.experiment.mesh.axis_size(axes) == 0 for n, axes in zip(shape, spec, strict=True))


def _resharded(specs: dict[int, Spec], shapes: dict[int, tuple[int, ...]]) -> Iterator[dict[int, Spec]]:
    """The ways to reshard operands: like one another, with fewer dimensions sharded, or both."""
    choices = {
        i: [
            lesser
            for spec in dict.fromkeys([specs[i], *(_aligned(specs[j], shapes[j], shapes[i]) for j in specs)])
            for lesser in _lesser(spec)
        ]
        for i in specs
    }
    if len(specs) <= 2:
        ways: Iterable[tuple[Spec, ...]] = itertools.product(*choices.values())
    else:
        ways = itertools.chain(
            # One operand; all like one of them; some of them replicated.
            (tuple({**specs, i: spec}.values()) for i in specs for spec in choices[i]),
            (tuple(_aligned(spec, shapes[i], shapes[j]) for j in specs) for i in specs for spec in _lesser(specs[i])),
            itertools.product(*(dict.fromkeys([spec, Spec().padded(len(spec))]) for spec in specs.values())),
        )
    for way in ways:
        yield {i: spec for i, spec in zip(specs, way, strict=True) if spec != specs[i]}


def _lesser(spec: Spec) -> list[Spec]:
    """`spec` with any of its dimensions replicated, itself first."""
    return [Spec(kept) for kept in itertools.product(*((axes, ()) if axes else ((),) for axes in spec))]


def _aligned(spec: Spec, shape: tuple[int, ...], other: tuple[int, ...]) -> Spec:
    """`spec` of an array of `shape`, for an array of the shape `other` that broadcasts against it."""
    axes_of = {
        -d: axes for d, axes in enumerate(reversed(spec), 1) if other[-d : -d + 1 or None] == shape[-d : -d + 1 or None]
    }
    return Spec(axes_of.get(d, ()) for d in range(-len(other), 0))


def _takes_out_sharding(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _OUT_SHARDING


_OUT_SHARDING = frozenset(
    {
        "matmul",
        "dot",
        "einsum",
        "tensordot",
        "reshape",
        "broadcast_to",
        "ravel",
        "repeat",
        "zeros",
        "ones",
        "full",
        "arange",
        "conv_general_dilated",
    }
)
"""The operations whose JAX function takes `out_sharding` in 0.10 and in 0.12."""


def _gathered(node: ast.expr, specs: dict[int, Spec], operands: list[Any]) -> Spec | None:
    """How `x[rows]` lies: the dimensions of the index arrays as these lie, the others of `x` as they lie."""
    arrays = {i: spec for i, spec in specs.items() if i and spec}
    if not isinstance(node, ast.Subscript) or not arrays or 0 not in specs:
        return None
    rank = max(len(spec) for spec in arrays.values())
    used: set[str] = set()

    def free(axes: tuple[str, ...]) -> tuple[str, ...]:
        axes = tuple(axis for axis in axes if axis not in used)
        used.update(axes)
        return axes

    left = list(specs[0])
    whole = [part == slice(None) for part in operands[1:]]
    kept: list[tuple[tuple[str, ...], bool]] = []
    advanced: list[int] = []
    for part, all_of_it in zip(operands[1:], whole, strict=True):
        if part is None:
            kept.append(((), True))
        elif isinstance(part, slice):
            axes = left.pop(0)
            kept.append((axes if all_of_it else (), True))
        else:
            left.pop(0)
            advanced.append(len(kept))
            kept.append(((), False))
    kept += [(axes, True) for axes in left]
    together = advanced[-1] - advanced[0] == len(advanced) - 1
    at = advanced[0] if together else 0
    before = [free(axes) for axes, stays in kept[:at] if stays]
    after = [free(axes) for axes, stays in kept[at:] if stays]
    block = []
    for dimension in range(-rank, 0):
        candidates = [spec[dimension] for spec in arrays.values() if len(spec) >= -dimension]
        block.append(free(next((axes for axes in candidates if axes), ())))
    return Spec((*before, *block, *after))


def _contracted(node: ast.expr, specs: dict[int, Spec], operands: list[Any]) -> Spec | None:
    """How the result of a contraction lies when every dimension that stays keeps its axes, the first use winning."""
    subscripts = _subscripts(node, operands)
    if subscripts is None:
        return None
    inputs, output = subscripts
    kept: dict[str, tuple[str, ...]] = {}
    for labels, spec in zip(inputs, specs.values(), strict=True):
        for label, axes in zip(labels, spec, strict=True):
            if label in output and not kept.get(label):
                kept[label] = axes
    used: set[str] = set()
    result: list[tuple[str, ...]] = []
    for label in output:
        axes = tuple(axis for axis in kept.get(label, ()) if axis not in used)
        used.update(axes)
        result.append(axes)
    return Spec(result)


_BATCH, _ROWS, _COLUMNS = "ZYXWVUTS", "abcdefgh", "stuvwxyz"


def _subscripts(node: ast.expr, operands: list[Any]) -> tuple[list[str], str] | None:
    """A contraction in einsum's notation: the labels of each operand and of the result."""
    name = "matmul" if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) else ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
    ranks = [len(operand.shape) for operand in operands if hasattr(operand, "shape")]
    if name == "einsum" and isinstance(operands[0], str):
        left, arrow, right = operands[0].replace(" ", "").partition("->")
        inputs = left.split(",")
        extra = [rank - len(labels) + 3 if "..." in labels else 0 for labels, rank in zip(inputs, ranks, strict=True)]
        batch = _BATCH[: max(extra)]
        inputs = [labels.replace("...", batch[len(batch) - n :]) for labels, n in zip(inputs, extra, strict=True)]
        if not arrow:
            once = sorted(c for c in set(left) - {",", "."} if left.count(c) == 1)
            right = ("..." if batch else "") + "".join(once)
        return inputs, right.replace("...", batch)
    if len(ranks) != 2 or 0 in ranks:
        return None
    first, second = ranks
    if name == "tensordot" and isinstance(operands[-1], int):
        summed = "klmnopq"[: operands[-1]]
        rows, columns = _ROWS[: first - len(summed)], _COLUMNS[: second - len(summed)]
        return [rows + summed, summed + columns], rows + columns
    if name == "dot" or (name == "matmul" and max(ranks) <= 2):
        rows, columns = _ROWS[: first - 1], _COLUMNS[: second - 1]
        return [f"{rows}k", f"{columns[:-1]}k{columns[-1:]}"], f"{rows}{columns}"
    if name == "matmul":
        batch = _BATCH[: max(first, second) - 2]
        left, right = batch[len(batch) - max(first - 2, 0) :], batch[len(batch) - max(second - 2, 0) :]
        rows, columns = ("r" if first > 1 else ""), ("c" if second > 1 else "")
        return [f"{left}{rows}k", f"{right}k{columns}"], f"{batch}{rows}{columns}"
    return None
