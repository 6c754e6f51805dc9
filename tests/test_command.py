"""The command in whole processes: the run folder, the exit statuses, sweeps, the list."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from runner.app.cli import jobs
from tests.command import EXPERIMENTS, LARGE, REFUSED, ROOT, SMALLER, alone, recorded, run_command, run_whole

CASE3 = [[152, 158, 164, 170], [504, 526, 548, 570], [856, 894, 932, 970], [1208, 1262, 1316, 1370]]


SAMPLE = (
    "case3_allreduce",
    "layer",
    "case4_forbidden",
    "collective_allgather_matmul",
    "distributed_axis_index",
    "intro_contract_constraint",
    "vector_psum",
    "vocab_parallel_embedding",
)
"""The experiments that are tried as a sweep's points and as scripts in every session; `make whole` tries all."""

SAME_WORKER = pytest.mark.xdist_group("runs")
"""All tests that read the sweeps of `runs` and `all_runs` share them."""


def swept(names: Collection[str], folder: Callable[[str], Path]) -> dict[str, Path]:
    """Run experiments in every program that they support, in two sweeps; return the run folder of each."""
    folders: dict[str, Path] = {}
    small, large = [name for name in names if name not in LARGE], [name for name in names if name in LARGE]
    for names, overrides in ((small, ()), (large, SMALLER)):
        sweep = folder("sweep")
        result = run_whole("-m", f"+experiment={','.join(names)}", *overrides, f"hydra.sweep.dir={sweep}")
        assert result.returncode == 0, result.stdout + result.stderr
        assert f"{len(names)} point{'s' if len(names) > 1 else ''}: {len(names)} passed" in result.stdout
        folders |= {recorded(run)["experiment"]: run for run in sweep.iterdir() if run.is_dir()}
    return folders


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the run folders of the sample."""
    return swept(SAMPLE, tmp_path_factory.mktemp)


@pytest.fixture(scope="module")
def all_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the run folders of all experiments."""
    return swept(EXPERIMENTS, tmp_path_factory.mktemp)


_NO_ARRAY = [f"'out' of {section} does not depend on any array" for section in ("graph", "per_device")]
WARNINGS = {
    # XLA has the collective for GPUs and TPUs.
    "ragged_moe_dispatch": [
        "program shard_map is left out: XLA has no ragged_all_to_all for CPUs: compile it for hardware that has one, "
        "as with target=v5e_2x2; the check sections holds the lines to the graph all the same",
        "program vmap is left out: per_device.received: ragged_all_to_all(sorted, room, starts, sends, there, comes, "
        "axis_name='x'): jax.vmap has no ragged_all_to_all over the axis that it maps",
    ],
    # The documents' examples of a device's own index.
    "distributed_axis_index": _NO_ARRAY,
    "distributed_fold_rng": _NO_ARRAY,
    # One permute over both axes.
    "intro_contract_constraint": [
        "program vmap is left out: per_device.total: ppermute(mine, ('x', 'y'), perm=[(0, 0), (4, 1), (1, 2), (5, 3), "
        "(2, 4), (6, 5), (3, 6), (7, 7)]): jax.vmap has no ppermute over several axes"
    ],
    # The function's own lines, which no program may change.
    "llama_step": [
        "program explicit is left out: graph.loss, new_embed, new_layers_attention_k, …: JAX's sharding types need a "
        "change inside llama.step, which no program can make. llama.py:91 x, _ = jax.lax.scan(layer, "
        'params["embed"][tokens], params[…: JAX refuses it: A single NamedSharding spec specification can map every '
        "mesh axis to at most one positional dimension, but P('data', None, 'data') has duplicate entries for `data`",
        "program vmap is left out: llama.step_of_shard takes the derivative of a collective, which jax.vmap "
        "differentiates differently",
    ],
}


@pytest.mark.in_turn
@SAME_WORKER
def test_experiments_pass_in_every_program_that_they_support(runs: dict[str, Path]) -> None:
    pass_everywhere(runs, SAMPLE)


@SAME_WORKER
@pytest.mark.whole
def test_every_experiment_passes_in_every_program_that_it_supports(all_runs: dict[str, Path]) -> None:
    pass_everywhere(all_runs, EXPERIMENTS)


