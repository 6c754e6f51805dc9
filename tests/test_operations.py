"""Every row of the table of operations against its JAX function, on drawn arrays and arguments."""

import functools
import inspect
import itertools
import operator
from typing import Any, NamedTuple

import hypothesis.extra.numpy as hnp
import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import jax.scipy
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from runner.graph.language.counterparts import algebra, arithmetic
from runner.graph.language.counterparts.indexing import getitem
from runner.graph.language.operations import COMPUTATIONS, OPERATIONS
from runner.graph.language.operators import BY_NAME

# Rows of other kinds have tests of their own: `test_collectives.py`, `test_threefry.py`.
ROWS = {n: r for n, r in OPERATIONS.items() if r.kind != "collective" and not r.random}
del ROWS["axis_size"]

# Numbers that float32 holds exactly, so that JAX in float32 and the oracle start from the same ones.
PLAIN = (-3.5, -2.0, -1.5, -1.0, -0.75, -0.5, -0.25, -0.125, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.5, 6.25, 0.0)
EDGE = (*PLAIN, float("nan"), float("inf"), float("-inf"), -0.0)
UNIT = (-0.875, -0.5, -0.25, 0.0, 0.125, 0.25, 0.75)
POSITIVE = (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.5, 6.25)
# Few shapes: nearly all the time goes into XLA's compilation for each shape and dtype.
Strategy = st.SearchStrategy[Any]
SHAPES: Strategy = st.just((2, 3))
RANKS: Strategy = st.sampled_from(((3,), (2, 3, 2)))
DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "int32", "int8", "uint8", "bool")


# Drawing arguments.


def drawn(dtype: Any, numbers: Any, shape: Any) -> Strategy:
    return hnp.arrays(dtype, shape, elements=st.sampled_from(numbers), fill=st.nothing())


def floats(numbers: Any = PLAIN, shape: Any = SHAPES) -> Strategy:
    return drawn(np.float64, numbers, shape)


def ints(low: int = -7, high: int = 7, shape: Any = SHAPES, dtype: Any = np.int32) -> Strategy:
    return hnp.arrays(dtype, shape, elements=st.integers(low, high), fill=st.nothing())


def wide_ints(shape: Any = SHAPES) -> Strategy:
    return drawn(np.int32, (-(2**31), -7, -1, 0, 1, 2, 3, 2**16 + 1, 2**31 - 1), shape)


def bools(shape: Any = SHAPES) -> Strategy:
    return hnp.arrays(np.bool_, shape, fill=st.nothing())


def complexes(shape: Any = SHAPES) -> Strategy:
    return drawn(np.complex128, (1 + 2j, -0.5j, 0.25, -1.5 + 0.125j, 0.0), shape)


def exact(shape: Any = SHAPES) -> Strategy:
    return st.one_of(wide_ints(shape), ints(0, 200, shape, np.uint8), bools(shape))


def numbers(shape: Any = SHAPES, edge: Any = EDGE) -> Strategy:
    return st.one_of(floats(edge, shape), wide_ints(shape), ints(-128, 127, shape, np.int8), bools(shape))


def signed(shape: Any = SHAPES, edge: Any = EDGE) -> Strategy:
    return st.one_of(floats(edge, shape), wide_ints(shape), ints(-128, 127, shape, np.int8))


def small(shape: Any = SHAPES) -> Strategy:
    """Draw numbers whose products and sums are exact enough to compare."""
    return st.one_of(floats(PLAIN, shape), ints(shape=shape), bools(shape))


def call(*arguments, **options):
    """Draw a call: every argument, and any of the options. A value that is not a strategy is used as it is."""
    positional = st.tuples(*(a if isinstance(a, st.SearchStrategy) else st.just(a) for a in arguments))
    optional = {n: o if isinstance(o, st.SearchStrategy) else st.just(o) for n, o in options.items()}
    return st.tuples(positional, st.fixed_dictionaries({}, optional=optional))


def pick(*choices):
    return st.sampled_from(choices)


def some(strategy, low=1, high=3):
    return st.lists(strategy, min_size=low, max_size=high)


@st.composite
def elementwise(draw, *domains):
    """Draw operands that broadcast against each other; one of them may be a Python scalar."""
    shapes = ((2, 3), (2, 1), (3,))
    operands = [draw(domain(shape)) for domain, shape in zip(domains, shapes, strict=False)]
    if len(operands) == 2 and draw(pick(False, False, True)):
        operands[1] = draw(pick(2, 3, 1) if operands[1].dtype.kind in "iub" else pick(0.5, 2, 1.5))
    return tuple(operands), {}


def axes_of(array):
    return st.integers(-array.ndim, array.ndim - 1)


@st.composite
def reducing(draw, domain, *options, tuples=True, always=False, negative=True):
    """Draw an array and an axis, several or none; `options` are names of the other arguments."""
    a = draw(domain)
    named = {}
    choices: list[Strategy] = [axes_of(a) if negative else st.integers(0, a.ndim - 1)]
    if tuples and a.ndim > 1:
        choices.append(pick((0, 1), (-1, 0)))
    if not always:
        choices.append(st.none())
    named["axis"] = draw(st.one_of(choices))
    every = {
        "keepdims": st.booleans(),
        "where": bools(a.shape),
        "initial": pick(1, 2),
        "dtype": pick("float32", "int32", "bfloat16") if a.dtype.kind != "b" else pick("float32", "int32"),
        "ddof": pick(0, 1),
        "correction": pick(0, 1),
        "reverse": st.booleans(),
        "b": floats(POSITIVE, a.shape),
        "descending": st.booleans(),
    }
    named |= draw(st.fixed_dictionaries({}, optional={name: every[name] for name in options}))
    return (a,), named


@st.composite
def extremum(draw, domain):
    (a,), named = draw(reducing(domain, "keepdims"))
    if draw(st.booleans()):
        named |= {"where": draw(bools(a.shape)), "initial": draw(pick(0, 1))}
    return (a,), named


@st.composite
def contraction(draw, first, second):
    """Draw two operands of one kind with shapes that `jnp.matmul` and similar functions accept."""
    domain = draw(pick(floats, ints, bools, complexes))
    options = {}
    if domain is ints and draw(st.booleans()):
        options = {"preferred_element_type": draw(pick("int32", "float32"))}
    return (draw(domain(shape=first)), draw(domain(shape=second))), options


def contractions(*shapes):
    return st.one_of([contraction(first, second) for first, second in shapes])


@st.composite
def einsums(draw):
    subscripts, *shapes = draw(
        pick(
            ("ij,jk->ik", (2, 3), (3, 2)),
            ("ij,jk", (2, 3), (3, 2)),
            ("bij,bjk->bik", (2, 2, 3), (2, 3, 2)),
            ("...ij, ...jk -> ...ik", (2, 2, 3), (3, 2)),
            ("i,j,k->ijk", (2,), (3,), (2,)),
            ("ij,jk,kl->il", (2, 3), (3, 2), (2, 3)),
            ("ii->", (3, 3)),
            ("ij->j", (2, 3)),
        )
    )
    domain = draw(pick(floats, ints, complexes))
    return (subscripts, *(draw(domain(shape=shape)) for shape in shapes)), {}


@st.composite
def invertible(draw, *more, **options):
    """Draw a batch of matrices far from singular, and arguments from `more`, given their order."""
    shape = draw(pick((3, 3), (2, 2, 2)))
    matrix = draw(floats(UNIT, shape)) + 3 * np.eye(shape[-1])
    (extra, named) = draw(call(**options))
    return (matrix, *(draw(each(shape)) for each in more), *extra), named


@st.composite
def segments(draw, domain):
    count = draw(pick(3, 5))
    data = draw(domain(shape=draw(pick((count,), (count, 2)))))
    return (data, draw(ints(-2, 4, (count,)))), {"num_segments": draw(pick(2, 4))}


