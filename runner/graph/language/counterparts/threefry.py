"""Draws the values of `jax.random` in NumPy: threefry2x32, partitionable, JAX's default.

A key is a uint32 array of shape (2,), and an array of keys has shape (..., 2), for both `key` and `PRNGKey`. Bits,
integers and uniform values equal JAX's to the last bit (to the last but one for float64 between bounds other than 0
and 1); other distributions are computed in float64 from JAX's uniform values. Default dtypes are those without
`jax_enable_x64`.

Sources: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), and `jax/_src/random` of JAX 0.10.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from runner.base import dtypes
from runner.graph.language.counterparts.promotion import array, convert, integer

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))

_FLOATS: dict[str, tuple[int, int]] = {
    "bfloat16": (7, 8),
    "float16": (10, 16),
    "float32": (23, 32),
    "float64": (52, 64),
    **{name: (dtypes.finfo(name).nmant, 8) for name in dtypes.NAMES if name.startswith("float8_")},
}
"""For each float dtype, the bits of its mantissa, and the random bits that JAX draws per value."""

_UINTS = ("uint8", "uint16", "uint32", "uint64")

Shape = int | Sequence[int]


def key(seed: Any) -> np.ndarray:
    """The key of an integer seed: of its 64 bits if its dtype has as many, otherwise modulo 2**32."""
    if np.ndim(seed) or not np.issubdtype(np.asarray(seed).dtype, np.integer):
        raise ValueError(f"a seed has to be one integer of at most 64 bits, not {seed!r}")
    wide = (seed.dtype if dtypes.is_numeric(seed) else integer()).itemsize == 8
    return np.array([int(seed) >> 32 & 0xFFFFFFFF if wide else 0, int(seed) % 2**32], np.uint32)


PRNGKey = key


def key_data(keys: Any) -> np.ndarray:
    """The two words of a key, which is how keys are represented here."""
    return np.asarray(keys)


def wrap_key_data(key_bits_array: Any) -> np.ndarray:
    """Build a key from its two words."""
    return np.asarray(key_bits_array).astype(np.uint32)


def fold_in(key: Any, data: Any) -> np.ndarray:
    """Derive a new key from a key and an integer, modulo 2**32."""
    word = np.array([int(_scalar("fold_in", data)) % 2**32], np.uint32)
    return np.concatenate(_threefry("fold_in", key, np.zeros(1, np.uint32), word))


def split(key: Any, num: Shape = 2) -> np.ndarray:
    """Derive `num` new keys, of shape (num, 2), or (*num, 2)."""
    shape = _shape(num)
    return np.stack(_threefry("split", key, *_counts(shape)), axis=-1).reshape(*shape, 2)


def bits(key: Any, shape: Shape = (), dtype: Any = "uint32") -> np.ndarray:
    """Random bits as unsigned integers of 8, 16, 32 or 64 bits."""
    kind = np.dtype("uint32" if dtype is None else dtype)
    if kind.name not in _UINTS:
        raise ValueError(f"bits draws {', '.join(_UINTS)}, not {kind.name}")
    return _bits(key, kind.itemsize * 8, _shape(shape))


def uniform(key: Any, shape: Shape = (), dtype: Any = "float32", minval: Any = 0.0, maxval: Any = 1.0) -> np.ndarray:
    """Values in [minval, maxval) that `dtype` can represent, as float64."""
    return _uniform(key, _shape(shape), _float("uniform", dtype), minval, maxval).astype(np.float64)


def normal(key: Any, shape: Shape = (), dtype: Any = "float32") -> np.ndarray:
    """Standard normal values: the inverse error function, in float64, of JAX's uniform values."""

    erfinv = importlib.import_module("scipy.special").erfinv
    kind = _float("normal", dtype)
    low = np.nextafter(np.array(-1, kind), np.array(0, kind))
    u = _uniform(key, _shape(shape), kind, low, 1.0)
    # XLA's inverse error function begins by squaring u, in float32 or wider. In the tails that one rounding moves the
    # result by up to 50 units in the last place, and everything after it by 3.
    square = np.square(u.astype(np.float64 if kind == np.float64 else np.float32)).astype(np.float64)
    magnitude = np.abs(u.astype(np.float64)) if kind == np.float64 else np.sqrt(square)
    return np.asarray(math.sqrt(2) * np.copysign(erfinv(magnitude), u.astype(np.float64)))


