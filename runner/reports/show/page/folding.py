"""Folds lines of a large section away from its collectives; returns a section that is small enough to draw."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from runner.base.grouping import by_key
from runner.base.lazy import dataclass
from runner.reports.record.model import RecordedLine


@dataclass(frozen=True)
class FoldedLines:
    """The lines to draw; `folds` has the lines for which one of them stands, by its path."""

    lines: list[RecordedLine]
    folds: dict[str, list[RecordedLine]]


def parent(path: str) -> str:
    """Return the path of the repeat around a line; "" outside of all repeats."""
    return "/".join(path.split("/")[:-2])


def folded(lines: Sequence[RecordedLine], marked: Collection[str]) -> FoldedLines:
    """Keep the lines at the paths `marked`, the lines that they read, and those that read them.

    In each repeat, and outside of all, the other lines that come after the same kept lines are joined: a kept line is
    before or after all of them, so that no circle arises. Outside of repeats, those that come after none are left out,
    as are the arrays that no kept line reads.
    """
    by_path = {line.path: line for line in lines}
    marked = {path for path in marked if path in by_path}
    near = {*marked, *(name for path in marked for name in by_path[path].reads)}
    near |= {line.path for line in lines if marked.intersection(line.reads)}
    kept = {outer for path in near & by_path.keys() for outer in _with_repeats(path)}
    # A repeat that is not kept is joined with all that is in it.
    outermost = {
        line.path: next((path for path in reversed(_with_repeats(line.path)) if path not in kept), line.path)
        for line in lines
    }
    after: dict[str, set[str]] = {}
    for line in lines:
        path = outermost[line.path]
        if path in kept:
            continue
        before = after.setdefault(path, set())
        for name in line.reads:
            beside = next((outer for outer in _with_repeats(name) if parent(outer) == parent(path)), None)
            if beside in kept:
                before.add(beside)
            elif beside in after and beside != path:
                before |= after[beside]
    first = {path for path, before in after.items() if kept and not before and not parent(path)}
    groups = by_key(((parent(path), frozenset(before)), path) for path, before in after.items() if path not in first)
    joined = {path: group[0] for group in groups.values() for path in group}
    members = by_key((joined[path], line) for line in lines if (path := outermost[line.path]) in joined)
    folds = {path: group for path, group in members.items() if len(group) > 1}

    def drawn(name: str) -> str:
        return joined.get(outermost.get(name, name), name)

    shown: list[RecordedLine] = []
    for line in lines:
        if line.path in folds:
            reads = {drawn(name): None for member in folds[line.path] for name in member.reads if name in by_path}
            reads = [name for name in reads if name != line.path]
            together = f"{len(folds[line.path])} lines"
            shown.append(RecordedLine(path=line.path, line=line.line, expression="", reads=reads, variable=together))
        elif drawn(line.path) == line.path and outermost[line.path] not in first:
            shown.append(replace(line, reads=list(dict.fromkeys(map(drawn, line.reads)))))
    return FoldedLines(shown, folds)


def _with_repeats(path: str) -> list[str]:
    """Return the path of a line, then those of the repeats around it, the innermost first."""
    paths: list[str] = []
    while path:
        paths.append(path)
        path = parent(path)
    return paths
