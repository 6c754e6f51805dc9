"""Makes the text of an explanation, and the rows of its tables."""

from __future__ import annotations

from collections.abc import Sequence

from runner.base import executions
from runner.base.executions import Range
from runner.base.grouping import by_key
from runner.base.words import bytes_text, flops_text, listed, time_text
from runner.compiled.evidence import words
from runner.compiled.evidence.model import Collective, Profile
from runner.compiled.explanation.dumps import DumpedModule
from runner.compiled.explanation.model import Buffer, Explanation, PlacedCollective
from runner.graph.sharding import ring
from runner.reports.show import estimates, measured
from runner.reports.show.console import print_table, say, say_all
from runner.reports.show.table import Table, Texts

COLLECTIVES = ("collective", "line", "over", "of", "runs", "in → out per device", "sends in all", "how")
BRIEF = ("collective", "line", "over", "of", "runs", "sends in all", "how")
"""The columns of `COLLECTIVES` that a terminal has."""

BUFFERS = ("bytes", "what", "name", "array", "line")
LINES = ("line", "collectives", "sends", "computes", "moves")

SHOWN = 24
"""The most rows of a table on a terminal; a saved explanation and its page have all."""

_ARGUMENTS = 4
"""The most arguments that a sentence names."""


def text(explanation: Explanation, *, complete: bool = False) -> None:
    """Print an explanation; if not `complete`, only the first rows of its long tables."""
    most = None if complete else SHOWN
    say_all(head(explanation), "bold")
    rows = collectives(explanation)
    if rows:
        say()
        _collectives(explanation, rows, complete=complete)
    say_all(totals(explanation))
    if explanation.profile is not None:
        _measured(explanation, explanation.profile, complete=complete)
    rows = lines(explanation)
    if rows:
        say()
        _table(line_columns(explanation), rows, most)
    say()
    say_all(memory(explanation))
    if explanation.buffers:
        _table(BUFFERS, [buffer_row(buffer) for buffer in explanation.buffers], most and most // 3)
    if explanation.estimate is not None:
        say()
        say_all(estimates.head({"": explanation.estimate}))
        (row,) = estimates.rows({"": explanation.estimate})
        print_table(Table(estimates.HEAD[1:], [row[1:]]))
        say_all(estimates.beneath({"": explanation.estimate}, complete=False))
    below = notes(explanation)
    if below:
        say()
    say_all(below)


def _collectives(explanation: Explanation, rows: Sequence[tuple[str, ...]], *, complete: bool) -> None:
    """Print the collectives, each with its reason under it: in a line, or as it is."""
    beneath = ["; ".join(texts) for texts in reasons(explanation, complete=complete)]
    if not any(beneath):
        beneath = []
    shown = COLLECTIVES if complete else [name for name in BRIEF if name != "of" or not all(beneath or [""])]
    at = [COLLECTIVES.index(name) for name in shown]
    _table(shown, [[row[k] for k in at] for row in rows], None if complete else SHOWN, beneath)
    if beneath and not complete:
        say("reasons in brief; in full: --full, or report.text(full=True)", "dim")


def _because(entries: Sequence[PlacedCollective], *, complete: bool) -> list[str]:
    """The reasons of alike collectives, each once; in brief the first."""
    known = [(entry.why, entry.nodes) for entry in entries if entry.why is not None]
    texts = dict.fromkeys(words.because(why) if complete else words.summary(why, nodes) for why, nodes in known)
    return [*texts] if complete else [*texts][:1]


def _measured(explanation: Explanation, profile: Profile, *, complete: bool) -> None:
    say()
    say_all(measured.head(profile))
    rows = measured_collectives(explanation)
    if rows:
        _table(measured.COLLECTIVES, rows, None if complete else SHOWN)
    if complete:
        print_table(Table(measured.DEVICES, measured.devices(profile)))


def measured_collectives(explanation: Explanation) -> list[tuple[str, ...]]:
    """The rows under `measured.COLLECTIVES`."""
    return measured.collectives(explanation, lambda entry: (entry.kind, line_of(entry), words.over(entry)))


def modules(there: Sequence[DumpedModule]) -> None:
    """Print the modules of a folder, and how one is chosen."""
    rows = [(m.name, bytes_text(m.bytes), "compiled" if m.compiled else "not compiled", m.file.name) for m in there]
    print_table(Table(("module", "size", "stage", "file"), rows))
    say(f"{len(rows)} modules: --module {there[0].name} explains one, by its name or a part of its file's")


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], most: int | None, beneath: Sequence[str] = ()) -> None:
    shown: Texts = Table(names, rows[:most], beneath=beneath[:most])
    print_table(shown)
    left = len(rows) - len(shown.rows)
    if left:
        say(f"… and {left} more row{'s' if left > 1 else ''}: --full prints them, --save keeps all")


