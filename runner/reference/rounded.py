"""NumPy's functions in; what they give on a machine of a narrower dtype out: every result is rounded to its dtype.

`Rounded` is an array that remembers the dtype it stands for. Whatever function of NumPy's or SciPy's it goes through,
the result is computed as a compiler computes it (in float32, or in float64 for 64 bits) and rounded once. So the NumPy
counterparts of JAX's operations, run on such arrays, round where JAX's primitives do, also inside a softmax or a gelu.

What no rounding to nearest shows is drawn: the last bits of elementary functions, and, with a `seed`, the order of a
sum and to which side close numbers are rounded (Monte Carlo arithmetic: Parker, UCLA CSD-970002, 1997). The draw is a
function of the value, so that equal values stay equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import ml_dtypes
import numpy as np

from runner import dtypes

_EXACT = frozenset(
    {
        np.add, np.subtract, np.multiply, np.divide, np.sqrt, np.square, np.reciprocal, np.negative, np.positive,
        np.absolute, np.fabs, np.maximum, np.minimum, np.fmax, np.fmin, np.floor, np.ceil, np.trunc, np.rint, np.sign,
        np.copysign, np.conjugate, np.fmod, np.remainder, np.floor_divide, np.matmul, np.vecdot, np.ldexp, np.frexp,
        np.modf, np.nextafter, np.spacing, np.heaviside,
    }
)  # fmt: skip
"""The functions whose result a machine rounds correctly; of sums and products of matrices, each term."""

_UNITS = 4
"""How many units in the last place of float32 the elementary functions of a compiler may be off by."""

_CONTRACTIONS: frozenset[Callable[..., Any]] = frozenset(
    {np.einsum, np.dot, np.vdot, np.inner, np.tensordot, np.convolve, np.correlate}
)
"""Functions that are products and sums, in the compiler one operation each."""

_AT_ONCE: frozenset[Any] = frozenset({"numpy.linalg", "numpy.fft", np.quantile})
"""The functions, and the modules of functions, that are computed at once, and rounded when they are done."""


@dataclass(frozen=True)
class Machine:
    """How a machine computes.

    - `products`: to what float32 operands of products are rounded first: `bfloat16`, `tensorfloat32` or None.
    - `seed`: None rounds to nearest; a number draws the direction of every rounding.
    """

    products: str | None = None
    seed: int | None = None


NEAREST = Machine()


class Rounded(np.ndarray):
    """Floats or complex numbers that stand for values of the dtype `kind`, and are kept in float32 or wider."""

    kind: str
    machine: Machine

    def __array_finalize__(self, parent: Any) -> None:
        self.kind = getattr(parent, "kind", "float32")
        self.machine = getattr(parent, "machine", Machine())

    def astype(self, dtype: Any, *arguments: Any, **named: Any) -> Any:
        """Plain integers or booleans; a float stays what it is, since only its `kind` says what it stands for."""
        if np.dtype(dtype).kind == self.dtype.kind:
            return self
        if np.dtype(dtype).kind == "c":
            complex_kind = _with_parts(self.kind)
            return rounded(self.view(np.ndarray).astype(_carrier(complex_kind)), complex_kind, self.machine)
        return self.view(np.ndarray).astype(dtype)

    def in_kind(self, kind: str) -> Rounded:
        """The same numbers in a dtype that holds more; itself where `kind` holds less, which only a cast narrows."""
        if dtypes.dtype(kind).eps >= dtypes.dtype(self.kind).eps:
            return self
        kind = _with_parts(kind) if self.dtype.kind == "c" else _PARTS.get(kind, kind)
        return rounded(self.view(np.ndarray), kind, self.machine)

    def cast(self, kind: str) -> Rounded:
        """The same numbers as the dtype `kind` holds them."""
        return rounded(self.view(np.ndarray), kind, self.machine)

    @property
    def real(self) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The real part, of the dtype of the parts."""
        return _part(self, np.real(self.view(np.ndarray)))

    @property
    def imag(self) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The imaginary part, of the dtype of the parts."""
        return _part(self, np.imag(self.view(np.ndarray)))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.pop("out", None)
        # NumPy hands the places of a `reduceat` on twice where they were given by name.
        options.pop("indices", None)
        kind, machine = _joined(inputs)
        if isinstance(options.get("dtype"), np.dtype) and options["dtype"].kind in "fc":
            # The carrier's: the oracle asks for float64.
            del options["dtype"]
        with np.errstate(all="ignore"):
            if method == "at":
                _added_at(ufunc, inputs[0], inputs[1:], kind, machine)
                return None
            if ufunc in (np.add, np.multiply) and method == "reduce":
                each = dtypes.dtype(kind).itemsize == 1
                result = _reduced(ufunc, _operand(inputs[0], kind), kind, machine, each=each, **options)
            elif ufunc in (np.add, np.multiply) and method == "accumulate" and dtypes.dtype(kind).itemsize < 4:
                result = _scanned(ufunc, _operand(inputs[0], kind), kind, machine, **options)
            elif method == "reduceat" and ufunc in (np.add, np.multiply) and dtypes.dtype(kind).itemsize < 4:
                result = _by_segments(ufunc, _operand(inputs[0], kind), inputs[1], kind, machine)
            elif method == "reduceat":
                result = ufunc.reduceat(_operand(inputs[0], kind), inputs[1], **options)
            elif ufunc in (np.matmul, np.vecdot):
                operands = [_multiplied(_operand(value, kind), kind, machine) for value in inputs]
                result = ufunc(*_turned(ufunc, operands, machine), **options)
            else:
                drawn = machine.seed is not None
                numbers = inputs[:1] if method == "reduceat" else inputs
                operands = [_operand(value, kind, wide=drawn, integers=ufunc is np.ldexp) for value in numbers]
                operands += inputs[len(numbers) :]
                if options.get("initial") is not None:
                    options["initial"] = _operand(options["initial"], kind)
                result = getattr(ufunc, method)(*operands, **options)
                if ufunc is np.multiply and method == "__call__" and drawn:
                    result = _fused(result, operands[0], kind, machine)
                if ufunc not in _EXACT:
                    result = _inexact(result, kind, machine)
            result = _settled(result, kind, machine)
        if out is None:
            return result
        for target, found in zip(out, result if isinstance(result, tuple) else (result,), strict=True):
            np.asarray(target)[...] = np.asarray(found)
        return out[0] if len(out) == 1 else out

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.einsum and len(args) == 2:
            return _in_own_dtype(*args)
        at_once = func in _AT_ONCE or func.__module__ in _AT_ONCE
        kind, machine = _joined(_arrays((args, kwargs)))
        if func not in _CONTRACTIONS and not at_once:
            return _settled(super().__array_function__(func, types, args, kwargs), kind, machine)

        def operand(value: Any) -> Any:
            value = _operand(value, kind)
            value = value if at_once else _multiplied(value, kind, machine)
            return value if machine.seed is None else _reordered(value, kind, machine)

        args, kwargs = _mapped(operand, args), _mapped(operand, kwargs)
        with np.errstate(all="ignore"):
            return _settled(func(*args, **kwargs), kind, machine)


def rounded(value: Any, kind: str, machine: Machine) -> Rounded:
    """`value` as the dtype `kind` holds it."""
    held = np.asarray(_nearest(np.asarray(value), kind, machine)).view(Rounded)
    held.kind, held.machine = kind, machine
    return held


def plain(value: Any) -> Any:
    """A `Rounded` as an array of NumPy's own."""
    return value.view(np.ndarray) if isinstance(value, Rounded) else value


