"""Where a program jumps: what it decided in; whether rounding could have decided otherwise, and what then, out.

`floor`, a comparison, an `argmax` or a cast jump: however little their operands move, an element of the result may move
by a step. An oracle and a right program may then differ by that step. So the oracle's decisions are recorded; a rounded
interpretation follows them (what it measures is rounding, not steps) and tells how far the operands are off; and where
that may decide otherwise, further interpretations take the other side, to see what hangs on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from runner import dtypes
from runner.reference.rounded import Rounded, plain
from runner.untyped import is_sequence

PerDevice = list[Any]
"""One value per device, by row-major position in the mesh."""

_FLOAT64 = "float64"

MOST = 0.5
"""The share of its elements from which on a cast decides nothing."""


@dataclass
class Decision:
    """One place at which the program jumped, in the order in which it is executed.

    - `kind`: how `function`, of the operands of one device, jumps: the column `decides` of the table of operations, or
      `cast` for a rounding to a narrower dtype.
    - `operands`, `result`: what it was given and what it gave, on every device.
    - `windows`: for each operand how far rounding may carry it; `near`: which elements of the result it may change.
    - `other`: the result where it does; `axis`: along which elements are put in order.
    - `rounds`: whether it decides nothing, but is one more rounding: a cast which rounding may carry over its edges in
      most elements.
    - `line`, `operation`: where it stands, and what is called there.
    """

    kind: str
    function: Callable[..., Any]
    operands: list[PerDevice]
    result: PerDevice
    windows: list[float] = field(default_factory=list[float])
    units: list[float] = field(default_factory=list[float])
    near: PerDevice = field(default_factory=list[Any])
    other: PerDevice = field(default_factory=list[Any])
    axis: int | None = None
    rounds: bool = False
    line: str = ""
    operation: str = ""

    @property
    def undecided(self) -> int:
        """How many elements, on all devices that hold different ones, rounding may decide otherwise."""
        distinct = {id(value): near for value, near in zip(self.result, self.near, strict=False)}
        return sum(int(np.count_nonzero(part)) for near in distinct.values() for part in _leaves(near))

    @property
    def elements(self) -> int:
        """How many elements the devices hold that hold different ones."""
        distinct = {id(value): value for value in self.result}
        return sum(np.size(part) for value in distinct.values() for part in _leaves(value))


class Script:
    """What an interpretation does about decisions. This one lets each decide for itself."""

    def decide(self, decision: Decision) -> PerDevice:
        """The result that counts."""
        return decision.result

    def stop(self, value: PerDevice) -> PerDevice:
        """What `stop_gradient` gives."""
        return value


@dataclass
class Recording(Script):
    """Keeps all that is decided, and what each `stop_gradient` gave."""

    decisions: list[Decision] = field(default_factory=list[Decision])
    stopped: list[PerDevice] = field(default_factory=list[PerDevice])

    def afresh(self) -> Recording:
        """The same decisions, of which nobody knows yet how near they were."""
        return Recording(
            [replace(one, windows=[], units=[], near=[], other=[], rounds=False) for one in self.decisions],
            self.stopped,
        )

    def decide(self, decision: Decision) -> PerDevice:
        self.decisions.append(decision)
        return decision.result

    def stop(self, value: PerDevice) -> PerDevice:
        self.stopped.append(value)
        return value


class Following(Script):
    """A rounded interpretation that decides as the oracle did, and tells it how near each decision was.

    `safety` times the largest rounding error of an operand is how far its elements may be off. A cast that is near in
    most of its elements is not followed: what was rounded before it as coarsely as it rounds is not undone by it.
    """

    def __init__(self, recorded: Recording, safety: float) -> None:
        self._recorded = iter(recorded.decisions)
        self._safety = safety

    def decide(self, decision: Decision) -> PerDevice:
        oracle = next(self._recorded)
        if oracle.rounds:
            return decision.result
        windows = [self._window(*pair) for pair in zip(oracle.operands, decision.operands, strict=True)]
        known = oracle.windows or [0.0] * len(windows)
        oracle.windows = [max(pair) for pair in zip(windows, known, strict=True)]
        oracle.units = [
            _unit(operand) if window else 0.0 for operand, window in zip(decision.operands, oracle.windows, strict=True)
        ]
        _look_beside(oracle, decision)
        if oracle.kind == "cast" and oracle.undecided > MOST * oracle.elements:
            oracle.rounds, oracle.near, oracle.other = True, [], []
            return decision.result
        return _shared(list(zip(oracle.near, oracle.result, decision.result, strict=True)), _chosen)

    def _window(self, exact: PerDevice, own: PerDevice) -> float:
        if not dtypes.is_floating(exact[0]):
            return 0.0
        largest = 0.0
        for one, other in {(id(a), id(b)): (a, b) for a, b in zip(exact, own, strict=True)}.values():
            with np.errstate(all="ignore"):
                apart = np.abs(plain(other).astype(plain(one).dtype) - one)
            largest = max(largest, float(np.max(apart, initial=0.0, where=np.isfinite(apart))))
        return self._safety * largest


class Taking(Script):
    """An oracle that takes the other side where rounding may: everywhere, or where a draw says so."""

    def __init__(self, recorded: Recording, seed: int | None) -> None:
        self._recorded = iter(recorded.decisions)
        self._draws = None if seed is None else np.random.default_rng(seed)

    def decide(self, decision: Decision) -> PerDevice:
        oracle = next(self._recorded)
        if not oracle.undecided:
            return decision.result
        return _shared(list(zip(oracle.near, oracle.other, decision.result, strict=True)), self._taken)

    def _taken(self, near: Any, other: Any, own: Any) -> Any:
        return _chosen(self._drawn(near), other, own)

    def _drawn(self, near: Any) -> Any:
        if is_sequence(near):
            return tuple(map(self._drawn, near))
        if self._draws is None:
            return near
        return near & (self._draws.random(np.shape(near)) < 0.5)


class Replaying(Script):
    """Decides as was recorded, and moves what was cast by as much: smooth where the program jumps.

    To whoever differentiates, a decision is a constant, what `stop_gradient` gave too, and a cast changes nothing.
    """

    def __init__(self, recorded: Recording) -> None:
        self._decisions = iter(recorded.decisions)
        self._stopped = iter(recorded.stopped)

    def decide(self, decision: Decision) -> PerDevice:
        oracle = next(self._decisions)
        if decision.kind == "cast":
            parts = list(zip(decision.operands[0], oracle.operands[0], oracle.result, strict=True))
            return _shared(parts, _moved_as_cast)
        return _shared(list(zip(decision.result, oracle.result, strict=True)), _without_jumps)

    def stop(self, value: PerDevice) -> PerDevice:
        return next(self._stopped)


def _moved_as_cast(own: Any, raw: Any, cast: Any) -> Any:
    return own + (cast - raw)


def _without_jumps(own: Any, told: Any) -> Any:
    """What was decided, and of a float what it is now, where it has not jumped."""
    if is_sequence(told):
        return type(told)(_without_jumps(*parts) for parts in zip(own, told, strict=True))
    if not dtypes.is_floating(told):
        return told
    return dtypes.where(np.abs(own - told) > 1e-3 * np.max(np.abs(told), initial=0.0), told, own)


def _shared(parts: list[tuple[Any, ...]], function: Callable[..., Any]) -> PerDevice:
    """A function of each device's parts, computed once for the devices that hold the same objects."""
    done: dict[tuple[int, ...], Any] = {}
    results: PerDevice = []
    for part in parts:
        key = tuple(map(id, part))
        if key not in done:
            done[key] = function(*part)
        results.append(done[key])
    return results


