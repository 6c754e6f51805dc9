"""A call that the types of explicit sharding refuse in; the repairs to try, likeliest and cheapest first, out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.graph.model import Equation
from runner.language.operations import OPERATIONS
from runner.layout import Mesh, Spec
from runner.sharding.results import OperandLayout, of_result


@dataclass(frozen=True)
class Repair:
    """What explicit sharding asks of one call: the sharding of its result, or of some of its operands.

    Found by `runner/worker/explicit.py`. Operands are numbered as `operands` in `runner/programs/` lists them;
    those of an operator, left then right.
    """

    out_sharding: Spec | None = None
    operands: Mapping[int, Spec] = field(default_factory=dict[int, Spec])


def candidates(equation: Equation, operands: Sequence[Any], mesh: Mesh, promised: Spec | None) -> Iterator[Repair]:
    """The repairs of a call.

    First its result's sharding is named, where it can be: as the file has `promised` it, then as its operands lie. Then
    operands are resharded, those first that leave the fewest bytes on a device.
    """
    operation = OPERATIONS.get(equation.operation)
    if promised is not None and operation is not None and operation.out_sharding:
        yield Repair(out_sharding=promised)
    derived = of_result(equation, operands)
    if derived is not None:
        yield Repair(out_sharding=derived)
    arrays = {i: operand for i, operand in enumerate(operands) if isinstance(operand, OperandLayout)}

    def cost(moved: dict[int, Spec]) -> tuple[float, int, tuple[int, ...]]:
        held = [
            math.prod(arrays[i].shape) * arrays[i].itemsize / math.prod(map(mesh.axis_size, spec))
            for i, spec in moved.items()
        ]
        # Where all is equal, what stands first keeps its layout.
        return sum(held), len(moved), tuple(-i for i in moved)

    moves = {
        tuple(moved.items()): moved
        for moved in resharded(arrays)
        if moved and all(_divides(mesh, spec, arrays[i].shape) for i, spec in moved.items())
    }
    for moved in sorted(moves.values(), key=cost):
        yield Repair(operands=moved)


def _divides(mesh: Mesh, spec: Spec, shape: tuple[int, ...]) -> bool:
    return all(n % mesh.axis_size(axes) == 0 for n, axes in zip(shape, spec, strict=True))


def resharded(arrays: Mapping[int, OperandLayout]) -> Iterator[dict[int, Spec]]:
    """The ways to reshard operands: like one another, with fewer dimensions sharded, or both.

    Each way holds the operands that change.
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


def _aligned(spec: Spec, shape: tuple[int, ...], target: tuple[int, ...]) -> Spec:
    """`spec` of an array of `shape`, for an array of the shape `other` that broadcasts against it."""
    axes_of = {
        -d: axes
        for d, axes in enumerate(reversed(spec), 1)
        if target[-d : -d + 1 or None] == shape[-d : -d + 1 or None]
    }
    return Spec(axes_of.get(d, ()) for d in range(-len(target), 0))