def gumbel(key: Any, shape: Shape = (), dtype: Any = "float32") -> np.ndarray:
    """Values of the standard Gumbel distribution, by JAX's `mode="low"`."""
    return _gumbel(_for_gumbel(key, shape, dtype))


def _for_gumbel(key: Any, shape: Shape, dtype: Any) -> np.ndarray:
    kind = _float("gumbel", dtype)
    return uniform(key, shape, kind, dtypes.finfo(kind).tiny, 1.0)


def _gumbel(u: Any) -> Any:
    return -np.log(-np.log(u))


def categorical(
    key: Any, logits: Any, axis: int = -1, shape: Shape | None = None, *, own_dtype: str = "float32"
) -> np.ndarray:
    """Indices along `axis` by the probabilities `softmax(logits, axis)`; `own_dtype`: that of `logits` in JAX."""
    logits = array(logits)
    axis = axis % logits.ndim - logits.ndim
    batch = tuple(np.delete(logits.shape, axis).tolist())
    full = batch if shape is None else _shape(shape)
    prefix = full[: len(full) - len(batch)]
    size = list(full[len(prefix) :])
    size.insert(axis % logits.ndim, logits.shape[axis])
    # Of the logits' own class: if these are `Rounded`, the noise is too.
    noise = _gumbel(np.zeros_like(logits, shape=()) + _for_gumbel(key, (*prefix, *size), own_dtype))
    return np.asarray(np.argmax(noise + logits, axis=axis)).astype(integer())


def bernoulli(key: Any, p: Any = 0.5, shape: Shape | None = None, *, own_dtype: str = "float32") -> np.ndarray:
    """True with probability `p`; `shape` None is that of `p`. `own_dtype` is the dtype of `p` in JAX."""
    if not np.issubdtype(np.asarray(p).dtype, np.floating):
        raise ValueError(f"bernoulli's p has to be a float, not {np.asarray(p).dtype}")
    size = np.shape(p) if shape is None else _shape(shape)
    kind = _float("bernoulli", own_dtype)
    return np.asarray(_uniform(key, size, kind, 0.0, 1.0) < np.asarray(p).astype(kind))


def randint(key: Any, shape: Shape, minval: Any, maxval: Any, dtype: Any = "int32") -> np.ndarray:
    """Integers in [minval, maxval), by JAX's modulus: twice as many bits as needed, reduced in the unsigned dtype."""
    result = np.dtype("int32" if dtype is None else dtype)
    if not np.issubdtype(result, np.integer):
        raise ValueError(f"randint draws integers, not {result.name}")
    size = _shape(shape)
    kind, low, high = result, np.asarray(minval), np.asarray(maxval)
    if result.itemsize < 4:
        # JAX samples in int32, so that the modulus shows no bias.
        kind, info = np.dtype(np.int32), np.iinfo(result)
        low, high = low.astype(kind).clip(info.min, info.max), high.astype(kind).clip(info.min, int(info.max) + 1)
    beyond = np.asarray(high > np.iinfo(kind).max)
    low, high = _clipped(low, kind), _clipped(high, kind)

    unsigned = np.dtype(f"uint{kind.itemsize * 8}")
    with np.errstate(over="ignore"):
        span = np.subtract(high, low).astype(unsigned)
        span = dtypes.where(high <= low, unsigned.type(1), span)
        # A span that wraps to 0 covers every value; `_remainder` then returns the dividend.
        span = dtypes.where(beyond & (high > low), np.add(span, unsigned.type(1)), span)
        upper, lower = (_bits(half, kind.itemsize * 8, size) for half in split(key))
        multiplier = _remainder(np.asarray(2 ** (kind.itemsize * 4), unsigned), span)
        multiplier = _remainder(np.multiply(multiplier, multiplier), span)
        offset = np.add(np.multiply(_remainder(upper, span), multiplier), _remainder(lower, span))
        drawn = np.add(low, _remainder(offset, span).astype(kind))
    return np.broadcast_to(drawn, size).astype(result)


