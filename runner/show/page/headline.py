"""A record in; the headline numbers of its page out: programs passed, bytes sent, memory, time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from runner.experiment.program import Program
from runner.record.model import CompiledProgram, Record
from runner.show.page.markup import Markup, tag
from runner.words import bytes_text, listed, time_text


def numbers(record: Record) -> Markup | None:
    """Return the list of headline numbers that the record has; None if no program was reached."""
    entries = list(_entries(record))
    if not entries:
        return None
    items = [
        tag("div", tag("dt", name), tag("dd", value, class_="big"), tag("dd", note, class_="told") if note else None)
        for name, value, note in entries
    ]
    return tag("dl", items, class_="numbers")


def _entries(record: Record) -> Iterator[tuple[str, str, str]]:
    """Return the name, the value and a note of each number."""
    if not record.programs:
        return
    passed = sum(program.status == "passed" for program in record.programs.values())
    absent = record.target is not None and bool(record.target.topology) and record.verification is None
    others: dict[str, list[str]] = {}
    for name, program in record.programs.items():
        if program.status != "passed":
            others.setdefault(program.status.replace("_", " "), []).append(name)
    note = "; ".join(f"{status}: {', '.join(names)}" for status, names in others.items())
    yield (
        "programs passed",
        f"{passed} of {len(record.programs)}",
        note or ("compiled; values were not run" if absent else ""),
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
    yield name, f"{text(low)} – {text(high)}", f"least {listed(least)}; most {listed(most)}"
