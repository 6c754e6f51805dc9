"""Shows the message with which an experiment was refused, if a refusal was expected."""

from __future__ import annotations

from runner.reports.record.model import Record


def plain(record: Record) -> str:
    """Return the report's text on the refusal; "" if none was expected."""
    text = record.refused
    if text is None:
        return ""
    # Without a mesh the report has not named the experiment yet.
    title = [] if record.mesh else [": ".join(filter(None, (record.experiment, record.summary))), ""]
    return "\n".join([*title, "refused, as expect.invalid has it:", *(f"  {line}" for line in text.splitlines()), "\n"])
