"""`python -m runner compare A B…` says how records, sweeps or goldens differ from the first.

Differences concern decisions and results: collectives, bytes, layouts, memory, statuses. Times, estimates, rounding
and versions are reported separately as notes.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from runner.app.cli import subcommands
from runner.app.cli.answers import answered
from runner.base import plain
from runner.base.faults import BadInput
from runner.base.layout import spec_text
from runner.base.lazy import dataclass
from runner.base.words import flops_text, shown
from runner.compiled.explanation import differences as explanations
from runner.compiled.explanation import files
from runner.link.events import Devices
from runner.reports.record import differences, folders, golden
from runner.reports.record import record as records
from runner.reports.record.golden import Pinned
from runner.reports.record.model import ArrayRecord, CompiledProgram, MeshShape, ProgramRecord, Record
from runner.reports.record.readable import lines_of, names_of
from runner.reports.record.verdicts import ValueVerdict, Verdict


@dataclass(frozen=True)
class ComparedPoint:
    """One run, or what a golden pins for one series of JAX and one target.

    `name` is the experiment and its overrides, as on a command line.
    """

    name: str
    series: str | None
    pinned: dict[str, Pinned]
    record: Record | None = None


@dataclass(frozen=True)
class Side:
    """The points of one argument by name, and the number of its `unread` records, which are invalid."""

    points: dict[str, ComparedPoint]
    unread: int = 0


@answered
def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns 0 if nothing differs, 1 if something does, 2 for bad input."""
    parser = subcommands.parser("compare")
    parser.add_argument("a", metavar="A", type=Path)
    parser.add_argument(
        "b", metavar="B", type=Path, nargs="*", default=[], help="without it A's two series of JAX are compared"
    )
    parser.add_argument(
        "--series", nargs="+", metavar="S", help="for goldens: the series of A and that of B, such as 'jax 0.10'"
    )
    options = parser.parse_args(list(arguments))
    if len(options.b) == 1 and all(map(files.is_module, (options.a, *options.b))):
        return _modules(options.a, options.b[0])
    # Unreadable records of A are reported once.
    loaded = {path: _load(path) for path in dict.fromkeys([options.a, *options.b])}
    pairs = {b: _sides(options.a, b, options.series or [], loaded) for b in dict.fromkeys(options.b or [None])}
    differing = 0
    for b, sides in pairs.items():
        if b is not None and len(pairs) > 1:
            print(f"{shown(options.a)} → {shown(b)}")
        differing += _report(*sides, series=b is None)
        if len(pairs) > 1:
            print()
    if len(pairs) > 1:
        print(f"{differing} of {len(pairs)} differ from {shown(options.a)}")
    return min(differing, 1)


def _modules(a: Path, b: Path) -> int:
    """Report what differs between two compiled modules, or between those of two folders of dumps."""
    old, new = files.by_name(a), files.by_name(b)
    if len(old) == len(new) == 1:
        # Two single modules are compared whatever their names.
        old = dict(zip(new, old.values(), strict=True))
    differing = 0
    for name, lines in explanations.of_folders(old, new).items():
        differing += bool(lines)
        print(name + ("" if lines else ": the same"))
        for line in lines:
            print(f"  {line}")
        if lines and name in old and name in new:
            for note in explanations.notes(old[name], new[name]):
                print(f"  ({note})")
    return min(differing, 1)


# Pairing the two sides.


