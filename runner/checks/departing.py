"""Finds the first line of `per_device` whose values occur nowhere in `graph`.

A diagnosis reports it if no edit mends the program. Each line that a wrong output depends on is searched for among
graph's values, as blocks in any layout or as partial values that a collective would complete to such blocks. A correct
line need not have a counterpart, so this is a place to begin, not a verdict.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from runner.checks.edits import indices
from runner.experiment import naming
from runner.experiment.lines import Flat, Node
from runner.experiment.model import Experiment
from runner.graph.term import Apply, name_of
from runner.layout import Layout, Mesh, Spec
from runner.reference import PerDevice
from runner.untyped import is_sequence

_ALIKE = 1e-9
"""The largest difference of two equal values, relative to the largest element."""

_Combine: TypeAlias = Callable[..., Any]
_COMBINED: tuple[_Combine, ...] = (np.add.reduce, np.mean, np.maximum.reduce)
"""The ways to combine partial values of devices: a sum, a mean, a maximum."""


@dataclass(frozen=True)
class DeviceLines:
    """Lines of a device, in the `per_device` of an experiment.

    - `places`: for each line that a user wrote, its place in the user's file, or its key; `results`: the names of the
      outputs in these lines.
    """

    experiment: Experiment
    places: Mapping[str, str]
    results: Mapping[str, str]

    @classmethod
    def of(cls, experiment: Experiment) -> DeviceLines:
        """The lines of `per_device`."""
        places = {line.name: experiment.place("per_device", str(line.line)) for line in experiment.lines("per_device")}
        return cls(experiment, places, {name: name for name in experiment.results})

    @classmethod
    def inside(cls, experiment: Experiment) -> DeviceLines:
        """The lines inside of the `shard_map`s of the user's own that the graph calls, step by step."""
        named = naming.inside(experiment)
        frames = named.of.given_frames["per_device"]
        places = {value.node: str(frames[value.line]) for value in named.values if value.line in frames}
        return cls(named.experiment, places, named.results)


def departure(
    of: DeviceLines,
    graph: Mapping[str, PerDevice],
    per_device: Mapping[str, PerDevice],
    wrong: Iterable[str],
    seconds: float,
) -> str | None:
    """Return a sentence on the first line of a device whose values no line of `graph` has; None if there is none.

    `graph` and `per_device` have every value of each section; `wrong` are the outputs that differ. Also None if the
    search takes longer than `seconds`.
    """
    experiment = of.experiment
    end = time.thread_time() + seconds
    values = [each for value in graph.values() for each in _arrays(value[0])]
    known = _GraphValues(experiment.mesh, experiment.manual.axes, values)
    lines = experiment.lines("per_device")
    # Indices and counts of devices have no counterpart where graph has none.
    right = {array.name for array in experiment.given} | indices(experiment, "per_device")
    # Factors of a block, as a QR decomposition gives, are no blocks of the factors of a whole matrix.
    several = {name for name, value in per_device.items() if is_sequence(value[0])}
    right |= several | {line.name for line in lines if _takes_one(line, several)}
    giving = {name: at for at, line in enumerate(lines) for name in line.defines}
    away, waiting = set[int](), [of.results[name] for name in wrong]
    while waiting:
        if time.thread_time() > end:
            return None
        name = waiting.pop()
        at = giving.get(name)
        if at is None or at in away or name in right or known.has(per_device[name]):
            continue
        away.add(at)
        waiting += lines[at].names
    first = next((place for at in sorted(away) if (place := of.places.get(lines[at].name)) is not None), None)
    if first is None:
        return None
    return f"{first}: the first line whose values match no value of graph, neither as blocks nor as partial sums"


@dataclass(frozen=True)
class _GraphValues:
    """The values of a graph, of which each device of a mesh may have a part, over some of its axes."""

    mesh: Mesh
    axes: Sequence[str]
    values: Sequence[np.ndarray]

    def has(self, held: PerDevice) -> bool:
        """Whether the devices' values are blocks of one of the values, as they are or combined over some axes."""
        parts = [np.asarray(part) for part in held]
        if any(part.shape != parts[0].shape or part.dtype.kind not in "biufc" for part in parts):
            return False
        axes = [axis for axis in self.axes if self.mesh.sizes[axis] > 1]
        for count in range(len(axes) + 1):
            for over in itertools.combinations(axes, count):
                rest = [axis for axis in axes if axis not in over]
                for combine in _COMBINED if over else _COMBINED[:1]:
                    combined = self._combined(parts, over, combine)
                    if any(self._is_part(combined, value, rest) for value in self.values):
                        return True
        return False

    def _combined(self, parts: Sequence[np.ndarray], over: Sequence[str], combine: _Combine) -> list[np.ndarray]:
        combined = list(parts)
        for group in self.mesh.groups(over):
            value = combine([parts[position] for position in group], axis=0)
            for position in group:
                combined[position] = value
        return combined

    def _is_part(self, parts: Sequence[np.ndarray], value: np.ndarray, axes: Sequence[str]) -> bool:
        return any(
            all(_alike(part, value[layout.index(position)]) for position, part in enumerate(parts))
            for layout in self._layouts(parts[0].shape, value.shape, axes)
        )

    def _layouts(self, part: tuple[int, ...], whole: tuple[int, ...], axes: Sequence[str]) -> Iterator[Layout]:
        """The layouts over some axes in which a device's part has that shape."""
        if len(part) != len(whole) or any(n % k if k else n for n, k in zip(whole, part, strict=True)):
            return
        shards = [n // k if k else 1 for n, k in zip(whole, part, strict=True)]

        def below(dimension: int, left: Sequence[str]) -> Iterator[tuple[tuple[str, ...], ...]]:
            if dimension == len(shards):
                yield ()
                return
            for count in range(len(left) + 1):
                for over in itertools.permutations(left, count):
                    if self.mesh.axis_size(over) == shards[dimension]:
                        rest = [axis for axis in left if axis not in over]
                        yield from ((over, *inner) for inner in below(dimension + 1, rest))

        yield from (Layout(self.mesh, whole, Spec(spec)) for spec in below(0, axes))


def _takes_one(line: Flat, several: Container[str | None]) -> bool:
    """Whether a line only takes one of several results of an operation."""
    term = line.expression.term if isinstance(line, Node) else None
    return isinstance(term, Apply) and term.spelled == "index" and name_of(term.operands[0]) in several


def _arrays(value: Any) -> list[np.ndarray]:
    """The arrays of a value, which may be several results of one operation."""
    return [array for each in value for array in _arrays(each)] if is_sequence(value) else [np.asarray(value)]


def _alike(part: np.ndarray, value: np.ndarray) -> bool:
    largest = float(np.max(np.abs(value), initial=0.0, where=np.isfinite(value)))
    return bool(np.allclose(part, value, rtol=0.0, atol=_ALIKE * largest, equal_nan=True))
