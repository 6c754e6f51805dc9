"""The record on disk: whole or not at all, every number comes back, and the exit status follows from it."""

from __future__ import annotations

import json
import math
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import __version__
from runner.record import record


def test_a_file_replaces_the_old_one_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "shardings.txt"
    path.write_text("old")
    record.write_text(path, "größer\n")
    assert path.read_text(encoding="utf-8") == "größer\n"
    assert os.listdir(tmp_path) == ["shardings.txt"]


@pytest.mark.parametrize("failing", ["replace", "chmod"])
def test_a_failure_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "result.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="no space left"):
        record.write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["result.json"]


def test_what_cannot_be_written_leaves_the_old_record(tmp_path: Path) -> None:
    record.write({"status": "passed"}, tmp_path)
    with pytest.raises(TypeError):
        record.write({"status": object()}, tmp_path)
    assert record.read(tmp_path) == {"status": "passed"}


def test_others_may_read_the_file(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        record.write_text(tmp_path / "a", "")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_the_record_is_json_that_any_tool_reads(tmp_path: Path) -> None:
    path = record.write({"a": math.nan, "b": [math.inf, (1, -math.inf)], "c": 1 + 2j, "d": "é"}, tmp_path)
    text = path.read_text(encoding="utf-8")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(text, parse_constant=refuse) == {
        "a": "NaN", "b": ["Infinity", [1, "-Infinity"]], "c": {"real": 1.0, "imag": 2.0}, "d": "é",
    }  # fmt: skip
    assert text.endswith("}\n")


def test_what_fits_on_a_line_stands_on_one(tmp_path: Path) -> None:
    shards = [{"device": device, "index": [[0, 4], [0, 2]], "shape": [4, 2]} for device in range(3)]
    path = record.write({"a": [], "b": {"c": [1, 2]}, "shards": shards, "text": "x" * 130}, tmp_path)
    assert path.read_text(encoding="utf-8") == (
        "{\n"
        '  "a": [],\n'
        '  "b": {"c": [1, 2]},\n'
        '  "shards": [\n'
        '    {"device": 0, "index": [[0, 4], [0, 2]], "shape": [4, 2]},\n'
        '    {"device": 1, "index": [[0, 4], [0, 2]], "shape": [4, 2]},\n'
        '    {"device": 2, "index": [[0, 4], [0, 2]], "shape": [4, 2]}\n'
        "  ],\n"
        f'  "text": "{"x" * 130}"\n'
        "}\n"
    )


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5).filter(lambda s: s not in ("NaN",)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), PLAIN, max_size=4))
def test_every_number_comes_back(found: dict[str, Any]) -> None:
    text = record._text(record._plain(found))
    plain = json.loads(text, object_hook=record._numbers)
    assert repr(plain) == repr(found)


def test_every_status_has_its_exit_status() -> None:
    assert [record.exit_status(status) for status in record.STATUSES] == [0, 0, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([], "passed"),
        (["passed", "passed"], "passed"),
        (["failed", "passed"], "failed"),
        (["passed", "invalid", "failed"], "invalid"),
        (["invalid", "error", "passed"], "error"),
    ],
)
def test_a_whole_is_as_bad_as_its_worst_part(parts: list[str], whole: str) -> None:
    assert record.worst(parts) == whole


def git(folder: Path, *arguments: str) -> None:
    identity = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, env=environment)


def test_git_is_said_in_a_checkout_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert record.environment()["git"] is None
    git(tmp_path, "init")
    # A repository without a commit has nothing to name.
    assert record.environment()["git"] is None
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "a")
    clean = record.environment()["git"]
    assert (len(clean["sha"]), clean["dirty"]) == (40, False)
    (tmp_path / "a").write_text("2")
    assert record.environment()["git"] == {"sha": clean["sha"], "dirty": True}


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert record.environment()["git"] is None


def test_the_versions_of_jax_are_left_to_the_worker() -> None:
    found = record.environment()
    assert (found["jax"], found["jaxlib"], found["runner"]) == (None, None, __version__)