def _sides(a: Path, b: Path | None, series: Sequence[str], loaded: Mapping[Path, Side]) -> tuple[Side, Side]:
    """Return both sides. Raises `BadInput`."""
    if len(series) > 2:
        raise BadInput(f"--series: it takes one series or two, not {len(series)}")
    sides = loaded[a], loaded[b or a]
    before, after = ([*side.points.values()] for side in sides)
    goldens = [all(point.record is None for point in points) for points in (before, after)]
    if series:
        if not any(goldens):
            raise BadInput(f"--series: {shown(a)} and {shown(b or a)} are not goldens")
        if b is None and len(series) == 1:
            raise BadInput("--series: with one golden, give two series to compare")
        before = _of_series(a, before, series[0]) if goldens[0] else before
        after = _of_series(b or a, after, series[-1]) if goldens[1] else after
    elif b is None:
        first, second = _two_series(a, before, goldens[0])
        before, after = _of_series(a, before, first), _of_series(a, after, second)
    elif goldens == [True, True]:
        before, after = ([replace(p, name=f"{p.name} ({p.series})") for p in side] for side in (before, after))
    elif goldens[0]:
        before = [point for which in sorted({p.series or "" for p in after}) for point in _of_series(a, before, which)]
    elif goldens[1]:
        after = [point for which in sorted({p.series or "" for p in before}) for point in _of_series(b, after, which)]
    if len(before) == len(after) == 1:
        # Two single runs are compared whatever their overrides.
        before = [replace(before[0], name=after[0].name)]
    sides = Side({p.name: p for p in before}, sides[0].unread), Side({p.name: p for p in after}, sides[1].unread)
    if not set(sides[0].points) & set(sides[1].points):
        there = [", ".join(sorted(side.points)[:4]) + (", …" if len(side.points) > 4 else "") for side in sides]
        raise BadInput(f"{shown(a)} and {shown(b or a)} have nothing in common: {there[0]}; {there[1]}")
    return sides


def _load(path: Path) -> Side:
    """Read the points of an argument; report unreadable records of a sweep. Raises as `_sides` does."""
    if not path.exists():
        raise BadInput(f"{path}: there is no such file or folder")
    if path.is_file():
        return _side([_of_record(path)] if path.name == "result.json" else _of_golden(path, path.stem))
    if (path / "result.json").is_file():
        return _side([_of_record(path / "result.json")])
    if files := sorted(path.glob("*/result.json")):
        points, unread = _of_sweep(files)
        names = [point.name for point in points]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadInput(f"{shown(path)}: more than one run of {twice[0]}; name one of its folders")
        return _side(points, unread)
    pinned: list[ComparedPoint] = []
    for file in _documents(path):
        pinned += _of_golden(file, file.relative_to(path).with_suffix("").as_posix())
    if not pinned:
        raise BadInput(f"{shown(path)}: this is neither a run folder, nor a sweep, nor a golden")
    return _side(pinned)


_LOOKED_AT = 20_000
"""The most files of a folder of goldens."""


def _documents(folder: Path) -> list[Path]:
    """The JSON files at any depth of a folder. Raises `BadInput` for a folder that is none of goldens."""
    files = list(itertools.islice(plain.below(folder), _LOOKED_AT))
    if len(files) == _LOOKED_AT:
        what = "it has neither a record nor a sweep, and too many files for a folder of goldens"
        raise BadInput(f"{shown(folder)}: {what}")
    return sorted(file for file in files if file.suffix == ".json")


def _side(points: Iterable[ComparedPoint], unread: int = 0) -> Side:
    # Goldens of two series use one name.
    return Side({f"{point.name} {point.series}": point for point in points}, unread)


def _of_sweep(files: Sequence[Path]) -> tuple[list[ComparedPoint], int]:
    """Return the readable points of a sweep, and the number of unreadable ones, which are reported.

    Raises `BadInput` if none is readable.
    """
    points: list[ComparedPoint] = []
    unread: list[str] = []
    for file in files:
        try:
            points.append(_of_record(file))
        except BadInput as error:
            unread.append(str(error))
    if not points:
        raise BadInput("\n".join(unread))
    for message in unread:
        print(f"{message}\n  the point is left out", file=sys.stderr)
    return points, len(unread)


_NO_POINT = ("experiment", "show", "explain")
"""Overrides that say nothing about which point of a sweep a record is: its name, and what the terminal shows."""


def _of_record(file: Path) -> ComparedPoint:
    try:
        record = records.read(file.parent)
    except records.UnreadableRecord as error:
        raise BadInput(str(error)) from None
    overrides = [text.lstrip("+") for text in record.overrides]
    words = sorted(text for text in overrides if text.partition("=")[0] not in _NO_POINT)
    names = names_of(record)
    pinned = {
        name: golden.pinned(result, names=names.get(lines_of(name, names))) for name, result in record.programs.items()
    }
    jax = record.environment.jax
    return ComparedPoint(
        " ".join([record.experiment or "–", *words]), golden.series(jax) if jax else None, pinned, record
    )


