"""Takes a program's `value` verdict and the run of its twin in float64; returns the verdict that the twin decides.

The twin is the same program with every float widened (`runner/worker/widening.py`), run on the same numbers. Where
rounding explains a difference it explains none in the twin, which differs from the float64 oracle by 1e-11 at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np

from runner.base import dtypes
from runner.base.layout import first_holders
from runner.base.lazy import dataclass
from runner.base.words import listed
from runner.checks import oracles
from runner.checks.compare import SAFE, SAME, Alternatives, Difference, Tolerance, difference, nearest, of_bytes
from runner.checks.context import Context
from runner.checks.kinds import value
from runner.checks.reference import PerDevice, Rounding, gradient, magnitude
from runner.checks.reference.rounding import SAFETY_OF_FLOAT64
from runner.experiment.data import Arrays
from runner.experiment.model import Section
from runner.experiment.program import Program
from runner.link.target import Output, ProgramRun
from runner.reports.record.verdicts import OutputVerdict, TwinOutput, ValueOutput, ValueVerdict

TERMS = 1e-11
"""How much the order of sums and the functions of two libraries may change in float64, relative to the largest
element."""

ROUGH = 1e-6
"""The same unless the twin is to decide alone, and at most the measured rounding error of the program: a constant that
a function computes has been rounded to float32."""

BOUND = {1: 16.0, 2: 16.0, 4: 64.0, 8: 64.0}
"""What rounding may do at most, in units of the largest measured rounding error, by the dtype's size in bytes."""


def doubtful(verdict: ValueVerdict) -> bool:
    """Whether rounding does not decide a verdict: an output is beyond the tolerance, undecided, or checked bluntly."""
    return any(map(_doubtful, verdict.compared.values()))


def _doubtful(output: ValueOutput) -> bool:
    return output.status in ("failed", "weak") or output.undecided is not None


def proved(verdicts: Mapping[Program, ValueVerdict]) -> set[tuple[Program, str]]:
    """The outputs that twins have decided to be right, although rounding does not."""
    return {
        (program, name)
        for program, verdict in verdicts.items()
        for name, output in verdict.compared.items()
        if output.status == "passed" and output.twin is not None and output.twin.status == "passed"
        if output.wrong or output.undecided is not None
    }


def annotated(verdicts: Mapping[Program, ValueVerdict]) -> dict[Program, ValueVerdict]:
    """The verdicts where all twins were asked for: a note says how near those are that equal the oracle."""
    equal = {
        program: [output.twin.max_abs_error for output in verdict.compared.values() if output.twin is not None]
        for program, verdict in verdicts.items()
        if verdict.compared and all(_equals(output) for output in verdict.compared.values())
    }
    largest = max((error for errors in equal.values() for error in errors), default=0.0)
    which = "the program equals" if len(equal) == 1 else "the programs equal"
    note = f"in float64 {which} the oracle to {largest:.1g}"
    return {
        program: replace(verdict, note="; ".join(filter(None, (note, verdict.note)))) if program in equal else verdict
        for program, verdict in verdicts.items()
    }


def _equals(output: ValueOutput) -> bool:
    return output.twin is not None and output.twin.status == "passed"


def unrun(verdicts: Mapping[Program, ValueVerdict]) -> list[str]:
    """Why there are no twins of programs that did not fail for want of them, a sentence for each reason."""
    programs: dict[str, list[str]] = {}
    for program, verdict in verdicts.items():
        twins = (output.twin for output in verdict.compared.values() if output.status != "failed")
        for reason in {twin.reason for twin in twins if twin is not None and twin.status == "not_run"}:
            programs.setdefault(reason or "it did not run", []).append(str(program))
    return [
        f"{listed(names)} {'has' if len(names) == 1 else 'have'} no twin in float64, and the measured rounding "
        f"decides: {reason}"
        for reason, names in programs.items()
    ]


def needs_gradients(context: Context) -> bool:
    """Whether the oracle's gradients are not those of twins: casts round them, or a rule computes in its own dtypes."""
    if context.experiment.grad is None or context.graph is None:
        return False
    return context.graph.casts or bool(context.gradients.by_rules)


