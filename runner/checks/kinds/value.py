"""`value`: compares what every device holds with the oracle of the section that the program is written from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from runner.base import dtypes
from runner.base.layout import first_holders
from runner.base.words import listed
from runner.checks.compare import (
    EXCUSED,
    SAFE,
    SAME,
    Alternatives,
    Difference,
    Tolerance,
    difference,
    many,
    nearest,
    of_bytes,
)
from runner.checks.context import Context, deciding
from runner.checks.kind import CheckKind, Needs
from runner.checks.reference import PerDevice, Rounding
from runner.checks.reference.rounding import row_step
from runner.checks.whole import Whole, as_a_whole
from runner.experiment.model import Section
from runner.experiment.program import Program
from runner.link.target import DeviceShard, Output, ProgramRun, Ranges
from runner.reports.record.verdicts import (
    Measure,
    NotRun,
    Outcome,
    OutputVerdict,
    Undecided,
    ValueOutput,
    ValueVerdict,
)

WEAK = 0.1
"""A check that would miss a mistake of this share of an output's root mean square is weak."""


def check(context: Context, run: ProgramRun) -> ValueVerdict:
    """Compare every output on every device with its oracle."""
    outputs: dict[str, ValueOutput | OutputVerdict] = {}
    for name, output in run.outputs.items():
        section = context.knows(run.program, name)
        compared = None if section is None else _verdict(context, section, name, output)
        if compared is None or (compared.status == "failed" and name in context.unruled):
            outputs[name] = OutputVerdict(status="not_run", reason=_without_oracle(context, run.program, name))
        else:
            outputs[name] = compared
    verdict = together(outputs)
    notes = [
        verdict.note,
        *_of_rules(context, outputs),
        _of_regions(context) if run.program.section == "graph" else None,
    ]
    return replace(verdict, note="; ".join(filter(None, notes)) or None)


def _without_oracle(context: Context, program: Program, name: str) -> str:
    """Why an output is not compared."""
    rules = listed(context.experiment.rules)
    if program is Program.DERIVED and name in context.without_rules:
        return f"the lines of {program} do not have the rule of {rules}, which gives another gradient"
    if name in context.without_rules:
        return (
            f"it differs from the derivative of the lines, which do not have the rule of {rules}; with a graph the "
            "reference has the rule"
        )
    return "no oracle computes it"


def _of_rules(context: Context, outputs: Mapping[str, ValueOutput | OutputVerdict]) -> list[str]:
    """What follows the user's own rules of differentiation, and what is not compared because of them."""
    compared = [name for name in context.gradients.by_rules if isinstance(outputs.get(name), ValueOutput)]
    left_out: dict[str | None, list[str]] = {}
    for name, verdict in outputs.items():
        if name in context.without_rules and verdict.status == "not_run":
            left_out.setdefault(verdict.reason, []).append(name)
    notes = [
        f"{listed(names)} {'is' if len(names) == 1 else 'are'} not compared: {why}" for why, names in left_out.items()
    ]
    if compared:
        how = "; ".join(f"{name} {context.gradients.by_rules[name]}" for name in compared)
        notes.append(f"the reference follows the rule of {listed(context.experiment.rules)}: {how}")
    return notes


def _of_regions(context: Context) -> str | None:
    """What a verdict proves where the oracle reads a `shard_map` of the user's own."""
    places = context.experiment.regions
    if not places:
        return None
    return (
        f"the oracle is the function itself, with its shard_map ({listed(places)}): JAX computes what the function "
        "says, but whether its collectives are right is not checked; to check them too, give a function that computes "
        "the same without collectives, as reference= of runner.check, or under references in a file"
    )


def together(outputs: Mapping[str, ValueOutput | OutputVerdict], diagnosis: Sequence[str] = ()) -> ValueVerdict:
    """Return the check of a program from the verdicts on its outputs; its status is the worst of theirs."""
    status = _worst([verdict.status for verdict in outputs.values()])
    compared = {name: verdict for name, verdict in outputs.items() if isinstance(verdict, ValueOutput)}
    weak = "; ".join(f"{name}: {verdict.reason}" for name, verdict in outputs.items() if verdict.status == "weak")
    nans = sum(verdict.nan for verdict in compared.values())
    return ValueVerdict(
        status=status,
        reason=weak if status == "weak" else None,
        diagnosis=list(diagnosis),
        note=f"the reference has NaN: {nans} comparisons of NaN with NaN count as equal" if nans else None,
        max_abs_error=max([0.0, *(verdict.max_abs_error for verdict in compared.values())]),
        max_rel_error=max([0.0, *(verdict.max_rel_error for verdict in compared.values())]),
        rtol=max([0.0, *(verdict.rtol for verdict in compared.values())]),
        atol=max([0.0, *(verdict.atol for verdict in compared.values())]),
        outputs=dict(outputs),
        power=max([verdict.power for verdict in compared.values() if verdict.power is not None], default=None),
        accepted=sorted(name for name, verdict in compared.items() if verdict.accepted),
    )


