"""Contracts arrays by labels: every `einsum` of the interpreter, at the speed of BLAS."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from runner.graph.language.notation import Labels, spelled


def contract(labels: Labels, *operands: Any) -> Any:
    """`np.einsum`, but as a batched matrix product for two plain arrays of floats.

    NumPy multiplies two operands element by element, which takes a minute where BLAS takes a second; with `optimize` it
    uses BLAS only where there is no batch dimension.

    - `labels`: those of the operands and of the result.
    - `operands`: arrays; those of a subclass (`Rounded`) go to `np.einsum`, which dispatches to their class.
    """
    inputs, result = labels
    if len(operands) == 2 and all(type(operand) is np.ndarray and operand.dtype.kind in "fc" for operand in operands):
        first, second = inputs
        distinct = all(len(set(names)) == len(names) for names in inputs)
        # A matrix product needs summed dimensions, and each of them in both operands.
        if distinct and set(first) ^ set(second) <= set(result) and set(first) & set(second) - set(result):
            return _multiplied(first, second, result, *operands)
    return np.einsum(spelled(labels), *operands)


def _multiplied(first: str, second: str, result: str, a: Any, b: Any) -> Any:
    """Multiply as matrices: shared dimensions that the result keeps are batch dimensions, the others are summed."""
    size: dict[str, int] = {}
    for name, length in zip(first + second, a.shape + b.shape, strict=True):
        size[name] = max(length, size.get(name, 1)) if length else 0
    batch = [name for name in result if name in first and name in second]
    summed = [name for name in first if name not in result]
    rows = [name for name in result if name in first and name not in second]
    columns = [name for name in result if name in second and name not in first]

    def matrix(names: str, value: Any, *groups: list[str]) -> Any:
        # A dimension of size 1 in one operand serves all of the other's.
        value = np.broadcast_to(value, [size[name] for name in names])
        turned = value.transpose([names.index(name) for group in (batch, *groups) for name in group])
        lengths = (math.prod(size[name] for name in group) for group in groups)
        return turned.reshape(*(size[name] for name in batch), *lengths)

    product = np.matmul(matrix(first, a, rows, summed), matrix(second, b, summed, columns))
    order = [*batch, *rows, *columns]
    return product.reshape([size[name] for name in order]).transpose([order.index(name) for name in result])
