"""The record on disk: written atomically, every number is read back, and the exit status follows from it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import runner
from runner import __version__
from runner.base import codec
from runner.link import copied
from runner.reports.record import record, writing
from runner.reports.record.model import (
    CompiledProgram,
    Mode,
    OutputRecord,
    ProgramRecord,
    Record,
    RecordedLine,
    Trace,
    Verification,
)
from runner.reports.record.verdicts import Checks, FileChecks
from tests import evidence
from tests.command import EXPERIMENTS, LARGE, ROOT, SMALLER, run_command
from tests.here import Here


def test_a_file_replaces_the_old_one_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "shardings.txt"
    path.write_text("old")
    writing.write_text(path, "größer\n")
    assert path.read_text(encoding="utf-8") == "größer\n"
    assert os.listdir(tmp_path) == ["shardings.txt"]


@pytest.mark.parametrize(("failing", "named"), [("replace", False), ("replace", True), ("chmod", True)])
def test_a_failure_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, named: bool
) -> None:
    if named:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    path = tmp_path / "result.json"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="no space left"):
        writing.write_text(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["result.json"]


UNNAMED = pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="every file has a name from the beginning")


@UNNAMED
@pytest.mark.parametrize("before", [None, "old"])
@pytest.mark.parametrize("moment", ["link", "fdopen"])
def test_a_process_that_is_killed_while_it_writes_leaves_nothing(
    tmp_path: Path, before: str | None, moment: str
) -> None:
    path = tmp_path / "result.json"
    if before is not None:
        path.write_text(before)
    killed = f"""
import os, signal, sys
from pathlib import Path
from runner.reports.record import writing
genuine = os.fdopen
def end(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
def half(*given, **more):
    file = genuine(*given, **more)
    class Half:
        def __enter__(self): return self
        def __exit__(self, *_): pass
        def write(self, text): file.write(text[:3]); file.flush(); end()
    return Half()
os.{moment} = {"half" if moment == "fdopen" else "end"}
writing.write_text(Path(sys.argv[1]), "new text")
"""
    done = subprocess.run([sys.executable, "-c", killed, str(path)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == ([] if before is None else ["result.json"])
    assert before is None or path.read_text() == before


def test_without_unnamed_files_an_incomplete_file_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    listings: list[list[str]] = []
    genuine = os.replace

    def watched(old: str, new: Path) -> None:
        listings.append(os.listdir(tmp_path))
        genuine(old, new)

    monkeypatch.setattr(os, "replace", watched)
    writing.write_text(tmp_path / "result.json", "new")
    ((hidden,),) = listings
    assert hidden.startswith(".result.json.")
    assert os.listdir(tmp_path) == ["result.json"]
    assert (tmp_path / "result.json").read_text() == "new"


def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    good = evidence.record()
    record.write(good, tmp_path)
    with pytest.raises(TypeError):
        record.write(replace(good, summary=object()), tmp_path)  # pyright: ignore[reportArgumentType]
    assert record.read(tmp_path) == good


# Round trips.


def some(hint: Any) -> st.SearchStrategy[Any]:
    """Draw values of a type in the record's classes."""
    if hint == codec.Numbers:
        return st.none() | st.floats(allow_nan=False) | st.lists(st.integers(), max_size=2)
    if hint is Any:
        return st.none() | st.text(max_size=2)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([some(each) for each in arguments])
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(some(arguments[0]), max_size=2)
    if origin is tuple and arguments[-1] is ...:
        return st.lists(some(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(some, arguments))
    if hasattr(hint, "members"):
        return st.fixed_dictionaries({}, optional={n: some(each) for n, each in hint.members().items()}).map(
            lambda verdicts: hint(**verdicts)
        )
    if hasattr(hint, "JSON"):
        return some(hint.JSON).map(hint.of)
    if origin in (dict, Mapping):
        return st.dictionaries(st.text(max_size=2), some(arguments[1]), max_size=2)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        return st.builds(hint, **{each.name: st.deferred(lambda h=hints[each.name]: some(h)) for each in fields(hint)})
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(list(hint))
    plain = {str: st.text(max_size=2), int: st.integers(-9, 9), bool: st.booleans(), type(None): st.none()}
    return st.floats() if hint is float else plain[hint]


CLASSES = [FileChecks, Checks, CompiledProgram, ProgramRecord, Verification, Trace, RecordedLine, Mode, Record]


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_value_is_read_as_it_was_written(kind: type[Any]) -> None:
    @settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(made=some(kind))
    def same(made: Any) -> None:
        restored = codec.build(kind, json.loads(json.dumps(codec.plain(made))))
        # NaN is not equal to itself: compare the written text.
        assert restored == made or codec.plain(restored) == codec.plain(made)
        assert classes(restored) == classes(made)

    same()


def classes(value: Any) -> Any:
    """Return the classes that a value contains."""
    if dataclasses.is_dataclass(value):
        return type(value).__name__, [classes(getattr(value, each.name)) for each in fields(value)]
    if isinstance(value, Checks | FileChecks):
        return classes(dict(value.named()))
    if isinstance(value, dict):
        return {key: classes(each) for key, each in value.items()}
    return [classes(each) for each in value] if isinstance(value, list | tuple) else None


SLOW = ("circular_pipeline", "llama_block_adamw", "llama_block_sequence_parallel", "llama_step")
"""Experiments of which the record has nothing that those of others lack, but which take ten seconds and more."""


@pytest.mark.sample(31)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.whole) if name in SLOW else name for name in EXPERIMENTS]
)
def test_the_record_of_a_run_is_the_one_that_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied, "worker", Here)
    overrides = SMALLER if name in LARGE else ()
    result = runner.run(name, overrides, folder=tmp_path)
    assert runner.read(tmp_path) == result


