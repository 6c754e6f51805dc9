"""Lines that are rewritten before they are derived give the same values, at ties, zeros and NaN too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from runner.checks.reference import interpret
from runner.experiment.model import Experiment
from runner.graph.language.lines import expressions
from runner.graph.language.printing import text
from runner.graph.model import Graph
from runner.programs.derivation.rewriting import rewritten
from runner.programs.derivation.scopes import Names
from runner.worker.derive import planned
from tests import harness

ARRAYS = """
mesh: {axes: [x, y], shape: [2, 2]}
arrays:
  a: {shape: [32, 4], spec: [x]}
  b: {shape: [4, 32], spec: [null, x]}
  v: {shape: [64], spec: [[x, y]]}
  n: {shape: [32, 4], dtype: int32, init: "integers(0, 4)", spec: [x]}
  w: {shape: [32, 4], spec: []}
"""

REWRITTEN = {
    "cumsum(a, axis=0)[31]": "sum(a, axis=0)",
    "cumsum(a, axis=0)[-30, 1:3]": "sum(where((arange(32) <= 2)[:, None], a, 0), axis=0)[1:3]",
    "cumprod(a, axis=0)[4:5]": "prod(where((arange(32) <= 4)[:, None], a, 1), axis=0, keepdims=True)",
    "cumsum(n, axis=0)[7]": "sum(where((arange(32) <= 7)[:, None], n, 0), axis=0)",
    "cummax(a)[5]": "max(where((arange(32) <= 5)[:, None], a, -inf), axis=0)",
    "cummin(b, axis=1)[:, 3]": "min(where(arange(32) <= 3, b, inf), axis=1)",
    "cummax(b, axis=1, reverse=True)[:, 0]": "max(b, axis=1)",
    "cumlogsumexp(b, 1, reverse=True)[:, 9]": "logsumexp(where(arange(32) >= 9, b, -inf), axis=1)",
    "cumsum(v)[-1] + 1": "sum(v, axis=0) + 1",
    "sort(a, axis=0)[:2]": "sort(reshape(sort(reshape(a, (2, 16, 4)), axis=1)[:, :2], (4, 4)), axis=0)[:2]",
    "sort(n, axis=0)[1]": "sort(reshape(sort(reshape(n, (2, 16, 4)), axis=1)[:, :2], (4, 4)), axis=0)[1]",
    "sort(b)[:, -1:-4:-2]": (
        "sort(reshape(sort(reshape(b, (4, 2, 16)), axis=2)[:, :, -3:], (4, 6)), axis=1)[:, 5:1:-2]"
    ),
    "sort(v, descending=True)[:3]": (
        "sort(reshape(sort(reshape(v, (4, 16)), axis=1, descending=True)[:, :3], (12,)), axis=0, descending=True)[:3]"
    ),
    "trace(a @ b)": "einsum('ij,ji->', a, b)",
    "trace(a @ w.T) * 2": "einsum('ij,ji->', a, w.T) * 2",
    "concatenate([a[-3:], a[:-3]])": "roll(a, 3, axis=0)",
    "concatenate([b[:, 1:], b[:, :1]], axis=-1)": "roll(b, 31, axis=1)",
    "conv(pad(b[None], ((0, 0), (0, 0), (1, 2))), ones((2, 4, 3)), (1,), 'VALID')": (
        "conv(b[None], ones((2, 4, 3)), (1,), [(1, 2)])"
    ),
}

LEFT = [
    "cumsum(a, axis=0)[3:5]", "cumsum(a, axis=1)[3]", "cumsum(w, axis=0)[3]", "cumsum(a)[3]", "sort(a, axis=0)[:9]",
    "sort(w, axis=0)[:2]", "cummax(n)[3]", "cumsum(a, axis=0)[i]", "trace(a @ b, offset=1)", "trace(w @ w.T)",
    "cumsum(a, axis=0)[None, 3]", "cumulative_sum(v, include_initial=True)[3]", "sort(a, axis=0)[2:2]",
    "concatenate([a[-3:], a[:-2]])", "concatenate([b[1:], b[:1]])",
    "conv(pad(b[None], ((0, 0), (0, 0), (1, 1)), constant_values=1), ones((2, 4, 3)), (1,), 'VALID')",
]  # fmt: skip
"""Of several elements, along whole dimensions, of whole arrays, of flattened ones, at places that are not known, …"""


def read(lines: str) -> tuple[Experiment, Graph | None]:
    checked = harness.experiment(f"{ARRAYS}  i: {{shape: [], dtype: int32, init: '3', spec: []}}\n{lines}")
    with harness.configured(checked):
        plan, types = planned(checked)
    return checked, rewritten(Names(checked, types), plan.values)


def terms(graph: Graph) -> dict[str, str]:
    return {str(line): text(expression.term) for line, expression in expressions(graph)}


@pytest.mark.parametrize("expression", REWRITTEN)
def test_a_rewritten_line_has_the_same_value(expression: str) -> None:
    checked, graph = read(f'graph: {{out: "{expression}"}}\noutputs: {{out: []}}')
    assert graph is not None
    assert terms(graph) == {"out": REWRITTEN[expression]}
    draw = np.random.default_rng(0)
    arrays = {array.name: draw.integers(-2, 3, array.shape).astype(array.dtype) for array in checked.arrays}
    if "sum" not in expression and "prod" not in expression and "trace" not in expression:
        arrays["a"][[5, 20], 0] = arrays["b"][1, [3, 18]] = arrays["v"][40] = np.nan
        arrays["a"][3, 1] = arrays["v"][3] = -0.0
    before = interpret(checked, "graph", arrays).values["out"][0]
    after = interpret(replace(checked, graph=graph), "graph", arrays).values["out"][0]
    np.testing.assert_allclose(after, before, rtol=1e-12)


@pytest.mark.parametrize("expression", LEFT)
def test_a_line_is_left_where_rewriting_would_save_nothing_or_change_its_value(expression: str) -> None:
    assert read(f'graph: {{out: "{expression}"}}\noutputs: {{out: []}}')[1] is None


def test_a_scan_is_dropped_only_if_nothing_else_reads_it() -> None:
    _, alone = read("graph: {c: 'cumsum(a, axis=0)', out: 'c[2] * 2'}\noutputs: {out: []}")
    assert alone is not None
    assert terms(alone) == {"out": "sum(where((arange(32) <= 2)[:, None], a, 0), axis=0) * 2"}
    for others in ("c: [x]", "again: []"):
        lines = "graph: {c: 'cumsum(a, axis=0)', out: 'c[2]', again: 'c[3]'}"
        assert read(f"{lines}\noutputs: {{out: [], {others}}}")[1] is None


def test_a_padded_array_is_dropped_only_if_convolutions_alone_read_it() -> None:
    pad, conv = "pad(b[None], ((0, 0), (0, 0), (1, 1)))", "conv(p, ones((2, 4, 3)), (1,), 'VALID')"
    _, graph = read(f'graph: {{p: "{pad}", out: "{conv}", again: "{conv} * 2"}}\noutputs: {{out: [], again: []}}')
    alone = "conv(b[None], ones((2, 4, 3)), (1,), [(1, 1)])"
    assert graph is not None
    assert terms(graph) == {"out": alone, "again": f"{alone} * 2"}
    assert read(f'graph: {{p: "{pad}", out: "{conv}", again: "p * 2"}}\noutputs: {{out: [], again: []}}')[1] is None


def test_a_line_of_a_repeat_is_rewritten_unless_it_reads_the_next_carry() -> None:
    body = "{repeat: 3, carry: {c: a}, body: {%s}}\n  out: steps.c\noutputs: {out: [x]}"
    _, graph = read(f"graph:\n  steps: {body}" % "c: 'concatenate([c[-1:], c[:-1]]) * 2'")
    assert graph is not None
    assert terms(graph)["steps.c"] == "roll(c, 1, axis=0) * 2"
    after = "c: c + 1, d: 'concatenate([c[-1:], c[:-1]])'"
    assert read(f"graph:\n  steps: {body}" % after)[1] is None


def test_a_padded_array_stays_in_a_repeat_where_one_of_its_readers_is_left() -> None:
    conv = "conv(p, ones((4, 4, 3)), (1,), 'VALID')"
    lines = f'p: "pad(b[None], ((0, 0), (0, 0), (1, 1)))", c: "c + {conv}[0]", d: "{conv}[0] * c"'
    repeat = f"{{repeat: 2, carry: {{c: b}}, body: {{{lines}}}, stack: {{d: d}}}}"
    checked, graph = read(f"graph:\n  steps: {repeat}\n  out: steps.c\noutputs: {{out: [null, x]}}")
    before = interpret(checked, "graph", {array.name: np.ones(array.shape) for array in checked.arrays})
    changed = checked if graph is None else replace(checked, graph=graph)
    after = interpret(changed, "graph", {array.name: np.ones(array.shape) for array in checked.arrays})
    np.testing.assert_array_equal(after.values["out"][0], before.values["out"][0])
