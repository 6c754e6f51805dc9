"""The measures of a sweep: bytes by the ring formulas, the best of the passed rows, conditions, flat files."""

from __future__ import annotations

import csv
import io
import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.app.cli import options
from runner.base.layout import Mesh, Spec
from runner.compiled.estimate.model import Estimate
from runner.experiment import enumeration
from runner.experiment.config.compose import InvalidConfiguration
from runner.link.events import Cost
from runner.reports.record import measures, record
from runner.reports.record.measures import MEASURES, Row
from runner.reports.record.model import Status
from runner.reports.record.verdicts import FileChecks, SectionsVerdict
from runner.reports.show import progress, sweep
from runner.reports.show.page import measured
from runner.reports.show.page import sweep as pages
from runner.reports.show.page.measured import MeasuredPoint
from runner.reports.track import entry
from tests import evidence
from tests.evidence import collective


def test_a_rows_measures_come_from_the_record() -> None:
    program = replace(
        evidence.program(collective()),
        bytes_sent=96,
        cost=Cost(flops=8.0, total_flops=80.0),
        estimate=Estimate(
            hardware="v5e", seconds=2e-6, compute=1e-6, communication=1e-6, hidden=0.0, overlapped=1e-6,
            bottleneck=None, fits=None, lines=[], collectives=[], unknown=[],
        ),
    )  # fmt: skip
    (result,) = measures.rows(0, evidence.record({"auto": program}), [])
    assert (result.measures["bytes_sent"], result.measures["flops"], result.measures["estimate_s"]) == (96, 80.0, 2e-6)
    (result,) = measures.rows(0, evidence.record({"auto": replace(program, bytes_sent=None)}), [])
    assert result.measures["bytes_sent"] is None


def test_unknown_collectives_have_no_counts() -> None:
    assert measures.counts(evidence.program(replace(collective(), count=None))) is None
    missing = replace(evidence.program(collective()), collectives_missing=["a custom call"])
    assert measures.counts(missing) is None


def row(point: int, status: str = "passed", program: str = "auto", spec: str = "[x]", **values: float | None) -> Row:
    keys = {"arrays.A.spec": spec, "seed": "0"}
    known = dict.fromkeys(MEASURES) | values
    return Row(point=point, experiment="mine", keys=keys, status=status, program=program, measures=known)


ROWS = [
    row(0, bytes_sent=128.0, run_s=0.2, spec="[y]"),
    row(1, bytes_sent=64.0, run_s=None),
    row(2, "failed", bytes_sent=0.0, run_s=0.1),
    row(3, bytes_sent=64.0, run_s=0.4, program="derived"),
    row(4, bytes_sent=512.0, run_s=0.4),
]


def test_the_best_row_is_the_least_that_passed() -> None:
    best = measures.best(ROWS, "bytes_sent")
    assert best is not None
    assert [result.point for result in best.rows] == [1, 3]
    assert best.next is not None
    assert (best.value, best.next.point, best.worst.point) == (64.0, 0, 4)
    assert measures.best(ROWS, "flops") is None
    assert measures.best([ROWS[1], ROWS[3]], "bytes_sent") is None
    assert measures.objective(ROWS, "bytes_sent") == 64.0
    assert measures.objective(ROWS, "derived.run_s") == 0.4
    assert measures.objective([ROWS[2]], "bytes_sent") is None
    known = [row(0, "known", bytes_sent=1.0), *ROWS]
    assert measures.objective(known, "bytes_sent") == 64.0
    assert measures.ordered(known, "bytes_sent")[0].point == 1


def test_vmap_has_one_device_and_is_no_layout_to_recommend() -> None:
    record = evidence.record({"auto": evidence.program(collective()), "vmap": evidence.program()})
    auto, vmap = measures.rows(0, record, [])
    assert auto.measures["bytes_sent"] is not None
    assert [vmap.measures[name] for name in ("bytes_sent", "memory_bytes", "flops")] == [None] * 3
    timed = [row(0, run_s=0.2), row(1, run_s=0.3), row(1, run_s=0.1, program="vmap")]
    assert (measures.objective(timed, "run_s"), measures.objective(timed, "vmap.run_s")) == (0.2, 0.1)
    fastest = measures.best(timed, "run_s")
    assert fastest is not None
    assert fastest.value == 0.2


SECTIONS = SectionsVerdict(status="failed", reason="C of per_device is not graph's", outputs={})
STATUSES: tuple[Status, ...] = ("passed", "known", "weak", "failed", "error")


