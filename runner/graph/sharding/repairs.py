"""Lists the repairs of a call that explicit sharding rejects, likeliest and cheapest first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from runner.base.layout import Mesh, Spec
from runner.base.lazy import dataclass
from runner.graph.language.operations import row_of
from runner.graph.language.operations.row import AT
from runner.graph.model import INDEX, Equation


@dataclass(frozen=True)
class Repair:
    """A change to one call that explicit sharding accepts: an `out_sharding`, or new layouts of some operands.

    `runner/worker/explicit.py` tries them. Operands are numbered as `operands` in `runner/programs/` lists them; those
    of an operator, left then right.
    """

    out_sharding: Spec | None = None
    operands: Mapping[int, Spec] = field(default_factory=dict[int, Spec])


def candidates(equation: Equation, operands: Sequence[Any], mesh: Mesh, promised: Spec | None) -> Iterator[Repair]:
    """Yield the repairs of a call.

    First those that name the result's sharding, where the call allows it: the `promised` one, then the one that follows
    from the operands. Then those that reshard operands, the fewest bytes per device first.
    """
    if promised is not None and row_of(equation.operation).out_sharding:
        yield Repair(out_sharding=promised)
    derived = of_result(equation, operands)
    if derived is not None:
        yield Repair(out_sharding=derived)
    yield from moves({i: operand for i, operand in enumerate(operands) if isinstance(operand, OperandLayout)}, mesh)


def moves(arrays: Mapping[int, OperandLayout], mesh: Mesh) -> list[Repair]:
    """The repairs that reshard some of these operands, the fewest bytes per device first."""

    def cost(moved: dict[int, Spec]) -> tuple[float, int, tuple[int, ...]]:
        held = [
            math.prod(arrays[i].shape) * arrays[i].itemsize / math.prod(map(mesh.axis_size, spec))
            for i, spec in moved.items()
        ]
        # Of equal costs, prefer to reshard later operands.
        return sum(held), len(moved), tuple(-i for i in moved)

    ways = {
        tuple(moved.items()): moved
        for moved in resharded(arrays)
        if moved and all(mesh.divides(arrays[i].shape, spec) for i, spec in moved.items())
    }
    return [Repair(operands=moved) for moved in sorted(ways.values(), key=cost)]


def resharded(arrays: Mapping[int, OperandLayout]) -> Iterator[dict[int, Spec]]:
    """Yield the ways to reshard operands: like one another, with fewer dimensions sharded, or both.

    Each maps the operands that change, by number, to their new specs.
    """
    specs = {i: array.spec for i, array in arrays.items()}
    shapes = {i: array.shape for i, array in arrays.items()}
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
            # Change one operand; align all with one of them; replicate some of them.
            (tuple({**specs, i: spec}.values()) for i in specs for spec in choices[i]),
            (tuple(_aligned(spec, shapes[i], shapes[j]) for j in specs) for i in specs for spec in _lesser(specs[i])),
            itertools.product(*(dict.fromkeys([spec, Spec().padded(len(spec))]) for spec in specs.values())),
        )
    for way in ways:
        yield {i: spec for i, spec in zip(specs, way, strict=True) if spec != specs[i]}


def _lesser(spec: Spec) -> list[Spec]:
    """All specs that replicate some dimensions of `spec`, beginning with `spec` itself."""
    return [Spec(kept) for kept in itertools.product(*((axes, ()) if axes else ((),) for axes in spec))]


def _aligned(spec: Spec, shape: tuple[int, ...], target: tuple[int, ...]) -> Spec:
    """Transfer `spec` from an array of `shape` to one of the shape `target` that broadcasts against it."""
    axes_of = {
        -d: axes
        for d, axes in enumerate(reversed(spec), 1)
        if target[-d : -d + 1 or None] == shape[-d : -d + 1 or None]
    }
    return Spec(axes_of.get(d, ()) for d in range(-len(target), 0))


@dataclass(frozen=True)
class OperandLayout:
    """An array operand: its spec, with an entry for each dimension, its global shape, and the bytes per element."""

    spec: Spec
    shape: tuple[int, ...]
    itemsize: int


def specs(operands: Sequence[Any]) -> dict[int, Spec]:
    """The specs of the array operands, by operand number."""
    return {i: operand.spec for i, operand in enumerate(operands) if isinstance(operand, OperandLayout)}


def of_result(equation: Equation, operands: Sequence[Any]) -> Spec | None:
    """The spec of the result of a subscript, an update by index, a reshape or a contraction.

    Of two dimensions with one mesh axis, the first keeps it. None for any other call, and where the result's layout
    cannot be named.
    """
    if equation.operation == INDEX:
        return _gathered(operands)
    if equation.operation == "reshape":
        return _reshaped(operands)
    if equation.operation.startswith(AT) and equation.operation != f"{AT}get":
        return operands[0].spec if isinstance(operands[0], OperandLayout) else None
    return _contracted(equation, operands)


def of_lookup(values: OperandLayout, axis: int, indices: OperandLayout) -> Spec | None:
    """The spec of `values[:, indices]`, here for the axis 1."""
    return _gathered([values, *[slice(None)] * axis, indices])


def _gathered(operands: Sequence[Any]) -> Spec | None:
    """The spec of `x[rows]`: indexed dimensions take the specs of the index arrays, the others keep those of `x`."""
    lying = specs(operands)
    arrays = {i: spec for i, spec in lying.items() if i and spec}
    if not arrays or 0 not in lying:
        return None
    rank = max(len(spec) for spec in arrays.values())
    used: set[str] = set()

    def free(axes: tuple[str, ...]) -> tuple[str, ...]:
        axes = tuple(axis for axis in axes if axis not in used)
        used.update(axes)
        return axes

    left = list(lying[0])
    whole = [part == slice(None) for part in operands[1:]]
    kept: list[tuple[tuple[str, ...], bool]] = []
    advanced: list[int] = []
    for part, all_of_it in zip(operands[1:], whole, strict=True):
        if part is None:
            kept.append(((), True))
        elif part is ...:
            # An ellipsis covers the dimensions that no other part of the index takes.
            for _ in range(len(lying[0]) - sum(operand is not None and operand is not ... for operand in operands[1:])):
                kept.append((left.pop(0), True))
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
    block: list[tuple[str, ...]] = []
    for dimension in range(-rank, 0):
        candidates = [spec[dimension] for spec in arrays.values() if len(spec) >= -dimension]
        block.append(free(next((axes for axes in candidates if axes), ())))
    return Spec((*before, *block, *after))


def _reshaped(operands: Sequence[Any]) -> Spec | None:
    """The spec of a reshape's result: where dimensions split or merge, the slowest one keeps its mesh axes."""
    array, sizes = operands[0], [size for size in operands[1:] if isinstance(size, int)]
    if not isinstance(array, OperandLayout) or not sizes:
        return None
    inferred = math.prod(array.shape) // max(1, math.prod(size for size in sizes if size >= 0))
    ends = [math.prod(array.shape[: d + 1]) for d in range(len(array.shape))]
    before, spec = 1, list[tuple[str, ...]]()
    for size in (inferred if size < 0 else size for size in sizes):
        # The dimension of the operand that begins where this one does.
        start = next((d for d, n in enumerate(array.shape) if ends[d] == before * n and n > 1), None)
        spec.append(() if start is None or size == 1 else array.spec[start])
        before *= size
    return Spec(spec)


def _contracted(equation: Equation, operands: Sequence[Any]) -> Spec | None:
    """The spec of the result of a contraction; None where its dimensions are not known."""
    operation = row_of(equation.operation)
    if operation.contraction is None or not operation.out_sharding:
        return None
    labels = operation.contraction(operands)
    if labels is None:
        return None
    inputs, output = labels
    kept: dict[str, tuple[str, ...]] = {}
    for labels_of_operand, spec in zip(inputs, specs(operands).values(), strict=True):
        for label, axes in zip(labels_of_operand, spec, strict=True):
            if label in output and not kept.get(label):
                kept[label] = axes
    used: set[str] = set()
    result: list[tuple[str, ...]] = []
    for label in output:
        axes = tuple(axis for axis in kept.get(label, ()) if axis not in used)
        used.update(axes)
        result.append(axes)
    return Spec(result)
