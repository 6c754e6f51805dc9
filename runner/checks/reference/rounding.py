"""Computes the values of a section in float64, and measures the effect of rounding on each.

The section is interpreted again in the dtypes that JAX gives its values, with a rounding after every operation, and the
distance from float64 is measured for each output. So a tolerance is the effect of this program's rounding, and nothing
else increases it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from runner.base import dtypes
from runner.base.layout import first_holders
from runner.base.lazy import dataclass
from runner.checks.reference.arithmetic import Arithmetic, Floats
from runner.checks.reference.decisions import Following, PerDevice, Place, Recording, Script, Stepping, Taking
from runner.checks.reference.interpreter import interpret
from runner.checks.reference.rounded_numpy import NEAREST, Machine, plain
from runner.experiment.model import Experiment, Section
from runner.graph.language.lines import line_of
from runner.graph.model import Graph, dependencies

SAFETY = 4.0
"""The factor by which the largest measured error of its operands may move a decision."""

SAFETY_OF_FLOAT64 = 64.0
"""The same where two oracles are compared: float64 leaves enough room, and their sums may have any order."""

_DRAWS = ((200_000, 4), (5_000_000, 2))
"""The number of draws, by the number of computed elements up to which it applies; with more, one."""

_LONG = 5_000
"""The number of computed arrays above which two draws are enough, whatever their sizes: in a loop of many steps most of
the time of each line is Python's, and errors have many roundings to add up from."""

_DRAWS_OF_8_BITS = ((200_000, 32), (5_000_000, 4))
"""The same where a value has 8-bit floats, whose common rounding of all elements has to be known well."""

_FEW = 16
"""Outputs with fewer elements are drawn twice as often, since one element may be exact by chance."""

_MACHINES = 3
"""The number of interpretations in which a machine decides for itself: one rounds to nearest, the others draw."""

_TAKINGS = ((200_000, 8),)
"""The number of interpretations in which random undecided decisions change, up to this many computed elements.

With more elements there are three; and always one in which all change.
"""

_STEPPINGS = 8
"""The number of interpretations in which whiles take other numbers of steps, if rounding may change these."""

_MANY = 2_000_000
"""For larger arrays, only every k-th row enters the moments."""

_FLOAT32_TO_FLOAT64 = 2.0**-29
"""The ratio of the roundings of float32 and float64."""


@dataclass(frozen=True)
class Moments:
    """Statistics of the distances from expected values, as shares of these values' root mean square.

    The rounding of a number grows with the number, so a few large ones would hide the rest: every distance is divided
    by √(1 + t²), where t is its expected value as a share of the root mean square; for the fitted line, so is t.

    - `slope`: of a straight line through 0, the least-squares factor on the expectation, minus 1; `weight`: the sum of
      squares that it is fitted to.
    - `mean`: their mean; `spread`: their root mean square.
    - `along`: for each dimension, the means over all elements that share an index; `apart`: the root mean squares of
      the residuals of these elements.
    - `deviation`: the root mean square of all residuals.
    """

    slope: float
    weight: float
    mean: float
    spread: float
    along: tuple[np.ndarray, ...]
    apart: tuple[np.ndarray, ...]
    deviation: float


def moments(distance: np.ndarray, expected: np.ndarray) -> Moments | None:
    """The moments of `distance` from `expected`; None unless both are finite and the expectation is not zero."""
    squares = float(np.vdot(expected, expected).real)
    if not (np.isfinite(squares) and squares > 0 and np.isfinite(distance).all()):
        return None
    root = math.sqrt(squares / expected.size)
    scale = 1 / np.sqrt(np.abs(expected) ** 2 + root**2)
    line, scaled = expected * scale, distance * scale
    weight = float(np.vdot(line, line).real)
    slope = float(np.vdot(line, scaled).real) / weight
    left = np.abs(scaled - slope * line) ** 2
    axes = range(distance.ndim)
    other_axes = [tuple(o for o in axes if o != axis) for axis in axes] if distance.ndim > 1 else []
    return Moments(
        slope,
        weight,
        float(np.mean(scaled).real),
        float(np.sqrt(np.vdot(scaled, scaled).real / scaled.size)),
        tuple(np.mean(scaled, axis=axis) for axis in other_axes),
        tuple(np.sqrt(np.mean(left, axis=axis)) for axis in other_axes),
        float(np.sqrt(np.mean(left))),
    )


