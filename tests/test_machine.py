"""Failures of the machine: a full disk, no permission, streams that are closed or know few characters."""

from __future__ import annotations

import errno
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.app.cli import single, streams
from tests.command import ROOT, recorded
from tests.server import command

RUN = ("+experiment=case3_allreduce", "program=shard_map", "show=none")


BEFORE = """
import os, resource, signal, sys
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
exec(sys.argv[1])
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""Code that starts a process as a terminal does, with interrupts enabled, after some preparation."""


def started(
    *arguments: str, folder: Path, before: str = "", strict: bool = True, module: str = "runner", **more: Any
) -> subprocess.Popen[str]:
    """Return a command in its own process, in which `before` runs first; `strict`: warnings are errors."""
    return subprocess.Popen(
        [sys.executable, "-c", BEFORE, before, *(("-W", "error") if strict else ()), "-m", *module.split(), *arguments],
        cwd=folder,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(ROOT), **more.pop("env", {})},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
    )


def small_files(limit: int) -> str:
    """Return code that limits the size of files, with an `OSError`, and disables byte code, which would fail too."""
    return (
        "os.environ['PYTHONDONTWRITEBYTECODE'] = '1'\n"
        f"signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    )


@pytest.mark.in_turn
@pytest.mark.parametrize("limit", [600, 3000, 5000])
def test_without_room_on_the_disk_there_is_one_message_and_no_half_a_record(tmp_path: Path, limit: int) -> None:
    process = started(*RUN, "hydra.run.dir=run", folder=tmp_path, before=small_files(limit))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 3, out + err
    assert "File too large" in err
    assert "Traceback" not in out + err
    assert "bug in shardproof" not in out + err
    left = tmp_path / "run" / "result.json"
    assert not left.exists() or recorded(left.parent)["status"] == "error"


@pytest.mark.in_turn
def test_a_sweep_without_room_ends_with_its_table(tmp_path: Path) -> None:
    sweep = ("-m", *RUN, "dims.J=4,8", "hydra.sweep.dir=sweep")
    process = started(*sweep, folder=tmp_path, before=small_files(5000))
    out, err = process.communicate(timeout=120)
    assert process.returncode == 3, out + err
    assert "Traceback" not in out + err
    assert err.startswith("File too large")
    assert "2 of 2 points left no record" in out


@pytest.mark.in_turn
@pytest.mark.parametrize("module", ["runner derive", "runner mutate", "runner plan"])
def test_the_other_commands_have_one_message_too(tmp_path: Path, module: str) -> None:
    limit = small_files(300)
    wanted = ("per_device=null", "expect=null", "arrays.A.spec=auto") if module == "runner plan" else ()
    process = started(RUN[0], *wanted, "hydra.run.dir=run", folder=tmp_path, before=limit, module=module)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 3, out + err
    assert "File too large" in err
    assert "Traceback" not in out + err
    assert "bug in shardproof" not in out + err


def test_an_error_of_the_machine_is_not_reported_as_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    def work(*_: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device", "mutants.json")

    job: Any = SimpleNamespace(resolved=lambda: None, folder=Path("run"))
    worker: Any = None
    assert single._task(work, job, worker) == "error"
    assert capsys.readouterr().err == "mutants.json: No space left on device\n"


def test_an_impossible_folder_is_reported_with_the_systems_reason(tmp_path: Path) -> None:
    done = command(tmp_path, *RUN, "hydra.run.dir=/proc/nowhere")
    assert done.returncode == 3, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "/proc/nowhere" in done.stderr


@pytest.mark.parametrize("folder", ["file/run", "file"])
def test_a_file_is_no_folder_for_a_run(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("kept")
    done = command(tmp_path, *RUN, f"hydra.run.dir={folder}")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr == (
        f"command line: hydra.run.dir\n  {folder} is a file, or below one; name a folder that is empty, or not there\n"
    )
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.in_turn
def test_standard_output_that_is_full_or_closed_is_no_success(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        process = started(*RUN, folder=tmp_path, stdout=full)
        assert process.communicate(timeout=120)[1] == "No space left on device\n"
        assert process.returncode == 3
    process = started(*RUN, folder=tmp_path, stdout=None, before="os.close(1)")
    assert process.communicate(timeout=120)[1] == "standard output is closed\n"
    assert process.returncode == 3


@pytest.mark.in_turn
def test_a_stream_that_knows_only_ascii_gets_plain_characters(tmp_path: Path) -> None:
    process = started(*RUN[:2], folder=tmp_path, env={"PYTHONIOENCODING": "ascii"})
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.isascii()
    assert "mesh x=2 x y=2 on 4 simulated cpu devices" in out
    assert "\\x" not in out
    assert "\\u" not in out


def test_every_character_that_the_source_prints_has_a_plain_one() -> None:
    streams.ready()
    for file in (ROOT / "runner" / "reports" / "show").glob("*.py"):
        text = file.read_text(encoding="utf-8")
        plain = text.encode("ascii", "plain").decode()
        assert plain.count("\\") == text.count("\\"), file


def test_a_message_on_a_terminal_breaks_between_words_and_a_command_stays_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, there = pty.openpty()
    with os.fdopen(there, "w") as terminal, os.fdopen(here, "rb", buffering=0) as screen:
        monkeypatch.setenv("COLUMNS", "40")
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(sys, "stdout", sys.stdout)
        streams.ready()
        command_line = "to go on: python -m runner case3_allreduce dims.I=8 resume=outputs"
        source = "    return jax.lax.psum(jnp.mean(error**2), 'data')"
        print(f"a.yaml:3\n  mesh axis 'z' does not exist; the mesh has x, y\n{source}\n{command_line}", file=sys.stderr)
        sys.stderr.flush()
        lines = screen.read(1000).decode().splitlines()
    assert lines == ["a.yaml:3", "  mesh axis 'z' does not exist; the mesh", "    has x, y", source, command_line]


def test_a_folder_is_of_one_run(tmp_path: Path) -> None:
    first = command(tmp_path, *RUN, "hydra.run.dir=run")
    assert first.returncode == 0, first.stderr
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    again = command(tmp_path, *RUN, "dims.J=8", "hydra.run.dir=run")
    assert again.returncode == 2
    assert again.stderr == (
        "command line: hydra.run.dir\n"
        "  run is the folder of another run, which would be lost: remove it, or name another one\n"
    )
    assert {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("name", ["../../escape", "..", "a/b", "~/x", "-rf", "/abs", "x" * 300])
def test_a_name_that_no_folder_can_have_creates_none_elsewhere(tmp_path: Path, name: str) -> None:
    home = tmp_path / "a" / "b"
    home.mkdir(parents=True)
    done = command(home, *RUN, f"name='{name}'")
    assert done.returncode == 2, done.stdout + done.stderr
    (folder,) = (path.parent for path in tmp_path.rglob("result.json"))
    assert folder.parent == home / "outputs" / "unnamed"


@pytest.mark.in_turn
def test_an_interrupted_sweep_shows_what_is_done(tmp_path: Path) -> None:
    sweep = ("-m", *RUN, "dims.J=4,8,12,16,20,24,28,32", "hydra.sweep.dir=sweep")
    # Python's own os.walk leaves an iterator open when it is interrupted, and warns about it.
    process = started(*sweep, folder=tmp_path, strict=False)
    second = tmp_path / "sweep" / "1" / "result.json"
    while not second.exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith("interrupted\n")
    assert "Traceback" not in err
    done = len([path for path in (tmp_path / "sweep").iterdir() if (path / "result.json").exists()])
    assert 2 <= done < 8
    assert f"{done} points: {done} passed" in out
    assert f"{8 - done} of 8 points left no record" in out
    assert all(recorded(tmp_path / "sweep" / str(point))["status"] == "passed" for point in range(done))
