"""Finds whether rounding could have changed the decisions of a program, and their other results.

`floor`, a comparison, an `argmax` or a cast jump: however little their operands change, an element of the result may
change by a step. An oracle and a correct program may then differ by that step. So the oracle's decisions are recorded;
a rounded interpretation follows them (it measures rounding, not steps) and reports how far the operands are off; and if
that may change a decision, further interpretations take the other side, to see which values depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from runner.base import dtypes
from runner.base.layout import distinct, first_holders
from runner.base.lazy import dataclass
from runner.base.untyped import is_sequence
from runner.checks.reference.flips import (
    COMPARED,
    LocalDecision,
    Other,
    again,
    candidates,
    differing,
    joined,
    key,
    leaves,
    step,
    together,
    widest,
    window,
)
from runner.checks.reference.rounded_numpy import Rounded, plain

PerDevice = list[Any]
"""One value per device, by row-major position in the mesh."""

_FLOAT64 = "float64"

MOST = 0.5
"""The share of a cast's elements that may be near a step; with more, the cast counts as rounding, not as a decision."""


@dataclass
class Decision:
    """One place at which the program jumped, in the order of execution.

    - `kind`: how `function`, applied to the operands of one device, jumps: the column `decides` of the table of
      operations, or `cast` for a rounding to a narrower dtype.
    - `operands`, `result`: its operands and its result, on every device.
    - `windows`, `keys`: for each operand, on every device, as in `flips.LocalDecision`.
    - `alternatives`: on every device the other possible results; `near`: which elements they change.
    - `axis`: the axis along which elements are sorted.
    - `rounds`: whether it counts as one more rounding instead of a decision: a cast for which rounding may change most
      elements.
    - `line`, `operation`: its line, and the operation called there.
    """

    kind: str
    function: Callable[..., Any]
    operands: list[PerDevice]
    result: PerDevice
    windows: list[PerDevice] = field(default_factory=list[PerDevice])
    keys: list[PerDevice] = field(default_factory=list[PerDevice])
    alternatives: list[tuple[Other, ...]] = field(default_factory=list[tuple[Other, ...]])
    near: PerDevice = field(default_factory=list[Any])
    axis: int | None = None
    rounds: bool = False
    line: str = ""
    operation: str = ""

    @property
    def undecided(self) -> int:
        """The number of elements that rounding may decide differently, on all devices with distinct values."""
        if not self.near:
            return 0
        firsts = dict.fromkeys(first_holders(self.result))
        return sum(int(np.count_nonzero(part)) for first in firsts for part in leaves(self.near[first]))

    @property
    def turns(self) -> int:
        """The largest number of known alternatives of an element."""
        return max(map(len, self.alternatives), default=0)

    @property
    def elements(self) -> int:
        """The number of elements on all devices with distinct values."""
        return sum(np.size(part) for value in distinct(self.result) for part in leaves(value))


Place: TypeAlias = tuple[int, ...]
"""The place of a decision in an interpretation: its number; in a step of a while that while's, the step's and its own.

Interpretations whose whiles take other numbers of steps have the same places up to the first step that differs.
"""


@dataclass(frozen=True)
class StepsTaken:
    """The numbers of steps that the while at `line` has taken once, on each device."""

    line: str
    counts: tuple[int, ...]


