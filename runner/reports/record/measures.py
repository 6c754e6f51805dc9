"""Makes flat rows of the records of a sweep, one per point and program, and finds the best by each measure.

A condition on the rows is read by Python's own parser; only the known syntax is evaluated.
"""

from __future__ import annotations

import csv
import io
import json
import math
import operator
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

from runner.base import executions
from runner.base.executions import Range
from runner.base.faults import nearest
from runner.base.lazy import dataclass
from runner.base.printable import json_text, printable
from runner.base.words import bytes_text, flops_text, time_text
from runner.experiment.forms import KINDS
from runner.experiment.program import Program
from runner.graph.language import python_source
from runner.graph.language.python_source import PythonPart
from runner.reports.record import outcome
from runner.reports.record.model import CompiledProgram, Record
from runner.reports.record.verdicts import ValueVerdict
from runner.reports.record.writing import write_text


@dataclass(frozen=True)
class Measure:
    """A measure that compares programs; smaller is better.

    - `of`: the value for a compiled program, None if unknown.
    - `per_device`: whether it is of a device of the mesh, so that a program without a mesh has none.
    - `heading`: the name of its column on the terminal; `words`: its name in a sentence.
    - `text`: a value of it with its unit, as the column has it.
    """

    of: Callable[[CompiledProgram], float | None]
    heading: str
    words: str
    unit: Literal["bytes", "flops", "seconds"]
    text: Callable[[float], str]
    per_device: bool = True


def number_text(value: float) -> str:
    """Return a number without a unit, in short: `64`, `1.05e+06`."""
    return f"{value:.3g}" if value >= 1e4 else f"{value:g}"


def bytes_figure(value: float) -> str:
    """Return a number of bytes with its unit, rounded to a whole one."""
    return bytes_text(round(value))


def _milliseconds(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value * 1e3:.{digits}f} ms"


MEASURES = {
    "bytes_sent": Measure(lambda p: p.bytes_sent, "sent", "bytes sent", "bytes", bytes_figure),
    "memory_bytes": Measure(lambda p: p.memory and p.memory.needed_bytes, "memory", "memory", "bytes", bytes_figure),
    "flops": Measure(lambda p: p.cost and p.cost.total_flops, "computes", "computed", "flops", flops_text),
    "estimate_s": Measure(
        lambda p: p.estimate and p.estimate.seconds, "estimate", "estimated time", "seconds", time_text
    ),
    "compile_s": Measure(
        lambda p: p.timing.compile_s, "compile", "time to compile", "seconds", _milliseconds(0), per_device=False
    ),
    "run_s": Measure(
        lambda p: p.timing.run_s and p.timing.run_s.median,
        "run",
        "time of a run",
        "seconds",
        _milliseconds(2),
        per_device=False,
    ),
}
"""The measures by their names, in the order of their columns.

- `bytes_sent`: bytes that a device sends over all executions, on a ring.
- `memory_bytes`: the memory that a device needs.
- `flops`: per device, as the compiler estimates, over all iterations of loops.
- `estimate_s`: the least seconds of a run on the hardware that the experiment names.
- `compile_s`, `run_s`: seconds of lowering and compiling once, and of the median run.
"""

IDENTIFYING = ("point", "experiment", "program", "status", "accuracy")
"""The columns that are neither measures nor keys."""

OLDER = {"peak_bytes": "memory_bytes"}
"""The old names of measures, which are still accepted."""

DONE = ("passed", "known")
"""The statuses of points that are not failures and need not be run again."""

ANSWERS = ("passed",)
"""The statuses of rows that can be the best. A program that is known to be wrong cannot."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One program of one point, or a point none of whose programs was reached.

    - `status`: the worse of the statuses of the program and its run; `error`: why it did not pass.
    - `keys`: the point's overrides of the keys that vary; `same_as`: the point that represents it because a symmetry of
      the mesh maps one to the other; `collectives`: how often each kind runs, None if unknown.
    - `bytes_sent_min`: the least bytes sent over all branches; the measure is the most.
    - `hardware`, `compiled_for`: what the estimate is for, and what the programs were compiled for.
    - `accuracy`: the largest error of an output in units of the measured rounding.
    """

    point: int
    experiment: str | None
    keys: Mapping[str, str]
    status: str
    program: str | None = None
    collectives: Mapping[str, int | Range] | None = None
    measures: Mapping[str, float | None] = field(default_factory=lambda: dict.fromkeys(MEASURES))
    error: str | None = None
    same_as: int | None = None
    bytes_sent_min: int | None = None
    hardware: str | None = None
    compiled_for: str | None = None
    accuracy: float | None = None

    def value(self, name: str) -> Any:
        """Return a column: a measure, a swept key, or an identifying column; with branches, the most."""
        if (name := OLDER.get(name, name)) in self.measures:
            return self.measures[name]
        if name in self.keys:
            return self.keys[name]
        if name in KINDS:
            return None if self.collectives is None else executions.most(self.collectives.get(name, 0))
        return getattr(self, name) if name in IDENTIFYING else None

    def measure(self, name: str) -> float | None:
        """Return a measure, or how often a kind of collective runs."""
        value = self.value(name)
        return float(value) if isinstance(value, int | float) else None

    def cost(self, name: str) -> float:
        """Return a measure, or infinity where it is not known: smaller is better."""
        return math.inf if (value := self.measure(name)) is None else value

    def overrides(self, without: Container[str] = ()) -> str:
        """Return the swept values as on the command line, without some keys: `dims.M=8 mesh=2x2`."""
        return " ".join(f"{key}={value}" for key, value in self.keys.items() if value and key not in without)