@st.composite
def sliced(draw, *, update=False, static=False):
    """Draw an operand, starts, also out of range, and a window (or an update) that fits."""
    operand = draw(numbers(pick((3,), (2, 3))))
    sizes = tuple(draw(st.integers(1, length)) for length in operand.shape)
    if static:
        starts = tuple(draw(st.integers(0, length - 1)) for length in operand.shape)
        limits = tuple(draw(st.integers(s, n)) for s, n in zip(starts, operand.shape, strict=True))
        return (operand, starts, limits, *draw(pick((), ((2,) * operand.ndim,)))), {}
    starts = draw(some(ints(-5, 5, ()), operand.ndim, operand.ndim))
    starts = starts if draw(st.booleans()) else np.array(starts, np.int32)
    if update:
        return (operand, np.ones(sizes, operand.dtype), starts), {}
    return (operand, starts, sizes), {}


@st.composite
def sliced_in_dim(draw, kind):
    operand = draw(numbers(pick((3,), (2, 3))))
    axis = draw(axes_of(operand))
    length = operand.shape[axis]
    start = draw(st.one_of(ints(-5, 5, ()), st.integers(-5, 5)))
    size = draw(st.integers(1, length))
    shape = list(operand.shape)
    shape[axis] = size
    without_axis = [n for i, n in enumerate(operand.shape) if i != axis % operand.ndim]
    match kind:
        case "slice":
            return (operand, start, size, axis), {}
        case "update":
            return (operand, np.ones(shape, operand.dtype), start, axis), {}
        case "index":
            return (operand, start, axis), draw(call(keepdims=st.booleans()))[1]
        case "update_index":
            return (operand, np.ones(without_axis, operand.dtype), start, axis), {}
        case "static_index":
            return (operand, draw(st.integers(-length, length - 1)), axis), draw(call(keepdims=st.booleans()))[1]
        case "static":
            bounds = draw(pick((0, length), (None, -1), (1, None), (-2, length)))
            return (operand, *bounds), {"axis": axis, **draw(call(stride=pick(1, 2)))[1]}


@st.composite
def taken(draw):
    a = draw(numbers())
    indices = draw(ints(-5, 5, draw(pick((), (2,), (2, 2)))))
    named = {"axis": draw(st.one_of(st.none(), axes_of(a)))}
    named |= draw(call(mode=pick("clip", "wrap", "fill"), fill_value=1))[1]
    return (a, indices), named


@st.composite
def taken_along(draw):
    a = draw(numbers(pick((3,), (2, 3))))
    axis = draw(st.one_of(st.none(), axes_of(a)))
    indices = draw(ints(-5, 5, (4,) if axis is None else a.shape))
    return (a, indices, axis), draw(call(mode=pick("clip", "fill"), fill_value=1))[1]


@st.composite
def selected(draw):
    count = draw(pick(1, 2))
    return (
        draw(some(bools((2, 3)), count, count)),
        draw(some(small((2, 3)), count, count)),
        *draw(pick((), (1,), (0.5,))),
    ), {}


def recurrence(left, right):
    """Combine two steps of `h = a * h + b` into one."""
    return left[0] * right[0], right[0] * left[1] + right[1]


def last(left, right):
    return right + 0 * left


@st.composite
def associative(draw):
    shape = draw(pick((5,), (4, 3), (1, 2)))
    x = draw(floats(UNIT, shape))
    named = draw(call(reverse=st.booleans(), axis=pick(0, -1)))[1]
    kind = draw(pick("name", "name", "array", "pair"))
    if kind == "pair":
        return (recurrence, draw(pick((x, x + 1), [x, x + 1]))), named
    return (last if kind == "array" else draw(pick(*COMPUTATIONS)), x), named


@st.composite
def reshaped(draw):
    a = draw(numbers(st.just((2, 3, 2))))
    shape = draw(pick((6, 2), (-1,), [3, 4], 12, (2, -1, 2)))
    return (a, shape), draw(call(order=pick("C", "F")))[1]


@st.composite
def like(draw, *arguments):
    a = draw(numbers())
    return (a, *arguments), draw(call(dtype=pick(*DTYPES), shape=pick((2,), 3)))[1]


@st.composite
def attention(draw):
    batch, length, keys, heads, key_heads, width = 2, 3, draw(pick(3, 4)), 2, draw(pick(1, 2)), 2
    first = draw(pick(0, 0, 1))
    rows = [
        draw(floats(UNIT, shape[first:]))
        for shape in (
            (1 if first else batch, length, heads, width),
            (1 if first else batch, keys, key_heads, width),
            (1 if first else batch, keys, key_heads, width),
        )
    ]
    mask = np.tril(np.ones((length, keys), bool))[None, None]
    options = call(bias=floats(UNIT, (1, 1, length, keys)), mask=mask, scale=0.5, is_causal=st.booleans())
    return tuple(rows), draw(options)[1]


CONVOLVED = (
    # Operands; strides and padding; the rest.
    ((2, 3, 5), (4, 3, 2), (2,), "SAME", {}),
    ((2, 4), (3, 4), (), "VALID", {}),
    ((2, 4, 5, 2), (3, 2, 2, 4), (1, 2), "SAME_LOWER", {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}),
    ((2, 4, 5, 2), (3, 2, 4, 2), (2, 1), [(1, -1), (0, 2)], {"dimension_numbers": ("NHWC", "WHOI", "CWHN")}),
    ((1, 2, 4, 3), (2, 2, 2, 2), (1, 1), ((1, 1), (2, 0)), {"lhs_dilation": (2, 1), "rhs_dilation": [1, 2]}),
    ((2, 4, 5), (4, 2, 3), (1,), "VALID", {"feature_group_count": 2}),
    ((2, 4, 5), (8, 1, 3), (2,), "SAME", {"feature_group_count": 4, "rhs_dilation": (2,)}),
    ((4, 2, 5), (4, 2, 3), (1,), "SAME", {"batch_group_count": 2}),
    ((1, 2, 3, 2, 3), (2, 2, 2, 1, 2), (1, 2, 1), "SAME", {}),
    ((1, 2, 3), (2, 2, 5), (1,), "VALID", {}),
)
TRANSPOSED = (
    ((2, 3, 2), (3, 2, 4), (2,), "SAME", {}),
    ((1, 3, 2, 2), (2, 3, 2, 3), (3, 1), "VALID", {"rhs_dilation": (1, 2)}),
    ((1, 3, 2), (3, 4, 2), (2,), "SAME", {"transpose_kernel": True}),
    ((1, 2, 3), (2, 4, 3), (2,), [(1, 2)], {"dimension_numbers": ("NCH", "IOH", "NCH")}),
    ((1, 3, 2), (3, 2, 2), (2,), ((1, 0),), {"use_consistent_padding": True}),
)


@st.composite
def convolved(draw, choices):
    lhs, rhs, strides, padding, keywords = draw(pick(*choices))
    domain = draw(pick(floats, floats, ints))
    wide = {"preferred_element_type": "float32"} if domain is ints and draw(st.booleans()) else {}
    return (draw(domain(shape=lhs)), draw(domain(shape=rhs)), strides, padding), {**keywords, **wide}


@st.composite
def windowed(draw):
    computation = draw(pick(*COMPUTATIONS))
    domain = draw(pick(floats, ints))
    lowest, highest = (float("-inf"), float("inf")) if domain is floats else (-(2**31), 2**31 - 1)
    identity = {"add": 0, "mul": 1, "max": lowest, "min": highest}[computation]
    shape, window, keywords = draw(
        pick(
            ((5,), (3,), {"window_strides": (1,), "padding": "SAME"}),
            ((5,), (2,), {"window_strides": [2], "padding": "SAME_LOWER"}),
            ((2, 5), (1, 3), {}),
            ((3, 4), (2, 2), {"window_strides": (2, 1), "padding": ((0, 1), (2, -1))}),
            ((3, 4), (2, 3), {"padding": [(1, 1), (1, 1)], "base_dilation": (2, 1), "window_dilation": (1, 2)}),
        )
    )
    first = draw(pick(identity, identity, 2))
    return (draw(domain(shape=shape)), float(first) if domain is floats else first, computation, window), keywords


@st.composite
def subscripts(draw):
    """Draw an index of an array of shape (3, 4, 2), in or out of range; arrays in it are dynamic."""
    places = ints(-9, 9, ())
    rows = draw(pick((), (3,), (2, 1)))
    part = st.one_of(
        st.integers(-9, 9),
        places,
        ints(-9, 9, rows),
        pick(slice(None), slice(1, None), slice(None, -1), slice(-9, 9, 2), slice(None, None, -1)),
        st.none(),
    )
    index = draw(st.lists(part, min_size=1, max_size=4).filter(lambda p: sum(i is not None for i in p) <= 3))
    if draw(st.booleans()):
        index.insert(draw(st.integers(0, len(index))), Ellipsis)
    return index[0] if len(index) == 1 else tuple(index)