@dataclass
class Decided:
    """What decides by twins, and keeps the oracles in float64 that they need.

    `gradients` are those of the unsharded graph as twins compute them, where the oracle's are others.
    """

    context: Context
    gradients: Arrays
    _values: dict[Section, Mapping[str, PerDevice]] = field(default_factory=dict[Section, Mapping[str, PerDevice]])
    _rounding: dict[Section, Mapping[str, Rounding]] = field(default_factory=dict[Section, Mapping[str, Rounding]])

    def decide(self, run: ProgramRun, verdict: ValueVerdict, twin: ProgramRun) -> ValueVerdict:
        """Return the verdict on a program; `twin` is the run of its twin, or says why there is none."""
        outputs = {name: self._output(run, name, output, twin) for name, output in verdict.outputs.items()}
        decided = value.revised(verdict, outputs)
        notes = [
            f"{name}: {output.reason}"
            for name, output in decided.compared.items()
            if output.status == "passed" and output.twin is not None and output.reason
        ]
        return replace(decided, note="; ".join(filter(None, (decided.note, *notes))) or None)

    def _output(
        self, run: ProgramRun, name: str, output: ValueOutput | OutputVerdict, twin: ProgramRun
    ) -> ValueOutput | OutputVerdict:
        if not isinstance(output, ValueOutput):
            return output
        section = self.context.knows(run.program, name)
        assert section is not None
        compared = _not_run(twin.error) if twin.error else self._compared(section, name, twin)
        if output.wrong:
            output = replace(output, accuracy=accuracy(self.context, section, name, run.outputs[name]))
        output = replace(output, twin=compared)
        if compared.status == "failed":
            return replace(output, status="failed", reason=_differs(compared))
        if compared.status == "not_run" or not (_doubtful(output) or output.accepted):
            return output
        if (output.status == "weak" or output.accepted) and output.overflowing:
            # A right program whose values its dtype cannot hold.
            return output
        if output.status in ("failed", "weak") and not self._explained(section, name, run.outputs[name], output):
            return replace(output, status="failed", reason=_alone(output, compared))
        if compared.ties > compared.of / 2:
            return output if output.status == "passed" else replace(output, status="weak", reason=_tied(compared))
        return replace(output, status="passed", accepted=False, reason=_equal(output, compared))

    def _explained(self, section: Section, name: str, held: Output, output: ValueOutput) -> bool:
        """Whether rounding may cause the error of an output whose twin is right."""
        if dtypes.dtype(held.dtype).exact:
            return not output.wrong
        bound = of_bytes(held.dtype, BOUND)
        if output.accuracy is None or output.accuracy > bound:
            return False
        times = bound / of_bytes(held.dtype, SAFE)
        return all(times * m.least <= m.found <= times * m.most for m in output.whole.values())

    def _compared(self, section: Section, name: str, run: ProgramRun) -> TwinOutput:
        """Compare an output of a twin with the oracle in float64."""
        twin = run.outputs[name]
        expected = self._expected(section)[name]
        kind = _kind(self.context.outputs[name][1])
        allowed = Tolerance(0.0, 0.0) if dtypes.dtype(kind).exact else self._allowed(section, name, expected)
        total = self._difference(section, name, twin, expected, kind, allowed, None)
        if total[0].wrong:
            near = self._near(section, name)
            if near is not None:
                allowed += Tolerance(0.0, SAFETY_OF_FLOAT64 * near.error)
                total = self._difference(section, name, twin, expected, kind, allowed, near)
            if total[0].wrong and self.context.experiment.verify != "twin" and not dtypes.dtype(kind).exact:
                rounded = min(ROUGH * magnitude(expected), self.context.rounding(section, name).error)
                rough = allowed + Tolerance(0.0, rounded)
                roughly = self._difference(section, name, twin, expected, kind, rough, near)
                total, allowed = (total, allowed) if roughly[0].wrong else (roughly, rough)
        apart, devices = total
        return TwinOutput(
            status="failed" if apart.wrong else "passed",
            max_abs_error=apart.max_abs,
            atol=allowed.atol,
            rtol=allowed.rtol,
            wrong=apart.wrong,
            of=apart.size,
            devices=devices,
            ties=apart.undecided,
            shared=run.ran.compilation.timing.shared,
            power=0.0 if dtypes.dtype(kind).exact else value.power(self.context, section, name, expected, allowed),
        )

    def _difference(
        self,
        section: Section,
        name: str,
        twin: Output,
        expected: PerDevice,
        kind: str,
        allowed: Tolerance,
        near: Rounding | None,
    ) -> tuple[Difference, list[int]]:
        context, total, devices = self.context, SAME, list[int]()
        holders = first_holders(expected)
        done: dict[object, Difference] = {}
        for part in twin.held:
            key = (part.copy, holders[part.position if section == "per_device" else 0], part.ranges)
            if key not in done:
                wanted = context.part(section, name, expected, part.position, part.ranges)
                beside = near and Alternatives.of(
                    near, lambda held, part=part: context.part(section, name, held, part.position, part.ranges)
                )
                done[key] = difference(part.value, wanted, kind, allowed, beside)
            total = total.joined(done[key])
            if done[key].wrong:
                devices.append(part.device)
        return total, devices

    def _allowed(self, section: Section, name: str, expected: PerDevice) -> Tolerance:
        """The tolerance in float64: the measured rounding, as much smaller as float64's is."""
        context = self.context
        measured = context.rounding(section, name).error
        if context.gradients.oracle.get(section) == gradient.BY_DIFFERENCES and name.startswith("grad."):
            return context.tolerance(section, name)
        kinds = [dtypes.dtype(context.outputs[name][1]), *_kinds(context.floats.get(section, {}))]
        narrowest = max((kind.eps for kind in kinds if not kind.exact), default=_SINGLE)
        scaled = SAFETY_OF_FLOAT64 * measured * _DOUBLE / max(narrowest, _SINGLE)
        return Tolerance(TERMS, TERMS * magnitude(expected) + (scaled if math.isfinite(scaled) else 0.0))

    def _expected(self, section: Section) -> Mapping[str, PerDevice]:
        """The values of a section in float64, with casts that do not round."""
        if section not in self._values:
            oracle, context = self.context.oracle(section), self._given()
            experiment = context.experiment
            values = dict(oracle.values)
            if self._uncast(section):
                known = context.uncast.get(section) if context is self.context else None
                values |= known or oracles.uncast(context, section)
            for name, value in self.gradients.items():
                if f"grad.{name}" in values:
                    values[f"grad.{name}"] = gradient.held_by(experiment, section, name, value)
            self._values[section] = values
        return self._values[section]

    def _near(self, section: Section, name: str) -> Rounding | None:
        """What float64's own rounding does to an output, with the ties that it decides; None of a gradient."""
        if section not in self._rounding:
            casts = not self._uncast(section)
            self._rounding[section] = oracles.in_float64(self._given(), section, casts=casts, place=0)
        return self._rounding[section].get(name)

    def _uncast(self, section: Section) -> bool:
        """Whether a section's values are other ones where casts do not round, or where gradients are a twin's."""
        return self._given() is not self.context or self.context.oracle(section).casts

    def _given(self) -> Context:
        """The context, with the gradients as twins compute them among the arrays, if lines read them."""
        if not self.gradients or not self.context.experiment.reads_gradients:
            return self.context
        known = {f"grad.{name}": value for name, value in self.gradients.items()}
        return replace(self.context, arrays={**self.context.arrays, **known})