def _leaves(value: Any) -> Iterator[Any]:
    if is_sequence(value):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _chosen(near: Any, told: Any, own: Any) -> Any:
    """`told` where `near`, else `own`; of tuples, part by part."""
    if is_sequence(own):
        return type(own)(_chosen(*parts) for parts in zip(near, told, own, strict=True))
    if not np.any(near):
        return own
    if isinstance(own, Rounded):
        mixed = dtypes.where(near, told, plain(own)).astype(own.dtype).view(Rounded)
        mixed.kind, mixed.machine = own.kind, own.machine
        return mixed
    return dtypes.where(near, told, own)


def _unit(operand: PerDevice) -> float:
    """Twice the gap above 1.0 of an operand's dtype."""
    kind = operand[0].kind if isinstance(operand[0], Rounded) else _FLOAT64
    return 2 * dtypes.dtype(kind).eps


def _look_beside(oracle: Decision, rounded: Decision) -> None:
    """Decide once more: as a machine did, and on operands that are off as far as rounding may be, to either side.

    Of exact operands only the former: what is rounded between them and the jump, a quotient or a sum, moves it too.
    """
    if not oracle.near:
        oracle.near = _shared([(value,) for value in oracle.result], _nowhere)
        oracle.other = oracle.result
    looked: dict[tuple[int, ...], tuple[Any, Any]] = {}
    near: PerDevice = []
    other: PerDevice = []
    for position, result in enumerate(oracle.result):
        operands = [operand[position] for operand in oracle.operands]
        own = [plain(operand[position]) for operand in rounded.operands]
        key = (*map(id, operands), *map(id, own))
        if key not in looked:
            shifts = [
                window + unit * np.abs(value) if window else None
                for value, window, unit in zip(operands, oracle.windows, oracle.units, strict=True)
            ]
            known = _decided(oracle.near[position], oracle.other[position], rounded.result[position], result)
            looked[key] = _otherwise(known, oracle, operands, own, shifts, result) if any(oracle.windows) else known
        near.append(looked[key][0])
        other.append(looked[key][1])
    oracle.near, oracle.other = near, other


def _nowhere(value: Any) -> Any:
    if is_sequence(value):
        return tuple(map(_nowhere, value))
    return np.zeros(np.shape(value), bool)


