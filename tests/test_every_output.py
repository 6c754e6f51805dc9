"""Each check examines every output, operand, device and number, not only the first or all but the last."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from runner.base.faults import InvalidExperiment
from runner.base.layout import Layout
from runner.checks.kinds import layout, pinned, replicas
from runner.checks.kinds.layout import LayoutVerdict
from runner.checks.kinds.replicas import ReplicasVerdict
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.link.target import DeviceShard, Output, ProgramRun
from runner.programs.writers import WRITERS
from runner.reports.record.verdicts import OutputVerdict
from tests import harness
from tests.evidence import ran

IDS = [7, 5, 3, 1]
"""The devices of the mesh in row-major order: their ids are not their positions."""

TEXT = """
arrays:
  A: {shape: [4, 4], spec: [x, y]}
  B: {shape: [4], spec: [y]}
  E: {shape: [4], spec: []}
graph: {C: A + 0, D: B + 0, F: E + 0}
outputs: {C: [x, y], D: [y], F: []}
"""
# C has a part on each device, D two copies of two, F four of one.
SHAPES = {"C": (4, 4), "D": (4,), "F": (4,)}


@cache
def given() -> Experiment:
    return harness.experiment(TEXT)


def promised(name: str) -> Layout:
    return Layout(given().mesh, SHAPES[name], given().outputs[name])


def run(program: str = "constraint") -> ProgramRun:
    """Return the result of a correct program; every element is its index in the whole array."""
    outputs = {}
    for name, shape in SHAPES.items():
        lies, whole = promised(name), np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        blocks = list(dict.fromkeys(lies.block(position) for position in range(4)))
        held = [
            DeviceShard(i, IDS[i], lies.ranges(i), blocks.index(lies.block(i)), whole[lies.index(i)].copy())
            for i in range(4)
        ]
        outputs[name] = Output("float32", shape, None, tuple(held))
    operands = {array.name: [(IDS[i], array.layout.ranges(i)) for i in range(4)] for array in given().arrays}
    return ProgramRun(Program(program), outputs=outputs, event=ran(IDS, operands=operands))


def changed(ran: ProgramRun, name: str, position: int, **fields: Any) -> ProgramRun:
    """Return the same with another value on one device of one output."""
    held = list(ran.outputs[name].held)
    held[position] = replace(held[position], **fields)
    ran.outputs[name] = replace(ran.outputs[name], held=tuple(held))
    return ran


def context(**more: Any) -> Any:
    """Return the parts of a run's context that these checks use."""
    parts = {"experiment": given(), "layout": promised, "released": {}, **more}
    return SimpleNamespace(
        knows=lambda *_: None, outputs={name: (shape, "float32") for name, shape in SHAPES.items()}, **parts
    )


# replicas


def test_all_copies_are_counted() -> None:
    assert replicas.check(context(), run()) == ReplicasVerdict(status="passed", copies=0 + 2 + 3)


@pytest.mark.parametrize(
    ("name", "position", "reason"),
    [
        ("D", 2, "D[0:2] on device 3 differs from device 7"),
        ("D", 3, "D[2:4] on device 1 differs from device 5"),
        ("F", 1, "F[0:4] on device 5 differs from device 7"),
        ("F", 3, "F[0:4] on device 1 differs from device 7"),
    ],
)
def test_a_copy_that_differs_is_found_in_every_output_and_on_every_device(
    name: str, position: int, reason: str
) -> None:
    verdict = replicas.check(context(), changed(run(), name, position, copy=9))
    outputs = {other: OutputVerdict(status="failed" if other == name else "passed") for other in SHAPES}
    assert verdict == ReplicasVerdict(status="failed", reason=reason, wrong=1, copies=5, outputs=outputs)


def test_every_copy_that_differs_is_named() -> None:
    ran = changed(changed(run(), "F", 1, copy=8), "F", 3, copy=9)
    verdict = replicas.check(context(), changed(ran, "D", 2, copy=9))
    assert verdict.reason == ("D[0:2] on device 3 differs from device 7; F[0:4] on devices 1,5 differs from device 7")
    assert verdict.wrong == 2


def copies_of(outputs: int, devices: int) -> ProgramRun:
    """Return outputs whose values differ between the first device and all others."""
    held = tuple(DeviceShard(i, i, ((0, 2),), i, np.full(2, i)) for i in range(devices))
    return ProgramRun(Program.AUTO, outputs={f"o{n}": Output("float32", (2,), None, held) for n in range(outputs)})


@pytest.mark.parametrize(("devices", "range_text"), [(9, "devices 1-8"), (3, "devices 1,2"), (2, "device 1")])
def test_many_devices_are_named_as_a_range(devices: int, range_text: str) -> None:
    verdict = replicas.check(context(), copies_of(1, devices))
    assert verdict.reason == f"o0[0:2] on {range_text} differs from device 0"


@pytest.mark.parametrize(("outputs", "named"), [(4, 4), (5, 4)])
def test_many_outputs_are_named_in_part_and_counted_in_full(outputs: int, named: int) -> None:
    verdict = replicas.check(context(), copies_of(outputs, 2))
    assert verdict.reason == "; ".join(f"o{n}[0:2] on device 1 differs from device 0" for n in range(named))
    assert verdict.wrong == outputs


# layout


def test_outputs_in_their_layouts_pass() -> None:
    assert layout.check(context(), run()) == LayoutVerdict(status="passed")


