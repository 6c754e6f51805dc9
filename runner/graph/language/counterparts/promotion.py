"""Converts values to the oracle's dtype: JAX's promotion and conversion, in NumPy.

A float is float64 and a complex number complex128, whatever its dtype in JAX. An integer or a boolean has exactly
JAX's dtype, with `jax_enable_x64` or without, and wraps as in JAX.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from runner.base import dtypes
from runner.base.untyped import is_sequence

NARROWED: dict[np.dtype, np.dtype] = {np.dtype(np.int64): np.dtype(np.int32), np.dtype(np.uint64): np.dtype(np.uint32)}
"""What integers of 64 bits become without `jax_enable_x64`."""

_RARE_INTEGERS = ("int1", "uint1", "int2", "uint2", "int4", "uint4")


_X64: ContextVar[bool] = ContextVar("x64", default=False)


@contextlib.contextmanager
def x64(enabled: bool) -> Generator[None]:
    """The setting `jax_enable_x64` for the counterparts that are called inside, as JAX's functions read it."""
    before = _X64.set(enabled)
    try:
        yield
    finally:
        _X64.reset(before)


def integer(*, unsigned: bool = False) -> np.dtype[Any]:
    """The dtype that JAX gives a Python integer, an index or a count: int64 with `jax_enable_x64`, else int32."""
    wide = _X64.get()
    return np.dtype((np.uint64 if wide else np.uint32) if unsigned else np.int64 if wide else np.int32)


def as_number(x: Any) -> Any:
    """An array as arithmetic reads it: booleans are integers."""
    return x.astype(integer()) if x.dtype.kind == "b" else x


class Weak(np.ndarray):
    """Integers of JAX's weak type, which take the dtype of what they are combined with, as a Python integer does."""


def strong(value: Any) -> Any:
    """A value, or a sequence of values, without weak types."""
    if is_sequence(value):
        return type(value)(map(strong, value))
    return value.view(np.ndarray) if isinstance(value, Weak) else value


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """The oracle's dtype for values of `dtype` in JAX: `bfloat16` gives float64, `int8` gives int8."""
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if name.startswith(("float", "bfloat")):
        return np.dtype(np.float64)
    if name.startswith("complex"):
        return np.dtype(np.complex128)
    if name in _RARE_INTEGERS:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    native = np.dtype(name)
    return np.dtype({"f": np.float64, "c": np.complex128}.get(native.kind, native))


def common_dtype(*values: Any) -> np.dtype[Any]:
    """JAX's promotion: Python scalars and weak integers take the arrays' dtype.

    Without `jax_enable_x64` a 64-bit integer results only from another.
    """
    arrays: list[np.dtype[Any]] = [
        np.dtype(value.dtype) for value in values if dtypes.is_numeric(value) and not isinstance(value, Weak)
    ]
    weak = [v for v in values if np.isscalar(v) or isinstance(v, Weak)]
    kinds = {dtype.kind for dtype in arrays} | {np.asarray(value).dtype.kind for value in weak}
    if "c" in kinds:
        return np.dtype(np.complex128)
    if "f" in kinds:
        return np.dtype(np.float64)
    # ml_dtypes' narrow integers ('V') are promoted to any other integer dtype.
    usual = [dtype for dtype in arrays if dtype.kind not in "Vb"] or [dtype for dtype in arrays if dtype.kind == "V"]
    if not usual:
        return integer() if kinds & {"i", "u"} else np.dtype(np.bool_)
    joined = np.result_type(*usual)
    if joined in NARROWED and joined not in arrays and not _X64.get():
        return NARROWED[joined]
    return np.dtype(np.float64) if joined.kind == "f" else joined


def _leaves(value: Any) -> list[Any]:
    if is_sequence(value):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def array(value: Any) -> np.ndarray[Any, Any]:
    """Convert a value, or nested lists of values, to an array of its dtype in JAX, such as int32 for a Python int."""
    if dtypes.is_array(value):
        return value
    leaves = _leaves(value)
    return np.asarray(value).astype(common_dtype(*leaves) if leaves else np.float64, copy=False)


def _all_floats(values: Sequence[Any]) -> bool:
    """Whether some of the values are arrays of floats, and all others Python numbers."""
    arrays = 0
    for value in values:
        if dtypes.is_numeric(value):
            # Floats of an oracle are float64; those of a `Rounded` array stand for others.
            if value.dtype != np.float64 and (value.dtype.kind != "f" or getattr(value, "in_kind", None) is None):
                return False
            arrays += 1
        elif type(value) is not float and type(value) is not int:
            return False
    return arrays > 0


