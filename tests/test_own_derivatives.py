"""Gradients of functions with a derivative of their own: the reference follows their rule, and the verdict says so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from runner.app.flow import run as flow
from runner.app.flow.recording import modes
from runner.experiment.config.sources import Sources
from runner.experiment.program import Program
from runner.link.workers import Workers
from runner.reports.record.model import Record
from runner.reports.record.verdicts import ValueVerdict
from tests import harness

FILE = """
import jax
import jax.numpy as jnp
from functools import partial

@jax.custom_jvp
def safe_sqrt(x):
    return jnp.sqrt(x)

@safe_sqrt.defjvp
def _(primals, tangents):
    y = safe_sqrt(*primals)
    return y, jnp.where(y > 0, tangents[0] / (2 * jnp.where(y > 0, y, 1)), 0)

@jax.custom_vjp
def rounded(x):
    return jnp.round(x)

rounded.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))

@partial(jax.custom_vjp, nondiff_argnums=(1,))
def reversed_(x, by):
    return x

reversed_.defvjp(lambda x, by: (x, None), lambda by, _, g: (-by * g,))

@jax.custom_jvp
def logsumexp(x):
    m = jnp.max(x, -1, keepdims=True)
    return (m + jnp.log(jnp.sum(jnp.exp(x - m), -1, keepdims=True)))[..., 0]

@logsumexp.defjvp
def _(primals, tangents):
    y = logsumexp(*primals)
    return y, jnp.sum(jnp.exp(primals[0] - y[..., None]) * tangents[0], -1)

@jax.custom_vjp
def fixed_point(a):
    def step(c):
        return jnp.cos(c[0]) * a, c[0]
    return jax.lax.while_loop(lambda c: jnp.max(jnp.abs(c[0] - c[1])) > 1e-6, step, (a, a + 1))[0]

def forward(a):
    z = fixed_point(a)
    return z, (a, z)

def backward(kept, g):
    a, z = kept
    return (g * jnp.cos(z) / (1 + a * jnp.sin(z)),)

fixed_point.defvjp(forward, backward)

def several(a, b, c, d, e):
    at_zero = jnp.sum(safe_sqrt(jax.nn.relu(a)))
    clean = jnp.mean(jnp.tanh(e) ** 2)
    noise = jax.random.bernoulli(jax.random.key(0), 0.5, b.shape)
    return at_zero + jnp.sum(rounded(b * 3) ** 2 * noise) + jnp.sum(reversed_(c, 0.5) ** 3) + logsumexp(d).sum() + clean

def slope(a, b, c, d, e):
    return jax.grad(several, argnums=1)(a, b, c, d, e)

def solved(a):
    return jnp.sum(fixed_point(0.3 * jnp.tanh(a)))

def quantized(a):
    return jnp.sum(rounded(a * 3) ** 2)
"""
NAMES = "abcde"
ARRAYS = {name: {"shape": [8, 4], "init": "normal()", "spec": ["x", None]} for name in NAMES}


@pytest.fixture
def run(tmp_path: Path) -> Any:
    (tmp_path / "own.py").write_text(FILE)
    (tmp_path / "run").mkdir()

    def run(**keys: Any) -> Record:
        config = {
            "name": "own",
            "mesh": {"axes": ["x"], "shape": [2]},
            "imports": {"own": str(tmp_path / "own.py")},
            **keys,
        }
        return flow.run(harness.config(config), tmp_path / "run", Sources(), workers=Workers(harness.Telling()))

    return run


def value_of(record: Record, program: Program) -> ValueVerdict:
    assert record.status == "passed", (record.error, record.programs)
    value = record.programs[program].checks.value
    assert isinstance(value, ValueVerdict)
    return value


@pytest.mark.in_turn
def test_the_reference_follows_the_rules_and_the_note_says_how_they_differ(run: Any, tmp_path: Path) -> None:
    record = run(
        arrays=ARRAYS,
        graph={
            "y": "own.several(a, b, c, d, e)",
            "dy": "own.slope(a, b, c, d, e)",
            "new": "b - 0.1 * grad.b",
            "other": "e - 0.1 * grad.e",
        },
        outputs={"y": [], "dy": ["x"], "new": ["x"], "other": ["x"]},
        grad={"of": "y", "wrt": [*NAMES]},
        program=["auto", "derived"],
    )
    value = value_of(record, Program.AUTO)
    assert {output.status for output in value.outputs.values()} == {"passed"}
    assert value.note is not None
    ruled, *differing = re.split(": |; ", value.note)
    assert re.fullmatch(r"the reference follows the rule of .*own\.py:\d+ @jax\.custom_jvp.*", ruled)
    assert [sentence.partition(" ")[0] for sentence in differing] == ["grad.a", "grad.b", "grad.c"]
    assert re.search(r"at \d+ of 32 elements, at \d+ of them the derivative is not finite$", differing[0])
    assert re.search(r"at \d+ of 32 elements, by up to [\d.]+$", differing[1])
    gradient = record.programs[Program.AUTO].checks.gradient
    assert "confirmed by directional central differences" in gradient.oracle["graph"]
    assert set(gradient.apart["graph"]) == {"grad.d", "grad.e"}
    # Derived lines do not have the rules: what depends on those that matter is not compared.
    value = value_of(record, Program.DERIVED)
    left_out = {name for name, output in value.outputs.items() if output.status == "not_run"}
    assert left_out == {"grad.a", "grad.b", "grad.c", "new"}
    assert value.note is not None
    assert "new, grad.a, grad.b and grad.c are not compared: the lines of derived do not have the rule of" in value.note
    assert {mode.program for mode in modes(record.programs, tmp_path / "run") if mode.gap is not None} == set()


@pytest.mark.in_turn
def test_a_rule_may_replace_the_derivative_of_a_while(run: Any) -> None:
    record = run(
        arrays={"a": ARRAYS["a"]},
        graph={"y": "own.solved(a)"},
        outputs={"y": []},
        grad={"of": "y", "wrt": ["a"]},
        program=["auto"],
    )
    assert "JAX does not differentiate the lines themselves" in str(value_of(record, Program.AUTO).note)


@pytest.mark.in_turn
@pytest.mark.parametrize("graph", [True, False], ids=["with a graph", "without"])
def test_device_code_has_the_rules_too(run: Any, graph: bool) -> None:
    record = run(
        arrays={"a": ARRAYS["a"]},
        **({"graph": {"y": "own.quantized(a)"}} if graph else {}),
        per_device={"y": "psum(own.quantized(a), 'x')"},
        outputs={"y": []},
        grad={"of": "y", "wrt": ["a"]},
        program=["shard_map", "vmap"],
    )
    output = value_of(record, Program.SHARD_MAP).outputs["grad.a"]
    if graph:
        assert output.status == "passed"
    else:
        assert output.status == "not_run"
        assert str(output.reason).startswith("it differs from the derivative of the lines, which do not have the rule")


@pytest.mark.in_turn
def test_a_program_with_another_rule_than_the_graph_fails(run: Any) -> None:
    record = run(
        arrays={"a": ARRAYS["a"]},
        graph={"y": "sum(own.reversed_(a, 0.5) ** 2)"},
        per_device={"y": "psum(sum(own.reversed_(a, 0.75) ** 2), 'x')"},
        outputs={"y": []},
        grad={"of": "y", "wrt": ["a"]},
        program=["shard_map"],
    )
    assert record.status == "failed", record.error
    value = record.programs[Program.SHARD_MAP].checks.value
    assert isinstance(value, ValueVerdict)
    assert {name: output.status for name, output in value.outputs.items()} == {"y": "passed", "grad.a": "failed"}