def _part(whole: Rounded, part: np.ndarray) -> Any:
    return rounded(part, _PARTS.get(whole.kind, whole.kind), whole.machine)


@cache
def _carrier(kind: str) -> np.dtype:
    """The dtype in which a machine computes with `kind`, and in which it is kept."""
    known = dtypes.dtype(kind)
    wide = kind in ("float64", "complex128")
    return np.dtype(f"c{16 if wide else 8}" if known.kind == "complex" else f"f{8 if wide else 4}")


@cache
def _wide(kind: str) -> np.dtype:
    return np.dtype(np.complex128 if dtypes.dtype(kind).kind == "complex" else np.float64)


def _joined(values: Iterable[Any]) -> tuple[str, Machine]:
    """The dtype that JAX gives floats of several dtypes, and how it is computed."""
    there = [value for value in values if isinstance(value, Rounded)]
    return _promoted(frozenset(value.kind for value in there)), there[0].machine


@cache
def _promoted(kinds: frozenset[str]) -> str:
    parts = {_PARTS.get(kind, kind) for kind in kinds}
    if len(parts) > 1:
        # Eight bits give way to sixteen; two kinds of sixteen meet in float32.
        parts = {kind for kind in parts if dtypes.dtype(kind).itemsize > 1} or parts
    joined = max(sorted(parts), key=lambda kind: dtypes.dtype(kind).itemsize)
    joined = "float32" if {"bfloat16", "float16"} <= parts and joined != "float64" else joined
    is_complex = any(kind in _PARTS for kind in kinds)
    return _with_parts(joined) if is_complex else joined


