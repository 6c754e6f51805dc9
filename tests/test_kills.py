"""A signal at any moment of a run or a sweep leaves no process, no partial file, and the other points complete.

The moments are drawn from a seed for each case. A session tries a few; `make faults` tries two hundred.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.command import ROOT, recorded
from tests.test_machine import started

CASES = 200
SAMPLE = 70
"""Every session tries one in this many moments."""

_MARK = "SHARDPROOF_TEST"
_LONGEST = 4.0
"""Seconds until a sweep of three has begun its second or third point."""

_GRACE = 2.0
"""Seconds after which no process may be left."""

SINGLE = ("+experiment=tensor_parallel_mlp", "hydra.run.dir=out")
SWEEP = ("-m", "+experiment=case3_allreduce", "dims.J=4,8,12", "hydra.sweep.dir=out")
POINTS = 3

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")


def processes(mark: str) -> dict[int, str]:
    """Return the processes that have the mark in their environment, with their command lines."""
    commands: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if state != "Z":
                    commands[int(folder.name)] = command
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            # It has ended meanwhile, or is not ours.
            continue
    return commands


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.whole] if case % SAMPLE else []) for case in range(CASES)]
)
def test_a_signal_leaves_nothing_behind(tmp_path: Path, case: int) -> None:
    draw = random.Random(case)
    sweep = draw.random() < 0.5
    of_worker = draw.random() < 0.3
    number = (
        signal.SIGKILL if of_worker else draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
    )
    mark = f"{_MARK}={uuid.uuid4().hex}"
    several = ("target.processes=2",) if case % 3 == 2 else ()
    process = started(
        *(SWEEP if sweep else SINGLE), *several, folder=tmp_path, strict=False, env={_MARK: mark.split("=")[1]}
    )
    time.sleep(draw.uniform(0, _LONGEST))
    struck = [pid for pid, command in processes(mark).items() if "runner.worker" in command] if of_worker else []
    for pid in struck if of_worker else [process.pid]:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            # It has ended meanwhile.
            continue
    out, err = process.communicate(timeout=120)
    deadline = time.monotonic() + _GRACE
    while (left := processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left
    if number == signal.SIGINT and "KeyboardInterrupt" in err and "__main__.py" not in err:
        # Python had not started the runner yet, and prints its own message.
        return
    assert "Traceback" not in err, err
    assert "bug in shardproof" not in out + err, err
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
    records = [recorded(path.parent) for path in tmp_path.rglob("result.json")]
    if of_worker or process.returncode == 0:
        assert len(records) == (POINTS if sweep else 1)
        assert sum(record["status"] != "passed" for record in records) <= len(struck)
    else:
        assert process.returncode in (-number, 128 + number), (out, err)
        assert all(record["status"] == "passed" for record in records)


CHECK = """
import numpy as np, runner
from jax.sharding import PartitionSpec as P
{starts}
if __name__ == "__main__":
    for _ in range(20):
        runner.check(twice, (np.ones((4, 2), "f4"),), mesh={"x": 2}, in_specs=P("x"), quiet=True)
"""
TEST = """
import numpy as np, pytest
from jax.sharding import PartitionSpec as P
{starts}
@pytest.mark.parametrize("case", range(20))
def test_it(sharded, case):
    sharded(twice, (np.ones((4, 2), "f4"),), mesh={"x": 2}, in_specs=P("x"))
"""
FORKS = """
import multiprocessing, os, time

def started():
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()

def twice(x):
    started()
    return 2 * x
"""
OPEN = ("arrays.A.spec=auto", "per_device=null", "expect=null")
COMMANDS = {
    "run": ["-m", "runner", "forks.yaml", "hydra.run.dir=out"],
    "sweep": ["-m", "runner", "-m", "forks.yaml", "seed=1,2,3,4,5,6", "hydra.sweep.dir=out"],
    "plan": ["-m", "runner", "plan", "case3_allreduce", *OPEN, "hydra.run.dir=out"],
    "mutate": ["-m", "runner", "mutate", "tensor_parallel_mlp", "hydra.run.dir=out"],
    "runner.sweep": ["sweep.py"],
    "check": ["check.py"],
    "fixture": ["-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "test_mine.py"],
}
"""Commands whose modules fork where they import any."""

INTERRUPTIONS = 70
"""`make faults` interrupts each command at ten moments; a session tries one."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.whole] if case != 4 else []) for case in range(INTERRUPTIONS)]
)
def test_a_signal_to_any_command_leaves_no_process_and_no_temporary_file(tmp_path: Path, case: int) -> None:
    from runner.link import scratch
    from tests.test_forks import EXPERIMENT, SWEEP, interruptible

    draw, name = random.Random(case), list(COMMANDS)[case % len(COMMANDS)]
    (tmp_path / "forks.yaml").write_text(EXPERIMENT)
    (tmp_path / "forks.py").write_text(FORKS)
    (tmp_path / "sweep.py").write_text(SWEEP)
    (tmp_path / "check.py").write_text(CHECK.replace("{starts}", FORKS))
    (tmp_path / "test_mine.py").write_text(TEST.replace("{starts}", FORKS))
    (tmp_path / "tmp").mkdir()
    number = draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
    mark = uuid.uuid4().hex
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "tmp"), _MARK: mark}
    with subprocess.Popen(
        interruptible([sys.executable, *COMMANDS[name]]),
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        time.sleep(draw.uniform(0.5, 2 * _LONGEST))
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    deadline = time.monotonic() + 2 * _GRACE
    while (left := processes(f"{_MARK}={mark}")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, (name, number)
    assert "bug in shardproof" not in out + err
    files = list((tmp_path / "tmp").iterdir())
    if name in ("run", "sweep", "plan", "mutate", "runner.sweep") and number != signal.SIGKILL:
        assert not files, (name, number)
    # The process of somebody else's script just ends: the next command removes what it has left.
    for path in files:
        os.utime(path, (1, 1))
    abandoned: list[str] = []
    while deadline > time.monotonic() - _GRACE:
        # The system gives the memory of a killed process back before it releases its locks.
        scratch.remove_abandoned.__wrapped__(tmp_path / "tmp")
        abandoned = [path.name for path in (tmp_path / "tmp").iterdir() if path.name.startswith(scratch.PREFIX)]
        if not abandoned:
            return
        time.sleep(0.05)
    raise AssertionError(f"{name} after {number!r} leaves {abandoned}")