def common(*values: Any) -> list[np.ndarray[Any, Any]]:
    """Convert the values to arrays of their common dtype."""
    if _all_floats(values):
        # Almost every line of a model.
        return [np.asanyarray(value, None if dtypes.is_numeric(value) else np.float64) for value in values]
    values = tuple(array(value) if isinstance(value, list | tuple) else value for value in values)
    dtype = common_dtype(*values)
    # `astype` wraps a Python int that does not fit, as JAX does.
    return [strong(np.asanyarray(value)).astype(dtype, copy=False) for value in values]


def floating(value: Any) -> np.ndarray[Any, Any]:
    """Convert a value to float64 or complex128, as JAX does where integers have a float result."""
    values = array(value)
    return values if values.dtype.kind == "c" else values.astype(np.float64, copy=False)


def convert(value: Any, dtype: Any) -> Any:
    """JAX's conversion: a float truncates toward zero and saturates, NaN becomes 0, an integer wraps."""
    target = dtype_of(dtype)
    # The digits of Python integers beyond int32 are those of `dtype`.
    values: Any = np.asarray(value) if all(type(leaf) is int for leaf in _leaves(value)) else array(value)
    if target.kind == "b":
        return values != 0
    if target.kind != "c" and values.dtype.kind == "c":
        values = values.real
    in_kind = getattr(values, "in_kind", None)
    if target.kind in "fc" and isinstance(dtype, str) and in_kind is not None:
        # A `Rounded` array, which rounds to this dtype from here on.
        return in_kind(dtype)
    if target.kind in "iu" and values.dtype.kind == "f":
        limits = np.iinfo(target)
        whole = np.trunc(dtypes.where(np.isnan(values), 0.0, values))
        inside = (whole > limits.min) & (whole < limits.max)
        ends = dtypes.where(whole <= limits.min, np.asarray(limits.min, target), np.asarray(limits.max, target))
        return dtypes.where(inside, dtypes.where(inside, whole, 0.0).astype(target), ends)
    return values.astype(target, copy=False)


def in_floats(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` to take its arguments in float64 and to give inf or NaN without a warning."""

    @functools.wraps(function, updated=())
    def counterpart(*values: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*map(floating, values))

    return counterpart


def unsettled(value: Any, where: Any, otherwise: Any) -> Any:
    """`value`, with `otherwise` in its rounded interpretation: what another version of JAX gives at these elements."""
    return dtypes.where(where, otherwise, value) if hasattr(value, "in_kind") else value


def promoted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` to take its arguments in their common dtype and to wrap integers without a warning."""

    @functools.wraps(function, updated=())
    def counterpart(*values: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*common(*values))

    return counterpart


def ieee(ufunc: np.ufunc, method: str = "__call__") -> Callable[..., Any]:
    """`np.maximum`, `np.minimum` or a method of theirs with 0.0 above -0.0, as in IEEE 754 and XLA.

    NumPy returns either zero, depending on the order and the number of the elements.
    """
    positive = np.logical_or if ufunc is np.maximum else np.logical_and

    def choose(*arrays: Any, **options: Any) -> Any:
        best = getattr(ufunc, method)(*arrays, **options)
        if best.dtype.kind != "f" or np.all(best):
            return best
        if "initial" in options:
            options["initial"] = not np.signbit(options["initial"])
        above = getattr(positive, method)(*(~np.signbit(operand) for operand in arrays), **options)
        return dtypes.where(best == 0, dtypes.where(above, best.dtype.type(0.0), best.dtype.type(-0.0)), best)[()]

    return choose


ieee_maximum, ieee_minimum = ieee(np.maximum), ieee(np.minimum)


def on_truth(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `function` to take booleans: whether its arguments differ from zero."""
    return lambda *values: function(*(array(value) != 0 for value in values))


def identity(x: Any, name: str = "") -> Any:
    """Return `x`, a value or a tuple of values; `name` is ignored."""
    return x


def preferred(values: list[np.ndarray[Any, Any]], dtype: Any) -> list[np.ndarray[Any, Any]]:
    """Convert the operands to `preferred_element_type`, the dtype of the result; None: return them."""
    return values if dtype is None else [convert(value, dtype) for value in values]
