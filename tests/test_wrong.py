"""Known failures: how `expect.wrong` is read, what passes as known, and what fails nevertheless."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from runner.app.flow import verification
from runner.base.faults import InvalidExperiment, key_text
from runner.base.layout import Typed
from runner.checks import known, oracles
from runner.checks.context import Context
from runner.checks.kinds import agreement, pinned, replicas, value
from runner.checks.reference.arithmetic import ANY
from runner.experiment import data
from runner.experiment.expect import among
from runner.experiment.program import Program
from runner.link.target import DeviceShard, Output, ProgramRun
from runner.reports.record import record
from runner.reports.record.verdicts import AgreementVerdict, Checks, LeftOut
from tests.command import ROOT, run_command
from tests.evidence import ran
from tests.harness import experiment

TEXT = """
arrays:
  A: {shape: [4, 2], init: "arange(8)", spec: [x]}
graph: {C: A * 2, D: A + 1}
per_device: {C: A * 2, D: A + 1}
outputs: {C: [x], D: [x]}
"""

WRONG: dict[str, Any] = {"auto": ["C"]}


def reading(wrong: str, **changes: Any) -> Any:
    """Return the outputs of each program that are known to be wrong, with their versions."""
    return experiment(TEXT, expect={"wrong": yaml.safe_load(wrong)}, **changes).wrong


def context(wrong: Any = WRONG, jax: str = "0.13.0", **expected: Any) -> Context:
    given = experiment(TEXT, expect={"wrong": wrong, **expected})
    outputs: dict[str, Typed] = dict.fromkeys(("C", "D"), Typed((4, 2), "float32"))
    floats = {line: {ANY: "float32"} for line in ("C", "D")}
    consulted = oracles.consult(given, data.make(given, Path()), outputs, {"graph": floats, "per_device": floats})
    consulted.jax = jax
    return consulted


def run(of: Context, program: str, **wrong: Any) -> ProgramRun:
    """Return the result of a program; `wrong` maps an output to a change of the part at a position."""
    assert of.graph is not None
    outputs = {}
    for name in of.outputs:
        held = []
        for position in range(4):
            ranges = of.layout(name).ranges(position)
            part = of.expected("graph", name, position, ranges).astype(np.float32)
            part = wrong.get(name, lambda part, position: part)(part, position)
            held.append(DeviceShard(position, position, ranges, hash(part.tobytes()), part))
        outputs[name] = Output("float32", (4, 2), None, tuple(held))
    return ProgramRun(Program(program), outputs=outputs, event=ran(list(range(4)), operands={}))


def shifted(part: np.ndarray, position: int) -> np.ndarray:
    return part + np.float32(1)


def on_one_device(part: np.ndarray, position: int) -> np.ndarray:
    return part + np.float32(position == 1)


def judged(of: Context, ran: ProgramRun) -> Any:
    pins = pinned.check(of, ran) if of.experiment.values else None
    checks = Checks(value=value.check(of, ran), replicas=replicas.check(of, ran), values=pins)
    return known.judge(of, ran.program, checks)


# Reading.


@pytest.mark.parametrize(
    ("wrong", "auto", "shard_map"),
    [
        ("null", {}, {}),
        ("{}", {}, {}),
        ("{auto: [C]}", {"C": ""}, {}),
        ("{auto: C}", {"C": ""}, {}),
        ("[C, D]", {"C": "", "D": ""}, {"C": "", "D": ""}),
        ('{auto: {C: "<0.12"}, shard_map: [D]}', {"C": "<0.12"}, {"D": ""}),
        ('{C: "<0.12", auto: []}', {}, {"C": "<0.12"}),
        ("{tpu: {auto: [C]}}", {}, {}),
        ("{auto: {cpu: [C], tpu: [D]}}", {"C": ""}, {}),
    ],
)
def test_outputs_are_named_by_program_platform_and_version(wrong: str, auto: Any, shard_map: Any) -> None:
    statuses = reading(wrong)
    assert (statuses["auto"], statuses["shard_map"]) == (auto, shard_map)


@pytest.mark.parametrize(
    ("wrong", "key", "message"),
    [
        ("{atuo: [C]}", "expect.wrong.atuo",
         "'atuo' is neither an output, nor a program or platform; did you mean 'auto'?"),
        ("{auto: [E]}", "expect.wrong.auto[0]",
         "'E' is neither an output, nor a program or platform; the outputs are C, D"),
        ("{auto: 3}", "expect.wrong.auto", "3 is neither an output, nor a program or platform; the outputs are C, D"),
        ("{auto: {C: 0.12}}", "expect.wrong.auto.C",
         "0.12 names no versions of JAX; write '<0.12' or '>=0.10, !=0.11.1'"),
        ("{auto: {C: '0.12'}}", "expect.wrong.auto.C",
         "'0.12' names no versions of JAX; write '<0.12' or '>=0.10, !=0.11.1'"),
        ("{auto: {C: ''}}", "expect.wrong.auto.C",
         "'' names no versions of JAX; write '<0.12' or '>=0.10, !=0.11.1'"),
        ("{tpu: {vmap: [E]}}", "expect.wrong.tpu.vmap[0]",
         "'E' is neither an output, nor a program or platform; the outputs are C, D"),
    ],
)  # fmt: skip
def test_an_invalid_known_failure_is_refused_at_its_key(wrong: str, key: str, message: str) -> None:
    with pytest.raises(InvalidExperiment) as caught:
        reading(wrong, program="shard_map")
    assert (key_text(caught.value.fault.key), caught.value.fault.message) == (key, message)


def test_a_program_that_the_experiment_cannot_have_is_refused() -> None:
    with pytest.raises(InvalidExperiment) as caught:
        reading("{cpu: {vmap: [C]}}", per_device={})
    assert key_text(caught.value.fault.key) == "expect.wrong.cpu.vmap"
    assert caught.value.fault.message == (
        "program 'vmap' is written from per_device, which this experiment does not have; "
        "there are auto, constraint, explicit, derived"
    )


@pytest.mark.parametrize(
    ("version", "versions", "included"),
    [
        ("0.12.0.1", "", True),
        ("0.13.0.dev20270101", "", True),
        ("0.11.2", "<0.12", True),
        ("0.12.0", "<0.12", False),
        ("0.12.0rc1", "<0.12", False),
        ("0.12.0.1", ">=0.12, <0.13", True),
        ("0.13.0.dev20270101", "<0.13", False),
    ],
)  # fmt: skip
def test_a_prerelease_counts_as_its_release(version: str, versions: str, included: bool) -> None:
    assert among(version, versions) is included


# Judging.


def test_a_known_wrong_output_is_known() -> None:
    given = context()
    verdict = judged(given, run(given, "auto", C=shifted)).value
    assert (verdict.status, verdict.outputs["C"].status) == ("known", "known")
    assert verdict.outputs["D"].status == "passed"
    assert (verdict.outputs["C"].wrong, verdict.max_abs_error) == (16, 1.0)


def test_the_same_failure_in_another_program_or_version_fails() -> None:
    given = context()
    assert judged(given, run(given, "constraint", C=shifted)).value.status == "failed"
    given = context({"auto": {"C": "<0.13"}})
    assert judged(given, run(given, "auto", C=shifted)).value.status == "failed"
    assert judged(given, run(given, "auto")).value.status == "passed"


def test_another_wrong_output_fails() -> None:
    given = context()
    verdict = judged(given, run(given, "auto", C=shifted, D=shifted)).value
    assert (verdict.status, verdict.outputs["C"].status) == ("failed", "known")


def test_a_known_wrong_output_that_is_right_fails() -> None:
    given = context()
    verdict = judged(given, run(given, "auto")).value
    assert verdict.status == "failed"
    assert verdict.outputs["C"].reason == (
        "it is right with jax 0.13.0, but expect.wrong lists it as wrong: if JAX is fixed, remove the entry, "
        "or name the versions that are wrong (C: '<0.13.0')"
    )


def test_a_weak_check_does_not_confirm_a_known_failure() -> None:
    given = context()
    verdict = value.check(given, run(given, "auto"))
    weak = replace(verdict.outputs["C"], status="weak", reason="it would not notice")
    checks = Checks(value=replace(verdict, outputs={**verdict.outputs, "C": weak}))
    judged: Any = known.judge(given, Program.AUTO, checks)
    assert judged.value.status == "failed"


def test_copies_that_differ_are_known_where_their_output_is() -> None:
    given = context()
    checks = judged(given, run(given, "auto", C=on_one_device))
    assert (checks.replicas.status, checks.value.status) == ("known", "known")
    assert judged(given, run(given, "auto", C=on_one_device, D=on_one_device)).replicas.status == "failed"
    # Equality of the programs proves nothing: the value decides.
    assert judged(given, run(given, "auto", C=shifted)).replicas.status == "passed"


def test_pinned_numbers_are_known_to_be_missed_where_their_output_is() -> None:
    given = context(values={"C": [[0, 2]]})
    checks = judged(given, run(given, "auto", C=shifted))
    assert (checks.values.status, checks.values.reason) == (
        "known",
        "C[0, 0] is 1.0, but expect.values pins 0",
    )
    given = context(values={"C": [[0, 2]], "D": [[7]]})
    assert judged(given, run(given, "auto", C=shifted)).values.status == "failed"


def test_agreement_compares_only_outputs_not_known_to_be_wrong() -> None:
    given = context()
    runs = [run(given, "auto", C=shifted), run(given, "explicit"), run(given, "shard_map")]
    auto, explicit = (agreement.check(given, ran, [other for other in runs if other is not ran]) for ran in runs[:2])
    others = ["explicit", "shard_map"]
    assert auto == AgreementVerdict(status="passed", max_abs_error=0.0, others=others, left_out={"C": ["auto"]})
    assert isinstance(explicit, AgreementVerdict)
    assert (explicit.status, explicit.left_out) == ("passed", {"C": ["auto"]})
    runs[2] = run(given, "shard_map", C=shifted)
    assert agreement.check(given, runs[1], [runs[0], runs[2]]).reason == "C differs from shard_map at 8 of 8 elements"
    runs[0] = run(given, "auto", C=shifted, D=shifted)
    assert agreement.check(given, runs[1], runs[:1]).reason == "D differs from auto at 8 of 8 elements"


def test_an_agreement_that_leaves_out_everything_is_not_run() -> None:
    given = context({"auto": ["C", "D"], "explicit": ["D"]})
    assert agreement.check(given, run(given, "auto"), [run(given, "explicit")]) == LeftOut(
        reason="C of auto; D of auto and explicit: known to be wrong (expect.wrong)",
        left_out={"C": ["auto"], "D": ["auto", "explicit"]},
    )


def test_a_known_failure_does_not_fail_a_run() -> None:
    assert record.worst(["passed", "known"]) == "known"
    assert record.worst(["known", "weak"]) == "weak"
    assert record.exit_status("known") == 0


def test_known_failures_apply_at_verify_dims() -> None:
    text = TEXT.replace("arrays:", "dims: {N: 4}\nverify_dims: {N: 2}\narrays:").replace("[4, 2]", "[4, N]")
    expected = {"wrong": WRONG, "weak": ["D"], "sections": {"D": 1e-3}}
    text = text.replace("arange(8)", "normal()")
    smaller = verification.smaller(experiment(text, expect=expected, target={"topology": "v5e:2x2"}))
    assert not isinstance(smaller, str)
    assert (smaller.wrong[Program.AUTO], smaller.weak, smaller.approximate) == ({"C": ""}, {"D"}, {"D": 1e-3})


# The known ones.

ANSWERS = ROOT / "experiments" / "wrong_answers"


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", sorted(path.stem for path in (ANSWERS / "experiment").glob("*.yaml")))
def test_xlas_known_wrong_answers_are_still_wrong(tmp_path: Path, name: str) -> None:
    ran = run_command("--config-dir", str(ANSWERS), f"+experiment={name}", "hydra.run.dir=run", folder=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result: Any = record.read(tmp_path / "run")
    expected = yaml.safe_load((ANSWERS / "experiment" / f"{name}.yaml").read_text(encoding="utf-8"))["expect"]["wrong"]
    jax = result.environment.jax
    wrong = {
        program: [output for output in outputs if isinstance(outputs, list) or among(jax, outputs[output])]
        for program, outputs in expected.items()
    }
    known_to_be = {
        program: [name for name, verdict in result.checks.value.outputs.items() if verdict.status == "known"]
        for program, result in result.programs.items()
    }
    assert {program: names for program, names in known_to_be.items() if names} == {
        program: names for program, names in wrong.items() if names
    }
    assert result.status == ("known" if any(wrong.values()) else "passed")
