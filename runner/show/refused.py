"""A record in; the message with which its experiment was refused, if a refusal was expected, out."""

from __future__ import annotations

from runner.record.model import Record


def plain(record: Record) -> str:
    """Return the report's text on the refusal; "" if none was expected."""
    text = record.refused
    if text is None:
        return ""
    # Without a mesh the report has not named the experiment yet.
    title = [] if record.mesh else [": ".join(filter(None, (record.experiment, record.summary))), ""]
    return "\n".join([*title, "refused, as expect.invalid has it:", *(f"  {line}" for line in text.splitlines()), "\n"])
