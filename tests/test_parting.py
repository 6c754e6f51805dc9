"""Where a program that is wrong in its own dtypes alone and its twin in float64 part."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from jax._src import core
from jax._src.interpreters import mlir
from jax.sharding import AxisType, PartitionSpec

import runner
from runner.app.flow import run
from runner.checks import parting
from runner.experiment.config.sources import Sources
from runner.experiment.program import Program
from runner.reports.record.verdicts import ValueVerdict
from runner.reports.show import report
from runner.worker.parting import TooLarge, measured
from tests.command import ROOT
from tests.harness import WORKERS, experiment

_jax: Any = cast("Any", jax)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The record of the gradient of a max-pool, which XLA gets wrong in float32 alone."""
    file = ROOT / "experiments" / "wrong_answers" / "experiment" / "max_pool_gradient.yaml"
    given = yaml.safe_load(file.read_text(encoding="utf-8"))
    folder = tmp_path_factory.mktemp("pool")
    return run.run({**given, "program": ["auto", "vmap"], "expect": {}}, folder, Sources(), workers=WORKERS)


def test_the_line_is_named_at_which_the_compiler_is_wrong_in_float32_alone(pool: Any) -> None:
    verdict = pool.programs["auto"].checks.value
    place = verdict.parting
    assert (place.line, place.primitive, place.gradient) == ("loss", "select_and_scatter_add", True)
    assert place.error == pytest.approx(1 / 3)
    assert 0 < place.rounding < 1e-4
    assert 1 < place.number <= place.of
    assert pool.programs["vmap"].checks.value.parting is None


def test_the_failure_says_where_program_and_twin_part(pool: Any) -> None:
    (status, text, lines), *_ = report.failures(pool)
    assert (status, text) == ("failed", "auto: value failed")
    (sentence,) = [line for line in lines if "twin part" in line]
    assert sentence.startswith(
        "program and twin part at line loss, in the backward pass: select_and_scatter_add has an error of 0.33 of its "
        "largest element, where rounding explains"
    )


def of_lines(function: Callable[..., Any], *operands: Any) -> Any:
    """The first equation of a function that rounding does not explain, in an experiment of two lines."""
    given = experiment("arrays: {A: {shape: [4], spec: []}}\ngraph: {h: tanh(A), C: h * 3}\noutputs: {C: []}")
    return parting.first(given.run_by(Program.AUTO), Program.AUTO, measured(_jax.jit(function), operands))


def leaky(kinds: Sequence[str]) -> Any:
    """A primitive that gives back its operand, but one and a half of it in some dtypes."""
    primitive: Any = core.Primitive("leaky")
    primitive.def_abstract_eval(lambda aval: aval)
    mlir.register_lowering(
        primitive,
        mlir.lower_fun(lambda x: x * 1.5 if str(x.dtype) in kinds else x, multiple_results=False),
    )
    return primitive


X = np.linspace(0.1, 1, 8).astype(np.float32)


@pytest.mark.in_turn
@pytest.mark.parametrize(("wrong", "line"), [("bfloat16", "h"), ("float64", "h"), ("float16", None)])
def test_a_mistake_in_one_dtype_is_found_at_its_line(wrong: str, line: str | None) -> None:
    primitive = leaky([wrong])

    def function(x: jax.Array) -> jax.Array:
        with jax.named_scope("h"):
            h = jax.jit(lambda x: primitive.bind(jnp.tanh(x)))(x.astype("bfloat16"))
        with jax.named_scope("C"):
            return jnp.cumsum(h * 3)

    place = of_lines(function, X)
    assert (place and place.line, place and place.primitive) == (line, line and "leaky")


def test_a_mistake_inside_a_shard_map_is_found_at_its_line() -> None:
    primitive = leaky(["float32"])
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))

    def device(x: jax.Array) -> jax.Array:
        with jax.named_scope("h"):
            return jax.lax.psum(primitive.bind(x), "x")

    over = PartitionSpec("x")
    place = of_lines(_jax.shard_map(device, mesh=mesh, in_specs=over, out_specs=PartitionSpec(), check_vma=False), X)
    assert (place.line, place.primitive) == ("h", "leaky")


@pytest.mark.in_turn
def test_equations_that_amplify_rounding_are_right() -> None:
    def function(x: jax.Array) -> tuple[jax.Array, ...]:
        close = x * 3 - (x * 3 + 1e-6)
        grown, _ = jax.lax.scan(lambda c, a: (c * 1.5 - a, None), jnp.float32(0), x)
        return 1 / close, grown, jnp.argmax(x), jnp.sort(-x), jax.random.normal(jax.random.key(0), (8,))

    assert of_lines(function, X) is None


def test_a_program_is_proved_by_its_equations_only_if_each_is_right_and_its_outputs_are_the_same(pool: Any) -> None:
    verdict = pool.programs["auto"].checks.value
    right = measured(_jax.jit(lambda x: jnp.tanh(x) * 3), (X,))
    judged = parting.proved(verdict, right)
    assert judged is not None
    assert (judged.status, judged.outputs["grad.v"].status) == ("passed", "passed")
    assert "each of the program's 2 equations is right to rounding" in str(judged.note)
    assert parting.proved(verdict, dataclasses.replace(right, same=False)) is None
    assert parting.proved(verdict, dataclasses.replace(right, of=3)) is None
    endless = dataclasses.replace(verdict.outputs["grad.v"], max_abs_error=math.inf)
    assert parting.proved(dataclasses.replace(verdict, outputs={**verdict.outputs, "grad.v": endless}), right) is None
    assert "divides by what rounds to 0, or leaves the range of a dtype" in parting.sentence(None, right)
    (tanh, times) = right.equations
    off = dataclasses.replace(times, error=5 * (times.spread + 2.0**-23 * times.scale))
    assert parting.proved(verdict, dataclasses.replace(right, equations=[tanh, off])) is None


def test_a_program_of_too_many_values_is_not_measured() -> None:
    with pytest.raises(TooLarge, match="elements"):
        measured(_jax.jit(lambda x: jnp.broadcast_to(x, (1 << 22, 8)) + 1), (X,))


CALLED = """
import jax
import jax.numpy as jnp


def step(x):
    def pool(x):
        y = jnp.tanh(x)
        return jnp.sum(jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (3,), (1,), "SAME"))

    return jax.grad(pool)(x) * 2
"""


@pytest.mark.in_turn
def test_the_line_of_a_function_is_that_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pooled.py").write_text(CALLED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    step = __import__("pooled").step
    operands = (np.array([3, 2, 4, 1], np.float32),)
    record: Any = runner.check(
        step, operands, mesh={"x": 2}, in_specs=[PartitionSpec("x")], program="auto", folder=tmp_path / "run"
    )
    verdict: ValueVerdict = record.programs["auto"].checks.value
    assert verdict.parting is not None
    assert str(verdict.parting.line).startswith("pooled.py:9 ")
