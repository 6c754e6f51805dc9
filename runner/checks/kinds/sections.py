"""`sections`: compares the oracles of `graph` and `per_device` in float64.

It needs no program: it does not depend on JAX, and holds even if JAX supports neither section.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Literal, TypeAlias

import numpy as np

from runner.base import dtypes
from runner.base.layout import Layout, distinct, first_holders
from runner.base.lazy import dataclass
from runner.base.words import listed, on_devices
from runner.checks import oracles
from runner.checks.compare import EXCUSED, SAME, Alternatives, Difference, Tolerance, carried, difference
from runner.checks.context import Context, deciding
from runner.checks.kind import CheckKind, Needs
from runner.checks.reference import PerDevice, Rounding, magnitude
from runner.checks.reference.rounding import SAFETY_OF_FLOAT64
from runner.experiment.model import Experiment, Section
from runner.graph.source import SECTIONS
from runner.reports.record.verdicts import NotRun, Outcome, SectionsOutput, SectionsVerdict, Undecided

_Values: TypeAlias = Mapping[Section, Mapping[str, PerDevice]]

TERMS = 1e-12
"""How much the order of a sum may change in float64, relative to the largest element."""


@dataclass(frozen=True)
class Comparison:
    """How far the sections are apart in one output, and how far they may be."""

    wrong: int
    size: int
    devices: tuple[int, ...]
    largest: float
    allowed: Tolerance
    undecided: int
    between: int
    excused: int

    @property
    def agree(self) -> bool:
        """Whether every element is within the tolerance, except a few that depend on undecided decisions."""
        return not self.wrong and self.excused <= EXCUSED * self.size

    @property
    def status(self) -> Literal["passed", "weak", "failed"]:
        """The status; weak if too many elements lie between the known values of their decisions."""
        if not self.agree:
            return "failed"
        return "weak" if self.between + self.excused > EXCUSED * self.size else "passed"


def lacking(experiment: Experiment) -> str | None:
    """Return why there is nothing to compare; None if there is."""
    if experiment.graph and experiment.per_device:
        return None
    if len(experiment.sections) < 2:
        return f"there is only {listed(experiment.sections)}"
    are = "is" if len(experiment.programs) == 1 else "are"
    return (
        f"there are graph and per_device, but per_device is not read: {listed(experiment.programs)} {are} written from "
        "graph alone, whose layouts may not be those of per_device"
    )


def check(context: Context) -> SectionsVerdict:
    """Compare every output of `per_device`, on every device, with `graph`'s."""
    compared = {name: compare(context, name) for name in context.experiment.results}
    if context.uncast:
        # A cast hides differences that are smaller than its step.
        before = {name: compare(context, name, before_casts=True) for name in compared}
        compared |= {name: result for name, result in before.items() if compared[name].agree and not result.agree}
    outputs = {
        name: SectionsOutput(
            status=result.status,
            max_abs_error=result.largest,
            rtol=result.allowed.rtol,
            atol=result.allowed.atol,
            wrong=result.wrong,
            of=result.size,
            devices=list(result.devices),
            undecided=_undecided(context, name, result),
        )
        for name, result in compared.items()
    }
    apart = [_apart(name, result) for name, result in compared.items() if not result.agree]
    derivatives = [name for name, off in context.gradients.apart.get("per_device", {}).items() if off > 1]
    if derivatives and not apart:
        apart.append(f"the derivative of per_device's scalar differs from graph's: {' and '.join(derivatives)}")
    status: Outcome = "failed" if apart else "passed"
    if any(result.status == "weak" for result in compared.values()) and not apart:
        status = "weak"
        apart = [_blunt(name, result) for name, result in compared.items() if result.status == "weak"]
    return SectionsVerdict(status=status, reason="; ".join(apart) or None, outputs=outputs)


def _undecided(context: Context, name: str, result: Comparison) -> Undecided | None:
    if not result.undecided:
        return None
    places = [
        deciding(place, section) for section, values in context.in_float64.items() for place in values[name].places
    ]
    return Undecided(count=result.undecided, between=result.between, excused=result.excused, places=places)


