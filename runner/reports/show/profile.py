"""Makes the rows of a program's profile: a line or a collective, its time, its share."""

from __future__ import annotations

from runner.base.words import time_text
from runner.compiled.evidence.model import Profile, ProfiledCollective, ProfiledNode

HEAD = ("line", "collective", "per run", "share")

_ROWS = 6
"""The most rows per program; the entries with less time share one row."""


def rows(profile: Profile) -> list[tuple[str, ...]]:
    """Return the rows, the most time first; none if there is no profile."""
    if not profile.seconds or not profile.seconds.total:
        return []
    entries = [(_line(node), "", node.seconds) for node in profile.nodes]
    entries += [
        (_line(collective), collective.kind, collective.seconds)
        for collective in profile.collectives
        if collective.seconds
    ]
    entries += [("unattributed", "", profile.unattributed.seconds)] if profile.unattributed else []
    whole = profile.seconds.total
    shares = sorted(
        ((line, kind, seconds, seconds.total / whole) for line, kind, seconds in entries if seconds.total),
        key=lambda entry: -entry[3],
    )
    # A summary row for a single entry would save no row.
    shown = shares if len(shares) <= _ROWS else shares[: _ROWS - 1]
    table = [(line, kind, time_text(seconds.median), f"{share:.1%}") for line, kind, seconds, share in shown]
    left = shares[len(shown) :]
    if left:
        table.append((f"{len(left)} more", "", "–", f"{sum(share for *_, share in left):.1%}"))
    return table


def _line(node: ProfiledNode | ProfiledCollective) -> str:
    """Return the source lines of an entry."""
    return (", ".join(node.nodes) or "–") + (" (backward)" if node.gradient else "")
