"""Estimates the time and memory that the interpretation of an experiment's sections takes.

The estimate decides whether an interpretation is worth starting, and is only as exact as that requires: operations
inside a line count as its largest value, and a product as one of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from runner.base.layout import Typed
from runner.base.lazy import dataclass
from runner.experiment.model import Experiment, Section
from runner.graph.language.lines import lines
from runner.graph.language.operations import row_of
from runner.graph.language.syntax import Expression
from runner.graph.model import Graph, Repeat, walk
from runner.graph.source import Line
from runner.graph.spelling import Spelling

Shapes = Mapping[str, Typed]
"""The shape and dtype of each line's value, by the line's path."""

_PASSES = 6
"""The number of times a section is interpreted: in float64, as the target rounds, and for float64's rounding."""

_WITH_GRADIENTS = 4
"""The factor for experiments with gradients: JAX computes them on one device, and they are checked by differences."""

_ELEMENTS = 3e7
"""Elements per second that NumPy computes in a line of a few operations; measured on two cores of a server."""

_FLOPS = 2e9
"""Operations per second of a product, including the interpretations with other orders of its sums."""

_VALUES_AT_ONCE = 8
"""The number of values of the largest size in memory at once: operands, results, and what they are compared with."""

_ITEM = 8
"""Bytes of an element in float64."""


@dataclass(frozen=True)
class Effort:
    """Seconds of NumPy on this machine, and bytes of memory; lower bounds."""

    seconds: float
    bytes: int


def effort(experiment: Experiment, types: Mapping[str, Shapes], flops: float = 0.0) -> Effort:
    """The effort to interpret both sections; `flops` are a compiled program's, on one device, if known."""
    elements, products, largest = 0.0, 0.0, 0
    sections: tuple[tuple[Section, int], ...] = (("graph", 1), ("per_device", distinct(experiment)))
    for section, devices in sections:
        shapes = types.get(section, {})
        sizes = {
            array.name: math.prod(array.shape if section == "graph" else array.layout.shard_shape)
            for array in experiment.arrays
        }
        multiplying = _multiplying(experiment.computed(section))
        for times, line, read_names in _lines(experiment.computed(section)):
            size = math.prod(shapes[line.path][0]) if line.path in shapes else 0
            read = sorted((sizes.get(name, 0) for name in read_names), reverse=True)
            widest = max([size, *read[:1]])
            elements += times * devices * widest
            largest = max(largest, devices * widest)
            if line.path in multiplying:
                # Of matrices of m×k, k×n and m×n the product of the sizes is (m·k·n)².
                sizes_of_matrix = [*read[:2], 1, 1][:2]
                products += times * devices * 2 * math.sqrt(max(size, 1) * math.prod(map(float, sizes_of_matrix)))
            sizes[line.name] = size
    operands = sum(
        math.prod(array.shape) + experiment.mesh.size * math.prod(array.layout.shard_shape)
        for array in experiment.arrays
    )
    passes = _PASSES * (_WITH_GRADIENTS if experiment.grad else 1)
    seconds = passes * (elements / _ELEMENTS + max(products, distinct(experiment) * flops) / _FLOPS)
    return Effort(seconds, _ITEM * (2 * operands + _VALUES_AT_ONCE * largest))


def distinct(experiment: Experiment) -> int:
    """The number of devices whose values can differ: the interpreter computes equal values once."""
    if any(equation.operation == "axis_index" for equation in walk(experiment.computed("per_device"))):
        return experiment.mesh.size
    return experiment.mesh.axis_size(
        tuple(
            axis
            for axis in experiment.mesh.axes
            if any(axis in axes for array in experiment.arrays for axes in array.layout.spec)
        )
    )


def _lines(graph: Graph) -> Iterator[tuple[int, Line, frozenset[str]]]:
    """The lines and the names that each reads, with the number of times that each is interpreted."""
    spelling = Spelling.of(graph)

    def inside(graph: Graph, times: int) -> Iterator[tuple[int, Line, frozenset[str]]]:
        for equation in lines(graph):
            if isinstance(equation.form, Repeat):
                yield from inside(equation.bodies[0], times * max(equation.form.counted, 1))
            else:
                yield times, equation.source.line, Expression("", spelling.equation(equation)).names

    return inside(graph, 1)


def _multiplying(graph: Graph) -> frozenset[str]:
    """The paths of lines with a matrix product, a convolution, or an operation of similar cost."""
    rows = ((equation, row_of(equation.operation)) for equation in walk(graph))
    return frozenset(equation.source.line.path for equation, row in rows if row.contraction is not None or row.costly)
