"""Absent targets: programs are compiled for a topology, nothing runs, no data is made."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from runner.app.flow import verification
from runner.base.faults import InvalidExperiment
from runner.base.layout import Spec, Typed
from runner.checks.context import Context
from runner.checks.kinds import layout
from runner.checks.kinds.layout import LayoutVerdict
from runner.experiment import effort, topology
from runner.experiment.config.slices import slices
from runner.experiment.program import Program
from runner.link.target import Output, ProgramRun, ShardPlace
from runner.programs.writers import WRITERS
from runner.reports.record.model import Record
from runner.reports.record.verdicts import FileChecks, NotRun, SectionsVerdict
from runner.worker import compilation
from tests import evidence, harness
from tests.command import ROOT, recorded, run_command
from tests.evidence import ran

NAMED = {name: each.topology for name, each in slices().items()}
needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")

TEXT = """
dims: {I: 64, J: 64, K: 64}
arrays:
  A: {shape: [I, J], spec: [null, x]}
  B: {shape: [J, K], spec: [x, null]}
graph: {C: A @ B}
per_device: {partial: A @ B, C: "psum(partial, 'x')"}
outputs: {C: [null, null]}
"""


def target(name: str, axes: int = 2, **more: Any) -> dict[str, Any]:
    """Return the changes to an experiment that compile it for a topology."""
    shape = list(topology.parse(name, "cpu").mesh_shape(axes))
    return {"target": {"topology": name}, "mesh": {"axes": ["x", "y", "z"][:axes], "shape": shape}, **more}


def fault(text: str, **changes: Any) -> str:
    with pytest.raises(InvalidExperiment) as error:
        harness.experiment(text, **changes)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "platform", "devices", "arguments"),
    [
        ("v5e:16x16", "tpu", 256, {"platform": "tpu", "topology_name": "v5e:16x16"}),
        ("v4:2x2x1", "tpu", 4, {"platform": "tpu", "topology_name": "v4:2x2x1", "chip_config_name": "megacore"}),
        ("tpu7x:2x2x2", "tpu", 16, {"platform": "tpu", "topology_name": "tpu7x:2x2x2"}),
        ("1x1x8", "gpu", 8, {"platform": "cuda", "topology_name": "1x1x8", "topology": "1x1x8"}),
    ],
)
def test_a_topology_has_a_platform_devices_and_jax_arguments(name, platform, devices, arguments):
    parsed = topology.parse(name, "cpu")
    assert (parsed.platform, parsed.devices, parsed.arguments) == (platform, devices, arguments)


@pytest.mark.parametrize(
    ("name", "platform", "message"),
    [
        ("v5e", "cpu", "'v5e' is not a topology; write a TPU generation and the chips along each dimension, such as "
         "v5e:16x16 or v5p:4x4x8, or 1x1x8 for 8 GPUs, cpu:8 for 8 CPU devices"),
        ("v6:2x2", "cpu", "no TPU generation 'v6'; did you mean 'v6e'?"),
        ("h100:8", "cpu", "no TPU generation 'h100'; there are v4, v5e, v5p, v6e, tpu7x"),
        ("v5p:4x4", "cpu", "the chips of v5p lie in 3 dimensions, not 2: v5p:4x4x4, for example"),
        ("cpu:2x2", "cpu", "simulated CPU devices have a number alone: cpu:4"),
        ("cpu:4096", "cpu", "XLA compiles for no more than 2,048 simulated CPU devices; 'cpu:4096' has more"),
        ("v5e:0x4", "cpu", "'v5e:0x4' has a dimension of 0 chips"),
        ("2x4", "tpu", "'2x4' names no TPU generation, as v5e:2x4 does; there are v4, v5e, v5p, v6e, tpu7x"),
        ("1x8", "gpu", "'1x8' is not a topology of GPUs, which counts partitions, hosts and GPUs: 1x1x8"),
    ],
)  # fmt: skip
def test_an_invalid_topology_name_is_refused(name, platform, message):
    text = fault(TEXT, target={"topology": name, "platform": platform})
    assert text == f"target.topology: {message}"


@pytest.mark.parametrize(
    ("name", "mesh", "message"),
    [
        ("v5e:16x16", [2, 2], "the mesh x=2 × y=2 has 4 devices, but v5e:16x16 has 256; a mesh takes all of them: "
         "mesh.shape=[16,16]"),
        ("v5p:2x4x4", [8, 8], "the mesh x=8 × y=8 has 64 devices, but v5p:2x4x4 has 32; a mesh takes all of them: "
         "mesh.shape=[2,16]"),
        ("tpu7x:2x2x2", [2, 4], "the mesh x=2 × y=4 has 8 devices, but tpu7x:2x2x2 has 16, two on each chip; a mesh "
         "takes all of them: mesh.shape=[2,8]"),
        ("v6e:1x1", [1, 2], "the mesh x=1 × y=2 has 2 devices, but v6e:1x1 has 1; a mesh takes all of them: "
         "mesh.shape=[1,1]"),
    ],
)  # fmt: skip
def test_a_mesh_takes_all_devices_of_its_topology(name, mesh, message):
    text = fault(TEXT, target={"topology": name}, mesh={"axes": ["x", "y"], "shape": mesh})
    assert text == f"mesh.shape: {message}"


def test_a_topology_has_its_own_devices():
    assert fault(TEXT, target={"topology": "v5e:2x2", "devices": 8}) == "target.devices: v5e:2x2 has its own 4 devices"


def test_a_topology_of_tpus_needs_libtpu(monkeypatch):
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidExperiment) as error:
        topology.require(topology.parse("v5e:16x16", "cpu"))
    assert str(error.value) == "target.topology: compiling for v5e:16x16 needs libtpu: pip install 'shardproof[aot]'"
    topology.require(topology.parse("1x1x8", "cpu"))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"L": 2}, "verify_dims.L: no dim 'L'; the dims are I, J, K"),
        ({"JJ": 2}, "verify_dims.JJ: no dim 'JJ'; did you mean 'J'?"),
        ({"J": 0}, "verify_dims.J: the dim 'J' is 0; a size is at least 1"),
        ({"J": "J // L"}, "verify_dims.J: no dim 'L'; the dims are: I, J, K"),
    ],
)
def test_verify_dims_are_dims_with_sizes(sizes, message):
    assert fault(TEXT, verify_dims=sizes) == message


def test_verify_dims_are_sizes_or_expressions_of_the_dims():
    assert harness.experiment(TEXT, verify_dims={"I": "I // 4", "K": 2}).verify_dims == {"I": 16, "K": 2}


def smaller(**changes: Any) -> Any:
    return verification.smaller(harness.experiment(TEXT, **changes))


def test_a_verification_is_the_experiment_at_other_sizes_on_simulated_devices():
    reduced = smaller(**target("v5e:4x4", verify_dims={"I": 8, "J": 16}))
    assert reduced.dims == {"I": 8, "J": 16, "K": 64}
    assert (reduced.target.platform, reduced.target.topology, reduced.mesh.shape) == ("cpu", None, (4, 4))
    assert reduced.programs == ("auto", "constraint", "explicit", "derived", "shard_map", "vmap")


def test_invalid_verify_dims_are_refused():
    with pytest.raises(InvalidExperiment) as error:
        smaller(**target("v5e:4x4", verify_dims={"J": 6}))
    assert str(error.value) == (
        "verify_dims: at J=6, arrays.A.spec[1]: dimension 1 (J) of 'A' has size 6, which x=4 does not divide"
    )


def only_compiled(sections: SectionsVerdict | NotRun | None = None, **more: Any) -> Record:
    """Return the record of an experiment that was compiled for absent hardware."""
    absent = NotRun(reason="v5e:4x4 is not here")
    return evidence.record({}, checks=FileChecks(sections=sections or absent), **more)


def test_the_record_adopts_the_sections_verdict_of_the_verification():
    record = only_compiled()
    failed = SectionsVerdict(status="failed", reason="C is not graph's", outputs={})
    verification.adopt(record, only_compiled(failed, status="failed"), {"I": 8})
    assert (record.status, record.checks.sections) == ("failed", replace(failed, dims={"I": 8}))


WRONG = """# @package _global_
defaults: [{override /mesh: x4}]
name: wrong
dims: {I: 8, J: 16, K: 8}
arrays:
  A: {shape: [I, J], spec: [null, x]}
  B: {shape: [J, K], spec: [x, null]}
  b: {shape: [K], spec: []}
