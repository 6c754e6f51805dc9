"""The table of operations: for each name, its arguments, its JAX function and its NumPy counterpart.

Adding an operation is adding a row. A row's NumPy counterpart is the oracle: it takes the same arguments by the same
names, computes floats in float64, and never sees JAX. `tests/test_operations.py` holds every row against JAX.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from runner.language import counterparts as c

Kind = Literal["array", "collective", "static"]


@dataclass(frozen=True)
class Operation:
    """One row.

    - `signature`: the arguments that the language allows, by JAX's names, in JAX's order.
    - `jax`: the dotted name of the JAX function, as a program spells it (`jnp.sum`, `jax.nn.relu`, `jax.lax.psum`).
    - `numpy`: the counterpart. A `collective` takes the mesh first and lists of per-device values; see
      `runner/language/collectives.py`.
    - `kind`: `array` works anywhere; `collective` only in `per_device`; `static` gives a Python value.
    - `roundings`: how many roundings to the storage dtype one call costs, for the tolerance.
    - `terms`: given the NumPy arguments and the result, how many terms each element of the result adds up.
    """

    name: str
    signature: inspect.Signature
    jax: str
    numpy: Callable[..., Any]
    kind: Kind = "array"
    roundings: int = 1
    terms: Callable[..., int] | None = None


OPERATIONS: dict[str, Operation] = {}


def _row(name: str, arguments: str, jax: str, numpy: Callable[..., Any], **rest: Any) -> None:
    assert name not in OPERATIONS, name
    OPERATIONS[name] = Operation(name, c.signature(arguments), jax, numpy, **rest)


def _elementwise(
    name: str, arguments: str, numpy: Callable[..., Any], jax: str | None = None, roundings: int = 1
) -> None:
    _row(name, arguments, jax or f"jnp.{name}", numpy, roundings=roundings)


# Arithmetic and elementary functions.
_elementwise("add", "x1, x2", np.add)
_elementwise("exp", "x", np.exp, roundings=4)
_elementwise("tanh", "x", np.tanh, roundings=4)

# Reductions.
_row("sum", "a, axis=None, dtype=None, keepdims=False", "jnp.sum", c.sum_, terms=c.reduced)

# Linear algebra.
_row("matmul", "a, b", "jnp.matmul", c.matmul, terms=c.contracted_matmul)

# Collectives: `runner/language/collectives.py`.

# Random keys: `runner/language/threefry.py`.
