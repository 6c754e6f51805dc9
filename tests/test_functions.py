"""An experiment's own functions, and lines that both sections share: what they become, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runner.base.faults import InvalidExperiment
from runner.checks.reference import interpret
from runner.compiled.evidence.hlo import Metadata
from runner.compiled.evidence.nodes import Origins
from runner.experiment.changing import ChangingGraph
from runner.experiment.model import Experiment
from runner.graph.language import printing
from runner.graph.language.lines import every_line, lines, repeat
from runner.graph.language.lines import expressions as expressions_of
from runner.graph.model import Graph
from runner.graph.term import Name
from runner.programs.types import InferredTypes, Repairs
from runner.programs.writers import WRITERS
from tests.harness import experiment, refusal, run, types

GATHER = "all_gather(w, axis, tiled=True, to='invarying')"

GOOD = """\
mesh: {axes: [x, y], shape: [2, 2]}
dims: {B: 8, D: 8}
arrays:
  h: {shape: [B, D], spec: [x, null]}
  g: {shape: [D], spec: [y]}
functions:
  rms(x, g, eps=1e-6): x * rsqrt(mean(x ** 2, axis=-1, keepdims=True) + eps) * g
  pair(a, b): (a * b, a + b)
  deep(x):
    inner: rms(x, x)
    result: inner + 1
  whole:
    of: [w, axis]
    result: {graph: w, per_device: "all_gather(w, axis, tiled=True, to='invarying')"}
both:
  n: rms(h, whole(g, 'y'))
outputs: {n: [x, null]}
"""


def text_of(graph: Graph) -> dict[str, str]:
    lines = expressions_of(graph)
    return {line.name: printing.text(expression.term) for line, expression in lines if not (line.loops or line.first)}


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


SCAN = """\
mesh: {axes: [x], shape: [2]}
dims: {B: 8}
arrays:
  a: {shape: [B], spec: [x]}
  b: {shape: [B], spec: [x]}
functions:
  after(p, q):
    slope: p[0] * q[0]
    result: (slope, q[0] * p[1] + q[1])
  scanned(first, b, k): "associative_scan(lambda p, q: p * q + k - k, first * b)"
graph:
  h: associative_scan(after, (a, b))[1] + scanned(a, b, 2)