@st.composite
def indexed(draw, *, values: bool):
    """Draw an array of shape (3, 4, 2), an index of it in or out of range, and values that fit."""
    index = draw(subscripts())
    x = draw(st.one_of(floats(shape=(3, 4, 2)), ints(shape=(3, 4, 2))))
    places = np.arange(24).reshape(3, 4, 2)
    shape = getitem(places, index).shape
    options = {"mode": pick("drop", "fill", "clip"), "unique_indices": False, "indices_are_sorted": False}
    if not values:
        return (x, index), draw(call(**options, fill_value=pick(0, 1)))[1]
    given = draw(floats(shape=shape) if x.dtype.kind == "f" else ints(shape=shape))
    return (x, index, draw(pick(given, 2))), draw(call(**options))[1]


@st.composite
def updating(draw, method):
    (x, index, given), options = draw(indexed(values=True))
    if method == "divide":
        given = abs(given) + 1
    if method == "power":
        given = abs(given) if isinstance(given, int) else np.abs(given.round()).astype(given.dtype)
    # `set` leaves open which of several values for one element it takes, so all are equal.
    return (x, index, 2 if method == "set" and draw(st.booleans()) else given), options


def joining(*shapes, **options):
    same = [some(small(shape), 1, 3) for shape in shapes]
    return call(st.one_of(same), **options)


def ascending(shape):
    return floats(PLAIN, shape).map(np.sort)


def unique(shape):
    return floats(POSITIVE, shape).map(np.cumsum)


# fmt: off
UNARY_FLOAT = [
    "sqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "arcsin", "arccos",
    "arctan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "deg2rad",
    "rad2deg", "radians", "degrees", "fabs",
]
ACTIVATIONS = [
    "relu6", "sigmoid", "silu", "swish", "softplus", "log_sigmoid", "selu", "hard_sigmoid", "hard_silu", "hard_swish",
    "soft_sign", "sparse_plus", "sparse_sigmoid", "mish",
]
COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]
# fmt: on

