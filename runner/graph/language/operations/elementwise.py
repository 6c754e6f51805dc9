"""The rows of elementwise functions."""

from __future__ import annotations

from dataclasses import replace

from runner.graph.language.operations.deferred import arithmetic, np, promotion
from runner.graph.language.operations.row import Operation, array, elementary

identity, in_floats, on_truth, promoted = (
    promotion.identity, promotion.in_floats, promotion.on_truth, promotion.promoted
)  # fmt: skip


def _special(name: str, arguments: str) -> Operation:
    """A row for a function of `jax.scipy.special` that has the same name in SciPy."""
    return array(name, arguments, arithmetic.special(name), jax=f"jax.scipy.special.{name}")


_ELEMENTWISE = (
    # Arithmetic.
    array("add", "x, y, /", arithmetic.add, neutral=(0, 0), inverse="subtract", linear="together"),
    array("subtract", "x, y, /", arithmetic.subtract, neutral=(None, 0), inverse="add", linear="together"),
    array("multiply", "x, y, /", arithmetic.multiply, neutral=(1, 1), inverse="divide", linear="each"),
    array("divide", "x1, x2, /", arithmetic.divide, also=("true_divide",), neutral=(None, 1), inverse="multiply",
        linear="first"),
    array("floor_divide", "x1, x2, /", arithmetic.floor_divide, decides="comparison"),
    array("remainder", "x1, x2, /", arithmetic.remainder, decides="comparison", also=("mod",)),
    array("fmod", "x1, x2, /", arithmetic.fmod, decides="comparison"),
    array("power", "x1, x2, /", arithmetic.power, also=("pow",)),
    array("float_power", "x, y, /", in_floats(np.power)),
    array("square", "x, /", arithmetic.square),
    array("negative", "x, /", arithmetic.negative, linear="together"),
    array("positive", "x, /", promotion.array),
    array("abs", "x, /", promoted(np.abs), also=("absolute",)),
    array("sign", "x, /", arithmetic.sign, decides="threshold"),
    array("maximum", "x, y, /", promoted(promotion.ieee_maximum)),
    array("minimum", "x, y, /", promoted(promotion.ieee_minimum)),
    array("clip", "arr, /, min=None, max=None", arithmetic.clip, on_arrays="method"),
    elementary("fabs", np.abs),
    array("copysign", "x1, x2, /", in_floats(np.copysign)),
    array("nan_to_num", "x, *, nan=0.0, posinf=None, neginf=None", arithmetic.nan_to_num),
    array("stop_gradient", "x", identity, jax="jax.lax.stop_gradient", constant=True),
    array("optimization_barrier", "operand, /", identity, jax="jax.lax.optimization_barrier"),
    array("checkpoint_name", "x, name", identity, jax="jax.ad_checkpoint.checkpoint_name", moves="added"),
    # Rounding.
    array("floor", "x, /", promoted(np.floor), decides="threshold"),
    array("ceil", "x, /", promoted(np.ceil), decides="threshold"),
    array("trunc", "x", promoted(np.trunc), decides="threshold"),
    array("rint", "x, /", in_floats(np.rint), decides="threshold"),
    array("round", "a, decimals=0", arithmetic.round_, decides="threshold", also=("around",), on_arrays="method"),
    # Elementary functions.
    elementary("sqrt", np.sqrt),
    elementary("cbrt", np.cbrt),
    elementary("exp", np.exp, exponential=True),
    elementary("exp2", np.exp2),
    elementary("expm1", np.expm1, exponential=True),
    elementary("log", np.log),
    elementary("log2", np.log2),
    elementary("log10", np.log10),
    elementary("log1p", np.log1p),
    elementary("sin", np.sin),
    elementary("cos", np.cos),
    elementary("tan", np.tan),
    elementary("arcsin", np.arcsin, "asin"),
    elementary("arccos", np.arccos, "acos"),
    elementary("arctan", np.arctan, "atan"),
    elementary("sinh", np.sinh),
    elementary("cosh", np.cosh),
    elementary("tanh", np.tanh, exponential=True),
    elementary("arcsinh", np.arcsinh),
    elementary("arccosh", np.arccosh),
    elementary("arctanh", np.arctanh),
    elementary("sinc", arithmetic.sinc),
    elementary("deg2rad", np.deg2rad, "radians"),
    elementary("rad2deg", np.rad2deg, "degrees"),
    array("arctan2", "x1, x2, /", in_floats(np.arctan2), also=("atan2",)),
    array("hypot", "x1, x2, /", in_floats(np.hypot)),
    array("logaddexp", "x1, x2, /", arithmetic.logaddexp),
    array("logaddexp2", "x1, x2, /", in_floats(np.logaddexp2)),
    array("rsqrt", "x", arithmetic.rsqrt, jax="jax.lax.rsqrt"),
    array("erf", "x", arithmetic.erf, jax="jax.lax.erf", exponential=True),
    array("erfc", "x", arithmetic.erfc, jax="jax.lax.erfc"),
    array("erf_inv", "x", arithmetic.erf_inv, jax="jax.lax.erf_inv"),
    array("lgamma", "x", arithmetic.lgamma, jax="jax.lax.lgamma"),
    array("digamma", "x", arithmetic.digamma, jax="jax.lax.digamma"),
    array("logistic", "x", arithmetic.logistic, jax="jax.lax.logistic"),
    _special("xlogy", "x, y"),
    _special("xlog1py", "x, y"),
    array("gammaln", "x", arithmetic.lgamma, jax="jax.scipy.special.gammaln"),
    array("betaln", "a, b", arithmetic.betaln, jax="jax.scipy.special.betaln"),
    array("expit", "x", arithmetic.logistic, jax="jax.scipy.special.expit"),
    _special("entr", "x"),
    array("rel_entr", "p, q", arithmetic.rel_entr, jax="jax.scipy.special.rel_entr"),
    array("kl_div", "p, q", arithmetic.kl_div, jax="jax.scipy.special.kl_div"),
    _special("ndtr", "x"),
    _special("log_ndtr", "x"),
    _special("ndtri", "p"),
    _special("i0", "x"),
    _special("i0e", "x"),
    _special("i1", "x"),
    _special("i1e", "x"),
    *(
        array(name, "a, x", counterpart, jax=f"jax.scipy.special.{name}")
        for name, counterpart in (("gammainc", arithmetic.gammainc), ("gammaincc", arithmetic.gammaincc))
    ),
    array("zeta", "x, q", arithmetic.zeta, jax="jax.scipy.special.zeta"),
    array("polygamma", "m, x", arithmetic.polygamma, jax="jax.lax.polygamma", numberless=True),
    *(
        array(name, arguments, counterpart, jax=f"jax.lax.{name}", numberless=True)
        for name, arguments, counterpart in (
            ("random_gamma_grad", "a, x, /", arithmetic.random_gamma_grad),
            ("igamma_grad_a", "a, x", arithmetic.igamma_grad_a),
        )
    ),
    # Complex numbers.
    array("real", "val, /", arithmetic.real, on_arrays="attribute", moves="added"),
    array("imag", "val, /", arithmetic.imag, on_arrays="attribute"),
    array("conj", "x, /", arithmetic.conj, also=("conjugate",), on_arrays="method"),
    # Comparison, logic and bits.
    array("equal", "x, y, /", promoted(np.equal), decides="equality", confused_with=("not_equal",)),
    array("not_equal", "x, y, /", promoted(np.not_equal), decides="equality", confused_with=("equal",)),
    array("less", "x, y, /", promoted(np.less), decides="comparison", confused_with=("less_equal", "greater")),
    array("less_equal", "x, y, /", promoted(np.less_equal), decides="comparison",
        confused_with=("less", "greater_equal")),
    array("greater", "x, y, /", promoted(np.greater), decides="comparison", confused_with=("greater_equal", "less")),
    array("greater_equal", "x, y, /", promoted(np.greater_equal), decides="comparison",
        confused_with=("greater", "less_equal")),
    array("isclose", "a, b, rtol=1e-05, atol=1e-08, equal_nan=False", arithmetic.isclose, decides="comparison"),
    array("isnan", "x, /", in_floats(np.isnan)),
    array("isinf", "x, /", in_floats(np.isinf)),
    array("isfinite", "x, /", in_floats(np.isfinite)),
    array("signbit", "x, /", in_floats(np.signbit), decides="threshold"),
    array("logical_and", "x, y, /", on_truth(np.logical_and), decides="threshold"),
    array("logical_or", "x, y, /", on_truth(np.logical_or), decides="threshold"),
    array("logical_xor", "x, y, /", on_truth(np.logical_xor), decides="threshold"),
    array("logical_not", "x, /", on_truth(np.logical_not), decides="threshold"),
    array("bitwise_and", "x, y, /", arithmetic.bitwise_and),
    array("bitwise_or", "x, y, /", arithmetic.bitwise_or),
    array("bitwise_xor", "x, y, /", arithmetic.bitwise_xor),
    array("invert", "x, /", arithmetic.invert, also=("bitwise_not",)),
    array("bitwise_count", "x, /", promoted(np.bitwise_count)),
    array("clz", "x", arithmetic.leading_zeros, jax="jax.lax.clz"),
    Operation("bitcast_convert_type", "operand, new_dtype", "jax.lax.bitcast_convert_type", arithmetic.bitcast,
        decides="threshold", dtype_of=("operand",)),
    Operation("nextafter", "x, y, /", "jnp.nextafter", arithmetic.next_float, dtype_of=("x", "y")),
    array("left_shift", "x, y, /", arithmetic.left_shift, also=("bitwise_left_shift",)),
    array("right_shift", "x1, x2, /", arithmetic.right_shift, also=("bitwise_right_shift",)),
)  # fmt: skip

ROWS = (
    *(replace(row, elementwise=True) for row in _ELEMENTWISE),
    # One result for all elements.
    array("array_equal", "a1, a2, equal_nan=False", np.array_equal, decides="equality"),
)
