"""The report of a run and a sweep: plain text without a terminal, and no claims beyond the record."""

from __future__ import annotations

import io
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from runner.base import codec
from runner.base.layout import Layout, Mesh, Spec
from runner.compiled.evidence.model import Reason
from runner.reports.record.model import Record
from runner.reports.record.readable import readable
from runner.reports.record.record import started
from runner.reports.record.verdicts import ValueVerdict
from runner.reports.show import console, pictures, report
from tests import evidence
from tests.evidence import as_json

FOLDER = Path("/runs/mine/0")


def output(**changes: Any) -> dict[str, Any]:
    """Return the verdict on one output."""
    return {
        "status": "passed", "oracle": "graph", "max_abs_error": 1e-7, "rtol": 1e-6, "atol": 2e-6, "share": 0.05,
        "wrong": 0, "of": 64, "devices": [], "power": 3e-6,
    } | changes  # fmt: skip


def valued(outputs: dict[str, Any], status: str = "passed") -> dict[str, Any]:
    """Return a program with only the check of its values."""
    return passed(status=status, checks={"value": {"status": status, "outputs": outputs}})


def passed(**changes: Any) -> dict[str, Any]:
    value = {"status": "passed", "max_abs_error": 1e-7, "rtol": 1e-6, "atol": 2e-6, "outputs": {"C": output()}}
    checks = {"value": value, "layout": {"status": "not_run", "reason": "vmap"}}
    timing = as_json(evidence.timing(0.05, 0.0001))
    return {"status": "passed", "error": None, "checks": checks, "timing": timing} | changes


def record(**changes: Any) -> dict[str, Any]:
    return {
        "experiment": "mine",
        "summary": "What it shows.",
        "status": "passed",
        "error": None,
        "overrides": [],
        "warnings": [],
        "mesh": {"axes": ["x", "y"], "shape": [2, 2]},
        "target": {"platform": "cpu", "devices": 4, "kind": "cpu"},
        "programs": {"auto": passed(), "vmap": passed()},
        "environment": {"jax": "0.10.2"},
    } | changes


EVERY = list(range(20))
FAILED = passed(
    status="failed",
    checks={
        "value": {
            "status": "failed", "max_abs_error": 3.0, "rtol": 1e-6, "atol": 2e-6,
            "diagnosis": ["auto and the oracle agree, shard_map alone is wrong: the compiler"],
            "outputs": {
                "C": {
                    "status": "failed", "oracle": "graph", "rtol": 1e-6, "atol": 2e-6, "max_abs_error": 3.0,
                    "wrong": 9, "of": 64, "devices": EVERY,
                },
                "D": {
                    "status": "failed", "oracle": "per_device", "rtol": 1e-6, "atol": 2e-6, "max_abs_error": 0.0,
                    "wrong": 0, "of": 64, "devices": [], "reason": "it is 1.1 times the reference on average",
                },
            },
        },
        "replicas": {"status": "failed", "reason": "C[0:2] on device 3 differs from device 1"},
    },
)  # fmt: skip


def built(fields: dict[str, Any]) -> Record:
    """Return a record with these fields, otherwise that of a passed run."""
    programs = {name: _program(program) for name, program in fields.get("programs", {}).items()}
    checks = {name: _check(name, check) for name, check in fields.get("checks", {}).items()}
    nothing = as_json(started(None, ()))
    environment = nothing["environment"] | fields.get("environment", {})
    target = {"topology": None, **fields["target"]} if "target" in fields else None
    nested = {"programs": programs, "checks": checks, "environment": environment, "target": target}
    return codec.build(Record, nothing | fields | nested)


def _program(fields: dict[str, Any]) -> dict[str, Any]:
    checks = {name: _check(name, check) for name, check in fields["checks"].items()}
    if fields["status"] == "error":
        return fields | {"checks": checks}
    # The collectives have tests of their own.
    return as_json(evidence.program(collectives=None)) | fields | {"checks": checks}


MEASURED: dict[str, dict[str, Any]] = {
    "sections": {"outputs": {}},
    "value": as_json(evidence.value()),
    "replicas": {"copies": 0},
}


