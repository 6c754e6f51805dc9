"""The work and the traffic of lines, from compiled modules and by counting; the least time of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import runner
from runner.base.faults import InvalidExperiment
from runner.base.layout import Mesh
from runner.base.words import share_text
from runner.compiled.estimate import estimate as estimating
from runner.compiled.estimate.estimate import estimate
from runner.compiled.estimate.model import Estimate
from runner.compiled.evidence import collectives, hlo, work
from runner.compiled.evidence.nodes import Origins
from runner.compiled.evidence.work import LineWork, ModuleWork
from runner.experiment import hardware
from runner.experiment.config.compose import compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.hardware import Hardware, Torus
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.reports.record.model import CompiledProgram
from tests.compiled import MODULES, experiment
from tests.evidence import collective

MESH = Mesh(("x", "y"), (2, 2))
LINKS = Torus(2, 4.5e10, 1e-6, None)
V5E = Hardware("v5e", {"bfloat16": 2e14, "float32/highest": 4e13}, 16e9, 8e11, LINKS, None, 1, (2, 2))


def counted(name: str) -> ModuleWork:
    path = MODULES / f"{name}.txt"
    lines = Program(path.name.split(".")[0]).lines
    return counted_in(hlo.read(path.read_text()), Origins(experiment(path.parent.name), lines))


def counted_in(module: hlo.Module, origins: Origins) -> ModuleWork:
    counted = work.read(module, origins)
    assert counted is not None
    return counted


def flops(module_work: ModuleWork) -> dict[tuple[str, bool], float]:
    totals = {(", ".join(line.nodes), line.gradient): sum(line.flops.values()) for line in module_work.lines}
    return {line: total for line, total in totals.items() if total}


def test_a_layer_and_its_gradient_are_counted_line_by_line() -> None:
    """On a device 16 × 64 by 64 × 32, and 16 × 32 by 32 × 64: two products forward, and twice as much backward."""
    for name in ("constraint.cpu.jax-0.10.2", "constraint.v5e_2x4.jax-0.10.2", "shard_map.v5e_2x4.jax-0.12.0.1"):
        totals = flops(counted(f"gradient_step/{name}"))
        assert totals["hidden", False] == totals["out", False] == 65536
        assert totals["out", True] == totals["hidden", True] == 2 * 65536


@pytest.mark.parametrize("name", ["constraint.cpu.jax-0.12.0.1", "constraint.v5e_2x2.jax-0.10.2"])
def test_the_steps_of_a_loop_are_multiplied_in(name: str) -> None:
    """Six iterations, each 32 × 64 by 64 × 64, with the contracting dimension sharded over four devices."""
    assert flops(counted(f"loop_of_matmuls/{name}")) == {("layers.h", False): 6 * 2 * 32 * 64 * 64 / 4}


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("gathered_weights/constraint.v5e_2x2.jax-0.12.0.1", 2 * 2 * 64 * 32 * 128 / 4),
        ("gathered_weights/shard_map.v5e_2x2.jax-0.10.2", 2 * 2 * 64 * 32 * 128 / 4),
        # The product is replicated in the end.
        ("ring_matmul/shard_map.v5e_2x2.jax-0.12.0.1", 2 * 512 * 64 * 64),
        ("scattered_matmul/constraint.v5e_2x2.jax-0.10.2", 2 * 512 * 128 * 128 / 4),
    ],
)
def test_work_fused_with_a_collective_on_a_tpu_is_counted(name: str, whole: float) -> None:
    assert sum(flops(counted(name)).values()) == whole


def test_memory_counts_each_read_and_write_once() -> None:
    """A product of 1,024² in bfloat16 reads both operands and writes the result; a loop over slices reads once."""
    module = """HloModule m, is_scheduled=true
