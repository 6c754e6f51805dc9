"""Every rule, under many layouts of its operands and its result: what is derived is interpreted, and is the graph's."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from runner.derivation.derive import derive
from runner.derivation.tables import RULES
from runner.experiment import data
from runner.experiment.model import Experiment
from runner.layout import Layout, Mesh, Spec
from runner.reference import interpret
from runner.worker.derive import planned
from tests import harness

MESH = {"axes": ["x", "y"], "shape": [2, 2]}
LAYOUTS = 24
"""How many layouts of each expression are tried."""

ARRAYS = """
arrays:
  a: {shape: [8, 4], spec: []}
  b: {shape: [4, 8], spec: []}
  c: {shape: [8, 4], spec: []}
  v: {shape: [8], spec: []}
  w: {shape: [4], spec: []}
  t: {shape: [2, 8, 4], spec: []}
  n: {shape: [8, 4], dtype: int32, init: "integers(0, 8)", spec: []}
  k: {shape: [8], dtype: int32, init: "integers(-3, 12)", spec: []}
  p: {shape: [8], dtype: int32, init: "integers(0, 4)", spec: []}
  i: {shape: [], dtype: int32, init: "3", spec: []}
  m: {shape: [8, 4], dtype: bool, init: "integers(0, 2)", spec: []}
