"""Says what differs between two explanations, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from runner.base import executions
from runner.base.executions import Count
from runner.base.grouping import by_key
from runner.base.layout import spec_text
from runner.base.words import bytes_text, time_text
from runner.compiled.explanation.model import ExplainedMesh, Explanation, PlacedCollective, over
from runner.graph.sharding import ring

_Key = tuple[str, tuple[tuple[str, str], ...], str, bool, tuple[str, ...]]


def between(old: Explanation, new: Explanation) -> list[str]:
    """The differences, those of the devices first, then collectives by the bytes that they add or save.

    Where one of the two has made-up names for the axes of its mesh, they are those of the other's axes.
    """
    if old.mesh is not None and new.mesh is not None and old.partitions == new.partitions:
        if old.mesh.source == "groups":
            old = _named_alike(old, new.mesh)
        elif new.mesh.source == "groups":
            new = _named_alike(new, old.mesh)
    return [*_devices(old, new), *_collectives(old, new), *_arguments(old, new), *_memory(old, new)]


def notes(old: Explanation, new: Explanation) -> list[str]:
    """What differs, and is no decision of the compiler's: versions and estimates."""
    versions = [
        f"{name} {old.versions.get(name, 'unknown')} → {new.versions.get(name, 'unknown')}"
        for name in dict.fromkeys([*old.versions, *new.versions])
        if old.versions.get(name) != new.versions.get(name)
    ]
    was, now = old.estimate, new.estimate
    if was is not None and now is not None and was.hardware == now.hardware and was.seconds != now.seconds:
        versions.append(f"at least {time_text(was.seconds)} → {time_text(now.seconds)} on {now.hardware}")
    return versions


def _devices(old: Explanation, new: Explanation) -> Iterator[str]:
    was, now = str(old.mesh or "no mesh"), str(new.mesh or "no mesh")
    if was != now:
        yield f"mesh: {was} → {now}"
    if old.partitions != new.partitions:
        yield f"devices: {old.partitions} → {new.partitions}"
    if (old.platform, old.device) != (new.platform, new.device):
        yield f"compiled for: {old.device or old.platform} → {new.device or new.platform}"
    for name, side in (("the first", old), ("the second", new)):
        if side.missing:
            yield f"collectives of {name} may be missing: {side.missing[0]}"


def _collectives(old: Explanation, new: Explanation) -> list[str]:
    before, after = _groups(old), _groups(new)
    lines: list[tuple[int, str]] = []
    for key in dict.fromkeys([*before, *after]):
        was, now = before.get(key, []), after.get(key, [])
        (runs_before, sent_before), (runs, sent) = _summed(was), _summed(now)
        difference = None if sent is None or sent_before is None else sent - sent_before
        what = _described((now or was)[0])
        if not was:
            text = f"{what} appeared, {_times(runs)}: {_signed(difference)} sent"
        elif not now:
            text = f"{what} disappeared, {_times(runs_before)}: {_signed(difference)} sent"
        elif (runs_before, sent_before) != (runs, sent):
            often = f" runs {executions.text(runs_before)} → {executions.text(runs)} times"
            does = " sends another amount" if runs_before == runs else often
            text = f"{what}{does}: {_signed(difference)} sent ({bytes_text(sent_before)} → {bytes_text(sent)})"
        else:
            continue
        lines.append((abs(difference or 0), text))
    ordered = [text for _, text in sorted(lines, key=lambda line: -line[0])]
    was_sent, now_sent = (executions.most(side.sent()) for side in (old, new))
    if was_sent != now_sent:
        by = "" if was_sent is None or now_sent is None else f" ({_signed(now_sent - was_sent)})"
        ordered.append(f"in all a device sends {bytes_text(was_sent)} → {bytes_text(now_sent)}{by}")
    return ordered


def _named_alike(explanation: Explanation, mesh: ExplainedMesh) -> Explanation:
    """The explanation with the axes of another mesh of as many devices."""
    own = explanation.mesh
    assert own is not None
    spans, wanted = _spans(own), _spans(mesh)

    def renamed(entry: PlacedCollective) -> PlacedCollective:
        if entry.axes is None:
            return entry
        covered = frozenset[int]().union(*(spans[axis] for axis in entry.axes))
        axes = [axis for axis, span in wanted.items() if span and span <= covered]
        whole = frozenset[int]().union(*(wanted[axis] for axis in axes)) == covered
        return replace(entry, axes=axes if whole else None)

    placed = explanation.placed
    return replace(explanation, mesh=mesh, placed=None if placed is None else list(map(renamed, placed)))


