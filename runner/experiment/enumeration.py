"""Enumerates meshes and layouts, and identifies those that are equal up to a symmetry of the mesh."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.base.layout import Mesh, Spec
from runner.base.untyped import is_dict, is_list
from runner.experiment.program import Program
from runner.graph.language.printing import text
from runner.graph.language.syntax import SyntaxFault, parse
from runner.graph.model import literal
from runner.graph.term import Const, Term, mapped


def factorisations(devices: int, axes: int) -> Iterator[list[int]]:
    """Every mesh of `axes` axes that has all devices; some axes may have size 1."""
    yield from _of_divisors(devices, axes, _divisors(devices))


def _of_divisors(devices: int, axes: int, divisors: Sequence[int]) -> Iterator[list[int]]:
    if axes == 1:
        yield [devices]
        return
    for first in divisors:
        if devices % first == 0:
            for rest in _of_divisors(devices // first, axes - 1, divisors):
                yield [first, *rest]


def count_of_factorisations(devices: int, axes: int) -> int:
    """The number of `factorisations`: each prime factor, with its multiplicity, goes to one of the axes."""
    count, left, prime = 1, devices, 2
    while left > 1:
        prime = prime if prime * prime <= left else left
        times = 0
        while left % prime == 0:
            left, times = left // prime, times + 1
        count *= math.comb(times + axes - 1, axes - 1)
        prime += 1
    return count


def _divisors(number: int) -> list[int]:
    """The divisors of a number, the largest first."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)}, reverse=True)


def count_of_specs(shape: Sequence[int], mesh: Mesh) -> int:
    """The number of `specs`, without making any.

    For one dimension after the other it counts the ways to have used each set of axes. Several axes of one dimension
    count in every order.
    """
    sizes = [size for size in mesh.sizes.values() if size > 1]
    # Axes of one size are alike: only the number of unused axes of each size matters.
    kinds = Counter(sizes)
    ways: Counter[tuple[int, ...]] = Counter({tuple(kinds.values()): 1})
    for length in shape:
        after: Counter[tuple[int, ...]] = Counter()
        for left, count in ways.items():
            for used in itertools.product(*(range(number + 1) for number in left)):
                if length % math.prod(size**number for size, number in zip(kinds, used, strict=True)) == 0:
                    chosen = math.prod(math.comb(n, k) for n, k in zip(left, used, strict=True))
                    rest = tuple(n - k for n, k in zip(left, used, strict=True))
                    after[rest] += count * chosen * math.factorial(sum(used))
        ways = after
    return ways.total()


def specs(shape: Sequence[int], mesh: Mesh) -> Iterator[Spec]:
    """Every PartitionSpec of an array in which each dimension is divisible by its axes and no axis is used twice.

    An axis of size 1 shards nothing and is left out. The order of the axes of one dimension counts.
    """
    cutting = tuple(axis for axis, size in mesh.sizes.items() if size > 1)
    yield from map(Spec, _entries(shape, mesh, cutting))


def _entries(shape: Sequence[int], mesh: Mesh, left: tuple[str, ...]) -> Iterator[list[tuple[str, ...]]]:
    if not shape:
        yield []
        return
    for count in range(len(left) + 1):
        for axes in itertools.permutations(left, count):
            if shape[0] % math.prod(mesh.sizes[axis] for axis in axes) == 0:
                rest = tuple(axis for axis in left if axis not in axes)
                yield from ([axes, *inner] for inner in _entries(shape[1:], mesh, rest))


_LAYOUTS = ("arrays", "outputs", "constraints")
_SECTIONS = ("graph", "per_device", "functions")
_DESCRIPTIVE = ("name", "summary", "source", "show", "test")
"""The keys that describe an experiment and do not affect what is computed."""


def identity(config: Mapping[str, Any]) -> str:
    """A text that two experiments share if a symmetry of the mesh maps one to the other, on identical devices.

    A mesh of simulated devices is determined by its axes and their sizes; the order of the axes only numbers the
    devices, and names are arbitrary if all specs and collectives use the same ones. Axes of one size are therefore
    interchangeable. Of all possible names of the axes, those that come first as text are used.
    """
    axes, sizes = config["mesh"]["axes"], config["mesh"]["shape"]
    left = {key: value for key, value in config.items() if key not in (*_DESCRIPTIVE, "mesh")}
    left["devices"] = config["mesh"].get("devices")
    types = config["mesh"].get("types") or [None] * len(axes)
    if _of_graph(config.get("program")):
        # Lines that no program is written from do not affect the run.
        left.pop("per_device", None)
        left.pop("manual", None)
    new = [f"axis {k}" for k in range(len(axes))]
    parts: list[str] = []
    for order in itertools.permutations(range(len(axes))):
        names = {axes[k]: new[place] for place, k in enumerate(order)}
        renamed = {key: _renamed(key, value, names) for key, value in left.items()}
        parts.append(json.dumps([[[sizes[k], types[k]] for k in order], renamed], sort_keys=True, default=str))
    return min(parts)


def _of_graph(programs: Any) -> bool:
    """Whether all named programs are written from the graph."""
    named = programs if is_list(programs) else [programs]
    return all(isinstance(name, str) and name in tuple(Program) and Program(name).section == "graph" for name in named)


def _renamed(key: str, value: Any, names: Mapping[str, str]) -> Any:
    if key == "arrays" and is_dict(value):
        return {name: {**array, "spec": _axes(array.get("spec"), names)} for name, array in value.items()}
    if key in _LAYOUTS and is_dict(value):
        return {name: _axes(spec, names) for name, spec in value.items()}
    if key in _SECTIONS:
        return _expressions(value, names)
    if key == "manual" and is_list(value):
        return sorted(names.get(axis, str(axis)) for axis in value)
    return _rules(value, names) if key == "rules" else value


def _rules(value: Any, names: Mapping[str, str]) -> Any:
    """Rules with other names of the mesh axes; an invalid rule is left as it is, and refused later."""
    if is_dict(value):
        axes = {"mesh_axes": _axes(value["mesh_axes"], names)} if is_list(value.get("mesh_axes")) else {}
        return {**value, **axes, "logical_axis_rules": _rules(value.get("logical_axis_rules"), names)}
    if not is_list(value):
        return value
    return [[rule[0], *_axes(rule[1:], names)] if is_list(rule) and rule else rule for rule in value]


def _axes(spec: Any, names: Mapping[str, str]) -> Any:
    """A spec with other names of its axes; nulls at its end are dropped."""
    if not is_list(spec):
        return spec
    renamed = [_axes(entry, names) if is_list(entry) else names.get(entry, entry) for entry in spec]
    renamed = [entry[0] if is_list(entry) and len(entry) == 1 else entry or None for entry in renamed]
    while renamed and renamed[-1] is None:
        renamed.pop()
    return renamed


def _expressions(value: Any, names: Mapping[str, str]) -> Any:
    """The lines of a section with other names of the axes; a collective names its axes in quotes."""
    if is_dict(value):
        return {name: _expressions(item, names) for name, item in value.items()}
    if is_list(value):
        return [_expressions(item, names) for item in value]
    if not isinstance(value, str):
        return value
    try:
        return text(_of_axes(parse(value).term, names))
    except SyntaxFault:
        return value


def _of_axes(term: Term, names: Mapping[str, str]) -> Term:
    if isinstance(axis := literal(term), str):
        return Const(names.get(axis, axis))
    return mapped(term, lambda part: _of_axes(part, names))