BROKEN = """# @package _global_
defaults: [{override /mesh: x4}]
name: NAME
arrays: {A: {shape: [8, 16], spec: [null, x]}}
graph: {C: "GRAPH"}
per_device: {C: "psum(sum(A, axis=1), 'x')"}
outputs: {C: [null]}
"""
CASES = {
    "failed": ("sum(A, axis=1) + 1", []),
    "invalid": ("sum(B, axis=1)", []),
    "weak": ("sum(A, axis=1) * 0", []),
    "nan": ("sum(A, axis=1) / 0 * 0", []),
    "graph_alone": ("sum(A, axis=1)", ["program=auto"]),
    "not_bound": ("sum(A, axis=1)", ["seed=1", "+expect.values.C=[0]", "expect.collectives={all-reduce:2}"]),
    "nan_from_the_start": ("sum(A, axis=1) * (0.0 / 0.0)", []),
    "absent": ("sum(A, axis=1)", ["target=v5e_2x2"]),
    "no_such_device": ("sum(A, axis=1)", ["target=gpu"]),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CASES)
def test_the_record_of_a_failed_run_is_read_back_too(name: str, tmp_path: Path) -> None:
    graph, overrides = CASES[name]
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / f"{name}.yaml").write_text(BROKEN.replace("NAME", name).replace("GRAPH", graph))
    result = runner.run(name, overrides, config_dir=tmp_path, folder=tmp_path / "out")
    assert runner.read(tmp_path / "out") == result


def test_the_file_is_readable_by_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        writing.write_text(tmp_path / "a", "")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def refuse(constant: str) -> None:
    raise AssertionError(constant)


def test_the_record_is_json_that_any_tool_reads(tmp_path: Path) -> None:
    values = [[1 + 2j, -math.inf], [True, math.nan]]
    program = evidence.program(
        checks=evidence.CHECKS.but(value=evidence.value(max_abs_error=math.inf)),
        outputs={"é": evidence.output(shape=[2, 2], values=values, text="NaN")},
    )
    path = record.write(evidence.record({"auto": program}), tmp_path)
    text = path.read_text(encoding="utf-8")
    plain = json.loads(text, parse_constant=refuse)["programs"]["auto"]
    assert plain["checks"]["value"]["max_abs_error"] == "Infinity"
    assert plain["outputs"]["é"]["values"] == [[{"real": 1.0, "imag": 2.0}, "-Infinity"], [True, "NaN"]]
    assert text.endswith("}\n")
    again = record.read(tmp_path).compiled["auto"]
    assert again.checks.value == program.checks.value
    assert repr(again.outputs["é"].values) == repr(values)
    # A text that reads like a number is none.
    assert again.outputs["é"].text == "NaN"


NUMBERS = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.complex_numbers(), lambda inner: st.lists(inner, max_size=3)
)


@given(NUMBERS)
def test_every_number_comes_back(values: Any) -> None:
    plain = evidence.as_json(evidence.output(values=values))
    assert repr(codec.build(OutputRecord, plain).values) == repr(values)


