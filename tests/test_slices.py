"""Several slices of TPUs: the mesh over them, and what the compiler sends between them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from runner.base.faults import InvalidExperiment, key_text
from runner.base.layout import Mesh
from runner.compiled.evidence import collectives, hlo, megascale
from runner.compiled.evidence.nodes import Origins
from runner.experiment import topology
from runner.experiment.hardware import Torus
from runner.experiment.program import Program
from tests import harness

IDS = [100_000, 100_001, 100_003, 100_002, 200_000, 200_001, 200_003, 200_002]
"""The devices of two slices of v5e:2x2 in a mesh of 2 × 4, as JAX orders them."""


@pytest.mark.parametrize(
    ("slices", "shape", "over"),
    [(2, (2, 4), (2, 1)), (4, (2, 8), (2, 2)), (2, (1, 8), (1, 2)), (4, (2, 3, 2), (2, 1, 2)), (2, (3, 3), None)],
)
def test_the_first_axes_of_a_mesh_go_over_the_network(
    slices: int, shape: tuple[int, ...], over: tuple[int, ...] | None
) -> None:
    assert topology.parse("v5e:2x2", "cpu", slices).over_network(shape) == over


def test_slices_are_several_of_one_topology() -> None:
    slices = topology.parse("v5p:2x2x1", "cpu", 3)
    assert (slices.name, slices.devices) == ("3 × v5p:2x2x1", 12)
    assert slices.arguments == {"platform": "tpu", "topology_name": "v5p:2x2x1", "num_slices": 3}
    assert "num_slices" not in topology.parse("v5p:2x2x1", "cpu").arguments


TEXT = """
name: mine
mesh: {axes: [s, x], shape: [2, 4]}
dims: {I: 1024, J: 1024}
arrays: {A: {shape: [I, J], spec: [s, x]}}
graph: {C: "sum(A)"}
outputs: {C: []}
"""


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        (
            {"target": {"slices": 2}},
            "target.slices",
            "2 is not a number of slices here; only a topology that is not here has ",
        ),
        (
            {"target": {"topology": "v5e:2x2", "slices": 0}},
            "target.slices",
            "0 is not a number of slices here; write an integer of at least",
        ),
        ({"target": {"platform": "gpu", "topology": "1x1x8", "slices": 2}}, "target.slices", "GPUs have no slices"),
        (
            {"target": {"topology": "v5e:2x2", "slices": 3}, "mesh": {"axes": ["s", "x"], "shape": [2, 4]}},
            "mesh.shape",
            "the mesh s=2 × x=4 has 8 devices, but 3 × v5e:2x2 has 12; a mesh takes all of them: mesh.shape=[3,4]",
        ),
        (
            {"target": {"topology": "v5e:2x2", "slices": 2}, "hardware": {"name": "mine", "slices": 4}},
            "hardware.slices",
            "4 slices, but the target has 2; leave it out",
        ),
    ],
)
def test_impossible_slices_are_refused(changes: dict[str, object], key: str, message: str) -> None:
    with pytest.raises(InvalidExperiment) as caught:
        harness.experiment(TEXT, **changes)
    assert key_text(caught.value.fault.key) == key
    assert message in caught.value.fault.message


def test_the_programs_make_a_mesh_of_slices(tmp_path: Path) -> None:
    from runner.programs import absent_hardware

    experiment = harness.experiment(TEXT, target={"topology": "v5e:2x2", "slices": 2})
    text = absent_hardware.mesh_functions(experiment, Program.AUTO)
    assert "mesh_utils.create_hybrid_device_mesh((1, 4), (2, 1), devices or topology())" in text


def test_an_estimate_has_the_slices_of_the_target() -> None:
    torus = {"dimensions": 2, "bandwidth": 1e9}
    hardware = {"name": "mine", "torus": torus, "network": {"bandwidth": 1e8}}
    experiment = harness.experiment(TEXT, target={"topology": "v5e:2x2", "slices": 2}, hardware=hardware)
    assert experiment.hardware is not None
    assert isinstance(experiment.hardware.links, Torus)
    assert (experiment.hardware.slices, experiment.hardware.shape) == (2, (2, 2))


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{1,2}x{0:3}", [[0, 4], [1, 5], [3, 7], [2, 6]]),
        ("{{100000,200000},{100001,200001},{100003,200003},{100002,200002}}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("{{100000->200000},{200000->100000}}", [[0, 4], [4, 0]]),
        ("{{100000,300000}}", None),
        ("everywhere", None),
    ],
)
def test_the_groups_of_a_transfer_between_slices(text: str, groups: list[list[int]] | None) -> None:
    parsed = megascale.groups(text, IDS)
    assert (None if parsed is None else parsed.tolist()) == groups


def test_a_module_stands_for_every_slice() -> None:
    inside = np.array([[0, 1], [2, 3]])
    assert megascale.everywhere(inside, 4, IDS).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert megascale.everywhere(inside, 8, list(range(8))).tolist() == inside.tolist()


# As libtpu 0.0.51 compiles it for two slices of v5e:2x2, shortened.
MODULE = """\
HloModule jit_mine, is_scheduled=true, num_partitions=4

