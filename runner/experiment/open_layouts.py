"""Finds the layouts that a configuration leaves to the planner, and removes them from it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

from runner.base.faults import Key, invalid
from runner.base.invocation import invocation
from runner.base.lazy import dataclass
from runner.base.untyped import is_mapping, leaves
from runner.experiment import enumeration, remat, topology
from runner.experiment.config import schema
from runner.experiment.forms import AUTO, check
from runner.experiment.patterns import fits, flattened, is_pattern
from runner.experiment.written import spread

Least: TypeAlias = Literal["bytes", "time", "memory"]
"""The quantity to minimize: the bytes that a device sends, the time of a run, or the bytes that a device holds."""

_UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12} | {
    f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMGT", start=1)
}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*([kKMGT]?i?B)?\s*")


@dataclass(frozen=True, kw_only=True)
class LineCost:
    """The cost of a part (`what`) of a line in a plan, in the unit of what it minimizes."""

    line: str
    what: str
    cost: float


@dataclass(frozen=True)
class PlanRequest:
    """The key `plan`: what to minimize, the bytes that a device may hold, and how many plans are compiled.

    - `beside`: further quantities to minimize; `seconds`: the time limit of a plan, its tables of costs included.
    - `competitors`: files with handwritten layouts to compare with; `verify`: whether candidates are run, None where
      the planner decides.
    """

    least: Least
    memory: float | None
    candidates: int
    beside: tuple[Least, ...] = ()
    seconds: float = 30.0
    competitors: tuple[str, ...] = ()
    verify: bool | None = None


def shape_is_open(config: Mapping[str, Any]) -> bool:
    """Whether the planner must choose the shape of the mesh."""
    mesh = config.get("mesh")
    return is_mapping(mesh) and mesh.get("shape") == AUTO


def is_open(config: Mapping[str, Any]) -> bool:
    """Whether the planner must choose anything."""
    return shape_is_open(config) or remat.is_open(config) or next(keys(config), None) is not None


def shapes(config: Mapping[str, Any], *, alike: bool) -> list[list[int]]:
    """The candidate shapes of a mesh with `shape: auto`: all factorisations of its devices, the most even ones first.

    If axes are `alike`, so that their sizes can be exchanged, only one order is returned for the axes that the file
    does not name. Raises `InvalidExperiment` if the number of devices is unknown.
    """
    whole: Mapping[str, Any] = schema.whole(config)
    mesh, target = whole["mesh"], whole["target"]
    axes = mesh["axes"]
    check(axes, ("mesh", "axes"))
    if mesh["devices"] is not None:
        devices = len([*leaves(mesh["devices"])])
    elif target["topology"] is not None:
        devices = topology.parse(target["topology"], target["platform"], target["slices"]).devices
    elif target["devices"] is not None:
        devices = target["devices"]
    else:
        message = "the number of devices for mesh.shape=auto is not known: set target.devices=8, or choose a target"
        raise invalid(("mesh", "shape"), message)
    texts = leaves({key: value for key, value in whole.items() if key != "mesh"})
    named = set(_WORDS.findall(" ".join(text for text in texts if isinstance(text, str))))
    free = [at for at, axis in enumerate(axes) if alike and axis not in named]
    factorisations = [
        sizes
        for sizes in enumeration.factorisations(devices, len(axes))
        if all(sizes[a] >= sizes[b] for a, b in itertools.pairwise(free))
    ]
    return sorted(factorisations, key=lambda sizes: (max(sizes) / min(sizes), sizes))


_WORDS = re.compile(r"\w+")


def keys(config: Mapping[str, Any]) -> Iterator[Key]:
    """The keys whose layout the planner must choose."""
    arrays: Mapping[str, Any] = spread(config.get("arrays") or {}, ("arrays",))
    for name, array in arrays.items():
        if is_mapping(array) and array.get("spec") == AUTO:
            yield "arrays", name, "spec"
    for section in ("constraints", "outputs"):
        specs: Mapping[str, Any] = spread(config.get(section) or {}, (section,))
        yield from ((section, name) for name, spec in specs.items() if spec == AUTO)
    yield from (("specs", pattern) for pattern, spec in flattened(config.get("specs") or {}).items() if spec == AUTO)


def apart(config: Mapping[str, Any]) -> list[str]:
    """The patterns of `constraints` that are to be planned for each value inside a call."""
    return [str(name) for section, name, *_ in keys(config) if section == "constraints" and is_pattern(str(name))]


def of_traced(config: Mapping[str, Any], paths: Mapping[str, str], inside: Iterable[str]) -> Iterator[Key]:
    """The same keys after trees are traced: the key of a tree, or a pattern, is replaced by those of its leaves.

    `paths` are the paths of all leaves, by their names, and `inside` those of constrained values inside calls. A leaf
    has the layout of the first pattern of `specs` that its path matches; otherwise the layout beside `tree`, or that of
    the output.
    """
    specs = flattened(config.get("specs") or {})
    arrays: Mapping[str, Any] = spread(config.get("arrays") or {}, ("arrays",))
    outputs: Mapping[str, Any] = spread(config.get("outputs") or {}, ("outputs",))
    roots = {path.partition("/")[0] for path in paths.values()}
    # A tree of a single leaf has its own path.
    single = {name: name for name, array in arrays.items() if is_mapping(array) and array.get("tree")}
    whole = {name: path for name, path in single.items() if name not in roots} | {**paths}
    patterns = apart(config)
    yield from (key for key in keys(config) if key[0] != "specs" and key[1] not in {*roots, *single, *patterns})
    constraints = flattened(config.get("constraints") or {})
    for path in inside:
        # The first pattern that a path fits counts.
        if next((pattern for pattern in constraints if fits(pattern, path)), None) in patterns:
            yield "constraints", path
    for name, path in whole.items():
        root = path.partition("/")[0]
        beside = arrays[root].get("spec") if root in arrays else outputs.get(root)
        if next((spec for pattern, spec in specs.items() if fits(pattern, path)), beside) == AUTO:
            yield ("arrays", name, "spec") if root in arrays else ("outputs", name)


def without(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with replicated arrays, and nothing saved, where the planner must choose."""
    specs = flattened(config.get("specs") or {})
    changed: dict[str, Any] = {
        **(remat.saving(config, ()) if remat.is_open(config) else config),
        "specs": {pattern: [] if spec == AUTO else spec for pattern, spec in specs.items()},
    }
    for section in ("arrays", "constraints", "outputs"):
        changed[section] = spread(config.get(section) or {}, (section,))
    for section, name, *rest in keys(config):
        if section != "specs":
            changed[str(section)][str(name)] = {**changed["arrays"][str(name)], "spec": []} if rest else []
    return changed