"""

EXPRESSIONS = {
    "pointwise": "gelu(a) * 2 + where(m, a, c) - v[:, None] + w",
    "compare": "(a < c) & ~m",
    "cast": "astype(n, 'float32') / 3",
    "matmul": "a @ b",
    "matvec": "a @ w",
    "batched": "t @ b",
    "dot": "dot(t, b)",
    "einsum": "einsum('bij,kj,i->bik', t, c, v)",
    "implicit einsum": "einsum('ij,jk', a, b)",
    "diagonal": "einsum('ii->i', a @ b)",
    "tensordot": "tensordot(t, a, axes=[[1, 2], [0, 1]])",
    "inner": "inner(a, c)",
    "outer": "outer(v, w)",
    "vecdot": "vecdot(a, c)",
    "vdot": "vdot(v, v)",
    "vecmat": "vecmat(v, a)",
    "matvec named": "matvec(a, w)",
    "sum": "sum(t, axis=1)",
    "sum of all": "sum(t)",
    "sum of two": "sum(t, axis=(0, 2), keepdims=True)",
    "mean": "mean(a, axis=-1)",
    "max": "max(t, axis=(1,))",
    "min": "amin(a)",
    "any": "any(m, axis=0)",
    "all": "all(m | (n > 0), axis=1)",
    "prod": "prod(a, axis=0)",
    "count": "count_nonzero(n, axis=0)",
    "nansum": "nansum(a, axis=1)",
    "argmax": "argmax(a, axis=0)",
    "argmin": "argmin(n, axis=1)",
    "argmax of a vector": "argmax(v)",
    "var": "var(a, axis=1, keepdims=True)",
    "std": "std(t, axis=(1, 2))",
    "softmax": "softmax(a, axis=0)",
    "softmax of an expression": "softmax(a * 2 + c)",
    "log_softmax": "log_softmax(t)",
    "logsumexp": "logsumexp(a, axis=0)",
    "logsumexp of all": "logsumexp(a, keepdims=True)",
    "standardize": "standardize(a)",
    "norm": "norm(a, axis=1)",
    "norm of all": "norm(a)",
    "norm of another order": "norm(v, ord=1)",
    "cumsum": "cumsum(a, axis=0)",
    "cumsum of integers": "cumsum(k)",
    "cumsum of all": "cumsum(a)",
    "cumprod": "cumprod(a, axis=1)",
    "cummax": "cummax(a, axis=0)",
    "roll": "roll(a, 3, axis=0)",
    "roll back": "roll(t, -1, axis=1)",
    "roll a block": "roll(v, 4)",
    "roll both": "roll(a, 1)",
    "flip": "flip(a, axis=0)",
    "sort": "sort(a, axis=0)",
    "argsort": "argsort(a, axis=1)",
    "median": "median(a, axis=0)",
    "diff": "diff(a, axis=0)",
    "glu": "glu(t)",
    "transpose": "transpose(t, (2, 0, 1))",
    "T": "t.T * a.T[:, :, None]",
    "swapaxes": "swapaxes(t, 1, 2)",
    "moveaxis": "moveaxis(t, 0, -1)",
    "merge": "reshape(t, (16, 4))",
    "merge the last": "reshape(t, (2, -1))",
    "split": "reshape(a, (2, 4, 2, 2))",
    "cross": "reshape(a, (4, 8))",
    "ravel": "ravel(t)",
    "expand": "expand_dims(a, 1) + squeeze(t[:1], 0)[:, None]",
    "broadcast": "broadcast_to(a, (4, 8, 4))",
    "concatenate": "concatenate([a, c], axis=1)",
    "stack": "stack([a, c, a], axis=1)",
    "tril": "tril(a @ b)",
    "triu": "triu(a, k=1)",
    "tile": "tile(a, (1, 2))",
    "arange": "arange(8)[:, None] + a",
    "arange from": "arange(2, 18, 2)[:, None] * a",
    "zeros": "zeros((8, 4)) + ones((4,)) * full((8, 1), 3.0)",
    "tri": "where(tri(8, 4, dtype='bool'), a, 0)",
    "eye": "eye(8, 4, k=-1) + a",
    "iota": "iota('int32', 8) + k",
    "broadcasted_iota": "broadcasted_iota('int32', (8, 4), 1) + n",
    "zeros_like": "zeros_like(a) + full_like(c, 2.0)",
    "linspace": "linspace(0.0, 1.0, 8) + v",
    "one_hot": "one_hot(p, 4)",
    "one_hot first": "one_hot(p, 4, axis=0)",
    "table": "a[p]",
    "table of all": "a[k]",
    "two of indices": "a[n]",
    "columns": "t[:, p]",
    "take": "take(a, p, axis=0)",
    "take of all": "take(a, k, axis=0)",
    "take_along_axis": "take_along_axis(a, p[:, None], axis=1)",
    "take_along_rows": "take_along_axis(a, n, axis=0)",
    "pad": "pad(a, 1)",
    "pad one": "pad(a, ((0, 0), (1, 2)))",
    "slice": "a[2:6] + a[::2]",
    "row": "a[3] + a[i]",
    "none": "a[:, None, :]",
    "dynamic_slice": "dynamic_slice(a, (i, 0), (2, 4))",
    "dynamic_slice_in_dim": "dynamic_slice_in_dim(a, i, 2, axis=0)",
    "dynamic_index_in_dim": "dynamic_index_in_dim(a, i, axis=0, keepdims=False)",
    "dynamic_update_slice": "dynamic_update_slice(a, c[:2], (i, 0))",
    "dynamic_update_slice at the end": "dynamic_update_slice_in_dim(a, c[:4], i * 3, 0)",
    "dynamic_update_index": "dynamic_update_index_in_dim(a, w, i, 0)",
    "fft": "real(fft(a, axis=0))",
    "inverse": "inv(a @ b + 9 * eye(8))",
    "kron": "kron(v, w)",
    "tuple": "split(a, 2)[0]",
    "shape": "a / shape(a)[0]",
}


@cache
def _planned(expression: str):
    text = f'{ARRAYS}\ngraph:\n  out: "{expression}"\noutputs: {{out: []}}'
    experiment = harness.experiment(text, mesh=MESH, program="auto")
    with harness.configured(experiment):
        plan, parts = planned(experiment)
    return experiment, plan, parts, data.make(experiment, None)  # type: ignore[arg-type]


def _specs(mesh: Mesh, shape: tuple[int, ...]) -> list[Spec]:
    """Every layout of an array."""
    found = []
    for places in itertools.product((None, *range(len(shape))), repeat=len(mesh.axes)):
        for order in (mesh.axes, mesh.axes[::-1]):
            spec = Spec(tuple(a for a in order if places[mesh.axes.index(a)] == d) for d in range(len(shape)))
            if all(n % mesh.axis_size(axes) == 0 for n, axes in zip(shape, spec, strict=True)) and spec not in found:
                found.append(spec)
    return found


def _laid_out(experiment: Experiment, shape: tuple[int, ...], choose: random.Random) -> Experiment:
    arrays = tuple(
        replace(a, layout=Layout(a.layout.mesh, a.shape, choose.choice(_specs(experiment.mesh, a.shape))))
        for a in experiment.arrays
    )
    return replace(experiment, arrays=arrays, outputs={"out": choose.choice(_specs(experiment.mesh, shape))})


def _agree(experiment: Experiment, statements, arrays) -> None:
    whole = np.asarray(interpret(experiment, "graph", arrays, keep=["out"]).values["out"][0])
    held = interpret(experiment, "per_device", arrays, statements, keep=["out"]).values["out"]
    layout = Layout(experiment.mesh, whole.shape, experiment.outputs["out"])
    for position, found in enumerate(held):
        wanted = whole[layout.index(position)]
        assert np.shape(found) == wanted.shape
        np.testing.assert_allclose(np.asarray(found, wanted.dtype), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=list(EXPRESSIONS))
def test_a_rule_is_right_under_every_layout(expression: str) -> None:
    experiment, plan, parts, arrays = _planned(expression)
    choose = random.Random(expression)
    shape = np.shape(interpret(experiment, "graph", arrays, keep=["out"]).values["out"][0])
    for _ in range(LAYOUTS):
        one = _laid_out(experiment, shape, choose)
        # What the plan has for another layout misleads at most in what it costs.
        hints = plan.values if choose.random() < 0.3 else {}
        _agree(one, derive(one, parts, hints, invarying=False, check_vma=False).statements, arrays)


def test_every_operation_with_a_rule_is_tried() -> None:
    tried = " ".join(EXPRESSIONS.values())
    ways = {ways for name, ways in RULES.items() if f"{name}(" in tried}
    assert [name for name in RULES if RULES[name] not in ways] == []
