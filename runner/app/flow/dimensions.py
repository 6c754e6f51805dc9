"""Names the dimensions of an experiment's outputs, if these are dimensions of its arrays.

Outputs do not name their dimensions. But if every dim has a distinct size, the shape of a result shows its dims: the
experiment is read once at such sizes, on one device, and NumPy computes the shapes. A dimension gets the only name that
fits there and at the sizes of the file.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from runner.base import dtypes
from runner.checks.reference import interpret
from runner.checks.reference.decisions import Recording, Script
from runner.experiment.definition import at
from runner.experiment.model import Experiment
from runner.experiment.reader import read

_SIZES = (7, 13, 5, 19, 11, 29, 17, 37, 23, 31, 43)
"""The sizes of the dims, in the order of the file: odd primes, so that none is the sum or the product of two others."""

_MOST = 1_000_000
"""The largest number of elements of a value that is computed to find names."""

Fitting = Mapping[str, tuple[frozenset[str], ...]]
"""For each dimension of an output, the dims that have its size at `_SIZES`."""

Names = Mapping[str, tuple[str | None, ...]]


def fitting(experiment: Experiment) -> Fitting:
    """The names that may be those of each output's dimensions; outputs of which nothing is known are left out."""
    arrays = {array.name: tuple(frozenset([dim] if dim else ()) for dim in array.dims) for array in experiment.arrays}
    gradients = {f"grad.{name}": arrays[name] for name in experiment.grad.wrt} if experiment.grad else {}
    # A traced function has the sizes that it was traced at.
    if experiment.imports.functions or not any(map(any, arrays.values())):
        return gradients
    return {**_fitting(json.dumps(_without_layouts(experiment.definition))), **gradients}


def names(fitting: Fitting, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> Names:
    """The names of the dimensions of outputs with these `shapes`, None for one without.

    `dims` are the sizes at which the outputs have these shapes. Outputs without any name are left out. An expression of
    dims, such as `4 * B`, is the name in an array, and so it is that of the array's gradient.
    """
    return {
        name: tuple(
            _only({dim for dim in each if dims.get(dim, size) == size}) for each, size in zip(there, shape, strict=True)
        )
        for name, shape in shapes.items()
        if len(there := fitting.get(name, ())) == len(shape)
    }


def _without_layouts(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the definition that the names depend on: points of a sweep often differ in layouts only."""
    return {
        **definition,
        "mesh": {**definition["mesh"], "shape": [1] * len(definition["mesh"]["axes"]), "devices": None},
        "target": {"platform": "cpu"},
        "arrays": {name: {**array, "init": 1, "spec": []} for name, array in definition["arrays"].items()},
        "outputs": dict.fromkeys(definition["outputs"], ()),
        "constraints": {},
        "verify_dims": {},
        "require": [],
        "expect": {},
        "show": "auto",
    }


def _only(names: set[str]) -> str | None:
    return names.pop() if len(names) == 1 else None


@functools.lru_cache(maxsize=256)
def _fitting(text: str) -> Fitting:
    """The names that fit at `_SIZES`; {} if the definition, JSON in `text`, is not valid there."""
    definition: Mapping[str, Any] = json.loads(text)
    sizes = _sizes(definition["dims"])
    if sizes is None:
        return {}
    # The file did not choose these sizes: an error with them is not the user's.
    try:
        smaller = read(at(definition, dims=sizes))
        named = {dim for array in smaller.arrays for dim in array.dims if dim is not None}
        # Arrays whose sizes are not dims keep them: a broadcast takes no memory.
        ones = {a.name: np.broadcast_to(dtypes.dtype(a.dtype).numpy.type(1), a.shape) for a in smaller.given}
        section = "graph" if smaller.graph else "per_device"
        # A while of ones may not end.
        script = Script(Recording())
        values = interpret(smaller, section, ones, keep=smaller.results, most=_MOST, script=script).values
    except Exception:
        return {}
    return {
        name: tuple(
            frozenset(dim for dim in named if smaller.dims.get(dim) == size) for size in getattr(value[0], "shape", ())
        )
        for name, value in values.items()
        if name in smaller.results
    }


def _sizes(dims: Mapping[str, Any]) -> dict[str, int] | None:
    """A size for each dim that the file gives as a number, none of them the file's own; None if there are too many."""
    left: list[int] = [*_SIZES]
    sizes: dict[str, int] = {}
    for name, own in dims.items():
        if isinstance(own, int):
            size = next((size for size in left if size != own), None)
            if size is None:
                return None
            left.remove(size)
            sizes[name] = size
    return sizes