def refuse(config: Mapping[str, Any]) -> None:
    """Raise `InvalidExperiment` for the first layout that is `auto`, for commands that need all layouts."""
    key = ("mesh", "shape") if shape_is_open(config) else next(keys(config), None)
    key = ("remat",) if key is None and remat.is_open(config) else key
    if key is not None:
        message = f"no layout yet: {invocation()} plan with the same arguments finds it, and writes a file that runs"
        raise invalid(key, message)


def read_plan(config: Mapping[str, Any]) -> PlanRequest:
    """Read the key `plan`. Raises `InvalidExperiment`."""
    whole: Mapping[str, Mapping[str, Any]] = schema.whole(config)
    request = whole["plan"]
    for name in ("least", "memory", "candidates", "seconds", "competitors", "verify"):
        check(request[name], ("plan", name))
    every: list[Least] = [request["least"]] if isinstance(request["least"], str) else list(request["least"] or ())
    every = list(dict.fromkeys(every)) or ["bytes" if whole["hardware"].get("name") is None else "time"]
    competitors = tuple(request["competitors"] or ())
    amount = _amount(request["memory"])
    verify = None if request["verify"] == AUTO else bool(request["verify"])
    beside, seconds = tuple(every[1:]), float(request["seconds"])
    return PlanRequest(every[0], amount, request["candidates"], beside, seconds, competitors, verify)


def _amount(value: Any) -> float | None:
    """Read a number of bytes."""
    if not isinstance(value, str):
        return None if value is None else float(value)
    match = _AMOUNT.fullmatch(value)
    if match is None or float(match[1]) <= 0 or (match[2] or "B") not in _UNITS:
        message = f"{value!r} is not an amount of memory; write a number of bytes, or one with a unit: 90 GiB"
        raise invalid(("plan", "memory"), message)
    return float(match[1]) * _UNITS[match[2] or "B"]