def revised(verdict: ValueVerdict, outputs: Mapping[str, ValueOutput | OutputVerdict]) -> ValueVerdict:
    """Return the verdict with other verdicts on its outputs."""
    return replace(together(outputs, verdict.diagnosis), note=verdict.note, parting=verdict.parting)


def _worst(statuses: list[Outcome]) -> Outcome:
    # Without outputs, nothing ran.
    order: tuple[Outcome, ...] = ("failed", "weak", "known", "passed", "not_run")
    return min([*statuses, order[-1]], key=order.index)


def _verdict(context: Context, section: Section, name: str, output: Output) -> ValueOutput:
    """Return the verdict on one output: its elements, its measures as a whole, the smallest mistake it would show."""
    allowed = context.tolerance(section, name)
    total, devices, first = SAME, list[int](), None
    for part, apart in _differences(context, section, name, output, allowed):
        total = total.joined(apart)
        if apart.wrong:
            devices.append(part.device)
        if apart.first is not None and first is None:
            first = [start + at for (start, _), at in zip(part.ranges, apart.first, strict=True)]
    rounding = context.rounding(section, name)
    excused = total.excused > EXCUSED * total.size
    power = _of_elements(context, section, name, allowed)
    whole = None if _overflows(total) else _as_a_whole(context, section, name, output, allowed)
    measures: dict[str, Measure] = {}
    if whole is not None:
        measures = {
            measure: Measure(found=whole.measured[measure], least=whole.least[measure], most=whole.most[measure])
            for measure in whole.measured
        }
        power = whole.power if power is None else min(power, whole.power)
    if _overflows(total):
        power = None
    status: Outcome = "failed" if total.wrong or excused else "passed"
    reason = f"{total.excused} of {total.size} elements match no value that near ties allow" if excused else None
    if whole is not None and whole.outside and status == "passed":
        status = "failed"
        reason = "; ".join(_outside(measure, measures[measure]) for measure in whole.outside)
    blunt_because, accepted = _blunt(total, power, output.dtype), False
    if status == "passed" and blunt_because:
        reason, accepted = blunt_because, name in context.experiment.weak
        status = "passed" if accepted else "weak"
    return ValueOutput(
        status=status,
        reason=reason,
        oracle=section,
        max_abs_error=total.max_abs,
        max_rel_error=total.max_rel,
        rtol=allowed.rtol,
        atol=allowed.atol,
        share=total.share,
        rounding=rounding.error,
        wrong=total.wrong,
        of=total.size,
        devices=devices,
        first=first,
        nan=total.nans,
        undecided=_undecided(total, rounding),
        overflowing=total.overflowing,
        whole=measures,
        power=power,
        accepted=accepted,
        accuracy=None
        if dtypes.dtype(output.dtype).exact or total.wrong
        else of_bytes(output.dtype, SAFE) * total.share,
    )


def _blunt(total: Difference, power: float | None, dtype: str) -> str | None:
    """Why a check that passed proves too little; None if it proves enough."""
    if _overflows(total):
        lacks = "" if dtypes.dtype(dtype).infinite else f": {dtype} has no infinity and holds NaN instead"
        return f"{total.overflowing} of {total.size} elements can be infinite or NaN and were not compared{lacks}"
    if total.undecided > total.size / 2:
        return (
            f"{total.undecided} of {total.size} elements are undecided: they depend on decisions that rounding changes"
        )
    if power is not None and power > 2:
        return f"rounding may be {power:.2g} times its root mean square, as in a value that is 0 but for rounding"
    if power is not None and power > WEAK:
        return f"it would not notice a mistake of less than {power:.0%} of its root mean square"
    return None


def _overflows(total: Difference) -> bool:
    """Whether so many elements are beyond the dtype's range that the rest proves little."""
    return total.unforeseen > 0 or total.overflowing > EXCUSED * total.size


def _undecided(total: Difference, rounding: Rounding) -> Undecided | None:
    if not total.undecided:
        return None
    places = [deciding(place) for place in rounding.places]
    return Undecided(count=total.undecided, between=total.between, excused=total.excused, places=places)


def _outside(measure: str, measured: Measure) -> str:
    if measure == "slope":
        return f"it is {1 + measured.found:.6g} times the reference on average, which rounding does not explain"
    share = f"{measured.found:.2g} of the root mean square, where rounding explains {measured.most:.2g}"
    if measure == "spread":
        return f"its errors have a root mean square of {share}"
    return f"the {measure} of its errors {'is' if measure == 'mean' else 'are up to'} {share}"


