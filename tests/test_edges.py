"""Special functions at NaN, infinities, poles and outside their domains: the oracle has the values of JAX.

Where JAX's versions differ, the rounded interpretation has the other value, so that the element is not compared.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.scipy.special
import numpy as np
import pytest

from runner.checks.reference import Rounding
from runner.checks.reference.machine import Machine
from runner.checks.reference.rounded_numpy import plain, rounded
from runner.graph.language.counterparts.promotion import x64
from runner.graph.language.operations import OPERATIONS
from runner.worker.walk import function_of

EDGES = (float("nan"), float("inf"), float("-inf"), 0.0, -0.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0)
INTEGERS = (-3, -1, 0, 1, 2, 5)
UNARY = (
    "digamma", "gammaln", "lgamma", "ndtr", "log_ndtr", "ndtri", "i0", "i1", "i0e", "i1e", "entr", "logit", "expit",
    "erf", "erfc", "erf_inv", "sinc", "log1p", "expm1", "logistic", "softplus", "log_sigmoid", "cbrt", "exp2", "rsqrt",
)  # fmt: skip
BINARY = (
    "rel_entr", "kl_div", "betaln", "gammainc", "gammaincc", "zeta", "polygamma", "xlogy", "xlog1py", "igamma_grad_a",
    "logaddexp", "logaddexp2", "power", "arctan2", "hypot", "fmod", "remainder", "floor_divide", "copysign", "maximum",
    "fmin", "nextafter",
)  # fmt: skip
FLOATS_ONLY = (
    "erf", "erfc", "erf_inv", "lgamma", "digamma", "rsqrt", "logistic", "polygamma", "igamma_grad_a", "nextafter",
    "ndtr", "log_ndtr", "ndtri", "zeta", "i0", "i1", "i0e", "i1e", "cbrt",
)  # fmt: skip
# At the ends of its range JAX's polynomials lose all digits, or this function its terms.
ROUGH = {"erf_inv": 1e-3, "ndtri": 1e-3}


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["float32", "int32"])
def test_edges_have_the_values_of_jax(kind: str) -> None:
    edges = EDGES if kind == "float32" else INTEGERS
    pairs = np.array(list(itertools.product(edges, edges)), kind).T
    given = {name: (np.array(edges, kind),) for name in UNARY} | {name: tuple(pairs) for name in BINARY}
    if kind == "int32":
        for name in FLOATS_ONLY:
            del given[name]
    by_jax: dict[str, Any] = jax.jit(
        lambda: {n: function_of(OPERATIONS[n])(*map(jax.numpy.asarray, given[n])) for n in given}
    )()
    wrong: list[Any] = []
    for name, operands in given.items():
        wide = [operand.astype(np.float64) if kind == "float32" else operand for operand in operands]
        narrow = [rounded(operand, kind, Machine()) if kind == "float32" else operand for operand in operands]
        with np.errstate(all="ignore"), x64(False):
            exact = np.asarray(OPERATIONS[name].numpy(*wide))
            drawn = np.asarray(plain(OPERATIONS[name].numpy(*narrow)))
        rounding = Rounding()
        rounding.take_in([exact], [drawn], lambda _: None)
        open_ = np.zeros(exact.shape, bool) if rounding.overflows is None else rounding.overflows[0]
        actual = np.asarray(by_jax[name])
        near = np.isclose(actual, exact, rtol=ROUGH.get(name, 1e-4), atol=1e-6, equal_nan=True)
        for at in np.flatnonzero(~(near | (open_ & ~np.isfinite(actual)))):
            wrong.append((name, [operand[at] for operand in operands], actual[at], exact[at]))
    assert not wrong


def test_where_versions_differ_the_element_is_open_and_no_other() -> None:
    x = np.array([0.0, 0.5, -1.0])
    rounding = Rounding()
    digamma = OPERATIONS["digamma"].numpy
    rounding.take_in([digamma(x)], [digamma(rounded(x, "float32", Machine()))], lambda _: None)
    assert rounding.overflows is not None
    assert rounding.overflows[0].tolist() == [True, False, False]


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["random_gamma_grad", "igamma_grad_a"])
def test_derivatives_of_the_incomplete_gamma_function_in_its_upper_tail(name: str) -> None:
    a, x = np.array([0.1, 1, 1, 5, 50, 50, 1000]), np.array([30.0, 20, 100, 60, 120, 200, 1200])
    with jax.enable_x64(True):
        expected = np.asarray(getattr(jax.lax, name)(a, x))
    np.testing.assert_allclose(OPERATIONS[name].numpy(a, x), expected, rtol=1e-12)