def _check(name: str, check: dict[str, Any]) -> dict[str, Any]:
    if check["status"] == "not_run":
        return check
    outputs = {
        output: verdict if verdict["status"] == "not_run" else as_json(evidence.compared()) | verdict
        for output, verdict in check.get("outputs", {}).items()
    }
    return MEASURED.get(name, {}) | check | ({"outputs": outputs} if name != "replicas" else {})


def printed(
    capsys: pytest.CaptureFixture[str], fields: dict[str, Any], *, brief: bool = False, complete: bool = True
) -> str:
    with console.within(0) if complete else nullcontext():
        report.run(built(fields), FOLDER, brief=brief, complete=complete)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert all(line == line.rstrip() for line in out.splitlines())
    return out


def test_a_run_that_passed(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, record()) == (
        "mine: What it shows.\n"
        "mesh x=2 × y=2 on 4 simulated cpu devices, jax 0.10.2\n"
        "\n"
        "program  status  value   layout  largest error  notices      compile  run\n"
        "auto     passed  passed  –       1.0e-07 in C   3.0e-06 rms  50 ms    0.10 ms\n"
        "vmap     passed  passed  –       1.0e-07 in C   3.0e-06 rms  50 ms    0.10 ms\n"
        "\n"
        "passed: 2 of 2 programs passed; /runs/mine/0/result.json\n"
    )