def rademacher(key: Any, shape: Shape = (), dtype: Any = "int32") -> np.ndarray:
    """-1 or 1, in any numeric dtype."""
    signs = 2 * bernoulli(key, 0.5, _shape(shape)).astype(np.int32) - 1
    return convert(signs, "int32" if dtype is None else dtype)


def laplace(key: Any, shape: Shape = (), dtype: Any = "float32") -> np.ndarray:
    """Values of the Laplace distribution with scale 1."""
    kind = _float("laplace", dtype)
    u = uniform(key, shape, kind, -1.0 + float(dtypes.finfo(kind).epsneg), 1.0)
    return np.sign(u) * np.log1p(-np.abs(u))


def truncated_normal(
    key: Any, lower: Any, upper: Any, shape: Shape | None = None, dtype: Any = "float32"
) -> np.ndarray:
    """Standard normal values between two bounds."""
    special = importlib.import_module("scipy.special")
    kind = _float("truncated_normal", dtype)
    size = np.broadcast_shapes(np.shape(lower), np.shape(upper)) if shape is None else _shape(shape)
    low, high = (np.asarray(bound).astype(kind) for bound in (lower, upper))
    a, b = (special.erf(bound.astype(np.float64) / math.sqrt(2)).astype(kind) for bound in (low, high))
    draws = math.sqrt(2) * special.erfinv(_uniform(key, size, kind, a, b).astype(np.float64))
    inner = [np.nextafter(bound, kind.type(end)).astype(np.float64) for bound, end in ((low, np.inf), (high, -np.inf))]
    return np.clip(draws, *inner)


def choice(
    key: Any,
    a: Any,
    shape: Shape = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    *,
    own_dtype: str = "float32",
    own_int: str = "int32",
) -> np.ndarray:
    """Elements of `a`, or of `arange(a)`, along `axis`, with probabilities `p`.

    `own_dtype`: that of `p` in JAX; `own_int`: the dtype in which JAX draws indices where there is no `p`.
    """
    a, size = np.asarray(a), _shape(shape)
    count = int(a) if a.ndim == 0 else a.shape[axis]
    draws = math.prod(size)
    if not replace and draws > count:
        raise ValueError(f"choice takes {draws} of {count} elements only with replace=True")
    if p is None and not replace:
        order = permutation(key, a, axis)
        taken = np.take(order, np.arange(draws), axis if a.ndim else 0)
        return taken.reshape(size) if a.ndim == 0 else _along(taken, a, size, axis)
    if p is None:
        index = randint(key, size, 0, count, own_int)
    else:
        index = _weighted(key, array(p), size, count, replace, own_dtype)
    return index if a.ndim == 0 else _along(np.take(a, index, axis), a, size, axis)


def _weighted(key: Any, p: np.ndarray, size: tuple[int, ...], count: int, replace: bool, drawn: str) -> np.ndarray:
    """Indices with the probabilities `p`; without `replace`, those of the largest `log(p)` plus Gumbel noise."""
    if p.shape != (count,):
        raise ValueError(f"choice's p has shape {list(p.shape)}, and there are {count} elements")
    if not np.issubdtype(p.dtype, np.floating):
        p = p.astype(np.float64)
    # Of the weights' own class: if these are `Rounded`, the draw is too.
    zero = np.zeros_like(p, shape=())
    if replace:
        sums = np.cumsum(p)
        limits = sums[-1] * (1 - (zero + uniform(key, size, drawn)))
        return np.searchsorted(np.asarray(sums), np.asarray(limits)).astype(np.int32)
    with np.errstate(divide="ignore"):
        scores = np.asarray(_gumbel(zero + _for_gumbel(key, p.shape, drawn)) + np.log(p))
    return np.argsort(-scores, kind="stable")[: math.prod(size)].reshape(size).astype(np.int32)


def _along(taken: np.ndarray, a: np.ndarray, shape: tuple[int, ...], axis: int) -> np.ndarray:
    return taken.reshape((*a.shape[:axis], *shape, *a.shape[axis + 1 :]))