@given(
    programs=st.dictionaries(st.sampled_from(["auto", "shard_map", "vmap"]), st.sampled_from(STATUSES)),
    sections=st.sampled_from([None, SECTIONS, replace(SECTIONS, status="passed")]),
    error=st.sampled_from([None, "the worker died"]),
    beside=st.sampled_from(STATUSES),
)
def test_the_rows_of_a_point_are_as_bad_as_the_point_and_say_why(
    programs: dict[str, Status], sections: SectionsVerdict | None, error: str | None, beside: Status
) -> None:
    made = {name: replace(evidence.program(), status=status) for name, status in programs.items()}
    parts: list[Status] = [*programs.values(), *(["error"] if error else []), beside]
    checks = FileChecks(sections=sections)
    status = record.worst([record.of_checks(checks), *parts])
    rows = measures.rows(0, evidence.record(made, checks=checks, status=status, error=error), [])
    assert record.worst([row.status for row in rows]) == status  # type: ignore[misc]
    assert all(row.error for row in rows if row.status != "passed")
    # No program is better than a fault of the file or of the run; another program's fault does not count.
    for row in rows if programs else ():
        alone = record.worst([programs[str(row.program)], record.of_checks(checks), "error" if error else "passed"])
        assert row.status in (alone, status)


def test_a_program_of_a_file_whose_sections_differ_is_neither_passed_nor_best() -> None:
    wrong = evidence.record({"shard_map": evidence.program()}, status="failed", checks=FileChecks(sections=SECTIONS))
    right = evidence.record({"shard_map": evidence.program(evidence.collective())})
    rows = [*measures.rows(0, wrong, []), *measures.rows(1, right, [])]
    assert [(row.status, row.error) for row in rows] == [
        ("failed", "sections failed: C of per_device is not graph's"), ("passed", None)
    ]  # fmt: skip
    assert measures.objective(rows[:1], "bytes_sent") is None
    assert [row.point for row in measures.ordered(rows, "bytes_sent")] == [1, 0]
    assert [row.point for row in options.Options(where="status == 'passed'").through(rows)] == [1]
    (summary,) = entry.entries(wrong, Path(), "sweep", 0, [])
    assert (summary.passed, summary.status, summary.error) == (False, "failed", rows[0].error)


def test_only_varying_keys_are_columns_and_failures_come_last() -> None:
    rows = measures.varying(ROWS)
    assert [list(result.keys) for result in rows] == [["arrays.A.spec"]] * 5
    assert [result.point for result in measures.ordered(rows, "bytes_sent")] == [1, 3, 0, 4, 2]
    assert [result.point for result in measures.ordered(rows, "arrays.A.spec")] == [1, 3, 4, 0, 2]
    shown, _ = sweep.table(rows)
    assert shown.head == ["point", "arrays.A.spec", "program", "status", "collectives", "sent", "memory", "run"]
    shown, _ = sweep.table(rows, "flops")
    assert "computes" in shown.head


def cells(rows: list[Row]) -> list[list[str]]:
    return [[cell.text for cell in line] for line in sweep.table(rows)[0].rows]


def test_programs_of_a_point_that_cost_the_same_share_a_row() -> None:
    rows = [
        row(0, bytes_sent=64.0, run_s=0.2, spec="[y]"),
        row(0, bytes_sent=64.0, run_s=0.1, program="derived", spec="[y]"),
    ]
    rows.append(row(0, bytes_sent=96.0, run_s=0.1, program="explicit", spec="[y]"))
    assert [[line[k] for k in (0, 3, 6, 8)] for line in cells(rows)] == [
        ["0", "auto, derived", "64 B", "100.00 to 200.00 ms"],
        ["0", "explicit", "96 B", "100.00 ms"],
    ]


def test_messages_that_differ_in_sizes_share_a_note_which_names_points_without_a_program() -> None:
    refused = [replace(row(k, "invalid"), program=None, error=f"a.yaml:3  graph.y\n  got ({k},)") for k in (0, 1)]
    failed = replace(row(2, "failed", bytes_sent=64.0), error="value failed")
    shown, notes = sweep.table([*refused, failed])
    assert notes == [
        "[1] invalid: points 0, 1: a.yaml:3 graph.y: got (0,); the sizes are those of point 0",
        "[2] value failed",
    ]
    assert [[cell.text for cell in line][4] for line in shown.rows] == ["failed [2]"]