def rows(point: int, record: Record, overrides: Iterable[str], same_as: int | None = None) -> list[Row]:
    """Return the rows of a point; if it is the `same_as` of another point, `record` is that other point's."""
    shared: dict[str, Any] = {
        "point": point,
        "experiment": record.experiment,
        "keys": overridden(overrides),
        "same_as": same_as,
    }
    table: list[Row] = []
    for name, program in record.programs.items():
        status, error = outcome.of_program(record, name)
        row = Row(**shared, status=status, program=name, error=error)
        if isinstance(program, CompiledProgram):
            on_mesh = Program(name).on_mesh
            row = replace(
                row,
                collectives=counts(program),
                measures={
                    key: measure.of(program) if on_mesh or not measure.per_device else None
                    for key, measure in MEASURES.items()
                },
                bytes_sent_min=program.bytes_sent_min,
                hardware=program.estimate.hardware if program.estimate else None,
                compiled_for=program.estimate.compiled_for if program.estimate else None,
                accuracy=_accuracy(program),
            )
        table.append(row)
    if not table:
        status, error = outcome.of_run(record)
        table.append(Row(**shared, status=status, program=shared["keys"].get("program"), error=error))
    return table


_NAMED = ("experiment", "program")
"""The keys with a column of their own, whether or not they are swept."""


