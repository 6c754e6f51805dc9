"""A collective of a record in, compiled, planned or asked for; the words for it out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner import executions
from runner.executions import Count, Range
from runner.words import bytes_text

if TYPE_CHECKING:
    from runner.evidence.model import Collective, Reason
    from runner.sharding.plan import AskedCollective, PlannedCollective


NOBODY = "no other device"
"""Over what a collective is whose axes all have size 1, as the compiled module has it, where these have no names."""


def collective(one: Collective) -> str:
    """`all-gather of w for y over x`, `collective-permute of ring.lhs (backward) over x`."""
    within = f" within groups {json.dumps(one.groups)}"
    over = within if one.axes is None else f" over {', '.join(one.axes) or NOBODY}"
    return f"{one.kind} of {subject(one)}{over}"


def subject(one: Collective) -> str:
    """What a collective communicates: the line that it belongs to, and, of one that the compiler inserted, whose value.

    `C`; `w for y` where the value of `w` is needed on other devices in line `y`; `loss and out (backward)`.
    """
    lines = one.nodes
    taken = [name for name in one.between.source if name not in lines] if one.between else []
    needed = lines or ([name for name in one.between.to if name not in taken] if one.between else [])
    backward = " (backward)" if one.gradient else ""
    if taken and needed:
        return f"{' and '.join(taken)} for {' and '.join(needed)}{backward}"
    if taken or lines:
        return f"{' and '.join(taken or lines)}{backward}"
    return f"a value for {' and '.join(needed)}{backward}" if needed else f"no line that the module names{backward}"


def described(one: Collective) -> str:
    """One collective of a record in a line."""
    inserted = ", inserted by the compiler" if one.inserted else ""
    return f"{often(one.count)} × {collective(one)}: a device sends {bytes_text(one.bytes_sent)}{inserted}"


def because(why: Reason) -> str:
    """Why a collective is there, in a sentence."""
    return why.text + ("; Shardy plans it too" if why.planned and why.by == "operation" else "")


def asked(one: AskedCollective) -> str:
    """`all-reduce of out over model`."""
    return f"{one.kind} of {_at(one.line, one.gradient)}{_over(one.axes)}"


def asked_at_length(one: AskedCollective) -> str:
    """A collective that a program asks for in a line."""
    return f"{often(one.count)} × {asked(one)}: a device sends {bytes_text(one.bytes_sent)}"


def planned(one: PlannedCollective) -> str:
    """`all-gather of w1 for hidden over data`."""
    of = one.of if one.line in (None, one.of) else f"{one.of} for {one.line}"
    return f"{one.kind} of {of}{' (backward)' if one.gradient else ''}{_over(one.axes)}"


def planned_at_length(one: PlannedCollective) -> str:
    """A collective that Shardy plans in a line."""
    return f"{often(one.count)} × {planned(one)}: a device sends {bytes_text(one.bytes_sent)}"


def _at(line: str | None, gradient: bool) -> str:
    return f"{line or 'no line that the module names'}{' (backward)' if gradient else ''}"


def _over(axes: Sequence[str] | None) -> str:
    return " within groups of no axis" if axes is None else f" over {', '.join(axes) or NOBODY}"


def often(count: Count) -> str:
    """How often one collective runs: `3`, `between 0 and 1 (in a branch)`."""
    return executions.text(count) + (" (in a branch)" if isinstance(count, Range) else "")
