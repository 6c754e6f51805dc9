"""A sweep: one worker for all points, a failure costs only its point, sweeps resume, and end with an answer."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from runner.app.cli.sweep import Results, RunningSweep, SweepOptions
from runner.experiment.config.compose import compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.config.points import Composed, Composer
from runner.link.workers import Workers
from tests.command import ROOT, recorded, run_command, run_whole
from tests.here import Here

GOOD = """# @package _global_
defaults: [{override /mesh: MESH}]
name: NAME
arrays: {A: {shape: [4, 8], spec: [x, y]}}
graph: {C: A + 1}
outputs: {C: [x, y]}
program: auto
"""

WORKER = """
import json, os, signal, sys, time
from pathlib import Path
from runner.worker import job
from runner.worker import __main__ as worker

run = job.run

def faulty(told, emit):
    # At its first request for one of these, the worker does what the name says.
    name = told["definition"]["name"]
    with open("served.txt", "a") as served:
        served.write(f"{os.getpid()} {name}\\n")
    mark = Path(f"{name}.done")
    if name in ("crash", "hang", "kill") and not mark.exists():
        mark.touch()
        {"crash": os.abort, "hang": lambda: time.sleep(600),
         "kill": lambda: os.kill(os.getpid(), signal.SIGKILL)}[name]()
    run(told, emit)

