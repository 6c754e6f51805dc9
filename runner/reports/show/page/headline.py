"""Makes the headline of a page: what failed, programs passed, bytes sent, memory, time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from textwrap import shorten

from runner.base.grouping import by_key
from runner.base.words import bytes_text, listed, time_text
from runner.experiment.program import Program
from runner.reports.record.model import CompiledProgram, Record
from runner.reports.show import summary
from runner.reports.show.page.markup import Inside, Markup, tag

_REASON = 140
"""The most characters of a reason among the numbers; the section of verdicts has all of it."""


def numbers(record: Record) -> Markup | None:
    """Return what failed apart from the programs, then the numbers that the record has; None if it has neither."""
    failed = [
        item(fault.phrase, tag("span", fault.name, class_=f"sign {fault.status}"), shorten(fault.reason, _REASON))
        for fault in summary.faults(record)
    ]
    items = [*failed, *(item(*entry) for entry in _entries(record))]
    return tag("dl", items, class_="numbers") if items else None


def item(name: str, value: Inside, note: str) -> Markup:
    """Return one of the numbers: what it is, its value, and a note."""
    return tag("div", tag("dt", name), tag("dd", value, class_="big"), tag("dd", note, class_="told") if note else None)


def _entries(record: Record) -> Iterator[tuple[str, str, str]]:
    """Return the name, the value and a note of each number."""
    if not record.programs:
        return
    programs_of = by_key((program.status, name) for name, program in record.programs.items())
    note = "; ".join(f"{status}: {', '.join(names)}" for status, names in programs_of.items() if status != "passed")
    yield (
        "programs passed",
        f"{summary.passed(record)} of {len(record.programs)}",
        note or ("compiled; values were not run" if summary.only_compiled(record) else ""),
    )
    # vmap runs on one device, which sends nothing and holds everything.
    meshed = {name: program for name, program in record.compiled.items() if Program(name).on_mesh}
    yield from _spread("a device sends", meshed, lambda program: program.bytes_sent, bytes_text)
    yield from _spread(
        "memory of a device",
        meshed,
        lambda program: program.memory.needed_bytes if program.memory else None,
        bytes_text,
    )
    estimates = {name: program.estimate for name, program in meshed.items() if program.estimate}
    if estimates:
        least = min(entry.seconds for entry in estimates.values())
        quickest = [name for name, entry in estimates.items() if entry.seconds == least]
        hardware = next(iter(estimates.values())).hardware
        who = "every program" if len(quickest) == len(estimates) > 1 else listed(quickest)
        large = [name for name, entry in estimates.items() if entry.fits is False]
        note = f"{who}, on {hardware}" + (f"; {listed(large)}: too large for its memory" if large else "")
        yield "a run takes at least", time_text(least), note


def _spread(
    name: str,
    programs: Mapping[str, CompiledProgram],
    measure: Callable[[CompiledProgram], int | None],
    text: Callable[[int], str],
) -> Iterator[tuple[str, str, str]]:
    """Return the smallest and the largest value of a measure, each with its programs."""
    values = {program: value for program, of in programs.items() if (value := measure(of)) is not None}
    if not values:
        return
    low, high = min(values.values()), max(values.values())
    if text(low) == text(high):
        yield name, text(low), "every program on the mesh" if len(values) > 1 else next(iter(values))
        return
    least, most = ([program for program, value in values.items() if value == end] for end in (low, high))
    yield name, f"{text(low)} – {text(high)}", f"least: {listed(least)}; most: {listed(most)}"
