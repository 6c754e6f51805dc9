"""Functions that compute in 64 bits: by a setting of their own file, in a part of their lines, or by the arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.app.flow import run as flow
from runner.experiment.config.sources import Sources
from runner.link.workers import Workers
from runner.reports.record.model import Record
from tests import harness

ON = "import jax\njax.config.update('jax_enable_x64', True)\n"

FILES = {
    "switched_on.py": ON
    + """
import jax.numpy as jnp

def drawn(x):
    return x + jax.random.uniform(jax.random.key(2**40 + 3), x.shape, "float32")

def counted(x):
    return jax.lax.scan(lambda count, row: (count + 1, row * count.astype("float32")), 2**33, x)[1]

def chosen(x):
    return jnp.where(x > 0, 2**40, 0) % 7 + jnp.where(x > 0, jnp.int32(2**30), jnp.int32(1)) * jnp.int32(8)
""",
    "in_part.py": """
import jax
import jax.numpy as jnp

def noisy(x):
    with jax.enable_x64(True):
        mean = jnp.mean(x.astype("float64")).astype("float32")
    return x * jnp.arange(4.0) / 3 + jax.random.normal(jax.random.key(0), x.shape) + mean

def wide(x):
    with jax.enable_x64(True):
        return x.astype("float64") * 2

def used(x):
    return jnp.sin(x)
""",
    "switched_off.py": "import jax\njax.config.update('jax_enable_x64', False)\n\ndef twice(x):\n    return x * 2\n",
}

MESH = {"axes": ["x"], "shape": [2]}
X = {"x": {"shape": [4, 4], "spec": ["x", None]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("x64")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def ran(folder: Path, **keys: Any) -> Record:
    outputs = {name: [] for name in keys["graph"]}
    imports = {name: str(folder / f"{name}.py") for name in ("switched_on", "in_part", "switched_off")}
    used = {name: file for name, file in imports.items() if name in str(keys["graph"])}
    config = {
        "name": "x64",
        "mesh": MESH,
        "arrays": X,
        "outputs": outputs,
        "program": ["auto", "derived"],
        "imports": used,
        **keys,
    }
    (folder / "run").mkdir(exist_ok=True)
    config["program"] = ["auto", "derived"]
    return flow.run(config, folder / "run", Sources(), workers=Workers(harness.Telling()))


@pytest.mark.in_turn
def test_a_file_that_sets_x64_is_run_with_it(folder: Path) -> None:
    lines = {name: f"switched_on.{name}(x)" for name in ("drawn", "counted", "chosen")}
    lines |= {"plain": "where(x > 0, 2**40, 0) + argmax(x) * 2**31", "seeded": "key_data(key(2**40 + 3))"}
    record = ran(folder, graph=lines)
    assert record.status == "passed", (record.error, record.programs)
    source = (folder / "run" / "program_derived.py").read_text()
    assert 'jax.config.update("jax_enable_x64", True)' in source
    assert "switched_on" not in source


@pytest.mark.in_turn
def test_a_function_that_sets_x64_for_a_part_of_its_lines_is_run_without_it(folder: Path) -> None:
    record = ran(folder, graph={"noisy": "in_part.noisy(x)"})
    assert record.status == "passed", (record.error, record.programs)
    assert "with jax.enable_x64(False):\n" in (folder / "run" / "program_auto.py").read_text()


@pytest.mark.parametrize(
    ("keys", "message", "file", "written"),
    [
        (
            {"graph": {"y": "switched_off.twice(x)"}, "arrays": {"x": {**X["x"], "dtype": "float64"}}},
            "switched_off.py switches jax_enable_x64 off, and a 64-bit dtype of the experiment needs it; take that "
            "line out, or use 32-bit dtypes",
            "switched_off.py",
            FILES["switched_off.py"].replace("jax.config.update('jax_enable_x64', False)", ""),
        ),
        (
            {"graph": {"w": "in_part.wide(x)", "y": "in_part.used(w)"}},
            "w is float64, which only a part of another function's lines has with jax.enable_x64; set it for all: "
            "jax.config.update('jax_enable_x64', True) at the top of the imported file",
            "in_part.py",
            ON + FILES["in_part.py"],
        ),
    ],
    ids=["switched off", "passed on"],
)
def test_what_cannot_be_is_one_message_whose_advice_can_be_followed(
    keys: dict[str, Any], message: str, file: str, written: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(FILES[file])
    record = ran(tmp_path, **keys)
    assert record.error is not None
    assert message in record.error
    (tmp_path / file).write_text(written)
    record = ran(tmp_path, **keys)
    assert record.status == "passed", record.error


def test_a_line_that_names_a_64_bit_dtype_sets_it_for_functions_too(folder: Path) -> None:
    record = ran(folder, graph={"w": "astype(x, 'float64') * 3", "y": "in_part.used(w)"})
    assert record.status == "passed", (record.error, record.programs)
    assert {program.outputs["y"].dtype for program in record.compiled.values()} == {"float64"}
