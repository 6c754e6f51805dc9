"""A collective and its arguments in; why JAX cannot be given it out, where JAX says nothing or says it unintelligibly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.experiment import Experiment

_DIMENSIONS = ("scatter_dimension", "split_axis", "concat_axis")


def collective(name: str, arguments: Mapping[str, Any], experiment: Experiment) -> str | None:
    """The reason, or None. `arguments` are by name."""
    for argument in _DIMENSIONS:
        value = arguments.get(argument)
        if isinstance(value, int) and value < 0:
            rank = getattr(arguments["x"], "ndim", 0)
            # JAX 0.12 counts from the end; 0.10 takes it and fails in the compiler.
            return f"{name}'s {argument} counts from 0: {value + rank} instead of {value}"
    if experiment.check_vma and name in ("psum", "pmean") and arguments.get("axis_index_groups") is not None:
        return f"under shard_map, JAX has {name} with axis_index_groups only with check_vma: false"
    if name in ("ppermute", "pshuffle"):
        return _permutation(name, arguments, experiment)
    return None


def _permutation(name: str, arguments: Mapping[str, Any], experiment: Experiment) -> str | None:
    axes = arguments["axis_name"]
    mesh = experiment.mesh
    if not isinstance(axes, str):
        ordered = tuple(axis for axis in mesh.axes if axis in axes)
        if tuple(axes) != ordered:
            # JAX 0.10 reads the indices in the mesh's order whatever the order here; 0.12 refuses.
            return f"{name} over several axes names them in the mesh's order: {ordered}"
    size = mesh.axis_size(axes)
    if name == "pshuffle":
        perm = arguments["perm"]
        if sorted(perm) != list(range(size)):
            return f"pshuffle's perm is a permutation of 0 to {size - 1}, not {list(perm)}"
        return None
    if ("perm" in arguments) == ("shift" in arguments):
        return "ppermute takes either perm=[[source, destination], …] or shift="
    if "shift" in arguments:
        if not isinstance(arguments["shift"], int):
            return "ppermute's shift is an integer that is known before the program runs"
        return None
    pairs = arguments["perm"]
    if any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in pairs):
        return f"ppermute takes pairs (source, destination), not {pairs}"
    if any(not 0 <= index < size for pair in pairs for index in pair):
        return f"ppermute's perm has an index outside 0 to {size - 1}: {list(pairs)}"
    if any(len(set(ends)) < len(pairs) for ends in zip(*pairs, strict=True)):
        # Under vmap JAX accepts this.
        return f"ppermute's sources and destinations have to be unique: {list(pairs)}"
    return None