class Script:
    """Determines the results of decisions in an interpretation. This one uses each decision's own result.

    - `steps`: the steps that each while took; `endless`: the lines of whiles that were stopped before they ended.
    - `recorded`: the oracle's decisions and steps, if this is not the oracle.
    """

    def __init__(self, recorded: Recording | None = None) -> None:
        self.steps: dict[Place, StepsTaken] = {}
        self.endless: set[str] = set()
        self.recorded = recorded
        self._place: Place = (0,)

    def decide(self, decision: Decision) -> PerDevice:
        """Return the result to use."""
        return self.decided(self._next(), decision)

    def stop(self, value: PerDevice) -> PerDevice:
        """Return the result of `stop_gradient`."""
        return self.stopped_at(self._next(), value)

    def decided(self, place: Place, decision: Decision) -> PerDevice:
        """Hook: the result of the decision at a place."""
        return decision.result

    def stopped_at(self, place: Place, value: PerDevice) -> PerDevice:
        """Hook: the result of the `stop_gradient` at a place."""
        return value

    def goes(self, step: int, going: list[bool]) -> list[bool]:
        """Hook: whether each device takes a further step of the while that is next; `going` is what its carry says."""
        return going

    def begin(self, step: int) -> None:
        """Begin a step of the while that is next."""
        self._place = (*self._place, step, 0)

    def end(self) -> None:
        """End the step."""
        self._place = self._place[:-2]

    def took(self, line: str, counts: Sequence[int]) -> None:
        """End the while that is next, which took that many steps on each device."""
        self.steps[self._next()] = StepsTaken(line, tuple(counts))

    def most_steps(self) -> int | None:
        """The most steps that a while may take; None for the oracle, whose own limit is an error."""
        if self.recorded is None:
            return None
        return _LONGER + 2 * max((max(taken.counts) for taken in self.recorded.steps.values()), default=0)

    def _next(self) -> Place:
        *around, number = place = self._place
        self._place = (*around, number + 1)
        return place


_LONGER = 100
"""How many more steps a while may take in another interpretation than twice the oracle's largest number."""


class Recording(Script):
    """Records every decision, and the result of each `stop_gradient`."""

    def __init__(self) -> None:
        super().__init__()
        self.decisions: dict[Place, Decision] = {}
        self.stopped: dict[Place, PerDevice] = {}

    def afresh(self) -> Recording:
        """The same decisions, without what rounded interpretations have added."""
        again = Recording()
        again.steps, again.stopped = self.steps, self.stopped
        again.decisions = {
            place: replace(decision, windows=[], keys=[], alternatives=[], near=[], rounds=False)
            for place, decision in self.decisions.items()
        }
        return again

    def decided(self, place: Place, decision: Decision) -> PerDevice:
        self.decisions[place] = decision
        return decision.result

    def stopped_at(self, place: Place, value: PerDevice) -> PerDevice:
        self.stopped[place] = value
        return value


class Following(Script):
    """A rounded interpretation that decides as the oracle did, and records how near each decision was.

    An operand's elements may be off by `safety` times its largest rounding error. A cast that is near in most of its
    elements is not followed: its operand was rounded as coarsely before, and following it would hide that rounding.
    """

    def __init__(self, recorded: Recording, safety: float) -> None:
        super().__init__(recorded)
        self._decisions = recorded.decisions
        self._safety = safety

    def decided(self, place: Place, decision: Decision) -> PerDevice:
        oracle = self._decisions.get(place)
        if oracle is None or oracle.rounds:
            return decision.result
        _take_in(oracle, decision, self._safety)
        _look_beside(oracle, decision)
        if oracle.kind == "cast" and oracle.undecided > MOST * oracle.elements:
            oracle.rounds, oracle.near, oracle.alternatives = True, [], []
            return decision.result
        return _shared(list(zip(oracle.near, oracle.result, decision.result, strict=True)), _chosen)