def test_json_that_fits_on_a_line_is_on_one(tmp_path: Path) -> None:
    shards = [{"device": device, "index": [[0, 4], [0, 2]], "shape": [4, 2]} for device in range(3)]
    assert record._text({"a": [], "b": {"c": [1, 2]}, "shards": shards, "text": "x" * 130}) == (
        "{\n"
        '  "a": [],\n'
        '  "b": {"c": [1, 2]},\n'
        '  "shards": [\n'
        '    {"device": 0, "index": [[0, 4], [0, 2]], "shape": [4, 2]},\n'
        '    {"device": 1, "index": [[0, 4], [0, 2]], "shape": [4, 2]},\n'
        '    {"device": 2, "index": [[0, 4], [0, 2]], "shape": [4, 2]}\n'
        "  ],\n"
        f'  "text": "{"x" * 130}"\n'
        "}"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 1}, "an older version of shardproof wrote it: its schema is 1, this version reads 3; run the"),
        ({"schema": 4}, "a newer version of shardproof wrote it: its schema is 4, this version reads 3; run the"),
        ({"schema": None}, "not a record: it has no 'schema'"),
        ({"status": "good"}, "not a record of schema 3: status is 'good', not 'passed' or 'known' or"),
        ({"mesh": {"axes": ["x"]}}, "not a record of schema 3: mesh has no 'shape'"),
        ({"overrides": "a"}, "not a record of schema 3: overrides is 'a', not a list"),
    ],
)
def test_an_unreadable_record_is_reported_with_a_remedy(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(evidence.as_json(evidence.record()) | change))
    with pytest.raises(record.UnreadableRecord) as raised:
        record.read(tmp_path)
    assert str(raised.value).startswith(f"{path}\n  {message}")


def test_a_field_that_is_added_does_not_make_a_record_unreadable(tmp_path: Path) -> None:
    plain = evidence.as_json(evidence.record()) | {"added": 1}
    (tmp_path / "result.json").write_text(json.dumps(plain))
    assert record.read(tmp_path) == evidence.record()


# The schema.

SCHEMA = ROOT / "docs" / "result.schema.json"


def test_the_published_schema_is_that_of_the_dataclasses() -> None:
    text = record.schema_text()
    assert SCHEMA.read_text(encoding="utf-8") == text, "run: python -m runner.reports.record > docs/result.schema.json"


def validate(plain: Any) -> None:
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(plain)


def test_the_schema_is_a_schema_and_refuses_what_is_no_record() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(SCHEMA.read_text(encoding="utf-8")))
    plain = evidence.as_json(evidence.record())
    validate(plain)
    for change in ({"schema": 1}, {"status": "good"}, {"mesh": {"axes": ["x"]}}, {"programs": {"auto": {}}}):
        with pytest.raises(jsonschema.ValidationError):
            validate(plain | change)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("overrides", "status"),
    [
        (["+experiment=vector_psum", "trace=true", "profile=true"], 0),
        (["-m", "+experiment=case3_allreduce", "program=shard_map,vmap", "per_device.C='psum(A @ B, \"x\") * 2'"], 1),
        (["+experiment=case3_allreduce", "mesh.shape=[3,2]"], 2),
    ],
)
def test_the_record_of_a_real_run_is_as_the_schema_says(tmp_path: Path, overrides: list[str], status: int) -> None:
    folders = (f"hydra.run.dir={tmp_path}/0", f"hydra.sweep.dir={tmp_path}")
    done = run_command(*overrides, *folders)
    assert done.returncode == status, done.stderr
    for folder in (path.parent for path in tmp_path.glob("*/result.json")):
        plain = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        validate(plain)
        assert evidence.as_json(record.read(folder)) == plain


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
def test_a_whole_has_the_worst_status_of_its_parts(parts: Any, whole: str) -> None:
    assert record.worst(parts) == whole


def git(folder: Path, *arguments: str) -> None:
    identity = {f"GIT_{who}_{field}": "a@b" for who in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")}
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, env=environment)


def test_the_commit_is_recorded_only_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert record.git() is None
    git(tmp_path, "init")
    # A repository without a commit has no commit to record.
    assert record.git() is None
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "a")
    clean = record.git()
    assert clean is not None
    assert (len(clean.sha), clean.dirty) == (40, False)
    (tmp_path / "a").write_text("2")
    assert record.git() == replace(clean, dirty=True)


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert record.git() is None


def test_the_versions_of_jax_are_left_to_the_worker() -> None:
    environment = record.started("case", ()).environment
    assert (environment.jax, environment.jaxlib, environment.runner) == (None, None, __version__)
