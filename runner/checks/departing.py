"""Two sections that do not say the same in; the line from which per_device has what graph has nowhere, out.

It is what a diagnosis says where no edit mends the program. Each line on which a wrong output depends is looked for
among graph's values: as blocks of one in any layout, or as partial values which a collective would make such blocks. A
correct line may have no counterpart, so this is no verdict, but a place to begin.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from runner.checks.edits import indices
from runner.experiment.model import Experiment
from runner.layout import Layout, Mesh, Spec
from runner.reference import PerDevice

_ALIKE = 1e-9
"""How far two values may be apart, of the largest element."""

_Combine: TypeAlias = Callable[..., Any]
_COMBINED: tuple[_Combine, ...] = (np.add.reduce, np.mean, np.maximum.reduce)
"""What devices' partial values may be, combined: a sum, a mean, a maximum."""


def departure(
    experiment: Experiment,
    graph: Mapping[str, PerDevice],
    per_device: Mapping[str, PerDevice],
    wrong: Iterable[str],
    seconds: float,
) -> str | None:
    """From which line on the devices have what no line of `graph` has, in words; None where there is no such line.

    `graph`, `per_device`: every value of each section; `wrong`: the outputs that differ. None, too, where the lines
    could not be looked through within so many `seconds`.
    """
    end = time.perf_counter() + seconds
    known = _Known(experiment.mesh, experiment.manual.axes, [np.asarray(value[0]) for value in graph.values()])
    lines = experiment.lines("per_device")
    # What devices count has no counterpart where graph counts nothing.
    right = {array.name for array in experiment.given} | indices(experiment, "per_device")
    giving = {name: at for at, line in enumerate(lines) for name in line.defines}
    away, waiting = set[int](), [*wrong]
    while waiting:
        if time.perf_counter() > end:
            return None
        name = waiting.pop()
        at = giving.get(name)
        if at is None or at in away or name in right or known.has(per_device[name]):
            continue
        away.add(at)
        waiting += lines[at].names
    if not away:
        return None
    place = experiment.place("per_device", str(lines[min(away)].line))
    return f"{place}: the first line that gives devices what is no part of any value of graph"


@dataclass(frozen=True)
class _Known:
    """The values of a graph, of which devices of a mesh may have parts, over some of its axes."""

    mesh: Mesh
    axes: Sequence[str]
    values: Sequence[np.ndarray]

    def has(self, held: PerDevice) -> bool:
        """Whether what devices hold is part of one of the values, or is once it is combined over some axes."""
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
        """The layouts over some axes in which a device has a part of that shape."""
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
                        yield from ((over, *others) for others in below(dimension + 1, rest))

        yield from (Layout(self.mesh, whole, Spec(spec)) for spec in below(0, axes))


def _alike(part: np.ndarray, other: np.ndarray) -> bool:
    largest = float(np.max(np.abs(other), initial=0.0, where=np.isfinite(other)))
    return bool(np.allclose(part, other, rtol=0.0, atol=_ALIKE * largest, equal_nan=True))
