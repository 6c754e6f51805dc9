"""Every operation under every layout of its operands: the derived lines, interpreted, equal the graph.

An operation may run on shards along a factor exactly if it commutes with splitting and joining. So each expression is
derived for each layout, interpreted device by device, and compared with its value on whole arrays.
"""

from __future__ import annotations

import itertools
import math
import pickle
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from runner.base.layout import Layout, Mesh, Spec, Typed
from runner.checks.reference import interpret
from runner.compiled.estimate.prices import BYTES
from runner.experiment import data
from runner.graph.inlining import with_inputs
from runner.graph.language.operations import OPERATIONS
from runner.graph.language.operations.row import Scan
from runner.graph.language.printing import text
from runner.graph.language.syntax import parse
from runner.graph.model import INDEX
from runner.graph.term import Apply, Const, Name, names, within
from runner.programs.derivation import indexing, matrices, reductions, sliding, updating
from runner.programs.derivation.calls import Argument, Call
from runner.programs.derivation.derive import Hints, Typing, derive
from runner.programs.derivation.registry import Way
from runner.programs.derivation.rules import Around, Question, Rule, followed
from runner.programs.derivation.ruling import WAYS, Rulings
from runner.programs.derivation.terms import Part, built, constant
from runner.worker.derive import planned
from tests import harness, samples

MESHES = {
    "2 x 2": {"axes": ["x", "y"], "shape": [2, 2]},
    "4": {"axes": ["x"], "shape": [4]},
}
UNCHECKED = Typing(invarying=False, casts=False, check_vma=False)
FEW = 4
"""The number of layouts of each expression in a sample."""

