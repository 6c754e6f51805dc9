"""Temporary folders: no file of a run, of libtpu or of a killed process stays in the shared folder."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.link import scratch
from tests.command import ROOT, run_whole

RUN = ("+experiment=case3_allreduce", "program=auto", "show=none", "hydra.run.dir=run")


@pytest.mark.in_turn
def test_a_run_leaves_nothing_in_the_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    done = run_whole(*RUN, folder=tmp_path, TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.in_turn
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
def test_libtpu_leaves_nothing_in_the_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    done = run_whole(*RUN, "target=v5e_2x2", folder=tmp_path, TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "tmp").iterdir()) == []
    # Neither does it where the program's file is run by hand.
    file = [sys.executable, "run/program_auto.py"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    alone = subprocess.run(file, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert alone.returncode == 0, alone.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


HOLD = """
import sys, time
from runner.link import scratch
print(scratch.Folder("held").path, flush=True)
time.sleep(60)
"""


def test_the_folder_of_a_killed_process_is_removed_by_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert holder.stdout is not None
    held = Path(holder.stdout.readline().strip())
    os.utime(held, (1, 1))
    scratch.remove_abandoned.cache_clear()
    scratch.Folder().remove()
    assert held.is_dir()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    scratch.remove_abandoned.cache_clear()
    scratch.Folder().remove()
    assert not held.exists()


def test_a_folder_that_was_not_made_here_stays_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ours = scratch.Folder("ours")
    # A copy of one, with what somebody put there.
    copy = tmp_path / f"{scratch.PREFIX}copy"
    shutil.copytree(ours.path, copy)
    thesis = tmp_path / f"{scratch.PREFIX}thesis"
    thesis.mkdir()
    for folder in (copy, thesis):
        (folder / "chapter.tex").write_text("mine")
        os.utime(folder, (1, 1))
    scratch.remove_abandoned.cache_clear()
    ours.remove()
    assert {path.name for path in tmp_path.iterdir()} == {copy.name, thesis.name}
    assert (thesis / "chapter.tex").read_text() == (copy / "chapter.tex").read_text() == "mine"


def test_an_empty_folder_of_such_a_name_is_removed_by_a_later_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names = f"{scratch.PREFIX}0123456789abcdef", f"{scratch.PREFIX}run-0123456789abcdef"
    full, empty = (tmp_path / name for name in names)
    for folder in (full, empty):
        folder.mkdir()
    (full / "mine").touch()
    for folder in (full, empty):
        os.utime(folder, (1, 1))
    scratch.remove_abandoned.cache_clear()
    scratch.Folder().remove()
    assert list(tmp_path.iterdir()) == [full]


def test_a_folder_to_which_a_worker_writes_is_removed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    # The workers of other tests in this process keep theirs.
    monkeypatch.setattr(scratch, "_OWN", set())
    folder = scratch.Folder()
    (folder.path / "value.bin").touch()
    # An interrupted run removes the folder of a job before its worker ends: there is always another file.
    with monkeypatch.context() as written:
        written.setattr("os.unlink", lambda path: None)
        folder.remove()
    assert folder.path.is_dir()
    scratch.remove_own()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", None])
def test_a_folder_that_was_being_made_when_its_process_ended_is_removed(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"{scratch.PREFIX}sweep-0123456789abcdef"
    folder.mkdir()
    if content is not None:
        (folder / scratch._MARK).write_text(content)
    os.utime(folder, (1, 1))
    scratch.remove_abandoned.cache_clear()
    scratch.Folder().remove()
    assert list(tmp_path.iterdir()) == []


def test_the_mark_of_a_folder_is_removed_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = scratch.Folder()
    (folder.path / "file").touch()
    removed: list[str] = []
    unlink = os.unlink

    def noted(path: Path) -> None:
        removed.append(Path(path).name)
        unlink(path)

    monkeypatch.setattr("os.unlink", noted)
    folder.remove()
    assert removed == ["file", scratch._MARK]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("purpose", ["a/b", "..", "x" * 300, "é[1-2]\0"])
def test_a_purpose_may_be_any_text(purpose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch.Folder(purpose) as own:
        assert own.path.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_kept_and_new_folders_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = scratch.Folder("kept")
    kept.keep()
    kept.remove()
    new = tmp_path / f"{scratch.PREFIX}new"
    new.mkdir()
    old = time.time() - 3600
    os.utime(kept.path, (old, old))
    scratch.remove_abandoned.cache_clear()
    scratch.Folder().remove()
    assert {path.name for path in tmp_path.iterdir()} == {kept.path.name, new.name}
