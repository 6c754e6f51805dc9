"""An experiment in; the names of its outputs' dimensions, if these are dimensions of its arrays, out.

Outputs do not name their dimensions. But if every dim has a distinct size, the shape of a result shows its dims: the
experiment is read at such sizes, on one device, and NumPy computes the shapes. Since two dims may add up to a third,
this is done at two sets of sizes; a dimension gets the only name that fits both.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from runner import dtypes
from runner.experiment.definition import at
from runner.experiment.model import Experiment
from runner.experiment.reader import read
from runner.reference import interpret
from runner.reference.decisions import Recording, Script

_SIZES = ((5, 7, 11, 13, 17, 19, 23, 29, 31, 37), (13, 11, 5, 7, 19, 17, 29, 31, 37, 23))

_MOST = 1_000_000
"""The largest number of elements of a value that is computed to find names."""

Names = Mapping[str, tuple[str | None, ...]]


def names(experiment: Experiment) -> Names:
    """The names of each output's dimensions, None for one without; outputs without any name are left out."""
    gradients = {f"grad.{name}": experiment.array(name).dims for name in experiment.grad.wrt} if experiment.grad else {}
    # A traced function has the sizes that it was traced at.
    if experiment.imports.functions:
        return gradients
    return {**_named(json.dumps(_without_layouts(experiment.definition))), **gradients}


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


@functools.lru_cache(maxsize=256)
def _named(definition: str) -> Names:
    first, second = (_at(json.loads(definition), sizes) for sizes in _SIZES)
    return {
        name: tuple(_only(a & b) for a, b in zip(fitting, second[name], strict=True))
        for name, fitting in first.items()
        if name in second and len(fitting) == len(second[name])
    }


def _only(fitting: set[str]) -> str | None:
    return fitting.pop() if len(fitting) == 1 else None


def _at(definition: Mapping[str, Any], sizes: tuple[int, ...]) -> dict[str, list[set[str]]]:
    """The names that fit each dimension of the outputs at some sizes; {} if these sizes are no valid experiment."""
    free = [name for name, size in definition["dims"].items() if isinstance(size, int)]
    if len(free) > len(sizes):
        return {}
    # The file did not choose these sizes: an error with them is not the user's.
    try:
        smaller = read(at(definition, dims=dict(zip(free, sizes, strict=False))))
        named = {dim for array in smaller.arrays for dim in array.dims if dim is not None}
        if not named:
            return {}
        # Arrays whose sizes are not dims keep them: a broadcast takes no memory.
        ones = {a.name: np.broadcast_to(dtypes.dtype(a.dtype).numpy.type(1), a.shape) for a in smaller.given}
        section = "graph" if smaller.graph else "per_device"
        # A while of ones may not end.
        script = Script(Recording())
        values = interpret(smaller, section, ones, keep=smaller.results, most=_MOST, script=script).values
    except Exception:
        return {}
    return {
        name: [{dim for dim in named if smaller.dims.get(dim) == size} for size in getattr(value[0], "shape", ())]
        for name, value in values.items()
        if name in smaller.results
    }
