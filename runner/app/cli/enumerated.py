"""Expands the word `all` in the overrides of a sweep to one point per layout.

`mesh.shape=all` stands for every mesh shape of the devices; `arrays.A.spec=all` for every PartitionSpec that the array
may have on the point's mesh, `specs.params.up=all` for every one that the leaf `params/up` of a tree may have.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runner.app.flow import functions
from runner.base.faults import InvalidExperiment
from runner.base.layout import Mesh
from runner.base.lazy import dataclass
from runner.base.untyped import is_list
from runner.experiment import enumeration
from runner.experiment.arrays import read_mesh
from runner.experiment.config.compose import Configuration, InvalidConfiguration
from runner.experiment.config.points import REFUSALS, Composer
from runner.experiment.config.quoting import WORD
from runner.experiment.config.sweep_size import too_many
from runner.experiment.imported import read_imported
from runner.experiment.plain import read_dims, read_size
from runner.experiment.written import spread
from runner.link.workers import WorkerEnded, Workers

_FEW = 12
"""The largest number of leaf paths that a message names."""

_MOST_DEVICES = 10**9
"""The largest number of devices for which mesh shapes are enumerated."""


def expanded(
    points: Sequence[Sequence[str]], composer: Composer, limit: int, workers: Callable[[], Workers]
) -> list[list[str]]:
    """Return the points, in order. The shapes of a tree's leaves are those that `workers` trace.

    Raises `InvalidConfiguration` if `all` has nothing to stand for, or if there would be more points than the limit;
    they are counted before any is made.
    """
    expanded_points: list[list[str]] = []
    for overrides in points:
        for layouts in _meshes(list(overrides), _PointReader(composer, workers)):
            count = len(expanded_points) + layouts.count
            if count > limit:
                words = " ".join(override for override in overrides if WORD.match(override))
                # The layouts of an array depend on the mesh.
                mine = {kind for o in overrides for kind in ("mesh", "array", "leaf") if _is(o, kind)}
                words_of_both = "mesh" in mine and len(mine) > 1
                whole = len(points) == 1 and not words_of_both
                raise too_many(words, f"{'' if whole else 'at least '}{count:,}", limit)
            expanded_points += layouts.points
    return expanded_points


@dataclass(frozen=True)
class _Layouts:
    """Points that are generated one by one, and their number."""

    count: int
    points: Iterator[list[str]]


@dataclass(frozen=True)
class _PointReader:
    """Composes a point without the words `all`, and traces its imports in the workers."""

    composer: Composer
    workers: Callable[[], Workers]


def _meshes(overrides: list[str], reader: _PointReader) -> Iterator[_Layouts]:
    words = [override for override in overrides if _is(override, "mesh")]
    if not words:
        yield _specs(overrides, reader)
        return
    composed = _composed([o for o in overrides if not WORD.match(o)], reader, words[0]).plain
    target: dict[str, Any] = composed["target"] or {}
    mesh: dict[str, Any] = composed["mesh"]
    axes, shape = mesh.get("axes"), mesh.get("shape")
    if not is_list(axes) or not axes:
        raise _refused(words[0], "the mesh has no axes: name them, as in mesh.axes=[x,y]")
    devices: int | None = target.get("devices")
    if devices is None and is_list(shape) and all(isinstance(size, int) for size in shape):
        devices = math.prod(shape)
    if not isinstance(devices, int) or devices < 1:
        raise _refused(words[0], "the number of devices is not known: name a mesh, or target.devices=8")
    if devices > _MOST_DEVICES:
        raise _refused(words[0], f"there are no {devices:,} devices; name at most {_MOST_DEVICES:,}")
    points = (
        [f"mesh.shape=[{','.join(map(str, sizes))}]" if _is(override, "mesh") else override for override in overrides]
        for sizes in enumeration.factorisations(devices, len(axes))
    )
    if any(_is(override, "array") or _is(override, "leaf") for override in overrides):
        yield from (_specs(point, reader) for point in points)
    else:
        yield _Layouts(enumeration.count_of_factorisations(devices, len(axes)), points)


def _specs(overrides: list[str], reader: _PointReader) -> _Layouts:
    words = [override for override in overrides if _is(override, "array") or _is(override, "leaf")]
    if not words:
        return _Layouts(1, iter([overrides]))
    configuration = _composed([override for override in overrides if override not in words], reader, words[0])
    config = configuration.plain
    try:
        mesh, dims = read_mesh(config), read_dims(config["dims"] or {})
        leaves = _leaves(configuration, reader) if any(_is(override, "leaf") for override in words) else {}
        shapes = {
            override: _shape_of_leaf(override, leaves) if _is(override, "leaf") else _shape(override, config, dims)
            for override in words
        }
    except WorkerEnded as error:
        raise _refused(words[0], str(error)) from None
    except InvalidExperiment as error:
        raise _refused(words[0], f"{'.'.join(map(str, error.fault.key))}: {error.fault.message}") from None
    count = math.prod(enumeration.count_of_specs(shape, mesh) for shape in shapes.values())
    return _Layouts(count, _points(overrides, shapes, mesh))


def _points(overrides: list[str], shapes: dict[str, list[int]], mesh: Mesh) -> Iterator[list[str]]:
    """Yield the overrides with every combination of specs that arrays of the shapes may have."""
    for chosen in itertools.product(*(enumeration.specs(shape, mesh) for shape in shapes.values())):
        specs = dict(zip(shapes, chosen, strict=True))
        yield [
            override
            if override not in specs
            else f"{override.partition('=')[0]}={specs[override].yaml().replace(' ', '')}"
            for override in overrides
        ]


def _shape(override: str, config: Any, dims: dict[str, int]) -> list[int]:
    """Return the shape of the array whose layouts an override enumerates."""
    match = WORD.match(override)
    assert match is not None
    arrays: dict[str, dict[str, Any]] = spread(config["arrays"] or {}, ("arrays",))
    array = arrays.get(match["array"])
    if array is None:
        there = ", ".join(arrays) or "none"
        raise _refused(override, f"no array '{match['array']}'; there are {there}")
    key = ("arrays", match["array"], "shape")
    return [read_size(size, (*key, i), dims) for i, size in enumerate(array["shape"])]


def _leaves(configuration: Configuration, reader: _PointReader) -> dict[str, list[int]]:
    """Trace the trees of a configuration; return the shapes of their leaves by path."""
    with TemporaryDirectory(prefix="shardproof-") as scratch:
        into, workers = Path(scratch), reader.workers()
        config = functions.traced(configuration.plain, into, configuration.sources, workers, values=False)
    paths = read_imported(config).paths
    return {paths[name]: array["shape"] for name, array in config["arrays"].items() if name in paths}


def _shape_of_leaf(override: str, leaves: Mapping[str, list[int]]) -> list[int]:
    """Return the shape of the leaf whose layouts an override enumerates."""
    match = WORD.match(override)
    assert match is not None
    path = match["leaf"].replace(".", "/")
    if path not in leaves:
        there = ", ".join(list(leaves)[:_FEW]) + (", …" if len(leaves) > _FEW else "")
        raise _refused(override, f"no leaf '{path}'; there are {there or 'none: no array is a tree'}")
    return leaves[path]


def _is(override: str, what: str) -> bool:
    """Return whether an override enumerates every `mesh`, or every layout of an `array` or a `leaf`."""
    match = WORD.match(override)
    return match is not None and match[what] is not None


def _composed(overrides: list[str], reader: _PointReader, word: str) -> Configuration:
    try:
        return reader.composer.point(overrides).resolved()
    except (*REFUSALS, InvalidConfiguration) as error:
        raise _refused(word, f"without it the point cannot be composed: {str(error).splitlines()[0]}") from None


def _refused(override: str, message: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"command line: {override}\n  {message}")