def varying(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with only those keys that differ between points."""
    names = dict.fromkeys(name for row in rows for name in row.keys if name not in _NAMED)
    kept = [name for name in names if len({row.keys.get(name) for row in rows}) > 1]
    return [replace(row, keys={name: row.keys.get(name, "") for name in kept}) for row in rows]


def overridden(overrides: Iterable[str]) -> dict[str, str]:
    """Map the keys of overrides, as named on the command line, to their values."""
    values: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        values[key] = value
    return values


def estimated(rows: Iterable[Row]) -> list[str]:
    """Return what the rows' estimates are for, without repetitions: `TPU v5e, compiled for v5e:4x4`."""
    measured_for = dict.fromkeys((row.hardware, row.compiled_for) for row in rows if row.hardware)
    return [f"{hardware}, compiled for {of}" if of else str(hardware) for hardware, of in measured_for]


def worded(measure: str, rows: Iterable[Row]) -> str:
    """Return a measure of rows in words; an estimate names the hardware: `estimated time on TPU v5e`."""
    on = sorted({row.hardware for row in rows if row.hardware}) if measure == "estimate_s" else []
    return " on ".join([MEASURES[measure].words, *([" or ".join(on)] if on else [])])


def _accuracy(program: CompiledProgram) -> float | None:
    value = program.checks.value
    return value.accuracy if isinstance(value, ValueVerdict) else None


def counts(program: CompiledProgram) -> dict[str, int | Range] | None:
    """Return how often each kind of collective that moves data runs; None if one of the counts is unknown."""
    if program.collectives is None or program.collectives_missing:
        return None
    moving = [collective for collective in program.collectives if not collective.alone]
    if any(collective.count is None for collective in moving):
        return None
    return executions.by_kind((collective.kind, collective.count, collective.branches) for collective in moving)


# Ranking.


@dataclass(frozen=True)
class Best:
    """The ranking of passed rows by one measure: the equally best rows, the next different one, the worst."""

    measure: str
    rows: tuple[Row, ...]
    next: Row | None
    worst: Row

    @property
    def value(self) -> float:
        """The value of the best rows."""
        return self.of(self.rows[0])

    def of(self, row: Row) -> float:
        """Return the value of a row for this measure."""
        value = row.measure(self.measure)
        assert value is not None
        return value


def candidates(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that can be recommended: they passed, and not by `vmap`, which has one device and no layout."""
    return [row for row in rows if row.status in ANSWERS and (row.program is None or Program(row.program).on_mesh)]


def best(rows: Sequence[Row], measure: str) -> Best | None:
    """Return the best candidates by a measure; None if fewer than two have it, or all are equal."""
    answers = [row for row in candidates(rows) if row.measure(measure) is not None]
    ordered = sorted(answers, key=lambda row: (row.cost(measure), row.point))
    if len(ordered) < 2 or ordered[0].cost(measure) == ordered[-1].cost(measure):
        return None
    least = ordered[0].cost(measure)
    first = tuple(row for row in ordered if row.cost(measure) == least)
    return Best(measure, first, ordered[len(first)], ordered[-1])


def ordered(rows: Sequence[Row], by: str) -> list[Row]:
    """Sort the rows by a column, ascending; rows that did not pass, or have no value, come last."""

    def place(row: Row) -> tuple[bool, bool, float, str]:
        value = row.value(by)
        number = float(value) if isinstance(value, int | float) else _as_number(value)
        return row.status not in ANSWERS, value is None, number, "" if value is None else str(value)

    return sorted(rows, key=place)


def _as_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.inf


def objective(rows: Sequence[Row], name: str) -> float | None:
    """Return the number for a sweeper to minimise: of one program, `auto.bytes_sent`, or the least of all passed ones.

    None if the requested program did not pass, or its value is unknown.
    """
    program, _, measure = name.rpartition(".")
    asked = [row for row in rows if row.status in ANSWERS and row.program == program] if program else candidates(rows)
    values = [row.measure(measure) for row in asked]
    known = [value for value in values if value is not None]
    return min(known, default=None)


# Files.


def columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns of the flat files: identifying columns, swept keys, collectives by kind, measures."""
    keys = list(rows[0].keys) if rows else []
    return ["point", "experiment", *keys, "program", "status", *KINDS, *MEASURES, *_OF_FILES]


def leave(rows: Sequence[Row], folder: Path) -> None:
    """Write `results.csv` and `results.jsonl` into the folder of a sweep, each atomically."""
    names = columns(rows)
    flat = [_flat(row, names) for row in rows]
    page = io.StringIO()
    writer = csv.DictWriter(page, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    # Terminals may show the files: escape control characters; CSV quotes only protect line ends.
    write_text(folder / "results.csv", printable(page.getvalue()))
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in flat)
    write_text(folder / "results.jsonl", json_text(lines))


_OF_FILES: Mapping[str, Callable[[Row], Any]] = {
    "accuracy": lambda row: row.accuracy,
    "bytes_sent_min": lambda row: row.bytes_sent_min,
    "hardware": lambda row: row.hardware,
    "compiled_for": lambda row: row.compiled_for,
    "same_as": lambda row: row.same_as,
    "error": lambda row: row.error,
    "folder": lambda row: str(row.point if row.same_as is None else row.same_as),
}
"""The columns that only the flat files have."""


def _flat(row: Row, names: Sequence[str]) -> dict[str, Any]:
    values = {name: of_row(row) for name, of_row in _OF_FILES.items()}
    # A range has a column for each end.
    ranges = {kind: often for kind, often in (row.collectives or {}).items() if isinstance(often, Range)}
    values |= {kind: executions.short(often) for kind, often in ranges.items()}
    return {name: values[name] if name in values else row.value(name) for name in names}


_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}

Condition = Callable[[Row], bool]


class NoCondition(Exception):
    """A text is not a condition; the message says why."""


def parse(text: str, names: Iterable[str]) -> Condition:
    """Parse the condition; `names` are the columns. Raises `NoCondition`."""
    try:
        tree = python_source.expression(text)
    except SyntaxError as error:
        raise NoCondition(f"{text!r} is not a condition: {error.msg}; bytes_sent < 1e6, for example") from None
    return _condition(tree, tuple(names))


def _condition(tree: PythonPart, names: tuple[str, ...]) -> Condition:
    match tree:
        case PythonPart(kind="and" | "or", inside=inside):
            parts = [_condition(part, names) for part in inside]
            every = all if tree.kind == "and" else any
            return lambda row: every(part(row) for part in parts)
        case PythonPart(kind="not", inside=(operand,)):
            inner = _condition(operand, names)
            return lambda row: not inner(row)
        case PythonPart(kind="comparison", inside=inside, words=words):
            return _comparison(inside, words, names)
        case _:
            raise NoCondition(f"'{tree.text}' is not a comparison; bytes_sent < 1e6, for example")


def _comparison(parts: Sequence[PythonPart], words: Sequence[str], names: tuple[str, ...]) -> Condition:
    if not set(words) <= _OPERATORS.keys():
        raise NoCondition(f"a comparison must be one of {', '.join(_OPERATORS)}")
    values = [_value(part, names) for part in parts]

    def holds(row: Row) -> bool:
        ends = [value(row) for value in values]
        return all(_compared(a, b, _OPERATORS[word]) for a, b, word in zip(ends, ends[1:], words, strict=False))

    return holds


def _value(part: PythonPart, names: tuple[str, ...]) -> Callable[[Row], Any]:
    match part:
        case PythonPart(kind="literal", value=int() | float() | str() as value):
            return lambda row: value
        case PythonPart(kind="name", text=name):
            if name not in names:
                raise NoCondition(f"no column '{name}'{nearest(name, names) or '; there are ' + ', '.join(names)}")
            return lambda row: row.value(name)
        case _:
            raise NoCondition(f"'{part.text}' is neither a column nor a number nor a text")


def _compared(value: Any, bound: Any, by: Callable[[Any, Any], bool]) -> bool:
    """Compare two values: an unknown value is neither less nor greater, and equal to nothing."""
    if value is None or bound is None:
        return False
    try:
        return by(float(value), float(bound))
    except (TypeError, ValueError):
        return by(str(value), str(bound))