def test_the_lead_of_the_best_is_reported() -> None:
    (_, line, *_) = sweep.lines(measures.varying(ROWS))
    assert line == (
        "  bytes sent 64 B: point 1 auto (arrays.A.spec=[x]); point 3 derived (arrays.A.spec=[x]); "
        "the next 128 B, 2 times that, the most 512 B, 8 times that"
    )


def on(point: int, hardware: str, compiled_for: str, seconds: float) -> Row:
    return replace(row(point, estimate_s=seconds), hardware=hardware, compiled_for=compiled_for)


def test_an_estimate_is_always_shown_with_its_hardware(tmp_path: Path) -> None:
    alike = [on(0, "TPU v5e", "v5e:2x2", 1e-3), on(1, "TPU v5e", "v5e:2x2", 2e-3)]
    assert "estimate on TPU v5e" in sweep.table(alike)[0].head
    assert sweep.lines(alike)[0] == "estimate: the least time of a run on TPU v5e, compiled for v5e:2x2"
    other = [*alike, on(2, "H100", "simulated CPUs", 5e-4)]
    shown, _ = sweep.table(other)
    assert [line[shown.head.index("estimate")].text for line in shown.rows] == [
        "1.00 ms on TPU v5e", "2.00 ms on TPU v5e", "500 µs on H100",
    ]  # fmt: skip
    assert "  estimated time on H100 500 µs: point 2 (arrays" in sweep.lines(other)[3]
    measures.leave(measures.varying(other), tmp_path)
    flat = list(csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text(encoding="utf-8"))))
    assert [(line["hardware"], line["compiled_for"]) for line in flat][1:] == [
        ("TPU v5e", "v5e:2x2"), ("H100", "simulated CPUs"),
    ]  # fmt: skip
    page = str(sweep_page(other))
    assert "estimates: the least time of a run on H100, compiled for simulated CPUs" in page
    assert "on H100 or TPU v5e" in page


def sweep_page(rows: list[Row]) -> str:
    points = {
        each.point: MeasuredPoint(str(each.point), evidence.record({"auto": evidence.program()}), [], None)
        for each in rows
    }
    return pages.page("mine", measured.MeasuredSweep(points, rows))


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ("bytes_sent <= 64", [1, 2, 3]),
        ("bytes_sent < 1e3 and program == 'derived'", [3]),
        ("not (status == 'passed')", [2]),
        ("arrays.A.spec == '[y]' or point == 4", [0, 4]),
        ("0.15 < run_s < 0.3", [0]),
        ("flops < 1", []),
    ],
)
def test_a_condition_chooses_the_rows_that_satisfy_it(text: str, points: list[int]) -> None:
    rows = measures.varying(ROWS)
    given = options.Options(where=text)
    assert [result.point for result in given.through(rows)] == points


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bytes_snt < 1", "no column 'bytes_snt'; did you mean 'bytes_sent'?"),
        ("__import__('os')", "is not a comparison"),
        ("bytes_sent < open('x')", "is neither a column nor a number nor a text"),
        ("bytes_sent in [1]", "a comparison must be one of"),
        ("bytes_sent <", "is not a condition"),
    ],
)
def test_invalid_conditions_are_refused(text: str, message: str) -> None:
    with pytest.raises(measures.NoCondition, match="^.*" + message.replace("?", r"\?")):
        measures.parse(text, ("bytes_sent",))
    with pytest.raises(InvalidConfiguration):
        options.read({"where": text}, ())


def test_the_files_are_flat(tmp_path: Path) -> None:
    rows = measures.varying([*ROWS, replace(ROWS[0], point=5, same_as=0)])
    measures.leave(rows, tmp_path)
    flat = list(csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text(encoding="utf-8"))))
    assert [line["bytes_sent"] for line in flat] == ["128.0", "64.0", "0.0", "64.0", "512.0", "128.0"]
    assert flat[1]["run_s"] == ""
    assert (flat[5]["same_as"], flat[5]["folder"], flat[0]["same_as"]) == ("0", "0", "")
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["arrays.A.spec"] for line in lines] == ["[y]", "[x]", "[x]", "[x]", "[x]", "[y]"]
    assert all(not isinstance(value, dict | list) for line in lines for value in line.values())


# All layouts.


