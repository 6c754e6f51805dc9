"""A diagnosis of one result of a function: the lines and arrays that it needs, and what is found there."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.sharding import PartitionSpec as P

import runner
from runner.experiment.traced import TracedLines, TracedTerm
from runner.graph.language.syntax import parse

STEP = """
import jax
import jax.numpy as jnp


def attention(p, x):
    q, k, v = (x @ p[name] for name in "qkv")
    scores = q @ k.T / SCALE
    return jax.nn.softmax(scores) @ v


def loss(params, x):
    for p in params:
        x = x + attention(p, x)
    return jnp.mean(x**2)


def step(params, moments, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments, grads)
    params = jax.tree.map(lambda p, m: p - 0.01 * m, params, moments)
    return params, moments, value
"""


def test_only_the_lines_of_a_result_are_kept() -> None:
    texts = {"a": "x + y", "b": "a * 2", "c": "z - 1", "d": "b + x"}
    lines = tuple(TracedTerm(name, parse(text).term) for name, text in texts.items())
    function = TracedLines(("x", "y", "z"), lines, ("b", "c", "d"))
    for kept, names in ([0], "ab"), ([1], "c"), ([2], "abd"), ([1, 0], "abc"):
        narrow = function.only(kept)
        assert [line.name for line in narrow.lines] == [*names]
        assert narrow.results == tuple("bcd"[at] for at in kept)


@pytest.mark.in_turn
def test_a_mistake_of_the_forward_pass_is_found_in_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No edit of one line mends the step: each layer has the mistake, and the backward pass of each has it again."""
    (tmp_path / "narrow_right.py").write_text(STEP.replace("SCALE", "2.0"), encoding="utf-8")
    (tmp_path / "narrow_wrong.py").write_text(STEP.replace("SCALE", "3.0"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    wrong, right = (importlib.import_module(f"narrow_{name}").step for name in ("wrong", "right"))

    def layer(at: int) -> dict[str, Any]:
        keys = jax.random.split(jax.random.key(at), 3)
        return {name: jax.random.normal(key, (4, 4)) for name, key in zip("qkv", keys, strict=True)}

    params, moments = [layer(0), layer(1)], [layer(2), layer(3)]
    x = jax.random.normal(jax.random.key(9), (6, 4))
    record = runner.check(
        wrong, (params, moments, x), reference=right, mesh={"d": 2}, in_specs=(P(), P(), P("d")), show="none",
        quiet=True,
    )  # fmt: skip
    value = record.compiled["auto"].checks.value
    assert value is not None
    _, *sentences = value.diagnosis
    assert sentences[0].startswith("narrow_wrong.py:8 scores = q @ k.T / 3.0: ")
    assert sentences[0].endswith("result/2 equals its reference")
    assert not any("moments" in text for text in sentences)