CASES = {
    # Arithmetic.
    "add": elementwise(numbers, numbers),
    "subtract": elementwise(signed, signed),
    # XLA takes `inf * False` and `False / 0` for 0.
    "multiply": st.one_of(elementwise(small, small), elementwise(signed, signed)),
    **dict.fromkeys(
        ("divide", "true_divide"),
        st.one_of(elementwise(signed, signed), elementwise(bools, lambda s: floats(POSITIVE, s))),
    ),
    "floor_divide": st.one_of(
        elementwise(wide_ints, wide_ints),
        elementwise(lambda s: floats(PLAIN, s), lambda s: floats(POSITIVE, s)),
        elementwise(lambda s: ints(0, 9, s, np.uint8), lambda s: ints(0, 9, s, np.uint8)),
    ),
    **dict.fromkeys(
        ("mod", "remainder", "fmod", "divmod"),
        st.one_of(
            elementwise(lambda s: ints(shape=s), lambda s: ints(shape=s)),
            elementwise(wide_ints, wide_ints),
            elementwise(lambda s: floats(PLAIN, s), lambda s: floats(POSITIVE, s)),
        ),
    ),
    **dict.fromkeys(
        ("power", "pow"),
        st.one_of(
            elementwise(lambda s: floats(EDGE, s), lambda s: floats(PLAIN, s)),
            elementwise(lambda s: floats(PLAIN, s), lambda s: ints(shape=s)),
            elementwise(lambda s: ints(shape=s), lambda s: ints(0, 80, s)),
            elementwise(lambda s: ints(shape=s, dtype=np.int8), lambda s: ints(0, 80, s, np.int8)),
            call(wide_ints(), pick(0, 1, 2, 3, 70)),
        ),
    ),
    "float_power": elementwise(lambda s: floats(POSITIVE, s), small),
    "square": call(numbers()),
    "reciprocal": call(numbers()),
    "negative": call(signed()),
    "positive": call(numbers()),
    **dict.fromkeys(("abs", "absolute"), call(st.one_of(numbers(), complexes()))),
    "sign": call(signed()),
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin"), elementwise(numbers, numbers)),
    "clip": call(signed(), min=pick(-1, 0, 0.5), max=pick(-1, 2, 1.5)),
    "clamp": call(0.25, floats(), pick(1.0, 2.0)),
    "copysign": elementwise(small, lambda s: floats((-0.0, 0.0, -2.0, 3.0), s)),
    "nan_to_num": st.one_of(
        call(floats((*PLAIN, float("nan"))), nan=1.0),
        floats(EDGE).map(lambda x: ((x,), {"posinf": 5.0, "neginf": -5.0})),
    ),
    **dict.fromkeys(("stop_gradient", "optimization_barrier"), call(numbers())),
    "checkpoint_name": call(numbers(), pick("kept")),
    **dict.fromkeys(("floor", "ceil", "trunc", "rint"), call(numbers())),
    "around": call(signed()),
    "round": st.one_of(call(signed()), call(floats(), decimals=pick(0, 1, -1))),
    # Elementary functions.
    **{name: call(st.one_of(floats(EDGE), ints(), bools())) for name in UNARY_FLOAT},
    "sinc": call(st.one_of(floats(), ints())),  # of infinity, JAX 0.10 gives NaN and JAX 0.12 gives 0
    **dict.fromkeys(
        ("arctan2", "atan2", "hypot", "logaddexp", "logaddexp2"), elementwise(lambda s: floats(EDGE, s), small)
    ),
    **dict.fromkeys(("rsqrt", "erf", "erfc", "logistic"), call(floats(EDGE))),
    "erf_inv": call(floats((*UNIT, 1.0, -1.0, 2.0))),
    "lgamma": call(floats((*PLAIN, float("inf")))),
    "digamma": call(floats((*POSITIVE, -0.5, -1.5, -1.0))),
    **dict.fromkeys(
        ("gammainc", "gammaincc"), elementwise(lambda s: floats(POSITIVE, s), lambda s: floats((*POSITIVE, 0.0), s))
    ),
    **dict.fromkeys(("random_gamma_grad", "igamma_grad_a"), call(floats(POSITIVE, (3,)), floats(POSITIVE, (3,)))),
    "zeta": elementwise(lambda s: floats((1.5, 2.0, 5.0), s), lambda s: floats(POSITIVE, s)),
    "polygamma": call(floats((0.0, 1.0, 2.0), (3,)), floats(POSITIVE, (3,))),
    "clz": call(st.one_of(wide_ints(), ints(0, 255, dtype=np.uint8))),
    "bitcast_convert_type": st.one_of(
        call(floats((*PLAIN, float("inf"), -0.0)), pick("int32", "uint32")), call(ints(-5, 2**30), "float32")
    ),
    "nextafter": elementwise(lambda s: floats((*PLAIN, 0.0), s), lambda s: floats((*PLAIN, float("inf")), s)),
    **dict.fromkeys(("gammaln", "entr", "log_ndtr", "i0", "i0e", "i1", "i1e"), call(floats(POSITIVE))),
    **dict.fromkeys(("expit", "ndtr"), call(floats())),
    **dict.fromkeys(("logit", "ndtri"), call(floats((0.125, 0.25, 0.5, 0.75, 0.875)))),
    **dict.fromkeys(
        ("betaln", "rel_entr", "kl_div"), elementwise(lambda s: floats(POSITIVE, s), lambda s: floats(POSITIVE, s))
    ),
    "xlog1py": elementwise(lambda s: floats(PLAIN, s), lambda s: floats((*POSITIVE, 0.0), s)),
    "xlogy": elementwise(lambda s: floats(PLAIN, s), lambda s: floats((*POSITIVE, 0.0), s)),
    **dict.fromkeys(("real", "imag", "conj", "conjugate"), call(st.one_of(numbers(), complexes()))),
    "angle": call(st.one_of(floats((*PLAIN, float("nan"))), ints(), complexes()), deg=st.booleans()),
    # Comparison, logic and bits.
    **{name: elementwise(numbers, numbers) for name in COMPARISONS},
    "isclose": st.one_of(
        elementwise(numbers, numbers),
        call(floats((1.0, 1.5)), 1.25, rtol=pick(0.1, 0.25), atol=0.25),
        call(floats(EDGE, (3,)), floats(EDGE, (3,)), equal_nan=st.booleans()),
    ),
    "allclose": call(floats((1.0, 1.5)), 1.25, rtol=pick(0.1, 0.25), atol=0.25),
    "array_equal": call(floats((1.0, float("nan")), (2,)), floats((1.0, float("nan")), (2,)), equal_nan=st.booleans()),
    **dict.fromkeys(
        ("isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit"), call(st.one_of(floats(EDGE), wide_ints()))
    ),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), elementwise(numbers, numbers)),
    "logical_not": call(numbers()),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), elementwise(exact, exact)),
    **dict.fromkeys(("bitwise_not", "invert"), call(exact())),
    "bitwise_count": call(st.one_of(wide_ints(), ints(0, 255, dtype=np.uint8))),
    **dict.fromkeys(
        ("left_shift", "right_shift", "bitwise_left_shift", "bitwise_right_shift"),
        elementwise(wide_ints, lambda s: ints(-1, 40, s)),
    ),
    # Reductions.
    "sum": reducing(numbers(RANKS, PLAIN), "keepdims", "where", "initial", "dtype"),
    "prod": reducing(numbers(edge=PLAIN), "keepdims", "where", "initial"),
    "mean": reducing(small(RANKS), "keepdims", "where"),
    **dict.fromkeys(
        ("var", "std"),
        st.one_of(reducing(small(), "keepdims", "ddof"), reducing(complexes(), "keepdims", "correction")),
    ),
    "average": st.one_of(reducing(small(), "keepdims"), call(floats(shape=(2, 3)), 0, floats(POSITIVE, (2, 3)))),
    **dict.fromkeys(("nansum", "nanprod"), reducing(numbers(edge=(*PLAIN, float("nan"))), "keepdims")),
    "nanmean": reducing(floats((1.0, 2.5, float("nan"))), "keepdims"),
    **dict.fromkeys(("nanmax", "nanmin"), reducing(st.one_of(floats((1.0, 2.5, float("nan"))), ints()), "keepdims")),
    **dict.fromkeys(("max", "min", "amax", "amin"), extremum(signed())),
    "ptp": reducing(signed(edge=PLAIN), "keepdims"),
    **dict.fromkeys(("any", "all"), reducing(numbers(RANKS), "keepdims", "where")),
    **dict.fromkeys(("argmax", "argmin"), reducing(numbers(), "keepdims", tuples=False)),
    "count_nonzero": reducing(numbers(), "keepdims"),
    "median": reducing(st.one_of(floats(), ints()), "keepdims"),
    "quantile": call(st.one_of(floats(), ints()), pick(0.25, 0.5, 1.0), pick(0, -1, None), keepdims=st.booleans()),
    "percentile": call(floats(), pick(25.0, 50.0), pick(0, -1, None), method=pick("linear", "lower")),
    "logsumexp": reducing(floats(), "keepdims", "b", "where"),
    "logmeanexp": reducing(floats(), "keepdims", "where"),
    **dict.fromkeys(
        ("segment_sum", "segment_prod"), segments(lambda shape: st.one_of(floats(shape=shape), ints(shape=shape)))
    ),
    **dict.fromkeys(
        ("segment_max", "segment_min"), segments(lambda shape: st.one_of(floats(shape=shape), ints(shape=shape)))
    ),
    # Scans.
    **dict.fromkeys(("cumsum", "cumprod"), reducing(numbers(RANKS, PLAIN), "dtype", tuples=False)),
    **dict.fromkeys(("cummax", "cummin"), reducing(signed(), "reverse", tuples=False, always=True, negative=False)),
    "cumulative_sum": call(numbers(RANKS, PLAIN), axis=0, include_initial=st.booleans(), dtype="float32").filter(
        lambda c: "axis" in c[1] or c[0][0].ndim == 1
    ),
    "cumlogsumexp": reducing(floats(), "reverse", tuples=False, always=True, negative=False),
    "associative_scan": associative(),
    "diff": call(numbers(edge=PLAIN), n=pick(1, 2), axis=pick(0, -1), prepend=pick(0, 1), append=1),
    "trapezoid": call(small((2, 3)), dx=0.5, axis=pick(0, -1)),
    # Linear algebra.
    "matmul": contractions(((2, 3), (3, 2)), ((3,), (3, 2)), ((2, 3), (3,)), ((3,), (3,)), ((2, 2, 3), (3, 2))),
    "dot": contractions(((2, 3), (3, 2)), ((3,), (3,)), ((2, 3), (2, 3, 2)), ((), (3,))),
    "vdot": contractions(((2, 3), (2, 3)), ((3,), (3,))),
    "inner": contractions(((2, 3), (4, 3)), ((3,), (3,))),
    "dot_general": st.one_of(
        contractions(((2, 3), (3, 2))).map(lambda c: ((*c[0], (((1,), (0,)), ((), ()))), c[1])),
        contractions(((2, 4, 3), (4, 2, 3))).flatmap(
            lambda c: pick(
                (((2,), (2,)), ((0,), (1,))), (([2, 1], [2, 0]), ([], [])), (((), ()), ((1, 0), (0, 1)))
            ).map(lambda numbers: ((*c[0], numbers), c[1]))
        ),
    ),
    "ragged_dot": call(floats(shape=(5, 3)), floats(shape=(2, 3, 4)), ints(0, 3, (2,))),
    "tensordot": call(floats(shape=(2, 3)), floats(shape=(3, 2)), pick(1, 0, ((1,), (0,)), [[0, 1], [1, 0]])),
    "einsum": einsums(),
    "vecdot": st.one_of(
        call(complexes((2, 3)), complexes((2, 3)), axis=pick(0, -1)), call(ints(shape=(2, 3)), ints(shape=(3,)))
    ),
    "matvec": call(st.one_of(floats(shape=(2, 3)), complexes((2, 2, 3))), floats(shape=(3,))),
    "vecmat": call(st.one_of(floats(shape=(3,)), complexes((2, 3))), floats(shape=(3, 2))),
    "outer": contractions(((2,), (3,)), ((2, 2), (3,))).map(lambda call: (call[0], {})),
    "kron": call(floats(shape=(2, 3)), st.one_of(ints(shape=(2, 2)), floats(shape=(2, 2)))),
    "cross": call(st.one_of(floats(shape=(2, 3)), ints(shape=(2, 3))), floats(shape=(2, 3))),
    "trace": call(st.one_of(numbers((2, 3), PLAIN), small((2, 2, 3))), offset=pick(0, 1, -1)),
    "convolve": call(small((4,)), small((3,)), mode=pick("full", "same", "valid")),
    "correlate": call(small((4,)), small((3,)), mode=pick("full", "same", "valid")),
    "polyval": call(st.one_of(floats(shape=(3,)), ints(shape=(3,))), st.one_of(floats(), ints())),
    "vander": call(st.one_of(floats(shape=(3,)), ints(shape=(3,))), N=pick(2, 4), increasing=st.booleans()),
    **dict.fromkeys(("inv", "det", "slogdet", "svdvals", "eigvalsh", "eigh", "lu"), invertible()),
    "lu_pivots_to_permutation": call(np.array([[2, 1, 3], [0, 3, 2]], np.int32), 4),
    "qr": st.one_of(
        invertible(mode=pick("reduced", "r", "complete", "raw")),
        call(unique((4, 2)).map(lambda a: a.reshape(4, 2) + np.eye(4, 2)), mode=pick("r", "complete")),
    ),
    "householder_product": call(floats(shape=(4, 2)), floats(shape=(2,))),
    "ormqr": st.one_of(
        call(floats(shape=(4, 2)), floats(shape=(2,)), floats(shape=(4, 3)), transpose=st.booleans()),
        call(floats(shape=(4, 2)), floats(shape=(2,)), floats(shape=(3, 4)), transpose=st.booleans()).map(
            lambda call: (call[0], {**call[1], "left": False})
        ),
    ),
    "svd": st.one_of(
        invertible(full_matrices=st.booleans()),
        call(unique((4, 2)).map(lambda a: a.reshape(4, 2) + np.eye(4, 2)), full_matrices=False),
    ),
    "block_diag": st.one_of(call(small((2, 3)), small((3,)), small((1, 1))), call(floats(shape=(2, 2)))),
    "solve": invertible(lambda shape: floats(shape=pick(shape[-1:], (*shape[:-1], 2)))),
    "cholesky": st.one_of(
        invertible(upper=st.booleans(), symmetrize_input=True),
        call(np.array([[1.0, 2.0], [2.0, 1.0]]), upper=st.booleans()),
        call(np.stack([np.eye(2), -np.eye(2)])),
    ),
    "solve_triangular": invertible(
        lambda shape: floats(shape=(*shape[:-1], 2)),
        trans=pick(0, 1, "C"),
        lower=st.booleans(),
        unit_diagonal=st.booleans(),
    ),
    "matrix_power": st.one_of(
        call(st.one_of(floats(shape=(2, 2)), ints(shape=(2, 2))), pick(0, 1, 3)),
        invertible().map(lambda call: ((*call[0], -2), {})),
    ),
    "norm": st.one_of(
        reducing(small(st.just((2, 3))), "keepdims"),
        call(floats(shape=(2, 3)), pick(1, "fro", float("inf"), 2), keepdims=st.booleans()),
        call(complexes((3,)), pick(None, 1, 2, 3, float("-inf"))),
    ),
    "vector_norm": st.one_of(reducing(small(), "keepdims"), call(floats(), ord=pick(1, 3, float("inf")))),
    **dict.fromkeys(
        ("fft", "ifft"),
        call(st.one_of(small(), complexes()), n=pick(2, 4), axis=pick(0, -1), norm=pick("ortho", "forward")),
    ),
    "rfft": call(small(), n=pick(2, 4), axis=pick(0, -1), norm=pick("ortho", "forward")),
    "irfft": call(complexes((3,)), n=pick(3, 4), norm="ortho"),
    **dict.fromkeys(
        ("fft2", "ifft2", "fftn", "ifftn"),
        call(st.one_of(small(), complexes((2, 3, 2))), s=pick((2, 2)), norm=pick("ortho", "forward")),
    ),
    **dict.fromkeys(("rfft2", "rfftn"), call(small((2, 3, 2)), axes=pick((0, 1), (-2, -1)), norm="ortho")),
    **dict.fromkeys(("irfft2", "irfftn"), call(complexes((2, 3)), s=pick((2, 4)), norm="ortho")),
    **dict.fromkeys(("fftfreq", "rfftfreq"), call(pick(4, 5), d=pick(0.5, 2))),
    **dict.fromkeys(("fftshift", "ifftshift"), call(small(), axes=pick(0, -1))),
    # Windows.
    "conv_general_dilated": convolved(CONVOLVED),
    "conv": convolved([(*case[:4], {}) for case in CONVOLVED if not case[4]]),
    "conv_transpose": convolved(TRANSPOSED),
    "reduce_window": windowed(),
    # Creation.
    **dict.fromkeys(("zeros", "ones", "empty"), call(pick((2, 3), [2], 3, ()), dtype=pick(*DTYPES))),
    "full": call(pick((2, 3), 3), pick(2, 1.5, True), dtype=pick(*DTYPES)),
    **dict.fromkeys(("zeros_like", "ones_like", "empty_like"), like()),
    "full_like": like(3),
    **dict.fromkeys(("eye", "tri"), call(3, M=pick(2, 4), k=pick(0, 1, -1), dtype=pick(*DTYPES))),
    "identity": call(3, dtype=pick(*DTYPES)),
    "arange": st.one_of(
        call(pick(0, 3, 2.5), dtype=pick("float32", "int32", "bfloat16")),
        call(pick(1, -2), pick(3, 4.5), step=pick(2, 0.5)),
    ),
    "linspace": call(
        pick(0, -1.5), pick(1, 5.0), num=pick(3, 5), endpoint=st.booleans(), dtype=pick("int32", "float32")
    ),
    "logspace": call(pick(0, -1.5), pick(1, 2.0), num=pick(3, 5), endpoint=st.booleans(), base=pick(2.0, 10.0)),
    **dict.fromkeys(("tril_indices", "triu_indices"), call(3, k=pick(0, 1, -1), m=pick(2, 4))),
    "diag_indices": call(3, ndim=pick(2, 3)),
    "iota": call(pick(*DTYPES[:-1]), 3),
    "broadcasted_iota": call(pick("int32", "float32"), (2, 3, 2), pick(0, 1, 2)),
    "array": call(
        pick([1, 2], [[1.5, 2], [3, 4]], [True, 2], 7, [np.float64(1.5), 2], [np.array([1.0, 2.0]), [3, 4]]),
        dtype=pick(*DTYPES),
        ndmin=2,
    ),
    "asarray": call(st.one_of(numbers(edge=PLAIN), pick([1, 2], 2.5)), dtype=pick("float32", "int32")),
    "copy": call(numbers()),
    "astype": call(
        st.one_of(floats((*EDGE, 300.5, -1.75e10)), wide_ints()), pick("float32", "int32", "int8", "uint8", "bool")
    ),
    "meshgrid": call(small((2,)), small((3,))).flatmap(
        lambda c: call(*c[0], sparse=st.booleans(), indexing=pick("xy", "ij"))
    ),
    # Shape.
    "reshape": reshaped(),
    "ravel": call(numbers(), order=pick("C", "F")),
    "transpose": st.one_of(call(numbers()), call(numbers((2, 3, 2)), axes=pick((2, 0, 1), [0, -1, 1]))),
    "permute_dims": call(numbers((2, 3, 2)), pick((2, 0, 1), [0, 2, 1])),
    "matrix_transpose": call(numbers(pick((2, 3), (2, 3, 2)))),
    "swapaxes": call(numbers((2, 3, 2)), pick(0, -1), pick(1, -2)),
    "moveaxis": call(numbers((2, 3, 2)), pick(0, (0, 1)), pick(-1, 2)).filter(lambda c: isinstance(c[0][1], int)),
    "expand_dims": call(numbers(), pick(0, -1, (0, 1), [0, -1])),
    "squeeze": call(numbers((1, 3, 1)), axis=pick(0, -1, (0, 2), [0])),
    "broadcast_to": call(numbers((2, 3)), pick((2, 3), (4, 2, 3), [1, 2, 3])),
    "broadcast_arrays": call(numbers((2, 3)), numbers((2, 1)), numbers((3,))),
    "broadcast_in_dim": st.one_of(
        call(numbers((2, 3)), (2, 4, 3), pick((0, 2), [0, 2])), call(numbers((1, 3)), (3, 2, 3), (1, 2))
    ),
    "concatenate": joining((2, 3), axis=pick(0, 1, -1), dtype=pick("float32", "int32")),
    "concat": joining((2, 3), axis=pick(0, 1, -1)),
    "stack": joining((2, 3), axis=pick(0, 1, -1), dtype=pick("float32", "int32")),
    "vstack": joining((3,), (2, 3), dtype="float32"),
    "hstack": joining((3,), (2, 3), dtype="float32"),
    "dstack": joining((3,), (2, 3), dtype="float32"),
    "column_stack": joining((3,), (2, 3)),
    "append": call(small((2, 3)), small((2, 3)), axis=pick(0, 1)),
    "split": call(numbers((4, 2)), pick(2, [1, 3], (1,)), axis=pick(0, -2)),
    "array_split": call(numbers((4, 5)), pick(2, 3), axis=pick(0, 1)),
    "hsplit": call(numbers((2, 4)), pick(2, [1])),
    "vsplit": call(numbers((4, 2)), pick(2, [1])),
    "unstack": call(numbers((2, 3)), axis=pick(0, 1, -1)),
    "tile": call(numbers(), pick(2, (2, 1), [1, 2, 1])),
    "repeat": st.one_of(
        call(numbers((2, 3)), 2, axis=pick(0, 1, None)),
        call(numbers((3,)), np.array([1, 0, 2], np.int32), 0).flatmap(
            lambda c: pick(2, 3, 5).map(lambda total: (c[0], {"total_repeat_length": total}))
        ),
    ),
    "flip": call(numbers((2, 3)), axis=pick(0, -1, (0, 1))),
    **dict.fromkeys(("fliplr", "flipud"), call(numbers((2, 3)))),
    "rot90": call(numbers((2, 3)), k=pick(1, 2, -1), axes=pick((0, 1), (1, 0))),
    "roll": st.one_of(
        call(numbers((2, 3)), pick(1, -2), axis=pick(0, 1, None)),
        call(numbers((2, 3)), (1, -1), (0, 1)),
        call(numbers((2, 3)), ints(-4, 4, ()), 1),
    ),
    "pad": st.one_of(
        call(numbers((2, 3)), pick(1, (1, 2), ((1, 0), (0, 2)), [[0, 1], [1, 0]]), constant_values=pick(0, 1)),
        call(numbers((2, 3)), 1, pick("edge", "reflect", "symmetric", "wrap")),
    ),
    **dict.fromkeys(("tril", "triu"), call(numbers((2, 3)), k=pick(0, 1, -1))),
    "diag": call(numbers(pick((3,), (2, 3))), k=pick(0, 1, -1)),
    "diagonal": call(numbers((2, 3, 2)), offset=pick(0, 1), axis1=0, axis2=pick(1, 2, -1)),
    **dict.fromkeys(
        ("atleast_1d", "atleast_2d", "atleast_3d"), st.one_of(call(numbers()), call(numbers(()), numbers((2,))))
    ),
    # Slicing and gathering.
    "slice": sliced(static=True),
    "slice_in_dim": sliced_in_dim("static"),
    "index_in_dim": sliced_in_dim("static_index"),
    "dynamic_slice": sliced(),
    "dynamic_update_slice": sliced(update=True),
    "dynamic_slice_in_dim": sliced_in_dim("slice"),
    "dynamic_update_slice_in_dim": sliced_in_dim("update"),
    "dynamic_index_in_dim": sliced_in_dim("index"),
    "dynamic_update_index_in_dim": sliced_in_dim("update_index"),
    "take": taken(),
    "take_along_axis": taken_along(),
    "where": elementwise(bools, small, small),
    "select": selected(),
    **{
        f"at[].{method}": updating(method)
        for method in ("set", "add", "subtract", "multiply", "mul", "divide", "power", "min", "max")
    },
    "at[].get": indexed(values=False),
    "one_hot": call(ints(-1, 4), 3, axis=pick(0, -1), dtype=pick(*DTYPES)),
    # Order and counting.
    **dict.fromkeys(("sort", "argsort"), reducing(numbers(), "descending", tuples=False)),
    "top_k": call(st.one_of(floats((*PLAIN, float("nan"))), wide_ints()), 2),
    "isin": call(st.one_of(floats(), ints()), small((2, 2)), invert=st.booleans()),
    "unravel_index": call(ints(-15, 15, (4,)), pick((3, 4), (2, 3, 2))),
    "searchsorted": call(
        st.one_of(ascending((4,)), ints(shape=(4,)).map(np.sort)), small(), side=pick("left", "right")
    ),
    "digitize": call(floats(), st.one_of(ascending((4,)), ascending((4,)).map(lambda a: a[::-1])), right=st.booleans()),
    "bincount": st.one_of(
        call(ints(-1, 5, (4,))), call(ints(0, 5, (4,)), st.one_of(floats(shape=(4,)), ints(shape=(4,))))
    ).flatmap(lambda c: pick(3, 6).map(lambda length: (c[0], {"length": length}))),
    "interp": st.one_of(
        call(floats(), unique((4,)), floats(shape=(4,)), left=0.5, right=-1.0),
        call(floats(), unique((4,)), floats(shape=(4,)), period=3.0),
        call(floats(), ascending((4,)), floats(shape=(4,)), left="extrapolate", right=pick(None, "extrapolate")),
    ),
    # Activations.
    **{name: call(floats()) for name in ACTIVATIONS},
    "relu": call(numbers()),
    "hard_tanh": call(st.one_of(floats(), ints())),
    "gelu": call(floats(), approximate=st.booleans()),
    "leaky_relu": call(st.one_of(floats(), ints()), negative_slope=0.25),
    **dict.fromkeys(("elu", "celu"), call(st.one_of(floats(), ints()), alpha=0.5)),
    "squareplus": call(floats(), b=2),
    "glu": call(floats(shape=(2, 4)), axis=pick(0, -1)),
    **dict.fromkeys(("softmax", "log_softmax"), reducing(floats(shape=RANKS), "where", always=True)),
    "standardize": st.one_of(
        reducing(st.one_of(floats(), ints()), tuples=False, always=True),
        call(floats(), mean=0.5, variance=2.0, epsilon=pick(0.25)),
    ),
    "dot_product_attention": attention(),
    # Static values.
    **dict.fromkeys(("shape", "ndim"), call(numbers())),
    "size": call(numbers(), axis=pick(0, -1)),
}