def test_in_brief_checks_are_counted_and_only_those_that_say_something_have_a_column(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert printed(capsys, record(), complete=False).splitlines()[3:6] == [
        "program  status  checks    largest error  memory  compile  run",
        "auto     passed  1 passed  1.0e-07 in C   192 B   50 ms    0.10 ms",
        "vmap     passed  1 passed  1.0e-07 in C   –       50 ms    0.10 ms",
    ]
    checks = {**passed()["checks"], "replicas": {"status": "failed", "reason": "C[0:2] on device 3 differs"}}
    programs = {"auto": passed(), "shard_map": passed(status="failed", checks=checks)}
    out = printed(capsys, record(status="failed", programs=programs), complete=False)
    assert out.splitlines()[3].split("  ")[:4] == ["program", "", "status", "replicas"]
    weak = {"auto": valued({"C": output(status="weak", power=None)}, status="weak")}
    assert "notices" in printed(capsys, record(status="weak", programs=weak), complete=False)


def test_in_brief_a_collective_names_the_places_of_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    given = collective(of='fun.py:5 q = x @ params["attn"]["q"]')
    out = printed(capsys, record(programs={"auto": passed(collectives=[given])}), complete=False)
    head, row = out.splitlines()[6:8]
    assert head.split("  ")[0] == "collective"
    assert re.split(r"  +", row)[:2] == ["all-gather", "fun.py:5"]
    assert ("dtype" in head, "programs" in head) == (False, False)
    assert 'fun.py:5 q = x @ params["attn"]["q"]' in report.story(
        built(record(programs={"auto": passed(collectives=[given])})), FOLDER
    )


def test_without_a_terminal_a_table_has_a_hundred_columns(capsys: pytest.CaptureFixture[str]) -> None:
    every = [collective(of=f"{'a_long_name_of_a_line ' * 6}{k}") for k in range(3)]
    out = printed(capsys, record(programs={"auto": passed(collectives=every)}), complete=False)
    assert max(map(len, out.splitlines())) <= 100


def test_an_error_beyond_the_measured_rounding_has_a_column_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    valued_as = valued({"C": output(accuracy=7.25, wrong=1), "D": output(accuracy=0.5)})
    out = printed(capsys, record(programs={"auto": valued_as, "vmap": valued({"C": output(accuracy=0.25)})}))
    head, auto, vmap = (re.split(r"  +", line) for line in out.splitlines()[3:6])
    at = head.index("accuracy")
    assert (auto[at], vmap[at], head[at - 1]) == ("7.2 ×", "0.25 ×", "largest error")
    assert max(map(len, out.splitlines()[3:6])) <= 100
    assert "accuracy" not in printed(capsys, record(programs={"auto": valued({"C": output(accuracy=0.9)})}))


def test_a_failed_run_names_the_culprit_then_the_reason_then_the_place(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, record(status="failed", programs={"shard_map": FAILED}))
    assert out.splitlines()[-7:] == [
        "shard_map: value failed",
        "  C differs from the NumPy oracle at 9 of 64 elements, on devices 0-19; "
        "largest error 3, allowed 2.0e-06 + 1.0e-06·|reference|",
        "  D: it is 1.1 times the reference on average",
        "  auto and the oracle agree, shard_map alone is wrong: the compiler",
        "shard_map: replicas failed",
        "  C[0:2] on device 3 differs from device 1",
        "failed: 0 of 1 programs passed; /runs/mine/0/result.json",
    ]


def test_equal_failures_of_several_programs_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    bytes_sent = {"status": "failed", "reason": "each device sends 396 bytes"}
    other = bytes_sent | {"reason": "each device sends 400 bytes"}
    failing = {
        name: passed(status="failed", checks={"max_bytes_per_device": verdict})
        for name, verdict in (("auto", bytes_sent), ("derived", other), ("explicit", bytes_sent))
    }
    out = printed(capsys, record(status="failed", programs=failing))
    assert out.splitlines()[-5:] == [
        "auto and explicit: max_bytes_per_device failed",
        "  each device sends 396 bytes",
        "derived: max_bytes_per_device failed",
        "  each device sends 400 bytes",
        "failed: 0 of 3 programs passed; /runs/mine/0/result.json",
    ]


def test_differing_sections_are_reported_before_the_programs(capsys: pytest.CaptureFixture[str]) -> None:
    sections = {"status": "failed", "diagnosis": ["a psum is left out"], "reason": "C is not graph's"}
    out = printed(capsys, record(status="failed", checks={"sections": sections}))
    assert out.splitlines()[-4:] == [
        "sections failed",
        "  a psum is left out",
        "  C is not graph's",
        "failed: sections failed, 2 of 2 programs passed; /runs/mine/0/result.json",
    ]


def test_a_weak_check_says_what_it_would_not_notice(capsys: pytest.CaptureFixture[str]) -> None:
    weak = {"status": "weak", "reason": "C: it would not notice 20 %", "max_abs_error": 0.0, "atol": 1.0, "outputs": {}}
    out = printed(capsys, record(status="weak", programs={"auto": passed(status="weak", checks={"value": weak})}))
    assert out.splitlines()[-3:] == [
        "auto: value is weak",
        "  C: it would not notice 20 %",
        "weak: 0 of 1 programs passed; /runs/mine/0/result.json",
    ]


@pytest.mark.parametrize(
    ("outputs", "cells"),
    [
        # The error of the failed output, although another output has a larger one.
        ({"C": output(max_abs_error=9.0), "D": output(status="failed", wrong=1)}, "1.0e-07 in D   3.0e-06 rms"),
        ({"C": output(max_abs_error=9.0), "D": output(status="weak")}, "1.0e-07 in D   3.0e-06 rms"),
        ({"C": output(max_abs_error=9.0), "D": output(share=0.9)}, "1.0e-07 in D   3.0e-06 rms"),
        ({"C": output(share=0.9), "D": output(power=0.5)}, "1.0e-07 in C   5.0e-01 rms in D"),
        ({"C": output(power=None)}, "1.0e-07 in C   –"),
        ({"C": output(power=0.0)}, "1.0e-07 in C   anything"),
        ({"C": output(power=0.0), "D": output(power=None)}, "1.0e-07 in C   anything"),
        ({"C": {"status": "not_run", "reason": "no oracle computes it"}}, "–              –"),
    ],
)  # fmt: skip
def test_the_worst_and_the_weakest_output_are_named(
    capsys: pytest.CaptureFixture[str], outputs: dict[str, Any], cells: str
) -> None:
    out = printed(capsys, record(programs={"auto": valued(outputs)}))
    assert re.sub(r" +", " ", out.splitlines()[4]) == re.sub(r" +", " ", f"auto passed passed {cells} 50 ms 0.10 ms")


def places(*operations: str, **changes: Any) -> dict[str, Any]:
    decided = [{"line": f"v{i}", "operation": name, "elements": 9} for i, name in enumerate(operations)]
    return output(undecided={"count": 12, "between": 0, "excused": 0, "places": decided} | changes)


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (places("floor"), "12 of 64 elements of C are undecided: floor in v0 may fall to either side by rounding"),
        (places("<", "argmax"), "12 of 64 elements of C are undecided: < in v0 and argmax in v1 may fall"),
        (places("<", "argmax", "sign"), "undecided: < in v0, argmax in v1 and sign in v2 may fall"),
        (places("<", "argmax", "sign", "astype"), "undecided: < in v0, argmax in v1 and 2 more may fall"),
        (places("floor", count=1), "1 of 64 elements of C is undecided: floor in v0 may fall"),
        (places(), "12 of 64 elements of C are undecided\n"),
        (places("floor", between=3, excused=1), "rounding; 3 of them lie between the possible values, 1 beyond\n"),
    ],
)
def test_undecided_elements_are_reported_with_their_line(
    capsys: pytest.CaptureFixture[str], verdict: dict[str, Any], text: str
) -> None:
    assert text in printed(capsys, record(programs={"auto": valued({"C": verdict})}))


