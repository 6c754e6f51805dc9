"""Writes the language's expression for a primitive of JAX with its operands.

One function per primitive or family of primitives, registered by `reads`. A primitive without one is reported to the
user with its name and the line that needs it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import numpy as np

from runner.graph.language import notation
from runner.graph.language.operations import CONSTANTS, OPERATIONS
from runner.graph.language.parts import axes_of, operator
from runner.graph.language.parts import transposed as turned
from runner.graph.term import NOTHING, Apply, Const, Group, Name, Slice, Term
from runner.programs.derivation.terms import ALL, Part, built, constant, indexed
from runner.worker import calls


def _built(template: str, **parts: Part) -> Term:
    """Fill a template; parameters of JAX may be NumPy integers."""
    return built(template, **{name: _plain(part) for name, part in parts.items()})


def _plain(part: Any) -> Any:
    match part:
        case np.integer():
            return int(cast("int", part))
        case tuple():
            return tuple(map(_plain, cast("tuple[Any, ...]", part)))
        case list():
            return list(map(_plain, cast("list[Any]", part)))
        case _:
            return part


REFERENCE = "name a reference for it, or for a jitted function that calls it"


class Unread(Exception):
    """The language cannot express a primitive, or a use of one; the text says which and why."""


@dataclass(frozen=True)
class Application:
    """One application of a primitive.

    - `operands`: the terms of its operands; `inputs`, `outputs`: their abstract values, with `shape` and `dtype`.
    - `named`: gives a term a name, so that it can be read more than once; `meant`: the term that a name stands for.
    """

    name: str
    params: Mapping[str, Any]
    operands: tuple[Term, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    named: Callable[[Term, str], Term]
    meant: Callable[[Term], Term]

    @property
    def x(self) -> Term:
        """The first operand."""
        return self.operands[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first operand."""
        return tuple(self.inputs[0].shape)

    @property
    def rank(self) -> int:
        """The rank of the first operand."""
        return len(self.inputs[0].shape)

    @property
    def dtype(self) -> str:
        """The dtype of the first operand."""
        return str(self.inputs[0].dtype)

    @property
    def result(self) -> str:
        """The dtype of the first result."""
        return str(self.outputs[0].dtype)

    def made(self, template: str, **parts: Part) -> Term:
        """Fill a template with the operands as `x`, `y`, `z`: `made("sum({x}, axis={axis})", axis=(0,))`."""
        return _built(template, **dict(zip("xyz", self.operands, strict=False)), **parts)


Read = Callable[[Application], Term]
"""Gives the expression of a primitive; with several results, an expression of them all."""

READERS: dict[str, Read] = {}
"""The readers, by primitive."""


def reads(*names: str) -> Callable[[Read], Read]:
    """Register a function for primitives of these names."""

    def register(read: Read) -> Read:
        READERS.update(dict.fromkeys(names, read))
        return read

    return register


def expression(application: Application) -> Term:
    """The expression of an application. Raises `Unread`."""
    read = READERS.get(application.name)
    if read is None:
        raise Unread(f"no expression for the primitive '{application.name}': {REFERENCE}")
    if application.name == "broadcast_in_dim":
        return read(application)
    operands = of_their_dtype(application.operands, application.inputs, application.outputs[0])
    return read(replace(application, operands=operands))


# Elementwise.

_OPERATORS = {
    "add": "add", "add_any": "add", "sub": "subtract", "mul": "multiply", "neg": "negative", "pow": "power",
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "eq_to": "equal", "lt_to": "less", "le_to": "less_equal",
}  # fmt: skip
_CALLS = {
    "abs": "abs", "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
    "atan2": "arctan2", "atanh": "arctanh", "cbrt": "cbrt", "ceil": "ceil", "clamp": "clamp", "conj": "conj",
    "copy": "copy", "copy_p": "copy", "cos": "cos", "cosh": "cosh", "digamma": "digamma", "erf": "erf",
    "erf_inv": "erf_inv", "erfc": "erfc", "exp": "exp", "exp2": "exp2", "expm1": "expm1", "floor": "floor",
    "imag": "imag", "is_finite": "isfinite", "lgamma": "lgamma", "log": "log", "log1p": "log1p",
    "logistic": "logistic", "max": "maximum", "min": "minimum", "real": "real",
    "rsqrt": "rsqrt", "shift_left": "left_shift", "shift_right_arithmetic": "right_shift", "sign": "sign",
    "sin": "sin", "sinh": "sinh", "sqrt": "sqrt", "square": "square", "stop_gradient": "stop_gradient", "tan": "tan",
    "tanh": "tanh", "xor": "bitwise_xor", "bessel_i0e": "i0e",
    "clz": "clz", "igamma": "gammainc", "igammac": "gammaincc", "nextafter": "nextafter",
    "igamma_grad_a": "igamma_grad_a", "polygamma": "polygamma", "random_gamma_grad": "random_gamma_grad",
    "zeta": "zeta",
    "bessel_i1e": "i1e", "log2": "log2", "log10": "log10",
}  # fmt: skip


def _operated(application: Application) -> Term:
    operation, operands = _OPERATORS[application.name], _together(application)
    match operands:
        case (x, Const(value=int(0))) | (Const(value=int(0)), x) if operation == "add" and not isinstance(x, Const):
            return x
        case _:
            return operator(operation, *operands)


def _called(application: Application) -> Term:
    operation = _CALLS[application.name]
    if not OPERATIONS[operation].numberless:
        return Apply(operation, _together(application))
    return Apply(operation, tuple(map(as_array, application.operands, application.inputs)))


def _together(application: Application) -> tuple[Term, ...]:
    """The operands of an elementwise operation, without broadcasts that the operation does itself.

    An operand with the shape and dtype of the result makes the broadcasts of the others redundant.
    """
    operands, out = application.operands, application.outputs[0].shape
    bare = [_unspread(operand) for operand in operands]
    if all(left is term for left, term in zip(bare, operands, strict=True)):
        return operands
    given = [*zip(operands, bare, application.inputs, strict=True)]
    anchors = {
        aval.dtype for term, left, aval in given if term is left and aval.shape == out and not isinstance(term, Const)
    }
    return tuple(left if aval.dtype in anchors else term for term, left, aval in given)


def _unspread(term: Term) -> Term:
    """The operand of a broadcast; any other term unchanged."""
    match term:
        case Apply(operation="broadcast_to", operands=(x, _)):
            return x
        case Apply(operation="full", operands=(_, Const() as value, _)):
            return value
        case Apply(operation="full", operands=(_, Apply(operation="negative", operands=(Const(),)) as value, _)):
            return value
        case _:
            return term


READERS.update(dict.fromkeys(_OPERATORS, _operated) | dict.fromkeys(_CALLS, _called))


@reads("pvary", "sharding_constraint", "reshard", "copy_to_host", "device_put", "layout_constraint", "mesh_cast",
       "random_clone")  # fmt: skip
def _as_it_is(application: Application) -> Term:
    return _each(application, lambda operand: operand)


@reads("optimization_barrier")
def _behind_barrier(application: Application) -> Term:
    return _each(application, lambda operand: Apply("optimization_barrier", (operand,)))