graph: {C: A @ B + b}
per_device: {C: "psum(A @ B + b, 'x')"}
outputs: {C: [null, null]}
"""


def compiled_only(folder: Path, *arguments: str, text: str = WRONG) -> tuple[Any, str, int]:
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / "experiment" / "wrong.yaml").write_text(text)
    start = ("--config-dir", str(folder), "+experiment=wrong", "target=v5e_2x2", "program=[auto,shard_map]")
    ran = run_command(*start, *arguments, f"hydra.run.dir={folder}/out")
    return recorded(folder / "out"), ran.stdout, ran.returncode


@pytest.mark.in_turn
@needs_libtpu
def test_the_sections_need_no_device(tmp_path):
    record, output, status = compiled_only(tmp_path)
    assert (status, record["status"]) == (1, "failed")
    assert {name: program["status"] for name, program in record["programs"].items()} == {
        "auto": "passed", "shard_map": "passed"
    }  # fmt: skip
    assert record["checks"]["sections"]["status"] == "failed"
    assert "per_device.C: b is added before the psum over 'x', so that it counts 4 times" in output
    assert "graph and per_device were compared at their own sizes, without a device" in output


GRADIENT = (
    WRONG.split("graph:")[0]
    + """
graph: {C: A @ B + b, loss: sum(C * C)}
per_device: {C: "psum(A @ B, 'x') + TIMES * b", loss: sum(C * C)}
grad: {of: loss, wrt: [A]}
outputs: {C: [null, null], loss: []}
"""
)


@pytest.mark.in_turn
@needs_libtpu
@pytest.mark.parametrize(("times", "status"), [("1", "passed"), ("2", "failed")])
def test_sections_with_gradients_need_no_device_either(times, status, tmp_path):
    record, output, _ = compiled_only(tmp_path, text=GRADIENT.replace("TIMES", times))
    assert record["checks"]["sections"]["status"] == status, output
    assert "grad.A" in record["checks"]["sections"]["outputs"] or "loss" in record["checks"]["sections"]["outputs"]


@needs_libtpu
@pytest.mark.whole
def test_a_comparison_of_sections_that_takes_too_long_is_skipped_with_a_reason(tmp_path):
    record, output, status = compiled_only(tmp_path, "dims.I=4096", "dims.J=8192", "dims.K=8192")
    reason = record["checks"]["sections"]["reason"]
    assert (status, record["checks"]["sections"]["status"]) == (0, "not_run")
    assert re.fullmatch(
        r"interpreting graph and per_device takes about \d+ \w+; verify_dims names smaller sizes",
        reason,
    )
    assert f"sections was not run: {reason}\n" in output


@needs_libtpu
def test_a_section_without_a_program_is_not_reported_as_missing(tmp_path):
    record, output, _ = compiled_only(tmp_path, "program=auto")
    reason = (
        "there are graph and per_device, but per_device is not read: auto is written from graph alone, "
        "whose layouts may not be those of per_device"
    )
    assert record["checks"]["sections"] == {"status": "not_run", "reason": reason}
    assert f"sections was not run: {reason}\n" in output


def test_the_effort_of_an_interpretation_grows_with_the_work():
    given = harness.experiment(TEXT, **target("v5e:4x4"))
    types = harness.infer(given)
    small = effort.effort(given, types.nodes)
    assert 0 < small.seconds < 1
    # A device's share of the product counts once for each device whose values can differ.
    large = effort.effort(given, types.nodes, flops=1e14)
    assert large.seconds > 3600
    assert large.bytes == small.bytes >= 8 * 3 * 64 * 64


@pytest.mark.in_turn
@needs_libtpu
def test_a_verification_does_not_wait_for_later_points(tmp_path):
    start = ("+experiment=case3_allreduce", "++verify_dims.I=8", "program=auto", "expect.collectives=null")
    ran = run_command("-m", *start, "target=v5e_2x2,cpu", f"hydra.sweep.dir={tmp_path}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 points: 2 passed" in ran.stdout


def test_a_missing_verification_has_a_reason():
    assert smaller(**target("v5e:4x4")) == "verify_dims names no sizes to run it at"
    huge = target("v5p:8x8x16", dims={"I": 64, "J": 1024, "K": 64}, verify_dims={"J": 8})
    assert smaller(**huge) == "the mesh has 1024 devices, and at most 512 are simulated"


def test_vmap_is_compiled_only_if_named():
    every = harness.experiment(TEXT, **target("v5e:4x4"))
    assert (every.programs, every.left_out) == (("auto", "constraint", "explicit", "derived", "shard_map"), ("vmap",))
    assert harness.experiment(TEXT, **target("v5e:4x4", program="vmap")).programs == ("vmap",)
    # It has no mesh.
    harness.experiment(TEXT, target={"topology": "v5e:1x1"}, program="vmap")


@pytest.mark.parametrize("program", WRITERS)
def test_a_program_makes_no_data_and_simulates_no_device(program, tmp_path):
    experiment = harness.experiment(TEXT, **target("v5e:4x4", program=program))
    source = WRITERS[program](experiment, tmp_path, harness.infer(experiment))
    assert "jax_num_cpu_devices" not in source
    assert not re.search(r"\brng\b|device_put|def inputs\(|np\.arange", source)
    assert 'get_topology_desc(platform="tpu", topology_name="v5e:4x4").devices' in source
    subprocess.run([sys.executable, "-m", "ruff", "check", "-q", "--select=F,E,I", "--ignore=E501", "-"],
                   input=source, text=True, check=True, cwd=tmp_path)  # fmt: skip


def test_products_are_not_autotuned_for_absent_gpus(tmp_path):
    experiment = harness.experiment(TEXT, **target("1x1x16", program="auto"))
    source = WRITERS[Program.AUTO](experiment, tmp_path, harness.infer(experiment))
    assert '.compile(compiler_options={"xla_gpu_autotune_level": 0})' in source


def test_options_of_the_compiler_reach_it():
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option: 'no_option'"):
        compilation.compile_program(Program.AUTO, jax.jit(lambda x: x), [1.0], options={"no_option": 0})


def test_the_layout_check_reads_what_the_compiler_promises():
    experiment = harness.experiment(TEXT, outputs={"C": ["x", None]}, per_device={"C": "A @ B"}, program="constraint")
    context = Context(experiment, {}, {"C": Typed((64, 64), "float32")}, {}, None, None)
    places = tuple(ShardPlace(p, p, context.layout("C").ranges(p)) for p in range(4))
    operands = {a.name: [(p, a.layout.ranges(p)) for p in range(4)] for a in experiment.arrays}

    def verdict(*compiled: ShardPlace) -> LayoutVerdict | NotRun:
        outputs = {"C": Output("float32", (64, 64), Spec.of(["x", None]), (), compiled)}
        return layout.check(
            context, ProgramRun(Program.CONSTRAINT, None, outputs, ran([0, 1, 2, 3], operands=operands))
        )

    assert verdict(*places) == LayoutVerdict(status="passed")
    swapped = (ShardPlace(0, 0, places[2].ranges), *places[1:])
    assert verdict(*swapped).reason == "device 0 holds C[32:64, 0:64], not C[0:32, 0:64]"


def test_every_named_slice_is_a_topology_of_its_generation():
    parsed = {name: topology.parse(text, "tpu") for name, text in NAMED.items()}
    assert all(name == each.name.replace(":", "_") for name, each in parsed.items())
    assert slices()["tpu7x_4x4x4"].says == "64 chips of TPU 7x: 128 devices, compile only."
    assert slices()["v5e_1x1"].says == "1 chip of TPU v5e, compile only."
    assert max(each.devices for each in parsed.values()) == 2 * 4096


def test_a_named_slice_is_an_option_as_a_file_is() -> None:
    plain = run_command("+experiment=case3_allreduce", "target=v5e_2x2", "--cfg", "job").stdout
    assert "target:\n  platform: tpu\n  devices: null\n  topology: v5e:2x2\n" in plain
    refused = run_command("+experiment=case3_allreduce", "target=v5e_9x9")
    assert refused.stderr == "command line: target=v5e_9x9\n  no target 'v5e_9x9'; did you mean 'v5e_8x8'?\n"
    offered = run_command("-sc", "query=bash", COMP_LINE="shardproof target=v6e_1", COMP_POINT="23").stdout.split()
    assert offered == ["target=v6e_16x16", "target=v6e_1x1"]


@pytest.mark.in_turn
@needs_libtpu
def test_libtpu_knows_every_named_slice_and_its_devices():
    script = """
