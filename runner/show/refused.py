"""A record in; with what its experiment was refused, where it had to be, out."""

from __future__ import annotations

from runner.record.model import Record


def plain(found: Record) -> str:
    """What the report says of it; "" where there is nothing to say."""
    told = found.refused
    if told is None:
        return ""
    # Without a mesh nobody has said yet which experiment it is.
    title = [] if found.mesh else [": ".join(filter(None, (found.experiment, found.summary))), ""]
    return "\n".join([*title, "refused, as expect.invalid has it:", *(f"  {line}" for line in told.splitlines()), "\n"])