_PARTS = {"complex64": "float32", "complex128": "float64"}


def _with_parts(kind: str) -> str:
    """The complex dtype whose parts are of the dtype `kind`, or hold it."""
    return "complex128" if kind == "float64" else "complex64"


def _operand(value: Any, kind: str, *, wide: bool = False, integers: bool = False) -> Any:
    """An operand as the machine reads it, in the carrier of the result, or `wide` enough to be moved by less."""
    if isinstance(value, Rounded):
        held = value.view(np.ndarray)
        return held.astype(_wide(value.kind), copy=False) if wide else held
    if isinstance(value, bool) or not isinstance(value, np.ndarray | np.generic | float | int | complex):
        return value
    kept = np.asarray(value)
    if kept.dtype.kind == "b" or (integers and kept.dtype.kind in "iu"):
        return value
    kind = _with_parts(kind) if kept.dtype.kind == "c" and kind not in _PARTS else kind
    near = _nearest(kept, kind, NEAREST)
    return near.astype(_wide(kind), copy=False) if wide else near


def _multiplied(value: Any, kind: str, machine: Machine) -> Any:
    """An operand of a product as hardware that multiplies in fewer bits reads it."""
    if machine.products is None or kind not in ("float32", "complex64"):
        return value
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fc":
        return value
    if value.dtype.kind == "c":
        return _multiplied(np.real(value), "float32", machine) + 1j * _multiplied(np.imag(value), "float32", machine)
    if machine.products == "bfloat16":
        return value.astype(ml_dtypes.bfloat16).astype(value.dtype)
    # TensorFloat-32 keeps 10 bits of float32's mantissa.
    single = np.asarray(value, np.float32, order="C")
    bits = (single.view(np.uint32) + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)
    return bits.view(np.float32).astype(value.dtype)