def _blunt(name: str, result: Comparison) -> str:
    return f"{name}: {result.between} of {result.size} elements lie between the values that near ties allow"


def _apart(name: str, result: Comparison) -> str:
    if not result.wrong:
        return f"{name}: {result.excused} of {result.size} elements match no value that near ties allow"
    return (
        f"{name} of per_device is not graph's at {result.wrong} of {result.size} elements, "
        f"on {on_devices(result.devices)}; "
        f"largest error {result.largest:.3g}, allowed {result.allowed.atol:.2g}"
    )


def compare(
    context: Context, name: str, per_device: PerDevice | None = None, *, before_casts: bool = False
) -> Comparison:
    """Compare an output of `per_device`, or the values of another program in its place, with the graph's.

    `before_casts` compares the values that both would have if casts did not round.
    """
    layout, dtype = context.blocks(name), context.outputs[name][1]
    graph = context.uncast["graph"][name] if before_casts else context.oracle("graph").values[name]
    if per_device is None:
        per_device = context.uncast["per_device"][name] if before_casts else context.oracle("per_device").values[name]
    allowed = _allowed(context, name, graph, per_device)
    exact = dtypes.dtype(dtype).exact
    kind = dtype if exact else "complex128" if dtypes.dtype(dtype).kind == "complex" else "float64"

    def compared(rounding: Mapping[Section, Mapping[str, Rounding]], values: _Values) -> Comparison:
        total, devices = SAME, list[int]()
        done: dict[tuple[int, tuple[tuple[int, int], ...]], Difference] = {}
        for position, first in enumerate(first_holders(per_device)):
            at = layout.index(position)
            key = (first, layout.ranges(position))
            if key not in done:
                beside = _beside(context, name, position, rounding, values)
                done[key] = difference(per_device[position], np.asarray(graph[0])[at], kind, allowed, beside)
            total = total.joined(done[key])
            if done[key].wrong:
                devices.append(position)
        return Comparison(
            total.wrong, total.size, tuple(devices), total.max_abs, allowed, total.undecided, total.between,
            total.excused,
        )  # fmt: skip

    result = compared(context.in_float64, {section: context.oracle(section).values for section in SECTIONS})
    if before_casts and result.wrong:
        # Where no cast rounds, other numbers are near a decision.
        context.in_float64_uncast = context.in_float64_uncast or {
            section: oracles.in_float64(context, section, casts=False) for section in SECTIONS
        }
        result = compared(context.in_float64_uncast, context.uncast)
    return result


def agree(
    context: Context,
    name: str,
    wanted: PerDevice,
    actual: PerDevice,
    lost: Rounding | None = None,
    literals: float = 0.0,
) -> bool:
    """Whether two values of `name` agree in float64, for any arrays; the graph has one value for all devices.

    `lost` is the measured rounding of float64 in the graph's value, where it is known: elements that hang on a decision
    near a tie are not compared. `literals`: how far the numbers in the lines may be
    from those that are meant, relative to these: JAX rounds the numbers of a function to the dtypes of its arrays.
    """
    layout, dtype = context.blocks(name), dtypes.dtype(context.outputs[name][1])
    wide = None if dtype.exact else np.complex128 if dtype.kind == "complex" else np.float64
    kind = dtype.name if wide is None else np.dtype(wide).name
    allowed = Tolerance(
        0.0,
        0.0
        if dtype.exact
        else max(ROUGH, literals) * magnitude(wanted) + SAFETY_OF_FLOAT64 * (0.0 if lost is None else lost.error),
    )
    # Where one section holds the value whole, it is compared block by block.
    blocks = [layout.block(position) for position in range(layout.mesh.size)]
    holders = [blocks if len(value) == 1 else first_holders(value) for value in (actual, wanted)]
    done: dict[tuple[Hashable, ...], bool] = {}
    for position, key in enumerate(zip(*holders, strict=True)):
        if key not in done:
            a, b = (
                _part(np.asarray(value[0]), layout, position) if len(value) == 1 else np.asarray(value[position])
                for value in (actual, wanted)
            )
            if lost is not None and lost.hangs is not None and a.shape == b.shape:
                b = dtypes.where(_part(np.asarray(lost.hangs[0]), layout, position), a, b)
            # A real output never equals a complex number.
            fits = a.shape == b.shape and (dtype.kind == "complex" or not np.iscomplexobj(a))
            done[key] = fits and not difference(a, b, kind, allowed).wrong
        if not done[key]:
            return False
    return True