def test_elements_undecided_in_every_program_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    both = {"auto": valued({"C": places("floor")}), "vmap": valued({"C": places("floor")})}
    assert "\n12 of 64 elements" in printed(capsys, record(programs=both))
    vmap_only = {"auto": valued({"C": output()}), "vmap": valued({"C": places("floor", count=2)})}
    assert "\nvmap: 2 of 64 elements" in printed(capsys, record(programs=vmap_only))


def test_an_exact_output_notices_all_but_undecided_elements(capsys: pytest.CaptureFixture[str]) -> None:
    undecided = places("floor") | {"power": 0.0}
    assert "all but undecided" in printed(capsys, record(programs={"auto": valued({"C": undecided})}))


def test_what_a_twin_notices_is_said_to_be_the_twins(capsys: pytest.CaptureFixture[str]) -> None:
    twin = {"status": "passed", "of": 64, "power": 2e-12}
    proved = record(programs={"auto": valued({"C": output(twin=twin)})})
    assert "2.0e-12 rms, twin" in printed(capsys, proved)
    assert "twin: the error of the program with float64 in the place of every float" in report.legend(built(proved))
    failed = {**twin, "status": "failed"}
    assert "3.0e-06 rms" in printed(capsys, record(programs={"auto": valued({"C": output(twin=failed)})}))


KNOWN = {
    "status": "known", "max_abs_error": 3.0, "rtol": 1e-6, "atol": 2e-6,
    "diagnosis": ["vmap and the oracle agree, auto alone is wrong: the compiler"],
    "outputs": {
        "C": {
            "status": "known", "oracle": "graph", "rtol": 1e-6, "atol": 2e-6, "max_abs_error": 3.0,
            "wrong": 9, "of": 64, "devices": [2],
        },
    },
}  # fmt: skip


def test_known_failures_and_programs_left_out_of_agreement_are_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    left_out = {"C": ["auto"]}
    other = {"agreement": {"status": "not_run", "reason": "C of auto", "left_out": left_out}}
    programs = {"auto": passed(status="known", checks={"value": KNOWN}), "vmap": passed(checks=other)}
    assert printed(capsys, record(status="known", programs=programs)).splitlines()[-5:] == [
        "auto: value failed, as expect.wrong says",
        "  C differs from the NumPy oracle at 9 of 64 elements, on device 2; "
        "largest error 3, allowed 2.0e-06 + 1.0e-06·|reference|",
        "  vmap and the oracle agree, auto alone is wrong: the compiler",
        "agreement does not compare the outputs in expect.wrong: C of auto",
        "known: 1 of 2 programs passed, 1 is wrong as expect.wrong says; /runs/mine/0/result.json",
    ]