def head(explanation: Explanation) -> list[str]:
    """The lines that say what was explained."""
    where = f"{explanation.partitions} device{'s' if explanation.partitions != 1 else ''}"
    if explanation.mesh is not None:
        where += f" ({explanation.mesh})"
    device = explanation.device or (explanation.platform or "").upper()
    what = "compiled" if explanation.stage == "compiled" else "lowered, not compiled"
    made_for = f", {what} for {device}" if device else f", {what}"
    count = explanation.instructions
    size = f"{count:,} instruction{'s' if count != 1 else ''}"
    return [f"{explanation.module}: {where}{made_for}; {size}"]


def collectives(explanation: Explanation) -> list[tuple[str, ...]]:
    """The rows under `COLLECTIVES`: those for which a device sends most first; alike ones share a row."""
    return [
        (
            *alike[:4],
            words.runs(entries),
            *alike[4:5],
            words.total(ring.total(entries)),
            *alike[5:],
        )
        for alike, entries in _grouped(explanation)
    ]


def _grouped(explanation: Explanation) -> list[tuple[tuple[str, ...], list[PlacedCollective]]]:
    """The collectives that share a row, by what they share; those for which a device sends most first."""
    grouped = by_key((_alike(entry), entry) for entry in explanation.moving)
    return sorted(grouped.items(), key=lambda item: -(executions.most(ring.total(item[1])) or 0))


def _alike(entry: PlacedCollective) -> tuple[str, ...]:
    taken = [name for name in entry.between.source if name not in entry.nodes] if entry.between else []
    return (
        entry.kind,
        line_of(entry),
        words.over(entry),
        ", ".join(taken) or "–",
        f"{words.sizes(entry)} {entry.dtype}",
        _how(entry),
    )


def line_of(entry: PlacedCollective) -> str:
    """The lines of a collective, of one file with its name once; whether they are of the backward pass."""
    return (", ".join(_short(entry.nodes)) or "–") + (" (backward)" if entry.gradient else "")


def _short(nodes: Sequence[str]) -> list[str]:
    """The names of lines: `model.py:42`, and `:56` behind another line of that file."""
    files = [node.rpartition(":")[0] for node in nodes]
    return [
        node.removeprefix(file) if at and file and file == files[at - 1] else node
        for at, (node, file) in enumerate(zip(nodes, files, strict=True))
    ]


def _how(entry: Collective) -> str:
    parts = ["in a branch"] if isinstance(entry.count, Range) else []
    parts.append("inserted" if entry.inserted else "by differentiation" if entry.gradient else "as written")
    if entry.again:
        parts.append("recomputed")
    if entry.asynchronous:
        others = entry.overlapped
        parts.append(
            "overlap unknown"
            if others is None
            else f"overlaps {others[0] if len(others) == 1 else f'{len(others)} lines'}"
            if others
            else "no overlap"
        )
    return ", ".join(parts)


def totals(explanation: Explanation) -> list[str]:
    """What a device sends in a run: in all, by kind and by axis."""
    if explanation.placed is None:
        return ["the collectives are not known"]
    if not explanation.moving:
        return ["no collectives"] if not explanation.missing else ["no collective could be read"]
    by_kind = [f"{kind} {words.total(sent)}" for kind, sent in explanation.sent_by_kind().items()]
    by_axis = [f"over {axis} {words.total(sent)}" for axis, sent in explanation.sent_by_axis().items()]
    return [f"a device sends {words.total(explanation.sent())} in a run: {', '.join(by_kind)}; {', '.join(by_axis)}"]


def reasons(explanation: Explanation, *, complete: bool) -> list[list[str]]:
    """The reasons of each row under `COLLECTIVES`, each once; if not `complete`, the first in brief."""
    return [_because(entries, complete=complete) for _, entries in _grouped(explanation)]