class Taking(Script):
    """An oracle that takes the other side of decisions that rounding may change.

    The `turn` selects one of several alternatives; with a `seed`, elements that are decided together draw whether they
    take one, and which.
    """

    def __init__(self, recorded: Recording, turn: int = 0, seed: int | None = None) -> None:
        super().__init__(recorded)
        self._decisions = recorded.decisions
        self._turn = turn
        self._draws = None if seed is None else np.random.default_rng(seed)

    def decided(self, place: Place, decision: Decision) -> PerDevice:
        oracle = self._decisions.get(place)
        if oracle is None or not oracle.undecided:
            return decision.result
        parts = list(zip(oracle.alternatives, oracle.result, decision.result, strict=True))
        return _shared(parts, partial(self._taken, oracle))

    def _taken(self, oracle: Decision, alternatives: tuple[Other, ...], decided: Any, own: Any) -> Any:
        """The alternative to take here, if the operands are the recorded ones."""
        if not alternatives:
            return own
        moved = [np.asarray(a != b) for a, b in zip(leaves(own), leaves(decided), strict=True)]
        moved = together(oracle.kind, oracle.axis, moved)
        several = [
            sum(np.asarray(where, int) for where in leaf) for leaf in zip(*(o.where for o in alternatives), strict=True)
        ]
        turns = self._turns(oracle, several)
        taken: list[Any] = []
        for i, leaf in enumerate(leaves(own)):
            for turn, alternative in enumerate(alternatives):
                leaf = _chosen(alternative.where[i] & (turns[i] == turn) & ~moved[i], alternative.value[i], leaf)
            taken.append(leaf)
        return again(own, taken)

    def _turns(self, oracle: Decision, several: list[Any]) -> list[Any]:
        """The number of the alternative for each element; -1: none."""
        draws = self._draws
        if draws is None:
            return [np.minimum(self._turn, count - 1) for count in several]
        shapes = {np.shape(count) for count in several}
        # The arrays of a result change together.
        share: Any = draws.random(*shapes) if len(shapes) == 1 else draws.random()
        if oracle.kind == "order" and np.size(share):
            first = np.ravel(share)[0] if oracle.axis is None else np.take(share, [0], oracle.axis)
            share = first + np.zeros(np.shape(share))
        return [np.floor(share * (count + 1)) - 1 for count in several]


class Stepping(Script):
    """An oracle in which whiles take other numbers of steps: `forced`, on each device."""

    def __init__(self, recorded: Recording, forced: Mapping[Place, Sequence[int]]) -> None:
        super().__init__(recorded)
        self._forced = forced

    def goes(self, step: int, going: list[bool]) -> list[bool]:
        forced = self._forced.get(self._place)
        return going if forced is None else [step < count for count in forced]


class Replaying(Script):
    """Decides as recorded, and moves what was cast by the recorded difference, so that the function is smooth.

    For differentiation a decision and the result of `stop_gradient` are constants, and a cast is the identity.
    """

    def __init__(self, recorded: Recording) -> None:
        super().__init__(recorded)
        self._decisions, self._stopped = recorded.decisions, recorded.stopped

    def decided(self, place: Place, decision: Decision) -> PerDevice:
        oracle = self._decisions.get(place)
        if oracle is None:
            return decision.result
        if decision.kind == "cast":
            parts = list(zip(decision.operands[0], oracle.operands[0], oracle.result, strict=True))
            return _shared(parts, _moved_as_cast)
        return _shared(list(zip(decision.result, oracle.result, strict=True)), _without_jumps)

    def stopped_at(self, place: Place, value: PerDevice) -> PerDevice:
        return self._stopped.get(place, value)


def _moved_as_cast(own: Any, raw: Any, cast: Any) -> Any:
    return own + (cast - raw)


def _without_jumps(own: Any, decided: Any) -> Any:
    """The recorded decision, or for floats the new value where it has not jumped."""
    if is_sequence(decided):
        return type(decided)(_without_jumps(*parts) for parts in zip(own, decided, strict=True))
    if not dtypes.is_floating(decided):
        return decided
    return dtypes.where(np.abs(own - decided) > 1e-3 * np.max(np.abs(decided), initial=0.0), decided, own)


def _shared(parts: list[tuple[Any, ...]], function: Callable[..., Any]) -> PerDevice:
    """Apply a function to each device's parts, once for devices that hold the same objects."""
    results: PerDevice = []
    for position, first in enumerate(first_holders(*zip(*parts, strict=True))):
        results.append(function(*parts[position]) if position == first else results[first])
    return results


def _chosen(near: Any, alternative: Any, own: Any) -> Any:
    """`alternative` where `near`, else `own`; for tuples, part by part."""
    if is_sequence(own):
        return type(own)(_chosen(*parts) for parts in zip(near, alternative, own, strict=True))
    if not np.any(near):
        return own
    if isinstance(own, Rounded):
        mixed = dtypes.where(near, alternative, plain(own)).astype(own.dtype).view(Rounded)
        mixed.kind, mixed.machine = own.kind, own.machine
        return mixed
    return dtypes.where(near, alternative, own)


