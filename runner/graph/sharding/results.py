"""Computes the layout of a call's result, whose dimensions keep their mesh axes.

Operands are numbered as `operands` in `runner/programs/` numbers them: an `OperandLayout` for an array, any other
argument as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.graph.language.operations import OPERATIONS
from runner.graph.model import INDEX, Equation


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
    """The spec of the result of a subscript or a contraction; of two dimensions with one mesh axis, the first keeps it.

    None for any other call, and where the result's layout cannot be named.
    """
    if equation.operation == INDEX:
        return _gathered(operands)
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


def _contracted(equation: Equation, operands: Sequence[Any]) -> Spec | None:
    """The spec of the result of a contraction; None where its dimensions are not known."""
    operation = OPERATIONS.get(equation.operation)
    if operation is None or operation.contraction is None or not operation.out_sharding:
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
