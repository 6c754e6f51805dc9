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
  u: {shape: [2]}
  s: {shape: [3]}
  a: {shape: [2, 3, 4]}
  b: {shape: [2, 4, 5]}
  p: {shape: [2, 6, 3]}
  i: {shape: [], dtype: int32, init: 2}
  j: {shape: [4], dtype: int32, init: [3, 1, 1, 0]}
functions: {f(x): 2 * x, g(x): x + 1}
graph:
  chosen: a[0, 0, 0] > 0
  set: SET
  part: PART
  added: ADDED
  product: PRODUCT
  either: EITHER
  mapped: "f(x)"
  pooled: POOLED
outputs: {set: [], part: [], added: [], product: [], either: [], mapped: [], pooled: []}
"""


def test_it_is_what_jax_computes(tmp_path: Path) -> None:
    lines = {
        "SET": INSTEAD["x.at[i].set(v)"].replace("v,", "v[0],"),
        "PART": INSTEAD["x.at[start : start + k].set(v)"].replace("v,", "u,").replace("start", "i"),
        "ADDED": INSTEAD["x.at[i].add(v)"].replace("(v, i,", "(v, j,"),
        "PRODUCT": INSTEAD["jax.lax.dot_general(a, b, …)"],
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
    x, v, u, a, b, p, j = (jnp.asarray(arrays[name]) for name in ("x", "v", "u", "a", "b", "p", "j"))
    expected = {
        "set": x.at[2].set(v[0]),
        "part": x.at[2:4].set(u),
        "added": x.at[j].add(v),
        "product": jax.lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,))), precision="highest"),
        "either": jax.lax.cond(a[0, 0, 0] > 0, lambda x: 2 * x, lambda x: x + 1, x),
        "mapped": jax.lax.map(lambda x: 2 * x, x),
        "pooled": (p[:, ::2] + p[:, 1::2]) / 2,
    }
    for name, wanted in expected.items():
        np.testing.assert_allclose(got[name], wanted, rtol=1e-5, atol=1e-6, err_msg=name)