MOST = 500
"""If an expression and its result have more layouts, the result gets one for each of the operands'.

If the operands alone have more, this many of them are drawn.
"""

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
    "tensordot of single dimensions": "tensordot(t, a, axes=(1, 0))",
    "dynamic_slice of all": "dynamic_slice_in_dim(a, k[0], 8, axis=0) + a",
    "dynamic_slice at a place that is read": "dynamic_slice(a, (k[0] % 4, 0), shape(b[:4, :4]))",
    "dot_general": "dot_general(t, a, (((2, 1), (1, 0)), ((), ())))",
    "dot_general of a batch": "dot_general(t, t, (((2,), (2,)), ((0, 1), (0, 1))))",
    "ragged_dot": "ragged_dot(a, stack([b, b * 2, b * 3]), asarray([3, 0, 4]))",
    "qr": "qr(t)[0] @ qr(t)[1]",
    "R": "abs(qr(t, mode='r'))",
    "eigh": "eigh(t[:, :4] + swapaxes(t[:, :4], 1, 2))[0]",
    "inner": "inner(a, c)",
    "outer": "outer(v, w)",
    "vecdot": "vecdot(a, c)",
    "vdot": "vdot(v, v)",
    "vdot of matrices": "vdot(a, c)",
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
    "argmax of all": "argmax(a)",
    "argmin of all": "argmin(n)",
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
    "ptp": "ptp(a, axis=0)",
    "ptp of all": "ptp(n, keepdims=True)",
    "nanmean": "nanmean(where(m, a, inf - inf), axis=(0,), keepdims=True)",
    "nanmean of all": "nanmean(t)",
    "average": "average(t, axis=1)",
    "average by weights": "average(t, axis=1, weights=v)",
    "logmeanexp": "logmeanexp(a, axis=0)",
    "cumsum": "cumsum(a, axis=0)",
    "cumsum of integers": "cumsum(k)",
    "cumsum of all": "cumsum(a)",
    "cumulative_sum": "cumulative_sum(a, axis=1)",
    "cumulative_sum from 0": "cumulative_sum(t, axis=1, include_initial=True)",
    "cumprod": "cumprod(a, axis=1)",
    "cummax": "cummax(a, axis=0)",
    "associative_scan": "associative_scan('mul', a)",
    "associative_scan backwards": "associative_scan('max', t, reverse=True, axis=1)",
    "associative_scan of two": "associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, c))[1]",
    "associative_scan of two backwards": (
        "sum(stack(associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, c), True, 1)), axis=0)"
    ),
    "associative_scan of matrices": "associative_scan(lambda p, q: q @ p, t[:, :4], axis=0)",
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
    "set rows": "a.at[k].set(2.0)",
    "set a row": "a.at[i].set(w)",
    "set a part": "a.at[2:5, 1].set(v[:3])",
    "power of a slice": "abs(a).at[1:, ::2].power(c[1:, ::2])",
    "multiply a slice backwards": "t.at[..., 6:0:-2, 1].multiply(v[:3])",
    "max of a slice of rows": "a.at[2:7].max(c[:1])",
    "add to a slice of indexed rows": "t.at[:, k, 1:3].add(reshape(a, (8, 2, 2))[:, 0])",
    "divide apart": "t.at[0, 1:5, p].divide(a * a + 1)",
    "add to rows": "a.at[k].add(c)",
    "add to columns": "a.at[:, p].add(a @ b, mode='drop')",
    "add to elements": "t.at[0, k, p].add(v)",
    "add to rows of each": "t.at[..., k, :].add(c)",
    "add clamped": "a.at[k].add(c, mode='clip')",
    "subtract from a row": "t.at[:, i].subtract(w)",
    "multiply rows": "a.at[k].multiply(c, mode='fill')",
    "mul rows": "a.at[p, :].mul(2)",
    "divide rows": "a.at[k].divide(3 + n)",
    "power of rows": "abs(a).at[-3].power(2)",
    "min of rows": "a.at[k].min(c)",
    "max of integers": "n.at[k].max(1)",
    "get rows": "t.at[:, k].get(mode='fill', fill_value=0)",
    "get from apart": "t.at[0, :, p].get()",
    "add a dimension": "a.at[None, k].add(1)",
    "add where it counts": "a.at[arange(8), p].add(v)",
    "set where it counts": "a.at[arange(8)[:, None], p[:4]].set(2.0)",
    "set the diagonal": "(a @ b).at[arange(8), arange(8)].set(v)",
    "get where it counts": "t.at[arange(2)[:, None], k].get(mode='fill', fill_value=0)",
    "read where it counts": "a[arange(8), p]",
    "read where a reshape counts": "a[broadcast_to(reshape(arange(8), (8, 1)), (8, 4)), n % 4]",
    "read with three": "t[iota('int32', 2)[:, None, None], n, p[:4]]",
    "zeros": "zeros((8, 4)) + ones((4,)) * full((8, 1), 3.0)",
    "tri": "where(tri(8, 4, dtype='bool'), a, 0)",
    "eye": "eye(8, 4, k=-1) + a",
    "iota": "iota('int32', 8) + k",
    "broadcasted_iota": "broadcasted_iota('int32', (8, 4), 1) + n",
    "zeros_like": "zeros_like(a) + full_like(c, 2.0)",
    "like what lies otherwise": "where(zeros_like(a) > 0, ones_like(b).T, full_like(a, v[0]))",
    "isin": "isin(n, p)",
    "unravel_index": "unravel_index(p, (2, 2))[1]",
    "broadcast_arrays": "broadcast_arrays(a, w, v[:, None])[1]",
    "broadcast_in_dim": "broadcast_in_dim(a, (8, 2, 4), (0, 2))",
    "broadcast_in_dim of ones": "broadcast_in_dim(v[:, None], (8, 4, 2), (0, 1))",
    "broadcast_in_dim of what counts": "a.at[broadcast_in_dim(arange(8), (8, 4), (0,)), n % 4].add(b.T)",
    "linspace": "linspace(0.0, 1.0, 8) + v",
    "one_hot": "one_hot(p, 4)",
    "one_hot first": "one_hot(p, 4, axis=0)",
    "table": "a[p]",
    "table of all": "a[k]",
    "two of indices": "a[n]",
    "columns": "t[:, p]",
    "take": "take(a, p, axis=0)",
    "take of all": "take(a, k, axis=0)",
    "take clipped": "take(a, p - 1, axis=0, mode='clip')",
    "take of numbers clipped": "take(n, p - 1, axis=0, mode='clip')",
    "take or nothing": "take(a, k + 3, axis=0, mode='fill', fill_value=inf - inf)",
    "take or a number": "take(a, p + 7, axis=0, mode='fill', fill_value=2.0)",
    "take along, or nothing": "take_along_axis(a, p[:, None], axis=1, mode='fill', fill_value=inf - inf)",
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
    "rot90": "rot90(a)",
    "diagonal of rows": "diagonal(a @ b)",
    "diagonal of each": "diagonal(t[:, :4], axis1=2, axis2=1)",
    "diagonal beside": "diagonal(a @ b, offset=1)",
    "diagonal below, of rows": "diagonal(a, offset=-2)",
    "diagonal of columns of each": "diagonal(t, offset=-4, axis1=1, axis2=2)",
    "diagonal of dimensions apart": "diagonal(t, axis1=2, axis2=0)",
    "diag": "diag(b)",
    "diag of integers": "diag(n) + diag(m[:4])",
    "diag of a vector": "diag(v) + diag(v[1:], k=1)",
    "trace": "trace(a)",
    "trace of each": "trace(t[:, :4], axis1=1, axis2=2)",
    "trace beside": "trace(n, offset=-1)",
    "correlate": "correlate(v, v * 2) + correlate(v, w)",
    "tuple": "split(a, 2)[0]",
    "shape": "a / shape(a)[0]",
}


