"""Takes the values of a function and of its reference; says at which line they part, if a value of the reference mends.

A line is named only where all that it reads is in the reference, its value is not, and the function equals the
reference once a value of the reference stands in its place: other algorithms have values of their own, and are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from runner.checks.reference import PerDevice
from runner.graph.model import Equation, Graph, Repeat

_CLOSE = 1e-6
"""How far values that are the same may be apart, relative to the largest element: literals have 24 bits."""

_SCALE = 1e-4
"""How far the largest elements of such values may be apart, relative to them."""


def parted(
    graph: Graph,
    function: Mapping[int, PerDevice],
    reference: Mapping[int, PerDevice],
    recognised: Callable[[PerDevice], bool | None],
    mends: Callable[[int, int], bool],
) -> tuple[Equation, int] | None:
    """Return the first equation of a function that parts from its reference, and the number of the value of the
    reference that it should have; None if there is none.

    `function` and `reference` have the values of both on the same arrays, by number. `recognised` says whether the
    elements of a value are in the reference, None if nothing tells them from others: then it may be there in another
    order, or as a choice of elements, which is no reason to trust what reads it. `mends` says whether the function
    equals its reference with the second value in the place of the first.
    """
    meant = {key: number for number, value in reference.items() if (key := _key(value)) is not None}
    shared = {value.number for value in graph.inputs}
    shared |= {number for number, value in function.items() if _key(value) in meant}
    for equation in lines(graph):
        number = equation.results[0].number
        shape = _shape(function.get(number))
        if shape is None or number in shared or not shared.issuperset(equation.reads):
            continue
        if recognised(function[number]):
            continue
        for other in meant.values():
            if _shape(reference[other]) == shape and mends(number, other):
                return equation, other
    return None


def lines(graph: Graph) -> Iterator[Equation]:
    """The equations outside of repeats."""
    return (equation for equation in graph.equations if not isinstance(equation.form, Repeat))


def _shape(value: PerDevice | None) -> tuple[int, ...] | None:
    """The shape of a value; None for one that is no array of numbers."""
    only: Any = value[0] if value is not None and len(value) == 1 else None
    return np.shape(only) if getattr(getattr(only, "dtype", None), "kind", None) in _NUMBERS else None


_NUMBERS = (*"biufc",)
"""The kinds of dtypes of numbers."""


def _key(value: PerDevice) -> object:
    """What values have in common that have the same elements in the same order, whatever their shapes."""
    if _shape(value) is None:
        return None
    flat = np.asarray(value[0], np.complex128).ravel()
    largest = float(np.abs(flat).max(initial=0.0, where=np.isfinite(flat)))
    with np.errstate(all="ignore"):
        rounded = np.round(flat / (largest * _CLOSE or 1.0)) + 0.0
        size = round(math.log(largest) / _SCALE) if largest else 0
    return (flat.size, size, rounded.tobytes())