_SINGLE, _DOUBLE = dtypes.dtype("float32").eps, dtypes.dtype("float64").eps


def _kinds(floats: Mapping[str, Mapping[int, str]]) -> list[dtypes.DType]:
    names = {kind for places in floats.values() for kind in places.values() if not kind.startswith("weak")}
    return [dtypes.dtype(kind) for kind in names]


def _kind(dtype: str) -> str:
    """The dtype of a twin's output."""
    kind = dtypes.dtype(dtype)
    return dtype if kind.exact else "complex128" if kind.kind == "complex" else "float64"


def _not_run(reason: str | None) -> TwinOutput:
    return TwinOutput(status="not_run", reason=reason)


def _equal(output: ValueOutput, twin: TwinOutput) -> str:
    ties = f", {twin.ties} ties aside" if twin.ties else ""
    equals = f"in float64 the same program equals the oracle to {twin.max_abs_error:.1g}{ties}"
    if output.accuracy is not None and output.wrong:
        return f"{output.accuracy:.2g} × the measured rounding; {equals}"
    return equals


def _tied(twin: TwinOutput) -> str:
    return (
        f"{twin.ties} of {twin.of} elements are undecided in float64 too: they depend on decisions that its rounding "
        "changes"
    )


def _differs(twin: TwinOutput) -> str:
    return (
        f"in float64 the same program differs from the oracle too, at {twin.wrong} of {twin.of} elements, by up to "
        f"{twin.max_abs_error:.3g}, where rounding explains {twin.atol:.1g}"
    )


def _alone(output: ValueOutput, twin: TwinOutput) -> str:
    how = "" if output.accuracy is None else f", {output.accuracy:.3g} × the measured rounding"
    return (
        f"in its own dtypes alone: in float64 the same program equals the oracle to {twin.max_abs_error:.1g}; "
        f"what the compiler makes of it in narrower dtypes differs by up to {output.max_abs_error:.3g}{how}"
    )


def accuracy(context: Context, section: Section, name: str, output: Output) -> float | None:
    """The largest error of an output in units of the measured rounding; None of exact dtypes."""
    if dtypes.dtype(output.dtype).exact:
        return None
    allowed = context.tolerance(section, name)
    largest = 0.0
    for part in output.held:
        expected = context.expected(section, name, part.position, part.ranges)
        beside = context.beside(section, name, part.position, part.ranges)
        got, wanted = nearest(part.value, expected, output.dtype, allowed, beside)
        with np.errstate(all="ignore"):
            share = np.abs(got - wanted) / (allowed.atol + allowed.rtol * np.abs(wanted))
            share = dtypes.where((got == wanted) | (np.isnan(got) & np.isnan(wanted)), 0.0, share)
            share = dtypes.where(np.isnan(share), math.inf, share)
        largest = max(largest, float(np.max(share, initial=0.0)))
    return of_bytes(output.dtype, SAFE) * largest if math.isfinite(largest) else None
