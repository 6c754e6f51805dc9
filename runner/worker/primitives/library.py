"""Names the functions of JAX's own that a jaxpr calls by name, with the operations that they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runner.worker.primitives.application import Application

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