def _of_elements(context: Context, section: Section, name: str, allowed: Tolerance) -> float | None:
    """The smallest error of an element that is noticed, as a share of the root mean square; None if that is 0."""
    shape, dtype = context.outputs[name]
    if 0 in shape:
        return None
    width = _width(context, section, name, allowed)
    if dtypes.dtype(dtype).exact and not width:
        return 0.0
    return power(context, section, name, context.oracle(section).values[name], allowed + Tolerance(0.0, width))


def power(context: Context, section: Section, name: str, expected: PerDevice, allowed: Tolerance) -> float | None:
    """An error of an element that is just allowed, as a share of an output's root mean square; None if that is 0."""
    magnitudes = np.abs(_floating(context.whole(section, name, expected)))
    finite = magnitudes[np.isfinite(magnitudes)]
    root = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
    return allowed.atol / root + allowed.rtol if root > 0 else None


def _width(context: Context, section: Section, name: str, allowed: Tolerance) -> float:
    """How far half of the elements may be off due to decisions with many values; 0 if fewer depend on them."""
    rounding, kind = context.rounding(section, name), dtypes.dtype(context.outputs[name][1])
    if rounding.low is None or rounding.high is None:
        return 0.0
    low, high = (context.whole(section, name, bound) for bound in (rounding.low, rounding.high))
    if 2 * np.count_nonzero(low != high) <= low.size:
        return 0.0
    expected, *alternatives = (
        context.whole(section, name, held) for held in (context.oracle(section).values[name], *rounding.alternatives)
    )
    with np.errstate(all="ignore"):
        off = np.maximum(*(np.abs(_floating(bound) - _floating(expected)) for bound in (low, high)))
    return float(np.median(dtypes.where(many(expected, alternatives, kind, allowed), off, 0.0)))


def _floating(value: np.ndarray) -> np.ndarray:
    return value if value.dtype.kind == "c" else value.astype(np.float64)


def _as_a_whole(context: Context, section: Section, name: str, output: Output, allowed: Tolerance) -> Whole | None:
    dtype, rounding = context.outputs[name][1], context.rounding(section, name)
    if dtypes.dtype(dtype).exact or not rounding.about:
        return None
    expected = context.whole(section, name, context.oracle(section).values[name])
    beside = Alternatives.of(rounding, lambda value: context.whole(section, name, value))
    step = row_step(context.outputs[name][0])
    actual = output.whole()[::step] if step > 1 else output.whole()
    return as_a_whole(*nearest(actual, expected, dtype, allowed, beside), dtype, rounding)


def _differences(
    context: Context, section: Section, name: str, output: Output, allowed: Tolerance
) -> list[tuple[DeviceShard, Difference]]:
    done: dict[tuple[int, int, Ranges], Difference] = {}
    differences: list[tuple[DeviceShard, Difference]] = []
    # Slices of an oracle's value are new objects; those of one object and one range are equal.
    holders = first_holders(context.oracle(section).values[name])
    for part in output.held:
        expected = context.expected(section, name, part.position, part.ranges)
        key = (part.copy, holders[part.position if section == "per_device" else 0], part.ranges)
        if key not in done:
            beside = context.beside(section, name, part.position, part.ranges)
            done[key] = difference(part.value, expected, output.dtype, allowed, beside)
        differences.append((part, done[key]))
    return differences


def _excused(context: Context, verdict: ValueVerdict, wrong: frozenset[str]) -> ValueVerdict:
    outputs = {name: _known(context, name, output, wrong) for name, output in verdict.outputs.items()}
    return revised(verdict, outputs)


def _known(
    context: Context, name: str, verdict: ValueOutput | OutputVerdict, wrong: frozenset[str]
) -> ValueOutput | OutputVerdict:
    if name not in wrong or verdict.status == "not_run":
        return verdict
    if verdict.status == "failed":
        return replace(verdict, status="known")
    shown = context.experiment.imports.paths.get(name, name)
    reason = (
        f"it is right with jax {context.jax}, but expect.wrong lists it as wrong: if JAX is fixed, remove the entry, "
        f"or name the versions that are wrong ({shown}: '<{context.jax}')"
    )
    return replace(verdict, status="failed", reason=reason)


KINDS = (
    CheckKind(
        "value", ValueVerdict | NotRun, Needs.VALUES, lambda case: check(case.context, case.run),
        order=20, excused=_excused, of_mutants=True,
        says="every device's shard equals the oracle of the section from which the program is written, within "
        "[a measured tolerance](record.md#the-tolerance)",
    ),
)  # fmt: skip
