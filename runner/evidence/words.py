"""What a record says of a collective, of bytes, devices or names, in; the words for it out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.evidence.model import Collective

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def listed(names: Sequence[str]) -> str:
    """`auto, constraint and explicit`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def bytes_text(count: int | None) -> str:
    """A number of bytes to two digits in powers of 1000, as bandwidths are counted: `64 B`, `2.1 MB`, `17 GB`."""
    if count is None:
        return "an unknown number of bytes"
    size, units = float(count), list(_UNITS)
    while abs(size) >= 999.5 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{count} B" if len(units) == len(_UNITS) else f"{size:.{1 if abs(size) < 99.95 else 0}f} {units[0]}"


def devices_text(ids: Sequence[int], platform: str = "", *, whole: bool = False) -> str:
    """Device ids with their runs as ranges: `CPU 0,1`, `0-7,16-23`.

    Unless the `whole` is asked for, many runs are told by their ends: `0,2,…,62 (32)`.
    """
    runs: list[list[int]] = []
    for device in ids:
        if runs and device == runs[-1][1] + 1:
            runs[-1][1] = device
        else:
            runs.append([device, device])
    parts = [f"{a}-{b}" if b - a > 1 else ",".join(map(str, range(a, b + 1))) for a, b in runs]
    many = len(parts) > 4 and len(ids) > 8 and not whole
    text = f"{parts[0]},{parts[1]},…,{parts[-1]} ({len(ids)})" if many else ",".join(parts)
    return f"{platform.upper()} {text}" if platform else text


def on_devices(ids: Sequence[int]) -> str:
    """`device 3`, `devices 0-7`."""
    return f"device{'s' if len(ids) != 1 else ''} {devices_text(ids)}"


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
