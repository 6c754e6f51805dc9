"""The time to read a function's jaxpr as lines, beside the time to trace it, by the number of equations.

    python benchmarks/functions.py [LAYERS …]

The function is a step of gradient descent through LAYERS transformer blocks, unrolled. Reading includes its own
tracing, which JAX has cached. The goal is at most 0.3 s for 900 equations.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import jax
import jax.numpy as jnp

from runner.worker import calls
from runner.worker.jaxpr import jaxprs

WEIGHTS = {"wq": (16, 16), "wk": (16, 16), "wv": (16, 16), "wo": (16, 16), "w1": (16, 32), "w2": (32, 16)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("layers", nargs="*", type=int, default=[1, 2, 4, 8, 16, 32])
    print(f"{'layers':>8}{'equations':>11}{'lines':>8}{'traced':>10}{'read':>10}{'each':>10}")
    for layers in parser.parse_args().layers:
        operands = {"x": jax.ShapeDtypeStruct((2, 8, 16), "float32")}
        operands |= {
            f"{name}_{layer}": jax.ShapeDtypeStruct(shape, "float32")
            for layer in range(layers)
            for name, shape in WEIGHTS.items()
        }
        start = time.perf_counter()
        traced = calls.make_jaxpr(step)(*operands.values())
        middle = time.perf_counter()
        read = jaxprs.read(step, operands)
        taken = time.perf_counter() - middle
        count = equations(traced.jaxpr)
        print(
            f"{layers:>8}{count:>11}{len(read.lines):>8}{middle - start:>8.3f} s{taken:>8.3f} s"
            f"{1e6 * taken / count:>7.0f} µs"
        )


def step(x: Any, *weights: Any) -> Any:
    """Return the weights after a step of gradient descent."""
    grads = jax.grad(loss, argnums=1)(x, weights)
    return [w - 0.1 * g for w, g in zip(weights, grads, strict=True)]


def loss(x: Any, weights: Any) -> Any:
    """Return the mean square of the blocks' result."""
    for at in range(0, len(weights), len(WEIGHTS)):
        wq, wk, wv, wo, w1, w2 = weights[at : at + len(WEIGHTS)]
        h = x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        scores = jnp.einsum("bqd,bkd->bqk", h @ wq, h @ wk) / 4
        scores = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), scores, -1e30)
        x = x + jax.nn.softmax(scores) @ (h @ wv) @ wo
        x = x + jax.nn.silu(x @ w1) @ w2
    return (x**2).mean()


def equations(jaxpr: Any) -> int:
    """Count the equations, including those of inner jaxprs."""
    inner = (getattr(each, "jaxpr", each) for equation in jaxpr.eqns for each in equation.params.values())
    return len(jaxpr.eqns) + sum(equations(each) for each in inner if hasattr(each, "eqns"))


if __name__ == "__main__":
    main()