@pytest.mark.parametrize("name", ["A", "B", "E"])
@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("program", ["auto", "constraint", "explicit", "shard_map"])
def test_the_layout_of_every_operand_on_every_device_is_checked(name: str, position: int, program: str) -> None:
    ran = run(program)
    device, ranges = ran.ran.operands[name][position]
    elsewhere = tuple((start + 1, stop) for start, stop in ranges)
    ran.ran.operands[name][position] = (device, elsewhere)
    verdict: Any = layout.check(context(), ran)
    assert (verdict.status, verdict.wrong) == ("failed", 1)
    assert verdict.reason.startswith(f"device {IDS[position]} holds {name}[")


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("program", ["constraint", "explicit", "shard_map"])
def test_the_layout_of_every_output_on_every_device_is_checked(name: str, position: int, program: str) -> None:
    whole = tuple((0, size + 1) for size in SHAPES[name])
    verdict: Any = layout.check(context(), changed(run(program), name, position, ranges=whole))
    assert (verdict.status, verdict.wrong) == ("failed", 1)
    assert verdict.reason.startswith(f"device {IDS[position]} holds {name}[")


def test_many_misplaced_shards_are_named_in_part_and_counted_in_full() -> None:
    ran = run()
    for position in range(4):
        changed(ran, "D", position, ranges=((0, 1),))
    changed(ran, "F", 2, ranges=((0, 1),))
    verdict: Any = layout.check(context(), ran)
    assert verdict.reason.count("; ") == 3
    assert verdict.wrong == 5


# values


def pins(**values: Any) -> Any:
    """Return a context that pins these values."""
    return context(experiment=harness.experiment(TEXT, expect={"values": values}))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"C": [[0, 1], [4, 5]], "D": [0, 1, 2, 4]}, "D[3] is 3.0, but expect.values pins 4"),
        ({"C": [[0, 1], [4, 6]], "D": [0, 1, 2, 3]}, "C[1, 1] is 5.0, but expect.values pins 6"),
        ({"C": [[0]], "D": [0], "F": [0, 2]}, "F[1] is 1.0, but expect.values pins 2"),
    ],
)
def test_every_pinned_number_is_compared(values: Any, reason: str) -> None:
    verdict: Any = pinned.check(pins(**values), run())
    assert (verdict.status, verdict.reason, verdict.max_abs_error) == ("failed", reason, 1.0)
    assert list(verdict.outputs) == list(values)


def test_correct_pinned_numbers_pass() -> None:
    verdict: Any = pinned.check(pins(C=np.arange(16).reshape(4, 4).tolist(), D=[0, 1, 2, 3], F=[0]), run())
    assert (verdict.status, verdict.max_abs_error) == ("passed", 0.0)
    assert [output.compared for output in verdict.outputs.values()] == [[4, 4], [4], [1]]


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"C": [[0]], "D": [0, 1, 2, 3, 4]}, "D"),
        ({"C": [[0], [1], [2], [3], [4]]}, "C"),
        ({"C": [[0, 1, 2, 3, 4]]}, "C"),
        ({"C": [0]}, "C"),
        ({"D": [[0]]}, "D"),
        ({"D": [0], "F": [0, 1, 2, 3, 4]}, "F"),
    ],
)
def test_every_pinned_block_must_fit_into_its_output(values: Any, key: str) -> None:
    with pytest.raises(InvalidExperiment, match=rf"^expect\.values\.{key}: the pinned values have shape "):
        pinned.fit(pins(**values))


@pytest.mark.parametrize("values", [{"C": [[0] * 4] * 4, "D": [0] * 4}, {"C": [[0]]}, {"C": [[0, 0]], "F": [0, 0]}, {}])
def test_a_pinned_block_may_fill_its_output(values: Any) -> None:
    pinned.fit(pins(**values))


def test_released_pins_need_not_fit() -> None:
    released = pins(D=[0] * 5)
    released.released = {"D": "the file pins them for its own dims.I, which the command line overrides"}
    pinned.fit(released)


def test_numbers_pinned_by_an_override_apply_beside_the_files() -> None:
    mixed = pins(C=[[1]], D=[0, 1])
    mixed.released = pinned.released(["C", "D"], ["dims.I=8", "expect.values.D=[0,1]"])
    verdict: Any = pinned.check(mixed, run())
    assert (verdict.status, list(verdict.outputs)) == ("passed", ["D"])
    assert verdict.note == (
        "C was not compared: the file pins them for its own dims.I, which the command line overrides"
    )


@pytest.mark.parametrize(
    "overrides", [["seed=1", "dims.I=8"], ["program=auto", "seed=1"], ["mesh=x2", "program=auto", "arrays.A.shape=[2]"]]
)
def test_every_override_is_examined(overrides: list[str]) -> None:
    assert set(pinned.released(["C", "D"], overrides)) == {"C", "D"}


# value and agreement


PLANTED = """
arrays:
  A: {shape: [4, 4], init: "arange(1, 17)", spec: [x, y]}
graph: {C: A * 2, D: A * 3, F: A * 4}
per_device: {C: A * 2, D: A * 3, F: A * 4}
outputs: {C: [x, y], D: [x, y], F: [x, y]}
"""


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["C", "D", "F"])
@pytest.mark.parametrize("program", [Program.AUTO, Program.VMAP])
def test_an_output_that_one_program_gets_wrong_is_found_in_all_of_them(
    name: str, program: Program, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = WRITERS[program]

    def write(*arguments: Any) -> str:
        text, planted = re.subn(rf"^( +{name} = .*)$", r"\1 + 1", right(*arguments), count=1, flags=re.MULTILINE)
        assert planted
        return text

    monkeypatch.setitem(WRITERS, program, write)
    outcome = harness.run(PLANTED, tmp_path)
    for other, checks in outcome.checks.items():
        status = "failed" if other == program else "passed"
        assert (checks.value.status, checks.agreement.status) == (status, status), other
    reason = outcome.checks[program].agreement.reason
    assert {*re.findall(rf"{name} differs from (\w+)", reason)} == {*outcome.runs} - {program}
