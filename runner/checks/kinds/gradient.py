"""`gradient`: whether the oracles of the gradients are right; the `value` check compares programs with them."""

from __future__ import annotations

from runner.base.lazy import dataclass
from runner.checks.context import Context
from runner.checks.kind import CheckKind, Needs
from runner.checks.reference.gradient import DIRECTIONS, RTOL
from runner.link.target import ProgramRun
from runner.reports.record.verdicts import Judged, NotRun


@dataclass(frozen=True, kw_only=True)
class GradientVerdict(Judged):
    """`gradient`: per section which oracle its gradients have, and how far directional differences are from it.

    `apart` is in units of what is allowed, `rtol` of the sum of the magnitudes and the rounding of the difference.
    """

    oracle: dict[str, str]
    directions: int
    rtol: float
    apart: dict[str, dict[str, float]]


def check(context: Context, run: ProgramRun) -> GradientVerdict:
    """Check the oracle of each section's gradients against directional differences.

    `apart` is in units of the tolerance, `rtol` of <g, v> plus the rounding of the difference: at most 1 passes.
    """
    gradients = context.gradients
    sections = ("graph", "per_device") if run.program.section == "per_device" else ("graph",)
    differing = [name for name, apart in gradients.apart.get("per_device", {}).items() if apart > 1]
    note = f"the derivative of per_device's scalar differs from graph's in {' and '.join(differing)}"
    return GradientVerdict(
        status="failed" if gradients.faults else "passed",
        reason="; ".join(gradients.faults) or None,
        note=note if differing and "per_device" in sections else None,
        oracle={section: gradients.oracle[section] for section in sections if section in gradients.oracle},
        directions=DIRECTIONS,
        rtol=RTOL,
        apart={section: gradients.apart[section] for section in sections if section in gradients.apart},
    )


KINDS = (
    CheckKind(
        "gradient", GradientVerdict | NotRun, Needs.VALUES, lambda case: check(case.context, case.run),
        order=60, applies=lambda experiment, program: experiment.alone(program.section).grad is not None,
        says="differences of the NumPy reference confirm the [oracle of the gradients](#gradients)",
    ),
)  # fmt: skip
