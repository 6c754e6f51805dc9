"""The name of a dtype in; its NumPy dtype, size and precision out. The dtypes are those of JAX, many from ml_dtypes.

Also type guards for arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeGuard

import ml_dtypes
import numpy as np

_NUMPY = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
_ML_DTYPES = (
    "bfloat16", "int2", "int4", "uint2", "uint4", "float4_e2m1fn", "float8_e3m4", "float8_e4m3", "float8_e4m3fn",
    "float8_e4m3b11fnuz", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
)  # fmt: skip
NAMES = _NUMPY + _ML_DTYPES
WIDE = frozenset({"int64", "uint64", "float64", "complex128"})
"""The dtypes that JAX has only with `jax_enable_x64`."""


@dataclass(frozen=True)
class DType:
    """A dtype. `eps` is the gap above 1.0 of floating and complex dtypes, 0.0 of exact ones."""

    name: str
    numpy: np.dtype
    kind: Literal["bool", "int", "float", "complex"]
    eps: float

    @property
    def itemsize(self) -> int:
        """Bytes per element as an array stores it."""
        return self.numpy.itemsize

    @property
    def exact(self) -> bool:
        """Whether arithmetic in this dtype does not round."""
        return self.eps == 0.0

    @property
    def infinite(self) -> bool:
        """Whether the dtype has an infinity."""
        return self.kind in ("float", "complex") and bool(np.isinf(np.array(np.inf).astype(self.numpy)))

    @property
    def source(self) -> str:
        """The dtype as programs spell it: `np.float32`, `ml_dtypes.bfloat16`."""
        return f"ml_dtypes.{self.name}" if self.name in _ML_DTYPES else f"np.{self.name}"


finfo: Callable[[Any], Any] = ml_dtypes.finfo
"""Properties of a floating dtype: `eps`, `max`, `tiny`, `nmant`."""


@cache
def dtype(name: str) -> DType:
    """The dtype called `name`. Raises `KeyError` for a name that is not in `NAMES`."""
    if name not in NAMES:
        raise KeyError(name)
    numpy = np.dtype(getattr(ml_dtypes, name)) if name in _ML_DTYPES else np.dtype(name)
    if name == "bool":
        return DType(name, numpy, "bool", 0.0)
    if name in ("int2", "int4", "uint2", "uint4") or numpy.kind in "iu":
        return DType(name, numpy, "int", 0.0)
    if numpy.kind == "c":
        return DType(name, numpy, "complex", float(np.finfo(numpy).eps))
    return DType(name, numpy, "float", float(finfo(numpy).eps))


def is_array(value: object) -> TypeGuard[np.ndarray]:
    """Whether a value is an array."""
    return isinstance(value, np.ndarray)


def is_numeric(value: object) -> TypeGuard[np.ndarray | np.generic]:
    """Whether a value is a NumPy array or scalar."""
    return isinstance(value, np.ndarray | np.generic)


def is_floating(value: object) -> TypeGuard[np.ndarray | np.generic]:
    """Whether a value is a NumPy array or scalar of floats or complex numbers."""
    return is_numeric(value) and value.dtype.kind in "fc"


where: Callable[[Any, Any, Any], np.ndarray] = np.where
"""`np.where` with three arguments, typed: NumPy's stubs leave the result open."""
