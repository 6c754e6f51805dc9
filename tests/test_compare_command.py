"""`python -m runner compare`: its arguments, its output, and its exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.app.cli import compare
from runner.base.layout import Spec
from runner.checks.kinds.pinned import PinnedVerdict
from runner.link.events import Cost, Devices
from runner.reports.record import golden, record
from runner.reports.record.model import ArrayRecord, Environment, MeshShape
from runner.reports.record.verdicts import Checks, FileChecks, SectionsVerdict
from tests.command import ROOT
from tests.evidence import CHECKS, collective, memory, output, program, timing, value
from tests.evidence import record as record_with

GATHER = collective("all-gather", "w", bytes_out=2097152, bytes_sent=1048576)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run every test in a temporary folder, so that paths are short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


H100 = Devices(platform="gpu", devices=8, kind="H100", topology=None)
NO_JAX = Environment(jax=None, jaxlib=None, python="3.11.7", runner="0.1.0", git=None)
PINNED = PinnedVerdict(status="passed", max_abs_error=0.0, outputs={})


def array(shape: list[int], dtype: str, spec: list[Any]) -> ArrayRecord:
    """Return an array whose shards do not matter."""
    return ArrayRecord(shape=shape, dtype=dtype, spec=Spec.of(spec), shard_shape=shape, shards_from="spec", shards=None)


def write(folder: str, **more: Any) -> str:
    """Write a run folder with a record."""
    Path(folder).mkdir(parents=True)
    record.write(record_with(**more), Path(folder))
    return folder


def pin(file: str, series: str, *collectives: Any, target: str = "cpu") -> str:
    """Write a golden file with a `shard_map` of these collectives."""
    golden.pin(Path(file), (series, target, "shard_map"), golden.pinned(program(*collectives)))
    return file


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, status: int) -> list[str]:
    """Return the lines that a comparison prints."""
    assert compare.main(arguments) == status
    streams = capsys.readouterr()
    return (streams.err if status == 2 else streams.out).splitlines()


def test_two_equal_runs_are_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, write("a"), write("b"), status=0) == ["case: the same"]
    assert printed(capsys, "a/result.json", "b", status=0) == ["case: the same"]


def test_times_rounding_estimates_and_versions_are_notes_not_differences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    slow = program(
        collective(),
        timing=timing(0.1, 0.0003),
        cost=Cost(flops=160.0),
        checks=CHECKS.but(value=value(max_abs_error=1e-7)),
    )
    fast = program(collective(), checks=CHECKS.but(value=value(max_abs_error=0.0)))
    write("a", programs={"shard_map": fast})
    newer = Environment(jax="0.12.0.1", jaxlib="0.12.0.1", python="3.12.1", runner="0.1.0", git=None)
    write("b", programs={"shard_map": slow}, environment=newer)
    assert printed(capsys, "a", "b", status=0) == [
        "case: the same",
        "  (jax 0.10.2 → 0.12.0.1, jaxlib 0.10.2 → 0.12.0.1, python 3.11.7 → 3.12.1)",
        "  (shard_map: compile 2 × the time, 50 → 100 ms, run 1.5 × the time, 0.2 → 0.3 ms, "
        "computes 80 flops → 160 flops, largest error 0 → 1e-07)",
    ]


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (
            {"programs": {"shard_map": program(collective(), GATHER)}},
            ["all-gather of w over x appeared in shard_map: +1.0 MB sent per device"],
        ),
        (
            {"programs": {"shard_map": program()}},
            ["all-reduce of C over x disappeared from shard_map: -64 B sent per device"],
        ),
        (
            {"programs": {"shard_map": program(collective(), outputs={"C": output(spec=Spec.of(["x", None]))})}},
            ["output C of shard_map: spec P(None, None) → P('x', None)"],
        ),
        (
            {"programs": {"shard_map": program(collective(), memory=memory(temps=4096))}},
            [
                "temporary memory of shard_map: 64 B → 4.1 kB per device",
                "needed memory of shard_map: 192 B → 4.2 kB per device",
            ],
        ),
        (
            {
                "status": "failed",
                "programs": {
                    "shard_map": program(
                        collective(),
                        status="failed",
                        checks=Checks(value=value(status="failed"), values=PINNED),
                    )
                },
            },
            [
                "status: passed → failed",
                "status of shard_map: passed → failed",
                "shard_map: check value: passed → failed",
                "shard_map: check layout disappeared: passed",
                "shard_map: check replicas disappeared: passed",
                "shard_map: check agreement disappeared: passed",
                "shard_map: check values appeared: passed",
            ],
        ),
        (
            {"status": "failed", "checks": FileChecks(sections=SectionsVerdict(status="failed", outputs={}))},
            ["status: passed → failed", "check sections: passed → failed"],
        ),
        (
            {"programs": {"vmap": program()}, "not_supported": {"shard_map": "no such thing (JAX 0.12)"}},
            ["program shard_map disappeared: no such thing (JAX 0.12)", "program vmap appeared"],
        ),
        (
            {"mesh": MeshShape(axes=["x"], shape=[8]), "target": H100},
            ["mesh: x=2 × y=2 → x=8", "target: 4 × cpu → 8 × H100"],
        ),
        (
            {"arrays": {"A": array([4, 4], "float32", ["x"]), "B": array([2], "int32", [])}},
            ["array A: float32[4, 4] P(None, 'x') → float32[4, 4] P('x')", "array B appeared: int32[2] P()"],
        ),
        (
            {"status": "error", "error": "the process was ended by SIGABRT; its last output:\nthere"},
            ["status: passed → error", "error: none → the process was ended by SIGABRT; its last output:"],
        ),
    ],
)  # fmt: skip
def test_differences_are_printed_with_status_1(
    capsys: pytest.CaptureFixture[str], change: dict[str, Any], lines: list[str]
) -> None:
    assert printed(capsys, write("a"), write("b", **change), status=1) == ["case", *[f"  {line}" for line in lines]]


def test_a_run_that_ended_before_it_began_can_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    early = {"programs": {}, "mesh": None, "target": None, "arrays": {}, "status": "invalid", "error": "wrong",
             "environment": NO_JAX}  # fmt: skip
    lines = printed(capsys, write("a"), write("b", **early), status=1)
    assert "  status: passed → invalid" in lines
    assert "  mesh: x=2 × y=2 → none" in lines
    assert "  program shard_map disappeared" in lines


def test_a_point_whose_configuration_could_not_be_composed_can_be_compared(capsys: pytest.CaptureFixture[str]) -> None:

    Path("a").mkdir()
    record.ended(Path("a"), "invalid", "no mesh", ["+experiment=case"])
    lines = printed(capsys, "a", write("b"), status=1)
    assert "  status: invalid → passed" in lines


def test_the_points_of_sweeps_are_matched_by_their_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    for sweep, sizes in (("a", (4, 8, 16)), ("b", (8, 4, 32))):
        for number, size in enumerate(sizes):
            programs = {"shard_map": program(*([GATHER] if (sweep, size) == ("b", 8) else []))}
            overrides = ["+experiment=case", f"dims.J={size}", *(["show=none"] if sweep == "a" else [])]
            write(f"{sweep}/{number}", programs=programs, overrides=overrides)
    assert printed(capsys, "a", "b", status=1) == [
        "case dims.J=4: the same",
        "case dims.J=8",
        "  all-gather of w over x appeared in shard_map: +1.0 MB sent per device",
        "case dims.J=16",
        "  it disappeared: it is only in A",
        "case dims.J=32",
        "  it appeared: it is only in B",
        "",
        "4 compared, 3 differ",
    ]


def test_two_series_of_one_golden_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    pin("case.json", "jax 0.12", collective(), GATHER)
    pin("case.json", "jax 0.10", collective())
    lines = [
        "case",
        "  all-gather of w over x appeared in shard_map: +1.0 MB sent per device",
        "  (jax 0.10 → jax 0.12)",
    ]
    assert printed(capsys, "case.json", status=1) == lines
    backwards = printed(capsys, "case.json", "--series", "jax 0.12", "jax 0.10", status=1)
    assert backwards[1] == "  all-gather of w over x disappeared from shard_map: -1.0 MB sent per device"
    assert printed(capsys, "case.json", "--series", "jax 0.12", "jax 0.12", status=0) == ["case: the same"]
    pin("case.json", "jax 0.9")
    assert printed(capsys, "case.json", status=2) == [
        "case.json: name the two series to compare with --series; there are jax 0.9, jax 0.10, jax 0.12"
    ]


def test_a_folder_of_goldens_is_compared_between_two_series(capsys: pytest.CaptureFixture[str]) -> None:
    for series in ("jax 0.10", "jax 0.12"):
        pin("goldens/same.json", series, collective())
        pin("goldens/sub/other.json", series, *([GATHER] if series == "jax 0.12" else []))
        pin("goldens/same.json", series, target="v5e_2x2")
    assert printed(capsys, "goldens", status=1) == [
        "same: the same",
        "same target=v5e_2x2: the same",
        "sub/other",
        "  all-gather of w over x appeared in shard_map: +1.0 MB sent per device",
        "  (jax 0.10 → jax 0.12)",
        "",
        "3 compared, 1 differs",
    ]


def test_a_golden_is_compared_with_a_run_of_its_series(capsys: pytest.CaptureFixture[str]) -> None:
    pin("case.json", "jax 0.10", collective())
    pin("case.json", "jax 0.12", GATHER)
    write("a")
    assert printed(capsys, "case.json", "a", status=0) == ["case: the same"]
    assert printed(capsys, "a", "case.json", status=0) == ["case: the same"]
    assert printed(capsys, "case.json", "a", "--series", "jax 0.12", status=1)[-1] == "  (jax 0.12 → jax 0.10)"


def test_two_goldens_are_compared_series_by_series(capsys: pytest.CaptureFixture[str]) -> None:
    for file in ("a/case.json", "b/case.json"):
        pin(file, "jax 0.10", collective())
        pin(file, "jax 0.12", *([GATHER] if file.startswith("b") else []))
    assert printed(capsys, "a/case.json", "b/case.json", status=1) == [
        "case (jax 0.10): the same",
        "case (jax 0.12)",
        "  all-gather of w over x appeared in shard_map: +1.0 MB sent per device",
        "",
        "2 compared, 1 differs",
    ]
    assert printed(capsys, "a/case.json", "b/case.json", "--series", "jax 0.10", status=0) == ["case: the same"]


ALONE = "with one golden, give two series to compare"
NOT_JSON = "not JSON: Expecting value; restore the file, or delete it and run pytest --update-golden"
BROKEN = "not JSON: Expecting value: line 1 column 1 (char 0)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch", "a"], "nosuch: there is no such file or folder"),
        (["a"], "a: name a second run, sweep or golden to compare it with"),
        (["empty", "a"], "empty: this is neither a run folder, nor a sweep, nor a golden"),
        (["a", "broken"], f"broken/result.json\n  {BROKEN}"),
        (["a", "other"], "other/result.json\n  not a record: it has no 'schema'"),
        (["case.json"], "case.json: name the two series to compare with --series; there is jax 0.10"),
        (["case.json", "--series", "jax 1", "jax 0.10"], "case.json: it pins nothing for jax 1; there is jax 0.10"),
        (["case.json", "--series", "jax 0.10"], f"--series: {ALONE}"),
        (["a", "b", "--series", "jax 0.10"], "--series: a and b are not goldens"),
        (["a", "b", "--series", "1", "2", "3"], "--series: it takes one series or two, not 3"),
        (["sweep", "sweep"], "sweep: more than one run of case; name one of its folders"),
        (["one", "goldens"], "one and goldens have nothing in common: case dims.J=4, case dims.J=8; q, r"),
        (["text.json", "a"], f"text.json:1:1\n  {NOT_JSON}"),
    ],
)
def test_an_invalid_comparison_is_one_message_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    for folder in ("a", "b", "sweep/0", "sweep/1"):
        write(folder)
    for size in (4, 8):
        write(f"one/{size}", overrides=["+experiment=case", f"dims.J={size}"])
    for folder, text in (("broken", "no"), ("other", "{}"), ("empty", None)):
        Path(folder).mkdir()
        if text is not None:
            Path(folder, "result.json").write_text(text)
    Path("text.json").write_text("no")
    pin("case.json", "jax 0.10")
    pin("goldens/q.json", "jax 0.10")
    pin("goldens/r.json", "jax 0.10")
    assert "\n".join(printed(capsys, *arguments, status=2)) == message


@pytest.mark.in_turn
def test_the_command_imports_no_jax(here: Path) -> None:
    write("a")
    write("b", programs={"shard_map": program(collective(), GATHER)})
    script = (
        "import runpy, sys\n"
        "sys.argv = ['runner', 'compare', 'a', 'b']\n"
        "try:\n    runpy.run_module('runner', run_name='__main__')\n"
        "except SystemExit as end:\n    print(end.code, 'jax' in sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert result.stdout.splitlines() == [
        "case",
        "  all-gather of w over x appeared in shard_map: +1.0 MB sent per device",
        "1 False",
    ], result.stderr


def test_several_arguments_are_compared_with_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    write("a")
    write("b")
    write("c", programs={"shard_map": program(collective(), GATHER)})
    assert printed(capsys, "a", "b", "c", status=1) == [
        "a → b",
        "case: the same",
        "",
        "a → c",
        "case",
        "  all-gather of w over x appeared in shard_map: +1.0 MB sent per device",
        "",
        "1 of 2 differ from a",
    ]
    assert printed(capsys, "a", "b", "a", status=0)[-1] == "0 of 2 differ from a"