def test_known_failures_are_distinguished_from_others(capsys: pytest.CaptureFixture[str]) -> None:
    mended = {**KNOWN["outputs"]["C"], "status": "failed", "wrong": 0, "reason": "it is right with jax 0.13.0"}
    value = {**KNOWN, "status": "failed", "diagnosis": [], "outputs": {**KNOWN["outputs"], "D": mended}}
    out = printed(capsys, record(status="failed", programs={"auto": passed(status="failed", checks={"value": value})}))
    assert out.splitlines()[-4:] == [
        "auto: value failed",
        "  C differs from the NumPy oracle at 9 of 64 elements, on device 2; "
        "largest error 3, allowed 2.0e-06 + 1.0e-06·|reference|, as expect.wrong says",
        "  D: it is right with jax 0.13.0",
        "failed: 0 of 1 programs passed; /runs/mine/0/result.json",
    ]


def test_a_program_that_died_is_in_the_table_and_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    died = {"status": "error", "error": "the process was ended by SIGABRT", "checks": {}}
    out = printed(capsys, record(status="error", programs={"auto": passed(), "vmap": died}))
    assert "vmap     error   –       –       –              –            –        –\n" in out
    assert "vmap: the process was ended by SIGABRT\n" in out
    assert out.endswith("error: 1 of 2 programs passed; /runs/mine/0/result.json\n")


def test_a_program_that_died_first_does_not_hide_the_others_checks(capsys: pytest.CaptureFixture[str]) -> None:
    died = {"status": "error", "error": "dead", "checks": {}}
    assert "program  status  value   layout" in printed(capsys, record(programs={"auto": died, "vmap": passed()}))


def test_an_invalid_experiment_has_its_message_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    invalid = {"experiment": None, "status": "invalid", "error": "mine.yaml:1:1\n  wrong", "programs": {}}
    report.run(built(invalid), FOLDER, brief=False)
    captured = capsys.readouterr()
    assert captured.err == "mine.yaml:1:1\n  wrong\n"
    assert captured.out == "invalid; /runs/mine/0/result.json\n"


def test_warnings_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "warning: all zero\n" in printed(capsys, record(warnings=["all zero"]))


def test_a_point_of_a_sweep_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, record(overrides=["+experiment=mine", "mesh=x2"]), brief=True)
    assert out == "[0] passed  experiment=mine mesh=x2\n"


def test_square_brackets_are_text_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    assert "[bold]mesh.shape=[4,2]" in printed(capsys, record(overrides=["[bold]mesh.shape=[4,2]"]), brief=True)


class Terminal(io.StringIO):
    """A terminal of 60 columns."""

    def isatty(self) -> bool:
        return True


def a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace standard output, which pytest changes between a fixture and its test, by a terminal."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


def test_on_a_terminal_there_are_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    report.run(built(record()), FOLDER, brief=False)
    assert "\x1b[32mpassed" in terminal.getvalue()


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_a_terminal_gets_no_line_that_is_wider_than_it_is(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    terminal = a_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(columns))
    fields = record(warnings=["a warning of many words " * 9], summary="What it shows, " * 9)
    report.run(built(fields), FOLDER, brief=False)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[-1].endswith("/runs/mine/0/result.json")
    text = " ".join(" ".join(lines).split())
    for phrase in ("1 passed", "192 B", "0.10 ms", ("a warning of many words " * 9).strip()):
        assert phrase in text