def lines(explanation: Explanation) -> list[tuple[str, ...]]:
    """The rows under `LINES`: for each source line what it communicates, computes and moves, in the file's order."""
    counts: dict[str, int] = {}
    for entry in explanation.moving:
        for node in entry.nodes[:1]:
            counts[node] = counts.get(node, 0) + 1
    sent = explanation.sent_by_line()
    flops: dict[str, float] = {}
    moved: dict[str, float] = {}
    for line in explanation.computed or ():
        for node in line.nodes[:1]:
            flops[node] = flops.get(node, 0.0) + line.flops
            moved[node] = moved.get(node, 0.0) + line.bytes
    times = line_times(explanation)
    names = [name for name in {**counts, **flops, **times} if name in explanation.lines]
    places = explanation.lines
    ordered = sorted(names, key=lambda name: (places[name].file, places[name].line))
    return [
        (
            name,
            str(counts.get(name, "")) or "–",
            words.total(sent[name]) if name in sent else "–",
            flops_text(flops[name]) if flops.get(name) else "–",
            bytes_text(round(moved[name])) if moved.get(name) else "–",
            *([time_text(times[name]) if name in times else "–"] if explanation.profile is not None else []),
        )
        for name in ordered
    ]


def line_columns(explanation: Explanation) -> tuple[str, ...]:
    """The names above the rows of `lines`."""
    return (*LINES, "measured") if explanation.profile is not None else LINES


def line_times(explanation: Explanation) -> dict[str, float]:
    """The measured seconds of each line on one device in a run, with its collectives; none without a profile."""
    times: dict[str, float] = {}
    profile = explanation.profile
    entries = [] if profile is None else [*profile.nodes, *profile.collectives]
    for entry in entries:
        if entry.nodes and entry.seconds is not None and entry.seconds.median:
            times[entry.nodes[0]] = times.get(entry.nodes[0], 0.0) + entry.seconds.median
    return times


def memory(explanation: Explanation) -> list[str]:
    """What a device holds, in words."""
    use = explanation.memory
    if use is None:
        return ["memory: not known"]
    parts = [
        f"{name} {bytes_text(size)}"
        for name, size in (
            ("arguments", use.arguments),
            ("outputs", use.outputs),
            ("temporaries", use.temporaries),
        )
        if size is not None
    ]
    aliased = f", of the outputs {bytes_text(use.aliased)} in donated arguments" if use.aliased else ""
    by = "as the compiler reports it" if use.by == "compiler" else "as the schedule has it, without padding"
    needs = "" if use.peak is None else f"a device needs {bytes_text(use.peak)}: "
    return [f"memory: {needs}{', '.join(parts)}{aliased} ({by})"]


def buffer_row(buffer: Buffer) -> tuple[str, ...]:
    """The row of a buffer under `BUFFERS`."""
    where = (buffer.node or "–") + (" (backward)" if buffer.gradient else "")
    return bytes_text(buffer.bytes), buffer.what, buffer.name, f"{buffer.dtype}{list(buffer.shape)}", where


def donation(explanation: Explanation) -> list[str]:
    """A sentence about donated arguments whose memory no result reuses."""
    unused = [argument for argument in explanation.arguments if argument.donated and argument.output is None]
    if not unused:
        return []
    size = bytes_text(sum(argument.bytes for argument in unused))
    names = [argument.name for argument in unused]
    shown = names[:_ARGUMENTS] + ([f"{len(names) - _ARGUMENTS} more"] if len(names) > _ARGUMENTS else [])
    are = "is donated, but no result reuses its" if len(names) == 1 else "are donated, but no result reuses their"
    return [f"{listed(shown)} {are} memory ({size} a device)"]


def notes(explanation: Explanation) -> list[str]:
    """What else a reader should know, a sentence each."""
    return [*donation(explanation), *explanation.notes, *_together(explanation.unknown)]


def _together(sentences: Sequence[str]) -> list[str]:
    """Sentences about instructions; those that differ in the name that they begin with are one."""
    alike = by_key((sentence.partition(" ")[2], sentence) for sentence in sentences)
    return [
        first + (f" (and so for {len(others)} other{'s' if len(others) > 1 else ''})" if others else "")
        for first, *others in alike.values()
    ]