def pass_everywhere(runs: dict[str, Path], names: Collection[str]) -> None:
    assert sorted(runs) == sorted(names)
    records = {name: recorded(folder) for name, folder in runs.items()}
    warnings = {
        name: [warning.split(" (JAX ")[0] for warning in record["warnings"]] for name, record in records.items()
    }
    assert {name: lines for name, lines in warnings.items() if lines} == {
        name: lines for name, lines in WARNINGS.items() if name in names
    }
    for name, record in records.items():
        assert record["status"] == "passed", name
        assert bool(record["programs"]) != (name in REFUSED), name
        for program, result in record["programs"].items():
            statuses = {check: verdict["status"] for check, verdict in result["checks"].items()}
            assert statuses["value"] == "passed", (name, program)
            assert statuses["replicas"] == "passed", (name, program)
            assert "failed" not in statuses.values(), (name, program)


ALONE = """
import importlib.util, sys
modules = []
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location(path.removesuffix(".py"), path)
    modules.append(importlib.util.module_from_spec(spec))
    spec.loader.exec_module(modules[-1])
for module in modules:
    print("-----", module.__name__)
    module.main()
"""


@SAME_WORKER
@pytest.mark.sample(8)
@pytest.mark.parametrize("name", [name for name in SAMPLE if name not in REFUSED])
def test_programs_need_no_runner_and_print_what_the_record_has(
    runs: dict[str, Path], tmp_path: Path, name: str
) -> None:
    print_what_the_record_has(runs[name], tmp_path)


@SAME_WORKER
@pytest.mark.whole
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in REFUSED])
def test_every_program_needs_no_runner_and_prints_what_the_record_has(
    all_runs: dict[str, Path], tmp_path: Path, name: str
) -> None:
    print_what_the_record_has(all_runs[name], tmp_path)


def print_what_the_record_has(folder: Path, tmp_path: Path) -> None:
    record = recorded(folder)
    scripts = [f"program_{program}.py" for program in record["programs"]]
    for script in scripts:
        text = (folder / script).read_text(encoding="utf-8")
        assert "runner" not in text
        (tmp_path / script).write_text(text, encoding="utf-8")
    printed = alone(tmp_path, "-c", ALONE, *scripts).split("----- ")[1:]
    for part, (program, result) in zip(printed, record["programs"].items(), strict=True):
        assert part.startswith(f"program_{program}\n")
        for output in result["outputs"].values():
            assert output["text"] in part, program


@pytest.mark.in_turn
@SAME_WORKER
@pytest.mark.parametrize("program", ["auto", "constraint", "explicit", "derived", "shard_map", "vmap"])
def test_a_program_is_a_script(runs: dict[str, Path], tmp_path: Path, program: str) -> None:
    folder = runs["case3_allreduce"]
    script = f"program_{program}.py"
    (tmp_path / script).write_bytes((folder / script).read_bytes())
    assert recorded(folder)["programs"][program]["outputs"]["C"]["text"] in alone(tmp_path, script)


@SAME_WORKER
def test_the_run_folder_of_case_3(runs: dict[str, Path]) -> None:
    folder = runs["case3_allreduce"]
    files = {path.name for path in folder.iterdir()}
    programs = ["auto", "constraint", "explicit", "derived", "shard_map", "vmap"]
    assert {f"program_{program}.py" for program in programs} <= files
    assert {f"hlo_{program}.txt" for program in programs} <= files
    assert {f"stablehlo_{program}.txt" for program in programs} <= files
    assert {"result.json", "shardings.txt", "shardings.svg", "runner.log", ".hydra"} <= files
    assert not [name for name in files if name.startswith(".") and name != ".hydra"]
    record = recorded(folder)
    log = (folder / "runner.log").read_text(encoding="utf-8")
    assert "\x1b" not in log
    assert "case3_allreduce: auto; constraint; explicit; derived; shard_map; vmap\n" in log
    assert all(f"] {program}: finished\n" in log for program in programs)
    for part in ("│      CPU 0-3      │", "\nC\n[[ 152.  158.", "\nall-reduce  C ", "6 of 6 programs passed"):
        assert part in log
    assert record["schema"] == 3
    assert record["mesh"] == {"axes": ["x", "y"], "shape": [2, 2]}
    assert record["target"]["platform"] == "cpu"
    assert record["target"]["devices"] == 4
    assert list(record["programs"]) == programs
    for result in record["programs"].values():
        assert result["outputs"]["C"]["values"] == CASE3
        assert result["outputs"]["C"]["shape"] == [4, 4]
        assert result["outputs"]["C"]["dtype"] == "float32"
        assert result["checks"]["value"]["max_abs_error"] == 0.0
        assert result["checks"]["values"]["outputs"]["C"]["compared"] == [2, 2]
        assert result["timing"]["compile_s"] > 0
        assert result["timing"]["run_s"]["n"] >= 1
    assert record["programs"]["shard_map"]["memory"] == {
        "argument_bytes": 64,
        "output_bytes": 64,
        "temp_bytes": 64,
        "peak_bytes": None,
        "needed_bytes": 192,
    }
    assert "all-reduce" in (folder / "hlo_shard_map.txt").read_text()


