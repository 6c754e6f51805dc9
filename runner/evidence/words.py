"""A collective of a record in; the words for it out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from runner.words import bytes_text

if TYPE_CHECKING:
    from runner.evidence.model import Collective


def collective(one: Collective) -> str:
    """`all-gather of w for y over x`, `collective-permute of ring.lhs (backward) over x`."""
    within = f" within groups {json.dumps(one.groups)}"
    over = within if one.axes is None else f" over {', '.join(one.axes) or 'no axis'}"
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
    times = "an unknown number of" if one.count is None else str(one.count)
    inserted = ", inserted by the compiler" if one.inserted else ""
    return f"{times} × {collective(one)}: {bytes_text(one.bytes)} per device{inserted}"
