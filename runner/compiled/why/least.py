"""Compares what several programs send with the program that sends the least, line by line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from runner.base import executions
from runner.base.grouping import by_key
from runner.base.lazy import dataclass
from runner.compiled.evidence.model import Collective
from runner.graph.sharding import ring


@dataclass(frozen=True, kw_only=True)
class Gap:
    """How much more a program sends than the `program` that sends the least.

    - `times`: the ratio; null if that program sends nothing.
    - `lines`: for each line in which they differ, the bytes that a device sends in this program, and in that one; for a
      collective that the compiler merged, those of all its lines together.
    """

    program: str
    times: float | None
    lines: dict[str, list[int]] = field(default_factory=dict[str, list[int]])


_AND = " and "


def joined(lines: Iterable[str]) -> str:
    """The key of several lines in a `Gap`."""
    return _AND.join(lines)


def parts(key: str) -> list[str]:
    """The lines that a key of a `Gap` joins."""
    return key.split(_AND)


def gaps(programs: Mapping[str, Sequence[Collective]], sent: Mapping[str, int]) -> dict[str, Gap]:
    """Return the gap of each program to the one that sends the least; programs that do not send more have none.

    `sent` has the bytes that a device sends, for the `programs` for which they are known.
    """
    if not sent:
        return {}
    least = min(sent, key=lambda name: sent[name])
    least_lines = _lines(programs[least])
    gap_of: dict[str, Gap] = {}
    for name, total in sent.items():
        if total <= sent[least]:
            continue
        own_lines = _lines(programs[name])
        lines = {
            line: [own_lines[line], least_lines[line]]
            for line in dict.fromkeys([*own_lines, *least_lines])
            if own_lines[line] != least_lines[line]
        }
        times = round(total / sent[least], 2) if sent[least] else None
        gap_of[name] = Gap(program=least, times=times, lines=lines)
    return gap_of


def _lines(listed: Sequence[Collective]) -> Counter[str]:
    """The bytes that a device sends in each line; upper bounds if there are branches."""
    known = [collective for collective in listed if None not in (collective.count, collective.bytes_sent)]
    lines = by_key((joined(sorted(collective.nodes)) or "no line", collective) for collective in known)
    return Counter({line: executions.most(ring.total(of_line)) or 0 for line, of_line in lines.items()})