ENTRY %main (a: f32[8,128]) -> f32[8,128] {
  %a = f32[8,128]{1,0} parameter(0)
  %after-all = token[] after-all(), frontend_attributes={MegascaleRendezvousKeyName="psum_invariant.7_0"}
  %send = (f32[8,128]{1,0}, u32[], token[]) send(%a, %after-all), channel_id=2, is_host_transfer=true, \
frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",\
_xla_host_transfer_rendezvous="psum_invariant.7_0",_xla_megascale_reduce_operation="SUM",\
_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"MARK}
  %recv = (f32[8,128]{1,0}, u32[], token[]) recv(%after-all), channel_id=1, is_host_transfer=true, \
frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",\
_xla_host_transfer_rendezvous="psum_invariant.7_0",_xla_megascale_reduce_operation="SUM",\
_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"MARK}
  %send-done = token[] send-done(%send), channel_id=2, is_host_transfer=true
  %recv-done = (f32[8,128]{1,0}, token[]) recv-done(%recv), channel_id=1, is_host_transfer=true
  ROOT %out = f32[8,128]{1,0} get-tuple-element(%recv-done), index=0
}
"""


@pytest.mark.parametrize(("mark", "inserted"), [("", False), (',is_spmd_generated="true"', True)])
def test_a_transfer_between_slices_has_the_kind_of_its_collective(mark: str, inserted: bool) -> None:
    experiment = harness.experiment(TEXT)
    module = hlo.read(MODULE.replace("MARK", mark))
    reading = collectives.read(module, Origins(experiment, Program.AUTO.lines), Mesh(("s", "x"), (2, 4)), IDS)
    (collective,) = reading.entries
    assert (collective.kind, collective.axes, collective.inserted, collective.reduction) == (
        "all-reduce",
        ["s"],
        inserted,
        "sum",
    )
    assert (collective.bytes_in, collective.bytes_out, collective.bytes_sent, collective.count) == (4096, 4096, 4096, 1)
    assert collective.asynchronous
    assert not reading.missing


def test_an_unknown_group_of_a_transfer_is_reported() -> None:
    experiment = harness.experiment(TEXT)
    module = hlo.read(MODULE.replace("MARK", ""))
    reading = collectives.read(module, Origins(experiment, Program.AUTO.lines), Mesh(("s", "x"), (2, 4)), [])
    assert reading.entries[0].axes is None
    assert "which devices send connects could not be read: {1,2}x{0:3}" in reading.unknown


SLICES = """
name: mine
mesh: {axes: [s, x, y], shape: [2, 2, 2]}
target: {topology: "v5e:2x2", slices: 2}
dims: {I: 1024, J: 1024}
arrays:
  A: {shape: [I, J], spec: [[s, x], y]}
per_device:
  over_s: psum(A, 's')
  over_x: psum(A * 2, 'x')
  over_y: psum(A * 3, 'y')
  gathered: all_gather(A * 4, 's', tiled=True)
  moved: ppermute(A, 's', shift=1)
  exchanged: all_to_all(A, 's', 0, 1, tiled=True)
  scattered: psum_scatter(A, 's', scatter_dimension=0, tiled=True)
outputs:
  over_s: [x, y]
  over_x: [s, y]
  over_y: [[s, x]]
  gathered: [[s, x], y]
  moved: [[s, x], y]
  exchanged: [x, [y, s]]
  scattered: [[x, s], y]
check_vma: false
program: shard_map
"""


@pytest.mark.whole
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
def test_a_module_compiled_for_two_slices_is_read(tmp_path: Path) -> None:
    outcome = harness.run(SLICES, tmp_path)
    assert outcome.record.status == "passed"
    program = outcome.record.compiled["shard_map"]
    sent = sorted(
        (collective.kind, *(collective.axes or ()), collective.bytes_sent) for collective in program.collectives or ()
    )
    size = 256 * 512 * 4
    assert sent == [
        ("all-gather", "s", size),
        ("all-reduce", "s", size),
        ("all-reduce", "x", size),
        ("all-reduce", "y", size),
        ("all-to-all", "s", size // 2),
        ("collective-permute", "s", size),
        ("reduce-scatter", "s", size // 2),
    ]
    assert program.collectives_missing == []
    held = program.checks.get("layout")
    assert held is not None
    assert held.status == "passed"