import json, os, sys
from runner.experiment import topology
os.environ.update(topology.LIBTPU_ENVIRONMENT)
import jax
jax.config.update("jax_platforms", "cpu")
from jax.experimental import topologies
counts = {}
for name in json.loads(sys.argv[1]):
    counts[name] = len(topologies.get_topology_desc(**topology.parse(name, "tpu").arguments).devices)
print(json.dumps(counts))
"""
    names = [*NAMED.values()]
    command = [sys.executable, "-c", script, json.dumps(names)]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(completed.stdout) == {name: topology.parse(name, "tpu").devices for name in names}
    assert completed.stderr == ""


def run(folder: Path, *arguments: str, experiment: str = "case3_allreduce") -> tuple[Any, dict[str, Any]]:
    done = run_command(f"+experiment={experiment}", f"hydra.run.dir={folder}", *arguments)
    return done, recorded(folder)


BIG = ("++dims.I=256", "++dims.J=256", "++dims.K=256")
NOT_HERE = "compiled for v5e:2x4, which is not here"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    return folder, *run(folder, "target=v5e_2x4", "mesh=x2_y4", *BIG)


@needs_libtpu
def test_a_run_for_absent_hardware(compiled):
    folder, done, record = compiled
    assert (done.returncode, done.stderr, record["status"]) == (0, "", "passed")
    assert record["target"] == {
        "platform": "tpu",
        "devices": 8,
        "kind": "TPU v5 lite",
        "topology": "v5e:2x4",
        "device_order": "topology-aware",
    }
    assert list(record["programs"]) == ["auto", "constraint", "explicit", "derived", "shard_map"]
    assert "all-reduce" in (folder / "hlo_shard_map.txt").read_text()
    assert not (folder / "worker.log").exists()
    assert "mesh x=2 × y=4, compiled for 8 TPU v5 lite devices (v5e:2x4), which are not here" in done.stdout
    assert f"values, replicas and agreement were not checked: {NOT_HERE}; verify_dims names no sizes" in done.stdout
    assert "passed: 5 of 5 programs compiled, values not run" in done.stdout
    assert "8 TPU devices of v5e:2x4, compiled only" in (folder / "shardings.svg").read_text()


@needs_libtpu
def test_compiler_evidence_is_recorded_and_checks_that_need_a_run_are_not_run(compiled):
    _, _, record = compiled
    reason = f"{NOT_HERE}; verify_dims names no sizes to run it at"
    for program in record["programs"].values():
        assert program["checks"]["layout"]["status"] == "passed"
        for check in ("value", "replicas", "agreement", "values"):
            assert program["checks"][check] == {"status": "not_run", "reason": reason}
        assert program["memory"]["argument_bytes"] == 2 * 256 * 128 * 4
        assert program["memory"]["peak_bytes"] >= program["memory"]["output_bytes"]
        assert program["cost"]["flops"] > 2 * 256 * 128 * 256
        assert program["cost"]["optimal_seconds"] > 0
        assert program["timing"]["compile_s"] > 0
        assert (program["timing"]["place_s"], program["timing"]["run_s"]) == (None, None)
        assert (program["outputs"]["C"]["values"], program["outputs"]["C"]["shard_shape"]) == (None, [256, 256])


@pytest.mark.sample(2)
@needs_libtpu
@pytest.mark.parametrize("program", ["shard_map", "vmap"])
def test_a_program_compiles_alone(compiled, program, tmp_path):
    folder = compiled[0]
    if program == "vmap":
        folder = tmp_path
        run(folder, "target=v5e_2x4", "mesh=x2_y4", *BIG, "program=vmap")
    alone = [sys.executable, "-W", "error", f"program_{program}.py"]
    done = subprocess.run(alone, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    memory, cost = done.stdout.splitlines()
    result = recorded(folder)["programs"][program]
    assert f"argument_size_in_bytes={result['memory']['argument_bytes']}," in memory
    assert f"'flops': {result['cost']['flops']}" in cost


@pytest.mark.in_turn
@needs_libtpu
def test_no_data_is_made(tmp_path):
    # The two arrays have 32 TiB.
    huge = (f"++dims.{dim}={2**21}" for dim in "IJK")
    graph = ("graph.C=A + B", "arrays.A.spec=[x,y]", "arrays.B.spec=[x,y]", "outputs.C=[x,y]")
    keys = ("program=constraint", "target=v5p_16x16x16", "mesh=x2_y2", "mesh.shape=[64,64]")
    done, record = run(tmp_path, *huge, *graph, *keys, "expect.collectives=null")
    assert (done.returncode, record["status"]) == (0, "passed")
    assert record["programs"]["constraint"]["memory"]["output_bytes"] == 4 * 2**42 // 4096
    assert record["target"]["device_order"] == "topology-aware, physical axes split"
    assert record["target"]["device_order_reason"] == (
        "jax.make_mesh cannot build the axes of the mesh x=64 × y=64 from whole axes of v5p:16x16x16"
    )


@pytest.mark.in_turn
@needs_libtpu
def test_values_are_checked_at_verify_dims_on_simulated_devices(tmp_path):
    sizes = {"I": 8, "J": 64}
    done, record = run(tmp_path, "target=v5e_2x4", "mesh=x2_y4", *BIG, "++verify_dims={I:8,J:J // 4}", "trace=true")
    assert (done.returncode, record["status"]) == (0, "passed")
    assert record["verification"]["dims"] == sizes
    assert record["verification"]["target"]["devices"] == 8
    for program, result in record["programs"].items():
        for check in ("value", "replicas", "agreement"):
            assert (result["checks"][check]["status"], result["checks"][check]["dims"]) == ("passed", sizes)
        # The layouts are those of the compiled program; vmap has none, and is not compiled.
        assert ("dims" in result["checks"]["layout"]) == (program == "vmap")
        assert result["checks"]["values"]["reason"] == "the file pins them for its own dims"
        assert ("memory" in result) == (program != "vmap")
    assert record["programs"]["auto"]["outputs"]["C"]["shape"] == [256, 256]
    assert (record["trace"]["taken_from"], record["trace"]["dims"]) == ("shard_map", sizes)
    assert (tmp_path / "verification" / "program_vmap.py").is_file()
    assert "values, replicas and agreement are those at I=8, J=64 on 8 simulated CPU devices" in done.stdout


@pytest.mark.in_turn
@needs_libtpu
def test_a_wrong_program_fails_at_verify_dims(tmp_path):
    wrong = ("per_device.C=partial * 2", "check_vma=false", "program=shard_map")
    done, record = run(tmp_path, "target=v5e_2x4", "mesh=x2_y4", *BIG, "++verify_dims={J:16}", *wrong)
    assert (done.returncode, record["status"]) == (1, "failed")
    assert (record["checks"]["sections"]["status"], record["checks"]["sections"]["dims"]) == ("failed", {"J": 16})
    value = record["programs"]["shard_map"]["checks"]["value"]
    assert (value["status"], value["dims"]) == ("passed", {"J": 16})
    assert "sections failed" in done.stdout


@needs_libtpu
def test_a_topology_unknown_to_libtpu_is_refused(tmp_path):
    done, record = run(tmp_path, "target.topology=v5e:3x3", "mesh=x3_y3", *(f"++dims.{dim}=9" for dim in "IJK"))
    assert (done.returncode, record["status"]) == (2, "invalid")
    assert done.stderr.startswith(
        "command line: target.topology=v5e:3x3  target.topology\n  there is no topology v5e:3x3 to compile for: "
    )
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU to compile with")
def test_a_gpu_topology_needs_a_local_gpu(tmp_path):
    done, record = run(tmp_path, "target.topology=1x1x4")
    assert (done.returncode, record["status"]) == (2, "invalid")
    assert (
        "command line: target.topology=1x1x4  target.topology\n  compiling for 1x1x4 needs one GPU of that kind here: "
    ) in done.stderr


@needs_libtpu
def test_a_program_that_exceeds_a_chips_memory_is_an_error(tmp_path):
    big = (f"++dims.{dim}=131072" for dim in "IJK")
    done, record = run(tmp_path, "target=v5e_2x4", "mesh=x2_y4", *big, "program=auto", "graph.C=A + B.T")
    assert (done.returncode, record["status"]) == (3, "error")
    assert "RESOURCE_EXHAUSTED" in record["programs"]["auto"]["error"]