OF_WHOLE_OPERANDS = [
    "PRNGKey", "bernoulli", "bits", "block_diag", "choice", 
    "convolve", "correlate", "cross", "diag_indices", "empty", "fft2", "fftfreq",
    "fftn", "fold_in", "gumbel", "householder_product", "hsplit", "ifft2", "ifftn", "irfft2", "irfftn",
    "key", "key_data", "kron", "laplace", "linspace", "lu", "lu_pivots_to_permutation", "meshgrid",
    "normal", "ormqr", "permutation", "polyval", "rademacher", "randint", "rfft2", "rfftfreq", "rfftn", "rot90",
    "split_key", "svd", "tril_indices", "triu_indices", "truncated_normal", "uniform", "unravel_index",
    "vander", "vsplit", "wrap_key_data",
]  # fmt: skip
"""The operations without a rule."""


SAMPLES = {
    text: samples.ARRAYS % dict.fromkeys("AUWBSVTQJ", "[]") for each in samples.SAMPLES.values() for text in each
}
EVERY = dict.fromkeys(EXPRESSIONS.values(), ARRAYS) | SAMPLES
"""Expressions, and their arrays."""


class Case:
    """One expression on one mesh: JAX's types, Shardy's plan, and its value on whole arrays."""

    def __init__(self, expression: str, mesh: str, arrays: str | None = None) -> None:
        text = f'{arrays or EVERY[expression]}\ngraph:\n  out: "{expression}"\noutputs: {{out: []}}'
        experiment = harness.experiment(text, mesh=MESHES[mesh], program="auto")
        read = set(names(parse(expression).term))
        used = tuple(array for array in experiment.arrays if array.name in read) or experiment.arrays[:1]
        graph = with_inputs(experiment.graph, {array.name for array in used})
        self.experiment = replace(experiment, arrays=used, graph=graph)
        with harness.configured(experiment):
            self.plan, self.parts = planned(self.experiment)
        self.arrays = data.make(self.experiment, None)  # type: ignore[arg-type]
        self.whole = np.asarray(interpret(self.experiment, "graph", self.arrays, keep=["out"]).values["out"][0])

    def layouts(self) -> Iterator[tuple[Spec, ...]]:
        """Return every layout of the arrays with every layout of the result or, if these are too many, with one."""
        mesh, choose = self.experiment.mesh, random.Random(0)
        operands = [_specs(mesh, array.shape) for array in self.experiment.arrays]
        results = _specs(mesh, self.whole.shape)
        if math.prod(map(len, operands)) * len(results) <= MOST:
            yield from itertools.product(*operands, results)
        elif math.prod(map(len, operands)) > MOST:
            yield from self.few(MOST)
        else:
            yield from ((*specs, choose.choice(results)) for specs in itertools.product(*operands))

    def few(self, count: int) -> Iterator[tuple[Spec, ...]]:
        """Return a sample of the layouts."""
        mesh, choose = self.experiment.mesh, random.Random(0)
        each = [_specs(mesh, shape) for shape in (*(a.shape for a in self.experiment.arrays), self.whole.shape)]
        yield from (tuple(map(choose.choice, each)) for _ in range(count))

    def check(self, specs: tuple[Spec, ...], *, misled: bool) -> None:
        """Derive, interpret and compare; `misled` uses the plan of another layout, which may only cost more."""
        mesh = self.experiment.mesh
        arrays = tuple(
            replace(array, layout=Layout(mesh, array.shape, spec))
            for array, spec in zip(self.experiment.arrays, specs, strict=False)
        )
        experiment = replace(self.experiment, arrays=arrays, outputs={"out": specs[-1]})
        hints = Hints(self.plan.values if misled else {})
        derived = derive(experiment, self.parts, hints, UNCHECKED, BYTES, Rulings()).experiment(experiment)
        held = interpret(derived, "per_device", self.arrays, keep=["out"]).values["out"]
        layout = Layout(mesh, self.whole.shape, specs[-1])
        done = set()
        for position, block in enumerate(held):
            wanted = self.whole[layout.index(position)]
            if (id(block), layout.ranges(position)) in done:
                continue
            done.add((id(block), layout.ranges(position)))
            assert np.shape(block) == wanted.shape
            assert np.asarray(block).dtype.kind == wanted.dtype.kind
            np.testing.assert_allclose(np.asarray(block, wanted.dtype), wanted, rtol=1e-9, atol=1e-9)


