"""What a user's module starts ends with its run: nobody waits for it, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.command import ROOT, run_whole
from tests.test_kills import processes

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")

_MARK = "SHARDPROOF_TEST"

EXPERIMENT = """# @package _global_
name: forks
mesh: {axes: [x], shape: [2]}
imports: {m: forks.py}
arrays: {A: {shape: [4], spec: [x]}}
graph: {C: m.twice(A)}
outputs: {C: [x]}
program: auto
"""

STARTS = """
import ctypes, multiprocessing, os, subprocess, threading, time

def wait():
    time.sleep(600)
    os._exit(0)

if os.fork() == 0:
    wait()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        wait()
    os._exit(0)
if ctypes.CDLL(None).fork() == 0:
    # Python does not know of this one, which keeps the worker's pipes.
    wait()
multiprocessing.get_context("fork").Process(target=wait).start()
thread = threading.Thread(target=multiprocessing.get_context("fork").Process(target=wait).start)
thread.start()
thread.join()
subprocess.Popen(["sleep", "600"], start_new_session=True, close_fds=False)

def twice(x):
    {before}
    return 2 * x
"""


def written(folder: Path, before: str = "pass") -> str:
    """Write an experiment whose module starts processes, and return a mark for them all."""
    (folder / "forks.yaml").write_text(EXPERIMENT, encoding="utf-8")
    (folder / "forks.py").write_text(STARTS.replace("{before}", before), encoding="utf-8")
    return uuid.uuid4().hex


def left(mark: str, seconds: float = 3.0) -> dict[int, str]:
    """Return the processes with a mark that are left after some time."""
    deadline = time.monotonic() + seconds
    while (running := processes(f"{_MARK}={mark}")) and time.monotonic() < deadline:
        time.sleep(0.02)
    return running


@pytest.mark.in_turn
def test_a_run_ends_while_processes_that_a_module_forked_would_go_on(tmp_path: Path) -> None:
    mark = written(tmp_path)
    done = run_whole("forks.yaml", "hydra.run.dir=out", folder=tmp_path, **{_MARK: mark})
    assert done.returncode == 0, done.stdout + done.stderr
    assert not left(mark)


@pytest.mark.in_turn
def test_a_worker_that_dies_is_reported_while_its_children_hold_its_pipes(tmp_path: Path) -> None:
    mark = written(tmp_path, "os.abort()")
    done = run_whole("forks.yaml", "hydra.run.dir=out", folder=tmp_path, **{_MARK: mark})
    assert done.returncode == 3
    assert "SIGABRT" in done.stdout + done.stderr
    assert not left(mark)


_TAKING_INTERRUPTS = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def interruptible(command: Sequence[str]) -> list[str]:
    """Return a command that takes signals which it would ignore where the tests run in the background, or by nohup."""
    return [sys.executable, "-c", _TAKING_INTERRUPTS, *command]


def interrupted(command: list[str], how: signal.Signals, mark: str, folder: Path, marker: Path) -> None:
    """Interrupt a command once the `marker` is there; no process with the mark is left, and no temporary file."""
    (folder / "tmp").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), _MARK: mark}
    with subprocess.Popen(interruptible(command), cwd=folder, env=environment, stderr=subprocess.PIPE) as process:
        while not marker.exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(how)
        process.communicate(timeout=60)
    assert not left(mark)
    temporary = list((folder / "tmp").iterdir())
    # The folder of a command that was killed is removed by the next one.
    assert [path.name for path in temporary if how != signal.SIGKILL or "shardproof-run-" not in path.name] == []


@pytest.mark.sample(3)
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_process_and_no_temporary_file(how: signal.Signals, tmp_path: Path) -> None:
    mark = written(tmp_path, "open('begun', 'w').close(); time.sleep(600)")
    command = [sys.executable, "-m", "runner", "forks.yaml", "hydra.run.dir=out"]
    interrupted(command, how, mark, tmp_path, marker=tmp_path / "begun")


SWEEP = """
import runner
experiment = {
    "name": "mine", "mesh": {"axes": ["x"], "shape": [2]}, "dims": {"J": 4},
    "arrays": {"A": {"shape": ["J"], "spec": ["x"]}},
    "graph": {"C": "A * 2"}, "outputs": {"C": ["x"]}, "program": "auto",
}
runner.sweep(experiment, {"dims.J": tuple(range(4, 400, 4))}, folder="out")
"""


@pytest.mark.sample(4)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_sweep_from_python_ends_with_its_caller(how: signal.Signals, tmp_path: Path) -> None:
    interrupted([sys.executable, "-c", SWEEP], how, uuid.uuid4().hex, tmp_path, marker=tmp_path / "out" / "0")


CHECKS = """
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from jax.sharding import PartitionSpec as P

A = np.ones((8, 8), np.float32)


def check(sharded):
    return sharded(lambda a: a * 2, (A,), mesh={"x": 4}, in_specs=P("x"))


def test_in_a_thread(sharded):
    thread = threading.Thread(target=check, args=(sharded,))
    thread.start()
    thread.join()


def test_after_it(sharded):
    check(sharded)


def test_in_several_threads(sharded):
    with ThreadPoolExecutor(3) as threads:
        assert [each.status for each in threads.map(lambda _: check(sharded), range(4))] == ["passed"] * 4


def test_after_them(sharded):
    check(sharded)
"""


@pytest.mark.in_turn
def test_a_worker_serves_several_threads_and_outlives_the_one_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(CHECKS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert "4 passed" in done.stdout, done.stdout
