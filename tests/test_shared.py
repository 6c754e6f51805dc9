"""Sweep points whose programs have the same text, up to their data, share the compilation; no others do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from runner.experiment import data
from runner.experiment.program import Program
from runner.worker import gradient, shared
from runner.worker.compilation import CompiledModule, compile_program
from tests.command import recorded, run_command
from tests.harness import experiment, inferred

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


@pytest.mark.in_turn
def test_few_compilations_are_kept_and_none_for_other_devices() -> None:
    for size in range(1, 12):
        compiled(jnp.zeros(size))
    assert not compiled(jnp.zeros(1)).shared
    assert compiled(jnp.zeros(11)).shared
    shared.forget()
    assert not compiled(jnp.zeros(11)).shared


@pytest.mark.in_turn
def test_a_sweep_over_data_compiles_each_layout_once(tmp_path: Path) -> None:
    files = tmp_path / "conf" / "experiment"
    files.mkdir(parents=True)
    (files / "scaled.yaml").write_text(
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


def test_a_lowered_module_is_compiled_once_for_each_text_and_devices() -> None:
    def of(factor: float, device: int = 0) -> tuple[float, bool]:
        executable, kept = shared.of_lowered(jax.jit(lambda x: x * factor).lower(1.0), (device,))
        return float(executable(3.0)), kept

    assert [of(2.0), of(2.0), of(4.0), of(2.0, 1)] == [(6.0, False), (6.0, True), (12.0, False), (6.0, False)]
    shared.forget()
    assert of(2.0) == (6.0, False)


def test_modules_that_call_python_share_nothing() -> None:
    def of(factor: float) -> float:
        def doubled(x: Any) -> Any:
            return jax.pure_callback(lambda y: y * jnp.float32(factor), jax.ShapeDtypeStruct((), "float32"), x)

        executable, kept = shared.of_lowered(jax.jit(doubled).lower(jnp.float32(1)), (0,))
        assert not kept
        return float(executable(jnp.float32(3)))

    assert [of(2.0), of(4.0)] == [6.0, 12.0]


def test_points_that_differ_in_data_or_layouts_compile_the_gradients_of_the_unsharded_graph_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[bool] = []
    genuine = shared.of_lowered

    def heard(module: Any, device_ids: Any) -> tuple[Any, bool]:
        compiled, earlier = genuine(module, device_ids)
        kept.append(earlier)
        return compiled, earlier

    monkeypatch.setattr(shared, "of_lowered", heard)
    point = experiment(
        "mesh: {axes: [x], shape: [2]}\narrays: {a: {shape: [4], init: 'normal()', spec: [x]}}\n"
        "graph: {y: sum(tanh(a))}\noutputs: {y: []}\ngrad: {of: y, wrt: [a]}\nprogram: auto\n"
    )
    gradients = [
        gradient.unsharded(at, data.make(at, Path()), inferred(at).floats["graph"])[0][0].tolist()
        for at in (point, point.at(seed=1), point.at(layouts={"arrays.a.spec": [None]}))
    ]
    assert kept == [False] * 3 + [True] * 6
    assert gradients[0] == gradients[2] != gradients[1]