def _each(application: Application, made: Callable[[Term], Term]) -> Term:
    """Apply `made` to the operand, or to each of several."""
    results = tuple(map(made, application.operands))
    return results[0] if len(results) == 1 else Group(results)


@reads("and", "or", "not")
def _logical(application: Application) -> Term:
    name = {"and": "and", "or": "or", "not": "not"}[application.name]
    if application.dtype == "bool":
        return Apply(f"logical_{name}", _together(application))
    return Apply("invert" if name == "not" else f"bitwise_{name}", _together(application))


@reads("div")
def _divided(application: Application) -> Term:
    if np.issubdtype(_numpy(application.result), np.integer):
        # JAX's primitive rounds towards zero.
        x, y = (application.named(operand, "quotient") for operand in application.operands)
        template = "where({x} < 0, -1, 1) * where({y} < 0, -1, 1) * (abs({x}) // abs({y}))"
        cast = _built(template, x=x, y=y)
        unsigned = application.result.startswith("u")
        return operator("floor_divide", x, y) if unsigned else _built("astype({x}, {t})", x=cast, t=application.result)
    return operator("divide", *_together(application))


@reads("rem")
def _remainder(application: Application) -> Term:
    return Apply("fmod", application.operands)


@reads("one_minus_square")
def _one_minus_square(application: Application) -> Term:
    return application.made("1 - {x} ** 2")


@reads("polynomial")
def _polynomial(application: Application) -> Term:
    """Horner's rule; the coefficient of the lowest power comes first."""
    x = application.named(application.x, "x")
    *lower, value = application.operands[1:]
    for coefficient in reversed(lower):
        value = _built("{c} + {x} * ({v})", c=coefficient, x=x, v=value)
    return value


@reads("integer_pow")
def _powered(application: Application) -> Term:
    return operator("power", application.x, constant(application.params["y"]))


@reads("round")
def _rounded(application: Application) -> Term:
    if int(application.params["rounding_method"]) == 1:
        return application.made("round({x})")
    # Round halves away from zero.
    x = application.named(application.x, "rounded")
    return _built("sign({x}) * floor(abs({x}) + 0.5)", x=x)


@reads("population_count")
def _counted_bits(application: Application) -> Term:
    return application.made("astype(bitwise_count({x}), {t})", t=application.result)


@reads("reduce_precision")
def _of_less_precision(application: Application) -> Term:
    bits = application.params["exponent_bits"], application.params["mantissa_bits"]
    own = calls.finfo(application.inputs[0].dtype)
    if bits[0] >= own.nexp and bits[1] >= own.nmant:
        return application.x
    name = {(8, 7): "bfloat16", (5, 10): "float16", (8, 23): "float32"}.get(bits)
    if name is None:
        raise Unread(
            f"'reduce_precision' to {bits[0]} bits of exponent and {bits[1]} of mantissa, as no dtype has: {REFERENCE}"
        )
    return application.made("astype(astype({x}, {n}), {t})", n=name, t=application.result)


@reads("platform_index")
def _platform(application: Application) -> Term:
    """The branch for any platform, or the first one: all compute the same."""
    platforms = list(application.params["platforms"])
    return Const(platforms.index(None) if None in platforms else 0)


@reads("shift_right_logical")
def _shifted(application: Application) -> Term:
    if application.result.startswith("u"):
        return application.made("right_shift({x}, {y})")
    unsigned = f"u{application.result}"
    template = "astype(right_shift(astype({x}, {u}), astype({y}, {u})), {t})"
    return application.made(template, u=unsigned, t=application.result)


@reads("select_n")
def _selected(application: Application) -> Term:
    which, *cases = _together(application)
    if len(cases) == 1:
        return cases[0]
    if application.dtype == "bool":
        return _built("where({p}, {b}, {a})", p=which, a=cases[0], b=cases[1])
    which, chosen = application.named(which, "which"), cases[-1]
    for number, case in reversed(list(enumerate(cases[:-1]))):
        chosen = _built("where({p} == {n}, {a}, {b})", p=which, n=number, a=case, b=chosen)
    return chosen


@reads("complex")
def _complex(application: Application) -> Term:
    return application.made("{x} + 1j * {y}")


@reads("convert_element_type")
def _converted(application: Application) -> Term:
    if application.dtype == application.result:
        return application.x
    return application.made("astype({x}, {t})", t=application.result)


