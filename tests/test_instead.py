"""The replacements in docs/operations.md equal, in JAX, what they replace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.image
import jax.numpy as jnp
import jax.scipy
import numpy as np
import pytest

from runner.checks.reference import interpret
from runner.experiment import data
from runner.graph.language.jax_spellings import INSTEAD
from tests import harness

TEXT = """
arrays:
  x: {shape: [4]}
  v: {shape: [3]}
  y: {shape: [4]}
  A: {shape: [3, 3]}
  B: {shape: [3, 3]}
  p: {shape: [2, 6, 3]}
  i: {shape: [], dtype: int32, init: 2}
functions: {f(x): 2 * x}
graph:
  C: A @ A.T + eye(3)
  L: cholesky(C)
  k: key(3)
  c: x > 0
  mask: x > 0.1
  a: x + 1
  b: y * 2
"""

OTHERWISE = {
    "x[mask] = v": "jnp.where(mask, v, x)",
    "a if c else b": "jnp.where(c, a, b)",
    "a and b": "a & b",
    "flax.linen.avg_pool(p, (2,), (2,))": "(p[:, ::2] + p[:, 1::2]) / 2",
}
"""For constructs that are not JAX expressions of arrays: equivalent JAX expressions."""


@pytest.mark.in_turn
def test_a_replacement_computes_what_jax_does(tmp_path: Path) -> None:
    plain = {"x[mask] = v": {"v": "y"}, "a and b": {"a": "c", "b": "mask"}}
    config = harness.config(TEXT + "outputs: {" + ", ".join(f"n{i}: []" for i in range(len(INSTEAD))) + "}")
    names: dict[str, str] = {}
    for i, (theirs, ours) in enumerate(INSTEAD.items()):
        for old, new in plain.get(theirs, {}).items():
            ours = ours.replace(f"{old},", f"{new},") if "," in ours else ours.replace(old, new, 1)
        names[theirs] = f"n{i}"
        config["graph"][f"n{i}"] = ours
    pairs = {name for theirs, name in names.items() if theirs.startswith("jax.lax.approx_max_k")}
    config["graph"] |= {name: f"stack({config['graph'][name]})" for name in pairs}
    experiment = harness.experiment(config)
    harness.types(config)
    arrays = data.make(experiment, tmp_path)
    got = {name: value[0] for name, value in interpret(experiment, "graph", arrays).values.items()}
    known: dict[str, Any] = {name: jnp.asarray(arrays[name]) for name in arrays}
    known |= {name: jnp.asarray(got[name], "float32") for name in ("C", "L", "a", "b")}
    known |= {"jax": jax, "jnp": jnp, "f": lambda x: 2 * x, "k": jax.random.key(3)}
    known |= {"c": known["x"] > 0, "mask": known["x"] > 0.1}
    for theirs, name in names.items():
        here = known | {old: known[new] for old, new in plain.get(theirs, {}).items()}
        wanted = eval(OTHERWISE.get(theirs, theirs), here)
        wanted = jnp.stack(wanted) if name in pairs else wanted
        np.testing.assert_allclose(got[name], wanted, rtol=2e-3, atol=2e-4, err_msg=theirs)