def _of_golden(file: Path, name: str) -> list[ComparedPoint]:
    return [
        ComparedPoint(name if target == "cpu" else f"{name} target={target}", series, programs)
        for series, targets in golden.read(file).items()
        for target, programs in targets.items()
    ]


def _of_series(path: Path, points: Iterable[ComparedPoint], series: str) -> list[ComparedPoint]:
    pinned = [point for point in points if point.series == series]
    if not pinned:
        raise BadInput(f"{shown(path)}: it pins nothing for {series or 'a run without JAX'}; {_there(points)}")
    return pinned


def _there(points: Iterable[ComparedPoint]) -> str:
    series = _series(points)
    return f"there {'are' if len(series) > 1 else 'is'} {', '.join(series) or 'nothing'}"


def _series(points: Iterable[ComparedPoint]) -> list[str]:
    """Return the JAX series of the points, the oldest first."""
    return sorted({p.series for p in points if p.series}, key=folders.natural)


def _two_series(path: Path, points: Sequence[ComparedPoint], is_golden: bool) -> tuple[str, str]:
    if not is_golden:
        raise BadInput(f"{shown(path)}: name a second run, sweep or golden to compare it with")
    series = _series(points)
    if len(series) != 2:
        raise BadInput(f"{shown(path)}: name the two series to compare with --series; {_there(points)}")
    return series[0], series[1]


# Differences.


def _report(before: Side, after: Side, *, series: bool) -> int:
    names = list(dict.fromkeys([*before.points, *after.points]))
    differ = 0
    for name in names:
        old, new = before.points.get(name), after.points.get(name)
        if old is None or new is None:
            what, side, other = ("appeared", "B", before) if old is None else ("disappeared", "A", after)
            there = old or new
            # Two series of one folder have no A and B.
            side = (there.series if there and series else None) or side
            are = f"; {other.unread} of the other's records cannot be read" if other.unread else ""
            lines, notes = [f"it {what}: it is only in {side}{are}"], []
        else:
            lines, notes = compared(old, new)
        differ += bool(lines)
        print(name + ("" if lines else ": the same"))
        for line in lines:
            print(f"  {line}")
        for note in notes:
            print(f"  ({note})")
    if len(names) > 1:
        print(f"\n{len(names)} compared, {differ} {'differs' if differ == 1 else 'differ'}")
    return 1 if differ else 0


def compared(old: ComparedPoint, new: ComparedPoint) -> tuple[list[str], list[str]]:
    """Return the differences between two points, and the notes: a sentence each."""
    lines: list[str] = []
    there, here = (point.record.not_supported if point.record else {} for point in (old, new))
    for program in dict.fromkeys([*old.pinned, *new.pinned]):
        if program in old.pinned and program in new.pinned:
            lines += differences.of_program(program, old.pinned[program], new.pinned[program])
        elif program in new.pinned:
            why = f"; before: {there[program]}" if program in there else ""
            lines.append(f"program {program} appeared{why}")
        else:
            why = f": {here[program]}" if program in here else ""
            lines.append(f"program {program} disappeared{why}")
    if old.record is None or new.record is None:
        return lines, [f"{old.series} → {new.series}"] if lines and old.series != new.series else []
    return _of_runs(old.record, new.record) + lines, _notes(old.record, new.record)


def _of_runs(old: Record, new: Record) -> list[str]:
    """Return the differences between two records besides the pinned values."""
    # A run whose configuration could not be composed has neither mesh nor target.
    lines = _changes(
        ("experiment", _first_line(old.experiment), _first_line(new.experiment)),
        ("status", old.status, new.status),
        ("error", _first_line(old.error), _first_line(new.error)),
        ("mesh", _mesh(old.mesh), _mesh(new.mesh)),
        ("target", _target(old.target), _target(new.target)),
    )
    lines += _named("array", old.arrays, new.arrays, _array)
    lines += _named("check", dict(old.checks.named()), dict(new.checks.named()), _status)
    for program in old.programs:
        if program in new.programs:
            lines += _of_programs(program, old.programs[program], new.programs[program])
    return lines


