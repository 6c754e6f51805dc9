"""Takes an equation and its operands on a device; returns how many elements they ask for, before any is computed.

An edit may put any number in the place of a length, and NumPy would allocate what that asks for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from runner.base.untyped import is_sequence
from runner.graph.language.operations import row_of
from runner.graph.language.operators import BY_NAME
from runner.graph.model import Equation

_LENGTHS = (
    "shape", "size", "num_segments", "num", "num_classes", "n", "N", "M", "s", "length", "minlength", "repeats", "reps",
    "slice_size", "slice_sizes", "total_repeat_length", "pad_width", "window_dimensions",
)  # fmt: skip
"""The arguments that give lengths of the result, or of what is computed on the way."""

_FOR_EACH = {"num_classes": 0, "repeats": 0, "reps": 0, "num_segments": 1}
"""Those of them that count for each element of the first operand, from this dimension on."""

_PAIRED = ("outer", "kron")
"""The operations whose result has an element for each pair of elements."""


def asked(equation: Equation, operands: Sequence[Any], named: Mapping[str, Any]) -> float:
    """How many elements these operands ask for; 0 where they give no more than each of them has."""
    if equation.spelled == "index":
        array, index = operands
        return _taken(np.shape(array), index if is_sequence(index) else (index,))
    operator = BY_NAME.get(equation.operation)
    row = operator.operation if operator is not None else row_of(equation.operation)
    shapes = [shape for value in (*operands, *named.values()) if (shape := getattr(value, "shape", None)) is not None]
    if row.contraction is not None:
        return _contracted(row.contraction([*_flat(operands)]), [*_flat(operands)])
    if row.elementwise:
        return _broadcast(shapes)
    if row.key in _PAIRED:
        return math.prod(map(math.prod, shapes))
    arguments = {**dict(zip(row.signature.parameters, operands, strict=False)), **named}
    if row.key == "arange":
        return _counted(*(next(_numbers(arguments.get(name)), None) for name in ("start", "stop", "step")))
    lengths = [abs(number) for name in _LENGTHS for number in _numbers(arguments.get(name)) if number]
    each = [math.prod(shapes[0][first:]) for name, first in _FOR_EACH.items() if name in arguments and shapes]
    return math.prod((*lengths, *each)) if lengths else 0


def _counted(start: float | None, stop: float | None, step: float | None) -> float:
    begin = start or 0.0
    return abs((begin if stop is None else stop - begin) / (step or 1.0))


def _flat(operands: Sequence[Any]) -> Iterator[Any]:
    for operand in operands:
        yield from operand if isinstance(operand, tuple | list) else (operand,)


def _numbers(value: Any) -> Iterator[float]:
    """The numbers in an argument."""
    if is_sequence(value):
        for part in value:
            yield from _numbers(part)
    elif isinstance(value, int | float) or (hasattr(value, "dtype") and np.shape(value) == ()):
        yield float(value)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> int:
    try:
        return math.prod(np.broadcast_shapes(*shapes))
    except ValueError:
        # It says itself that they do not fit.
        return 0


def _contracted(labels: tuple[Sequence[str], str] | None, operands: Sequence[Any]) -> int:
    if labels is None:
        return 0
    arrays = [operand for operand in operands if hasattr(operand, "shape")]
    lengths = {
        label: length
        for of, array in zip(labels[0], arrays, strict=False)
        for label, length in zip(of, array.shape, strict=False)
    }
    return math.prod(lengths.get(label, 1) for label in labels[1])


def _taken(shape: tuple[int, ...], index: Sequence[Any]) -> int:
    """The number of elements that an index of arrays takes of an array."""
    arrays = [np.shape(entry) for entry in index if getattr(getattr(entry, "dtype", None), "kind", "") in ("i", "u")]
    behind = () if any(entry is Ellipsis for entry in index) else shape[len(index) :]
    return _broadcast(arrays) * math.prod(behind) if arrays else 0
