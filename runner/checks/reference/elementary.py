"""How far XLA's elementary functions are from the exact result, by platform: one table, in units in the last place.

XLA does not round these functions correctly. It computes most of them itself, by polynomials and their quotients, with
fused multiply-adds, and the others from these; and the code that it generates for one function depends on what it is
fused with, on the number of elements and on the version. So two right programs differ by these units.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.base.lazy import dataclass

UNIT = 2.0**-24
"""Half of float32's eps: a unit in the last place of a result just below a power of two."""


DRAWN = 0.5
"""The share of the largest error within which errors are drawn.

Few results are off by as much, and a tolerance is several times what is measured.
"""


@dataclass(frozen=True)
class Inexactness:
    """The largest error of an elementary function of float32, in units of `UNIT`.

    Narrower floats are computed in float32 and rounded once, unless a function is `composed` of others in the dtype of
    its operand: then the units are those of that dtype.

    - `result`: relative to the result.
    - `operand`: what a move of each operand by this many units, relative to it, changes: a function of large operands,
      or near its zeros, may be off by much more than its last place.
    """

    result: float
    operand: float = 0.0
    composed: bool = False

    def unit(self, eps: float) -> float:
        """The unit for a dtype with this eps, relative to the number."""
        return max(eps / 2, UNIT) if self.composed else UNIT


ON_CPU: Mapping[str, Inexactness] = {
    "acos": Inexactness(4, composed=True),
    "acosh": Inexactness(5, composed=True),
    "asin": Inexactness(3, composed=True),
    "asinh": Inexactness(5, composed=True),
    "atan": Inexactness(4),
    "atan2": Inexactness(3),
    "atanh": Inexactness(4, composed=True),
    "cbrt": Inexactness(16),
    "cos": Inexactness(2),
    "cosh": Inexactness(5, 0.7),
    "digamma": Inexactness(4, 14),
    "erf": Inexactness(6),
    "erf_inv": Inexactness(4, 0.5),
    "erfc": Inexactness(67),
    "exp": Inexactness(3),
    "exp2": Inexactness(3, 2, composed=True),
    "expm1": Inexactness(7),
    "igamma": Inexactness(180),
    "igammac": Inexactness(180),
    "lgamma": Inexactness(190, 40),
    "log": Inexactness(2),
    "log1p": Inexactness(4),
    "logistic": Inexactness(4, composed=True),
    "pow": Inexactness(2),
    "rsqrt": Inexactness(3),
    "sin": Inexactness(2),
    "sinh": Inexactness(6, 0.8),
    "tan": Inexactness(3),
    "tanh": Inexactness(6),
}
"""The largest errors that were measured, rounded up: XLA for CPUs of jaxlib 0.10.2, 0.11.2 and 0.12.0, on x86-64 with
AVX-512, in arrays, scalars and fusions: `python -m benchmarks.elementary` measures them again. `igammac` is less exact
below 1/2, where it is 1 less a number near 1."""

ON_GPU: Mapping[str, Inexactness] = {
    "cbrt": Inexactness(32),
    "cos": Inexactness(4),
    "rsqrt": Inexactness(4),
    "sin": Inexactness(4),
    "tan": Inexactness(8),
}
"""What XLA's own tests allow on GPUs for the functions that it leaves to the device's library
(openxla/xla, `xla/tests/exhaustive/exhaustive_unary_test_functions.cc`). The others it expands as on CPUs, and nothing
is published of their errors: they are taken to be those of CPUs."""

ON_TPU: Mapping[str, Inexactness] = {}
"""Nothing is published of TPUs: their functions are taken to be as exact as those of CPUs."""

OTHERS = Inexactness(4)
"""A function that is not in the tables, of which nothing was measured."""

IN_FLOAT64 = Inexactness(4)
"""Any function of float64, in units of its own last place."""

_PLATFORMS: Mapping[str, Mapping[str, Inexactness]] = {"cpu": ON_CPU, "gpu": ON_CPU | ON_GPU, "tpu": ON_CPU | ON_TPU}

_UFUNCS = {
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "erfinv": "erf_inv",
    "expit": "logistic",
    "float_power": "pow",
    "gammainc": "igamma",
    "gammaincc": "igammac",
    "gammaln": "lgamma",
    "power": "pow",
    "psi": "digamma",
}
"""JAX's primitives by the names of NumPy's and SciPy's functions, where these differ."""


def known(platform: str) -> Mapping[str, Inexactness]:
    """The functions whose errors on a platform are known, by the names of JAX's primitives."""
    return _PLATFORMS[platform]


def inexactness(ufunc: str, platform: str) -> Inexactness:
    """The error of a function of float32, by the name of NumPy's or SciPy's function."""
    return known(platform).get(_UFUNCS.get(ufunc, ufunc), OTHERS)
