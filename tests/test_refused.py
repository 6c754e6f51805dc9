"""Experiments that expect a refusal pass if they are refused with the expected message, and fail otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.app.flow import run as flow
from runner.base.faults import Fault, InvalidExperiment, key_text
from runner.checks.kinds import refused
from runner.experiment import expect
from runner.reports.record.verdicts import RefusalVerdict
from tests import evidence
from tests.command import REFUSED, ROOT, recorded, run_command
from tests.test_plugin import Project

TWICE = Fault(("outputs", "C", 1), "the mesh axis 'x' is used twice; each axis shards at most one dimension")

FORBIDDEN = """\
# @package _global_
defaults:
  - override /mesh: x2
name: mine
arrays:
  A: {shape: [4, 4], spec: [x, null]}
  B: {shape: [4, 4], spec: [null, x]}
graph:
  C: A @ B
outputs:
  C: [x, x]
program: auto
expect:
  invalid: the mesh axis 'x' is used twice
"""


# The text and the fault.


@pytest.mark.parametrize("written", ["null", "", "{}", "{invalid: null}", "{collectives: {}}"])
def test_no_refusal_is_expected_by_default(written: str) -> None:
    assert expect.refusal({"expect": yaml.safe_load(written)}) is None
    assert expect.refusal({}) is None


@pytest.mark.parametrize("written", ["3", "true", "''", "' '", "[twice]", "{auto: twice}"])
def test_an_expected_refusal_must_be_a_text(written: str) -> None:
    with pytest.raises(InvalidExperiment) as caught:
        expect.refusal({"expect": {"invalid": yaml.safe_load(written)}})
    assert key_text(caught.value.fault.key) == "expect.invalid"
    assert "is not text; write a part of the message that refuses the experiment" in caught.value.fault.message


@pytest.mark.parametrize(
    "expected",
    [
        "the mesh axis 'x' is used twice",
        "outputs.C[1]: the mesh axis 'x'",
        "used twice;\n  each axis",
    ],
)
def test_a_part_of_key_and_message_is_enough(expected: str) -> None:
    verdict = refused.check(expected, TWICE, "as told")
    assert verdict == RefusalVerdict(status="passed", expected=expected, refused="as told")


@pytest.mark.parametrize("expected", ["used Twice", "outputs.C[0]", "the mesh axis 'y'", "mine.yaml"])
def test_another_message_fails_and_is_shown(expected: str) -> None:
    verdict = refused.check(expected, TWICE, "mine.yaml:3:1  outputs.C[1]\n  the mesh axis")
    assert verdict.status == "failed"
    assert verdict.reason == f"expected to be refused with '{expected}', but refused with another message"
    assert verdict.details == ["mine.yaml:3:1  outputs.C[1]", "  the mesh axis"]
    assert verdict.refused == "mine.yaml:3:1  outputs.C[1]\n  the mesh axis"


def test_an_experiment_that_is_not_refused_fails() -> None:
    assert refused.check("used twice", None, None) == RefusalVerdict(
        status="failed",
        expected="used twice",
        refused=None,
        reason="expected to be refused with 'used twice', but nothing refuses it",
    )


# The command.


def run(folder: Path, text: str, *overrides: str) -> tuple[int, str, dict[str, Any]]:
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / "experiment" / "mine.yaml").write_text(text, encoding="utf-8")
    ran = run_command("--config-dir", ".", "+experiment=mine", "hydra.run.dir=run", *overrides, folder=folder)
    assert "Traceback" not in ran.stdout + ran.stderr
    return ran.returncode, ran.stdout + ran.stderr, recorded(folder / "run")


def test_an_expected_refusal_of_the_reader_passes(tmp_path: Path) -> None:
    status, printed, record = run(tmp_path, FORBIDDEN)
    message = f"experiment/mine.yaml:11:10  outputs.C[1]\n  {TWICE.message}"
    assert (status, record["status"], record["error"]) == (0, "passed", None)
    assert record["checks"] == {
        "invalid": {"status": "passed", "expected": "the mesh axis 'x' is used twice", "refused": message}
    }
    assert (
        "refused, as expect.invalid has it:\n  experiment/mine.yaml:11:10  outputs.C[1]\n    the mesh axis" in printed
    )
    assert printed.endswith("passed; run/result.json\n")


def test_an_expected_refusal_of_jax_passes(tmp_path: Path) -> None:
    text = FORBIDDEN.replace("[x, x]", "[x, null]").replace("C: A @ B", "C: A[:, :3] @ B")
    status, printed, record = run(tmp_path, text.replace("the mesh axis 'x' is used twice", "contracting dimensions"))
    assert (status, record["status"]) == (0, "passed"), printed
    assert record["checks"]["invalid"]["refused"].startswith("experiment/mine.yaml:9:6  graph.C\n  JAX refuses it: ")


def test_an_expected_unsupported_program_passes(tmp_path: Path) -> None:
    text = FORBIDDEN.replace("graph:\n  C: A @ B", "per_device:\n  C: ppermute(A, ('x', 'y'), perm=[(0, 1)])")
    text = text.replace("x2", "x2_y2").replace("[x, x]", "[[x, y], null]").replace("program: auto", "program: vmap")
    text = text.replace("spec: [x, null]", "spec: [[x, y], null]")
    text = text.replace("the mesh axis 'x' is used twice", "\"JAX cannot express program 'vmap'\"")
    status, printed, record = run(tmp_path, text)
    assert (status, record["status"]) == (0, "passed"), printed
    (tmp_path / "again").mkdir()
    status, printed, record = run(tmp_path / "again", text, "program=shard_map")
    assert (status, record["status"]) == (1, "failed"), printed


def test_a_refusal_with_another_message_fails(tmp_path: Path) -> None:
    status, printed, record = run(tmp_path, FORBIDDEN, "outputs.C=[x,z]")
    assert (status, record["status"], record["error"]) == (1, "failed", None)
    assert (
        "invalid failed\n  expected to be refused with 'the mesh axis 'x' is used twice', but refused with another "
        "message" in printed
    )
    assert "mesh axis 'z' does not exist; the mesh has x" in printed


def test_a_valid_experiment_runs_and_fails_the_expectation(tmp_path: Path) -> None:
    status, printed, record = run(tmp_path, FORBIDDEN, "outputs.C=[x,null]")
    assert (status, record["status"], record["programs"]["auto"]["status"]) == (1, "failed", "passed")
    assert record["checks"]["invalid"]["refused"] is None
    assert set(record["checks"]) == {"sections", "invalid"}
    assert "but nothing refuses it\n" in printed
    assert "failed: invalid failed, 1 of 1 programs passed" in printed


def test_a_run_that_ends_with_an_error_is_not_called_accepted() -> None:
    verdict = refused.check("the mesh axis 'x' is used twice", None, "the process ended with status 1\nImportError")
    assert verdict.status == "failed"
    assert verdict.reason is not None
    assert verdict.reason.endswith("but the run ended with an error")
    assert verdict.details == ["the process ended with status 1", "ImportError"]


def test_a_program_that_ends_with_an_error_is_not_called_accepted() -> None:
    record = evidence.record(programs={"auto": evidence.died("the process was ended by SIGABRT")})
    flow._hold_to_refusal("used twice", None, record)
    verdict = record.checks.invalid
    assert isinstance(verdict, RefusalVerdict)
    assert verdict.reason == "expected to be refused with 'used twice', but the run ended with an error"
    assert verdict.details == ["the process was ended by SIGABRT"]


def test_without_the_expectation_it_is_invalid(tmp_path: Path) -> None:
    status, printed, record = run(tmp_path, FORBIDDEN, "expect.invalid=null")
    assert (status, record["status"], record["checks"]) == (2, "invalid", {})
    assert "the mesh axis 'x' is used twice" in printed


def test_an_invalid_expected_refusal_is_invalid(tmp_path: Path) -> None:
    status, printed, record = run(tmp_path, FORBIDDEN, "expect.invalid=3")
    assert (status, record["status"]) == (2, "invalid")
    assert "expect.invalid\n  3 is not text; write a part of the message" in printed


def test_every_point_of_a_sweep_is_expected_to_be_refused(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(FORBIDDEN, encoding="utf-8")
    ran = run_command(
        "-m",
        "--config-dir",
        ".",
        "+experiment=mine",
        "outputs.C=[x,x],[x,z],[x]",
        "hydra.sweep.dir=run",
        folder=tmp_path,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert [recorded(tmp_path / "run" / str(i))["status"] for i in range(3)] == ["passed", "failed", "failed"]
    assert "3 points: 1 passed, 2 failed" in ran.stdout
    first = next(line for line in ran.stdout.splitlines() if "passed: point 0:" in line)
    assert "the mesh axis 'x' is used twice" in first


# As tests.


def test_an_expected_refusal_is_one_item_without_a_golden(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("my_conf/experiment/mine.yaml", FORBIDDEN)
    printed = project.pytest("--experiments", "my_conf", "-v", status=0)
    assert "my_conf/experiment/mine.yaml::invalid PASSED" in printed
    assert "1 passed" in printed
    assert not project.goldens.exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FORBIDDEN.replace("[x, x]", "[x, null]"), "but nothing refuses it"),
        (FORBIDDEN.replace("[x, x]", "[x, z]"), "mesh axis 'z' does not exist"),
    ],
)
def test_the_item_fails_without_the_expected_refusal(tmp_path: Path, text: str, reason: str) -> None:
    project = Project(tmp_path)
    project.write("my_conf/experiment/mine.yaml", text)
    printed = project.pytest("--experiments", "my_conf", status=1)
    assert "FAILED my_conf/experiment/mine.yaml::invalid" in printed
    assert "mine: invalid failed\n  expected to be refused with 'the mesh axis 'x' is used twice'" in printed
    assert reason in printed
    assert "to run it: python -m runner --config-dir my_conf +experiment=mine\n" in printed


def test_an_invalid_expected_refusal_is_a_collection_error(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("my_conf/experiment/mine.yaml", FORBIDDEN.replace("the mesh axis 'x' is used twice", "3"))
    printed = project.pytest("--experiments", "my_conf", status=2)
    assert "expect.invalid\n  3 is not text; write a part of the message that refuses the experiment" in printed


def test_the_shipped_refusals_are_listed() -> None:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "conf" / "experiment").glob("*.yaml")}
    expecting = {name for name, text in texts.items() if (yaml.safe_load(text).get("expect") or {}).get("invalid")}
    assert set(REFUSED) == expecting != set()