def _of_programs(program: str, old: ProgramRecord, new: ProgramRecord) -> list[str]:
    lines = _changes(
        (f"status of {program}", old.status, new.status),
        (f"error of {program}", _first_line(old.error), _first_line(new.error)),
    )
    lines += _named(f"{program}: check", dict(old.checks.named()), dict(new.checks.named()), _status)
    was, now = (side.memory if isinstance(side, CompiledProgram) else None for side in (old, new))
    for what, before, after in (
        ("temporary", was and was.temp_bytes, now and now.temp_bytes),
        ("needed", was and was.needed_bytes, now and now.needed_bytes),
    ):
        if before != after:
            lines.append(f"{what} memory of {program}: {differences.bytes_change(before, after)} per device")
    return lines


def _changes(*values: tuple[str, str, str]) -> list[str]:
    """Return a line for each name whose values before and after differ."""
    return [f"{what}: {was} → {now}" for what, was, now in values if was != now]


T = TypeVar("T")


def _named(what: str, old: Mapping[str, T], new: Mapping[str, T], say: Callable[[T], str]) -> list[str]:
    """Return the differences between two mappings by name; `say` formats a value."""
    lines: list[str] = []
    for name in dict.fromkeys([*old, *new]):
        was, now = (say(side[name]) if name in side else None for side in (old, new))
        if was is None or now is None:
            lines.append(f"{what} {name} {'appeared' if was is None else 'disappeared'}: {now or was}")
        elif was != now:
            lines.append(f"{what} {name}: {was} → {now}")
    return lines


def _status(check: Verdict) -> str:
    return check.status


def _first_line(text: str | None) -> str:
    return "none" if text is None else next(iter(text.splitlines()), "empty")


def _mesh(mesh: MeshShape | None) -> str:
    if mesh is None:
        return "none"
    return " × ".join(f"{axis}={size}" for axis, size in zip(mesh.axes, mesh.shape, strict=True))


def _target(target: Devices | None) -> str:
    return "none" if target is None else f"{target.devices} × {target.kind or target.platform}"


def _array(array: ArrayRecord) -> str:
    return f"{array.dtype}{array.shape} {spec_text(array.spec)}"


def _notes(old: Record, new: Record) -> list[str]:
    """Return versions, times, estimates and rounding that differ: two runs with equal decisions may differ in these."""
    was, now = old.environment, new.environment
    versions = (
        ("jax", was.jax, now.jax),
        ("jaxlib", was.jaxlib, now.jaxlib),
        ("python", was.python, now.python),
        ("runner", was.runner, now.runner),
    )
    changed = [
        f"{name} {_first_line(before)} → {_first_line(after)}" for name, before, after in versions if before != after
    ]
    notes = [", ".join(changed)] if changed else []
    for program, result in old.compiled.items():
        program_after = new.compiled.get(program)
        if program_after is not None:
            parts = [
                *_times(result, program_after),
                *_estimates(result, program_after),
                *_rounding(result, program_after),
            ]
            notes += [f"{program}: {', '.join(parts)}"] if parts else []
    return notes


def _times(old: CompiledProgram, new: CompiledProgram) -> list[str]:
    was, now = (timing.run_s.median if timing.run_s else None for timing in (old.timing, new.timing))
    return [
        f"{name} {after / before:.2g} × the time, {before * 1e3:.3g} → {after * 1e3:.3g} ms"
        for name, before, after in (("compile", old.timing.compile_s, new.timing.compile_s), ("run", was, now))
        if before and after and f"{after / before:.2g}" != "1"
    ]


def _estimates(old: CompiledProgram, new: CompiledProgram) -> list[str]:
    was, now = (side.cost.flops if side.cost else None for side in (old, new))
    return [f"computes {flops_text(was)} → {flops_text(now)}"] if was and now and was != now else []


def _rounding(old: CompiledProgram, new: CompiledProgram) -> list[str]:
    was, now = (
        side.checks.value.max_abs_error if isinstance(side.checks.value, ValueVerdict) else None for side in (old, new)
    )
    return [] if was is None or now is None or was == now else [f"largest error {was:.2g} → {now:.2g}"]