job.run = faulty
worker.lifeline.die_with(sys.argv[1])
worker.main()
"""

COMMAND = """
import sys
from runner.link import process
process.Worker.__init__.__defaults__ = ((sys.executable, "worker.py"), (), process.spawned)
sys.argv = ["runner", *sys.argv[1:]]
from runner.__main__ import main
main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a config folder, and a command whose worker dies, hangs and crashes at its first requests for these."""
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "command.py").write_text(COMMAND)
    return tmp_path


def write(folder: Path, name: str, mesh: str = "x2_y2", **more: str) -> None:
    text = GOOD.replace("NAME", name).replace("MESH", mesh)
    for key, value in {"timeout": "15", **more}.items():
        text += f"{key}: {value}\n"
    (folder / "conf" / "experiment" / f"{name}.yaml").write_text(text)


def sweep(folder: Path, *arguments: str) -> Any:
    command = [sys.executable, "command.py", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=240, check=False, env=environment
    )


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "results.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def served(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "served.txt").read_text().splitlines()]


def written(folder: Path, names: Sequence[str]) -> dict[str, int]:
    """Return when the record of each point was written."""
    return {name: (folder / "out" / str(k) / "result.json").stat().st_mtime_ns for k, name in enumerate(names)}


BAD = ("crash", "hang", "invalid", "kill")


@pytest.mark.in_turn
def test_a_failure_costs_only_its_point_and_resume_runs_only_failures(folder: Path) -> None:
    names = sorted([*BAD, *(f"good{k:02}" for k in range(16))])
    for name in names:
        write(folder, name, **{"invalid": {"nosuch": "1"}, "hang": {"timeout": "2"}}.get(name, {}))
    done = sweep(folder, "-m", "--config-dir", "conf", f"+experiment={','.join(names)}", "hydra.sweep.dir=out")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "20 points: 16 passed, 1 invalid, 3 error; out\n" in done.stdout
    records = {name: recorded(folder / "out" / str(point)) for point, name in enumerate(names)}
    assert {name for name in names if records[name]["status"] != "passed"} == set(BAD)
    assert "no key 'nosuch'" in records["invalid"]["error"]
    for name, how in (("crash", "SIGABRT"), ("kill", "SIGKILL"), ("hang", "no result after the timeout of 2 s")):
        assert how in records[name]["error"]
    flat = rows(folder / "out")
    assert [row["status"] for row in flat if row["experiment"].startswith("good")] == ["passed"] * 16
    assert [json.loads(line)["status"] for line in (folder / "out" / "results.jsonl").read_text().splitlines()] == [
        row["status"] for row in flat
    ]
    assert "Traceback" not in done.stdout + done.stderr

    before = written(folder, names)
    (folder / "served.txt").unlink()
    for name in ("invalid", "hang"):
        write(folder, name)
    again = sweep(folder, "resume=out")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "20 points: 20 passed; out\n" in again.stdout
    assert "16 of them had passed before" in again.stdout
    assert [name for _, name in served(folder)] == list(BAD)
    after = written(folder, names)
    assert {name for name in names if after[name] != before[name]} == set(BAD)


@pytest.mark.in_turn
def test_a_point_whose_file_has_changed_is_run_again(folder: Path) -> None:
    names = ("a", "b")
    for name in names:
        write(folder, name)
    first = run_command("-m", "--config-dir", "conf", "+experiment=a,b", "hydra.sweep.dir=out", folder=folder)
    assert first.returncode == 0, first.stdout + first.stderr
    before = written(folder, names)
    write(folder, "b", seed="1")
    again = run_command("resume=out", folder=folder)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "1 of them had passed before" in again.stdout
    after = written(folder, names)
    assert [name for name in names if after[name] != before[name]] == ["b"]
    hashes = [recorded(folder / "out" / str(k))["config_hash"] for k in range(2)]
    assert len({*hashes}) == 2
    assert recorded(folder / "out" / "0")["config_folders"] == [str((folder / "conf").resolve())]


@pytest.mark.in_turn
def test_one_process_serves_points_of_any_number_of_devices(folder: Path) -> None:
    for name, mesh in (("a", "x2_y2"), ("b", "x4_y2"), ("c", "x1_y1"), ("d", "x4_y2")):
        write(folder, name, mesh)
    done = sweep(folder, "-m", "--config-dir", "conf", "+experiment=a,b,c,d", "hydra.sweep.dir=out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [name for _, name in served(folder)] == ["a", "b", "c", "d"]
    assert len({process for process, _ in served(folder)}) == 1
    assert [recorded(folder / "out" / str(k))["target"]["devices"] for k in range(4)] == [4, 8, 1, 8]


@pytest.mark.in_turn
def test_jax_settings_of_one_program_do_not_reach_the_next(folder: Path) -> None:
    write(folder, "a", precision="bfloat16")
    write(folder, "b", precision="default")
    (folder / "conf" / "experiment" / "w.yaml").write_text(
        GOOD.replace("NAME", "w").replace("MESH", "x2_y2").replace("spec:", "dtype: float64, spec:")
    )
    for file in ("a", "b"):
        path = folder / "conf" / "experiment" / f"{file}.yaml"
        path.write_text(path.read_text().replace("C: A + 1", "C: A @ A.T").replace("[x, y]}\np", "[x]}\np"))
    done = run_command("-m", "--config-dir", "conf", "+experiment=b,a,w,b,a", "hydra.sweep.dir=out", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    modules = [(folder / "out" / str(k) / "stablehlo_auto.txt").read_text() for k in range(5)]
    assert modules[0] == modules[3]
    assert modules[1] == modules[4] != modules[0]
    assert "f64" in modules[2]
    assert not any("f64" in modules[k] for k in (0, 1, 3, 4))


WRONG = """# @package _global_
defaults: [{override /mesh: x4}]
name: wrong
arrays: {A: {shape: [8, 16], spec: [null, x]}, b: {shape: [8], spec: []}}
graph: {C: "sum(A, axis=1) + b"}
per_device: {C: "psum(sum(A, axis=1) + b, 'x')"}
outputs: {C: [null]}
program: shard_map
"""


@pytest.mark.in_turn
def test_a_failed_point_is_neither_passed_nor_best(folder: Path) -> None:
    (folder / "conf" / "experiment" / "wrong.yaml").write_text(WRONG)
    start = ("-m", "--config-dir", "conf", "+experiment=wrong", "program=shard_map", "seed=1,2")
    done = run_command(*start, 'where="status != \\"failed\\""', "hydra.sweep.dir=out", folder=folder)
    assert done.returncode == 1, done.stdout + done.stderr
    assert [row["status"] for row in rows(folder / "out")] == ["failed"] * 2
    assert all(
        row["error"].startswith("sections failed: C of per_device is not graph's") for row in rows(folder / "out")
    )
    assert "the best by each measure" not in done.stdout
    assert "2 rows are left out by where=" in done.stdout


@pytest.mark.in_turn
def test_several_workers_do_what_one_does(folder: Path) -> None:
    for k in range(4):
        write(folder, f"p{k}")
    done = sweep(folder, "-m", "--config-dir", "conf", "+experiment=p0,p1,p2,p3", "workers=2", "hydra.sweep.dir=out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 points: 4 passed" in done.stdout
    assert len({process for process, _ in served(folder)}) == 2


CASE = ("+experiment=case3_allreduce", "expect.collectives=null", "expect.values=null")


@pytest.mark.in_turn
def test_all_means_every_layout_and_equivalent_points_run_once(tmp_path: Path) -> None:
    words = ("mesh.shape=all", "arrays.A.spec=all", "arrays.B.spec=[null,null]", "program=auto")
    done = run_command("-m", *CASE, *words, f"hydra.sweep.dir={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    points = rows(tmp_path)
    # A[4, 4] on 4×1 and 1×4: replicated, or sharded over the axis of four along either dimension; on 2×2 eleven ways.
    assert [row["mesh.shape"] for row in points] == ["[4,1]"] * 3 + ["[2,2]"] * 11 + ["[1,4]"] * 3
    assert len({(row["mesh.shape"], row["arrays.A.spec"]) for row in points}) == 17
    same = {int(row["point"]): int(row["same_as"]) for row in points if row["same_as"]}
    assert len(same) == 3 + 5
    assert {int(path.name) for path in tmp_path.iterdir() if path.is_dir()} == set(range(17)) - set(same)
    assert "8 of them equal another point up to a symmetry of the mesh" in done.stdout


MODEL = """
import jax.numpy as jnp