outputs: {h: [x]}
"""


def test_a_function_that_combines_two_values_stands_in_the_scan_as_a_lambda() -> None:
    after = "lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1])"
    assert text_of(experiment(SCAN).computed("graph")) == {
        "h_scanned": "associative_scan(lambda p, q: p * q + 2 - 2, a * b)",
        "h": f"associative_scan({after}, (a, b))[1] + h_scanned",
    }


def test_a_scan_by_a_function_is_the_recurrence(tmp_path: Path) -> None:
    a, b = np.linspace(0.5, 1, 8), np.arange(8.0)
    h, wanted, product = 0.0, [], np.cumprod(a * b)
    for slope, more in zip(a, b, strict=True):
        h = slope * h + more
        wanted.append(h)
    result = interpret(experiment(SCAN), "graph", {"a": a, "b": b}).values["h"][0]
    np.testing.assert_allclose(result, wanted + product)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "after(p, q):",
            "after(p, q, r=1):",
            "a function that combines two values has two parameters; after(p, q, r=1) has 3",
        ),
        (
            "slope: p[0]",
            "slope: scanned(p[0], q[0], 1)",
            "it cannot call the function 'scanned'",
        ),
        ("slope: p[0] * q[0]", "slope, other: (p[0], q[0])", "it cannot have repeats, or lines with several names"),
    ],
)
def test_a_function_that_cannot_combine_two_values_is_refused(old: str, new: str, says: str) -> None:
    assert SCAN.count(old) == 1
    with pytest.raises(InvalidExperiment, match=re.escape(says)):
        experiment(SCAN.replace(old, new))


SLICED = """\
mesh: {axes: [x], shape: [2]}
dims: {I: 4}
arrays: {a: {shape: [I, I], init: "arange(16)", spec: [null, x]}}
functions: {half(n): n // 2}
both: {last: "a[half(I):]"}
outputs: {last: [null, x]}
"""


def test_a_call_becomes_the_functions_lines_under_unique_names() -> None:
    read_ = experiment(GOOD)
    norm = "h * rsqrt(mean(h ** 2, axis=-1, keepdims=True) + 1e-06) * n_g"
    assert text_of(read_.computed("graph")) == {"n_g": "g", "n": norm}
    assert text_of(read_.computed("per_device")) == {"n_g": "all_gather(g, 'y', tiled=True, to='invarying')", "n": norm}


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("n: deep(h)", {"n_inner": "h * rsqrt(mean(h ** 2, axis=-1, keepdims=True) + 1e-06) * h", "n": "n_inner + 1"}),
        ("n: 2 * deep(x=h + 1)", {"n_deep_x": "h + 1", "n_deep_inner": None, "n_deep": None, "n": "2 * n_deep"}),
        ("n, m: pair(h, 2)", {"n": "h * 2", "m": "h + 2"}),
        ("n, m: split(h, 2)", {"n_m": "split(h, 2)", "n": "n_m[0]", "m": "n_m[1]"}),
        ("n, m: (h + 1, h)", {"n": "h + 1", "m": "h"}),
        ("n_inner: h\n  n: deep(n_inner)", {"n_inner": "h", "n_inner_2": None, "n": "n_inner_2 + 1"}),
    ],
)
def test_lines_with_calls_are_written_out(line: str, lines: dict[str, str | None]) -> None:
    text = changed("n: rms(h, whole(g, 'y'))", line).replace("outputs: {n: [x, null]}", "outputs: {n: []}")
    expressions = text_of(experiment(text).computed("graph"))
    assert list(expressions) == list(lines)
    assert all(expected is None or expressions[name] == expected for name, expected in lines.items())


CLOSED = """
mesh: {axes: [x], shape: [2]}
arrays:
  A: {shape: [4, 4], init: "arange(16) / 16", spec: [x, null]}
  W: {shape: [4, 4], init: "arange(16) % 5 - 2", spec: [null, null]}
functions:
  f(h): h @ W
  g(h):
    gate: tanh(h)
    result: gate * f(h)
both:
  m: {graph: "map(f, A)", per_device: "map(f, A, length=2)"}
  c: cond(W[0, 0] < 0, f, g, A)
  l:
    repeat: 2
    carry: {h: g(A)}
    body: {h: g(h)}
  C: m + c + l.h
outputs: {C: [x, null]}
"""


@pytest.mark.in_turn
def test_a_function_reads_arrays_as_a_python_closure_does(tmp_path: Path) -> None:
    outcome = run(CLOSED, tmp_path)
    assert outcome.failures() == []
    a, w = np.arange(16).reshape(4, 4) / 16, np.arange(16).reshape(4, 4) % 5 - 2.0
    h = np.tanh(a) * (a @ w)
    for _ in range(2):
        h = np.tanh(h) * (h @ w)
    for program in outcome.experiment.programs:
        np.testing.assert_allclose(outcome.value(program, "C"), 2 * (a @ w) + h, rtol=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "place", "part"),
    [
        ("carry: {h: g(A)}\n    body: {h: g(h)}", "carry: {W: A}\n    body: {W: f(W)}", "both.l.body.W", "f(W)"),
        ("gate: tanh(h)", "W: tanh(h)", "functions.g(h).result", "f(h)"),
        ("g(h):\n    gate: tanh(h)", "g(W):\n    gate: tanh(W)\n    h: gate", "functions.g(W).result", "f(h)"),
        ('"map(f, A)"', '"map(lambda W: f(W), A)"', "both.m.graph", "f(W)"),
    ],
)
def test_a_name_that_hides_an_array_is_refused_where_a_function_reads_the_array(
    old: str, new: str, place: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert old in CLOSED
    message_lines = refusal(experiment, CLOSED.replace(old, new), tmp_path / "e.yaml").splitlines()
    assert message_lines[0].endswith(f"  {place}")
    assert message_lines[1] == "  'f' reads the array 'W', and here 'W' is another value; rename it"
    assert part in message_lines[2]


def test_a_function_that_combines_two_values_reads_no_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = CLOSED.replace("f(h): h @ W", "f(h): h @ W\n  both_(a, b): a + b * W").replace(
        '{graph: "map(f, A)", per_device: "map(f, A, length=2)"}', "associative_scan(both_, A, axis=1)"
    )
    message = refusal(experiment, text, tmp_path / "e.yaml")
    assert "  a function that combines two values reads nothing else; 'both_' reads 'W'\n" in message


def test_a_function_may_have_the_name_of_the_experiment() -> None:
    text = CLOSED.replace("f(h)", "case(h)").replace("(f,", "(case,").replace(", f,", ", case,")
    source = written(experiment(f"name: case\n{text}"))
    assert "def case(A, W):" in source
    assert "def case_2(h, W):" in source


def test_a_function_of_sizes_can_be_called_in_a_slice(tmp_path: Path) -> None:
    outcome = run(SLICED, tmp_path)
    assert outcome.failures() == []
    np.testing.assert_array_equal(outcome.value("shard_map", "last"), np.arange(16).reshape(4, 4)[2:])


def test_a_repeat_in_a_function_hides_no_name_of_the_caller() -> None:
    """`acc` is an array of the caller and a name that the function's repeat carries."""
    text = """
    arrays: {acc: {shape: [4], init: "arange(4)"}}
    functions:
      powered(x, n):
        loop: {repeat: n, carry: {acc: x}, body: {t: acc * x, acc: t}}
        result: loop.acc
    both: {n: "powered(acc, 2)"}
    outputs: {n: []}
    """
    graph = experiment(text).computed("graph")
    (loop,) = filter(None, map(repeat, lines(graph)))
    assert (loop.name, loop.form.steps) == ("n_loop", 2)
    texts = {str(line): printing.text(expression.term) for line, expression in expressions_of(graph)}
    assert (texts["n_loop.n_t"], texts["n_loop.acc"]) == ("acc * n_x", "n_t")


def test_the_steps_of_a_repeat_may_be_passed_through_functions() -> None:
    text = """
    arrays: {a: {shape: [4]}}
    functions:
      handed(m, x): repeated(m, x)
      repeated:
        of: [n, x]
        loop: {repeat: n, carry: {c: x}, body: {c: c + 1}}
        result: loop.c
    graph: {y: "handed(2, a)"}
    outputs: {y: []}
    """
    (loop,) = filter(None, map(repeat, lines(experiment(text).computed("graph"))))
    assert loop.form.steps == 2


FAULTS = {
    "a function's own name around the call": (
        ("n: rms(h, whole(g, 'y'))", "m: deep(h)\n  n: m_inner + 1"),
        "e.yaml:17:6  both.n\n  no array, dim or earlier name 'm_inner'; there are B, D, g, h, m\n"
        "    m_inner + 1\n    ^^^^^^^",
    ),
    "an unknown name of a function that is called": (
        ("x * rsqrt(", "xx * rsqrt("),
        "e.yaml:7:24  functions.rms(x, g, eps=1e-6)\n  no array, dim or earlier name 'xx'; did you mean 'x'?\n"
        "    xx * rsqrt(mean(x ** 2, axis=-1, keepdims=True) + eps) * g\n    ^^",
    ),
    "too few arguments": (
        ("rms(h, whole(g, 'y'))", "rms(h)"),
        "e.yaml:16:6  both.n\n  rms(): missing a required argument: 'g'; it takes (x, g, eps=1e-06)\n"
        "    rms(h)\n    ^^^^^^",
    ),
    "too many arguments, in a function": (
        ("inner: rms(x, x)", "inner: rms(x, x, 1, 2)"),
        "e.yaml:10:12  functions.deep(x).inner\n  rms(): too many positional arguments; it takes (x, g, eps=1e-06)\n"
        "    rms(x, x, 1, 2)\n    ^^^^^^^^^^^^^^^",
    ),
    "recursion": (
        ("inner + 1", "deep(x)"),
        "e.yaml:11:13  functions.deep(x).result\n  a cycle: deep → deep; a function cannot call itself\n"
        "    deep(x)\n    ^^^^^^^",
    ),
    "a collective in graph: where it is defined and where it is used": (
        (f'{{graph: w, per_device: "{GATHER}"}}', GATHER),
        "e.yaml:14:13  functions.whole.result\n"
        "  'all_gather' is a collective; graph computes on whole arrays and has none; it belongs in per_device\n"
        f"    {GATHER}\n    ^^^^^^^^^^\n  called in both.n (e.yaml:16:6)",
    ),
    "an axis that is not there": (
        ("whole(g, 'y')", "whole(g, 'z')"),
        "e.yaml:14:36  functions.whole.result.per_device\n  mesh axis 'z' does not exist; the mesh has x, y\n"
        f"    {GATHER}\n                  ^^^^\n  called in both.n (e.yaml:16:6)",
    ),
    "a function that is not there": (
        ("n: rms(", "n: rmss("),
        "e.yaml:16:6  both.n\n  no operation or function 'rmss'; did you mean 'rms'?\n"
        "    rmss(h, whole(g, 'y'))\n    ^^^^",
    ),
    "another number of results": (
        ("n: rms(h, whole(g, 'y'))", "n, m, k: pair(h, h)"),
        "e.yaml:8:15  functions.pair(a, b)\n  it gives 2 values for 3 names\n"
        "    (a * b, a + b)\n    ^^^^^^^^^^^^^^\n  called in both.n, m, k (e.yaml:16:12)",
    ),
    "a name twice": (("n: rms(", "n, n: rms("), "e.yaml:16:9  both.n, n\n  'n' appears twice"),
    "the name of an operation": (
        ("pair(a, b)", "sum(a, b)"),
        "e.yaml:8:14  functions.sum(a, b)\n  'sum' is an operation already; a name means one thing",
    ),
    "the name of a line": (
        ("n: rms(", "pair: h\n  n: rms("),
        "e.yaml:8:15  functions.pair(a, b)\n  'pair' is a line already; a name means one thing",
    ),
    "a dim as a parameter": (
        ("pair(a, b)", "pair(a, B)"),
        "e.yaml:8:15  functions.pair(a, B)\n  'B' is a dim already; a name means one thing",
    ),
    "stars": (
        ("pair(a, b)", "pair(*a)"),
        "e.yaml:8:13  functions.pair(*a)\n  a function has parameters by their names, no '*' and no '/'",
    ),
    "no parenthesis": (
        ("pair(a, b)", "pair(a"),
        "e.yaml:8:11  functions.pair(a\n  'pair(a' is not a name with parameters; "
        "write NAME(x, y): EXPRESSION, or NAME: {of: [x, y], result: EXPRESSION}",
    ),
    "no parameters": (
        ("pair(a, b)", "pair"),
        "e.yaml:8:9  functions.pair\n  the function 'pair' has no parameters; write NAME(x, y): EXPRESSION, or NAME: "
        "{of: [x, y], result: EXPRESSION}",
    ),
    "no result": (
        ("result: inner + 1", "rseult: inner + 1"),
        "e.yaml:9:3  functions.deep(x)\n  the function 'deep' has no 'result', the line with its value",
    ),
    "a line with the name of a parameter": (
        ("inner: rms(x, x)", "x: rms(x, x)"),
        "e.yaml:10:8  functions.deep(x).x\n  'x' is a parameter already; a name means one thing",
    ),
    "a default that is an array": (
        ("eps=1e-6", "eps=g"),
        "e.yaml:7:21  functions.rms(x, g, eps=g)\n  the default 'g' is not a number, a text, or a tuple of them",
    ),
    "a section that there is not": (
        ("n: rms(h, whole(g, 'y'))", "n: {graph: h, perdevice: h}"),
        "e.yaml:16:28  both.n.perdevice\n"
        "  a line that differs between the sections is {graph: …, per_device: …}; it has no 'perdevice'",
    ),
    "a difference in one section": (
        ("both:\n  n: rms(h, whole(g, 'y'))", "graph:\n  n: {graph: h, per_device: h}"),
        "e.yaml:16:3  graph.n\n"
        "  a line of one section cannot differ between the sections; lines that do belong in 'both'",
    ),
    "a line that both have already": (
        ("outputs:", "graph: {n: h}\noutputs:"),
        "e.yaml:17:12  graph.n\n  'n' is a line of both already; a name means one thing",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_invalid_input_is_refused_with_a_message(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (old, new), message = FAULTS[name]
    monkeypatch.chdir(tmp_path)
    assert refusal(experiment, changed(old, new), tmp_path / "e.yaml") == message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("x * rsqrt(", "reshape(x, (3,)) * rsqrt(", "  called in both.n (e.yaml:16:6)"),
        ("n: rms(h, whole(g, 'y'))", "n, m: split(h, 4)", "  it gives 4 values for 2 names"),
    ],
)
def test_a_refusal_of_jax_names_the_line(
    old: str, new: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refusal(types, changed(old, new), tmp_path / "e.yaml").splitlines()


def written(of: Experiment, program: str = "auto") -> str:
    """Return the source of a program that needs no types."""
    nothing = InferredTypes({}, {}, Repairs(), {})
    return next(write for name, write in WRITERS.items() if name == program)(of, Path(), nothing)


TWICE = changed("n: rms(h, whole(g, 'y'))", "m: deep(h)\n  n: deep(rms(m, whole(g, 'y'), 1e-3)) + rms(h, h)")


def test_a_program_writes_each_function_once() -> None:
    source = written(experiment(TWICE))
    assert source.count("def deep(x):") == 1
    assert source.count("def rms(x, g):") == 1
    # Another number as an argument makes another function.
    assert source.count("def rms_2(x, g):") == 1
    assert "+ 0.001" in source
    assert "m = deep(h)" in source
    assert "inner = rms(x, x)" in source


def test_edited_single_lines_are_written_in_place() -> None:
    read_ = experiment(TWICE)
    graph = read_.computed("graph")
    line = next(line for line in every_line(graph) if line.name == "m_inner")
    source = written(replace(read_, graph=ChangingGraph(graph).changed({line: Name("h")})))
    assert "m_inner = h\n" in source
    assert "m = m_inner + 1" in source
    assert 'jax.named_scope("m/inner")' in source


def test_named_scopes_lead_back_to_lines() -> None:
    origins = Origins(experiment(TWICE), "graph")
    for stack, line in {
        "jit(f)/m/add": "m",
        "jit(f)/m/inner/mul": "m_inner",
        "jit(f)/transpose(jvp(m))/inner/mul": "m_inner",
        "jit(f)/n_deep/inner/rsqrt": "n_deep_inner",
        "jit(f)/n/add": "n",
    }.items():
        (origin,) = origins.of(Metadata(stack))
        assert origin.node == line, stack


@pytest.mark.in_turn
def test_functions_and_shared_lines_run_in_every_program(tmp_path: Path) -> None:
    text = TWICE.replace("both:", "  turned(a, b): (a - b, 2 * a)\nboth:\n  u, w: turned(h, 3 * h)")
    text = text.replace("outputs: {n: [x, null]}", "outputs: {n: [x, null], u: [x, null], w: [x, null]}")
    outcome = run(text, tmp_path)
    assert outcome.failures() == []
    assert set(outcome.runs) == {"auto", "constraint", "explicit", "derived", "shard_map", "vmap"}
    assert "u, w = turned(h, u_w_b)" in outcome.sources["shard_map"]
    gathers = outcome.record.compiled["shard_map"].collectives
    assert [(c.kind, c.node) for c in gathers or ()] == [("all-gather", "n_deep_x_g")]