@pytest.mark.parametrize(
    ("shape", "sizes", "count"),
    [((4,), (2, 2), 5), ((2,), (2, 2), 3), ((4, 4), (2, 2), 11), ((4, 4), (4, 1), 3), ((3,), (2, 2), 1), ((), (2,), 1)],
)
def test_all_means_every_legal_spec_once(shape: tuple[int, ...], sizes: tuple[int, ...], count: int) -> None:
    mesh = Mesh(("x", "y")[: len(sizes)], sizes)
    specs = [Spec.of(spec) for spec in enumeration.specs(shape, mesh)]
    assert len(specs) == len(set(specs)) == count
    # Independently: every assignment of each axis to a dimension or none, in every order of the axes of a dimension.
    due: set[Spec] = set()
    for places in itertools.product([None, *range(len(shape))], repeat=len(mesh.axes)):
        on = [[a for a, p in zip(mesh.axes, places, strict=True) if p == d] for d in range(len(shape))]
        placed = [a for a, p in zip(mesh.axes, places, strict=True) if p is not None]
        if any(mesh.sizes[axis] == 1 for axis in placed):
            continue
        if all(size % mesh.axis_size(axes) == 0 for size, axes in zip(shape, on, strict=True)):
            due |= {Spec(orders) for orders in itertools.product(*(itertools.permutations(axes) for axes in on))}
    assert set(specs) == due


def test_every_mesh_of_the_devices() -> None:
    assert list(enumeration.factorisations(4, 2)) == [[4, 1], [2, 2], [1, 4]]
    assert len(list(enumeration.factorisations(8, 3))) == 10
    assert list(enumeration.factorisations(1, 2)) == [[1, 1]]


def config(shape: list[int], a: Any, b: Any, **more: Any) -> dict[str, Any]:
    arrays = {"A": {"shape": [4, 4], "spec": a}, "B": {"shape": [4, 4], "spec": b}}
    mesh = {"axes": ["x", "y"], "shape": shape}
    return {"name": "mine", "mesh": mesh, "arrays": arrays, "graph": {"C": "A @ B"}, "program": "auto"} | more


def test_experiments_equal_up_to_axis_names_and_order_are_identified() -> None:
    same = enumeration.identity
    identity = same(config([2, 2], ["x", None], [None, "y"]))
    assert identity == same(config([2, 2], ["y"], [None, "x"]))
    assert identity != same(config([2, 2], ["x", None], [None, "x"]))
    assert same(config([4, 2], ["x"], ["y"])) == same(config([2, 4], ["y"], ["x"]))
    assert same(config([4, 2], ["x"], ["y"])) != same(config([4, 2], ["y"], ["x"]))
    assert same(config([2, 2], [["x", "y"]], [])) == same(config([2, 2], [["y", "x"]], []))
    assert same(config([2, 2], [["x", "y"]], ["x"])) != same(config([2, 2], [["y", "x"]], ["x"]))
    assert identity != same(config([2, 2], ["x", None], [None, "y"], seed=1))


def test_a_collective_ties_the_names_of_the_axes_down() -> None:
    lines = {"per_device": {"C": "psum(A @ B, 'x')"}, "program": "shard_map"}
    same = enumeration.identity
    assert same(config([2, 2], ["x"], [], **lines)) != same(config([2, 2], ["y"], [], **lines))
    renamed = {**lines, "per_device": {"C": "psum(A @ B, 'y')"}}
    assert same(config([2, 2], ["x"], [], **lines)) == same(config([2, 2], ["y"], [], **renamed))
    # Nothing is run of lines that no program uses.
    unread = {**lines, "program": "auto"}
    assert same(config([2, 2], ["x"], [], **unread)) == same(config([2, 2], ["y"], [], **unread))
    # An array with the name of an axis is not an axis.
    graph = {"graph": {"C": "x @ B"}}
    assert same(config([2, 2], ["x"], [], **graph)) == same(config([2, 2], ["y"], [], **graph))


# The progress.


def test_a_sweep_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.time, "monotonic", lambda: 100.0)
    shown = progress.SweepProgress(20)
    assert shown.text() == "0 of 20 points done, 0 running"
    monkeypatch.setattr(progress.time, "monotonic", lambda: 130.0)
    shown.done, shown.running, shown.failed, shown.ready, shown.best = 8, 2, 1, 2, "64 B at point 3"
    assert shown.text() == "8 of 20 points done, 2 running, 1 failed, about 60 s left, best so far: 64 B at point 3"
    shown.done = 20
    assert "left" not in shown.text()


def test_without_a_terminal_progress_is_printed_periodically(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.SweepProgress(2, every=0.01) as shown:
        shown._over.wait(0.2)
    assert capsys.readouterr().err.startswith("0 of 2 points done, 0 running\n")
    with progress.SweepProgress(2):
        pass
    assert capsys.readouterr().err == ""
    assert sys.stderr is not None
