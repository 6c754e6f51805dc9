"""Makes NumPy's functions round every result to a narrower dtype.

`Rounded` is an array that knows the dtype that it represents. Every function of NumPy or SciPy that takes it computes
as a compiler does (in float32, or in float64 for 64 bits) and rounds the result once. So the NumPy counterparts of
JAX's operations, run on such arrays, round where JAX's primitives do, also inside a softmax or a gelu.

`machine.py` rounds, or draws, a number; `sums.py` determines the roundings and the order of a reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import numpy as np

from runner.base import dtypes
from runner.base.untyped import is_dict, is_list, is_sequence, is_tuple
from runner.checks.reference.machine import (
    NEAREST,
    PARTS,
    Machine,
    carrier_of,
    fused,
    inexact,
    misread,
    multiplied,
    nearest,
    promoted,
    reordered,
    wide_of,
    with_parts,
)
from runner.checks.reference.sums import added_at, by_segments, reduced, scanned, turned
from runner.graph.language import notation
from runner.graph.language.counterparts.algebra import contract

_CHOOSING = frozenset(
    {
        np.maximum, np.minimum, np.fmax, np.fmin, np.negative, np.positive, np.absolute, np.fabs, np.copysign,
        np.conjugate, np.floor, np.ceil, np.trunc, np.rint, np.sign,
    }
)  # fmt: skip
"""Functions that return one of their operands, perhaps with another sign, or an integer: nothing is rounded."""

_EXACT = _CHOOSING | {
    np.add, np.subtract, np.multiply, np.divide, np.sqrt, np.square, np.reciprocal, np.fmod, np.remainder,
    np.floor_divide, np.matmul, np.vecdot, np.ldexp, np.frexp, np.modf, np.nextafter, np.spacing, np.heaviside,
}  # fmt: skip
"""The functions whose result is correctly rounded; for sums and products of matrices, each term."""

_MOVING: frozenset[Callable[..., Any]] = frozenset(
    {
        np.where, np.select, np.choose, np.take, np.take_along_axis, np.compress, np.extract, np.concatenate, np.stack,
        np.broadcast_to, np.broadcast_arrays, np.tile, np.repeat, np.roll, np.flip, np.rot90, np.sort, np.partition,
        np.pad, np.append, np.insert, np.delete, np.diagonal, np.diag, np.tril, np.triu, np.max, np.min, np.copy,
    }
)  # fmt: skip
"""Functions whose results are elements of their operands."""

_CONTRACTIONS: frozenset[Callable[..., Any]] = frozenset({np.einsum, np.convolve, np.correlate})
"""Functions of products and sums that are one operation for the compiler."""

_AT_ONCE: frozenset[Any] = frozenset({"numpy.linalg", "numpy.fft", np.quantile})
"""The functions, and modules of functions, that round only their final result."""


class Rounded(np.ndarray):
    """Floats or complex numbers that stand for values of the dtype `kind`, and are kept in float32 or wider."""

    kind: str
    machine: Machine
    product: np.ndarray | None = None
    """The product that was rounded to this, in a wider dtype, as a fused multiply-add reads it."""
    weak: bool = False
    """Whether it is rounded to the dtype of what it is combined with, as a Python number is."""

    def __array_finalize__(self, parent: Any) -> None:
        self.kind = getattr(parent, "kind", "float32")
        self.machine = getattr(parent, "machine", Machine())

    def astype(self, dtype: Any, *arguments: Any, **named: Any) -> Any:
        """Return integers or booleans as a plain array; floats are unchanged, since `kind` is their dtype."""
        if np.dtype(dtype).kind == self.dtype.kind:
            return self
        if np.dtype(dtype).kind == "c":
            complex_kind = with_parts(self.kind)
            return rounded(self.view(np.ndarray).astype(carrier_of(complex_kind)), complex_kind, self.machine)
        return self.view(np.ndarray).astype(dtype)

    def in_kind(self, kind: str) -> Rounded:
        """The same numbers in a wider dtype; unchanged if `kind` is narrower, since only a cast narrows."""
        if dtypes.dtype(kind).eps >= dtypes.dtype(self.kind).eps:
            return self
        kind = with_parts(kind) if self.dtype.kind == "c" else PARTS.get(kind, kind)
        return rounded(self.view(np.ndarray), kind, self.machine)

    def cast(self, kind: str) -> Rounded:
        """The same numbers rounded to the dtype `kind`."""
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
        # NumPy passes the indices of a `reduceat` on twice if they were given by name.
        options.pop("indices", None)
        kind, machine = _joined(inputs)
        if isinstance(options.get("dtype"), np.dtype) and options["dtype"].kind in "fc":
            # The carrier's: the oracle asks for float64.
            del options["dtype"]
        if options.get("initial") is not None:
            options["initial"] = _operand(options["initial"], kind)
        product: np.ndarray | None = None
        with np.errstate(all="ignore"):
            if method == "at":
                added_at(ufunc, inputs[0], inputs[1], _operand(inputs[2], kind), kind, machine)
                return None
            if ufunc in (np.add, np.multiply) and method == "reduce":
                every_step = dtypes.dtype(kind).itemsize == 1
                result = reduced(ufunc, _operand(inputs[0], kind), kind, machine, every_step=every_step, **options)
            elif ufunc in (np.add, np.multiply) and method == "accumulate" and dtypes.dtype(kind).itemsize < 4:
                result = scanned(ufunc, _operand(inputs[0], kind), kind, machine, **options)
            elif method == "reduceat" and ufunc in (np.add, np.multiply) and dtypes.dtype(kind).itemsize < 4:
                result = by_segments(ufunc, _operand(inputs[0], kind), inputs[1], kind, machine)
            elif method == "reduceat":
                result = ufunc.reduceat(_operand(inputs[0], kind), inputs[1], **options)
            elif ufunc in (np.matmul, np.vecdot):
                operands = [multiplied(_operand(value, kind), kind, machine) for value in inputs]
                result = ufunc(*turned(ufunc, operands, machine), **options)
            else:
                drawn = machine.seed is not None
                numbers = inputs[:1] if method == "reduceat" else inputs
                operands = [_operand(value, kind, wide=drawn, integers=ufunc is np.ldexp) for value in numbers]
                if drawn and ufunc not in _EXACT:
                    operands = [misread(value, ufunc.__name__, kind, machine) for value in operands]
                operands += inputs[len(numbers) :]
                if ufunc in (np.add, np.subtract) and method == "__call__" and drawn:
                    operands = _with_product(inputs, operands)
                result = getattr(ufunc, method)(*operands, **options)
                if ufunc in (np.multiply, np.square) and method == "__call__" and drawn:
                    product = result
                    result = fused(result, operands[0], kind, machine)
                if ufunc not in _EXACT:
                    result = inexact(result, ufunc.__name__, kind, machine)
            # The sign of a complex number is a quotient.
            exact = ufunc in _CHOOSING and not (kind in PARTS and ufunc in (np.sign, np.absolute))
            result = _settled(result, kind, machine, exact=exact)
        if product is not None and isinstance(result, Rounded) and product.dtype.itemsize > result.dtype.itemsize:
            result.product = product
        if out is None:
            return result
        for target, computed in zip(out, result if is_tuple(result) else (result,), strict=True):
            np.asarray(target)[...] = np.asarray(computed)
        return out[0] if len(out) == 1 else out

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.einsum and len(args) == 2:
            return _in_own_dtype(*args)
        at_once = func in _AT_ONCE or func.__module__ in _AT_ONCE
        kind, machine = _joined(_arrays((args, kwargs)))
        if func not in _CONTRACTIONS and not at_once:
            return _settled(super().__array_function__(func, types, args, kwargs), kind, machine, exact=func in _MOVING)

        def operand(value: Any) -> Any:
            value = _operand(value, kind)
            value = value if at_once else multiplied(value, kind, machine)
            return value if machine.seed is None else reordered(value, kind, machine)

        args, kwargs = _mapped(operand, args), _mapped(operand, kwargs)
        with np.errstate(all="ignore"):
            return _settled((_einsum if func is np.einsum else func)(*args, **kwargs), kind, machine)


def rounded(value: Any, kind: str, machine: Machine, *, exact: bool = False) -> Rounded:
    """`value` rounded to the dtype `kind`; `exact` elements are not rounded on a machine."""
    held = np.asarray(nearest(np.asarray(value), kind, machine, exact=exact)).view(Rounded)
    held.kind, held.machine = kind, machine
    return held


def plain(value: Any) -> Any:
    """A `Rounded` as a plain NumPy array."""
    return value.view(np.ndarray) if isinstance(value, Rounded) else value


def _part(whole: Rounded, part: np.ndarray) -> Any:
    return rounded(part, PARTS.get(whole.kind, whole.kind), whole.machine)


def _joined(values: Iterable[Any]) -> tuple[str, Machine]:
    """The dtype to which JAX promotes floats of several dtypes, and the machine."""
    there = [value for value in values if isinstance(value, Rounded)]
    there = [value for value in there if not value.weak] or there
    return promoted(frozenset(value.kind for value in there)), there[0].machine


def _operand(value: Any, kind: str, *, wide: bool = False, integers: bool = False) -> Any:
    """An operand as the machine reads it, in the carrier of the result, or `wide` enough to be moved by less."""
    if isinstance(value, Rounded):
        held = value.view(np.ndarray)
        if value.weak and value.kind != kind:
            held = nearest(held, with_parts(kind) if held.dtype.kind == "c" and kind not in PARTS else kind, NEAREST)
        return held.astype(wide_of(value.kind), copy=False) if wide else held
    if isinstance(value, bool) or not (dtypes.is_numeric(value) or isinstance(value, float | int | complex)):
        return value
    kept = np.asarray(value)
    if kept.dtype.kind == "b" or (integers and kept.dtype.kind in "iu"):
        return value
    kind = with_parts(kind) if kept.dtype.kind == "c" and kind not in PARTS else kind
    near = nearest(kept, kind, NEAREST)
    return near.astype(wide_of(kind), copy=False) if wide else near


def _with_product(inputs: Sequence[Any], operands: list[Any]) -> list[Any]:
    """The operands of a sum, with the first product among them as it was before it was rounded."""
    for place, value in enumerate(inputs):
        if isinstance(value, Rounded) and value.product is not None:
            return [*operands[:place], value.product, *operands[place + 1 :]]
    return operands


def _settled(result: Any, kind: str, machine: Machine, *, exact: bool = False) -> Any:
    """The result of any function with its floats rounded to `kind`, unless they are `exact`."""
    if is_tuple(result):
        parts = [_settled(part, kind, machine, exact=exact) for part in result]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    if is_list(result):
        return [_settled(part, kind, machine, exact=exact) for part in result]
    if isinstance(result, Rounded) and result.kind == kind:
        return result
    if not dtypes.is_floating(result):
        return result
    if result.dtype.kind == "c" and not kind.startswith("complex"):
        kind = with_parts(kind)
    if result.dtype.kind == "f":
        kind = PARTS.get(kind, kind)
    return rounded(plain(result), kind, machine, exact=exact)


def _einsum(subscripts: str, *operands: Any) -> Any:
    return contract(notation.parsed(subscripts, [np.ndim(operand) for operand in operands]), *operands)


def _in_own_dtype(subscripts: str, value: Rounded) -> Any:
    """`np.einsum` of one operand: the sum over dropped dimensions, each step rounded to the dtype of `value`."""
    (names,), kept = notation.parsed(subscripts, [value.ndim])
    kind, machine = value.kind, value.machine
    distinct = "".join(dict.fromkeys(names))
    total = np.einsum(notation.spelled(([names], distinct)), plain(value))
    gone = tuple(place for place, name in enumerate(distinct) if name not in kept)
    if gone:
        with np.errstate(all="ignore"):
            total = reduced(np.add, total, kind, machine, axis=gone, every_step=dtypes.dtype(kind).itemsize < 4)
    left = "".join(name for name in distinct if name in kept)
    return rounded(np.einsum(notation.spelled(([left], kept)), total), kind, machine)


def _arrays(value: Any) -> list[Rounded]:
    if isinstance(value, Rounded):
        return [value]
    several = list(value.values()) if is_dict(value) else value
    return [array for part in several for array in _arrays(part)] if is_sequence(several) else []


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if is_dict(value):
        return {key: _mapped(function, part) for key, part in value.items()}
    if is_sequence(value):
        return type(value)(_mapped(function, part) for part in value)
    return function(value) if isinstance(value, np.ndarray) else value
