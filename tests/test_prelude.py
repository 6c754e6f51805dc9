"""The prelude's definitions against JAX, at the edges: infinities, NaN, no elements, scalars, masks, every axis."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runner.graph.language.counterparts import defined
from runner.graph.language.definitions import read
from runner.graph.language.operations import OPERATIONS
from runner.graph.term import Apply, within
from tests.test_operations import assert_agrees, by_jax, jax_function

DEFINED = {name: row for name, row in OPERATIONS.items() if row.definition and not row.of}

EDGES = np.array([[np.inf, -np.inf, np.nan, 0.0], [-0.0, 1e30, -1e-30, 1.5], [-2.0, 3.0, -1.0, 0.5]])
HOLES = np.array([[np.nan, 2.0, -3.0, 1.0], [np.nan] * 4, [1.0, np.inf, 2.0, -np.inf], [-np.inf] * 4])
FINITE = np.array([[0.5, -3.0, 2.0, 1.0], [-0.25, 0.125, 4.0, 6.5]])
MASK = np.array([[True, False, True, True], [False, False, False, False]])
QUERY, KEY = (np.linspace(-1, 1, 2 * n * 2 * 2).reshape(2, n, 2, 2) for n in (3, 4))

OTHERS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "append": [((FINITE, FINITE), {"axis": axis}) for axis in (None, 0, -1)],
    "allclose": [((FINITE, FINITE + 1e-9), {}), ((EDGES, EDGES), {"equal_nan": True})],
    "clamp": [((-1.0, EDGES, 2.0), {}), ((2.0, EDGES, -1.0), {})],
    "conv": [((QUERY, QUERY, (1, 1), padding), {}) for padding in ("SAME", "VALID", ((1, 0), (0, 2)))],
    "divmod": [((FINITE, 0.75), {}), ((np.array([7, -7], np.int32), 2), {})],
    "dot_product_attention": [
        ((QUERY, KEY, KEY), {}),
        ((QUERY[0], KEY[0], KEY[0]), {"is_causal": True}),
        ((QUERY, KEY[:, :, :1], KEY[:, :, :1]), {"mask": np.tri(3, 4, 2, bool)[None, None], "scale": 0.5}),
        ((QUERY, KEY, KEY), {"mask": np.zeros((1, 1, 3, 4), bool), "bias": np.ones((1, 2, 3, 4))}),
    ],
    **{name: [((EDGES, EDGES[:, ::-1]), {}), ((EDGES, 1.0), {})] for name in ("fmax", "fmin")},
    "eigvalsh": [((FINITE[:, :2],), {}), ((np.stack([EDGES[1:, :2], FINITE[:, 2:]]),), {})],
    "identity": [((3,), {}), ((0,), {"dtype": "int32"})],
    "isin": [
        ((EDGES, FINITE), {}),
        ((EDGES, EDGES[0]), {"invert": True}),
        ((EDGES, EDGES[:0]), {}),
        ((1.5, EDGES), {}),
    ],
    "logspace": [((0, 2, 3), {}), ((0.5, -1.0), {"num": 1, "base": 2.0, "endpoint": False})],
    "matvec": [((FINITE, FINITE[0]), {}), ((1j * FINITE, FINITE[0]), {})],
    "outer": [((EDGES[0], FINITE[0]), {}), ((FINITE, FINITE), {})],
    "percentile": [((FINITE, q), {"axis": axis}) for q in (0.0, 75.0) for axis in (None, 0)],
    "vdot": [((EDGES, EDGES[:, ::-1]), {}), ((1j * FINITE, FINITE.T), {}), ((2.0, 3), {})],
    "vecdot": [((EDGES, EDGES[0]), {}), ((1j * FINITE, FINITE), {"axis": 0}), ((EDGES[:, :0], EDGES[:, :0]), {})],
    "vecmat": [((FINITE[:, 0], FINITE), {}), ((1j * FINITE[:, 0], FINITE), {})],
    **{
        name: [((EDGES, -1, 1), {"keepdims": keeps}) for keeps in (True, False)]
        for name in ("index_in_dim", "dynamic_index_in_dim")
    },
}
"""Calls of the operations that take more than one array."""

OPTIONS: dict[str, tuple[Any, ...]] = {
    "axis": (None, 0, -1, (0, 1)),
    "keepdims": (True,),
    "where": (MASK,),
    "b": (FINITE,),
    "ddof": (1, 8),
    "correction": (1,),
    "ord": (2,),
    "mean": (0.0,),
    "variance": (2.0,),
    "deg": (True,),
    "offset": (1, -9),
    "approximate": (False,),
    "alpha": (0.5,),
    "shape": ((), (2,)),
    "dtype": ("bfloat16",),
}
"""The values of each option of an operation on one array; options that JAX refuses together are no cases."""


def calls(name: str) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yield calls of a definition at its edges."""
    if name in OTHERS:
        yield from OTHERS[name]
        return
    options = [option for option in OPTIONS if option in DEFINED[name].signature.parameters]
    for array in (
        EDGES,
        FINITE,
        np.zeros((0, 4)),
        np.zeros((2, 0)),
        np.array(1.5),
        np.array([[2, -3], [0, 1]], np.int32),
    ):
        yield (array,), {}
    if "axis" in options:
        yield (HOLES,), {"axis": 1}
    for option in options:
        for value in OPTIONS[option]:
            yield (FINITE,), {option: value}
            yield (FINITE,), {option: value, "axis": 1, "keepdims": True} if "keepdims" in options else {option: value}


