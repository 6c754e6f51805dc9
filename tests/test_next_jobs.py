"""A worker's next job imports the user's modules as a new process does, whatever earlier jobs have imported."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from runner.app import api
from runner.link.workers import Workers
from tests.command import recorded
from tests.server import command

X = np.arange(8, dtype=np.float32).reshape(4, 2) + 1
WORKERS = Workers()


@pytest.fixture(scope="module", autouse=True)
def _workers() -> Iterator[None]:
    yield
    WORKERS.close()


def check(function: Any, folder: Path) -> api.Record:
    given: dict[str, Any] = {"mesh": {"x": 2}, "in_specs": P("x")}
    return api.checked(function, (X,), folder, WORKERS, **given)


def scaled(x: Any) -> Any:
    import beside_scaled  # pyright: ignore[reportMissingImports]

    return beside_scaled.scale(x)


SCALES = "factor = {}\n\ndef scale(x):\n    return factor * x\n"


@pytest.fixture
def by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the function go to the worker as that of a script does: the module beside it is imported there alone."""
    monkeypatch.setattr(scaled, "__module__", "__main__")


def lines(record: api.Record) -> list[str | None]:
    return [line.expression for line in record.lines["graph"]]


@pytest.mark.in_turn
def test_a_check_sees_an_edit_of_a_module_beside_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_value: None
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    beside = tmp_path / "beside_scaled.py"
    for factor in ("3", "7.25"):
        beside.write_text(SCALES.format(factor))
        record = check(scaled, tmp_path / f"out{factor}")
        assert record.status == "passed", str(record)
        assert any(factor in (line or "") for line in lines(record)), lines(record)
    assert "beside_scaled" not in sys.modules
    beside.unlink()
    record = check(scaled, tmp_path / "without")
    assert "No module named 'beside_scaled'" in str(record.error)


def test_a_check_sees_the_module_of_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_value: None
) -> None:
    for name, factor in (("one", 3), ("two", 7.25)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "beside_scaled.py").write_text(SCALES.format(factor))
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / name)
            record = check(scaled, tmp_path / f"out_{name}")
        assert any(str(factor) in (line or "") for line in lines(record)), lines(record)
    assert "No module named 'beside_scaled'" in str(check(scaled, tmp_path / "without").error)


def test_a_check_has_the_helpers_of_its_caller_where_another_folder_has_some_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, factor in (("one", 3), ("two", 7.25)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "helpers.py").write_text(f"factor = {factor}\n")
        (tmp_path / name / f"scaling_{name}.py").write_text(CALLS)
        monkeypatch.syspath_prepend(tmp_path / name)
        # Python imports one module of a name: both have the helpers of the first.
        function = importlib.import_module(f"scaling_{name}").scaled
    record = check(function, tmp_path / "out")
    assert any("3" in (line or "") for line in lines(record)), lines(record)
    for module in ("helpers", "scaling_one", "scaling_two"):
        monkeypatch.delitem(sys.modules, module)


EXPERIMENT = """# @package _global_
name: mine
mesh: {axes: [x], shape: [2]}
imports: {m: %s}
arrays: {A: {shape: [4], spec: [x]}}
graph: {C: m.scaled(A)}
outputs: {C: [x]}
program: auto
"""
CALLS = "import helpers\n\ndef scaled(x):\n    return helpers.factor * x\n"


@pytest.mark.in_turn
def test_points_of_a_sweep_import_what_lies_beside_their_own_files(tmp_path: Path) -> None:
    for name, factor in (("one", "3"), ("two", "7.25"), ("three", None)):
        folder = tmp_path / "experiment" / name
        folder.mkdir(parents=True)
        (folder / "e.yaml").write_text(EXPERIMENT % "m.py")
        (folder / "m.py").write_text(CALLS)
        if factor is not None:
            (folder / "helpers.py").write_text(f"factor = {factor}\n")
    done = command(tmp_path, "-m", "--config-dir", ".", "+experiment=one/e,two/e,three/e", "hydra.sweep.dir=out")
    assert "3 points: 2 passed, 1 invalid" in done.stdout, done.stdout + done.stderr
    for point, factor in (("0", "3"), ("1", "7.25")):
        assert factor in str(recorded(tmp_path / "out" / point)["lines"]["graph"])
    assert "No module named 'helpers'" in recorded(tmp_path / "out" / "2")["error"]


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.py").write_text(CALLS.replace("helpers.factor", "3").replace("import helpers", ""))
    text = EXPERIMENT % "one/m.py, n: two/m.py"
    (tmp_path / "e.yaml").write_text(text.replace("m.scaled(A)", "m.scaled(A) + n.scaled(A)"))
    done = command(tmp_path, "e.yaml", "hydra.run.dir=out")
    assert done.returncode == 2
    where, says = done.stderr.rstrip().split("\n")[:2]
    assert where.startswith("e.yaml:4:")
    assert says == (
        f"  '{tmp_path}/one/m.py' and '{tmp_path}/two/m.py' have one name, and Python imports one module of a name: "
        "rename one of them"
    )


def test_a_program_finds_a_module_of_the_folder_in_which_the_command_was_started(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.py").write_text(CALLS.replace("helpers", "models.sizes"))
    (tmp_path / "models" / "sizes.py").write_text("factor = 3\n")
    (tmp_path / "e.yaml").write_text(EXPERIMENT % "models.small")
    done = command(tmp_path, "e.yaml", "hydra.run.dir=out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f'sys.path.append("{tmp_path}")' in (tmp_path / "out" / "program_auto.py").read_text()