@reads("bitcast_convert_type")
def _bitcast(application: Application) -> Term:
    match application.meant(application.x):
        case Apply(operation="bitwise_or", operands=(bits, Const(value=0x3F800000))) if application.result == "float32":
            # JAX makes random floats from the exponent of 1.0 and a random mantissa.
            match application.meant(bits):
                case Apply(operation="right_shift", operands=(_, Const(value=int(by)))) if by >= 9:
                    return _built("1.0 + astype({b}, 'float32') * {e}", b=bits, e=2.0**-23)
                case _:
                    pass
        case _:
            pass
    own, new = application.inputs[0], application.outputs[0]
    if any(str(aval.dtype) not in _BITS for aval in (own, new)):
        raise Unread(f"'bitcast_convert_type' from {own.dtype} to {new.dtype}: {REFERENCE}")
    widths = [_BITS[str(aval.dtype)] for aval in (own, new)]
    bits = _as_bits(application.x, application.dtype, f"uint{widths[0]}")
    if widths[0] > widths[1]:
        # The parts of each number, the lowest bits first, in a new dimension.
        count, ends = widths[0] // widths[1], (1,) * own.ndim
        bits = _built(
            "astype(right_shift(expand_dims({b}, -1), reshape({w} * arange({n}, dtype={u}), {s})), {t})",
            b=bits, w=widths[1], n=count, u=f"uint{widths[0]}", s=(*ends, count), t=f"uint{widths[1]}",
        )  # fmt: skip
    elif widths[0] < widths[1]:
        parts = application.named(_built("astype({b}, {t})", b=bits, t=f"uint{widths[1]}"), "parts")
        bits = _built("{p}[..., 0]", p=parts)
        for part in range(1, widths[1] // widths[0]):
            bits = _built("{b} | ({p}[..., {n}] << {w})", b=bits, p=parts, n=part, w=part * widths[0])
    return _as_bits(bits, f"uint{widths[1]}", application.result)


_BITS = {
    "int8": 8, "uint8": 8, "float8_e4m3fn": 8, "float8_e5m2": 8, "int16": 16, "uint16": 16, "bfloat16": 16,
    "float16": 16, "int32": 32, "uint32": 32, "float32": 32, "int64": 64, "uint64": 64, "float64": 64,
}  # fmt: skip
"""The number of bits of each dtype whose bits can be read."""


def _as_bits(x: Term, own: str, new: str) -> Term:
    """The bits of numbers as those of another dtype of the same size."""
    if own == new:
        return x
    template = "astype({x}, {t})" if "float" not in own + new else "bitcast_convert_type({x}, {t})"
    return _built(template, x=x, t=new)


@reads("name")
def _named(application: Application) -> Term:
    return application.made("checkpoint_name({x}, {n})", n=application.params["name"])


# Reductions.


def _over(application: Application) -> tuple[int, ...]:
    return tuple(int(axis) for axis in application.params["axes"])


def _axes(axes: Sequence[int]) -> Part:
    return axes[0] if len(axes) == 1 else tuple(axes)


@reads("reduce_sum", "reduce_prod")
def _summed(application: Application) -> Term:
    axes, name = _over(application), application.name.removeprefix("reduce_")
    if not axes:
        return application.x
    small = np.issubdtype(_numpy(application.dtype), np.integer) and _numpy(application.dtype).itemsize < 4
    if small:
        return _built(f"{name}({{x}}, axis={{a}}, dtype={{t}})", x=application.x, a=_axes(axes), t=application.result)
    return _built(f"{name}({{x}}, axis={{a}})", x=application.x, a=_axes(axes))


@reads("reduce_max", "reduce_min", "reduce_and", "reduce_or", "argmax", "argmin")
def _reduced(application: Application) -> Term:
    axes, name = _over(application), application.name.removeprefix("reduce_")
    name = {"and": "all", "or": "any"}.get(name, name)
    if not axes:
        return application.x
    if name in ("all", "any") and application.dtype != "bool":
        raise Unread(f"'{application.name}' of integers: {REFERENCE}")
    reduced = _built(f"{name}({{x}}, axis={{a}})", x=application.x, a=_axes(axes))
    index = str(application.params.get("index_dtype", "int32"))
    return reduced if index == "int32" else _built("astype({x}, {t})", x=reduced, t=index)


@reads("reduce_xor")
def _odd(application: Application) -> Term:
    if application.dtype != "bool":
        raise Unread(f"'reduce_xor' of integers: {REFERENCE}")
    return _built("sum({x}, axis={a}) % 2 == 1", x=application.x, a=_axes(_over(application)))


@reads("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulated(application: Application) -> Term:
    axis, reverse, name = application.params["axis"], application.params["reverse"], application.name
    if name not in ("cumsum", "cumprod"):
        return _built(f"{name}({{x}}, axis={{a}}, reverse={{r}})", x=application.x, a=axis, r=reverse)
    inner = _built("flip({x}, {a})", x=application.x, a=axis) if reverse else application.x
    summed = _built(f"{name}({{x}}, axis={{a}})", x=inner, a=axis)
    return _built("flip({x}, {a})", x=summed, a=axis) if reverse else summed


@reads("reduce_window")
def _windowed_by(application: Application) -> Term:
    """A window reduced by a single binary operation."""
    params, (x, first) = application.params, application.operands
    names = [eqn.primitive.name for eqn in params["jaxpr"].eqns]
    if names not in (["add"], ["mul"], ["max"], ["min"]) or len(application.outputs) != 1:
        raise Unread(f"'reduce_window' with a function other than add, mul, max and min: {REFERENCE}")
    return _built(
        "reduce_window({x}, {first}, {kind}, {window}, {strides}, {padding}, {base}, {dilation})",
        x=x,
        first=first,
        kind=names[0],
        window=tuple(params["window_dimensions"]),
        strides=tuple(params["window_strides"]),
        padding=[tuple(map(int, each)) for each in params["padding"]],
        base=tuple(params["base_dilation"]),
        dilation=tuple(params["window_dilation"]),
    )


@reads("reduce_window_max", "reduce_window_min", "reduce_window_sum")
def _windowed(application: Application) -> Term:
    params, kind = application.params, application.name.rpartition("_")[2]
    floats = not np.issubdtype(_numpy(application.dtype), np.integer)
    bounds = np.iinfo(_numpy(application.dtype)) if not floats else None
    first: Term = Const(0.0 if floats else 0)
    if kind != "sum":
        least = _built("-inf") if bounds is None else constant(int(bounds.min))
        most = _built("inf") if bounds is None else constant(int(bounds.max))
        first = least if kind == "max" else most
    return _built(
        "reduce_window({x}, {first}, {kind}, {window}, {strides}, {padding}, {base}, {dilation})",
        x=application.x,
        first=first,
        kind={"sum": "add"}.get(kind, kind),
        window=tuple(params["window_dimensions"]),
        strides=tuple(params["window_strides"]),
        padding=[tuple(map(int, each)) for each in params["padding"]],
        base=tuple(params["base_dilation"]),
        dilation=tuple(params["window_dilation"]),
    )


@dataclass(frozen=True)
class _Windows:
    """The windows of a pooling: sizes, strides and padding per dimension.

    - `out`: the number of windows along each dimension; `whole`: the shape of the padded operand.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    out: tuple[int, ...]
    whole: tuple[int, ...]

    @classmethod
    def of(cls, application: Application, operand: Any, out: Any) -> _Windows:
        """The windows of a pooling primitive, from the types of its operand and of its result."""
        params = application.params
        padding = tuple((int(low), int(high)) for low, high in params["padding"])
        whole = tuple(low + n + high for n, (low, high) in zip(operand.shape, padding, strict=True))
        sizes, strides = tuple(map(int, params["window_dimensions"])), tuple(map(int, params["window_strides"]))
        return cls(sizes, strides, padding, tuple(out.shape), whole)

    def padded(self, x: Term, value: Term) -> Term:
        """The operand padded with `value`."""
        padding = self.padding
        return _built("pad({x}, {p}, constant_values={v})", x=x, p=padding, v=value) if any(map(any, padding)) else x

    def parts(self, padded: Term) -> Term:
        """The elements at each position of the windows, stacked."""
        parts: list[Term] = []
        for offsets in itertools.product(*map(range, self.sizes)):
            along = zip(offsets, self.out, self.strides, self.whole, strict=True)
            items = _short([_item(at, min(at + (n - 1) * step + 1, wide), step, wide) for at, n, step, wide in along])
            parts.append(indexed(padded, items) if items else padded)
        return _built("stack({p})", p=parts)

    def index(self, chosen: Term) -> list[Term]:
        """The index along each dimension of one element per window, at the row-major position `chosen` in it."""
        left, index = math.prod(self.sizes), list[Term]()
        for d, (n, step, count) in enumerate(zip(self.out, self.strides, self.sizes, strict=True)):
            left //= count
            place = _along(n, d, len(self.out))
            place = place if step == 1 else _built("{s} * {p}", s=step, p=place)
            if count > 1:
                part = chosen if left == 1 else _built("{c} // {l}", c=chosen, l=left)
                part = part if math.prod(self.sizes[:d]) == 1 else _built("{c} % {n}", c=part, n=count)
                place = operator("add", place, part)
            index.append(place)
        return index


def _chosen(application: Application, windows: _Windows, operand: Term) -> Term:
    """The position of the largest (or smallest) element in each window, the first of several."""
    low = str(application.params["select_prim"]) in ("le", "lt")
    padded = application.named(windows.padded(operand, _built("inf" if low else "-inf")), "padded")
    choice = _built("{f}({p}, axis=0)", f="argmin" if low else "argmax", p=windows.parts(padded))
    return application.named(choice, "chosen")


@reads("select_and_scatter_add")
def _scattered_to_largest(application: Application) -> Term:
    """The transpose of a pooling: add each number at the largest element of its window."""
    source, operand = application.operands
    windows = _Windows.of(application, application.inputs[1], application.inputs[0])
    places = tuple(windows.index(_chosen(application, windows, operand)))
    empty = _built("zeros({s}, {t})", s=windows.whole, t=application.result)
    scattered: Term = Apply("at[].add", (empty, Group(places), source))
    given = zip(windows.padding, application.inputs[1].shape, windows.whole, strict=True)
    cut = [_item(before, before + n, 1, wide) for (before, _), n, wide in given]
    return indexed(scattered, _short(cut)) if _short(cut) else scattered


@reads("select_and_gather_add")
def _gathered_at_largest(application: Application) -> Term:
    """The derivative of a pooling: the tangent at the largest element of each window."""
    tangents, operand = application.operands
    windows = _Windows.of(application, application.inputs[1], application.outputs[0])
    places = tuple(windows.index(_chosen(application, windows, operand)))
    return indexed(application.named(windows.padded(tangents, Const(0.0)), "padded"), places)


# Shapes.


@reads("broadcast_in_dim")
def _broadcast(application: Application) -> Term:
    shape, dimensions = tuple(application.params["shape"]), tuple(application.params["broadcast_dimensions"])
    if not application.inputs[0].shape:
        if isinstance(application.x, Const):
            return _built("full({s}, {x}, {t})", s=shape, x=application.x, t=application.result)
        return _built("broadcast_to({x}, {s})", x=of_its_dtype(application.x, application.outputs[0]), s=shape)
    if dimensions == tuple(range(len(shape) - len(dimensions), len(shape))):
        return _built("broadcast_to({x}, {s})", x=application.x, s=shape)
    if tuple(size for size in shape if size != 1) == tuple(size for size in application.shape if size != 1):
        return _built("reshape({x}, {s})", x=application.x, s=shape)
    return _built("broadcast_in_dim({x}, {s}, {d})", x=application.x, s=shape, d=dimensions)


@reads("empty", "empty2")
def _empty(application: Application) -> Term:
    """Zeros: the contents are overwritten before they are read."""
    return _built("zeros({s}, {t})", s=tuple(application.outputs[0].shape), t=application.result)


@reads("reshape")
def _reshaped(application: Application) -> Term:
    order, sizes = application.params.get("dimensions"), tuple(application.params["new_sizes"])
    if order is None:
        return application.made("reshape({x}, {s})", s=sizes)
    return application.made("reshape(transpose({x}, {o}), {s})", o=tuple(order), s=sizes)


@reads("squeeze")
def _squeezed(application: Application) -> Term:
    return application.made("squeeze({x}, {a})", a=_axes(application.params["dimensions"]))


@reads("expand_dims")
def _expanded(application: Application) -> Term:
    return application.made("expand_dims({x}, {a})", a=_axes(application.params["dimensions"]))


@reads("transpose")
def _transposed(application: Application) -> Term:
    return transposed(application.x, tuple(int(axis) for axis in application.params["permutation"]))


def transposed(x: Term, order: tuple[int, ...]) -> Term:
    """Transpose an array; transposes of transposes, einsums and matmuls are merged."""
    if order == tuple(range(len(order))):
        return x
    match x:
        case Apply(operation="transpose", operands=(inner, Group(items=items))):
            before = [item.value for item in items if isinstance(item, Const)]
            return transposed(inner, tuple(cast("int", before[at]) for at in order))
        case Apply(operation="einsum", operands=(Const(value=str(subscripts)), *operands)):
            inputs, result = notation.parsed(subscripts)
            subscripts = notation.spelled((inputs, "".join(result[at] for at in order)))
            return replace(x, operands=(Const(subscripts), *operands))
        case Apply(operation="matmul", operands=(left, right)) if len(order) == 2:
            return operator("matmul", turned(right), turned(left))
        case _:
            return turned(x) if len(order) == 2 else _built("transpose({x}, {o})", x=x, o=order)


@reads("rev")
def _reversed(application: Application) -> Term:
    return application.made("flip({x}, {a})", a=_axes(application.params["dimensions"]))


@reads("concatenate")
def _concatenated(application: Application) -> Term:
    return _built("concatenate({x}, axis={a})", x=list(application.operands), a=application.params["dimension"])


@reads("stack")
def _stacked(application: Application) -> Term:
    return _built("stack({x}, axis={a})", x=list(application.operands), a=application.params["axis"])


@reads("tile")
def _tiled(application: Application) -> Term:
    return application.made("tile({x}, {r})", r=tuple(application.params["reps"]))


@reads("pad")
def _padded(application: Application) -> Term:
    config = [(int(low), int(high), int(inside)) for low, high, inside in application.params["padding_config"]]
    x, value = application.operands
    if any(low < 0 or high < 0 or inside for low, high, inside in config):
        return _dilated(application, config)
    widths = tuple((low, high) for low, high, _ in config)
    return _built("pad({x}, {w}, constant_values={v})", x=x, w=widths, v=value)


def _dilated(application: Application, config: Sequence[tuple[int, int, int]]) -> Term:
    """A pad with interior or negative padding: the remaining elements, set into a new array."""
    x, value = application.operands
    if not any(inside for _, _, inside in config):
        cut = [
            _item(max(-low, 0), size - max(-high, 0), 1, size)
            for (low, high, _), size in zip(config, application.shape, strict=True)
        ]
        widths = tuple((max(low, 0), max(high, 0)) for low, high, _ in config)
        left = indexed(x, _short(cut)) if _short(cut) else x
        return (
            _built("pad({x}, {w}, constant_values={v})", x=left, w=widths, v=value) if any(map(any, widths)) else left
        )
    taken: list[Term] = []
    places: list[Term] = []
    for (low, _, inside), size, wide in zip(config, application.shape, application.outputs[0].shape, strict=True):
        step = inside + 1
        first = max(-(low // step), 0) if low < 0 else 0
        last = min(size, (wide - 1 - low) // step + 1)
        if last <= first:
            return _built("full({s}, {v}, {t})", s=tuple(application.outputs[0].shape), v=value, t=application.result)
        taken.append(_item(first, last, 1, size))
        places.append(_item(low + first * step, min(low + (last - 1) * step + 1, wide), step, wide))
    whole = _built("full({s}, {v}, {t})", s=tuple(application.outputs[0].shape), v=value, t=application.result)
    left = indexed(x, _short(taken)) if _short(taken) else x
    return Apply("at[].set", (whole, Group(tuple(places)), left))


def _short(items: Sequence[Term]) -> list[Term]:
    """The entries of an index without trailing `:`."""
    kept = list(items)
    while kept and kept[-1] == ALL:
        kept.pop()
    return kept


@reads("iota")
def _counted(application: Application) -> Term:
    shape, dimension = tuple(application.params["shape"]), application.params["dimension"]
    if len(shape) == 1:
        return _built("iota({t}, {n})", t=application.result, n=shape[0])
    return _built("broadcasted_iota({t}, {s}, {d})", t=application.result, s=shape, d=dimension)


@reads("split")
def _split(application: Application) -> Term:
    sizes = list(map(int, application.params["sizes"]))
    if len(sizes) == 1:
        return Group((application.x,))
    ends = [sum(sizes[: at + 1]) for at in range(len(sizes) - 1)]
    return application.made("split({x}, {e}, axis={a})", e=ends, a=application.params["axis"])


@reads("unstack")
def _unstacked(application: Application) -> Term:
    axis = int(application.params["axis"])
    x = application.named(application.x, "unstacked")
    return Group(tuple(indexed(x, [*[ALL] * axis, Const(at)]) for at in range(application.shape[axis])))


# Slices and indices.


@reads("slice")
def _sliced(application: Application) -> Term:
    params = application.params
    bounds = zip(
        params["start_indices"], params["limit_indices"], params["strides"] or (1,) * application.rank, strict=True
    )
    items = [
        _item(int(start), int(stop), int(step), size)
        for (start, stop, step), size in zip(bounds, application.shape, strict=True)
    ]
    return indexed(application.x, _short(items)) if _short(items) else application.x


def _item(start: int, stop: int, step: int, size: int) -> Term:
    lower = NOTHING if start == 0 else Const(start)
    upper = NOTHING if stop == size else Const(stop)
    return Slice(lower, upper, NOTHING if step == 1 else Const(step))


@reads("dynamic_slice")
def _dynamic(application: Application) -> Term:
    x, *starts = application.operands
    return _built("dynamic_slice({x}, {s}, {n})", x=x, s=tuple(starts), n=tuple(application.params["slice_sizes"]))


@reads("dynamic_update_slice")
def _updated(application: Application) -> Term:
    x, update, *starts = application.operands
    return _built("dynamic_update_slice({x}, {u}, {s})", x=x, u=update, s=tuple(starts))


def _mode(application: Application) -> str:
    text = str(application.params["mode"]).upper()
    if "CLIP" in text or text == "0":
        return "clip"
    return "promise_in_bounds" if "PROMISE" in text else "fill"


@dataclass(frozen=True)
class _Indexing:
    """The elements that a gather reads or a scatter writes.

    - `shape`: of the operand; `sizes`: of a slice of it, 1 in dimensions that are `dropped`.
    - `mapped`: the operand dimensions that the last dimension of the indices addresses.
    - `batching`: the operand dimensions batched with dimensions of the indices, which are in `beside`.
    - `windows`: the dimensions of a slice within the result of a gather or the updates of a scatter, of rank `rank`.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    mapped: tuple[int, ...]
    batching: tuple[int, ...]
    beside: tuple[int, ...]
    dropped: tuple[int, ...]
    windows: tuple[int, ...]
    rank: int

    def index(self, application: Application, mode: str) -> list[Term]:
        """The index of each operand dimension, with the rank of the result."""
        given = tuple(application.inputs[1].shape[:-1])
        batch = [d for d in range(self.rank) if d not in self.windows]
        indices = application.named(application.operands[1], "indices")
        sizes = dict(zip(batch, given, strict=True))
        spread = tuple(sizes.get(d, 1) for d in range(self.rank))
        kept = [d for d in range(len(self.shape)) if d not in self.dropped]
        index: list[Term] = []
        for d, size in enumerate(self.shape):
            parts: list[Term] = []
            if d in self.mapped:
                component = indexed(indices, [*[ALL] * len(given), Const(self.mapped.index(d))])
                if mode == "clip":
                    component = _built("clip({c}, 0, {m})", c=component, m=size - self.sizes[d])
                parts.append(_built("reshape({c}, {s})", c=component, s=spread) if spread else component)
            if d in self.batching:
                parts.append(_along(size, batch[self.beside[self.batching.index(d)]], self.rank))
            if d in kept and (self.sizes[d] > 1 or not parts):
                parts.append(_along(self.sizes[d], self.windows[kept.index(d)], self.rank))
            index.append(functools.reduce(functools.partial(operator, "add"), parts or [Const(0)]))
        return index


@reads("gather")
def _gathered(application: Application) -> Term:
    """`take` if that expresses the gather, else an index for each dimension."""
    numbers, sizes = application.params["dimension_numbers"], tuple(map(int, application.params["slice_sizes"]))
    mode, (x, indices), shape = _mode(application), application.operands, application.shape
    given, rank = tuple(application.inputs[1].shape[:-1]), len(application.outputs[0].shape)
    indexing = _Indexing(
        shape,
        sizes,
        tuple(numbers.start_index_map),
        tuple(numbers.operand_batching_dims),
        tuple(numbers.start_indices_batching_dims),
        (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims),
        tuple(numbers.offset_dims),
        rank,
    )
    axis = indexing.mapped[0] if len(indexing.mapped) == 1 else 0
    others = tuple(d for d in range(rank) if not axis <= d < axis + len(given))
    whole = tuple(1 if d == axis else size for d, size in enumerate(shape))
    if indexing.mapped == indexing.dropped == (axis,) and sizes == whole and indexing.windows == others:
        at = _built("reshape({i}, {s})", i=indices, s=given) if given else _built("{i}[0]", i=indices)
        if mode == "fill":
            template = "take({x}, {i}, axis={a}, mode='fill', fill_value={v})"
            return _built(template, x=x, i=at, a=axis, v=_filling(application))
        # Indices that are promised to be in bounds are, so clipping does not change them.
        return _built("take({x}, {i}, axis={a}, mode='clip')", x=x, i=at, a=axis)
    index = indexing.index(application, mode)
    if mode == "fill":
        how = (("mode", Const("fill")), ("fill_value", _filling(application)))
        return Apply("at[].get", (x, Group(tuple(index))), how)
    return indexed(x, index)


def _filling(application: Application) -> Term:
    """The value that a gather gives out of bounds."""
    value, kind = application.params.get("fill_value"), _numpy(application.result)
    if value is not None:
        return literal(value, application.result)
    if np.issubdtype(kind, np.integer):
        bounds = np.iinfo(kind)
        return constant(int(bounds.min if bounds.min < 0 else bounds.max))
    return Const(True) if kind == np.dtype(bool) else _built("inf - inf")


def _along(size: int, dimension: int, rank: int) -> Term:
    """`arange(size)` along one dimension of an array of this rank."""
    count = _built("arange({n})", n=size)
    if rank == 1:
        return count
    return _built("reshape({c}, {s})", c=count, s=tuple(size if d == dimension else 1 for d in range(rank)))


@reads(*(f"scatter{sign}{kind}" for sign in "-_" for kind in ("add", "sub", "mul", "min", "max")), "scatter")
def _scattered(application: Application) -> Term:
    """`x.at[i].add(values)`, with an index for each dimension."""
    method = {"": "set", "sub": "subtract"}.get(method := application.name[len("scatter") + 1 :], method)
    computed = application.params.get("update_jaxpr")
    if method == "set" and computed is not None and computed.eqns:
        raise Unread("'scatter' with a function, as in x.at[index].apply: set its results, x.at[i].set(f(x[i]))")
    numbers, mode = application.params["dimension_numbers"], _mode(application)
    shape, values = application.shape, tuple(application.inputs[2].shape)
    dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    windows = tuple(numbers.update_window_dims)
    left = iter(windows)
    sizes = tuple(1 if d in dropped else values[next(left)] for d in range(len(shape)))
    indexing = _Indexing(
        shape,
        sizes,
        tuple(numbers.scatter_dims_to_operand_dims),
        tuple(numbers.operand_batching_dims),
        tuple(numbers.scatter_indices_batching_dims),
        dropped,
        windows,
        len(values),
    )
    x, _, updates = application.operands
    unique = (("unique_indices", Const(True)),) if application.params["unique_indices"] else ()
    # If indices are promised to be in bounds, nothing is dropped.
    how = (*unique, ("mode", Const("clip" if mode == "clip" else "drop")))
    return Apply(f"at[].{method}", (x, Group(tuple(indexing.index(application, mode))), updates), how)


@reads("sort")
def _sorted(application: Application) -> Term:
    axis, keys = application.params["dimension"], application.params["num_keys"]
    if len(application.operands) == 1:
        return application.made("sort({x}, axis={a})", a=axis)
    places = [_counts_along(application.meant(x), axis) for x in application.operands]
    operands = [
        operand if at >= keys and places[at] else application.named(operand, "sorted")
        for at, operand in enumerate(application.operands)
    ]
    order: Term | None = None
    for key in reversed(operands[:keys]):
        if order is None:
            order = application.named(_built("argsort({x}, axis={a})", x=key, a=axis), "order")
        else:
            along = _built("take_along_axis({x}, {o}, axis={a})", x=key, o=order, a=axis)
            again = application.named(_built("argsort({x}, axis={a})", x=along, a=axis), "order")
            order = application.named(_built("take_along_axis({o}, {p}, axis={a})", o=order, p=again, a=axis), "order")
    assert order is not None
    # Sorted positions are the order itself.
    return Group(
        tuple(
            order
            if place and str(aval.dtype) == "int32"
            else _built("take_along_axis({x}, {o}, axis={a})", x=x, o=order, a=axis)
            for x, place, aval in zip(operands, places, application.outputs, strict=True)
        )
    )


def _counts_along(term: Term, axis: int) -> bool:
    """Whether a term is 0, 1, 2, … along a dimension."""
    match term:
        case Apply(operation="iota"):
            return axis == 0
        case Apply(operation="broadcasted_iota", operands=(_, _, Const(value=dimension))):
            return dimension == axis
        case _:
            return False


@reads("approx_top_k")
def _nearly_top(application: Application) -> Term:
    """The exact result, which is the approximate one of CPUs and GPUs."""
    params = application.params
    axis = int(params["reduction_dimension"]) % application.rank
    x = application.x if params["is_max_k"] else operator("negative", application.x)
    top = application.named(_built("top_k({x}, {k}, axis={a})", x=x, k=params["k"], a=axis), "top")
    values = _built("{t}[0]", t=top)
    return Group((values if params["is_max_k"] else operator("negative", values), _built("{t}[1]", t=top)))


@reads("top_k")
def _top(application: Application) -> Term:
    axis = application.params.get("axis", -1)
    if axis in (-1, application.rank - 1):
        return application.made("top_k({x}, {k})", k=application.params["k"])
    return application.made("top_k({x}, {k}, axis={a})", k=application.params["k"], a=axis)


# Products.


@reads("dot_general")
def _product(application: Application) -> Term:
    numbers = application.params["dimension_numbers"]
    (left, right), (left_batch, right_batch) = (tuple(tuple(map(int, each)) for each in part) for part in numbers)
    ranks = [len(each.shape) for each in application.inputs]
    wide = str(application.params.get("preferred_element_type") or application.result)
    named = (("preferred_element_type", Const(wide)),) if wide != application.dtype else ()
    x, y = application.operands
    if not named and 0 in ranks:
        return operator("multiply", x, y)
    batch = tuple(range(ranks[0] - 2))
    whole = (left, right) == ((ranks[0] - 1,), (len(batch),)) and left_batch == right_batch == batch
    if not named and batch and whole and ranks == [len(batch) + 2] * 2:
        return operator("matmul", x, y)
    if not named and not left_batch and len(left) == 1 and max(ranks) <= 2:
        x = turned(x) if left[0] != ranks[0] - 1 else x
        return operator("matmul", x, turned(y) if right[0] else y)
    if not named and ranks[1] == 2 and not left_batch and (left, right) == ((ranks[0] - 1,), (0,)):
        return operator("matmul", x, y)
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    first = [next(letters) for _ in range(ranks[0])]
    paired = dict(zip((*right, *right_batch), (*left, *left_batch), strict=True))
    second = [first[paired[d]] if d in paired else next(letters) for d in range(ranks[1])]
    kept = [first[d] for d in (*left_batch, *(d for d in range(ranks[0]) if d not in (*left_batch, *left)))]
    kept += [second[d] for d in range(ranks[1]) if d not in paired]
    subscripts = notation.spelled((("".join(first), "".join(second)), "".join(kept)))
    return Apply("einsum", (Const(subscripts), x, y), named)


@reads("conv_general_dilated")
def _convolved(application: Application) -> Term:
    params = application.params
    numbers = params["dimension_numbers"]
    letters = "DHW"[-(application.rank - 2) :] if application.rank > 2 else ""
    lhs = _letters(numbers.lhs_spec, "NC", letters)
    rhs = _letters(numbers.rhs_spec, "OI", letters)
    out = _letters(numbers.out_spec, "NC", letters)
    wide = str(params.get("preferred_element_type") or application.result)
    given: dict[str, Part] = {
        "lhs_dilation": tuple(params["lhs_dilation"]),
        "rhs_dilation": tuple(params["rhs_dilation"]),
        "dimension_numbers": (lhs, rhs, out),
        "feature_group_count": params["feature_group_count"],
        "batch_group_count": params["batch_group_count"],
    }
    if wide != application.dtype:
        given["preferred_element_type"] = wide
    ones = (1,) * len(letters)
    plain = {"lhs_dilation": ones, "rhs_dilation": ones, "feature_group_count": 1, "batch_group_count": 1}
    keywords = tuple((name, constant(value)) for name, value in given.items() if plain.get(name) != value)
    padding = constant([tuple(map(int, each)) for each in params["padding"]])
    return Apply(
        "conv_general_dilated", (*application.operands, constant(tuple(params["window_strides"])), padding), keywords
    )


def _letters(spec: Sequence[int], first: str, spatial: str) -> str:
    """The letters of a convolution operand's dimensions, in order."""
    places = dict(zip(spec, f"{first}{spatial}", strict=True))
    return "".join(places[d] for d in range(len(spec)))


@reads("ragged_dot_general", "ragged_dot")
def _ragged(application: Application) -> Term:
    numbers = application.params["ragged_dot_dimension_numbers"]
    (summed, batch), (rows, groups) = (
        numbers.dot_dimension_numbers, (numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions),
    )  # fmt: skip
    match [[*map(list, summed)], [*map(list, batch)], list(rows), list(groups)]:
        case [[[1], [1]], [[], []], [0], [0]]:
            return application.made("ragged_dot({x}, {y}, {z})")
        case [[[1], [2]], [[], []], [0], [0]]:
            return application.made("ragged_dot({x}, matrix_transpose({y}), {z})")
        case [[[0], [0]], [[], []], [0], []]:
            # The transpose with respect to the matrices, with a one-hot group of each row.
            ends = application.made("searchsorted(cumsum({z}), arange({n}), side='right')", n=application.shape[0])
            count = application.inputs[2].shape[0]
            group = _built("one_hot({e}, {c}, dtype={t})", e=ends, c=count, t=application.dtype)
            return application.made("einsum('mg,mk,mn->gkn', {g}, {x}, {y})", g=group)
        case _:
            raise Unread(
                f"'ragged_dot_general' with other dimensions than those of ragged_dot and its derivatives: {REFERENCE}"
            )


# Linear algebra.


@reads("cholesky")
def _cholesky(application: Application) -> Term:
    return application.made("cholesky({x}, symmetrize_input=False)")


@reads("eigh")
def _eigh(application: Application) -> Term:
    both = application.named(application.made("eigh({x})"), "eigen")
    return Group((_built("{b}[1]", b=both), _built("{b}[0]", b=both)))


@reads("svd")
def _svd(application: Application) -> Term:
    full = application.params["full_matrices"]
    if not application.params["compute_uv"]:
        return application.made("svdvals({x})")
    both = application.named(application.made("svd({x}, full_matrices={f})", f=full), "svd")
    return Group(tuple(_built("{b}[{n}]", b=both, n=n) for n in (1, 0, 2)))


@reads("qr")
def _qr(application: Application) -> Term:
    return application.made("qr({x}, mode={m})", m="complete" if application.params["full_matrices"] else "reduced")


@reads("lu")
def _lu(application: Application) -> Term:
    return application.made("lu({x})")


@reads("lu_pivots_to_permutation")
def _order_of_rows(application: Application) -> Term:
    return application.made("lu_pivots_to_permutation({x}, {n})", n=application.params["permutation_size"])


@reads("triangular_solve")
def _solved(application: Application) -> Term:
    params = application.params
    a, b = application.operands
    if params["conjugate_a"]:
        a = _built("conj({a})", a=a)
    lower, trans = params["lower"], 1 if params["transpose_a"] else 0
    template = "solve_triangular({a}, {b}, trans={t}, lower={l}, unit_diagonal={u})"
    if params["left_side"]:
        return _built(template, a=a, b=b, t=trans, l=lower, u=params["unit_diagonal"])
    turned = _built("matrix_transpose({b})", b=b)
    solved = _built(template, a=a, b=turned, t=1 - trans, l=lower, u=params["unit_diagonal"])
    return _built("matrix_transpose({x})", x=solved)


@reads("fft")
def _fft(application: Application) -> Term:
    kind = str(application.params["fft_type"]).rpartition(".")[2].lower().replace("fft_type.", "")
    lengths = tuple(application.params["fft_lengths"])
    name = {"0": "fft", "1": "ifft", "2": "rfft", "3": "irfft"}.get(kind, kind)
    return _built(f"{name}n({{x}}, {{s}}, {{a}})", x=application.x, s=lengths, a=tuple(range(-len(lengths), 0)))


# Random numbers.


@reads("random_bits")
def _bits(application: Application) -> Term:
    params = application.params
    return application.made("bits({x}, {s}, {t})", s=tuple(params["shape"]), t=f"uint{params['bit_width']}")


@reads("random_seed")
def _seeded(application: Application) -> Term:
    _must_be_threefry(application.params["impl"].name)
    match application.x:
        case Const(value=int(seed)) if seed < 2**32:
            return application.made("key({x})")
        case _:
            return _built("key({x})", x=as_array(application.x, application.inputs[0]))


@reads("random_fold_in")
def _folded(application: Application) -> Term:
    return application.made("fold_in({x}, {y})")


@reads("random_split")
def _keys(application: Application) -> Term:
    shape = tuple(application.params["shape"])
    return application.made("split_key({x}, {n})", n=shape[0] if len(shape) == 1 else shape)


@reads("random_wrap")
def _wrapped(application: Application) -> Term:
    return wrapped(application.x, application.params["impl"].name)


def wrapped(data: Term, implementation: str) -> Term:
    """The keys with some data. Raises `Unread` for implementations that the oracle does not support."""
    _must_be_threefry(implementation)
    return _built("wrap_key_data({x})", x=data)


def _must_be_threefry(implementation: str) -> None:
    if implementation != "threefry2x32":
        raise Unread(
            f"a random key of '{implementation}': XLA's compiler draws its numbers, differently for each platform and "
            "layout; draw by a key of threefry2x32, JAX's default, or draw outside and pass the numbers as an argument"
        )
    if not cast("Any", jax.config).jax_threefry_partitionable:
        raise Unread("jax_threefry_partitionable is False: the oracle draws as JAX does by default; leave it as it is")


@reads("rng_bit_generator", "rng_uniform")
def _drawn_elsewhere(application: Application) -> Term:
    raise Unread(
        f"'{application.name}' is drawn by XLA's compiler, which the oracle does not repeat: draw outside and pass the "
        "numbers as an argument, or name a reference for a jitted function that draws"
    )


@reads("random_unwrap")
def _unwrapped(application: Application) -> Term:
    return application.made("key_data({x})")


# Collectives.


def over_axes(name: str, params: Mapping[str, Any]) -> frozenset[str]:
    """The mesh axes of a collective; empty for other primitives."""
    return frozenset(named_axes(name, params))


def named_axes(name: str, params: Mapping[str, Any]) -> tuple[str, ...]:
    """The mesh axes of a collective as it names them; empty for other primitives."""
    return _axis_names(params) if name in _OVER_AXES else ()


def _axis_names(params: Mapping[str, Any]) -> tuple[str, ...]:
    given: Any = params["axes"] if "axes" in params else params["axis_name"]
    axes = cast("tuple[Any, ...]", given) if isinstance(given, tuple) else (given,)
    return tuple(axis for axis in axes if isinstance(axis, str))


def _collective(operation: str, application: Application, x: Term, **given: Any) -> Term:
    """The call of a collective, with the arguments that differ from their defaults."""
    parameters = OPERATIONS[operation].signature.parameters
    given["axis_index_groups"] = _groups(application.params.get("axis_index_groups"))
    named = [(name, constant(_plain(value))) for name, value in given.items() if parameters[name].default != value]
    return Apply(operation, (x, axes_of(_axis_names(application.params))), tuple(named))


def _groups(groups: Any) -> list[list[int]] | None:
    return None if groups is None else [list(map(int, group)) for group in groups]


_REDUCING = {"psum": "psum", "psum_invariant": "psum", "pmax": "pmax", "pmin": "pmin"}


@reads(*_REDUCING)
def _over_devices(application: Application) -> Term:
    """A reduction over mesh axes, and over the dimensions that `vmap` makes of its own axis."""
    over = OPERATIONS[_REDUCING[application.name]].over
    assert over is not None
    axes = application.params["axes"]
    places = tuple(int(axis) for axis in axes if not isinstance(axis, str))
    results: list[Term] = []
    for operand in application.operands:
        x = _built(f"{over.reduction}({{x}}, axis={{a}})", x=operand, a=_axes(places)) if places else operand
        names = _axis_names(application.params)
        results.append(_collective(_REDUCING[application.name], application, x) if names else x)
    return results[0] if len(results) == 1 else Group(tuple(results))


@reads("all_gather", "all_gather_invariant")
def _gathered_over(application: Application) -> Term:
    params = application.params
    to = "invarying" if application.name == "all_gather_invariant" else "varying"
    how = {"axis": params["all_gather_dimension"], "tiled": params["tiled"], "to": to}
    return _collective("all_gather", application, application.x, **how)


@reads("reduce_scatter")
def _scattered_over(application: Application) -> Term:
    how = {"scatter_dimension": application.params["scatter_dimension"], "tiled": application.params["tiled"]}
    return _collective("psum_scatter", application, application.x, **how)


@reads("all_to_all")
def _exchanged(application: Application) -> Term:
    params = application.params
    over, split, joined = axes_of(_axis_names(params)), params["split_axis"], params["concat_axis"]
    # Without `tiled`, JAX adds the dimension that is joined and removes the one that is split, around the primitive.
    named = {"axis_index_groups": _groups(params.get("axis_index_groups")), "tiled": params["tiled"] or split != joined}
    given = tuple((name, constant(value)) for name, value in named.items() if value)
    return Apply("all_to_all", (application.x, over, Const(split), Const(joined)), given)


@reads("ragged_all_to_all")
def _ragged_exchange(application: Application) -> Term:
    groups = _groups(application.params.get("axis_index_groups"))
    named = (("axis_name", axes_of(_axis_names(application.params))),)
    named += () if groups is None else (("axis_index_groups", constant(groups)),)
    return Apply("ragged_all_to_all", application.operands, named)


@reads("ppermute")
def _permuted(application: Application) -> Term:
    perm = [(int(source), int(target)) for source, target in application.params["perm"]]
    return Apply("ppermute", (application.x, axes_of(_axis_names(application.params)), constant(perm)))


@reads("pbroadcast", "pcollectivebroadcast")
def _broadcast_over(application: Application) -> Term:
    return _collective("pbroadcast", application, application.x, source=application.params["source"])


@reads("axis_index")
def _place(application: Application) -> Term:
    return Apply("axis_index", (axes_of(_axis_names(application.params)),))


_OVER_AXES = {
    *_REDUCING, "all_gather", "all_gather_invariant", "reduce_scatter", "all_to_all", "ragged_all_to_all", "ppermute",
    "pbroadcast", "pcollectivebroadcast", "axis_index", "pvary",
}  # fmt: skip

# Functions of JAX's own that a jaxpr calls by name.

LIBRARY: Mapping[str, Callable[[Application], tuple[str, Mapping[str, Any]]]] = {
    **{name: (lambda application: (application.name, {})) for name in (
        "relu", "silu", "softplus", "relu6", "inv", "det", "slogdet", "solve", "clip", "floor_divide", "remainder",
        "signbit", "copysign", "logaddexp", "isfinite", "square", "log_sigmoid", "interp",
    )},
    "_where": lambda _: ("where", {}),
    "_interp": lambda _: ("interp", {}),
    **{f"_{name}": (lambda application: (application.name.lstrip("_"), _drawn(application))) for name in (
        "normal", "uniform", "gumbel", "exponential", "laplace", "truncated_normal", "randint",
    )},
    "_bernoulli": lambda application: ("bernoulli", {"shape": tuple(application.outputs[0].shape)}),
    "_shuffle": lambda _: ("permutation", {}),
}  # fmt: skip
"""For the name of each function: the operation that it may be, and the arguments that are no operands."""

ORDERS: Mapping[str, tuple[str, ...]] = {
    "clip": ("arr", "max", "min"),
    "uniform": ("key", "minval", "maxval"),
    "randint": ("key", "minval", "maxval"),
    "truncated_normal": ("key", "lower", "upper"),
    "bernoulli": ("key", "p"),
}
"""The parameters of the operands in order, where these are not the first ones: `jit` sorts those that are named."""


def _drawn(application: Application) -> Mapping[str, Any]:
    return {"shape": tuple(application.outputs[0].shape), "dtype": application.result}


def as_array(term: Term, aval: Any) -> Term:
    """The term with a number as an array of the dtype of `aval`; other terms unchanged."""
    if isinstance(term, Const):
        return built("asarray({x}, {t})", x=term, t=str(aval.dtype))
    return of_its_dtype(term, aval)


def of_its_dtype(term: Term, aval: Any) -> Term:
    """The term with a number as an array if JAX gives the number another dtype than that of `aval`."""
    usual = str(aval.dtype) in (_USUAL_WITH_X64 if calls.x64() else _USUAL)
    return term if usual or not _is_number(term) else built("asarray({x}, {t})", x=term, t=str(aval.dtype))


def of_their_dtype(operands: Sequence[Term], inputs: Sequence[Any], output: Any) -> tuple[Term, ...]:
    """Operands of which at least one that has the dtype of the output is an array of it, if any has this dtype."""
    alike = [aval.dtype == output.dtype for aval in inputs]
    if not all(_is_number(term) for term, is_alike in zip(operands, alike, strict=True) if is_alike):
        return tuple(operands)
    given = zip(operands, inputs, alike, strict=True)
    return tuple(of_its_dtype(term, aval) if is_alike else term for term, aval, is_alike in given)


def _is_number(term: Term) -> bool:
    match term:
        case Const(value=bool() | int() | float() | complex()):
            return True
        case Name(name=name):
            return name in CONSTANTS
        case Apply(operation="negative" | "subtract", operands=operands, spelled="operator"):
            return all(map(_is_number, operands))
        case _:
            return False


_USUAL = ("bool", "int32", "float32", "complex64")
_USUAL_WITH_X64 = ("bool", "int64", "float64", "complex128")
"""The dtypes that Python numbers have, without and with `jax_enable_x64`."""


def literal(value: Any, dtype: str) -> Term:
    """The term of a number in a jaxpr, with the digits that its dtype has."""
    if dtype == "bool":
        return Const(bool(value))
    kind = _numpy(dtype)
    if dtype in _NARROW_INTEGERS:
        # Python numbers are not promoted to these dtypes.
        return _built("asarray({n}, {t})", n=int(value), t=dtype)
    if np.issubdtype(kind, np.integer):
        # Without x64 a Python integer is an int32.
        wide = int(value) >= 2**31 and dtype.startswith("u")
        return _built("asarray({n}, {t})", n=int(value), t=dtype) if wide else constant(int(value))
    if np.issubdtype(kind, np.complexfloating):
        return constant(complex(value))
    number = float(str(np.asarray(value).astype(kind)[()]))
    if math.isnan(number):
        return _built("inf - inf")
    if math.isinf(number):
        return _built("inf" if number > 0 else "-inf")
    return constant(number)


_NARROW_INTEGERS = ("int2", "int4", "uint2", "uint4")


def _numpy(name: str) -> np.dtype:
    """The NumPy dtype of a name; float32 for the floats that NumPy lacks."""
    try:
        return np.dtype(name)
    except TypeError:
        return np.dtype(np.float32)