@cache
def _specs(mesh: Mesh, shape: tuple[int, ...]) -> list[Spec]:
    """Return every layout of an array."""
    specs = []
    for places in itertools.product((None, *range(len(shape))), repeat=len(mesh.axes)):
        for order in (mesh.axes, mesh.axes[::-1]):
            spec = Spec(tuple(a for a in order if places[mesh.axes.index(a)] == d) for d in range(len(shape)))
            if all(n % mesh.axis_size(axes) == 0 for n, axes in zip(shape, spec, strict=True)) and spec not in specs:
                specs.append(spec)
    return specs


@pytest.mark.sample(12)
@pytest.mark.parametrize("expression", EVERY)
def test_an_operation_is_right_under_some_layouts(expression: str) -> None:
    case = Case(expression, "2 x 2")
    for at, specs in enumerate(case.few(FEW)):
        case.check(specs, misled=at % 3 == 2)


@pytest.mark.whole
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("expression", EVERY)
def test_an_operation_is_right_under_every_layout(expression: str, mesh: str) -> None:
    case = Case(expression, mesh)
    for at, specs in enumerate(case.layouts()):
        case.check(specs, misled=at % 7 == 6)


def test_every_operation_of_the_language_has_a_case() -> None:
    known = {name for name, row in OPERATIONS.items() if row.kind != "collective"} - {"axis_size"}
    calls = [part for text in EVERY for part in within(parse(text).term) if isinstance(part, Apply)]
    called = {call.operation for call in calls if call.spelled == "call"}
    assert known - called == set()


def test_every_other_operation_has_a_rule() -> None:
    """An operation without a rule gets whole operands, which is always correct."""
    arrays = {row.key for row in OPERATIONS.values() if row.kind == "array"}
    assert sorted({*arrays, INDEX} - WAYS.keys()) == OF_WHOLE_OPERANDS
    assert WAYS.keys() <= {*arrays, INDEX}


