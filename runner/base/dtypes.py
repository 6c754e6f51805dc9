"""Gives the size, precision and NumPy dtype of JAX's dtypes by name; many are from ml_dtypes.

Also type guards for arrays. NumPy is imported where an array or a NumPy dtype is first needed, which reading an
experiment does not.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard, cast

from runner.base.lazy import dataclass

if TYPE_CHECKING:
    import numpy as np

Kind: TypeAlias = Literal["bool", "int", "float", "complex"]

_NUMPY: dict[str, tuple[Kind, int, int | None]] = {
    "bool": ("bool", 1, None), "int8": ("int", 1, None), "int16": ("int", 2, None), "int32": ("int", 4, None),
    "int64": ("int", 8, None), "uint8": ("int", 1, None), "uint16": ("int", 2, None), "uint32": ("int", 4, None),
    "uint64": ("int", 8, None), "float16": ("float", 2, 10), "float32": ("float", 4, 23), "float64": ("float", 8, 52),
    "complex64": ("complex", 8, 23), "complex128": ("complex", 16, 52),
}  # fmt: skip
"""The kind of each dtype, the bytes of an element in an array, and the bits of the mantissa if arithmetic rounds."""

_ML_DTYPES: dict[str, tuple[Kind, int, int | None]] = {
    "bfloat16": ("float", 2, 7), "int2": ("int", 1, None), "int4": ("int", 1, None), "uint2": ("int", 1, None),
    "uint4": ("int", 1, None), "float4_e2m1fn": ("float", 1, 1), "float8_e3m4": ("float", 1, 4),
    "float8_e4m3": ("float", 1, 3), "float8_e4m3fn": ("float", 1, 3), "float8_e4m3b11fnuz": ("float", 1, 3),
    "float8_e4m3fnuz": ("float", 1, 3), "float8_e5m2": ("float", 1, 2), "float8_e5m2fnuz": ("float", 1, 2),
    "float8_e8m0fnu": ("float", 1, 0),
}  # fmt: skip

NAMES = (*_NUMPY, *_ML_DTYPES)
WIDE = frozenset({"int64", "uint64", "float64", "complex128"})
"""The dtypes that JAX has only with `jax_enable_x64`."""

NARROW_INTEGERS = ("int2", "int4", "uint2", "uint4")
"""The integers of which a byte holds several: Python numbers are not promoted to them."""


@dataclass(frozen=True)
class DType:
    """A dtype.

    - `itemsize`: the bytes of an element as an array stores it.
    - `eps`: the gap above 1.0 of floating and complex dtypes; 0.0 of exact ones.
    """

    name: str
    kind: Kind
    itemsize: int
    eps: float

    @cached_property
    def numpy(self) -> np.dtype:
        """The dtype in NumPy."""
        import ml_dtypes
        import numpy as np

        return np.dtype(getattr(ml_dtypes, self.name) if self.name in _ML_DTYPES else self.name)

    @property
    def exact(self) -> bool:
        """Whether arithmetic in this dtype does not round."""
        return self.eps == 0.0

    @property
    def infinite(self) -> bool:
        """Whether the dtype has an infinity."""
        import numpy as np

        return self.kind in ("float", "complex") and bool(np.isinf(np.array(np.inf).astype(self.numpy)))

    @property
    def source(self) -> str:
        """The dtype as programs spell it: `np.float32`, `ml_dtypes.bfloat16`."""
        return f"ml_dtypes.{self.name}" if self.name in _ML_DTYPES else f"np.{self.name}"


MEANT = {"float": "float32", "double": "float64", "half": "float16", "int": "int32", "complex": "complex64"}
"""The dtypes that JAX has by default for names that are none."""

WEAK = "weak "
"""What comes before the dtype of a value of JAX's weak type, which takes the dtype of what it is combined with."""


def is_inexact(name: str) -> bool:
    """Whether it names a dtype of floats or of complex numbers."""
    return name in NAMES and dtype(name).kind in ("float", "complex")


@cache
def dtype(name: str) -> DType:
    """The dtype called `name`, which may be `weak`. Raises `KeyError` for a name that is not in `NAMES`."""
    name = name.removeprefix(WEAK)
    kind, itemsize, mantissa = (_NUMPY | _ML_DTYPES)[name]
    return DType(name, kind, itemsize, 0.0 if mantissa is None else 2.0**-mantissa)


def finfo(dtype: Any) -> Any:
    """The properties of a floating dtype: `eps`, `max`, `tiny`, `nmant`."""
    import ml_dtypes

    return cast("Any", ml_dtypes).finfo(dtype)


def is_array(value: object) -> TypeGuard[np.ndarray]:
    """Whether a value is an array."""
    import numpy as np

    return isinstance(value, np.ndarray)


def is_numeric(value: object) -> TypeGuard[np.ndarray | np.generic]:
    """Whether a value is a NumPy array or scalar."""
    import numpy as np

    return isinstance(value, np.ndarray | np.generic)


def is_floating(value: object) -> TypeGuard[np.ndarray | np.generic]:
    """Whether a value is a NumPy array or scalar of floats or complex numbers."""
    return is_numeric(value) and value.dtype.kind in "fc"


def where(condition: Any, x: Any, y: Any) -> np.ndarray:
    """`np.where` with three arguments, typed: NumPy's stubs leave the result open."""
    import numpy as np

    return cast("Any", np).where(condition, x, y)
