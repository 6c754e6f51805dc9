"""Makes the rows of a program's profile: a line or a collective, its time, its share, and how a collective went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from runner.base.grouping import by_key
from runner.base.lazy import dataclass
from runner.base.words import time_text
from runner.compiled.evidence.model import Profile, ProfiledCollective, ProfiledNode, Seconds
from runner.reports.show import measured

HEAD = ("line", "collective", "per run", "share", "exposed", "busbw", "skew")
"""The last three are those of `measured.COLLECTIVES`, of one collective."""

SHARE = HEAD.index("share")

_ROWS = 6
"""The most rows per program; the entries with less time share one row."""


def rows(profile: Profile) -> list[tuple[str, ...]]:
    """Return the rows, the most time first; none if there is no profile."""
    if not profile.seconds or not profile.seconds.total:
        return []
    whole = profile.seconds.total
    entries = sorted((entry for entry in _entries(profile) if entry.seconds.total), key=lambda e: -e.seconds.total)
    # A summary row for a single entry would save no row.
    shown = entries if len(entries) <= _ROWS else entries[: _ROWS - 1]
    table = [(e.line, e.kind, time_text(e.seconds.median), f"{e.seconds.total / whole:.1%}", *e.went) for e in shown]
    left = entries[len(shown) :]
    if left:
        share = sum(entry.seconds.total for entry in left) / whole
        table.append((f"{len(left)} more", "", "–", f"{share:.1%}", "", "", ""))
    return table


@dataclass(frozen=True)
class _Entry:
    """The time of a line or of a collective, and its last cells."""

    line: str
    kind: str
    seconds: Seconds
    went: tuple[str, str, str] = ("", "", "")


def _entries(profile: Profile) -> Iterator[_Entry]:
    for node in profile.nodes:
        yield _Entry(_line(node), "", node.seconds)
    for collective in profile.collectives:
        if collective.seconds:
            yield _Entry(_line(collective), collective.kind, collective.seconds, _went(collective))
    if profile.unattributed:
        yield _Entry("unattributed", "", profile.unattributed.seconds)


def head(profiles: Mapping[str, Profile]) -> list[str]:
    """What a device does in a run of each program, a sentence each; of equal sentences one."""
    known = {program: profile for program, profile in profiles.items() if profile.by_device}
    programs = by_key((sentence, program) for program in known for sentence in measured.head(known[program]))
    return [f"{', '.join(names)}: {sentence}" for sentence, names in programs.items()]


def _went(collective: ProfiledCollective) -> tuple[str, str, str]:
    """How long nothing hides a collective, the bandwidth that it reaches, and how unequally the devices arrive."""
    exposed = None if collective.exposed is None else collective.exposed.median
    bandwidth = collective.bus_bandwidth
    return (
        "–" if exposed is None else time_text(exposed) if exposed else "0 s",
        "–" if bandwidth is None else f"{bandwidth / 1e9:.3g} GB/s",
        "–" if collective.skew_s is None else time_text(collective.skew_s),
    )


def _line(node: ProfiledNode | ProfiledCollective) -> str:
    """Return the source lines of an entry."""
    return (", ".join(node.nodes) or "–") + (" (backward)" if node.gradient else "")
