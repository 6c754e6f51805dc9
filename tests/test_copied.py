"""A worker that is a copy of the caller's process: as separate as a new process, and with the same results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from runner.link import copied
from runner.link.process import COMMAND, Worker
from tests.command import ROOT, errors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux copies processes")


def script(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run `copies.py`, which does not look for TPUs although libtpu is installed, and return what it saw."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    line = [sys.executable, str(ROOT / "tests" / "copies.py"), str(folder), *arguments]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, errors(done.stderr)) == (0, "")
    first, _, last = done.stdout.partition("\n")
    assert first == "not flushed"
    return json.loads(last)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return script(tmp_path_factory.mktemp("copies"))


@pytest.mark.in_turn
def test_a_script_without_devices_is_copied(report: dict[str, Any]) -> None:
    assert report["workers"] == ["the worker is a copy of this process, which has imported JAX"] * 6
    assert report["last"] == "the worker is a new process, since JAX has devices here"
    assert report["results"]["afterwards"]["status"] == "passed"
    assert [report["results"][name]["worker"] for name in ("intruding", "ending", "afterwards")] == [
        ["copy", None], ["copy", None], ["new", "JAX has devices here"],
    ]  # fmt: skip


def test_what_a_function_does_stays_in_the_copy(report: dict[str, Any]) -> None:
    results = report["results"]
    assert results["intruding"]["status"] == "passed"
    assert "a word on standard output" in results["intruding"]["log"]
    assert results["ending"]["error"] == "the process ended with status 3, while ending was traced"
    assert results["hanging"]["error"].startswith("no result after the timeout of 1 s, while ")
    assert report["here"] == {"intruded": False, "x64": False, "devices": 1}


def test_a_check_has_the_callers_settings_but_not_those_that_prevent_it(report: dict[str, Any]) -> None:
    assert (report["results"]["wide"]["status"], report["results"]["wide"]["outputs"]) == (
        "passed",
        {"result": "float64"},
    )
    assert report["results"]["strict"]["status"] == "invalid"


@pytest.mark.in_turn
def test_a_new_process_gives_the_same_results(report: dict[str, Any], tmp_path: Path) -> None:
    other = script(tmp_path, "threads")
    assert other["workers"] == ["the worker is a new process, since this process has several threads"] * 5
    for name in other["results"]:
        same = [
            {key: each["results"][name][key] for key in ("status", "arrays", "outputs")} for each in (other, report)
        ]
        assert same[0] == same[1]
    assert other["results"]["state"]["arrays"] == ["state_weight", "x"]


def test_a_process_is_not_copied_where_a_lock_could_stay_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "jax")
    assert copied.unsafe() == "JAX is not imported"
    monkeypatch.undo()
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        assert copied.unsafe() == "this process has several threads"
    finally:
        over.set()
        other.join()


COPYING = f"""
import sys, threading, time
sys.path.insert(0, {str(ROOT)!r})
import jax
from runner.link import copied
from runner.link.process import COMMAND, Worker
worker = Worker((*COMMAND[:-1], "runner.absent"), start=copied.started)
print(worker.ended("it"))
worker.close()
worker = copied.worker()
worker.listen()
print(worker._process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.in_turn
def test_a_copy_ends_with_its_original_and_says_how_it_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", COPYING], stdout=subprocess.PIPE, text=True) as original:
        assert original.stdout is not None
        assert original.stdout.readline() == "it ended with status 1\n"
        copy = int(original.stdout.readline())
        os.kill(copy, 0)
        original.kill()
    for _ in range(200):
        if not Path(f"/proc/{copy}").exists() or "Z" in Path(f"/proc/{copy}/stat").read_text().split(")")[1]:
            return
        threading.Event().wait(0.05)
    raise AssertionError("the copy outlives its original")


def test_a_library_that_has_started_threads_prevents_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copied, "unsafe", lambda: None)
    monkeypatch.setattr(copied, "_threads", lambda: 5)
    monkeypatch.setattr(copied, "_Copy", _Unused)
    worker = Worker(COMMAND, start=copied.started)
    assert isinstance(worker._process, subprocess.Popen)
    assert worker.launch is not None
    assert worker.launch[1:] == (False, "a library has started threads")
    assert _Unused.ended == ["killed", "waited", "closed"]
    worker.close()


class _Unused:
    """A copy that is not used."""

    ended: ClassVar[list[str]] = []

    def __init__(self, *_: Any) -> None: ...

    def kill(self) -> None:
        self.ended.append("killed")

    def wait(self) -> None:
        self.ended.append("waited")

    def close(self) -> None:
        self.ended.append("closed")