def test_a_rule_is_data_and_has_costs_without_a_program() -> None:
    """An assignment of mesh axes gives the operands' layouts and the bytes sent, without writing lines."""
    mesh = Mesh(("x", "y"), (2, 4))
    (way, _) = WAYS["softmax"]
    x = Argument("x", Typed((8, 16), "float32"))
    rule = way.rule(Call("softmax", {"x": x}, x.typed))
    assert rule is not None
    assert pickle.loads(pickle.dumps(rule)) == rule
    choice = followed(Question(Around(mesh), rule, (8, 16), 4), {0: ("x",), 1: ("y",)})
    assert choice is not None
    assert choice.operands == (Spec((("x",), ("y",))),)
    # The largest and the sum of four rows, in float32, reduced over four devices.
    assert choice.cost == 2 * (2 * 3 / 4) * 4 * 4


@pytest.mark.parametrize("part", [-1, -0.5, 1e-5, None, True, ..., "x", (), (4,), [(0, -1), (1, 0)], (1, ("x", "y"))])
def test_a_constant_equals_the_term_parsed_from_its_text(part: Part) -> None:
    assert parse(f"x[{text(constant(part))}]").term == built("x[{part}]", part=constant(part))


def test_a_template_is_filled_with_terms_and_names_of_operations() -> None:
    x = parse("a + b").term
    filled = built("{f}({x} ** 2, {over}, axis={d}, dtype={f})", f="sum", x=x, over=("x",), d=-1)
    assert filled == parse("sum((a + b) ** 2, 'x', axis=-1, dtype='sum')").term
    assert built("psum({x}, {over})", x=Name("x"), over=("x", "y")) == parse("psum(x, ('x', 'y'))").term
    assert text(built("{x}[{y}]", x=Name("_y"), y=Name("_x"))) == "_y[_x]"
    assert all(part.at is None for part in within(built("sum({x}, axis={d})", x=Name("x"), d=0)))


def lacking(rule: Rule | None) -> Rule | None:
    """Return a rule whose result lacks its last dimension."""
    return rule and replace(rule, result=rule.result[:-1])


_SUBTRACTED = Way(partial(sliding.scan, kinds=("float",)), sliding.scanned(Scan("sum", 0, "{mine} - {before}")))

MUTANTS: dict[str, tuple[str, Any, str, Any]] = {
    "a sum that nobody completes": ("sum(t, axis=1)", WAYS, "sum", (Way(partial(reductions.reduced, kind="max")),)),
    "blocks before of the wrong sign": (
        "cumsum(a, axis=0)", WAYS, "cumsum", (_SUBTRACTED,),
    ),
    "a factor that is summed over taken for a batch": (
        "inv(b[:, :4] + 9 * eye(4)) @ b", WAYS, "inv", (Way(lambda call: lacking(matrices.stacked(call))),),
    ),
    "windows without their neighbours": (
        "conv(T, reshape(W, (2, 4, 4)), (1,), 'SAME')", sliding, "edges", lambda _site, term, *_: term,
    ),
    "segments completed by their largest": (
        "segment_sum(B, J, num_segments=4)", WAYS, "segment_sum",
        (Way(partial(indexing.segments, kind="max"), WAYS["segment_sum"][0].write),),
    ),
    "a start that is forgotten": (
        "dynamic_slice(a, (i, 0), (2, 4))", indexing, "_clamped", lambda *_: Const(0),
    ),
    "an update in every block": (
        "a.at[k].add(c)", updating, "_in_block", lambda site, item, *_: site.whole(item.place),
    ),
    "blocks that are not combined": (
        "associative_scan('mul', a)", sliding, "_combined", lambda fn, left, right, **_: right,
    ),
    "noise of another distribution": ("categorical(key(0), A)", reductions, "_noise", lambda site, *_: site.x),
}  # fmt: skip
"""Wrong rules: an expression that needs the rule, and the replaced and replacing ways or functions."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expression, owner, name, wrong = MUTANTS[mutant]
    case = Case(expression, "2 x 2") if expression in EVERY else Case(expression, "2 x 2", ARRAYS)
    layouts = list(case.few(40))
    for specs in layouts:
        case.check(specs, misled=False)
    (monkeypatch.setitem if owner is WAYS else monkeypatch.setattr)(owner, name, wrong)
    with pytest.raises(AssertionError):
        deque((case.check(specs, misled=False) for specs in layouts), maxlen=0)
