"""Sweep points whose programs have the same text, up to their data, share the compilation; no others do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from runner.experiment.program import Program
from runner.worker import shared
from runner.worker.compilation import CompiledModule, compile_program
from tests.command import recorded, run_command

TEXT = '''"""A program."""

import numpy as np


def inputs():
    """The arrays, whole, in NumPy."""
    rng = np.random.default_rng(DATA)

    x = rng.normal(size=4)
    return (x,)


def program():
    return jax.jit(lambda x: (x FACTOR,))
'''


@pytest.fixture(autouse=True)
def nothing() -> None:
    shared.forget()


def compiled(operand: Any, data: int = 0, factor: str = "* 2") -> CompiledModule:
    """Return the compilation of a program, which is run too."""
    text = TEXT.replace("DATA", str(data)).replace("FACTOR", factor)
    function = jax.jit(lambda x: (eval(f"x {factor}"),))
    run, compilation = shared.compiled(
        text, function, (operand,), lambda: compile_program(Program.AUTO, function, (operand,))
    )
    assert (run(operand)[0] == eval(f"operand {factor}")).all()
    return compilation


def test_programs_with_other_data_share_the_compilation_and_its_seconds() -> None:
    first, second = compiled(jnp.arange(4.0), 0), compiled(jnp.arange(4.0) + 1, 1)
    assert (first.shared, second.shared) == (False, True)
    assert second.executable is first.executable
    assert second.seconds == first.seconds


@pytest.mark.parametrize(
    ("operand", "factor"),
    [
        (jnp.arange(5.0), "* 2"),
        (jnp.arange(4), "* 2"),
        (jnp.arange(4.0), "* 3"),
        (jax.device_put(jnp.arange(4.0), jax.devices()[1]), "* 2"),
    ],
    ids=("another shape", "another dtype", "another text", "another device"),
)
def test_programs_that_differ_for_the_compiler_share_nothing(operand: Any, factor: str) -> None:
    compiled(jnp.arange(4.0))
    assert not compiled(operand, factor=factor).shared


def test_few_compilations_are_kept_and_none_for_other_devices() -> None:
    for size in range(1, 12):
        compiled(jnp.zeros(size))
    assert not compiled(jnp.zeros(1)).shared
    assert compiled(jnp.zeros(11)).shared
    shared.forget()
    assert not compiled(jnp.zeros(11)).shared


def test_a_sweep_over_data_compiles_each_layout_once(tmp_path: Path) -> None:
    experiment = tmp_path / "conf" / "experiment"
    experiment.mkdir(parents=True)
    (experiment / "scaled.yaml").write_text(
        "# @package _global_\ndefaults: [{override /mesh: x2_y2}]\nname: scaled\n"
        "arrays: {A: {shape: [4, 8], init: 'normal()', spec: [x, y]}}\n"
        "graph: {C: A * 3}\noutputs: {C: []}\nprogram: auto\n"
    )
    out = tmp_path / "out"
    points = ("+experiment=scaled", "seed=0,1", "arrays.A.spec=[x],[y]", f"hydra.sweep.dir={out}")
    done = run_command("-m", "--config-dir", "conf", *points, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    programs = [recorded(out / str(point))["programs"]["auto"] for point in range(4)]
    assert [program["timing"].get("shared", False) for program in programs] == [False, False, True, True]
    assert programs[2]["timing"]["compile_s"] == programs[0]["timing"]["compile_s"]
    assert all(program["checks"]["value"]["status"] == "passed" for program in programs)
    values = [program["outputs"]["C"]["values"] for program in programs]
    assert values[0] == values[1] != values[2] == values[3]
    assert (out / "2" / "hlo_auto.txt").read_text() == (out / "0" / "hlo_auto.txt").read_text()