def test_brackets_on_a_terminal_are_text_too(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = a_terminal(monkeypatch)
    report.run(built(record(overrides=["mesh.shape=[4,2]"])), FOLDER, brief=True)
    assert "mesh.shape=[4,2]" in terminal.getvalue()


def test_the_log_has_everything() -> None:
    every = [collective(of=f"v{k}") for k in range(30)]
    fields = record(programs={"auto": passed(collectives=every)}, status="error", error="mine.yaml:1:1\n  wrong")
    story = report.story(built(fields), FOLDER)
    assert all(f" v{k} " in story for k in range(30))
    assert "mine.yaml:1:1\n  wrong\n" in story
    assert story.endswith("error: the run ended early, 1 of 1 programs passed; /runs/mine/0/result.json\n")


def test_more_collectives_than_a_screen_has_are_folded_unless_the_run_explains_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    every = [collective(of=f"v{k}") for k in range(25)]
    short = printed(capsys, record(programs={"auto": passed(collectives=every[:24])}), complete=False)
    assert len([line for line in short.splitlines() if line.startswith("all-gather")]) == 24
    folded = printed(capsys, record(programs={"auto": passed(collectives=every)}), complete=False)
    (row,) = [line for line in folded.splitlines() if line.startswith("all-gather")]
    assert re.split("  +", row)[1:5] == ["v0, v1, v2 and 22 more", "groups along no axis", "25", "400 B"]
    assert "25 collectives are folded into these rows; explain=true lists each" in folded
    explained = printed(capsys, record(programs={"auto": passed(collectives=every)}, explain=True), complete=False)
    assert len([line for line in explained.splitlines() if line.startswith("all-gather")]) == 25


def test_a_folded_row_names_leaves_that_equal_lines_read_by_a_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    leaves = [f"params/{i}/{name}" for i in range(13) for name in "qk"]
    every = [
        as_json(evidence.collective("all-gather", "m.py:7", inserted=True, between={"from": [leaf], "to": ["m.py:7"]}))
        for leaf in leaves
    ]
    folded = printed(capsys, record(programs={"auto": passed(collectives=every)}), complete=False)
    (row,) = [line for line in folded.splitlines() if line.startswith("all-gather")]
    assert re.split("  +", row)[1] == "params/{0..12}/{q,k} for m.py:7"


def test_warnings_about_equal_moves_are_one_unless_a_run_explains_all(capsys: pytest.CaptureFixture[str]) -> None:
    def warning(node: str | None, spec: str) -> dict[str, Any]:
        move = {"before": [spec, None], "after": [None, spec], "shape": [8, 8], "dtype": "float32"}
        kind = "involuntary full rematerialization"
        return {"kind": kind, "node": node, "text": f"words on {node}", "times": 1, "reshard": move}

    every = [warning("m.py:7 y = x @ w", "x"), warning("m.py:7 y = x @ w", "x"), warning(None, "x"), warning("C", "y")]
    programs = {"auto": passed(collectives=[], compiler_warnings=every)}
    printed_in_brief = printed(capsys, record(programs=programs), complete=False)
    assert printed_in_brief.count("the compiler warns") == 2
    assert (
        "auto: the compiler warns: involuntary full rematerialization of m.py:7 (2 times) and no line that it names; "
        "explain=full has the compiler's words\n  float32[8, 8] goes from P('x', None) to P(None, 'x')"
    ) in printed_in_brief
    assert "of C; explain=full has the compiler's words\n" in printed_in_brief
    assert printed(capsys, record(programs=programs)).count("the compiler warns") == 4
    both = printed(capsys, record(programs=programs | {"explicit": programs["auto"]}), complete=False)
    assert both.count("auto and explicit: the compiler warns") == both.count("the compiler warns") == 2


def test_a_run_explains_its_collectives_in_a_line_each_or_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    need = "the product in C sums over J, which arrays.A.spec shards over x"
    why = Reason(text=f"{need}; the sum in d sums over I, which arrays.B.spec shards", by="operation", planned=True)
    programs = {"auto": passed(collectives=[as_json(evidence.collective(why=why))])}
    brief = printed(capsys, record(programs=programs, explain=True), complete=False)
    assert "\n    the product sums over J, which arrays.A.spec shards over x (and 1 more reason)\n" in brief
    assert "the sum in d" not in brief
    full = printed(capsys, record(programs=programs, explain="full"), complete=False)
    assert f"\nauto: all-reduce of C over x: {why.text}; Shardy plans it too\n" in full


@pytest.mark.parametrize("asked", ["", "derived: psum(s_3 @ v_2, 'model'); "])
def test_the_reason_of_a_line_of_python_is_whole_in_brief(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    need = f"{asked}the product in block.py:6 sums over a dimension of 16, which p/wk shards over model"
    why = Reason(text=need, by="operation", keys=["p/wk"])
    moved = evidence.collective("all-reduce", "block.py:6 s = q @ k.T", why=why)
    brief = printed(
        capsys, record(programs={"auto": passed(collectives=[as_json(moved)])}, explain=True), complete=False
    )
    assert "\n    the product sums over a dimension of 16, which p/wk shards over model\n" in brief


def collective(of: str) -> dict[str, Any]:
    return as_json(
        evidence.collective("all-gather", of, inserted=True, groups=[[0, 1]], bytes_in=8, bytes_out=16, bytes=16)
    )


def holding(shape: list[int], values: Any, dtype: str = "float32") -> dict[str, Any]:
    """Return a program with only its value of C."""
    return passed(outputs={"C": as_json(evidence.output(shape=shape, dtype=dtype, values=values))})


def test_small_outputs_are_printed_as_numpy_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    same = {"auto": holding([2, 2], [[1.5, 2.0], [3.0, 4.0]]), "vmap": holding([2, 2], [[1.5, 2.0], [3.0, 4.0]])}
    assert "\nC\n[[1.5 2. ]\n [3.  4. ]]\n\nprogram" in printed(capsys, record(programs=same))
    assert "C\n" not in printed(capsys, record(programs={"auto": holding([65], [0.0] * 65)}))
    assert "C\n" not in printed(capsys, record(programs={"auto": holding([2], None)}))
    complex_ = holding([1], [{"real": 1.0, "imag": 2.0}], "complex64")
    assert "\nC\n[1.+2.j]\n" in printed(capsys, record(programs={"auto": complex_}))


def test_differing_values_are_printed_by_program_and_last_digits_noted(capsys: pytest.CaptureFixture[str]) -> None:
    programs = {"auto": holding([1], [0.5]), "explicit": holding([1], [0.50000006]), "vmap": holding([1], [0.75])}
    out = printed(capsys, record(programs=programs))
    assert "\nC of auto and explicit, as auto has it; the last digits differ in explicit\n[0.5]\n" in out
    assert "\nC of vmap\n[0.75]\n" in out


def drawn(names: str) -> dict[str, Any]:
    """Return a record with pictures of arrays of distinct sizes, and a last one like the first."""
    mesh = Mesh(("x", "y"), (2, 2))
    arrays = [
        pictures.from_layout(
            Layout(mesh, (4, 4 + 4 * (k % (len(names) - 1))), Spec.of(["x", None])),
            name=name, role="array", dtype="float32", dims=(None, None),
            device_ids=range(4), platform="cpu",
        )
        for k, name in enumerate(names)
    ]  # fmt: skip
    shown = pictures.MeshPicture(mesh.axes, mesh.shape, tuple(range(4)), "cpu")
    return record(
        pictures=codec.plain(pictures.recorded(shown, arrays)),
        programs={"auto": holding([1], [0.5])},
    )


@pytest.mark.parametrize(
    ("show", "names"),
    [
        ("auto", ["mesh", "A, C", "B", "C"]),
        ("all", ["mesh", "A", "B", "C", "C"]),
        ("none", []),
        ("B", ["B"]),
        (["mesh", "C"], ["mesh", "C", "C"]),
        (["A"], ["A"]),
    ],
)
def test_show_says_what_is_drawn_and_printed(capsys: pytest.CaptureFixture[str], show: Any, names: list[str]) -> None:
    report.run(built(drawn("ABC")), FOLDER, brief=False, show=show)
    shown = re.findall(r"(?:^| {4})(mesh|A, C|[ABC])(?=  \S| {5,}|\n)", capsys.readouterr().out, re.MULTILINE)
    assert shown == names


def test_many_layouts_are_listed_as_text_and_the_log_draws_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    fields = drawn("ABCDEFGHIJKL")
    out = printed(capsys, fields, complete=False)
    pictured = out.split("program ")[0]
    assert len(pictured.splitlines()) < 70
    assert pictured.count("┌") < 9
    assert "K  float32[4, 44]  P('x', None)  shard [2, 44]  352 B per device\n" in pictured
    assert "show=all draws every one\n" in pictured
    story = report.story(built(fields), FOLDER)
    assert story.count("┌") == 12
    assert "not drawn" not in story


def test_the_list_of_experiments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("summary: What it shows.\n")
    report.listing([tmp_path])
    out = capsys.readouterr().out
    assert out.startswith("experiment  summary\nmine        What it shows.\n")
    assert out.endswith("Run one: python -m runner mine\n")


def test_a_terminal_gets_a_line_for_each_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("summary: What it shows, in many words " + "and more " * 9)
    terminal = a_terminal(monkeypatch)
    report.listing([tmp_path])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert lines[1] == "mine        What it shows, in many words and more and more …"
    assert "python -m runner | cat prints them whole." in " ".join(" ".join(lines).split())


def test_an_empty_list_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.listing([tmp_path])
    assert "0 experiments" in capsys.readouterr().out


def columns(programs: dict[str, Any], **changes: Any) -> list[str]:
    """Return the checks in the table of programs, in order."""
    head = report.programs(built(record(programs=programs, **changes))).head
    return list(head[2 : head.index("largest error")])


def test_the_check_that_failed_stands_first_in_the_table() -> None:
    checks = {**passed()["checks"], "replicas": {"status": "failed", "reason": "C[0:2] on device 3 differs"}}
    assert columns({"auto": passed()}) == ["value", "layout"]
    assert columns({"auto": passed(), "shard_map": passed(checks=checks)}) == ["replicas", "value", "layout"]


def test_sections_that_differ_are_the_first_column_of_the_programs_that_are_written_from_them() -> None:
    sections = {"status": "failed", "diagnosis": [], "reason": "C is not graph's"}
    table = report.programs(built(record(programs={"auto": passed(), "vmap": passed()}, checks={"sections": sections})))
    assert table.head[2] == "sections"
    assert [(cell.text, cell.status) for cell in (row[2] for row in table.rows)] == [
        ("–", "not run"), ("failed", "failed"),
    ]  # fmt: skip
    assert "sections" not in columns({"auto": passed()}, checks={"sections": {**sections, "status": "passed"}})


def test_a_program_of_a_section_that_differs_does_not_read_as_passed() -> None:
    sections = {"status": "failed", "diagnosis": [], "reason": "C is not graph's"}
    given = record(programs={"auto": passed(), "vmap": passed(status="failed")}, checks={"sections": sections})
    table = report.programs(built(given))
    auto, vmap = ([cell.text for cell in row[1:4]] for row in table.rows)
    assert (auto, vmap) == (["passed", "–", "passed"], ["failed", "failed", "as written"])
    assert "passed" not in {cell.status for cell in table.rows[1]}


def test_a_reason_of_a_call_names_the_array_and_one_of_a_file_its_key() -> None:
    keys = ["arrays.p_w.spec", "arrays.p_w2.spec"]
    why = Reason(text=f"the product sums over J, which {keys[0]} and {keys[1]} shard over x", by="operation", keys=keys)
    places = {keys[0]: "the sharding of p['w']", keys[1]: "mine.yaml:3:4"}
    programs = {"auto": evidence.program(evidence.collective(why=why))}
    [program] = readable(evidence.record(programs, paths={"p_w": "p/w"}, places=places)).compiled.values()
    assert program.collectives is not None
    [entry] = program.collectives
    assert entry.why is not None
    assert entry.why.text == "the product sums over J, which p/w and arrays.p_w2.spec shard over x"


def test_a_note_names_an_output_of_a_tree_by_its_path() -> None:
    note = "result_1_0: in float64 the same program equals the oracle to 4e-16; result_1_01 is another name"
    value = {"status": "passed", "note": note, "outputs": {"result_1_0": output()}}
    given = record(programs={"auto": passed() | {"checks": {"value": value}}}, paths={"result_1_0": "result/1/0"})
    verdict = readable(built(given)).programs["auto"].checks.value
    assert isinstance(verdict, ValueVerdict)
    assert verdict.note == note.replace("result_1_0:", "result/1/0:")
