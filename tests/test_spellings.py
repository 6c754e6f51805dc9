"""JAX's own spellings in lines: modules, methods, dtypes; what is read, and the suggested line otherwise."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from runner.graph.language import printing
from runner.graph.language.jax_spellings import METHODS
from runner.graph.language.operations import OPERATIONS
from runner.graph.language.syntax import SyntaxFault, parse
from runner.graph.term import Apply
from tests import harness


def written(text: str) -> str:
    """Return a line as the language spells it."""
    return printing.text(parse(text).term)


FUNCTIONS = [operation for operation in OPERATIONS.values() if "[" not in operation.jax]


def test_every_operation_is_read_by_its_jax_path() -> None:
    for operation in FUNCTIONS:
        paths = [operation.jax]
        if operation.jax.startswith("jnp."):
            paths += [operation.jax.replace("jnp.", module, 1) for module in ("jax.numpy.", "np.", "numpy.")]
        if operation.jax.startswith("jax.lax."):
            paths.append(operation.jax.removeprefix("jax."))
        for path in paths:
            term = parse(f"{path}(x)").term
            assert isinstance(term, Apply)
            assert term.operation == operation.name, path


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("jnp.sum(A)", "sum(A)"),
        ("jax.nn.relu(x) + lax.psum(A, 'x')", "relu(x) + psum(A, 'x')"),
        ("x.sum()", "sum(x)"),
        ("x.sum(axis=0, keepdims=True)", "sum(x, axis=0, keepdims=True)"),
        ("(A @ B).mean(-1)", "mean(A @ B, -1)"),
        ("ring.acc.sum()", "sum(ring.acc)"),
        ("x.astype('bfloat16')", "astype(x, 'bfloat16')"),
        ("x.astype(jnp.bfloat16)", "astype(x, 'bfloat16')"),
        ("zeros((2,), dtype=np.bool_)", "zeros((2,), dtype='bool')"),
        ("x.reshape(4, -1).T", "reshape(x, (4, -1)).T"),
        ("x.reshape((4, -1))", "reshape(x, (4, -1))"),
        ("x.transpose(1, 0)", "transpose(x, (1, 0))"),
        ("x.transpose()", "transpose(x)"),
        ("x.flatten()", "ravel(x)"),
        ("jnp.exp(x.max()).sum()", "sum(exp(max(x)))"),
        ("x.at[0].max(y.max())", "x.at[0].max(max(y))"),
        ("x[:, jnp.newaxis] * -jnp.inf", "x[:, None] * -inf"),
        ("x * jnp.pi", "x * 3.141592653589793"),
    ],
)
def test_jaxs_spellings_are_read(text: str, plain: str) -> None:
    assert written(text) == plain


ARGUMENTS = {
    "astype": ("int32",), "reshape": ((6,),), "swapaxes": (0, 1), "dot": (np.ones((3, 2), "float32"),), "clip": (1, 3),
    "repeat": (2,), "take": (np.array([1, 0]),), "transpose": ((1, 0),),
}  # fmt: skip


@pytest.mark.parametrize(("method", "operation"), METHODS.items())
def test_a_method_of_jaxs_arrays_is_the_operation(method: str, operation: str) -> None:
    x = jnp.arange(6.0).reshape(2, 3)
    arguments = ARGUMENTS.get(method, ())
    ours = getattr(jnp, operation)(x, *arguments)
    np.testing.assert_array_equal(np.asarray(getattr(x, method)(*arguments)), np.asarray(ours))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jnp.sumz(A)", "there is no jnp.sumz; did you mean 'jnp.sum'?"),
        ("lax.exp(A)", "there is no lax.exp; exp is jnp.exp"),
        ("math.ceil(A)", "there is no math.ceil; ceil is jnp.ceil"),
        ("jax.lax.max(A, B)", "there is no jax.lax.max; for jax.lax.max(a, b) write maximum(a, b)"),
        ("lax.rev(A, (0,))", "there is no lax.rev; for jax.lax.rev(A, (0,)) write flip(A, axis=0)"),
        ("jax.qqqq(A)", "there is no jax.qqqq; docs/operations.md has the operations"),
        ("(A @ B).exp()", "arrays have no method 'exp'; write exp(A @ B)"),
        ("fft.fft(A, axis=1)", "'fft.fft' is no operation; write fft(A, axis=1)"),
        ("linalg.norm(A)", "'linalg.norm' is no operation; write norm(A)"),
        ("x.summ(axis=0)", "arrays have no method 'summ'; did you mean 'sum'?"),
        ("x.qqqq()", "only operations can be called, by their name: exp(x), not x.exp()"),
        ("(A @ B).shape", "attribute '.shape' is not part of the language; write shape(A @ B)"),
        ("(A @ B).mT", "attribute '.mT' is not part of the language; write matrix_transpose(A @ B)"),
        (
            "(A @ B).sharding",
            "attribute '.sharding' is not part of the language; only .T and the carries of a repeat are",
        ),
    ],
)
def test_an_unsupported_spelling_is_answered_with_what_to_write(text: str, message: str) -> None:
    with pytest.raises(SyntaxFault) as refused:
        parse(text)
    assert refused.value.message == message


def test_a_line_nested_too_deep_is_still_reported() -> None:
    with pytest.raises(SyntaxFault, match="nested more than 100 levels deep"):
        parse("1.5" + " + 1" * 300)


@pytest.mark.in_turn
def test_a_program_in_jaxs_spelling_is_run_like_any_other(tmp_path: Path) -> None:
    config = harness.config(
        """
        mesh: {axes: [x], shape: [2]}
        arrays: {A: {shape: [4, 4], init: "np.arange(16)", spec: [x, null]}}
        graph:
          half: A.astype(jnp.bfloat16).reshape(2, 8)
          y: jax.nn.relu(half).sum(axis=-1) + jnp.mean(A)
        per_device:
          m: lax.pmean(jnp.mean(A), 'x')
          y: jax.nn.relu(A.astype('bfloat16').reshape(1, 8)).sum(axis=-1) + m
        outputs: {y: [x]}
        """
    )
    assert harness.run(config, tmp_path).record.status == "passed"