def _draw(value: np.ndarray, seed: int) -> np.ndarray:
    """For each number one between -1 and 1, by its bits."""
    bits = np.asarray(value, np.float64, order="C").view(np.uint64)
    with np.errstate(over="ignore"):
        mixed = (bits ^ np.uint64(0x9E3779B97F4A7C15 * (2 * seed + 1) % 2**64)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
        mixed = mixed * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(32)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


def _moved(value: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Each number moved by at most `share` of itself, to either side."""
    if value.dtype.kind == "c":
        return _moved(np.real(value), share, seed) + 1j * _moved(np.imag(value), share, seed)
    return value * (1.0 + share * _draw(value, seed))


def _reordered(value: Any, kind: str, machine: Machine) -> Any:
    """An operand of sums of products, as if another order had rounded the partial sums otherwise."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fc":
        return value
    accumulator = 2.0**-53 if kind in ("float64", "complex128") else 2.0**-24
    return _moved(
        value.astype(_wide(kind) if value.dtype.kind == "f" else np.complex128), accumulator, _seed(machine, 1)
    )


def _fused(product: Any, first: Any, kind: str, machine: Machine) -> Any:
    """A product that is not always rounded alike: of a * b - b * a a fused multiply-add rounds one."""
    value, known = np.asarray(product), dtypes.dtype(kind)
    if value.dtype.kind != "f" or known.kind != "float" or known.itemsize < 4:
        return product
    moved = value * (1.0 + known.eps / 2 * _draw(np.asarray(first), _seed(machine, 4)))
    return np.where(value.astype(_carrier(kind)) == value, value, moved)


def _inexact(result: Any, kind: str, machine: Machine) -> Any:
    """The result of an elementary function, as another library might compute it."""
    if isinstance(result, tuple):
        return tuple(_inexact(each, kind, machine) for each in result)
    value = np.asarray(result)
    if value.dtype.kind not in "fc":
        return result
    unit = 2.0**-53 if kind in ("float64", "complex128") else 2.0**-24
    moved = _moved(
        value.astype(np.complex128 if value.dtype.kind == "c" else np.float64), _UNITS * unit, _seed(machine, 2)
    )
    return moved.astype(value.dtype) if machine.seed is None else moved


def _seed(machine: Machine, purpose: int) -> int:
    return 8 * (0 if machine.seed is None else machine.seed + 1) + purpose


def _nearest(value: np.ndarray, kind: str, machine: Machine) -> np.ndarray:
    """`value` rounded to `kind`, kept in its carrier."""
    known, carrier = dtypes.dtype(kind), _carrier(kind)

    def nearest(value: np.ndarray) -> np.ndarray:
        if carrier == known.numpy:
            return value.astype(carrier, copy=False)
        return value.astype(np.float32, copy=False).astype(known.numpy).astype(carrier)

    with np.errstate(all="ignore"):
        if kind in ("float64", "complex128"):
            return _moved(value.astype(carrier), known.eps / 2, _seed(machine, 3))
        near = nearest(value)
        if machine.seed is None or value.dtype.kind not in "fc":
            return near
        drawn = nearest(_moved(value.astype(_wide(kind)), known.eps / 4, _seed(machine, 3)))
        # What the dtype holds exactly, no machine rounds.
        return np.where(near == value, near, drawn)


def _settled(result: Any, kind: str, machine: Machine) -> Any:
    """Whatever a function gave, its floats rounded to `kind`."""
    if isinstance(result, tuple):
        parts = [_settled(each, kind, machine) for each in result]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    if isinstance(result, list):
        return [_settled(each, kind, machine) for each in result]
    if isinstance(result, Rounded) and result.kind == kind:
        return result
    if not isinstance(result, np.ndarray | np.generic) or result.dtype.kind not in "fc":
        return result
    if result.dtype.kind == "c" and not kind.startswith("complex"):
        kind = _with_parts(kind)
    if result.dtype.kind == "f":
        kind = _PARTS.get(kind, kind)
    return rounded(plain(result), kind, machine)


_BLOCK = 32
"""Of so many terms a compiler makes one, and of these one, where it adds 16 bits in 16 bits."""

_STEPS = 4096
"""Of more terms that are rounded one after the other, only the order is drawn, and not each rounding."""


def _reduced(
    ufunc: np.ufunc,
    value: np.ndarray,
    kind: str,
    machine: Machine,
    axis: Any = 0,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = True,
    each: bool = False,
    **_: Any,
) -> np.ndarray:
    """A sum or a product as a compiler has it, one term after the other; where it is drawn, from another first term on.

    `each` says that the dtype `kind` is so narrow to it that every step is rounded, and not only the last.
    """
    identity = np.asarray(ufunc.identity, value.dtype)
    terms = value if where is True else np.where(where, value, identity)
    axes = tuple(range(terms.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(each % terms.ndim for each in axes) if terms.ndim else ()
    rest = tuple(each for each in range(terms.ndim) if each not in axes)
    shape = tuple(terms.shape[each] for each in rest)
    rows = np.transpose(terms, (*axes, *rest)).reshape(math.prod(terms.shape[each] for each in axes), math.prod(shape))
    if machine.seed is not None and len(rows):
        rows = np.roll(rows, 1 + machine.seed * (len(rows) // 7), axis=0)
    if each:
        total = _stepwise(ufunc, rows, identity, kind, machine)
    elif rows.shape[1] > 1 or not len(rows):
        # Row by row, which is one term after the other.
        total = ufunc.reduce(np.ascontiguousarray(rows), axis=0)
    else:
        total = ufunc.accumulate(rows, axis=0)[-1]
    total = total.reshape(shape)
    if initial is not None:
        total = ufunc(total, _operand(initial, kind))
    return np.expand_dims(total, axes) if keepdims else total


def _stepwise(ufunc: np.ufunc, rows: np.ndarray, identity: np.ndarray, kind: str, machine: Machine) -> np.ndarray:
    """The rows added or multiplied with a rounding after each: in 16 bits in blocks, in 8 one after the other."""
    if dtypes.dtype(kind).itemsize == 1 and len(rows) > _STEPS:
        return ufunc.accumulate(rows.astype(dtypes.dtype(kind).numpy), axis=0)[-1].astype(rows.dtype)
    while len(rows) > _BLOCK and dtypes.dtype(kind).itemsize > 1:
        missing = np.full((-len(rows) % _BLOCK, rows.shape[1]), identity)
        blocks = np.concatenate([rows, missing]).reshape(-1, _BLOCK, rows.shape[1])
        rows = _stepwise(ufunc, np.swapaxes(blocks, 0, 1).reshape(_BLOCK, -1), identity, kind, machine)
        rows = rows.reshape(len(blocks), -1)
    total = np.full(rows.shape[1:], identity)
    for row in rows:
        total = _nearest(ufunc(total, row), kind, machine)
    return total


def _in_own_dtype(subscripts: str, value: Rounded) -> Any:
    """`np.einsum` of one operand: the sum over what is not kept, each step rounded to the dtype of `value`."""
    names, kept = subscripts.split("->")
    kind, machine = value.kind, value.machine
    distinct = "".join(dict.fromkeys(names))
    total = np.einsum(f"{names}->{distinct}", plain(value))
    gone = tuple(place for place, name in enumerate(distinct) if name not in kept)
    if gone:
        with np.errstate(all="ignore"):
            total = _reduced(np.add, total, kind, machine, axis=gone, each=dtypes.dtype(kind).itemsize < 4)
    left = "".join(name for name in distinct if name in kept)
    return rounded(np.einsum(f"{left}->{kept}", total), kind, machine)


def _turned(ufunc: np.ufunc, operands: list[Any], machine: Machine) -> list[Any]:
    """The operands of a product; where it is drawn, with another first term."""
    if machine.seed is None or any(np.ndim(operand) == 0 for operand in operands):
        return operands
    first, second = operands
    along = (-1, -1 if ufunc is np.vecdot or second.ndim == 1 else -2)
    by = 1 + machine.seed * (first.shape[-1] // 7)
    return [np.roll(operand, by, axis) for operand, axis in zip(operands, along, strict=True)]


def _scanned(ufunc: np.ufunc, value: np.ndarray, kind: str, machine: Machine, axis: int = 0, **_: Any) -> np.ndarray:
    """A running sum or product as JAX computes it in a narrow dtype: ⌈log₂ n⌉ rounds, each rounded."""
    total = np.moveaxis(value, axis, 0).copy()
    step = 1
    while step < len(total):
        total[step:] = _nearest(ufunc(total[step:], total[:-step]), kind, machine)
        step *= 2
    return np.moveaxis(total, 0, axis)


def _added_at(ufunc: np.ufunc, target: Any, operands: tuple[Any, ...], kind: str, machine: Machine) -> None:
    """`ufunc.at` with a rounding after each update, as scattered updates have it."""
    into, places = np.asarray(target), np.asarray(operands[0])
    values = np.asarray(_operand(operands[1], kind))
    if ufunc not in (np.add, np.multiply) or dtypes.dtype(kind).itemsize >= 4:
        ufunc.at(into, places, values)
        return
    flat = places.reshape(-1)
    values = np.broadcast_to(values, places.shape + into.shape[1:]).reshape(flat.size, *into.shape[1:])
    order = np.argsort(flat, kind="stable")
    first = np.searchsorted(flat[order], flat[order])
    turn = np.empty(flat.size, np.int64)
    turn[order] = np.arange(flat.size) - first
    for number in range(int(turn.max(initial=-1)) + 1):
        now = turn == number
        into[flat[now]] = _nearest(ufunc(into[flat[now]], values[now]), kind, machine)


def _by_segments(ufunc: np.ufunc, value: np.ndarray, starts: Any, kind: str, machine: Machine) -> np.ndarray:
    """`ufunc.reduceat` along the first dimension, with a rounding after each step."""
    ends = np.append(starts[1:], len(value))
    total = value[starts]
    for step in range(1, int(np.max(ends - starts, initial=1))):
        more = starts + step < ends
        total[more] = _nearest(ufunc(total[more], value[(starts + step)[more]]), kind, machine)
    return total


def _arrays(value: Any) -> list[Rounded]:
    if isinstance(value, Rounded):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [found for each in value for found in _arrays(each)] if isinstance(value, list | tuple) else []


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(function, each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_mapped(function, each) for each in value)
    return function(value) if isinstance(value, np.ndarray) else value