def _spans(mesh: ExplainedMesh) -> dict[str, frozenset[int]]:
    """For each axis the factors of the number of devices that it covers, by their strides."""
    spans: dict[str, frozenset[int]] = {}
    stride = 1
    for axis, size in zip(mesh.axes[::-1], mesh.shape[::-1], strict=True):
        factors: list[int] = []
        rest, prime = size, 2
        while rest > 1:
            while rest % prime:
                prime += 1
            factors.append(stride)
            stride, rest = stride * prime, rest // prime
        spans[axis] = frozenset(factors)
    return {axis: spans[axis] for axis in mesh.axes}


def _summed(entries: Sequence[PlacedCollective]) -> tuple[Count, int | None]:
    """How often alike collectives run, and what a device sends for them."""
    return ring.runs(entries), executions.most(ring.total(entries))


def _groups(explanation: Explanation) -> dict[_Key, list[PlacedCollective]]:
    """The collectives of one kind, line, direction and value."""

    def key(entry: PlacedCollective) -> _Key:
        nodes = tuple(_identity(explanation, node) for node in entry.nodes)
        taken = entry.between.source if entry.between else []
        moved = tuple(name for name in taken if name not in entry.nodes and name not in explanation.lines)
        return entry.kind, nodes, over(entry), entry.gradient, moved

    return by_key((key(entry), entry) for entry in explanation.moving)


def _identity(explanation: Explanation, node: str) -> tuple[str, str]:
    """What a line is known by in both: the name of its file and its text, which stays when it moves, or its number."""
    place = explanation.lines.get(node)
    if place is None:
        return "", node
    lines = explanation.sources.get(place.file, "").splitlines()
    text = lines[place.line - 1].strip() if 0 < place.line <= len(lines) else ""
    return place.file.rsplit("/", 1)[-1], text or str(place.line)


def _described(entry: PlacedCollective) -> str:
    taken = [name for name in entry.between.source if name not in entry.nodes] if entry.between else []
    of = f" of {' and '.join(taken)}" if taken else ""
    at = f" at {' and '.join(entry.nodes)}" if entry.nodes else ""
    backward = " (backward)" if entry.gradient else ""
    return f"{entry.kind}{of}{at}{backward} over {over(entry)}"


def _times(runs: Count) -> str:
    return "once" if runs == 1 else f"{executions.text(runs)} times"


def _signed(size: int | None) -> str:
    if size is None:
        return "an unknown number of bytes"
    return f"{'+' if size >= 0 else '-'}{bytes_text(abs(size))}"


def _arguments(old: Explanation, new: Explanation) -> Iterator[str]:
    before, after = ({argument.name: argument for argument in side.arguments} for side in (old, new))
    for name in dict.fromkeys([*before, *after]):
        was, now = before.get(name), after.get(name)
        if was is None or now is None:
            yield f"argument {name} {'appeared' if was is None else 'disappeared'}"
            continue
        if was.spec != now.spec and was.spec is not None and now.spec is not None:
            yield f"argument {name}: {spec_text(was.spec)} → {spec_text(now.spec)}"
        elif (was.shape, was.dtype) != (now.shape, now.dtype):
            yield f"argument {name}: {was.dtype}{list(was.shape)} → {now.dtype}{list(now.shape)} on a device"
        if (was.output is None) != (now.output is None):
            yield f"argument {name}: its memory is {'no longer' if now.output is None else 'now'} reused by a result"


def _memory(old: Explanation, new: Explanation) -> Iterator[str]:
    was, now = old.memory, new.memory
    if was is None or now is None or was.by != now.by:
        return
    for what, before, after in (
        ("memory", was.peak, now.peak),
        ("temporaries", was.temporaries, now.temporaries),
    ):
        if before is not None and after is not None and before != after:
            yield f"{what} {_signed(after - before)} a device ({bytes_text(before)} → {bytes_text(after)})"


def of_folders(old: Mapping[str, Explanation], new: Mapping[str, Explanation]) -> dict[str, Sequence[str]]:
    """The differences of the modules that are in both, by name, and which are in one alone."""
    return {
        name: ["it appeared"]
        if name not in old
        else ["it disappeared"]
        if name not in new
        else between(old[name], new[name])
        for name in dict.fromkeys([*old, *new])
    }