@pytest.mark.in_turn
@SAME_WORKER
def test_layer_gives_the_documents_numbers(runs: dict[str, Path]) -> None:
    record = recorded(runs["layer"])
    assert sorted(record["programs"]) == ["auto", "constraint", "derived", "explicit", "shard_map", "vmap"]
    for result in record["programs"].values():
        values = result["outputs"]["y"]["values"]
        assert values == pytest.approx([0.02138916, 0.8931118, 0.5989196, 0.9774251], rel=2e-6)
        assert result["checks"]["values"]["status"] == "passed"


@pytest.mark.in_turn
def test_a_failed_check_is_status_1_and_names_the_mistake(tmp_path: Path) -> None:
    result = run_command(
        "+experiment=layer",
        "program=shard_map",
        "per_device.product=\"psum(x @ weights + bias, 'x')\"",
        'per_device.y="sigmoid(product)"',
        f"hydra.run.dir={tmp_path}",
    )
    assert result.returncode == 1, result.stdout + result.stderr
    assert "bias is added before the psum over 'x', so that it counts 8 times" in result.stdout
    assert recorded(tmp_path)["status"] == "failed"


def test_a_wrong_pinned_value_fails(tmp_path: Path) -> None:
    result = run_command(
        "+experiment=case3_allreduce", "expect.values.C=[[152,159]]", "program=auto", f"hydra.run.dir={tmp_path}"
    )
    assert result.returncode == 1
    assert "C[0, 1] is 158.0, but expect.values pins 159" in result.stdout


@pytest.mark.in_turn
def test_pinned_values_apply_only_to_the_sizes_of_their_file(tmp_path: Path) -> None:
    result = run_command(
        "+experiment=case3_allreduce",
        "program=shard_map",
        "mesh.shape=[4,2]",
        "dims.J=1024",
        "expect.collectives=null",
        f"hydra.run.dir={tmp_path}",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    checks = recorded(tmp_path)["programs"]["shard_map"]["checks"]
    assert checks["value"]["status"] == "passed"
    assert checks["values"] == {
        "status": "not_run",
        "reason": "the file pins them for its own dims.J, which the command line overrides",
    }


@pytest.mark.in_turn
def test_in_a_sweep_a_bad_point_is_recorded_and_the_rest_runs(tmp_path: Path) -> None:
    result = run_command(
        "-m", "+experiment=case3_allreduce", "mesh=x2_y2,nosuch,x4_y2", "program=vmap", f"hydra.sweep.dir={tmp_path}"
    )
    assert result.returncode == 2, result.stdout + result.stderr
    points = [recorded(tmp_path / str(point)) for point in range(3)]
    assert [point["status"] for point in points] == ["passed", "invalid", "passed"]
    assert "no mesh 'nosuch'; there are" in points[1]["error"]
    assert "3 points: 2 passed, 1 invalid" in result.stdout
    logs = [(tmp_path / str(point) / "runner.log").read_text(encoding="utf-8") for point in range(3)]
    assert ["1 of 1 programs passed" in log for log in logs] == [True, False, True]
    assert "no mesh 'nosuch'; there are" in logs[1]
    whole = (tmp_path / "runner.log").read_text(encoding="utf-8")
    assert "3 points: 2 passed, 1 invalid" in whole
    assert "│ CPU 0,1 │ CPU 2,3 │" in whole
    assert (tmp_path / "shardings.txt").read_text(encoding="utf-8") in whole
    assert ">point 0<" in (tmp_path / "shardings.svg").read_text(encoding="utf-8")
    assert "Traceback" not in result.stdout + result.stderr


@pytest.mark.in_turn
def test_a_sweep_can_change_any_key(tmp_path: Path) -> None:
    result = run_command(
        "-m",
        "+experiment=case1_no_communication",
        "arrays.A.spec=[x],[null],[[x,y]]",
        "outputs.C=[x],[null,y]",
        "expect.no_collectives=false",
        "program=constraint",
        f"hydra.sweep.dir={tmp_path}",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "6 points: 6 passed" in result.stdout


@pytest.mark.in_turn
def test_a_sweep_of_experiments_can_change_their_common_keys(tmp_path: Path) -> None:
    names = "+experiment=case2_allgather,case3_allreduce,layer"
    result = run_command("-m", names, "dims.J=8", "program=vmap", f"hydra.sweep.dir={tmp_path}")
    assert result.returncode == 2, result.stdout + result.stderr
    points = [recorded(tmp_path / str(point)) for point in range(3)]
    assert [point["status"] for point in points] == ["passed", "passed", "invalid"]
    assert [point["arrays"]["A"]["shape"] for point in points[:2]] == [[4, 8], [4, 8]]
    assert "dims.J\n  there is no key 'J'" in points[2]["error"]
    assert points[0]["overrides"] == ["+experiment=case2_allgather", "dims.J=8", "program=vmap"]


def test_another_process_gets_the_command_without_its_workers() -> None:
    command = jobs.CommandLine(jobs.run_one)
    try:
        copy = pickle.loads(pickle.dumps(command))
        assert copy._task is jobs.run_one
        assert copy._workers is None
    finally:
        command.close(None)


def test_without_an_experiment_the_command_lists_them() -> None:
    result = run_command()
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines[1 : len(EXPERIMENTS) + 1]] == EXPERIMENTS
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines[1 : len(EXPERIMENTS) + 1])