def _unit(operand: PerDevice) -> float:
    """Twice the gap above 1.0 in an operand's dtype."""
    kind = operand[0].kind if isinstance(operand[0], Rounded) else _FLOAT64
    return 2 * dtypes.dtype(kind).eps


def _take_in(oracle: Decision, own: Decision, safety: float) -> None:
    """Add to a decision a machine's errors in its operands, and the elements that it found equal."""
    windows = oracle.windows or [[None] * len(oracle.result)] * len(oracle.operands)
    keys = oracle.keys or [[None] * len(oracle.result)] * len(oracle.operands)
    oracle.windows = [
        _widened(*operands, safety) for operands in zip(oracle.operands, own.operands, windows, strict=True)
    ]
    compared = COMPARED.get(oracle.kind, 0)
    operands = zip(oracle.operands[:compared], own.operands, keys, strict=False)
    oracle.keys = [*(_keyed(*parts) for parts in operands), *keys[compared:]]


def _widened(exact: PerDevice, own: PerDevice, known: PerDevice, safety: float) -> PerDevice:
    if not dtypes.is_floating(exact[0]):
        return known
    firsts = dict.fromkeys(first_holders(exact, own))
    largest = widest([(exact[first], own[first]) for first in firsts])
    if not largest.any():
        return known
    unit = _unit(own)

    def wider(exact: Any, known: Any) -> Any:
        here = window(exact, largest, safety, unit)
        return here if known is None else np.maximum(here, known)

    return _shared(list(zip(exact, known, strict=True)), wider)


def _keyed(exact: PerDevice, own: PerDevice, known: PerDevice) -> PerDevice:
    def of(exact: Any, own: Any, known: Any) -> Any:
        return key(key(None, exact) if known is None else known, own)

    return _shared(list(zip(exact, own, known, strict=True)), of)


def _look_beside(oracle: Decision, own: Decision) -> None:
    """Decide again: as a machine did, and on operands moved by their possible rounding errors, in both directions.

    For exact operands only the former: intermediate values, such as a quotient or a sum, are rounded too.
    """
    known = oracle.alternatives or [()] * len(oracle.result)
    pairs: list[tuple[tuple[Other, ...], Any]] = []
    firsts = first_holders(*oracle.operands, *oracle.windows, *oracle.keys, own.result, known)
    for position, (result, first) in enumerate(zip(oracle.result, firsts, strict=True)):
        if position > first:
            pairs.append(pairs[first])
            continue
        parts = [[values[position] for values in every] for every in (oracle.operands, oracle.windows, oracle.keys)]
        at = LocalDecision(oracle.kind, oracle.axis, oracle.function, *parts)
        alternatives = _others(at, known[position], result, own.result[position])
        pairs.append((alternatives, differing(result, alternatives)))
    oracle.alternatives, oracle.near = [alternatives for alternatives, _ in pairs], [near for _, near in pairs]


def _others(at: LocalDecision, known: tuple[Other, ...], result: Any, own: Any) -> tuple[Other, ...]:
    """The alternatives: those already known, the machine's result, and the results of moved operands."""
    with np.errstate(all="ignore"):
        # Where the machine overflows, it decides nothing.
        machine = [
            dtypes.where(np.isfinite(plain(a)), plain(a), b) if dtypes.is_floating(b) else plain(a)
            for a, b in zip(leaves(own), leaves(result), strict=True)
        ]
        rounding = [
            _unit([a]) * np.abs(b) if dtypes.is_floating(b) else 0.0
            for a, b in zip(leaves(own), leaves(result), strict=True)
        ]
        known = joined(known, at, result, again(result, machine), rounding)
        if any(window is not None for window in at.windows):
            steps = [step(at, result)] * len(rounding)
            for candidate in candidates(at, result):
                known = joined(known, at, result, candidate, steps)
    return known
