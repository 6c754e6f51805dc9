"""`gradient`: whether the oracles of the gradients are what they are taken for; `value` holds the gradients to them."""

from __future__ import annotations

from runner.checks.context import Context
from runner.link.target import ProgramRun
from runner.record.verdicts import GradientVerdict
from runner.reference.gradient import DIRECTIONS, RTOL


def check(context: Context, run: ProgramRun) -> GradientVerdict:
    """Which oracle each section's gradients have, and how far directional differences are from it.

    `apart` is in units of what is allowed, `rtol` of <g, v> and the rounding of the difference: at most 1 confirms.
    """
    found = context.gradients
    sections = ("graph", "per_device") if run.program.section == "per_device" else ("graph",)
    other = [name for name, apart in found.apart.get("per_device", {}).items() if apart > 1]
    differs = f"per_device's scalar has another derivative than graph's in {' and '.join(other)}"
    return GradientVerdict(
        status="failed" if found.faults else "passed",
        reason="; ".join(found.faults) or None,
        note=differs if other and "per_device" in sections else None,
        oracle={section: found.oracle[section] for section in sections if section in found.oracle},
        directions=DIRECTIONS,
        rtol=RTOL,
        apart={section: found.apart[section] for section in sections if section in found.apart},
    )