def row_step(shape: tuple[int, ...]) -> int:
    """The step between the rows of an array from which its moments are computed, to save time."""
    return max(1, -(-math.prod(shape) // _MANY)) if shape else 1


@dataclass(frozen=True)
class UndecidedLine:
    """A line with decisions that rounding may change.

    - `operation`: what it calls; `elements`: the number of its results that may change, in all steps of a loop.
    - `least_steps`, `most_steps`: for a while whose number of steps may change, those that were seen; the most is None
      if it did not end.
    """

    line: str
    operation: str
    elements: int
    least_steps: int | None = None
    most_steps: int | None = None


@dataclass
class Rounding:
    """The effect of rounding on one value.

    - `error`: the largest distance of an element from float64's.
    - `elements`: the number of measured distances, over all draws.
    - `about`: the moments of each draw's distances for the whole array, if it can be assembled; without elements that
      overflow.
    - `overflows`: on each device, where a draw is infinite or NaN and float64 is not, or is the other of the two; None:
      nowhere.
    - `alternatives`: on each device the values with undecided decisions as in rounded arithmetic, with all of them
      changed, and with some of them changed; `low`, `high`: the bounds of these values. None if no element depends on a
      decision. `hangs`: the elements that do. `places`: the lines of the decisions that the value depends on.
    """

    error: float = 0.0
    elements: int = 0
    about: list[Moments] = field(default_factory=list[Moments])
    overflows: PerDevice | None = None
    low: PerDevice | None = None
    high: PerDevice | None = None
    alternatives: tuple[PerDevice, ...] = ()
    hangs: PerDevice | None = None
    places: tuple[UndecidedLine, ...] = ()

    def take_in(self, exact: PerDevice, drawn: PerDevice, whole: Callable[[PerDevice], np.ndarray | None]) -> None:
        """Add one draw; `whole` assembles the devices' values, if that is possible."""
        overflowing = False
        for first in dict.fromkeys(first_holders(exact, drawn)):
            reference, rounded = exact[first], plain(drawn[first])
            with np.errstate(all="ignore"):
                distance = np.abs(rounded - reference)
            finite = np.isfinite(distance)
            overflowing = overflowing or bool(np.any(_overflown(reference, rounded)))
            self.error = max(self.error, float(np.max(distance, initial=0.0, where=finite)))
            self.elements += int(np.count_nonzero(finite))
        if overflowing:
            beyond = [_overflown(a, plain(b)) for a, b in zip(exact, drawn, strict=True)]
            self.overflows = [a | b for a, b in zip(self.overflows or beyond, beyond, strict=True)]
        expected = whole(exact)
        got = None if expected is None else whole([plain(value) for value in drawn])
        if expected is not None and got is not None:
            with np.errstate(all="ignore"):
                gone = np.isfinite(expected) & ~np.isfinite(got)
                measured = moments(dtypes.where(gone, 0, got - expected), expected)
            self.about += [measured] if measured else []


def _overflown(exact: Any, rounded: Any) -> Any:
    """Where a rounded value is infinite or NaN, and the exact one is not, or is not the same."""
    same = (rounded == exact) | (np.isnan(rounded) & np.isnan(exact))
    return ~np.isfinite(rounded) & ~same


@dataclass
class Oracle:
    """The values of one section in float64, and the rounding of each.

    - `undecided`: the lines with decisions that rounding may change.
    - `recorded`: the decisions; `work`: the number of elements that were computed, `computed`: of arrays.
    """

    values: dict[str, PerDevice]
    rounding: dict[str, Rounding] = field(default_factory=dict[str, Rounding])
    undecided: tuple[UndecidedLine, ...] = ()
    recorded: Recording = field(default_factory=Recording)
    work: int = 0
    computed: int = 0

    @property
    def casts(self) -> bool:
        """Whether a line of the section casts floats to a narrower dtype."""
        return any(decision.kind == "cast" for decision in self.recorded.decisions.values())


Whole = Callable[[str, PerDevice], np.ndarray | None]
"""Assembles every `row_step`th row of a value from the devices' values; None if its layout is unknown."""


@dataclass(frozen=True)
class _Section:
    """A section that is interpreted several times."""

    experiment: Experiment
    section: Section
    arrays: Mapping[str, np.ndarray]
    floats: Floats
    keep: tuple[str, ...] | None
    casts: bool = True

    def values(
        self,
        script: Script,
        machine: Machine | None = None,
        kind: str | None = None,
        arrays: Mapping[str, np.ndarray] | None = None,
    ) -> dict[str, PerDevice]:
        """The values, by default of the section's own arrays."""
        again = self if arrays is None else replace(self, arrays=arrays)
        return again.interpret(script, Arithmetic(self.floats, machine, kind, self.casts)).values

    def interpret(self, script: Script, arithmetic: Arithmetic) -> Any:
        return interpret(
            self.experiment, self.section, self.arrays, keep=self.keep, arithmetic=arithmetic, script=script
        )


def measure(
    experiment: Experiment,
    section: Section,
    arrays: Mapping[str, np.ndarray],
    floats: Floats,
    *,
    keep: Iterable[str] | None = None,
    whole: Whole = lambda name, value: None,
    machine: Machine = NEAREST,
    drawn: Sequence[Mapping[str, np.ndarray]] = (),
) -> Oracle:
    """Interpret a section in float64, then as a `machine` rounds it.

    `floats` are its dtypes, `keep` the values that are needed. `whole` assembles an output. If some arrays are only
    known up to rounding errors, `drawn` are variants of them: each draw uses one, in turn.
    """
    again = _Section(experiment, section, arrays, floats, None if keep is None else tuple(keep))
    recorded = Recording()
    exact = again.interpret(recorded, Arithmetic(floats))
    oracle = Oracle(exact.values, recorded=recorded, work=exact.work, computed=exact.computed)
    oracle.rounding = {name: Rounding() for name in exact.values}
    draws = max(_draws(oracle, floats), len(drawn))
    for draw in range(draws):
        seeded = replace(machine, seed=draw if draw else None)
        inputs = drawn[draw % len(drawn)] if drawn else None
        _take_in(oracle, oracle.rounding, again.values(Following(recorded, SAFETY), seeded, arrays=inputs), whole)
    oracle.undecided = _undecided(recorded)
    if oracle.undecided:
        _take_otherwise(again, oracle, oracle.rounding, recorded, oracle.undecided, machine)
    return oracle


_NARROWED = {
    "gpu": {"default": "tensorfloat32", "tensorfloat32": "tensorfloat32", "bfloat16": "bfloat16"},
    "tpu": {"default": "bfloat16", "tensorfloat32": "bfloat16", "bfloat16": "bfloat16"},
}
"""The dtype to which each `precision` of an accelerator rounds float32 operands of products."""


def machine(experiment: Experiment) -> Machine:
    """The rounding of an experiment's target."""
    platform = experiment.target.platform
    return Machine(_NARROWED.get(platform, {}).get(experiment.precision), platform=platform)


def of_float64(
    experiment: Experiment,
    section: Section,
    arrays: Mapping[str, np.ndarray],
    floats: Floats,
    oracle: Oracle,
    keep: Iterable[str],
    known_as: Mapping[str, np.ndarray] | None = None,
    *,
    casts: bool = True,
    place: int | None = None,
) -> dict[str, Rounding]:
    """The rounding of float64 itself in an oracle's values.

    `known_as` are variants of the arrays, where some were computed in float64 themselves; `casts` is whether casts
    round. If they do not, neither do those of the oracle, which has been interpreted so. `place` is the machine's.
    """
    recorded = oracle.recorded.afresh()
    if oracle.work > _DRAWS[-1][0] and not recorded.decisions:
        # It is smaller than float32's by the ratio of the precisions; drawing it would take longer than the run.
        return {name: Rounding(oracle.rounding[name].error * _FLOAT32_TO_FLOAT64) for name in keep}
    again = _Section(experiment, section, arrays, floats, tuple(keep), casts)
    rounding = {name: Rounding() for name in keep}
    for draw in range(_times(_DRAWS, oracle.work, 2) if recorded.decisions else 2):
        script = Following(recorded, SAFETY_OF_FLOAT64)
        drawn = again.values(script, Machine(seed=draw, place=place), "float64", known_as if draw else None)
        _take_in(oracle, rounding, drawn, lambda name, value: None)
    undecided = _undecided(recorded)
    if undecided:
        _take_otherwise(again, oracle, rounding, recorded, undecided, Machine(), "float64")
    return rounding


def _draws(oracle: Oracle, floats: Floats) -> int:
    kinds = {dtypes.dtype(kind) for places in floats.values() for kind in places.values()}
    if any(kind.itemsize == 1 and not kind.exact for kind in kinds):
        return _times(_DRAWS_OF_8_BITS, oracle.work, 1)
    draws = min(_times(_DRAWS, oracle.work, 1), 2 if oracle.computed > _LONG else _DRAWS[0][1])
    sizes = [np.size(held[0]) for held in oracle.values.values() if dtypes.is_floating(held[0])]
    return 2 * draws if draws > 1 and min(sizes, default=_FEW) < _FEW else draws


def _times(most: tuple[tuple[int, int], ...], work: int, otherwise: int) -> int:
    """The number of repetitions for this many computed elements."""
    return next((times for least, times in most if work <= least), otherwise)


def _take_in(oracle: Oracle, rounding: Mapping[str, Rounding], drawn: Mapping[str, PerDevice], whole: Whole) -> None:
    """Add one draw of every float."""
    for name, known in rounding.items():
        if dtypes.is_floating(oracle.values[name][0]):
            known.take_in(oracle.values[name], drawn[name], lambda value, name=name: whole(name, value))


def _undecided(recorded: Recording) -> tuple[UndecidedLine, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    for decision in recorded.decisions.values():
        counts[decision.line, decision.operation] += decision.undecided
    return tuple(UndecidedLine(*place, count) for place, count in counts.items() if count)


def _enter(graph: Graph, name: str) -> frozenset[str]:
    """The lines of a section that one of its values depends on."""
    read = {graph.names[name]}
    entering: set[str] = set()
    for equation in reversed(graph.equations):
        if not read.isdisjoint(value.number for value in equation.results):
            entering.add(str(line_of(equation)).partition(".")[0])
            read |= dependencies(equation)
    return frozenset(entering)


def _take_otherwise(
    again: _Section,
    oracle: Oracle,
    rounding: Mapping[str, Rounding],
    recorded: Recording,
    undecided: Sequence[UndecidedLine],
    machine: Machine,
    kind: str | None = None,
) -> None:
    """Interpret the section with other results of its undecided decisions, and record which values depend on them."""
    machines = [machine, *(replace(machine, seed=seed) for seed in range(1, _MACHINES))]
    alone = [Script(recorded) for _ in machines]
    rounded = [again.values(script, machine, kind) for script, machine in zip(alone, machines, strict=True)]
    draws = [{name: [plain(block) for block in value] for name, value in values.items()} for values in rounded]
    turns = max(decision.turns for decision in recorded.decisions.values())
    takings = [Taking(recorded, turn) for turn in range(turns)]
    takings += [Taking(recorded, seed=seed) for seed in range(_times(_TAKINGS, oracle.work, 3))]
    draws += [again.values(taking) for taking in takings]
    unsteady = _unsteady(recorded, [*alone, *takings])
    if unsteady:
        draws += [again.values(Stepping(recorded, forced)) for forced in _other_steps(unsteady)]
        undecided = [*undecided, *_undecided_steps(recorded, unsteady, [*alone, *takings])]
    for name, known in rounding.items():
        exact = oracle.values[name]
        if dtypes.is_numeric(exact[0]):
            known.alternatives = tuple(draw[name] for draw in draws)
            taken = [draw[name] for draw in draws[_MACHINES:]]
            known.hangs = [
                np.any([drawn != value for drawn in here], axis=0) for value, *here in zip(exact, *taken, strict=True)
            ]
            known.low, known.high = _bounds([exact, *(draw[name] for draw in draws)])
            lines = _enter(again.experiment.computed(again.section), name)
            known.places = tuple(place for place in undecided if place.line.split(".")[0] in lines)


_Steps = Mapping[Place, tuple[tuple[int, ...], tuple[int, ...]]]
"""For whiles whose number of steps may change: the least and the most, on each device."""


def _unsteady(recorded: Recording, others: Sequence[Script]) -> _Steps:
    """The whiles that took another number of steps in another interpretation."""
    unsteady: dict[Place, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for place, taken in recorded.steps.items():
        every = [taken.counts, *(other.steps[place].counts for other in others if place in other.steps)]
        least, most = (tuple(map(of, zip(*every, strict=True))) for of in (min, max))
        if least != most:
            unsteady[place] = least, most
    return unsteady


def _other_steps(unsteady: _Steps) -> Iterator[dict[Place, list[int]]]:
    """Numbers of steps from fewer than the least to more than the most that were seen, since others may be right."""
    for turn in range(_STEPPINGS):
        share = turn / (_STEPPINGS - 1)
        yield {
            place: [
                max(0, round(low - (1 + high - low) / 2 + share * (1 + 2 * (high - low)))) if high > low else low
                for low, high in zip(least, most, strict=True)
            ]
            for place, (least, most) in unsteady.items()
        }


def _undecided_steps(recorded: Recording, unsteady: _Steps, others: Sequence[Script]) -> Iterator[UndecidedLine]:
    """The lines of whiles whose numbers of steps may change."""
    endless = {line for other in others for line in other.endless}
    for line in dict.fromkeys(recorded.steps[place].line for place in unsteady):
        places = [place for place in unsteady if recorded.steps[place].line == line]
        least = min(min(unsteady[place][0]) for place in places)
        most = None if line in endless else max(max(unsteady[place][1]) for place in places)
        yield UndecidedLine(line, "while", len(places), least, most)


def _bounds(led: Sequence[PerDevice]) -> tuple[PerDevice, PerDevice]:
    """The least and the largest of several values, on each device; of complex numbers part by part."""
    bounds: list[tuple[Any, Any]] = []
    for position, first in enumerate(first_holders(*led)):
        if position > first:
            bounds.append(bounds[first])
            continue
        values = np.stack([np.asarray(value[position]) for value in led])
        if values.dtype.kind == "c":
            low, high = (f(np.real(values), axis=0) + 1j * f(np.imag(values), axis=0) for f in (np.min, np.max))
        else:
            low, high = np.min(values, axis=0), np.max(values, axis=0)
        bounds.append((low, high))
    return [low for low, _ in bounds], [high for _, high in bounds]