def _part(whole: np.ndarray, layout: Layout, position: int) -> np.ndarray:
    """A device's part of a whole value; all of one that has another shape."""
    return whole[layout.index(position)] if whole.shape == layout.shape else whole


ROUGH = 1e-9
"""The largest distance of two values that are computed from generated arrays, relative to the largest element."""


def _allowed(context: Context, name: str, graph: PerDevice, per_device: PerDevice) -> Tolerance:
    """The tolerance: 64 times the effect of float64's rounding on either section, 1e-12 of the largest element, and
    `expect.sections`.
    """
    dtype = dtypes.dtype(context.outputs[name][1])
    if dtype.exact:
        return Tolerance(0.0, 0.0)
    lost = sum(context.in_float64[section][name].error for section in ("graph", "per_device"))
    atol = SAFETY_OF_FLOAT64 * lost + TERMS * magnitude(graph)
    whole = np.abs(np.asarray(graph[0]))
    finite = np.isfinite(whole)
    root = float(np.sqrt(np.mean(whole**2, where=finite))) if finite.any() else 0.0
    atol += context.experiment.approximate.get(name, 0.0) * root
    # A section that ends with a cast has values of the dtype; the other section may not.
    ends = {
        context.oracle("graph").casts and _held(graph, dtype),
        context.oracle("per_device").casts and _held(per_device, dtype),
    }
    rtol = dtype.eps / 2 if len(ends) > 1 else 0.0
    return Tolerance(rtol, atol)


def _held(values: list[np.ndarray], dtype: dtypes.DType) -> bool:
    """Whether the dtype represents every element exactly."""
    with np.errstate(all="ignore"):
        return all(
            np.array_equal(np.asarray(value).astype(dtype.numpy).astype(np.asarray(value).dtype), value, equal_nan=True)
            for value in distinct(values)
        )


def _beside(
    context: Context, name: str, position: int, rounding: Mapping[Section, Mapping[str, Rounding]], values: _Values
) -> Alternatives | None:
    """The other values that are right besides graph's, since the two sections may decide differently."""
    layout = context.blocks(name)
    graph, per_device = (rounding[section][name] for section in SECTIONS)
    if graph.low is None and per_device.low is None:
        return None
    at = tuple(slice(start, stop) for start, stop in layout.ranges(position))
    dtype = context.outputs[name][1]
    expected = low = high = np.asarray(values["graph"][name][0])[at]
    own = values["per_device"][name][position]
    if graph.low is not None and graph.high is not None:
        low, high = graph.low[0][at], graph.high[0][at]
    if per_device.low is not None and per_device.high is not None:
        low = carried(low, own, per_device.low[position], dtype)
        high = carried(high, own, per_device.high[position], dtype)
    alternatives = [np.asarray(value[0])[at] for value in graph.alternatives]
    # Where per_device decided differently, graph's alternative lies as far to the other side.
    alternatives += [carried(expected, value[position], own, dtype) for value in per_device.alternatives]
    return Alternatives(np.asarray(low), np.asarray(high), alternatives=tuple(alternatives))


KINDS = (
    CheckKind(
        "sections", SectionsVerdict | NotRun, Needs.FILE, order=0, of_mutants=True,
        says="`graph` and `per_device` are equal in float64: one check for all programs. It is not run if all programs "
        "are written from `graph` (`program=auto`), so you can sweep layouts although `per_device` has one layout",
    ),
)  # fmt: skip
