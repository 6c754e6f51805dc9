"""NumPy counterparts of JAX's arithmetic, comparisons, Python operators and indexing, in float64.

Every counterpart keeps the oracle's rule of dtypes: a float is float64 and a complex number complex128, whatever JAX
stores it in; an integer or a boolean has exactly JAX's dtype without x64, and wraps as JAX's does.
"""

from __future__ import annotations

import ast
import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

_NARROW = {np.dtype(np.int64): np.dtype(np.int32), np.dtype(np.uint64): np.dtype(np.uint32)}
_RARE_INTEGERS = ("int1", "uint1", "int2", "uint2", "int4", "uint4")


@functools.cache
def signature(arguments: str) -> inspect.Signature:
    """The signature that `arguments` spells: `signature("a, axis=None, *, keepdims=False")`."""
    namespace: dict[str, Any] = {}
    exec(f"def f({arguments}): ...", namespace)  # the table's own text, never a user's
    return inspect.signature(namespace["f"])


# Dtypes.


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """The dtype in which the oracle keeps what JAX keeps in `dtype`: `bfloat16` gives float64, `int8` gives int8."""
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if name.startswith(("float", "bfloat")):
        return np.dtype(np.float64)
    if name.startswith("complex"):
        return np.dtype(np.complex128)
    if name in _RARE_INTEGERS:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    found = np.dtype(name)
    return np.dtype({"f": np.float64, "c": np.complex128}.get(found.kind, found))


def common_dtype(*values: Any) -> np.dtype[Any]:
    """JAX's promotion: a Python scalar takes the arrays' dtype, and a 64-bit integer appears only if one came in."""
    strong = [np.dtype(value.dtype) for value in values if isinstance(value, np.ndarray | np.generic)]
    kinds = {dtype.kind for dtype in strong} | {np.asarray(v).dtype.kind for v in values if np.isscalar(v)}
    if "c" in kinds:
        return np.dtype(np.complex128)
    if "f" in kinds:
        return np.dtype(np.float64)
    # ml_dtypes' narrow integers ('V') give way to every other integer.
    usual = [dtype for dtype in strong if dtype.kind not in "Vb"] or [dtype for dtype in strong if dtype.kind == "V"]
    if not usual:
        return np.dtype(np.int32 if "i" in kinds else np.bool_)
    joined = np.result_type(*usual)
    if joined in _NARROW and joined not in strong:
        return _NARROW[joined]
    return np.dtype(np.float64) if joined.kind == "f" else joined


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def array(value: Any) -> np.ndarray[Any, Any]:
    """`value`, or nested lists of values, as one array of the dtype that JAX gives it: a Python int is int32."""
    if isinstance(value, np.ndarray):
        return value
    leaves = _leaves(value)
    return np.asarray(value).astype(common_dtype(*leaves) if leaves else np.float64, copy=False)


def common(*values: Any) -> list[np.ndarray[Any, Any]]:
    """The values as arrays of their common dtype."""
    values = tuple(array(value) if isinstance(value, list | tuple) else value for value in values)
    dtype = common_dtype(*values)
    # astype wraps a Python int that does not fit, as JAX does.
    return [np.asanyarray(value).astype(dtype, copy=False) for value in values]


def floating(value: Any) -> np.ndarray[Any, Any]:
    """`value` in float64 or complex128: where JAX gives integers a float result."""
    found = array(value)
    return found if found.dtype.kind == "c" else found.astype(np.float64, copy=False)


def convert(value: Any, dtype: Any) -> Any:
    """JAX's conversion: a float truncates toward zero and saturates, NaN becomes 0, an integer wraps."""
    found, target = array(value), dtype_of(dtype)
    if target.kind == "b":
        return found != 0
    if target.kind != "c" and found.dtype.kind == "c":
        found = found.real
    in_kind = getattr(found, "in_kind", None)
    if target.kind in "fc" and isinstance(dtype, str) and in_kind is not None:
        # An array that rounds: with more bits, it rounds less from here on.
        return in_kind(dtype)
    if target.kind in "iu" and found.dtype.kind == "f":
        limits = np.iinfo(target)
        whole = np.trunc(np.where(np.isnan(found), 0.0, found))
        inside = (whole > limits.min) & (whole < limits.max)
        ends = np.where(whole <= limits.min, np.asarray(limits.min, target), np.asarray(limits.max, target))
        return np.where(inside, np.where(inside, whole, 0.0).astype(target), ends)
    return found.astype(target, copy=False)