def init(n):
    return {"layer": {"w": jnp.ones((n, 3))}}


def loss(params):
    return (params["layer"]["w"] ** 2).sum()
"""


@pytest.mark.in_turn
def test_all_means_every_layout_of_a_leaf(tmp_path: Path) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "conf" / "experiment" / "leaf.yaml").write_text(
        """# @package _global_
name: leaf
program: auto
mesh: {axes: [x], shape: [2]}
imports: {model: ../../model.py}
arrays: {params: {tree: model.init(4)}}
graph: {loss: model.loss(params)}
outputs: {loss: []}
"""
    )
    command = ("-m", "--config-dir", str(tmp_path / "conf"), "+experiment=leaf")
    done = run_command(*command, "+specs.params.layer.w=all", f"hydra.sweep.dir={tmp_path}/out")
    assert done.returncode == 0, done.stdout + done.stderr
    specs = [(row["specs.params.layer.w"], row["status"], row["bytes_sent"]) for row in rows(tmp_path / "out")]
    assert specs == [("[null,null]", "passed", "0"), ("[x,null]", "passed", "4")]
    unknown = run_command(*command, "+specs.params.w=all", f"hydra.sweep.dir={tmp_path}/other")
    assert unknown.returncode == 2, unknown.stdout + unknown.stderr
    assert "+specs.params.w=all\n  no leaf 'params/w'; there are params/layer/w\n" in unknown.stderr


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["arrays.Z.spec=all"], "command line: arrays.Z.spec=all\n  no array 'Z'; there are A, B\n"),
        (["sort=bytes_snt"], "command line: sort=bytes_snt\n  no column 'bytes_snt'; did you mean 'bytes_sent'?\n"),
        (["objective=nothing"], "command line: objective=nothing\n  no measure 'nothing'; there are bytes_sent, "),
        (["where='bytes_sent <'"], "is not a condition: invalid syntax"),
        (["workers=0"], "command line: workers=0\n  the number must be at least 1\n"),
    ],
)
def test_invalid_sweep_options_are_refused_before_anything_runs(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = run_command("-m", *CASE, "dims.J=4,8", *arguments, f"hydra.sweep.dir={tmp_path}/out")
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resume=nosuch"], "command line: resume=nosuch\n  there is no such folder\n"),
        (
            ["resume=.", "dims.J=4"],
            "command line: resume=.\n  a resumed sweep keeps its arguments: leave out dims.J=4\n",
        ),
        (["resume=."], "command line: resume=.\n  it has no sweep.json: it is not the folder of a sweep\n"),
    ],
)
def test_an_impossible_resume_is_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = run_command(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


SWEEPER = """
from pathlib import Path
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper

class Asking(Sweeper):
    # As optuna's sweeper: one point at a time, each chosen by the last result.
    def __init__(self):
        self.launcher = None

    def setup(self, *, hydra_context, task_function, config):
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            config=config, hydra_context=hydra_context, task_function=task_function)

    def sweep(self, arguments):
        told, size = [], 4
        for number in range(3):
            (returned,) = self.launcher.launch([[*arguments, f"dims.K={size}"]], initial_job_idx=number)
            told.append(returned.return_value)
            size = 0 if number == 1 else size * 2
        Path("told.txt").write_text(repr(told))
        return min(filter(None, told))
"""


@pytest.mark.in_turn
def test_another_sweeper_gets_the_objective(tmp_path: Path) -> None:
    (tmp_path / "hydra_plugins" / "asking").mkdir(parents=True)
    (tmp_path / "hydra_plugins" / "asking" / "__init__.py").write_text(SWEEPER)
    (tmp_path / "conf" / "hydra" / "sweeper").mkdir(parents=True)
    (tmp_path / "conf" / "hydra" / "sweeper" / "asking.yaml").write_text("_target_: hydra_plugins.asking.Asking\n")
    where: Mapping[str, str] = {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    arguments = ("--config-dir", "conf", "hydra/sweeper=asking", "objective=auto.bytes_sent", "hydra.sweep.dir=out")
    done = run_whole("-m", *CASE, "program=auto", *arguments, folder=tmp_path, **where)
    # An all-reduce between two devices sends half of what each holds, twice: 4 × 4 and 4 × 8 floats.
    assert (tmp_path / "told.txt").read_text() == "[64.0, 128.0, None]"
    assert done.returncode == 2, done.stdout + done.stderr
    assert "3 points: 2 passed, 1 invalid; out" in done.stdout


def test_several_programs_can_be_named(tmp_path: Path) -> None:
    done = run_command(*CASE, "program=[shard_map,auto]", f"hydra.run.dir={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(recorded(tmp_path)["programs"]) == ["auto", "shard_map"]
    refused = run_command(*CASE, "program=[auto,shardmap]")
    assert refused.returncode == 2
    assert "no program 'shardmap'; did you mean 'shard_map'?" in refused.stderr


@pytest.mark.in_turn
def test_a_value_of_a_point_may_be_one_of_hydras_settings(folder: Path) -> None:
    write(folder, "a")
    given = ('summary="${hydra:job.num} in ${hydra:sweep.dir}"', "seed=${hydra:job.id}", "timeout=${hydra:job.no}")
    start = ("-m", "--config-dir", "conf", "+experiment=a", "arrays.A.spec=[x],[y]")
    done = run_command(*start, *given[:2], "hydra.sweep.dir=out", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    for point in range(2):
        config = (folder / "out" / str(point) / ".hydra" / "config.yaml").read_text()
        assert recorded(folder / "out" / str(point))["summary"] == f"{point} in out"
        assert "seed: ${hydra:job.id}" in config
    wrong = run_command(*start, given[2], "hydra.sweep.dir=wrong", folder=folder)
    assert wrong.returncode == 2
    assert "${hydra:job.no}" in recorded(folder / "wrong" / "1")["error"]


class _Composer:
    """Composes the same point for all overrides, and counts the calls."""

    def __init__(self) -> None:
        self.asked = 0

    def point(self, overrides: Sequence[str], number: int = 0) -> Composed:
        self.asked += 1
        composed = compose("case3_allreduce", conf_folder(), ["program=vmap"])
        sources = replace(composed.sources, overrides=tuple(overrides))
        return Composed(sources, replace(composed, sources=sources), None, composed.plain, {})


def test_a_point_is_composed_once_where_a_sweep_is_resumed_too(tmp_path: Path) -> None:
    composer = _Composer()
    for resume in (False, True):
        plan = SweepOptions(tmp_path, (), None, resume=resume, symmetric=True)
        results = Results()
        RunningSweep(plan, cast("Composer", composer), Workers(start=Here), results).run([("program=vmap",)], 0)
        assert results.statuses == {0: "passed"}
        assert results.kept == ({0} if resume else set())
    assert composer.asked == 2