USER = """\
# @package _global_
defaults:
  - override /mesh: pair
name: theirs
summary: A user's own file.
arrays:
  A: {shape: [4], init: "load('a.npy')", spec: [x]}
graph:
  B: A + 1
outputs:
  B: [x]
"""


@pytest.mark.in_turn
@pytest.mark.parametrize(("how", "load"), [("--config-dir", "load('a.npy')"), ("hydra.searchpath", "load ('a.npy')")])
def test_a_users_own_files_are_found(tmp_path: Path, how: str, load: str) -> None:
    import numpy as np

    (tmp_path / "experiment").mkdir()
    (tmp_path / "mesh").mkdir()
    (tmp_path / "experiment" / "theirs.yaml").write_text(USER.replace("load('a.npy')", load))
    (tmp_path / "mesh" / "pair.yaml").write_text("axes: [x]\nshape: [2]\n")
    np.save(tmp_path / "experiment" / "a.npy", np.array([1.0, 2.0, 3.0, 4.0]))
    where = ["--config-dir", str(tmp_path)] if how == "--config-dir" else [f"hydra.searchpath=[file://{tmp_path}]"]
    result = run_command(*where, "+experiment=theirs", f"hydra.run.dir={tmp_path}/run")
    assert result.returncode == 0, result.stdout + result.stderr
    assert recorded(tmp_path / "run")["programs"]["auto"]["outputs"]["B"]["values"] == [2.0, 3.0, 4.0, 5.0]
    listed = run_command(*where)
    assert "theirs" in listed.stdout
    assert "A user's own file." in listed.stdout


@pytest.mark.in_turn
def test_a_worker_that_crashes_is_status_3_with_its_last_output(tmp_path: Path) -> None:
    # XLA ends the process for a flag that it does not know.
    result = run_whole("+experiment=case3_allreduce", f"hydra.run.dir={tmp_path}", XLA_FLAGS="--xla_no_such_flag=1")
    assert result.returncode == 3, result.stdout + result.stderr
    record = recorded(tmp_path)
    assert record["status"] == "error"
    assert "the process ended with status 1, while JAX was inferring the types; its last output:" in record["error"]
    assert "xla_no_such_flag" in record["error"]


def test_a_worker_that_is_silent_too_long_is_ended_and_recorded(tmp_path: Path) -> None:
    result = run_command("+experiment=case3_allreduce", "timeout=0.001", f"hydra.run.dir={tmp_path}")
    assert result.returncode == 3, result.stdout + result.stderr
    record = recorded(tmp_path)
    assert record["status"] == "error"
    assert record["error"].startswith(
        (
            "no result after the timeout of 0.001 s, while ",
            "making the arrays took longer than the timeout of 0.001 s",
            # Events that the worker sent while the parent was busy arrived in time.
            "the reference took longer than the timeout of 0.001 s",
        )
    )


def test_the_console_script_and_the_module_are_the_same_command() -> None:
    script = Path(sys.executable).with_name("shardproof")
    if not script.exists():
        pytest.skip("the console script is not installed in this environment")
    printed = subprocess.run([script], capture_output=True, text=True, check=False, cwd=ROOT).stdout
    assert printed.replace("Run one: shardproof ", "Run one: python -m runner ") == run_whole().stdout


@pytest.mark.in_turn
def test_a_closed_pipe_ends_the_command_quietly() -> None:
    command = f"{sys.executable} -m runner +experiment=case3_allreduce program=auto --cfg job | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.stderr == ""


def test_help_is_shardproofs_not_hydras() -> None:
    result = run_command("--help")
    assert result.returncode == 0
    assert result.stdout.startswith("Shardproof runs a sharded JAX computation from one YAML file")
