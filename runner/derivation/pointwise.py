"""Element by element: every dimension of the result runs along those of the operands, as they broadcast."""

from __future__ import annotations

import ast

from runner.derivation.rules import Assignment, Dimensions, Rule, Value
from runner.derivation.site import Site

NAMES = frozenset({
    "add", "subtract", "multiply", "divide", "true_divide", "floor_divide", "mod", "remainder", "fmod", "power",
    "pow", "float_power", "square", "reciprocal", "negative", "positive", "abs", "absolute", "sign", "maximum",
    "minimum", "fmax", "fmin", "clip", "copysign", "nan_to_num", "stop_gradient", "floor", "ceil", "trunc", "rint",
    "round", "sqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "arcsin",
    "arccos", "arctan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "sinc",
    "deg2rad", "rad2deg", "arctan2", "atan2", "hypot", "logaddexp", "logaddexp2", "rsqrt", "erf", "erfc", "erf_inv",
    "lgamma", "digamma", "logistic", "xlogy", "real", "imag", "conj", "conjugate", "angle", "equal", "not_equal",
    "less", "less_equal", "greater", "greater_equal", "isclose", "isnan", "isinf", "isfinite", "signbit",
    "logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and", "bitwise_or", "bitwise_xor",
    "bitwise_not", "invert", "bitwise_count", "left_shift", "right_shift", "astype", "where", "relu", "relu6",
    "sigmoid", "silu", "swish", "gelu", "softplus", "log_sigmoid", "leaky_relu", "elu", "selu", "celu", "hard_tanh",
    "hard_sigmoid", "hard_silu", "hard_swish", "soft_sign", "sparse_plus", "sparse_sigmoid", "squareplus", "mish",
    "optimization_barrier", "checkpoint_name", "array", "asarray", "copy", "clamp", "fabs", "around", "radians",
    "degrees", "xlog1py", "gammaln", "betaln", "expit", "logit", "entr", "rel_entr", "kl_div", "ndtr", "log_ndtr",
    "ndtri", "i0", "i0e", "i1", "i1e", "isposinf", "isneginf", "bitwise_left_shift", "bitwise_right_shift",
})  # fmt: skip


def called(site: Site) -> Value | None:
    """A function of elements; its other arguments stay."""
    if site.name in ("array", "asarray") and any(name not in ("a", "object", "dtype") for name in site.arguments):
        return None
    return _pointwise(site, list(site.arguments.values()))


def selected(site: Site) -> Value | None:
    """`select`: of lists of conditions and of choices."""
    lists = [site.arguments["condlist"], site.arguments["choicelist"]]
    parts = [part for each in lists if isinstance(each, ast.Tuple | ast.List) for part in each.elts]
    if any(not isinstance(each, ast.Tuple | ast.List) for each in lists):
        return None
    return _pointwise(site, [*parts, *([site.arguments["default"]] if "default" in site.arguments else [])])


def operator(site: Site) -> Value | None:
    """`+`, `<`, `~`, …"""
    match site.node:
        case ast.BinOp(left=left, right=right) | ast.Compare(left=left, comparators=[right]):
            return _pointwise(site, [left, right])
        case ast.UnaryOp(operand=operand):
            return _pointwise(site, [operand])
        case _:
            return None


def _pointwise(site: Site, parts: list[ast.expr]) -> Value | None:
    arrays = [part for part in parts if site.type_of(part) is not None]
    if any(isinstance(part, ast.Tuple | ast.List) for part in parts if site.writer.statics.tree(part) is None):
        return None
    shape = site.result.shape
    values = [site.value(part) for part in arrays]
    if any(value.shape is None and not value.static for value in values):
        return None
    kept = [(part, value) for part, value in zip(arrays, values, strict=True) if value.shape is not None]

    def write(trees: list[ast.expr], _: Assignment) -> ast.expr:
        return site.rewritten({id(part): tree for (part, _), tree in zip(kept, trees, strict=True)})

    operands = tuple(aligned(value.shape or (), shape) for _, value in kept)
    run = {factor for dimensions in operands for factors in dimensions for factor in factors}
    result = tuple((d,) if d in run else () for d in range(len(shape)))
    return site.writer.apply(site, [value for _, value in kept], Rule(operands, result, dict(enumerate(shape)), write))


def aligned(mine: tuple[int, ...], shape: tuple[int, ...]) -> Dimensions:
    """The dimensions of an operand that is broadcast to `shape`, whose dimensions are the factors 0, 1, …"""
    offset = len(shape) - len(mine)
    return tuple((d + offset,) if size == shape[d + offset] else () for d, size in enumerate(mine))
