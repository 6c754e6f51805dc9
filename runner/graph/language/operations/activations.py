"""The rows of `jax.nn`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from runner.graph.language.operations.deferred import activations, algebra, arithmetic
from runner.graph.language.operations.row import Known, Operation, array


def activation(name: str, counterpart: Callable[..., Any], arguments: str = "x", **known: Unpack[Known]) -> Operation:
    """A row for an elementwise function of `jax.nn`."""
    known["elementwise"] = True
    return array(name, arguments, counterpart, f"jax.nn.{name}", **known)


def _attention(shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """Two products: of each query with every key, and of their weights with the values."""
    if not {"query", "key"} <= set(shapes) or len(shapes["key"]) < 3:
        return None
    # A single sequence has no dimension for the batch: the keys are the third dimension from the last.
    return 2 * math.prod(shapes["query"]) * shapes["key"][-3]


ROWS = (
    # Activations.
    activation("relu", activations.relu),
    activation("relu6", activations.relu6),
    activation("sigmoid", arithmetic.logistic, exponential=True),
    activation("silu", activations.silu, also=("swish",), exponential=True),
    activation("gelu", activations.gelu, "x, approximate=True", exponential=True),
    activation("softplus", activations.softplus, exponential=True),
    activation("log_sigmoid", activations.log_sigmoid, exponential=True),
    activation("leaky_relu", activations.leaky_relu, "x, negative_slope=0.01"),
    activation("elu", activations.elu, "x, alpha=1.0", exponential=True),
    activation("selu", activations.selu, exponential=True),
    activation("celu", activations.celu, "x, alpha=1.0"),
    activation("hard_tanh", activations.hard_tanh),
    activation("hard_sigmoid", activations.hard_sigmoid),
    activation("hard_silu", activations.hard_silu, also=("hard_swish",)),
    activation("soft_sign", activations.soft_sign),
    activation("sparse_plus", activations.sparse_plus),
    activation("sparse_sigmoid", activations.sparse_sigmoid),
    activation("squareplus", activations.squareplus, "x, b=4"),
    activation("mish", activations.mish, exponential=True),
    # Along a dimension.
    array("glu", "x, axis=-1", activations.glu, "jax.nn.glu"),
    array("softmax", "x, axis=-1, where=None", activations.softmax, "jax.nn.softmax", exponential=True),
    array("log_softmax", "x, axis=-1, where=None", activations.log_softmax, "jax.nn.log_softmax", exponential=True),
    array(
        "standardize",
        "x, axis=-1, mean=None, variance=None, epsilon=1e-05, where=None",
        activations.standardize,
        "jax.nn.standardize",
    ),
    array(
        "dot_product_attention",
        "query, key, value, bias=None, mask=None, *, scale=None, is_causal=False",
        algebra.dot_product_attention,
        "jax.nn.dot_product_attention",
        wide=2,
        in_float32=True,
        multiply_adds=_attention,
    ),
)
