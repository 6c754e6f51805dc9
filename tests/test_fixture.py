"""The fixture `sharded`: what passes, what a golden pins, and the message of a failure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import numpy as np
from jax.sharding import PartitionSpec as P

A = np.ones((8, 8), np.float32)


def product(a, b):
    return a @ b


def test_product(sharded):
    specs = (P(None, "x"), P("x"))
    record = sharded(product, (A, A), mesh={"x": 4}, in_specs=specs, out_specs=P(), golden=True)
    assert record.collectives == {"all-reduce": 1}


def test_no_mesh_axis(sharded):
    sharded(product, (A, A), mesh={"x": 4}, in_specs=(P("y"), P()))
"""


def session(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300).stdout


@pytest.mark.in_turn
def test_a_function_is_checked_and_compared_with_its_golden(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS, encoding="utf-8")
    first = session(tmp_path)
    assert "there was no golden of auto, so it was written: look at goldens/test_mine/test_product.json" in first
    assert "mesh axis 'y' does not exist; the mesh has x" in first
    file = tmp_path / "goldens" / "test_mine" / "test_product.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    ((programs,),) = [list(targets.values()) for targets in content.values()]
    (collective,) = programs["auto"]["collectives"]
    assert collective["kind"] == "all-reduce"
    assert programs["auto"]["operands"] == {"a": [None, "x"], "b": ["x", None]}
    changed = TESTS.replace('P("x"))', "P())").replace('"all-reduce"', '"all-gather"')
    (tmp_path / "test_mine.py").write_text(changed, encoding="utf-8")
    second = session(tmp_path, "-k", "test_product")
    # What was changed stands first, before what follows from it.
    pins = "auto is not what goldens/test_mine/test_product.json pins:"
    assert f"{pins}\n  operand b: P('x', None) → P(None, None)\n" in second
    assert f"test_mine.py:{TESTS.split('return a @ b')[0].count(chr(10)) + 1} return a @ b" in second
    assert "--update-golden" in second
    assert "1 passed" in session(tmp_path, "-k", "test_product", "--update-golden")


STEP = """
import pathlib

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 4)


def test_step(sharded):
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = pathlib.Path("rows").exists()
    specs = (P("x"), P()) if rows else (P(None, "x"), P("x"))
    a, b = (jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, spec)) for spec in specs)
    report = sharded.explain(jax.jit(jnp.dot, out_shardings=NamedSharding(mesh, P())), a, b)
    assert report.partitions == 4
"""


@pytest.mark.in_turn
def test_a_step_is_explained_and_compared_with_its_golden(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(STEP, encoding="utf-8")
    first = session(tmp_path)
    assert "there was no golden of the step, so it was written: look at goldens/test_mine/test_step.jax-0." in first
    assert "1 passed" in session(tmp_path)
    (tmp_path / "rows").touch()
    changed = session(tmp_path)
    assert "the step is not what goldens/test_mine/test_step.jax-0." in changed
    assert "all-gather" in changed
    assert "if that is intended: pytest test_mine.py::test_step --update-golden" in changed
    assert "1 passed" in session(tmp_path, "--update-golden")
    assert "1 passed" in session(tmp_path)


SEVERAL = """
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

A = np.ones((8, 8), np.float32)


def summed(sharded):
    sharded(lambda a, b: a @ b, (A, A), mesh={"x": 4}, in_specs=(P(None, "x"), P("x")), out_specs=P(), golden=True)


def gathered(sharded):
    sharded(lambda a: a * 2, (A,), mesh={"x": 4}, in_specs=P("x"), out_specs=P(), golden=True)


class TestOne:
    def test_it(self, sharded):
        summed(sharded)


class TestTwo:
    def test_it(self, sharded):
        gathered(sharded)


@pytest.mark.parametrize("case", ["a b", "a_b", "a/b", "c" * 230, "../../x"])
def test_case(sharded, case):
    summed(sharded) if case == "a_b" else gathered(sharded)


def test_both(sharded):
    summed(sharded)
    gathered(sharded)
"""


@pytest.mark.in_turn
def test_each_check_has_a_golden_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(SEVERAL, encoding="utf-8")
    assert "8 passed" in session(tmp_path, "--update-golden")
    home = tmp_path / "goldens" / "test_mine"
    assert len(files := sorted(path.name for path in home.iterdir())) == 9
    assert {"TestOne.test_it.json", "TestTwo.test_it.json", "test_both.json", "test_both.2.json"} < {*files}
    assert "test_case[a_b].json" in files
    assert "8 passed" in session(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"goldens", "test_mine.py"}


@pytest.mark.in_turn
def test_a_golden_that_cannot_be_read_or_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "goldens" / "test_mine" / "test_product.json").mkdir(parents=True)
    output = session(tmp_path, "-k", "test_product")
    assert "it is no regular file, but a folder, a pipe or a device" in output
    assert "INTERNALERROR" not in output
