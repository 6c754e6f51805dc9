"""What docs/operations.md says to write instead is what JAX computes with what it replaces."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from runner.experiment import data
from runner.language.__main__ import INSTEAD
from runner.reference import interpret
from tests import harness

TEXT = """
dims: {n: 4}
arrays:
  x: {shape: [4]}
  v: {shape: [4]}
  a: {shape: [2, 3, 4]}
  p: {shape: [2, 6, 3]}
  i: {shape: [], dtype: int32, init: 2}
functions: {f(x): 2 * x, g(x): x + 1}
graph:
  chosen: a[0, 0, 0] > 0
  set: SET
  masked: MASKED
  switched: SWITCHED
  either: EITHER
  mapped: "f(x)"
  pooled: POOLED
outputs: {set: [], masked: [], switched: [], either: [], mapped: [], pooled: []}
"""


def test_it_is_what_jax_computes(tmp_path: Path) -> None:
    lines = {
        "SET": INSTEAD["x.at[i].apply(f)"],
        "MASKED": INSTEAD["x[mask] = v"].replace("mask,", "x > 0,"),
        "SWITCHED": INSTEAD["jax.lax.switch(i, [f, g], x)"].replace("i ==", "i - 1 =="),
        "EITHER": INSTEAD["jax.lax.cond(c, f, g, x)"].replace("(c,", "(chosen,"),
        "POOLED": INSTEAD["flax.linen.avg_pool(x, (2,), (2,))"].replace("(x,", "(p,"),
    }
    text = TEXT
    for name, expression in lines.items():
        text = text.replace(name, f'"{expression}"')
    experiment = harness.experiment(text)
    harness.types(text)
    arrays = data.make(experiment, tmp_path)
    got = {name: value[0] for name, value in interpret(experiment, "graph", arrays).values.items()}
    x, v, a, p = (jnp.asarray(arrays[name]) for name in ("x", "v", "a", "p"))
    expected = {
        "set": x.at[2].apply(lambda x: 2 * x),
        "masked": jnp.where(x > 0, v, x),
        "switched": jax.lax.switch(1, [lambda x: 2 * x, lambda x: x + 1], x),
        "either": jax.lax.cond(a[0, 0, 0] > 0, lambda x: 2 * x, lambda x: x + 1, x),
        "mapped": jax.lax.map(lambda x: 2 * x, x),
        "pooled": (p[:, ::2] + p[:, 1::2]) / 2,
    }
    for name, wanted in expected.items():
        np.testing.assert_allclose(got[name], wanted, rtol=1e-5, atol=1e-6, err_msg=name)