def permutation(key: Any, x: Any, axis: int = 0) -> np.ndarray:
    """`x`, or `arange(x)` for an integer, in a random order along `axis`."""
    x = np.asarray(x)
    if x.ndim == 0:
        x = np.arange(x, dtype=integer())
    order = np.arange(x.shape[axis], dtype=np.intp)
    rounds = math.ceil(3 * math.log(max(1, order.size)) / math.log(2**32 - 1))
    for _ in range(rounds):
        key, sub = split(key)
        order = order[np.argsort(_bits(sub, 32, order.shape), kind="stable")]
    return np.take(x, order, axis)


def _threefry(call: str, key: Any, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The threefry2x32 hash, 20 rounds, of two uint32 vectors of equal length."""
    words = np.asarray(key)
    if words.shape != (2,) or words.dtype != np.uint32:
        raise ValueError(f"{call} takes one key, not {words.dtype.name} of shape {words.shape}")
    # Vectors of length 1: NumPy warns of overflow, which is intended here, in scalars only.
    a, b = words[:1], words[1:]
    schedule = (a, b, a ^ b ^ np.uint32(0x1BD11BDA))
    x, y = first + a, second + b
    for step in range(5):
        for rotation in _ROTATIONS[step % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation)))
        x = x + schedule[(step + 1) % 3]
        y = y + schedule[(step + 2) % 3] + np.uint32(step + 1)
    return x, y


def _counts(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The row-major index of every element, as its high and its low word."""
    count = np.arange(math.prod(shape), dtype=np.uint64)
    return (count >> np.uint64(32)).astype(np.uint32), count.astype(np.uint32)


def _bits(key: Any, width: int, shape: tuple[int, ...]) -> np.ndarray:
    high, low = _threefry("a random draw", key, *_counts(shape))
    if width == 64:
        return ((high.astype(np.uint64) << np.uint64(32)) | low).reshape(shape)
    return (high ^ low).astype(f"uint{width}").reshape(shape)


def _uniform(key: Any, shape: tuple[int, ...], kind: np.dtype, minval: Any, maxval: Any) -> np.ndarray:
    mantissa, width = _FLOATS[kind.name]
    unsigned = np.dtype(f"uint{kind.itemsize * 8}")
    drawn = _bits(key, width, shape).astype(unsigned) >> unsigned.type(width - mantissa)
    # Random mantissas with the exponent of 1 are uniform in [1, 2).
    unit = np.array(1, kind)
    floats = (drawn | unit.view(unsigned)).view(kind) - unit
    low, high = np.asarray(minval).astype(kind), np.asarray(maxval).astype(kind)
    floats, span = floats.reshape(shape), high - low
    if kind == np.float32:
        # XLA fuses the two operations and rounds once; products of float32 are exact in float64.
        values = (floats.astype(np.float64) * span.astype(np.float64) + low).astype(kind)
    else:
        values = floats * span + low
    return np.maximum(low, values)


def _float(call: str, dtype: Any) -> np.dtype:
    kind = np.dtype("float32" if dtype is None else dtype)
    if kind.name not in _FLOATS:
        raise ValueError(f"{call} draws floats of 8 to 64 bits, not {kind.name}")
    return kind


def _clipped(value: np.ndarray, kind: np.dtype) -> np.ndarray:
    if not np.issubdtype(value.dtype, np.integer):
        value = value.astype(np.int64)
    info, own = np.iinfo(kind), np.iinfo(value.dtype)
    return value.clip(max(int(info.min), int(own.min)), min(int(info.max), int(own.max))).astype(kind)


def _remainder(dividend: Any, span: np.ndarray) -> np.ndarray:
    return dtypes.where(span == 0, dividend, np.remainder(dividend, np.maximum(span, span.dtype.type(1))))


def _shape(shape: Shape) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, int | np.integer) else tuple(int(n) for n in shape)


def _scalar(call: str, value: Any) -> Any:
    if np.ndim(value) or not np.issubdtype(np.asarray(value).dtype, np.integer):
        raise ValueError(f"{call} takes one integer, not {value!r}")
    return value
