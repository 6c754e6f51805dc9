"""A record in; with what its experiment was refused, where it had to be, out."""

from __future__ import annotations

from runner.record.model import Record


def message(found: Record) -> str | None:
    """The message, as the command would have told it; None where nothing was to be refused, or not so."""
    verdict = found.checks.invalid
    return verdict.refused if verdict and verdict.status == "passed" else None


def plain(found: Record) -> str:
    """What the report says of it; "" where there is nothing to say."""
    told = message(found)
    if told is None:
        return ""
    # Without a mesh nobody has said yet which experiment it is.
    title = [] if found.mesh else [": ".join(filter(None, (found.experiment, found.summary))), ""]
    return "\n".join([*title, "refused, as expect.invalid has it:", *(f"  {line}" for line in told.splitlines()), "\n"])