# Comparing.


def jax_function(name):
    if (method := ROWS[name].method) is not None:
        return lambda x, index, *values, **named: getattr(jnp.asarray(x).at[index], method)(*values, **named)
    function = eval(ROWS[name].jax, {"jax": jax, "jnp": jnp})
    return function if ROWS[name].function is None else with_functions(function, ROWS[name].function)


def with_functions(function, argument):
    """Return `function` with the language's strings in place of JAX functions."""

    @functools.wraps(function)
    def call(*arguments, **named):
        bound = inspect.signature(function).bind(*arguments, **named)
        if isinstance(named := bound.arguments[argument], str):
            bound.arguments[argument] = getattr(jax.lax, named)
        return function(*bound.args, **bound.kwargs)

    return call


class Placeholder(NamedTuple):
    """Marks an array among the arguments by what a compiled function depends on."""

    place: int
    shape: tuple[int, ...]
    dtype: str


def separated(value, arrays):
    """Return `value` with a placeholder for each array, which is appended to `arrays`."""
    if isinstance(value, dict):
        return {key: separated(item, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(separated(item, arrays) for item in value)
    if isinstance(value, np.ndarray | np.generic):
        arrays.append(value)
        return Placeholder(len(arrays) - 1, value.shape, value.dtype.name)
    return value


def filled(value, arrays):
    if isinstance(value, Placeholder):
        return arrays[value.place]
    if isinstance(value, dict):
        return {key: filled(item, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(filled(item, arrays) for item in value)
    return value


COMPILED = {}


def by_jax(name, function, arguments, named, wide):
    """Return JAX's result under `jit`, every array traced; compiled once for all calls that differ in numbers only."""
    arrays = []
    call = separated((arguments, named), arrays)
    with jax.enable_x64(wide):
        narrow = {"f": np.float32, "c": np.complex64}
        arrays = [jnp.asarray(a, a.dtype if wide else narrow.get(a.dtype.kind, a.dtype)) for a in arrays]
        key = (name, repr(call), wide)
        if key not in COMPILED:
            # Compilation takes nearly all of the time of these tests.
            COMPILED[key] = jax.jit(
                lambda arrays: function(*filled(call[0], arrays), **filled(call[1], arrays)),
                compiler_options={"xla_backend_optimization_level": "0"},
            )
        return COMPILED[key](arrays)


def all_floats(value):
    """Return whether float64 changes no integer: JAX's default integer becomes int64, the oracle's stays int32."""
    if isinstance(value, dict):
        return all_floats(tuple(value.values()))
    if isinstance(value, list | tuple):
        return all(map(all_floats, value))
    return not isinstance(value, np.ndarray | np.generic) or value.dtype.kind in "fc"


def assert_agrees(expected, actual, wide, coarsest=0.0):
    if isinstance(actual, list | tuple):
        assert len(expected) == len(actual)
        for expected_part, actual_part in zip(expected, actual, strict=True):
            assert_agrees(expected_part, actual_part, wide, coarsest)
        return
    result = np.asarray(actual)
    expected = np.asarray(expected)
    assert expected.shape == result.shape
    if result.dtype.kind in "biu":
        # With x64 JAX's default integer is int64; the oracle's stays int32.
        assert wide or expected.dtype == result.dtype
        np.testing.assert_array_equal(expected, result)
        return
    assert expected.dtype == (np.complex128 if result.dtype.kind == "c" else np.float64)
    eps = max(float(jnp.finfo(result.dtype).eps), coarsest)
    rtol = 1e-10 if wide and eps < 1e-10 else max(200 * eps if eps < 1e-6 else 0, 2 * eps)
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=1.0)
    result = result.astype(expected.dtype)
    np.testing.assert_allclose(result, expected, rtol=rtol, atol=rtol * largest)


@pytest.mark.sample(11)
@pytest.mark.parametrize("name", ROWS)
@settings(max_examples=8, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
@given(data=st.data())
def test_a_counterpart_agrees_with_its_jax_function(name, data):
    arguments, named = data.draw(CASES[name])
    row = ROWS[name]
    # Without a dtype of its own, such a counterpart takes its operand for float32.
    wide = not row.dtype_of and all_floats((arguments, named)) and data.draw(pick(True, True, True, False))
    row.signature.bind(*arguments, **named)
    expected = row.numpy(*arguments, **named)
    if row.kind == "static":
        actual = jax_function(name)(*arguments, **named)
        assert expected == actual
        assert type(expected) is type(actual)
        return
    actual = by_jax(name, jax_function(name), arguments, named, wide)
    if name == "eigh":
        # The sign of a vector is arbitrary; for equal values, so is the choice of the vectors.
        pairs = (map(np.asarray, each) for each in (expected, actual))
        expected, actual = ((w, v * w[..., None, :] @ np.swapaxes(v, -1, -2)) for w, v in pairs)
    if name == "svd":
        # So is the sign of a column and its row.
        parts = (map(np.asarray, each) for each in (expected, actual))
        expected, actual = (
            (d, u[..., : d.shape[-1]] * d[..., None, :] @ vh[..., : d.shape[-1], :]) for u, d, vh in parts
        )
    # JAX computes attention's softmax in float32, also of float64.
    assert_agrees(expected, actual, wide, 1e-7 if name == "dot_product_attention" else 0.0)


def test_every_row_has_a_strategy_and_every_strategy_a_row():
    assert sorted(CASES) == sorted(ROWS)


def i32(*values):
    return np.array(values, np.int32)


def u8(*values):
    return np.array(values, np.uint8)


@pytest.mark.parametrize(
    ("name", "arguments", "named"),
    [
        ("add", (i32(-1, 2), np.array([3, 4], np.uint32)), {}),
        ("add", (np.array([True, False]), 1), {}),
        ("add", (u8(3, 200), 300), {}),
        ("add", (u8(3, 200), -1), {}),
        ("less", (u8(3, 255), -1), {}),
        ("add", (i32(2**31 - 1), 1), {}),
        ("multiply", (i32(3), 0.5), {}),
        ("floor_divide", (i32(-3, 0, 5), 0), {}),
        ("floor_divide", (i32(-(2**31)), -1), {}),
        ("floor_divide", (u8(0, 5), 0), {}),
        ("floor_divide", (np.array([-1.5, 1.5, 0.0]), 0), {}),
        ("remainder", (i32(-3, 0, 5), 0), {}),
        ("fmod", (i32(-3, 0, 5), 0), {}),
        ("power", (i32(3, -1, 2), i32(70, 65, 33)), {}),
        ("power", (i32(3), 70), {}),
        ("power", (i32(0, 3, -1), i32(-1, -1, -3)), {}),
        ("astype", (np.array([3e9, -3e9, float("nan"), -1.7]), "int32"), {}),
        ("astype", (np.array([300.5, -300.5, -1.7]), "uint8"), {}),
        ("astype", (i32(300, -1), "uint8"), {}),
        ("sum", (np.array([100, 100], np.int8),), {}),
        ("cumsum", (np.array([100, 100], np.int8),), {}),
        ("argsort", (i32(1, 2, 1, 2),), {"descending": True}),
        ("argsort", (np.array([1.0, float("nan"), 1.0]),), {"descending": True}),
        ("top_k", (i32(1, 2, 1, 2), 3), {}),
        ("take", (i32(1, 2, 3), i32(5, -1, -4)), {}),
        ("take", (np.array([1.0, 2.0]), i32(2, -3)), {}),
        ("take", (u8(1, 2), i32(2, -3)), {}),
        ("take_along_axis", (np.array([True, False]), i32(2, 0)), {}),
        ("dynamic_slice", (i32(1, 2, 3), (-7,), (2,)), {}),
        ("clip", (i32(1, 2, 3),), {"min": 4, "max": 2}),
        ("one_hot", (i32(-1, 3, 1), 3), {}),
        ("linspace", (0, -5, 4), {"dtype": "int32"}),
        ("where", (np.array([True, False]), np.array([1, 2], np.int8), 1), {}),
        ("softmax", (np.array([1.0, 2.0]),), {"where": np.array([False, False])}),
        ("var", (np.array([1.0]),), {"ddof": 1}),
        ("interp", (np.array([0.0, 1.0, 1.5, 2.0, 3.0]), np.array([0.0, 1.0, 1.0, 2.0]), np.array([1.0, 2, 4, 8])), {}),
        ("norm", (np.array([[1.0, -2.0], [3.0, 4.0]]), 1), {}),
    ],
)
def test_a_counterpart_agrees_where_jax_differs_from_numpy(name, arguments, named):
    expected = OPERATIONS[name].numpy(*arguments, **named)
    assert_agrees(expected, by_jax(name, jax_function(name), arguments, named, False), False)


def signs(values):
    """Return each number with its sign, which -0.0 has too; NaN without, since its sign has no meaning."""
    numbers = np.asarray(values, np.float64).ravel()
    return [None if np.isnan(number) else (number, bool(np.signbit(number))) for number in numbers]


ZEROS = [
    *(np.array(zeros) for zeros in itertools.product((-0.0, 0.0, -1.0, 2.0), repeat=3)),
    *(np.random.default_rng(0).choice((-0.0, 0.0), length) for length in (7, 16, 33)),
]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *((name, ()) for name in ("sort", "argsort", "max", "min", "argmax", "argmin", "nanmax", "nanmin")),
        *((name, ()) for name in ("cummax", "cummin", "relu", "relu6", "elu", "sign")),
        ("top_k", (3,)),
        ("clip", (0.0, 1.0)),
        ("clip", (-1.0, 0.0)),
        ("reduce_window", (float("-inf"), "max", (2,))),
        ("reduce_window", (float("inf"), "min", (2,))),
    ],
)
def test_a_counterpart_distinguishes_signed_zeros_as_jax_does(name, arguments):
    for zeros in ZEROS:
        expected = OPERATIONS[name].numpy(zeros, *arguments)
        actual = by_jax(name, jax_function(name), (zeros, *arguments), {}, True)
        for expected_leaf, actual_leaf in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
            np.testing.assert_allclose(expected_leaf, actual_leaf)
            np.testing.assert_array_equal(np.signbit(expected_leaf), np.signbit(actual_leaf))


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_a_maximum_of_two_distinguishes_signed_zeros_as_jax_does(name):
    for zeros in ZEROS:
        operands = (zeros, zeros[::-1].copy())
        actual = by_jax(name, jax_function(name), operands, {}, True)
        assert signs(OPERATIONS[name].numpy(*operands)) == signs(actual), zeros


@pytest.mark.parametrize("name", ["segment_max", "segment_min"])
def test_a_maximum_by_segment_distinguishes_signed_zeros_as_jax_does(name):
    for zeros in ZEROS:
        operands = (zeros, np.arange(len(zeros), dtype=np.int32) % 2, 2)
        actual = by_jax(name, jax_function(name), operands, {}, True)
        assert signs(OPERATIONS[name].numpy(*operands)) == signs(actual), zeros


def test_top_k_orders_a_negative_nan_first():
    x = np.array([1.0, -np.nan, -np.inf, np.nan, np.inf])
    values, places = OPERATIONS["top_k"].numpy(x, 5)
    assert places.tolist() == by_jax("top_k", jax_function("top_k"), (x, 5), {}, False)[1].tolist() == [3, 4, 0, 2, 1]
    np.testing.assert_array_equal(values, x[places])


def kinds_of(signature):
    return {name: parameter.kind for name, parameter in signature.parameters.items()}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_names_its_arguments_as_jax_does(name):
    ours = ROWS[name].signature
    if (method := ROWS[name].method) is not None:
        # The array and the index precede the method's own arguments.
        theirs = inspect.signature(getattr(jnp.zeros(1).at[0], method)).parameters
        own = list(ours.parameters.values())[2:]
        assert {each.name: each.default for each in own} == {each.name: theirs[each.name].default for each in own}
        return
    theirs = inspect.signature(jax_function(name))
    if (
        next(iter(theirs.parameters.values())).kind is inspect.Parameter.VAR_POSITIONAL
        and "xi" not in theirs.parameters
    ):
        # For a `jnp.ufunc` and similar functions JAX only gives the number of operands.
        assert set(kinds_of(ours).values()) <= {
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.VAR_POSITIONAL,
        }
        return
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    positional = [name for name, kind in kinds_of(ours).items() if kind is not keyword_only]
    assert positional == [n for n, kind in kinds_of(theirs).items() if kind is not keyword_only][: len(positional)]
    for argument, kind in kinds_of(ours).items():
        if kind is keyword_only and name == "pad":
            continue  # JAX takes `constant_values` among `**kwargs`
        assert argument in theirs.parameters
        other = theirs.parameters[argument]
        if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            assert other.kind is kind
        default = ours.parameters[argument].default
        # The language may require arguments that JAX leaves optional, as `where` does for its choices.
        assert default in (inspect.Parameter.empty, other.default)


def test_a_counterpart_takes_arguments_by_jaxs_names():
    x = np.arange(6.0).reshape(2, 3)
    assert OPERATIONS["logmeanexp"].numpy(x=x, axis=1).shape == (2,)
    np.testing.assert_array_equal(OPERATIONS["relu6"].numpy(x=x), x)
    np.testing.assert_array_equal(OPERATIONS["clip"].numpy(x, max=2), np.minimum(x, 2))


# The dtypes of the oracle.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float64"])
def test_a_float_dtype_stays_float64_in_the_oracle(dtype):
    x = np.array([1 / 3, 1e10])
    np.testing.assert_array_equal(OPERATIONS["astype"].numpy(x, dtype), x)
    assert OPERATIONS["zeros"].numpy(3, dtype).dtype == np.float64
    assert OPERATIONS["astype"].numpy(np.arange(3), dtype).dtype == np.float64


def test_a_complex_dtype_stays_complex128_in_the_oracle():
    assert OPERATIONS["zeros"].numpy(3, "complex64").dtype == np.complex128
    assert OPERATIONS["exp"].numpy(np.array([1j])).dtype == np.complex128


def test_a_narrow_integer_of_ml_dtypes_keeps_its_dtype():
    made = OPERATIONS["ones"].numpy((2,), "int4")
    assert made.dtype.name == "int4"
    assert OPERATIONS["add"].numpy(made, made).dtype.name == "int4"
    assert OPERATIONS["astype"].numpy(made, "int32").dtype == np.int32
    assert OPERATIONS["sum"].numpy(made).dtype == np.int32


# Python's operators.

PYTHON = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "power": operator.pow, "matmul": operator.matmul,
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "left_shift": operator.lshift, "right_shift": operator.rshift,
    "negative": operator.neg, "positive": operator.pos, "invert": operator.invert,
    "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge,
}  # fmt: skip
OPERANDS = {
    **dict.fromkeys(("add", "subtract", "multiply"), elementwise(signed, signed)),
    "divide": CASES["divide"],
    **dict.fromkeys(("floor_divide", "remainder"), CASES["floor_divide"]),
    "power": CASES["power"],
    "matmul": CASES["matmul"].map(lambda call: (call[0], {})),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), elementwise(exact, exact)),
    **dict.fromkeys(("left_shift", "right_shift"), CASES["left_shift"]),
    **dict.fromkeys(
        ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"), elementwise(numbers, numbers)
    ),
    "negative": call(signed()),
    "positive": call(numbers()),
    "invert": call(exact()),
}
OPERATORS = {name: operator.numpy for name, operator in BY_NAME.items()}


