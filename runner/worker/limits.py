"""A collective and its arguments in; why JAX cannot be given it out, where JAX says nothing or nothing intelligible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from runner.experiment.model import Experiment
from runner.worker.versions import varying_axes

_DIMENSIONS = ("scatter_dimension", "split_axis", "concat_axis")
_ONE_AXIS_UNDER_VMAP = ("psum_scatter", "all_gather", "ppermute", "pshuffle")
"""JAX's vmap gives these several axes at once either an assertion or, silently, the first axis alone."""


def collective(name: str, arguments: Mapping[str, Any], experiment: Experiment, *, under_vmap: bool) -> str | None:
    """The reason, or None. `arguments` are by name."""
    axes = arguments.get("axis_name", ())
    axes = (axes,) if isinstance(axes, str) else tuple(axes)
    size = experiment.mesh.axis_size(axes)
    x = arguments.get("x")
    for argument in _DIMENSIONS:
        value = arguments.get(argument)
        if isinstance(value, int) and value < 0:
            # JAX 0.12 counts from the end; 0.10 takes it and fails in the compiler.
            return f"{name}'s {argument} counts from 0: {value + np.ndim(arguments['x'])} instead of {value}"
    if name == "psum_scatter" and getattr(x, "dtype", None) == np.bool_:
        return "psum_scatter does not add booleans; convert them first: astype(…, 'int32')"
    if name == "pbroadcast" and experiment.target.platform != "gpu":
        return "JAX compiles pbroadcast for GPUs only"
    if name in ("ppermute", "pshuffle"):
        reason = _permutation(name, arguments, experiment, axes, size)
        if reason:
            return reason
    groups = arguments.get("axis_index_groups")
    if groups is not None and sorted(index for members in groups for index in members) != list(range(size)):
        return f"{name}'s axis_index_groups hold each of 0 to {size - 1} once, not {_plain(groups)}"
    if under_vmap:
        return _under_vmap(name, arguments, axes, size)
    if experiment.check_vma and hasattr(x, "shape"):
        return _varying(name, x, groups, axes)
    return None


def _permutation(
    name: str, arguments: Mapping[str, Any], experiment: Experiment, axes: tuple[str, ...], size: int
) -> str | None:
    ordered = tuple(axis for axis in experiment.mesh.axes if axis in axes)
    if axes != ordered:
        # JAX 0.10 reads the indices in the mesh's order whatever the order here; 0.12 refuses.
        return f"{name} over several axes names them in the mesh's order: {ordered}"
    if name == "pshuffle":
        perm = arguments["perm"]
        right = sorted(perm) == list(range(size))
        return None if right else f"pshuffle's perm is a permutation of 0 to {size - 1}, not {list(perm)}"
    if ("perm" in arguments) == ("shift" in arguments):
        return "ppermute takes either perm=[[source, destination], …] or shift="
    if "shift" in arguments:
        known = isinstance(arguments["shift"], int)
        return None if known else "ppermute's shift is an integer that is known before the program runs"
    pairs = arguments["perm"]
    if any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in pairs):
        return f"ppermute takes pairs [source, destination], not {list(pairs)}"
    if any(not 0 <= index < size for pair in pairs for index in pair):
        return f"ppermute's perm has an index outside 0 to {size - 1}: {_plain(pairs)}"
    if any(len(set(ends)) < len(pairs) for ends in zip(*pairs, strict=True)):
        # Under vmap JAX accepts this.
        return f"ppermute's sources and destinations have to be unique: {_plain(pairs)}"
    return None


def _under_vmap(name: str, arguments: Mapping[str, Any], axes: tuple[str, ...], size: int) -> str | None:
    if name in _ONE_AXIS_UNDER_VMAP and len(axes) > 1:
        return f"jax.vmap has no {name} over several axes"
    if name == "ppermute" and len(arguments.get("perm", range(size))) < size:
        return "jax.vmap has no ppermute whose perm leaves a device out"
    if arguments.get("axis_index_groups") is not None:
        return f"jax.vmap has no {name} with axis_index_groups"
    return None


def _varying(name: str, x: Any, groups: Any, axes: tuple[str, ...]) -> str | None:
    """What is wrong with the axes over which `x` varies, for the types that `check_vma` keeps."""
    if name in ("psum", "pmean") and groups is not None:
        return f"under shard_map, JAX has {name} with axis_index_groups only with check_vma: false"
    varying = varying_axes(jax.typeof(x))
    there = [axis for axis in axes if axis in varying]
    if name == "pcast" and there:
        return f"its operand {_type(x)} varies over {_and(there)} already; pcast to the other axes only"
    others = [axis for axis in axes if axis not in varying]
    if name != "pcast" and there and others:
        return (
            f"its operand {_type(x)} varies over {_and(there)} but is the same along {_and(others)}, and JAX takes no "
            f"mixture; leave {_and(others)} out, or use pcast(…, {others[0]!r}, to='varying') first"
        )
    return None


def _type(x: Any) -> str:
    kind = jax.typeof(x)
    return f"{kind.dtype}{list(kind.shape)}"


def _and(axes: list[str]) -> str:
    return " and ".join(f"'{axis}'" for axis in axes)


def _plain(groups: Any) -> list[list[int]]:
    return [list(members) for members in groups]
