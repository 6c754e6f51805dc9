"""An experiment and the shapes of its values in; what it takes to interpret its sections, as an estimate, out.

It decides whether an interpretation is worth beginning, and is no more exact than that needs: operations inside a line
count as its largest value, and a product as one of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from runner.experiment.model import Experiment, Flat, Node, Section
from runner.graph.model import Graph, walk
from runner.language.operations import OPERATIONS
from runner.layout import Typed

Shapes = Mapping[str, Typed]
"""Of each line, by its path, the shape and the dtype of its value."""

_PASSES = 6
"""How often a section is interpreted: in float64, as the target rounds, and with what rounding does to float64."""

_WITH_GRADIENTS = 4
"""How much longer it takes with gradients: JAX has them on one device, and they are held to differences."""

_ELEMENTS = 3e7
"""Elements that NumPy computes in a second, of a line of a few operations; seen on two cores of a server."""

_FLOPS = 2e9
"""Of a product the same, since sums are added in a compiler's orders too."""

_VALUES_AT_ONCE = 8
"""So many values as large as the largest are held together: operands, results, and what they are compared with."""

_ITEM = 8
"""Bytes of an element in float64."""


@dataclass(frozen=True)
class Effort:
    """Seconds of NumPy on this machine, and bytes of memory, at least."""

    seconds: float
    bytes: int


def effort(experiment: Experiment, types: Mapping[str, Shapes], flops: float = 0.0) -> Effort:
    """What it takes to interpret both sections; `flops` are those of a compiled program, on one device, if known."""
    elements, products, largest = 0.0, 0.0, 0
    sections: tuple[tuple[Section, int], ...] = (("graph", 1), ("per_device", distinct(experiment)))
    for section, devices in sections:
        shapes = types.get(section, {})
        sizes = {
            array.name: math.prod(array.shape if section == "graph" else array.layout.shard_shape)
            for array in experiment.arrays
        }
        multiplying = _multiplying(experiment.computed(section))
        for times, node in _lines(experiment.lines(section)):
            size = math.prod(shapes[node.line.path][0]) if node.line.path in shapes else 0
            read = sorted((sizes.get(name, 0) for name in node.names), reverse=True)
            widest = max([size, *read[:1]])
            elements += times * devices * widest
            largest = max(largest, devices * widest)
            if node.line.path in multiplying:
                # Of matrices of m×k, k×n and m×n the product of the sizes is (m·k·n)².
                sizes_of_matrix = [*read[:2], 1, 1][:2]
                products += times * devices * 2 * math.sqrt(max(size, 1) * math.prod(map(float, sizes_of_matrix)))
            sizes[node.name] = size
    operands = sum(
        math.prod(array.shape) + experiment.mesh.size * math.prod(array.layout.shard_shape)
        for array in experiment.arrays
    )
    passes = _PASSES * (_WITH_GRADIENTS if experiment.grad else 1)
    seconds = passes * (elements / _ELEMENTS + max(products, distinct(experiment) * flops) / _FLOPS)
    return Effort(seconds, _ITEM * (2 * operands + _VALUES_AT_ONCE * largest))


def distinct(experiment: Experiment) -> int:
    """On how many devices values can differ: the interpreter computes once what several devices compute alike."""
    if any("axis_index" in statement.names for statement in experiment.lines("per_device")):
        return experiment.mesh.size
    return experiment.mesh.axis_size(
        tuple(
            axis
            for axis in experiment.mesh.axes
            if any(axis in axes for array in experiment.arrays for axes in array.layout.spec)
        )
    )


def _lines(statements: Iterable[Flat], times: int = 1) -> Iterator[tuple[int, Node]]:
    """The lines, with how often each of them is interpreted."""
    for statement in statements:
        if isinstance(statement, Node):
            yield times, statement
        else:
            yield from _lines(statement.body, times * max(statement.steps, 1))


def _multiplying(graph: Graph) -> frozenset[str]:
    """The lines that have a product of matrices, a convolution, or what costs as much, by their paths."""
    rows = ((equation, OPERATIONS.get(equation.operation)) for equation in walk(graph))
    return frozenset(
        equation.source.line.path
        for equation, row in rows
        if row is not None and (row.contraction is not None or row.name in _COSTLY)
    )


_COSTLY = frozenset((
    "ragged_dot", "matvec", "vecmat", "vecdot", "conv_general_dilated", "conv", "conv_transpose", "inv", "det",
    "slogdet", "solve", "cholesky", "solve_triangular", "qr", "lu", "eigh", "svd", "svdvals", "eigvalsh",
    "matrix_power",
))  # fmt: skip
"""Operations that cost more than their values have elements, and say nothing of what they contract."""