%body (p: (s32[], f32[8,64], f32[64])) -> (s32[], f32[8,64], f32[64]) {
  %p = (s32[], f32[8,64]{1,0}, f32[64]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %whole = f32[8,64]{1,0} get-tuple-element(%p), index=1
  %sum = f32[64]{0} get-tuple-element(%p), index=2
  %part = f32[1,64]{1,0} dynamic-slice(%whole, %i, %i), dynamic_slice_sizes={1,64}
  ROOT %t = (s32[], f32[8,64]{1,0}, f32[64]{0}) tuple(%i, %whole, %sum)
}
%cond (p: (s32[], f32[8,64], f32[64])) -> pred[] {
  %p = (s32[], f32[8,64]{1,0}, f32[64]{0}) parameter(0)
  ROOT %c = pred[] constant(true)
}
ENTRY %main (a: bf16[1024,1024], b: bf16[1024,1024], l: (s32[], f32[8,64], f32[64])) -> bf16[1024,1024] {
  %a = bf16[1024,1024]{1,0} parameter(0)
  %b = bf16[1024,1024]{1,0} parameter(1)
  %l = (s32[], f32[8,64]{1,0}, f32[64]{0}) parameter(2)
  %w = (s32[], f32[8,64]{1,0}, f32[64]{0}) while(%l), condition=%cond, body=%body, \
backend_config={"known_trip_count":{"n":"8"}}
  ROOT %d = bf16[1024,1024]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
metadata={op_name="jit(f)/C/dot"}
}
"""
    given = read(compose("case3_allreduce", conf_folder()).plain)
    module_work = counted_in(hlo.read(module), Origins(given, "graph"))
    lines = {line.nodes: line for line in module_work.lines}
    assert lines[("C",)].flops == {("bfloat16", "default"): 2 * 1024**3}
    assert lines[("C",)].bytes == 3 * 2 * 1024**2
    assert lines[()].bytes == 8 * 2 * 64 * 4
    assert module_work.unknown == []


ON_CHIP = """HloModule m, is_scheduled=true
ENTRY %main (a: bf16[1024,1024], b: bf16[1024,1024]) -> bf16[1024,1024] {
  %a = bf16[1024,1024]{1,0:T(8,128)(2,1)} parameter(0)
  %b = bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %s = (bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)}, bf16[1024,1024]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%a)
  %c = bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)} copy-done(%s)
  %d = bf16[1024,1024]{1,0:T(8,128)(2,1)S(1)} dot(%c, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
metadata={op_name="jit(f)/partial/dot"}
  %e = bf16[1024,1024]{1,0:T(8,128)(2,1)} custom-call(%d, %d), custom_call_target="ConcatBitcast", \
metadata={op_name="jit(f)/C/concatenate"}
  ROOT %f = bf16[1024,1024]{1,0:T(8,128)(2,1)} negate(%d), metadata={op_name="jit(f)/C/neg"}
}
"""


def test_values_on_the_chip_cost_no_memory_traffic_and_prefetches_count_separately() -> None:
    given = read(compose("case3_allreduce", conf_folder()).plain)
    module_work = counted_in(hlo.read(ON_CHIP), Origins(given, "per_device"))
    size = 2 * 1024**2
    assert {line.nodes: line.bytes for line in module_work.lines} == {("partial",): 0, ("C",): size}
    assert module_work.ahead == size
    # Without TPU tiles, values are in the large memory: on a GPU, S(1) is the memory space of NCCL's operands.
    elsewhere = counted_in(hlo.read(ON_CHIP.replace(":T(8,128)(2,1)", ":")), Origins(given, "per_device"))
    assert {line.nodes: line.bytes for line in elsewhere.lines}["partial",] == 3 * size


def test_prefetching_does_not_reduce_the_memory_time() -> None:
    computing = LineWork(("C",), False, {("bfloat16", "default"): 2e14}, 0)
    times = estimate(V5E, MESH, ModuleWork([computing], ahead=16e11), [])
    assert times.compute == times.seconds == pytest.approx(2.0)
    assert (times.bytes, times.intensity, times.roof) == (16e11, pytest.approx(125.0), "memory")
    assert times.mfu == pytest.approx(0.5)


def test_the_roof_is_the_longest_single_time() -> None:
    computing = LineWork(("C",), False, {("bfloat16", "default"): 2e14}, 4e11)
    size = 45_000_000_000
    times = made([computing], collective(count=1, bytes_in=size, bytes_out=size))
    assert (times.roof, made([computing]).roof) == ("flops", "flops")
    assert times.mfu == pytest.approx(1 / 2)
    assert made([computing]).mfu == pytest.approx(1.0)
    assert made([computing], collective(count=3, bytes_in=size, bytes_out=size)).roof == "links"
    assert made([LineWork(("C",), False, {("bfloat16", "default"): 2e13}, 8e11)]).roof == "memory"
    unknown = made([LineWork(("C",), False, {("int4", "default"): 1.0}, 8e11)])
    assert (unknown.roof, unknown.mfu) == (None, None)


@pytest.mark.parametrize(
    ("overrides", "compiled_for", "doubted"),
    [
        (["hardware=v5e"], "simulated CPUs", "compiled for CPUs: on this hardware the compiler may"),
        (["target=v5e_2x2"], "v5e:2x2", None),
        (["target=tpu7x_2x2x1", "mesh=x4_y2"], "tpu7x:2x2x1", None),
        (["target=v5e_2x2", "hardware=h100"], "v5e:2x2", "compiled for v5e: for H100 the compiler may"),
        (["target=v5e_2x2", "hardware=v6e"], "v5e:2x2", "compiled for v5e: for TPU v6e the compiler may"),
    ],
)
def test_an_estimate_names_what_the_programs_were_compiled_for(
    overrides: list[str], compiled_for: str, doubted: str | None
) -> None:
    given = read(compose("case3_allreduce", conf_folder(), overrides).plain)
    assert estimating.compiled_for(given) == compiled_for
    doubts = estimating.doubts(given)
    assert [doubt[: len(doubted)] for doubt in doubts] == [doubted] if doubted else doubts == []


def test_a_loop_of_unknown_length_is_said() -> None:
    module_work = counted("pipeline/auto.cpu.jax-0.12.0.1")
    assert module_work.unknown == []
    text = (MODULES / "loop_of_matmuls" / "constraint.cpu.jax-0.12.0.1.txt").read_text()
    text = text.replace("known_trip_count", "forgotten").replace("direction=LT", "direction=NE")
    given = experiment("loop_of_matmuls")
    assert "runs is not known: it counts once" in counted_in(hlo.read(text), Origins(given, "graph")).unknown[0]


def made(lines: list[LineWork], *entries: Any, **more: Any) -> Estimate:
    return estimate(V5E, MESH, ModuleWork(lines), list(entries), **more)


def test_a_line_takes_the_longer_of_computing_and_memory() -> None:
    computing = LineWork(("C",), False, {("bfloat16", "default"): 2e14}, 8e9)
    moving = LineWork(("D",), False, {("bfloat16", "default"): 2e12}, 8e11)
    times = made([computing, moving])
    assert [(line.nodes, line.seconds, line.bound) for line in times.lines] == [
        (["C"], pytest.approx(1.0), "flops"),
        (["D"], pytest.approx(1.0), "memory"),
    ]
    assert times.seconds == times.compute == times.overlapped == pytest.approx(2.0)


def test_precise_products_take_longer() -> None:
    (line,) = made([LineWork(("C",), False, {("float32", "highest"): 4e13}, 0)]).lines
    assert line.seconds == pytest.approx(1.0)


def test_a_dtype_of_unknown_speed_is_reported() -> None:
    times = made([LineWork(("C",), False, {("int4", "default"): 1.0}, 8e11)])
    assert times.unknown == ["v5e does not say how fast it multiplies int4"]
    assert times.seconds == pytest.approx(1.0)


def test_collectives_add_up_over_executions_and_overlap_with_computation() -> None:
    size = 45_000_000
    plain = collective(count=3, bytes_in=size, bytes_out=size)
    hidden = collective(
        kind="collective-permute", groups=[[0, 1], [1, 0], [2, 3], [3, 2]], bytes_in=size, bytes_out=size,
        overlapped=["C"], count=2, asynchronous=True,
    )  # fmt: skip
    line = LineWork(("C",), False, {("bfloat16", "default"): 3e11}, 0)
    times = made([line], plain, hidden)
    assert [entry.seconds for entry in times.collectives] == [pytest.approx(3e-3), pytest.approx(2e-3)]
    assert times.hidden == pytest.approx(1.5e-3)
    assert times.seconds == pytest.approx(1.5e-3 + 5e-3 - 1.5e-3)
    assert times.overlapped == pytest.approx(5e-3)
    assert times.bottleneck == "the all-reduce of C over x: 3.00 ms of 5.00 ms"


def test_unknown_communication_is_reported() -> None:
    sent = collective(kind="send", groups=[[0, 1]], bytes_in=None, bytes_out=None)
    assert made([], sent).unknown == [f"the time of {sent.instruction} is not known"]
    assert estimate(V5E, MESH, ModuleWork(), None).unknown == ["its collectives could not be read"]


def test_a_ragged_collective_takes_at_least_its_latency() -> None:
    size = 45_000_000
    ragged = made([], collective(kind="ragged-all-to-all", bytes_in=size, bytes_out=size))
    dense = made([], collective(kind="all-to-all", bytes_in=0, bytes_out=0))
    assert [entry.seconds for entry in ragged.collectives] == [entry.seconds for entry in dense.collectives]
    assert ragged.collectives[0].bound == "latency"
    name = ragged.collectives[0].instruction
    assert ragged.unknown == [f"how much {name} sends is known only when it runs: its latency is counted"]


def test_a_program_that_needs_more_memory_than_there_is_does_not_fit() -> None:
    assert made([], needed_bytes=17 * 10**9).fits is False
    assert made([], needed_bytes=15 * 10**9).fits is True
    assert made([]).fits is None


def hardware_of(**changes: Any) -> Hardware | None:
    config = compose("case3_allreduce", conf_folder(), ["hardware=v5e"]).plain["hardware"]
    return hardware.read({**config, **changes}, MESH, None)


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"shape": [3]}, "hardware.shape", "3 chips are 3; the mesh x=2 × y=2 needs 4"),
        ({"shape": [2, 2, 1]}, "hardware.shape", "lie in 2 dimensions, not 3"),
        ({"shape": [2, 0]}, "hardware.shape[1]", "0 is not a number of chips"),
        ({"slices": 0}, "hardware.slices", "0 is not a number of slices"),
        ({"slices": 3}, "hardware", "which do not fill chips of 3 slices"),
        ({"network": None, "slices": 2}, "hardware.slices", "has no network between slices"),
        ({"flops": {"bfloat17": 1.0}}, "hardware.flops.bfloat17", "did you mean 'bfloat16'"),
        ({"flops": {"float32/low": 1.0}}, "hardware.flops.float32/low", "no precision 'low'"),
        ({"flops": {"float32": 0}}, "hardware.flops.float32", "write a number above 0"),
        ({"memory": {"bandwidth": float("inf")}}, "hardware.memory.bandwidth", "write a number above 0"),
        ({"torus": {"dimensions": 2}}, "hardware.torus", "there is no 'bandwidth'"),
        ({"switch": {"devices": 2}}, "hardware.switch", "a torus or a switch, not both"),
        (
            {"flops": {}, "memory": None, "torus": None, "network": None},
            "hardware.name",
            "TPU v5e has no numbers; to choose a file write hardware=v5e",
        ),
        ({"name": None}, "hardware.flops.bfloat16", "there is no hardware; name one"),
    ],
)
def test_invalid_hardware_is_refused(changes: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(InvalidExperiment) as refused:
        hardware_of(**changes)
    assert str(refused.value).startswith(f"{key}: ")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("mesh", "name", "shape"),
    [
        ((4, 4), "v5e", (4, 4)),
        ((2, 2, 4), "v5e", (2, 8)),
        ((16,), "v5e", (4, 4)),
        ((64,), "v5p", (4, 4, 4)),
        ((16, 16), "v5p", (4, 4, 16)),
        ((2, 1, 4), "v5e", (2, 4)),
        ((4, 4, 2), "tpu7x", (2, 2, 4)),
        ((4, 6), "tpu7x", (2, 2, 3)),
    ],
)
def test_by_default_the_mesh_axes_are_the_dimensions_of_the_torus_and_fewer_lie_in_the_most_even_shape(
    mesh: tuple[int, ...], name: str, shape: tuple[int, ...]
) -> None:
    config = compose("case3_allreduce", conf_folder(), [f"hardware={name}"]).plain["hardware"]
    machine = hardware.read(config, Mesh(tuple("abc"[: len(mesh)]), mesh), None)
    assert machine is not None
    assert machine.shape == shape


def test_a_topology_selects_its_hardware_and_overrides_are_kept() -> None:
    plain = compose("case3_allreduce", conf_folder(), ["target=v5e_2x2", "hardware.torus.latency=5.0e-6"]).plain
    machine = read(plain).hardware
    assert machine is not None
    assert machine.name == "TPU v5e"
    assert isinstance(machine.links, Torus)
    assert (machine.links.latency, machine.links.bandwidth) == (5e-6, 4.5e10)


@pytest.mark.parametrize("file", sorted((conf_folder() / "hardware").glob("*.yaml")), ids=lambda file: file.stem)
def test_each_shipped_hardware_is_complete(file: Path) -> None:
    mesh = Mesh(("x",), (8,))
    config = compose("case3_allreduce", conf_folder(), [f"hardware={file.stem}"]).plain["hardware"]
    machine = hardware.read(config, mesh, None)
    assert machine is not None
    assert None not in (
        machine.peak("bfloat16", "default"),
        machine.memory_bytes,
        machine.memory_bandwidth,
        machine.links,
    )
    highest, default = machine.peak("float32", "highest"), machine.peak("float32", "default")
    assert highest is not None
    assert default is not None
    assert highest < default
    # The file has the source of its numbers.
    assert file.read_text().startswith("# ")


def test_collectives_of_a_module_for_a_tpu_take_time() -> None:
    path = MODULES / "ring_matmul" / "shard_map.v5e_2x2.jax-0.12.0.1.txt"
    given = experiment("ring_matmul")
    module, origins = hlo.read(path.read_text()), Origins(given, "per_device")
    listed = collectives.read(module, origins, given.mesh).entries
    shape = tuple(size for size in given.mesh.shape if size > 1)
    v5e = Hardware("v5e", V5E.flops, None, 8e11, Torus(len(shape), 4.5e10, 1e-6, None), None, 1, shape)
    times = estimate(v5e, given.mesh, counted_in(module, origins), listed)
    assert times.unknown == []
    assert times.communication > 0
    assert 0 < times.hidden <= times.communication


NARROW = {
    "mesh": {"axes": ["x"], "shape": [4]},
    "arrays": {
        "a": {"shape": [256, 256], "dtype": "bfloat16", "spec": ["x"]},
        "b": {"shape": [256, 256], "dtype": "bfloat16", "spec": []},
    },
    "outputs": {"y": []},
    "hardware": "h100",
    "program": "derived",
}


def _of_narrow(line: str, **keys: Any) -> Estimate:
    compiled = runner.run({**NARROW, "graph": {"y": line}, **keys}).programs["derived"]
    assert isinstance(compiled, CompiledProgram)
    assert compiled.estimate is not None
    return compiled.estimate


@pytest.mark.in_turn
def test_narrow_floats_count_as_in_the_file_though_cpus_compute_and_send_float32() -> None:
    """The product at bfloat16's peak, and its operands and result once through the memory, two bytes each."""
    times = _of_narrow("a @ b")
    assert times.flops == 2 * 256**3 / 4
    assert times.mfu == pytest.approx(2 * 256**3 / 4 / 9.9e14 / times.seconds)
    assert times.bytes == 2 * (256 * 64 + 256 * 256 + 256 * 64)
    assert times.collectives[0].seconds == pytest.approx(max(3 / 4 * 2 * 256**2 / 4.5e11, 5e-6))
    assert "CPUs multiply and send narrow floats as float32: here they count as in the file" in times.unknown


@pytest.mark.in_turn
def test_a_product_of_what_the_file_widens_is_one_of_float32() -> None:
    widened = _of_narrow("astype(a, 'float32') @ astype(b, 'float32')", outputs={"y": ["x"]})
    assert widened.mfu is not None
    assert widened.mfu * widened.seconds == pytest.approx(2 * 256**3 / 4 / 6.7e13)


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "100%"), (0.996, "100%"), (0.58, "58%"), (0.00058, "0.058%"), (1e-7, "under 0.001%"), (0.0, "0%")],
)
def test_a_share_is_a_percentage(share: float, text: str) -> None:
    assert share_text(share) == text
