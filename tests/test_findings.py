"""What each device holds in the record, from the worker's events and without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.app.flow.findings import Findings
from runner.base.layout import Spec, Typed
from runner.experiment import data
from runner.experiment.program import Program
from runner.link import handover
from runner.link.events import Compilation, Devices, Finished, OutputTold, Ran, Types
from runner.link.steps import Step
from runner.reports.record import record
from runner.reports.record.model import Held, ProgramRecord, Shard
from runner.reports.record.verdicts import Checks, DecidingLine, Undecided
from tests.evidence import timing
from tests.harness import experiment, run

TEXT = """
arrays:
  A: {shape: [4, 2], init: arange(8), spec: [x, null]}
graph: {C: A + 1}
per_device: {C: A + 1}
outputs: {C: [x, null]}
"""
DEVICES = [6, 2, 0, 4]
"""The devices of the 2 by 2 mesh in row-major order: neither their positions nor in order."""


JAX = "0.13.0"


def record_of(folder: Path, *finished: Finished, text: str = TEXT, **changes: Any) -> Any:
    """Return the record after a worker reported what it `finished`."""
    given = experiment(text, **changes)
    outcome = record.started("test", ())
    findings = Findings(given, data.make(given, folder), outcome)
    types = Types(
        unsupported={},
        outputs={"C": Typed((4, 2), "float32")},
        nodes={},
        floats={},
        target=Devices(platform="cpu", devices=given.mesh.size, kind="cpu", topology=None),
        jax=JAX,
        jaxlib=JAX,
    )
    findings.consult_oracles(types, folder)
    for event in finished:
        findings.add(event, folder)
    findings.conclude(folder, {})
    return outcome


def finished(folder: Path, program: str, devices: list[int], *, vmap: bool = False, off: float = 0) -> Finished:
    """Return a correct program with the changes in `off`: the event, and its file."""
    rows = [(0, 2), (0, 2), (2, 4), (2, 4)]
    right = np.arange(8, dtype=np.float32).reshape(4, 2) + np.float32(1 + off)
    handover.leave(folder / f"{program}.bin", [right[:2], right[2:]])
    (folder / f"hlo_{program}.txt").write_text("")
    # JAX reports the shards in its own order.
    shards = [(device, None if vmap else (rows[i], (0, 2)), i // 2) for i, device in enumerate(devices)][::-1]
    operands = [(device, (rows[i], (0, 2))) for i, device in enumerate(devices)][::-1]
    ran = Ran(
        device_ids=devices,
        outputs={"C": OutputTold(dtype="float32", shape=[4, 2], spec=Spec.of(["x"]), shards=shards)},
        operands={} if vmap else {"A": operands},
        stderr="",
        compilation=Compilation(memory=None, cost=None, timing=timing()),
    )
    return Finished(step=Step(Program(program)), result=ran)


def shard(device: int, start: int, stop: int) -> Held:
    return Held(device=device, index=[[start, stop], [0, 2]], shape=[stop - start, 2])


BY_DEVICE = [shard(6, 0, 2), shard(2, 0, 2), shard(0, 2, 4), shard(4, 2, 4)]
BY_POSITION = [shard(0, 0, 2), shard(1, 0, 2), shard(2, 2, 4), shard(3, 2, 4)]


def test_the_shards_are_those_of_the_devices_that_ran_in_the_order_of_the_mesh(tmp_path: Path) -> None:
    outcome = record_of(tmp_path, finished(tmp_path, "auto", DEVICES))
    assert outcome.status == "passed"
    array, output = outcome.arrays["A"], outcome.programs["auto"].outputs["C"]
    assert (array.shards_from, array.shards) == ("auto", BY_DEVICE)
    assert (output.shards_from, output.shards) == ("auto", BY_DEVICE)


def test_where_no_program_ran_on_the_mesh_the_shards_are_those_of_the_spec(tmp_path: Path) -> None:
    outcome = record_of(tmp_path, finished(tmp_path, "vmap", [0, 1, 2, 3], vmap=True))
    array, output = outcome.arrays["A"], outcome.programs["vmap"].outputs["C"]
    assert (array.shards_from, array.shards) == ("spec", BY_POSITION)
    assert (output.shards_from, output.shards) == ("spec", BY_POSITION)
    failed = Finished(step=Step(Program.AUTO), error="broken")
    assert record_of(tmp_path, failed).arrays["A"].shards_from == "spec"


def test_a_program_that_failed_leaves_its_error_only(tmp_path: Path) -> None:
    outcome = record_of(tmp_path, Finished(step=Step(Program.AUTO), error="broken"))
    assert outcome.programs["auto"] == ProgramRecord(status="error", error="broken", checks=Checks())


@pytest.mark.parametrize(("devices", "listed"), [(64, True), (65, False)])
def test_shards_on_too_many_devices_are_not_listed(tmp_path: Path, devices: int, listed: bool) -> None:
    text = TEXT.replace("[x, null]", "[null, null]")
    outcome = record_of(tmp_path, text=text, mesh={"axes": ["x"], "shape": [devices]})
    shards = outcome.arrays["A"].shards
    assert (len(shards) == devices) if listed else shards is None
    # The picture still has them, by index range.
    (_, output) = outcome.pictures.arrays
    assert output.shards == (Shard(((0, 4), (0, 2)), tuple(range(devices))),)


def test_a_run_with_only_known_failures_is_known(tmp_path: Path) -> None:
    events = [finished(tmp_path, "auto", DEVICES, off=1), finished(tmp_path, "shard_map", DEVICES)]
    outcome = record_of(tmp_path, *events, expect={"wrong": {"auto": ["C"]}})
    auto, shard_map = (outcome.programs[program] for program in ("auto", "shard_map"))
    assert (outcome.status, auto.status, shard_map.status) == ("known", "known", "passed")
    assert auto.checks.value.diagnosis == ["shard_map and the oracle agree, auto alone is wrong: the compiler"]
    assert auto.checks.agreement.status == "not_run"


def test_a_known_failure_that_passes_fails_the_run_without_blame(tmp_path: Path) -> None:
    events = [finished(tmp_path, "auto", DEVICES), finished(tmp_path, "shard_map", DEVICES)]
    outcome = record_of(tmp_path, *events, expect={"wrong": {"auto": ["C"]}})
    auto = outcome.programs["auto"]
    assert (outcome.status, auto.status, outcome.programs["shard_map"].status) == (
        "failed",
        "failed",
        "passed",
    )
    assert auto.checks.value.outputs["C"].reason.startswith(f"it is right with jax {JAX}, but expect.wrong")
    assert auto.checks.value.diagnosis == []


def test_a_known_failure_of_one_program_excuses_no_other(tmp_path: Path) -> None:
    events = [finished(tmp_path, "auto", DEVICES, off=1), finished(tmp_path, "shard_map", DEVICES, off=1)]
    outcome = record_of(tmp_path, *events, expect={"wrong": {"auto": ["C"]}})
    assert [outcome.programs[program].status for program in ("auto", "shard_map")] == ["known", "failed"]
    assert outcome.status == "failed"


# Weak checks.


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("A * 0", "the reference of 'C' is all zero, which proves nothing"),
        ("A * 0 * inf", "the reference of 'C' is NaN everywhere, which proves nothing"),
        ("A * 0 - inf", "the reference of 'C' is infinite everywhere, which proves nothing"),
        ("A * 0 + 3", "the reference of 'C' has one value everywhere, which proves little"),
    ],
)
def test_a_reference_that_proves_nothing_is_a_warning(tmp_path: Path, line: str, warning: str) -> None:
    assert record_of(tmp_path, text=TEXT, graph={"C": line}, per_device={"C": line}).warnings == [warning]


def test_an_output_that_depends_on_no_array_is_a_warning_for_each_section(tmp_path: Path) -> None:
    lines: dict[str, Any] = {"graph": {"b": "arange(8)", "C": "reshape(b, (4, 2)) * 1.0"}, "per_device": {"C": "A + 1"}}
    assert record_of(tmp_path, **lines).warnings == ["'C' of graph does not depend on any array"]
    # That it is zero everywhere says no more.
    assert record_of(tmp_path, graph={"C": "zeros((4, 2))"}, per_device={"C": "A + 1"}).warnings == [
        "'C' of graph does not depend on any array"
    ]
    lines = {"graph": {"C": "A + 1"}, "per_device": {"C": "reshape(arange(4), (2, 2)) + 0.5 * axis_index('x')"}}
    assert record_of(tmp_path, **lines).warnings == ["'C' of per_device does not depend on any array"]


@pytest.mark.parametrize(
    "line",
    ["A + 1", "A * 1e-30", "A - A * (1 - 1e-7)", "where(A > 6, A, 0)", "where(A > 6, A, inf)", "A / A", "log(A - 1)"],
)
def test_partly_small_zero_or_infinite_references_are_no_warning(tmp_path: Path, line: str) -> None:
    assert record_of(tmp_path, graph={"C": line}, per_device={"C": line}).warnings == []


# Decisions that rounding may change.

EDGE = TEXT.replace("arange(8)", "arange(8) / 10")


def test_what_is_undecided_is_in_the_record_with_its_place(tmp_path: Path) -> None:
    lines = {"f": "floor(A * 10 + 1)", "C": "f * 1"}
    outcome = record_of(tmp_path, finished(tmp_path, "auto", DEVICES), text=EDGE, graph=lines, per_device=lines)
    verdict = outcome.programs["auto"].checks.value.outputs["C"]
    # Nothing but a twin, which does not run here, proves an output of which most is undecided.
    assert (verdict.status, verdict.twin) == ("weak", None)
    place = DecidingLine(line="f", operation="floor", elements=8)
    assert verdict.undecided == Undecided(count=16, between=0, excused=0, places=[place])
    assert verdict.of == 16


@pytest.mark.in_turn
@pytest.mark.parametrize("edge", ["f > 3", "where(f > 3, A, -inf)", "astype(where(f > 3, 200, 3), 'uint8')"])
def test_what_is_undecided_may_be_of_any_dtype(tmp_path: Path, edge: str) -> None:
    # 0.3 times 10 in float32, which float64 knows to be more than 3.
    lines = {"f": "A * 10", "C": edge}
    checks = run(EDGE, tmp_path, graph=lines, per_device=lines).checks["auto"]
    assert (checks.value.status, checks.agreement.status) == ("passed", "passed")
    assert checks.value.outputs["C"].undecided.count == 2
    # 3 is exact in every dtype; seven times a seventh of it may round differently even in float64.
    exact = {"f": "A * 1", "C": edge}
    held = run(TEXT, tmp_path, graph=exact, per_device=exact).sections
    assert held is not None
    assert held.outputs["C"].undecided is None
    lines = {"f": "A / 7 * 7", "C": edge}
    held = run(TEXT, tmp_path, graph=lines, per_device=lines).sections
    assert held is not None
    assert held.status == "passed"
    places = [DecidingLine(section=name, line="C", operation=">", elements=1) for name in ("graph", "per_device")]
    assert held.outputs["C"].undecided == Undecided(count=2, between=0, excused=0, places=places)
