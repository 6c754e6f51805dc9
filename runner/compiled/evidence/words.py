"""Describes a collective of a record, compiled, planned or asked for, as text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from runner.base import executions
from runner.base.executions import Count, Range
from runner.base.lazy import dataclass
from runner.base.words import bytes_text
from runner.graph.sharding import ring

if TYPE_CHECKING:
    from runner.compiled.evidence.model import Collective, Reason
    from runner.graph.sharding.propagation import AskedCollective, PlannedCollective


NOBODY = "no other device"
"""The text for the axes of a collective whose axes all have size 1, which have no names in the compiled module."""


def collective(entry: Collective) -> str:
    """`all-gather of w for y over x`, `collective-permute of ring.lhs (backward) over x`."""
    within = f" within groups {json.dumps(entry.groups)}"
    over = within if entry.axes is None else f" over {', '.join(entry.axes) or NOBODY}"
    return f"{entry.kind} of {subject(entry)}{over}"


def renamed(entry: Collective, names: Mapping[str, str]) -> Collective:
    """A collective with readers' names for its lines."""

    def all_of(lines: Sequence[str]) -> list[str]:
        return list(dict.fromkeys(names.get(line, line) for line in lines))

    between = entry.between and replace(entry.between, source=all_of(entry.between.source), to=all_of(entry.between.to))
    return replace(
        entry,
        node=entry.node and names.get(entry.node, entry.node),
        nodes=all_of(entry.nodes),
        between=between,
        overlapped=None if entry.overlapped is None else all_of(entry.overlapped),
        backward=all_of(entry.backward),
        parts=[replace(part, nodes=all_of(part.nodes)) for part in entry.parts],
    )


@dataclass(frozen=True)
class Subject:
    """The `values` that a collective communicates, and the `readers`: the lines that need them on other devices."""

    values: tuple[str, ...]
    readers: tuple[str, ...]
    backward: bool

    @classmethod
    def of(cls, entry: Collective) -> Subject:
        lines = entry.nodes
        summed = bool(entry.parts) and all(part.nodes for part in entry.parts)
        taken = [name for name in entry.between.source if name not in lines] if entry.between and not summed else []
        needed = lines or ([name for name in entry.between.to if name not in taken] if entry.between else [])
        values, readers = (taken, needed) if taken or not lines else (lines, ())
        if (asking := entry.asking) is not None:
            # The lines that read the value have it as this line lays it out.
            values, readers = (values, (asking.place,)) if len(values) == 1 else ((asking.place,), ())
        return cls(tuple(values), tuple(readers), entry.gradient)

    def __str__(self) -> str:
        backward = " (backward)" if self.backward else ""
        if self.values and self.readers:
            return f"{' and '.join(self.values)} for {' and '.join(self.readers)}{backward}"
        if self.values:
            return f"{' and '.join(self.values)}{backward}"
        readers = f"a value for {' and '.join(self.readers)}" if self.readers else "no line that the module names"
        return f"{readers}{backward}"


def subject(entry: Collective) -> str:
    """The value that a collective communicates: its line, and for one that the compiler inserted, whose value that is.

    `C`; `w for y` if line `y` needs the value of `w` on other devices; `loss and out (backward)`. Sums that are merged
    have their own lines, whatever these sum.
    """
    return str(Subject.of(entry))


def described(entry: Collective) -> str:
    """The description of a collective of a record, in a line."""
    inserted = ", inserted by the compiler" if entry.inserted else ""
    return f"{often(entry.count)} × {collective(entry)}: a device sends {bytes_text(entry.bytes_sent)}{inserted}"


def because(why: Reason) -> str:
    """The reason of a collective, in a sentence."""
    return why.text + ("; Shardy plans it too" if why.planned and why.by == "operation" else "")


def summary(why: Reason, lines: Sequence[str]) -> str:
    """The reason in brief, for readers who see the collective's own `lines`: its first need, and its first key."""
    need, *others = why.text.split("; instead ")[0].split("; ")
    if others and need.startswith("derived"):
        # The line of the derived program, which the record has in full; what it is for follows.
        need, *others = others
    for line in lines:
        need = re.sub(rf" in {re.escape(line)}(?: \(backward\))?(?![\w:.])", "", need, count=1)
    if why.keys:
        key = "|".join(re.escape(key) for key in sorted(why.keys, key=len, reverse=True))
        need = re.sub(rf"({key})((?:, (?:{key}))+) and ((?:{key})|(\d+) other keys)", _first_of, need)
    more = sum(any(verb in other for verb in (" needs ", " over a dimension ", " sums over ")) for other in others)
    need += f" (and {more} more reason{'s' if more > 1 else ''})" if more else ""
    return need.rstrip(", ") + (" (Shardy plans otherwise)" if why.instead else "")


def _first_of(keys: re.Match[str]) -> str:
    """The first of several keys, and how many there are besides."""
    others = len(re.findall(", ", keys[2])) + int(keys[4] or 1)
    return f"{keys[1]} and {others} others"


def asked(entry: AskedCollective) -> str:
    """`all-reduce of out over model`."""
    return f"{entry.kind} of {_at(entry.line, entry.gradient)}{_over(entry.axes)}"


def asked_at_length(entry: AskedCollective) -> str:
    """The description of a collective that a program asks for, in a line."""
    return f"{often(entry.count)} × {asked(entry)}: a device sends {bytes_text(entry.bytes_sent)}"


def planned(entry: PlannedCollective) -> str:
    """`all-gather of w1 for hidden over data`."""
    return f"{entry.kind} of {planned_subject(entry)}{_over(entry.axes)}"


def planned_subject(entry: PlannedCollective) -> str:
    """The value that a planned collective communicates: `w1 for hidden`."""
    of = entry.of if entry.line in (None, entry.of) else f"{entry.of} for {entry.line}"
    return f"{of}{' (backward)' if entry.gradient else ''}"


def planned_at_length(entry: PlannedCollective) -> str:
    """The description of a collective that Shardy plans, in a line."""
    return f"{often(entry.count)} × {planned(entry)}: a device sends {bytes_text(entry.bytes_sent)}"


def _at(line: str | None, gradient: bool) -> str:
    return f"{line or 'no line that the module names'}{' (backward)' if gradient else ''}"


def _over(axes: Sequence[str] | None) -> str:
    return " within groups along no axis" if axes is None else f" over {', '.join(axes) or NOBODY}"


def over(entry: Collective) -> str:
    """The axes of a collective, for a table: `data, model`."""
    return "groups along no axis" if entry.axes is None else ", ".join(entry.axes) or NOBODY


def sizes(entry: Collective) -> str:
    """What a device has before and after a collective: `64 B → 128 B`, or one of them if they are equal."""
    return " → ".join(dict.fromkeys(bytes_text(size) for size in (entry.bytes_in, entry.bytes_out)))


def runs(entries: Iterable[Collective]) -> str:
    """How often some collectives run together, for a table."""
    together = ring.runs(entries)
    return "unknown" if together is None else executions.short(together)


def total(sent: Count) -> str:
    """A number of bytes that a device sends, with branches the most."""
    if sent is None:
        return "unknown"
    return f"at most {bytes_text(sent.max)}" if isinstance(sent, Range) else bytes_text(sent)


def often(count: Count) -> str:
    """How often one collective runs: `3`, `between 0 and 1 (in a branch)`."""
    return executions.text(count) + (" (in a branch)" if isinstance(count, Range) else "")
