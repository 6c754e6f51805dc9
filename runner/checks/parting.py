"""Takes the errors of a program's equations beside float64; says at which line the program and its twin part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from runner.base import dtypes
from runner.checks.compare import of_bytes
from runner.checks.kinds import value
from runner.checks.twins import BOUND
from runner.compiled.evidence.hlo import Metadata
from runner.compiled.evidence.nodes import Origins, backward
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.link.events import EquationError, Parted
from runner.reports.record.verdicts import Parting, ValueOutput, ValueVerdict


def sought(verdict: ValueVerdict) -> bool:
    """Whether a program is wrong in its own dtypes alone: then its line is worth knowing."""
    return any(map(_alone, verdict.compared.values()))


def _alone(output: ValueOutput) -> bool:
    return output.status == "failed" and output.twin is not None and output.twin.status == "passed"


def first(experiment: Experiment, program: Program, parted: Parted) -> Parting | None:
    """Return the first equation that differs from float64 by more than rounding can; None if none does.

    `experiment` is the one that the program was written from.
    """
    for equation in parted.equations:
        allowed = _allowed(equation, BOUND)
        if equation.error is not None and equation.error <= allowed:
            continue
        metadata = Metadata(equation.stack, tuple((file, line) for file, line in equation.places))
        origins = Origins(experiment, program.lines).of(metadata)
        share = equation.scale or 1.0
        frames = experiment.given_frames[program.lines]
        return Parting(
            line=str(frames.get(origins[0].node) or origins[0].node) if origins else None,
            primitive=equation.primitive,
            gradient=backward(equation.stack),
            error=None if equation.error is None else equation.error / share,
            rounding=None if equation.error is None else allowed / share,
            number=equation.number,
            of=parted.of,
        )
    return None


def _allowed(equation: EquationError, bound: Mapping[int, float]) -> float:
    """What rounding does to the result of an equation at most; `bound` is in units of what was measured."""
    kind = dtypes.dtype(equation.dtype)
    if kind.exact:
        return 0.0
    return of_bytes(equation.dtype, bound) * (equation.spread + kind.eps * equation.scale)


RIGHT = {1: 2.0, 2: 2.0, 4: 4.0, 8: 4.0}
"""How far an equation that is right may be from float64, in units of what moving its operands changes."""


def proved(verdict: ValueVerdict, parted: Parted) -> ValueVerdict | None:
    """Return the verdict on a program whose twin is right and each of whose equations is right to rounding.

    Its error is what the roundings of its own lines add up to, which the oracle's lines need not have. None if an
    equation was not measured or is further off, if the program has other outputs when it returns all its values, or if
    values are infinite or NaN where the oracle's are finite.
    """
    alone = {name: output for name, output in verdict.compared.items() if _alone(output)}
    if not rounds(parted) or not all(math.isfinite(output.max_abs_error) for output in alone.values()):
        return None
    reasons = {name: _right(output, parted.of) for name, output in alone.items()}
    outputs = {
        name: replace(output, status="passed", reason=reasons[name]) if name in reasons else output
        for name, output in verdict.outputs.items()
    }
    notes = [f"{name}: {reason}" for name, reason in reasons.items()]
    judged = value.revised(verdict, outputs)
    return replace(judged, note="; ".join(filter(None, (verdict.note, *notes))))


def rounds(parted: Parted) -> bool:
    """Whether every equation was measured and is right to rounding, and the outputs are those of the program."""
    right = all(
        equation.error is not None and equation.error <= _allowed(equation, RIGHT) for equation in parted.equations
    )
    return right and parted.same and len(parted.equations) == parted.of


def _right(output: ValueOutput, equations: int) -> str:
    assert output.twin is not None
    times = "" if output.accuracy is None else f"{output.accuracy:.2g} × the measured rounding; "
    return (
        f"{times}each of the program's {equations} equations is right to rounding, and in float64 it equals the oracle "
        f"to {output.twin.max_abs_error:.1g}"
    )


def sentence(parting: Parting | None, parted: Parted) -> str:
    """Return in words where a program and its twin part."""
    if parting is None and rounds(parted):
        return (
            f"each of the program's {parted.of} equations is right to rounding: it divides by what rounds to 0, or "
            "leaves the range of a dtype"
        )
    if parting is None:
        left_out = parted.of - len(parted.equations)
        others = f" ({left_out} have no meaning in float64)" if left_out else ""
        return (
            f"no equation shows where program and twin part{others}: returned one by one, each is right to rounding, "
            "so what is wrong shows only where the compiler joins them, or the errors of many add up"
        )
    where = f"line {parting.line}" if parting.line else "a line that JAX does not name"
    where += ", in the backward pass" if parting.gradient else ""
    by = "an infinite error"
    if parting.error is not None and parting.rounding is not None:
        by = f"an error of {parting.error:.2g} of its largest element, where rounding explains {parting.rounding:.1g}"
    return (
        f"program and twin part at {where}: {parting.primitive} has {by}; the equations before it are right to rounding"
    )