def compare(name: str, counterpart: Any) -> int:
    """Compare a counterpart with JAX at the edges; returns the number of calls that JAX accepts."""
    compared = 0
    for arguments, named in calls(name):
        try:
            actual = by_jax(name, jax_function(name), arguments, named, True)
        except (IndexError, RuntimeWarning, TypeError, ValueError):
            continue
        assert_agrees(counterpart(*arguments, **named), actual, True, 1e-7 if name == "dot_product_attention" else 0.0)
        compared += 1
    return compared


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", [name for name, row in DEFINED.items() if not row.random])
def test_a_definition_agrees_with_jax_at_the_edges(name: str) -> None:
    assert compare(name, DEFINED[name].numpy) > 1


WRONG = {
    "softmax": ("exp(kept - max)", "exp(kept)"),
    "logsumexp": ("where(isfinite(max), max, 0.0)", "max"),
    "gelu": ("x**3", "x**2"),
    "nansum": ("0, a", "1, a"),
    "elu": ("x > 0, x", "x > 1, x"),
    "index_in_dim": ("axis, keepdims", "axis"),
}
"""Part of a definition, and what is wrong in its place."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_definition_is_noticed(name: str) -> None:
    right, wrong = WRONG[name]
    lines = DEFINED[name].definition
    assert right in lines
    counterpart = defined.counterpart(lines.replace(right, wrong), DEFINED[name].arguments)
    with pytest.raises(AssertionError):
        compare(name, counterpart)


@pytest.mark.parametrize("name", [name for name, row in DEFINED.items() if row.elementwise])
def test_an_elementwise_operation_is_defined_by_elementwise_ones(name: str) -> None:
    lines, result = read(DEFINED[name].definition)
    parts = [part for term in (*(term for _, term in lines), result) for part in within(term)]
    called = {part.operation for part in parts if isinstance(part, Apply)} - {"given"}
    assert all(OPERATIONS[operation].elementwise for operation in called)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_definition_rounds_where_jaxs_function_does(dtype: str) -> None:
    """The exact result lies among JAX's within a few roundings of the dtype."""
    x = jnp.asarray(FINITE, dtype)
    for name in ("softmax", "log_softmax", "logsumexp", "standardize", "std", "gelu", "silu", "mish"):
        expected = DEFINED[name].numpy(np.asarray(x, np.float64))
        actual = np.asarray(jax.jit(jax_function(name))(x), np.float64)
        np.testing.assert_allclose(actual, expected, atol=16 * float(jnp.finfo(dtype).eps) * np.abs(expected).max())
