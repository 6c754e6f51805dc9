"""An experiment in; what explicit sharding (`AxisType.Explicit`) asks of its graph out.

The graph is evaluated under an abstract mesh whose axes are Explicit. Where the types refuse a call, the first of a
short list of repairs that they accept is taken: the sharding of the result for a contraction, else the sharding of an
operand. What is found is plain data, from which `runner/programs/explicit.py` writes `out_sharding=` and `reshard`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from runner import dtypes
from runner.experiment import Experiment
from runner.layout import Spec
from runner.programs.source import Repair, Repairs
from runner.worker.versions import abstract_mesh
from runner.worker.walk import REFUSALS, Walker


def repairs(experiment: Experiment) -> Repairs:
    """The repairs that make the graph's types agree. Raises `InvalidExperiment` where none of them does."""
    mesh = abstract_mesh(experiment.mesh, AxisType.Explicit)
    found: dict[str, dict[int, Repair]] = {}
    reshard: dict[str, Spec] = {}

    def whole(*arrays: Any) -> tuple[()]:
        values = dict(zip((a.name for a in experiment.arrays), arrays, strict=True))
        walker = _Explicit(experiment, values, mesh=mesh, found=found, reshard=reshard)
        walker.constrain_arrays()
        walker.run(experiment.graph, ("graph",))
        return ()

    structs = [
        jax.ShapeDtypeStruct(
            a.shape, dtypes.dtype(a.dtype).numpy, sharding=NamedSharding(mesh, partition(a.layout.spec))
        )
        for a in experiment.arrays
    ]
    with jax.sharding.use_abstract_mesh(mesh):
        jax.eval_shape(whole, *structs)
    return Repairs(found, reshard)


def partition(spec: Spec) -> P:
    """JAX's PartitionSpec."""
    return P(*(None if not axes else axes[0] if len(axes) == 1 else axes for axes in spec))


def spec_of(value: Any) -> Spec:
    """The spec in a value's type, one entry per dimension."""
    kind = jax.typeof(value)
    entries = tuple(kind.sharding.spec)
    entries += (None,) * (len(kind.shape) - len(entries))
    return tuple(() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in entries)


@dataclass
class _Explicit(Walker):
    mesh: AbstractMesh = field(kw_only=True)
    found: dict[str, dict[int, Repair]] = field(kw_only=True)
    reshard: dict[str, Spec] = field(kw_only=True)

    def _sharding(self, spec: Spec) -> NamedSharding:
        return NamedSharding(self.mesh, partition(spec))

    def _promised(self, path: str) -> Spec | None:
        return self.experiment.constraints.get(path) or self.experiment.outputs.get(path)

    def constrain_arrays(self) -> None:
        for name, spec in self.experiment.constraints.items():
            if name in self.values:
                self.values[name] = self._settled(name, self.values[name], spec)

    def _settled(self, path: str, value: Any, spec: Spec) -> Any:
        """`value` resharded to `spec`, noted at `path`, unless it lies so already."""
        padded = spec + ((),) * (len(jax.typeof(value).shape) - len(spec))
        if spec_of(value) == padded:
            return value
        self.reshard[path] = padded
        return jax.reshard(value, self._sharding(padded))

    def settle(self, path: str, value: Any) -> Any:
        spec = self._promised(path)
        return value if spec is None else self._settled(path, value, spec)

    def carried(self, path: str, value: Any, start: Any) -> Any:
        """A loop's carry keeps the sharding with which it enters the body."""
        return self._settled(path, value, spec_of(start)) if hasattr(value, "shape") else value

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
            message = str(refusal).splitlines()[0]
            raise self._expression.fault(
                f"the sharding types refuse it and no resharding helps: {message}", node
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
        specs = {i: spec_of(operand) for i, operand in enumerate(operands) if hasattr(operand, "shape")}
        if node is self._expression.tree and _takes_out_sharding(node):
            promised = self._promised(self._path)
            if promised is not None:
                yield Repair(out_sharding=promised)
        derived = _contracted(node, specs, operands)
        if derived is not None:
            yield Repair(out_sharding=derived)
        for i, spec in specs.items():
            for j, other in specs.items():
                if i != j and spec != other and len(spec) == len(other):
                    yield Repair(operands={j: spec})
        for i, spec in specs.items():
            for dimension, axes in enumerate(spec):
                if axes:
                    yield Repair(operands={i: (*spec[:dimension], (), *spec[dimension + 1 :])})
        for axis in self.experiment.mesh.axes:
            without = {i: tuple(tuple(a for a in axes if a != axis) for axes in spec) for i, spec in specs.items()}
            yield Repair(operands={i: spec for i, spec in without.items() if spec != specs[i]})
        yield Repair(operands={i: ((),) * len(spec) for i, spec in specs.items() if any(spec)})


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
    }
)
"""The operations whose JAX function takes `out_sharding` in 0.10 and in 0.12."""


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
    return tuple(result)


def _subscripts(node: ast.expr, operands: list[Any]) -> tuple[list[str], str] | None:
    """A contraction in einsum's notation: the labels of each operand and of the result."""
    name = "matmul" if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) else ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
    ranks = [len(operand.shape) for operand in operands if hasattr(operand, "shape")]
    if name == "einsum" and isinstance(operands[0], str) and "." not in operands[0]:
        left, arrow, right = operands[0].replace(" ", "").partition("->")
        inputs = left.split(",")
        if not arrow:
            right = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
        return inputs, right
    if len(ranks) != 2 or 0 in ranks:
        return None
    first, second = ranks
    if name == "dot" or (name == "matmul" and max(ranks) <= 2):
        rows, columns = "abcdefgh"[: first - 1], "stuvwxyz"[: max(second - 1, 0)]
        return [f"{rows}k", f"{columns[:-1]}k{columns[-1:]}"], f"{rows}{columns}"
    if name == "matmul":
        batch = "abcdefgh"[: max(first, second) - 2]
        left, right = batch[len(batch) - max(first - 2, 0) :], batch[len(batch) - max(second - 2, 0) :]
        rows, columns = ("r" if first > 1 else ""), ("c" if second > 1 else "")
        return [f"{left}{rows}k", f"{right}k{columns}"], f"{batch}{rows}{columns}"
    return None
