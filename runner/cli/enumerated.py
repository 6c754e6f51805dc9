"""The overrides of a sweep's points in; the same, with a point for each layout that the word `all` stands for, out.

`mesh.shape=all` is every way to make the mesh of its devices; `arrays.A.spec=all` is every PartitionSpec that the
array may have on the point's mesh.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from runner.config.compose import InvalidConfiguration
from runner.config.points import REFUSALS, Composer
from runner.config.sweep import WORD
from runner.experiment import enumeration
from runner.experiment.layouts import read_mesh
from runner.experiment.plain import read_dims, read_size
from runner.experiment.written import spread
from runner.faults import InvalidExperiment
from runner.layout import Mesh, Spec, SpecEntries
from runner.untyped import is_list


def expanded(points: Sequence[Sequence[str]], composer: Composer) -> list[list[str]]:
    """The points, in order. Raises `InvalidConfiguration` where there is nothing that `all` could stand for."""
    return [point for overrides in points for point in _meshes(list(overrides), composer)]


def _meshes(overrides: list[str], composer: Composer) -> Iterator[list[str]]:
    words = [override for override in overrides if _is(override, "mesh")]
    if not words:
        yield from _specs(overrides, composer)
        return
    composed = _composed([o for o in overrides if not WORD.match(o)], composer, words[0])
    target: dict[str, Any] = composed["target"] or {}
    mesh: dict[str, Any] = composed["mesh"]
    axes, shape = mesh.get("axes"), mesh.get("shape")
    if not is_list(axes) or not axes:
        raise _refused(words[0], "the mesh has no axes: name them, as in mesh.axes=[x,y]")
    devices: int | None = target.get("devices")
    if devices is None and is_list(shape) and all(isinstance(size, int) for size in shape):
        devices = math.prod(shape)
    if not isinstance(devices, int) or devices < 1:
        raise _refused(words[0], "of how many devices? Name a mesh, or target.devices=8")
    for sizes in enumeration.factorisations(devices, len(axes)):
        text = f"mesh.shape=[{','.join(map(str, sizes))}]"
        yield from _specs([text if _is(override, "mesh") else override for override in overrides], composer)


def _specs(overrides: list[str], composer: Composer) -> Iterator[list[str]]:
    words = [override for override in overrides if _is(override, "array")]
    if not words:
        yield overrides
        return
    config = _composed([override for override in overrides if not _is(override, "array")], composer, words[0])
    try:
        mesh, dims = read_mesh(config["mesh"]), read_dims(config["dims"] or {})
        choices = [_of_array(override, config, mesh, dims) for override in words]
    except InvalidExperiment as error:
        raise _refused(words[0], f"{'.'.join(map(str, error.fault.key))}: {error.fault.message}") from None
    for chosen in itertools.product(*choices):
        specs = dict(zip(words, chosen, strict=True))
        yield [
            override if override not in specs else f"{override.partition('=')[0]}={_text(specs[override])}"
            for override in overrides
        ]


def _of_array(override: str, config: Any, mesh: Mesh, dims: dict[str, int]) -> list[SpecEntries]:
    match = WORD.match(override)
    assert match is not None
    arrays: dict[str, dict[str, Any]] = spread(config["arrays"] or {}, ("arrays",))
    array = arrays.get(match["array"])
    if array is None:
        there = ", ".join(arrays) or "none"
        raise _refused(override, f"no array '{match['array']}'; there are {there}")
    key = ("arrays", match["array"], "shape")
    shape = [read_size(size, (*key, i), dims) for i, size in enumerate(array["shape"])]
    return list(enumeration.specs(shape, mesh))


def _is(override: str, what: str) -> bool:
    """Whether it is the word for every `mesh`, or for every layout of an `array`."""
    match = WORD.match(override)
    return match is not None and match[what] is not None


def _text(spec: SpecEntries) -> str:
    return Spec.of(spec).yaml().replace(" ", "")


def _composed(overrides: list[str], composer: Composer, word: str) -> Any:
    try:
        return composer.point(overrides).resolved().plain
    except (*REFUSALS, InvalidConfiguration) as error:
        raise _refused(word, f"without it the point cannot be composed: {str(error).splitlines()[0]}") from None


def _refused(override: str, message: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"command line: {override}\n  {message}")
