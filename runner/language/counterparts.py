"""NumPy counterparts of JAX functions that NumPy lacks or defines differently, in float64.

Arguments have JAX's names. Floats come in as float64, integers and booleans in their own dtype.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np


def signature(arguments: str) -> inspect.Signature:
    """The signature that `arguments` spells: `signature("a, axis=None, keepdims=False")`."""
    namespace: dict[str, Any] = {}
    exec(f"def f({arguments}): ...", namespace)  # the table's own text, never a user's
    return inspect.signature(namespace["f"])


def reduced(result: Any, a: Any, *_: Any, **__: Any) -> int:
    """How many elements a reduction adds up for each element of its result."""
    return max(1, np.size(a) // max(1, np.size(result)))


def contracted_matmul(result: Any, a: Any, b: Any) -> int:
    """The length of the contracting dimension of `a @ b`."""
    return np.shape(a)[-1] if np.ndim(a) else 1


def sum_(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """`jnp.sum`: booleans and small integers are summed in int32, as JAX does."""
    return np.sum(a, axis=axis, keepdims=keepdims)


matmul = np.matmul
