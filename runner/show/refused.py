"""A record in; with what its experiment was refused, where it had to be, out."""

from __future__ import annotations

from runner.record.model import Record


def plain(record: Record) -> str:
    """What the report says of it; "" where there is nothing to say."""
    text = record.refused
    if text is None:
        return ""
    # Without a mesh nobody has said yet which experiment it is.
    title = [] if record.mesh else [": ".join(filter(None, (record.experiment, record.summary))), ""]
    return "\n".join([*title, "refused, as expect.invalid has it:", *(f"  {line}" for line in text.splitlines()), "\n"])