def in_floats(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` on its arguments in float64; an edge value gives inf or NaN without a warning."""

    @functools.wraps(function, updated=())
    def counterpart(*values: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*map(floating, values))

    return counterpart


def promoted(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` on its arguments in their common dtype; integers wrap without a warning."""

    @functools.wraps(function, updated=())
    def counterpart(*values: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*common(*values))

    return counterpart


def ieee(ufunc: np.ufunc, method: str = "__call__") -> Callable[..., Any]:
    """`np.maximum`, `np.minimum` or a method of theirs, as IEEE 754 defines it and XLA computes it: 0.0 is above -0.0.

    NumPy takes either zero, depending on the order and the number of the elements.
    """
    positive = {np.maximum: np.logical_or, np.minimum: np.logical_and}[ufunc]

    def choose(*arrays: Any, **options: Any) -> Any:
        found = getattr(ufunc, method)(*arrays, **options)
        if found.dtype.kind != "f" or np.all(found):
            return found
        if "initial" in options:
            options["initial"] = not np.signbit(options["initial"])
        above = getattr(positive, method)(*(~np.signbit(each) for each in arrays), **options)
        return np.where(found == 0, np.where(above, found.dtype.type(0.0), found.dtype.type(-0.0)), found)[()]

    return choose


ieee_maximum, ieee_minimum = ieee(np.maximum), ieee(np.minimum)


def on_truth(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` on whether its arguments differ from zero."""
    return lambda *values: function(*(array(value) != 0 for value in values))


def identity(x: Any) -> Any:
    """The value itself, or the tuple of values."""
    return x


# Arithmetic.


def _divided(x: Any, y: Any) -> tuple[Any, Any]:
    """XLA's integer quotient and remainder, toward zero; of a division by zero, -1 (all bits set) and the dividend."""
    zero = y == 0
    safe = np.where(zero, np.ones_like(y), y)
    remainder = np.fmod(x, safe)
    quotient = (x - remainder) // safe
    return np.where(zero, np.invert(np.zeros_like(x)), quotient), np.where(zero, x, remainder)


def _float_quotient(x: Any, y: Any) -> Any:
    """The quotient of `float_divmod` in CPython's floatobject.c, step by step, since each step rounds."""
    rest = np.fmod(x, y)
    quotient = np.where(y == 0, x, x - rest) / y
    quotient = np.where((rest != 0) & (np.sign(y) != np.sign(rest)), quotient - 1, quotient)
    whole = np.trunc(quotient)
    # Halves away from zero.
    return np.where(np.abs(quotient - whole) >= 0.5, whole + np.sign(quotient), whole)


@promoted
def floor_divide(x: Any, y: Any) -> Any:
    """`jnp.floor_divide`: an integer divided by zero is -1 or -2, and no error."""
    if x.dtype.kind == "b":
        x, y = x.astype(np.int32), y.astype(np.int32)
    if x.dtype.kind == "f":
        return _float_quotient(x, y)
    quotient, rest = _divided(x, y)
    return (
        quotient if x.dtype.kind == "u" else np.where((np.sign(x) != np.sign(y)) & (rest != 0), quotient - 1, quotient)
    )


@promoted
def remainder(x: Any, y: Any) -> Any:
    """`jnp.remainder`, `%`: an integer modulo zero is 0."""
    if x.dtype.kind == "b":
        x, y = x.astype(np.int32), y.astype(np.int32)
    return np.remainder(x, y) if x.dtype.kind == "f" else np.remainder(x, np.where(y == 0, np.ones_like(y), y))


@promoted
def fmod(x: Any, y: Any) -> Any:
    """`jnp.fmod`: the remainder has the dividend's sign; an integer modulo zero is 0."""
    if x.dtype.kind == "b":
        x, y = x.astype(np.int32), y.astype(np.int32)
    return np.fmod(x, y) if x.dtype.kind == "f" else np.fmod(x, np.where(y == 0, np.ones_like(y), y))


def divmod_(x1: Any, x2: Any, /) -> tuple[Any, Any]:
    """`jnp.divmod`."""
    return floor_divide(x1, x2), remainder(x1, x2)


def power(x1: Any, x2: Any, /) -> Any:
    """`jnp.power`: an integer to an array of integers uses the exponent's lowest six bits, as JAX does."""
    x, y = common(x1, x2)
    with np.errstate(all="ignore"):
        if x.dtype.kind in "fc":
            # Of one exponent of 0.5 NumPy takes the square root, which is another function at -inf.
            return np.power(x, np.array(np.broadcast_to(y, np.broadcast_shapes(x.shape, y.shape))))
        if x.dtype.kind == "b":
            x, y = x.astype(np.int32), y.astype(np.int32)
        if isinstance(x2, int):
            return np.power(x, y)
        result = np.where((x == 0) & (y != 0), np.zeros_like(x), np.ones_like(x))
        bits = y.astype(np.int64) & 63
        for _ in range(6):
            result = np.where(bits & 1, result * x, result)
            x, bits = x * x, bits >> 1
        return result


def square(x: Any, /) -> Any:
    """`jnp.square`: of a boolean in int32."""
    x = array(x)
    with np.errstate(all="ignore"):
        return np.square(x.astype(np.int32) if x.dtype.kind == "b" else x)


@promoted
def sign(x: Any, /) -> Any:
    """`jnp.sign`: of -0.0 it is -0.0."""
    return np.where(x == 0, x, np.sign(x))


def round_(a: Any, decimals: int = 0) -> Any:
    """`jnp.round`: half to even; an integer is itself."""
    a = array(a)
    return np.round(a, decimals) if a.dtype.kind in "fc" else a


def clip(arr: Any, /, min: Any = None, max: Any = None) -> Any:
    """`jnp.clip`: the upper bound wins where the bounds cross."""
    if min is not None:
        arr = ieee_maximum(*common(min, arr))
    if max is not None:
        arr = ieee_minimum(*common(max, arr))
    return array(arr)


def logaddexp(x1: Any, x2: Any, /) -> Any:
    """`jnp.logaddexp`, by JAX's formula."""
    x1, x2 = np.broadcast_arrays(*map(floating, (x1, x2)), subok=True)
    with np.errstate(all="ignore"):
        apart = x1 - x2
        return np.where(np.isnan(apart), x1 + x2, np.maximum(x1, x2) + np.log1p(np.exp(-np.abs(apart))))


@promoted
def fmax(x: Any, y: Any) -> Any:
    """`jnp.fmax`: of two zeros the second."""
    return np.where((x > y) | (y != y), x, y)


@promoted
def fmin(x: Any, y: Any) -> Any:
    """`jnp.fmin`: of two zeros the second."""
    return np.where((x < y) | (y != y), x, y)


def nan_to_num(x: Any, *, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """`jnp.nan_to_num`: an infinity becomes float32's largest number, the default dtype's."""
    largest = float(np.finfo(np.float32).max)
    return np.nan_to_num(array(x), nan=nan, posinf=posinf or largest, neginf=neginf or -largest)


def digamma(x: Any) -> Any:
    """`jax.lax.digamma`, but for 0, where JAX 0.10 has NaN and 0.12 the limit."""
    return _special("digamma")(x)


def _special(name: str) -> Callable[..., Any]:
    """A function of `scipy.special`, which takes too long to import for a run that does not need it."""

    @in_floats
    def counterpart(*values: Any) -> Any:
        import scipy.special

        return getattr(scipy.special, name)(*values)

    return counterpart


erf, erfc, erf_inv = _special("erf"), _special("erfc"), _special("erfinv")
lgamma, logistic, xlogy = _special("gammaln"), _special("expit"), _special("xlogy")


def rsqrt(x: Any) -> Any:
    """`jax.lax.rsqrt`."""
    with np.errstate(all="ignore"):
        return 1.0 / np.sqrt(floating(x))


def reciprocal(x: Any, /) -> Any:
    """`jnp.reciprocal`: of an integer in floats."""
    with np.errstate(all="ignore"):
        return 1.0 / floating(x)


def angle(z: Any, deg: bool = False) -> Any:
    """`jnp.angle`: of NaN it is NaN."""
    return np.where(np.isnan(array(z)), np.nan, np.angle(floating(z), deg))


def isclose(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """`jnp.isclose`."""
    with np.errstate(all="ignore"):
        return np.isclose(*common(a, b), rtol=rtol, atol=atol, equal_nan=equal_nan)


def allclose(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """`jnp.allclose`."""
    return np.all(isclose(a, b, rtol, atol, equal_nan))


def astype(x: Any, dtype: Any, /) -> Any:
    """`jnp.astype`: from float to float the oracle keeps the value; `None` means float32."""
    return convert(x, "float32" if dtype is None else dtype)


def where(condition: Any, x: Any, y: Any, /) -> Any:
    """`jnp.where` with three arguments."""
    return np.where(array(condition) != 0, *common(x, y))


# Contraction.


def preferred(values: list[np.ndarray[Any, Any]], dtype: Any) -> list[np.ndarray[Any, Any]]:
    """The operands in the dtype of the result, `preferred_element_type`."""
    return values if dtype is None else [convert(value, dtype) for value in values]


def matmul(a: Any, b: Any, *, preferred_element_type: Any = None) -> Any:
    """`jnp.matmul`, `@`: integers add up in their own dtype and wrap; booleans give booleans."""
    return np.matmul(*preferred(common(a, b), preferred_element_type))


# Python's operators. On Python's own numbers they are Python's, for the program that JAX traces computes these so too.


def _overloaded(python: Callable[..., Any], numpy: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(python)
    def operate(*values: Any) -> Any:
        on_arrays = any(isinstance(value, np.ndarray | np.generic) for value in values)
        return numpy(*values) if on_arrays else python(*values)

    return operate


add, subtract, multiply = promoted(np.add), promoted(np.subtract), promoted(np.multiply)
divide = in_floats(np.true_divide)
left_shift, right_shift = promoted(np.left_shift), promoted(np.right_shift)
bitwise_and, bitwise_or, bitwise_xor = promoted(np.bitwise_and), promoted(np.bitwise_or), promoted(np.bitwise_xor)
negative, invert = promoted(np.negative), promoted(np.invert)

binary: dict[type[ast.operator], Callable[..., Any]] = {
    ast.Add: _overloaded(operator.add, add),
    ast.Sub: _overloaded(operator.sub, subtract),
    ast.Mult: _overloaded(operator.mul, multiply),
    ast.Div: _overloaded(operator.truediv, divide),
    ast.FloorDiv: _overloaded(operator.floordiv, floor_divide),
    ast.Mod: _overloaded(operator.mod, remainder),
    ast.Pow: _overloaded(operator.pow, power),
    ast.MatMult: _overloaded(operator.matmul, matmul),
    ast.BitAnd: _overloaded(operator.and_, bitwise_and),
    ast.BitOr: _overloaded(operator.or_, bitwise_or),
    ast.BitXor: _overloaded(operator.xor, bitwise_xor),
    ast.LShift: _overloaded(operator.lshift, left_shift),
    ast.RShift: _overloaded(operator.rshift, right_shift),
}

unary: dict[type[ast.unaryop], Callable[..., Any]] = {
    ast.USub: _overloaded(operator.neg, negative),
    ast.UAdd: _overloaded(operator.pos, array),
    ast.Invert: _overloaded(operator.invert, invert),
}

compare: dict[type[ast.cmpop], Callable[..., Any]] = {
    ast.Eq: _overloaded(operator.eq, promoted(np.equal)),
    ast.NotEq: _overloaded(operator.ne, promoted(np.not_equal)),
    ast.Lt: _overloaded(operator.lt, promoted(np.less)),
    ast.LtE: _overloaded(operator.le, promoted(np.less_equal)),
    ast.Gt: _overloaded(operator.gt, promoted(np.greater)),
    ast.GtE: _overloaded(operator.ge, promoted(np.greater_equal)),
}


# Indexing.


def clamped(index: Any, size: int) -> Any:
    """An integer or integer array as an index in range: a negative one counts from the end, then all are clamped."""
    found = np.asarray(index).astype(np.int64)
    found = np.clip(np.where(found < 0, found + size, found), 0, max(size - 1, 0))
    return found if found.ndim else int(found)


def getitem(x: Any, index: Any) -> Any:
    """`x[index]`: an integer out of range is clamped to the nearest element, as JAX does, and raises nothing."""
    if isinstance(x, list | tuple):
        return x[index]
    parts = index if isinstance(index, tuple) else (index,)
    x = array(x)

    def consumed(part: Any) -> int:
        if part is None or part is Ellipsis or isinstance(part, bool):
            return 0
        return np.ndim(part) if isinstance(part, np.ndarray) and part.dtype == np.bool_ else 1

    missing = x.ndim - sum(map(consumed, parts))
    checked: list[Any] = []
    axis = 0
    for part in parts:
        if part is Ellipsis:
            axis += missing
        elif isinstance(part, slice):
            checked.append(_static_slice(part))
            axis += 1
            continue
        elif consumed(part) == 1 and np.asarray(part).dtype != np.bool_:
            if axis >= x.ndim:
                raise IndexError(f"too many indices for an array of {x.ndim} dimensions")
            part = clamped(part, x.shape[axis])
        axis += 0 if part is Ellipsis else consumed(part)
        checked.append(part)
    return x[tuple(checked)]


def _static_slice(part: slice) -> slice:
    bounds = (part.start, part.stop, part.step)
    return slice(*(None if bound is None else operator.index(bound) for bound in bounds))