def test_every_operator_of_the_language_has_a_counterpart():
    assert set(OPERATORS) == set(OPERANDS) == set(PYTHON)


@pytest.mark.in_turn
@pytest.mark.parametrize("symbol", OPERANDS)
@settings(max_examples=8, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
@given(data=st.data())
def test_an_operator_agrees_with_jaxs(symbol, data):
    operands, _ = data.draw(OPERANDS[symbol])
    if (
        len(operands) == 2
        and not isinstance(operands[1], np.ndarray)
        and symbol != "power"
        and data.draw(st.booleans())
    ):
        operands = operands[::-1]
    assert_agrees(OPERATORS[symbol](*operands), by_jax(symbol, PYTHON[symbol], operands, {}, False), False)


def test_an_operator_on_python_numbers_is_pythons():
    assert OPERATORS["power"](2, 40) == 2**40
    assert type(OPERATORS["floor_divide"](7, 2)) is int
    assert OPERATORS["add"]((1, 2), (3,)) == (1, 2, 3)
    assert OPERATORS["negative"](3) == -3
    assert OPERATORS["less"](1, 2) is True


# Subscripts.


@pytest.mark.in_turn
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(index=subscripts())
def test_a_subscript_agrees_with_jaxs_in_and_out_of_range(index):
    x = np.arange(24, dtype=np.int32).reshape(3, 4, 2)
    assert_agrees(getitem(x, index), by_jax("getitem", operator.getitem, (x, index), {}, False), False)


@pytest.mark.parametrize("index", [(0, 0, 0, 0), (slice(None), 0, 0, np.array([1]))])
def test_a_subscript_with_too_many_indices_is_refused(index):
    with pytest.raises(IndexError, match="too many indices"):
        getitem(np.ones((2, 2, 2)), index)


def test_a_subscript_by_a_known_mask_selects():
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(getitem(x, x > 2), [3, 4, 5])
    np.testing.assert_array_equal(getitem(x, (slice(None), np.array([True, False, True]))), x[:, [0, 2]])


def test_a_subscript_of_a_tuple_is_pythons():
    assert getitem((2, 3), -1) == 3
    assert getitem((2, 3, 4), slice(1, None)) == (3, 4)


# Values that JAX computes outside `jit` cannot be traced; the oracle computes them likewise.


@pytest.mark.parametrize("minlength", [0, 7])
def test_bincount_without_a_length_counts_up_to_the_largest(minlength):
    x = np.array([1, 4, 1], np.int32)
    assert_agrees(OPERATIONS["bincount"].numpy(x, minlength=minlength), jnp.bincount(x, minlength=minlength), False)


def test_a_segment_sum_without_a_number_of_segments_has_as_many_as_the_ids_name():
    data, ids = np.arange(4.0), np.array([0, 2, 2, 0], np.int32)
    assert_agrees(OPERATIONS["segment_sum"].numpy(data, ids), jax.ops.segment_sum(np.float32(data), ids), False)


@pytest.mark.parametrize("name", ["segment_sum", "segment_prod", "segment_max", "segment_min"])
def test_one_row_of_data_goes_to_every_segment_that_the_ids_name(name):
    data, ids = np.array([[1.5, -2.0]]), np.array([0, 2, 2, -1], np.int32)
    assert_agrees(OPERATIONS[name].numpy(data, ids, 4), jax_function(name)(np.float32(data), ids, 4), False)


def test_matrices_that_are_not_finite_give_nan_and_do_not_affect_others() -> None:
    stacked = np.stack([np.diag([1.0, 2.0]), np.full((2, 2), np.nan)])
    np.testing.assert_array_equal(algebra.eigh(stacked)[0], [[1, 2], [np.nan, np.nan]])
    np.testing.assert_array_equal(algebra.svd(stacked)[1], [[2, 1], [np.nan, np.nan]])


def test_the_logistic_of_complex_numbers_is_jaxs() -> None:
    numbers = np.array([0.5 + 1j, -2 - 0.25j], np.complex64)
    np.testing.assert_allclose(arithmetic.logistic(numbers), jax.nn.sigmoid(numbers), rtol=1e-6)
