"""Reads the four spellings of replica groups into arrays of devices, and finds the mesh axes that they follow."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

import numpy as np

from runner.base.layout import Mesh

Groups = np.ndarray
"""One row per group, the positions of its devices in the mesh's row-major order."""

_IOTA = re.compile(r"^\[([0-9,]+)\]<=\[([0-9,]+)\](?:T\(([0-9,]+)\))?$")
_MESH = re.compile(r"^@?mesh[\[<]([^\]>]*)[\]>](?:, *device_ids=\((.*?)\))? *\{(.*)\}$")
_TILES = re.compile(r"^\[([0-9,]+)\](?:T\(([0-9,]+)\))?$")


def read(text: str, devices: int) -> Groups | None:
    """The groups that `text` spells; `{}` is a single group of all `devices`. None if it is none of the four spellings.

    - `{{0,2},{1,3}}`
    - `[2,4]<=[4,2]T(1,0)`: the numbers from 0, reshaped to `[4,2]`, transposed, split into 2 groups of 4
    - `mesh['x'=4,'y'=2] {'x'}`: the groups along axes of a mesh; also along a part of an axis: `'x':(2)2`
    - `mesh['x'=4,'y'=2], device_ids=([4,2]T(1,0)) {'x'}`: of a mesh with its devices in another order
    """
    try:
        return _read(text.strip(), devices)
    except (KeyError, ValueError, ZeroDivisionError):
        # Invalid numbers, sizes that do not match or are too large, unknown axes.
        return None


def _read(text: str, devices: int) -> Groups | None:
    if text in ("{}", "{{}}"):
        return _arange(devices)[None]
    if text.startswith("{{"):
        rows = [_numbers(row) for row in re.findall(r"\{([0-9, ]*)\}", text[1:-1])]
        return np.array(rows) if rows and len({len(row) for row in rows}) == 1 else None
    iota = _IOTA.match(text)
    if iota:
        return _iota(_numbers(iota.group(2)), iota.group(3)).reshape(_numbers(iota.group(1)))
    mesh = _MESH.match(text)
    return _of_mesh(*mesh.groups()) if mesh else None


def pairs(text: str) -> Groups | None:
    """The `[from, to]` rows of a permute's `source_target_pairs`."""
    rows = [_numbers(row) for row in re.findall(r"\{([0-9, ]+)\}", text[1:-1])]
    return np.array(rows).reshape(-1, 2) if all(len(row) == 2 for row in rows) else None


def _numbers(text: str | None) -> list[int]:
    return [int(number) for number in (text or "").split(",") if number.strip()]


_DEVICES = 1 << 22
"""The most devices of any module: more than any cluster has."""


def _arange(count: int) -> np.ndarray:
    if count > _DEVICES:
        raise ValueError(f"{count} devices")
    return np.arange(count)


def _iota(shape: list[int], transposed: str | None) -> np.ndarray:
    grid = _arange(math.prod(shape)).reshape(shape)
    return (grid.transpose(_numbers(transposed)) if transposed else grid).ravel()


def _of_mesh(axes: str, device_ids: str | None, along: str) -> Groups | None:
    sizes: dict[str, int] = {}
    for axis in axes.split(","):
        name, _, size = axis.strip().partition("=")
        sizes[name.strip("'\"")] = int(size)
    ids = _arange(math.prod(sizes.values()))
    if device_ids is not None:
        tiles = _TILES.match(device_ids)
        ids = _iota(_numbers(tiles.group(1)), tiles.group(2)) if tiles else np.array(_numbers(device_ids))
    # Each axis is split at the named parts: `'x':(2)4` are 4 parts inside each of 2.
    cuts: dict[str, list[tuple[int, int]]] = {name: [] for name in sizes}
    wanted: list[tuple[str, int]] = []
    for axis in re.findall(r"[^,\s]+", along):
        name, _, part = axis.partition(":")
        name = name.strip("'\"")
        before, size = map(int, re.findall(r"\d+", part)) if part else (1, sizes[name])
        cuts[name].append((before, size))
        wanted.append((name, before))
    shape: list[int] = []
    places: dict[tuple[str, int], int] = {}
    for name, whole in sizes.items():
        done = 1
        for before, size in sorted(cuts[name]):
            if before % done or whole % (before * size):
                return None
            if before > done:
                shape.append(before // done)
            places[name, before] = len(shape)
            shape.append(size)
            done = before * size
        if done < whole:
            shape.append(whole // done)
    last = [places[part] for part in wanted]
    rest = [i for i in range(len(shape)) if i not in last]
    return ids.reshape(shape).transpose([*rest, *last]).reshape(-1, math.prod(shape[i] for i in last))


def axes_of(groups: Groups, mesh: Mesh) -> tuple[str, ...] | None:
    """The fewest mesh axes that give these groups, in the mesh's order. None if no axes do."""
    if groups.size != mesh.size:
        return None
    large = [axis for axis in mesh.axes if mesh.sizes[axis] > 1]
    canonical = _sorted(groups)
    for count in range(len(large) + 1):
        for axes in itertools.combinations(large, count):
            if math.prod(mesh.sizes[axis] for axis in axes) != groups.shape[1]:
                continue
            if np.array_equal(canonical, _sorted(along(mesh, axes))):
                return axes
    return None


def along(mesh: Mesh, axes: tuple[str, ...]) -> Groups:
    """The groups of devices that differ in their coordinates along `axes` only."""
    last = [mesh.axes.index(axis) for axis in axes]
    rest = [i for i in range(len(mesh.axes)) if i not in last]
    grid = np.arange(mesh.size).reshape(mesh.shape).transpose([*rest, *last])
    return grid.reshape(-1, math.prod(mesh.shape[i] for i in last))


def along_parts(mesh: Mesh, axes: Sequence[str]) -> Groups | None:
    """The groups along mesh axes and parts of axes, as Shardy writes them, `x:(2)4`. None without such parts."""
    try:
        return _of_mesh(",".join(f"{axis}={size}" for axis, size in mesh.sizes.items()), None, ",".join(axes))
    except (KeyError, ValueError, ZeroDivisionError):
        return None


def are_equal(groups: Groups, others: Groups) -> bool:
    """Whether these are the same groups, in any order."""
    return groups.shape == others.shape and np.array_equal(_sorted(groups), _sorted(others))


def _sorted(groups: Groups) -> Groups:
    rows = np.sort(groups, axis=1)
    return rows[np.argsort(rows[:, 0])]


def axes_between(sent: Groups, mesh: Mesh) -> tuple[str, ...]:
    """The mesh axes along which a permute's pairs move values."""
    if not sent.size:
        return ()
    coordinates = np.stack(np.unravel_index(sent, mesh.shape))
    moved = (coordinates[..., 0] != coordinates[..., 1]).any(axis=1)
    return tuple(axis for axis, moves in zip(mesh.axes, moved, strict=True) if moves)
