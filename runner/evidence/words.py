"""What a record says of a collective in; the words for it out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def bytes_text(count: int) -> str:
    """A number of bytes to two digits in powers of 1000, as bandwidths are counted: `64 B`, `2.1 MB`, `17 GB`."""
    size, units = float(count), list(_UNITS)
    while abs(size) >= 999.5 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{count} B" if len(units) == len(_UNITS) else f"{size:.{1 if abs(size) < 99.95 else 0}f} {units[0]}"


def collective(one: Mapping[str, Any]) -> str:
    """`all-gather of w over x`, `collective-permute of ring.lhs (backward) over x`."""
    nodes = one.get("nodes") or ([one["node"]] if one.get("node") else [])
    of = f" of {' and '.join(nodes)}" if nodes else " of no line that the module names"
    axes = one.get("axes")
    over = (
        f" over {', '.join(axes) or 'no axis'}" if axes is not None else f" within groups {json.dumps(one['groups'])}"
    )
    return f"{one['kind']}{of}{' (backward)' if one.get('gradient') else ''}{over}"


def described(one: Mapping[str, Any]) -> str:
    """One collective of a record in a line, with the reason why it is there."""
    times = "an unknown number of" if one["count"] is None else str(one["count"])
    why = ""
    if one["inserted"]:
        taken, needed = (" and ".join(one["between"][end]) for end in ("from", "to"))
        moved = f", which moves {taken}" if taken else ""
        why = f", inserted by the compiler{moved}{f' to {needed}' if needed else ''}"
    return f"{times} × {collective(one)}: {bytes_text(one['bytes'])} per device{why}"
