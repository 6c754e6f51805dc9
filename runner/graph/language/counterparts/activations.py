"""NumPy counterparts of `jax.nn`'s activations, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from runner.base import dtypes
from runner.graph.language.counterparts.arithmetic import erfc, logaddexp, logistic
from runner.graph.language.counterparts.promotion import (
    array,
    common,
    convert,
    floating,
    ieee_maximum,
    in_floats,
    integer,
)
from runner.graph.language.counterparts.reductions import mean

# The constants of `jax.nn.selu`: https://arxiv.org/abs/1706.02515.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def relu(x: Any) -> Any:
    """`jax.nn.relu`: integers stay integers."""
    x = array(x)
    return ieee_maximum(*common(x, np.zeros((), integer() if x.dtype.kind == "b" else x.dtype)))


def hard_tanh(x: Any) -> Any:
    """`jax.nn.hard_tanh`: integers stay integers."""
    x = array(x)
    unit = np.ones((), x.dtype)
    return dtypes.where(x > 1, unit, dtypes.where(x < -1, -unit, x))


def _activation(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a function of one array to compute in floats."""
    return in_floats(function)


relu6 = _activation(lambda x: np.minimum(ieee_maximum(x, np.zeros(())), 6.0))
hard_sigmoid = _activation(lambda x: relu6(x + 3.0) / 6.0)
hard_silu = _activation(lambda x: x * hard_sigmoid(x))
silu = _activation(lambda x: x * logistic(x))
softplus = _activation(lambda x: logaddexp(x, 0.0))
log_sigmoid = _activation(lambda x: -softplus(-x))
soft_sign = _activation(lambda x: x / (np.abs(x) + 1.0))
mish = _activation(lambda x: x * np.tanh(softplus(x)))
sparse_plus = _activation(lambda x: dtypes.where(x <= -1.0, 0.0, dtypes.where(x >= 1.0, x, (x + 1.0) ** 2 / 4.0)))
sparse_sigmoid = _activation(lambda x: np.clip((x + 1.0) / 2.0, 0.0, 1.0))


def gelu(x: Any, approximate: bool = True) -> Any:
    """`jax.nn.gelu`: by default the approximation by tanh."""
    x = floating(x)
    if approximate:
        return x * 0.5 * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * erfc(-x / np.sqrt(2.0))


def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    """`jax.nn.leaky_relu`."""
    x = floating(x)
    return dtypes.where(x >= 0, x, negative_slope * x)


def elu(x: Any, alpha: Any = 1.0) -> Any:
    """`jax.nn.elu`."""
    x = floating(x)
    return dtypes.where(x > 0, x, alpha * np.expm1(dtypes.where(x > 0, 0.0, x)))


def celu(x: Any, alpha: Any = 1.0) -> Any:
    """`jax.nn.celu`."""
    x = floating(x)
    return np.maximum(x, 0.0) + alpha * np.expm1(np.minimum(x, 0.0) / alpha)


def selu(x: Any) -> Any:
    """`jax.nn.selu`."""
    return _SELU_SCALE * elu(x, _SELU_ALPHA)


def squareplus(x: Any, b: Any = 4) -> Any:
    """`jax.nn.squareplus`."""
    x = floating(x)
    return (x + np.sqrt(x**2 + b)) / 2.0


def glu(x: Any, axis: int = -1) -> Any:
    """`jax.nn.glu`: the first half of the axis, gated by the second."""
    value, gate = np.split(floating(x), 2, axis=axis)
    return value * logistic(gate)


def softmax(x: Any, axis: Any = -1, where: Any = None) -> Any:
    """`jax.nn.softmax`: zero where `where` is false."""
    x = floating(x)
    x = x if where is None else dtypes.where(array(where) != 0, x, -np.inf)
    with np.errstate(all="ignore"):
        terms = np.exp(x - _largest(x, axis))
        result = terms / np.sum(terms, axis=axis, keepdims=True)
    return result if where is None else dtypes.where(array(where) != 0, result, 0.0)


def log_softmax(x: Any, axis: Any = -1, where: Any = None) -> Any:
    """`jax.nn.log_softmax`: -inf where `where` is false."""
    x = floating(x)
    x = x if where is None else dtypes.where(array(where) != 0, x, -np.inf)
    with np.errstate(all="ignore"):
        shifted = x - _largest(x, axis)
        result = shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))
    return result if where is None else dtypes.where(array(where) != 0, result, -np.inf)


def _largest(x: Any, axis: Any) -> Any:
    """The maximum with the initial value -inf, as in JAX; in a dtype without infinities that is NaN."""
    return np.max(x, axis=axis, keepdims=True, initial=-np.inf)


def standardize(
    x: Any, axis: Any = -1, mean: Any = None, variance: Any = None, epsilon: Any = 1e-05, where: Any = None
) -> Any:
    """`jax.nn.standardize`: mean 0, variance 1 along the axis."""
    x = floating(x)
    mean = _mean(x, axis, keepdims=True, where=where) if mean is None else mean
    if variance is None:
        variance = np.maximum(_mean(np.square(x), axis, keepdims=True, where=where) - np.square(mean), 0.0)
    with np.errstate(all="ignore"):
        return (x - mean) / np.sqrt(variance + epsilon)


_mean: Callable[..., Any] = mean  # `mean` is the name of an argument above


def one_hot(x: Any, num_classes: int, *, dtype: Any = None, axis: int = -1) -> Any:
    """`jax.nn.one_hot`: floats unless `dtype` says otherwise; a class out of range gives zeros."""
    x = array(x)
    hot = np.expand_dims(x, axis if axis >= 0 else axis + x.ndim + 1)
    classes = np.arange(num_classes).reshape([-1 if size == axis % (x.ndim + 1) else 1 for size in range(x.ndim + 1)])
    return convert(hot == classes, "float32" if dtype is None else dtype)