def _decided(near: Any, other: Any, own: Any, result: Any) -> _Beside:
    """What is known of other results, and what a machine decided: more than a rounding of the result away."""
    if is_sequence(result):
        parts = [_decided(*part) for part in zip(near, other, own, result, strict=True)]
        return tuple(part[0] for part in parts), tuple(part[1] for part in parts)
    if not dtypes.is_floating(result):
        return _joined(near, other, plain(own), result, 0.0)
    with np.errstate(all="ignore"):
        # Where the machine overflows, it decides nothing.
        candidate = dtypes.where(np.isfinite(plain(own)), plain(own), result)
        return _joined(near, other, candidate, result, _unit([own]) * np.abs(result))


def _otherwise(
    known: _Beside, oracle: Decision, operands: list[Any], own: list[Any], shifts: list[Any], result: Any
) -> _Beside:
    """Which elements of `result` may be others, and what they are then; beside what is known already."""
    # Beyond what a result moves that only moves: the remainder of a division, the values of a top_k.
    step = 4 * max(float(np.max(shift, initial=0.0)) for shift in shifts if shift is not None)
    with np.errstate(all="ignore"):
        if oracle.kind == "equality":
            near = _may_be_equal(operands, own, shifts, result) | known[0]
            return near, dtypes.where(near, ~np.asarray(result), result)
        for moved in _moved(oracle, operands, shifts, result):
            known = _joined(*known, oracle.function(*moved), result, step)
    return known


_Beside = tuple[Any, Any]
"""Where another result is possible, and that result."""


def _joined(near: Any, other: Any, candidate: Any, result: Any, step: Any) -> _Beside:
    """What is known of other results, and one more; the first that differs stays."""
    if is_sequence(result):
        parts = [_joined(*part, step) for part in zip(near, other, candidate, result, strict=True)]
        return tuple(part[0] for part in parts), tuple(part[1] for part in parts)
    if np.shape(candidate) != np.shape(result):
        return near, other
    if dtypes.is_floating(result):
        differs = (np.abs(candidate - result) > step) | (np.isnan(candidate) != np.isnan(result))
    else:
        differs = np.asarray(candidate != result)
    new = differs & ~near
    return near | differs, dtypes.where(new, candidate, other) if np.any(new) else other


def _may_be_equal(operands: list[Any], own: list[Any], shifts: list[Any], result: Any) -> Any:
    """Where two numbers may be equal or not. Equal before and after rounding, they are so by no accident."""
    (a, b), (c, d) = operands[:2], own[:2]
    if np.ndim(result) == 0 and np.shape(a) != np.shape(b):
        # Arrays of different shapes are not equal, whatever is in them.
        return np.zeros((), bool)
    off = sum(0.0 if shift is None else shift for shift in shifts[:2])
    near = (np.abs(a - b) <= off) & ~((a == b) & (c == d))
    return near if np.shape(near) == np.shape(result) else np.all(near)


def _moved(oracle: Decision, operands: list[Any], shifts: list[Any], result: Any) -> Iterator[list[Any]]:
    """The operands of a decision, off to each side in turn."""
    at = [i for i, shift in enumerate(shifts) if shift is not None]

    def by(*signs: Any) -> list[Any]:
        moved = list(operands)
        for i, sign in zip(at, signs, strict=True):
            moved[i] = operands[i] + sign * shifts[i]
        return moved

    first = operands[at[0]]
    if oracle.kind in ("largest", "smallest"):
        # Whoever won loses by as much as two may be off, so that the next best wins if it is near enough.
        yield by((-2.0 if oracle.kind == "largest" else 2.0) * _winners(first, result, oracle.axis))
    elif oracle.kind == "order":
        # Neighbours in the order change places: the first with the second, then the second with the third.
        ranks = _ranks(first, oracle.axis)
        yield by(dtypes.where(ranks % 2, -1.0, 1.0))
        yield by(dtypes.where(ranks % 2, 1.0, -1.0))
    elif oracle.kind == "draw":
        draws = np.random.default_rng(0)
        for _ in range(_DRAWS):
            yield by(*(draws.choice([-1.0, 1.0], np.shape(operands[i])) for i in at))
    else:
        for sign in (1.0, -1.0):
            yield by(*(sign for _ in at))
            if len(at) > 1:
                yield from (by(*(sign if i == j else -sign for j in range(len(at)))) for i in range(len(at)))


_DRAWS = 16
"""How often a random draw from weights that rounding moves is drawn again."""


def _winners(x: Any, result: Any, axis: int | None) -> Any:
    chosen = np.zeros(np.shape(x))
    if axis is None:
        chosen.reshape(-1)[int(np.ravel(result)[0])] = 1.0
        return chosen
    places = result if np.ndim(result) == np.ndim(x) else np.expand_dims(result, axis)
    np.put_along_axis(chosen, places, 1.0, axis)
    return chosen


def _ranks(x: Any, axis: int | None) -> Any:
    if axis is None:
        return _ranks(np.ravel(x), 0).reshape(np.shape(x))
    return np.argsort(np.argsort(x, axis=axis, kind="stable"), axis=axis, kind="stable")
