"""An experiment over several JAX processes has the record of one process; the end of one process ends all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.app.flow import run as flow
from runner.experiment.config.compose import compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.config.sources import Sources
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.link import lifeline
from runner.link.events import Finished, Started
from runner.link.jobs import job
from runner.link.steps import Step
from runner.link.together import Together
from runner.link.workers import Workers
from tests.command import EXPERIMENTS, LARGE, ROOT, SMALLER, recorded

TIMES = ("time", "timing", "environment", "overrides")
"""The fields that may differ between two equal runs."""


def documented() -> list[str]:
    """Return the experiments of the source documents that have a program `shard_map` on several devices.

    Without those that import a Python file, which `flow.run` looks for beside the experiment's own.
    """
    named = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")))
    text = {name: (ROOT / "conf" / "experiment" / f"{name}.yaml").read_text(encoding="utf-8") for name in EXPERIMENTS}
    return [
        name
        for name in sorted(named & set(EXPERIMENTS))
        if re.search(r"^(per_device|both):", text[name], re.MULTILINE)
        and "\n  invalid: " not in text[name]
        and not re.search(r"^imports:", text[name], re.MULTILINE)
    ]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    kept = Workers()
    yield kept
    kept.close()


def given(name: str, processes: int) -> dict[str, Any]:
    """Return the configuration of an experiment over several processes."""
    plain = compose(name, conf_folder(), SMALLER if name in LARGE else ()).plain
    return {**plain, "target": {**plain["target"], "processes": processes}}


def ran(name: str, folder: Path, workers: Workers, processes: int, **changes: Any) -> Any:
    """Return the record of an experiment without the times."""
    folder.mkdir(parents=True, exist_ok=True)
    flow.run({**given(name, processes), **changes}, folder, Sources(), workers=workers)
    return without_times(recorded(folder))


def without_times(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: without_times(value) for key, value in plain.items() if key not in TIMES}
    return [without_times(value) for value in plain] if isinstance(plain, list) else plain


def rounded(plain: Any, checks: bool = False) -> Any:
    """Return a record without what depends on the order of a sum: the digits of results and of errors."""
    if isinstance(plain, dict):
        kept = {key: value for key, value in plain.items() if key not in ("text", "values")}
        return {key: rounded(value, checks or key in ("checks", "trace")) for key, value in kept.items()}
    if isinstance(plain, list):
        return [rounded(value, checks) for value in plain]
    return None if checks and isinstance(plain, float) else plain


def of_one(plain: Any) -> Any:
    """Return a record without the processes of its devices."""
    if isinstance(plain, dict):
        return {
            key: of_one(value) for key, value in plain.items() if key not in ("process", "processes", "config_hash")
        }
    return [of_one(value) for value in plain] if isinstance(plain, list) else plain


def values(record: Any) -> list[tuple[str, np.ndarray]]:
    """Return the values of every output of every program."""
    return [
        (f"{name} of {program}", np.array(output["values"], np.float64))
        for program, result in record["programs"].items()
        for name, output in result.get("outputs", {}).items()
        if output["values"] is not None and output["dtype"].startswith(("float", "bfloat"))
    ]


def same(name: str, folder: Path, workers: Workers, processes: int, **changes: Any) -> Any:
    """Return the record of several processes after comparing it with that of one.

    Gloo adds in another order than one process does.
    """
    several, single = (ran(name, folder / str(n), workers, n, **changes) for n in (processes, 1))
    assert several["target"]["processes"] == processes
    assert rounded(of_one(several)) == rounded(of_one(single))
    for (which, computed), (_, due) in zip(values(several), values(single), strict=True):
        np.testing.assert_allclose(computed, due, rtol=1e-2, atol=1e-2 * np.abs(due).max(initial=0), err_msg=which)
    return several


@pytest.mark.in_turn
def test_a_run_over_two_processes_has_twins(tmp_path: Path, workers: Workers) -> None:
    record = ran("layer", tmp_path, workers, 2, program=["shard_map"], verify="twin")
    outputs = record["programs"]["shard_map"]["checks"]["value"]["outputs"]
    assert [output["twin"]["status"] for output in outputs.values()] == ["passed"]
    assert (tmp_path / "twin_shard_map.py").exists()


@pytest.mark.in_turn
def test_two_processes_of_two_devices_have_the_record_of_one_of_four(tmp_path: Path, workers: Workers) -> None:
    record = same("case3_allreduce", tmp_path, workers, 2, program=["shard_map", "vmap"], trace=True)
    # Its values are integers.
    assert values(record)[0][1][0].tolist() == [152, 158, 164, 170]
    assert record["status"] == "passed"
    assert list(record["programs"]) == ["shard_map", "vmap"]
    held = record["programs"]["shard_map"]["outputs"]["C"]["shards"] + record["arrays"]["A"]["shards"]
    assert [(each["device"], each["process"]) for each in held] == [(0, 0), (1, 0), (2, 1), (3, 1)] * 2
    assert [(device["id"], device["process"]) for device in record["trace"]["devices"]] == [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 1),
    ]
    assert record["pictures"]["mesh"]["processes"] == [[0, 1], [2, 3]]
    assert not list((tmp_path / "2").glob("process_*"))
    assert coordinators() == {"0100007F"}


def coordinators() -> set[str]:
    """Return the hexadecimal addresses at which the first worker of this process with a coordinator listens."""
    me = Path("/proc/self")
    workers = [*lifeline._below(os.getpid())]
    sockets: set[str] = set()
    port = 0
    for pid in workers:
        command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "runner.worker" in command and command[-4:-2] == ["0", "2"]:
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                sockets.add(handle.readlink().name.removeprefix("socket:[").rstrip("]"))
            port = int(command[-2].rpartition(":")[2])
    lines = [line.split() for name in ("tcp", "tcp6") for line in (me / "net" / name).read_text().splitlines()[1:]]
    heard = [line[1].split(":") for line in lines if line[3] == "0A" and line[9] in sockets]
    # An IPv6-mapped address has the same ending.
    return {where[-8:] for where, at in heard if int(at, 16) == port}


@pytest.mark.whole
@pytest.mark.parametrize("name", documented())
def test_the_documents_have_the_same_record_over_several_processes(name: str, tmp_path: Path, workers: Workers) -> None:
    devices = read(given(name, 1)).mesh.size
    if devices == 1:
        assert ran(name, tmp_path, workers, 2)["status"] == "invalid"
        return
    processes = next(n for n in range(2, devices + 1) if devices % n == 0)
    # `auto` computes values that depend on no array on one device of each process.
    changes = {} if given(name, 1)["arrays"] else {"program": ["explicit", "derived", "shard_map", "vmap"]}
    assert same(name, tmp_path, workers, processes, **changes)["status"] == "passed"


@pytest.mark.whole
def test_a_killed_process_ends_its_program_and_the_rest_runs(tmp_path: Path) -> None:
    started: list[Together] = []

    def start(count: int) -> Together:
        started.append(Together(count))
        return started[-1]

    workers = Workers(start_together=start)
    experiment = read(given("case3_allreduce", 2))
    events = workers.submit(
        job(experiment, tmp_path, tmp_path, str(tmp_path), [Step(Program.AUTO), Step(Program.VMAP)]),
        "cpu",
        60.0,
        2,
    )
    errors: list[str | None] = []
    try:
        for event in events:
            if isinstance(event, Started) and len(started) == 1:
                # It is compiling.
                started[0]._members[1].kill()
            if isinstance(event, Finished):
                errors.append(event.error)
    finally:
        workers.close()
    assert errors == ["process 1 of 2 was ended by SIGKILL", None]
    assert len(started) == 2


@pytest.mark.whole
def test_the_program_runs_alone_in_each_process(tmp_path: Path, workers: Workers) -> None:
    ran("case3_allreduce", tmp_path, workers, 2, program="shard_map", trace=True)
    for program in ("shard_map", "trace"):
        command = [sys.executable, "-I", "-W", "error", f"program_{program}.py"]
        processes = [
            subprocess.Popen(
                [*command, str(n)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for n in range(2)
        ]
        for process in processes:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            assert "[1208. 1262. 1316. 1370.]" in out
