"""Writes elementwise primitives in the language."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from runner.graph.language.lines import operator
from runner.graph.language.operations import OPERATIONS
from runner.graph.term import Apply, Const, Group, Term
from runner.programs.derivation.terms import constant
from runner.worker import calls
from runner.worker.jaxpr.primitives.registry import (
    READERS,
    REFERENCE,
    Application,
    Unread,
    as_array,
    filled,
    numpy_dtype,
    reads,
)

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
    if np.issubdtype(numpy_dtype(application.result), np.integer):
        # JAX's primitive rounds towards zero.
        x, y = (application.named(operand, "quotient") for operand in application.operands)
        template = "where({x} < 0, -1, 1) * where({y} < 0, -1, 1) * (abs({x}) // abs({y}))"
        cast = filled(template, x=x, y=y)
        unsigned = application.result.startswith("u")
        return operator("floor_divide", x, y) if unsigned else filled("astype({x}, {t})", x=cast, t=application.result)
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
        value = filled("{c} + {x} * ({v})", c=coefficient, x=x, v=value)
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
    return filled("sign({x}) * floor(abs({x}) + 0.5)", x=x)


@reads("population_count")
def _counted_bits(application: Application) -> Term:
    # `bitwise_count` counts the bits of the absolute value, as NumPy does.
    unsigned = application.dtype if application.dtype.startswith("uint") else f"u{application.dtype}"
    return application.made("astype(bitwise_count(astype({x}, {u})), {t})", u=unsigned, t=application.result)


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


@reads("select_n", places=True)
def _selected(application: Application) -> Term:
    which, *cases = _together(application)
    if len(cases) == 1:
        return cases[0]
    if application.dtype == "bool":
        return filled("where({p}, {b}, {a})", p=which, a=cases[0], b=cases[1])
    which, chosen = application.named(which, "which"), cases[-1]
    for number, case in reversed(list(enumerate(cases[:-1]))):
        chosen = filled("where({p} == {n}, {a}, {b})", p=which, n=number, a=case, b=chosen)
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
                    return filled("1.0 + astype({b}, 'float32') * {e}", b=bits, e=2.0**-23)
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
        bits = filled(
            "astype(right_shift(expand_dims({b}, -1), reshape({w} * arange({n}, dtype={u}), {s})), {t})",
            b=bits, w=widths[1], n=count, u=f"uint{widths[0]}", s=(*ends, count), t=f"uint{widths[1]}",
        )  # fmt: skip
    elif widths[0] < widths[1]:
        parts = application.named(filled("astype({b}, {t})", b=bits, t=f"uint{widths[1]}"), "parts")
        bits = filled("{p}[..., 0]", p=parts)
        for part in range(1, widths[1] // widths[0]):
            bits = filled("{b} | ({p}[..., {n}] << {w})", b=bits, p=parts, n=part, w=part * widths[0])
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
    return filled(template, x=x, t=new)


@reads("name")
def _named(application: Application) -> Term:
    return application.made("checkpoint_name({x}, {n})", n=application.params["name"])
