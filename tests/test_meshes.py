"""Meshes: the position of each device in them, and axes of size 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.app.flow.recording import modes
from runner.base.faults import InvalidExperiment, key_text
from runner.base.layout import Mesh
from runner.compiled.estimate.links import Links
from runner.experiment import enumeration
from runner.experiment.arrays import read_mesh
from runner.experiment.hardware import Hardware, Torus
from runner.reports.record.measures import counts
from runner.reports.record.model import CompiledProgram
from tests.command import alone, recorded, run_command
from tests.harness import experiment, run

GOOD = """\
name: mine
mesh: {axes: [x, y], shape: [2, 2]}
dims: {I: 8, J: 8}
arrays:
  A: {shape: [I, J], spec: [x, y]}
graph: {C: "sum(A, axis=1)"}
per_device: {C: "psum(sum(A, axis=1), 'y')"}
outputs: {C: [x]}
expect: {collectives: {all-reduce: 1}}
"""


def ordered(devices: str, **keys: str) -> str:
    text = GOOD.replace("shape: [2, 2]}", f"shape: [2, 2], devices: {devices}}}")
    return text + "".join(f"{key}: {value}\n" for key, value in keys.items())


@pytest.mark.parametrize("devices", ["[0, 2, 3, 1]", "[[0, 2], [3, 1]]"])
def test_the_devices_stand_in_the_mesh_where_the_file_says(tmp_path: Path, devices: str) -> None:
    outcome = run(ordered(devices), tmp_path)
    assert outcome.record.status == "passed"
    for name, program in outcome.record.compiled.items():
        if name == "vmap":
            continue
        held = {shard.device: shard.index for shard in program.outputs["C"].shards or ()}
        assert held == {0: [[0, 4]], 2: [[0, 4]], 3: [[4, 8]], 1: [[4, 8]]}
        assert [shard.axes for shard in program.collectives or ()] == [["y"]]
        assert "jax.sharding.Mesh(grid" in outcome.sources[name]


def test_there_may_be_more_devices_than_the_mesh_has(tmp_path: Path) -> None:
    outcome = run(ordered("[7, 2, 0, 5]", target="{devices: 8}"), tmp_path)
    assert outcome.record.status == "passed"
    assert [shard.device for shard in outcome.record.compiled["auto"].outputs["C"].shards or ()] == [7, 2, 0, 5]


@pytest.mark.in_turn
def test_a_program_with_an_order_of_devices_runs_alone(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\n" + GOOD)
    overrides = ("+experiment=mine", "mesh.devices=[3,1,0,2]", "program=shard_map", "hydra.run.dir=out")
    done = run_command(f"--config-dir={tmp_path}", *overrides, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "C" in alone(tmp_path, "out/program_shard_map.py")
    assert [shard["device"] for shard in recorded(tmp_path / "out")["arrays"]["A"]["shards"]] == [3, 1, 0, 2]


@pytest.mark.parametrize(
    ("devices", "says"),
    [
        ([0, 1], "2 devices, but the mesh has 2 × 2 = 4"),
        ([[0, 1, 2, 3]], "1 × 4 = 4 devices, but the mesh has 2 × 2 = 4"),
        ([0, 1, 2, 2], "device 2 appears twice in the mesh, at 2 and at 3"),
        ([0, 1, 2, -1], "-1 is not the number of a device; the first is 0"),
        ([0, 1, 2, 1.5], "1.5 is not the number of a device; the first is 0"),
    ],
)
def test_devices_that_make_no_mesh_are_refused(devices: Any, says: str) -> None:
    with pytest.raises(InvalidExperiment) as caught:
        read_mesh({"mesh": {"axes": ["x", "y"], "shape": [2, 2], "devices": devices}})
    assert (key_text(caught.value.fault.key), caught.value.fault.message) == ("mesh.devices", says)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"target": "{devices: 4}"}, "there is no device 5; the last one is 3"),
        ({"target": '{topology: "v5e:2x2"}'}, "there is no device 5; the last one is 3"),
        (
            {"hardware": "{name: mine, torus: {dimensions: 2, bandwidth: 1e9}}"},
            "the estimate for mine is of 4 devices, 0 to 3",
        ),
    ],
)
def test_devices_that_are_not_there_are_refused(keys: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidExperiment, match=says):
        experiment(ordered("[0, 1, 2, 5]", **keys))


def test_an_estimate_places_devices_by_their_ids() -> None:
    torus = Torus(dimensions=1, bandwidth=1e9, latency=0.0, ring=None, per_chip=1, chip_bandwidth=1.0)
    hardware = Hardware("line", {}, None, None, torus, None, 1, (4,))

    def seconds(devices: tuple[int, ...] | None) -> float:
        links = Links(hardware, Mesh(("x", "y"), (2, 2), devices))
        return links.permute([(0, 1)], 1000).seconds

    # There are three links from device 0 to device 3 and one from 0 to 1; a message passes each once.
    assert seconds(None) == seconds((0, 1, 2, 3)) == 1e-6
    over = Links(hardware, Mesh(("x", "y"), (2, 2), (0, 3, 1, 2))).permute([(0, 1)], 1000).over
    assert over == "3 hops of the torus"


def test_two_orders_of_devices_are_two_points_of_a_sweep() -> None:
    def identity(devices: list[int] | None) -> str:
        return enumeration.identity({"mesh": {"axes": ["x"], "shape": [2], "devices": devices}})

    assert identity(None) != identity([1, 0])


def test_a_collective_over_axes_of_size_1_counts_as_nothing(tmp_path: Path) -> None:
    text = GOOD.replace("shape: [2, 2]", "shape: [4, 1]")
    text = text.replace(
        "psum(sum(A, axis=1), 'y')", "sum(all_gather(A, 'y', axis=1, tiled=True, to='invarying'), axis=1)"
    )
    text = text.replace("{collectives: {all-reduce: 1}}", "{no_collectives: true, lowered: {no_collectives: true}}")
    outcome = run(text, tmp_path)
    assert outcome.record.status == "passed"
    program = outcome.record.compiled["shard_map"]
    assert isinstance(program, CompiledProgram)
    (asked,) = program.lowered or [None]
    assert asked is not None
    assert (asked.kind, asked.alone, asked.bytes_sent) == ("all-gather", True, 0)
    # XLA for CPUs keeps a gather over one device.
    (kept,) = program.collectives or [None]
    assert kept is not None
    assert (kept.kind, kept.alone, kept.bytes_sent) == ("all-gather", True, 0)
    assert counts(program) == {}
    assert program.bytes_sent == 0
    (mode,) = modes({"shard_map": program}, tmp_path)
    assert (mode.communicated_by, mode.bytes_sent) == ([], 0)


def test_an_expectation_says_that_what_is_alone_does_not_count(tmp_path: Path) -> None:
    text = GOOD.replace("shape: [2, 2]", "shape: [4, 1]").replace("all-reduce: 1", "all-gather: 1")
    text = text.replace(
        "psum(sum(A, axis=1), 'y')", "sum(all_gather(A, 'y', axis=1, tiled=True, to='invarying'), axis=1)"
    )
    outcome = run(text + "program: shard_map\n", tmp_path)
    verdict = outcome.record.programs["shard_map"].checks.get("collectives")
    assert verdict is not None
    assert verdict.status == "failed"
    assert "no other device" in str(verdict)
    assert "it moves nothing, and does not count" in str(verdict)


def test_a_collective_among_several_is_not_alone(tmp_path: Path) -> None:
    outcome = run(GOOD, tmp_path)
    for name, program in outcome.record.compiled.items():
        if name != "vmap":
            assert [entry.alone for entry in program.collectives or ()] == [False]
