"""A section as a graph: the equations of its lines, with the bodies of calls, choices and repeats inside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from runner.checks.reference import interpret
from runner.experiment import data
from runner.experiment.model import Experiment
from runner.graph.language.lines import expressions
from runner.graph.model import Branches, CalledFunction, Equation, Graph, Repeat, literal, walk
from runner.graph.term import Apply, Const, Name
from tests import harness

EVERYTHING = """
dims: {N: 4}
arrays: {A: {shape: [N, N], init: arange(N * N)}, w: {shape: [3, N], init: ones}}
functions:
  "scaled(x, by=2)": {half: x / 2, result: half * by}
graph:
  h: tanh(A @ A.T) + scaled(A, by=3)
  s: sum(h)
  c: "cond(s > 0, lambda: h[0, :2], lambda: zeros((2,), dtype='float32'))"
  loop:
    {repeat: 3, over: {row: w}, carry: {acc: c}, body: {acc: "acc + row[:2] * i"}, stack: {each: acc}, unroll: false}
  out: loop.acc
outputs: {out: []}
"""


def read(**changes: Any) -> Experiment:
    return harness.experiment(EVERYTHING, **changes)


def whole(experiment: Experiment) -> Graph:
    return experiment.graph


def of(graph: Graph, operation: str) -> Equation:
    (equation,) = [each for each in graph.equations if each.operation == operation]
    return equation


def test_a_nested_expression_is_equations_in_the_order_of_evaluation() -> None:
    graph = whole(read())
    lines = str(graph).splitlines()
    assert lines[-1].endswith(f" out = name(%{graph.names['loop.acc']})")
    assert lines[:2] == ["%5 h_scaled = scaled(%0)", "  (%2 x) gives %4:"]
    assert lines[4:8] == ["%6 = transpose(%0)", "%7 = matmul(%0, %6)", "%8 = tanh(%7)", "%9 h = add(%8, %5)"]


def test_a_call_is_an_equation_whose_body_has_the_names_of_the_function() -> None:
    call = of(whole(read()), "scaled")
    assert isinstance(call.form, CalledFunction)
    (body,) = call.bodies
    assert [value.name for value in body.inputs] == ["x"]
    assert [each.results[0].name for each in body.equations] == ["half", ""]
    assert not body.captured


def test_a_branch_captures_values_and_a_repeat_gets_operands() -> None:
    graph = whole(read())
    choice, repeat = of(graph, "cond"), of(graph, "repeat")
    assert isinstance(choice.form, Branches)
    assert choice.form.given == (None, None)
    assert [sorted(body.captured) for body in choice.bodies] == [[], [graph.names["h"]]]
    assert isinstance(repeat.form, Repeat)
    assert [value.name for value in repeat.bodies[0].inputs] == ["acc", "row", "i"]
    assert [value.name for value in repeat.results] == ["loop.acc", "loop.each"]


def test_values_of_a_section_have_distinct_numbers() -> None:
    numbers = [value.number for equation in walk(whole(read())) for value in equation.results]
    assert len(numbers) == len(set(numbers))


def test_the_flat_graph_has_neither_calls_nor_choices() -> None:
    flat = read().computed("graph")
    assert {type(equation.form) for equation in walk(flat)} == {type(None), Repeat}
    assert "where" in {equation.operation for equation in flat.equations}


def test_an_equation_says_where_it_is_written() -> None:
    graph = whole(read())
    product = next(equation for equation in graph.equations if equation.operation == "matmul")
    start, end = product.source.span
    assert product.source.text[start:end] == "A @ A.T"
    assert product.source.line.key == ("h",)
    assert not product.source.whole
    assert of(graph, "add").source.whole


def test_each_value_is_released_after_the_equation_that_reads_it_last() -> None:
    graph = read().computed("graph")
    for position, numbers in enumerate(graph.released):
        for number in numbers:
            assert all(number not in equation.reads for equation in graph.equations[position + 1 :])
    released = [number for numbers in graph.released for number in numbers]
    assert len(released) == len(set(released))
    assert {value.number for value in graph.equations[-1].results} <= set(released)


def test_a_graph_computes_its_lines() -> None:
    given = read()
    a = np.arange(16.0).reshape(4, 4)
    h = np.tanh(a @ a.T) + a / 2 * 3
    arrays = {"A": a.astype(np.float32), "w": np.ones((3, 4), np.float32)}
    values = interpret(given, "graph", arrays).values
    np.testing.assert_allclose(values["out"][0], h[0, :2] + 0 + 1 + 2)
    assert values["loop.each"][0].shape == (3, 2)


def test_a_literal_is_read_from_an_operand() -> None:
    zeros = next(equation for equation in walk(whole(read())) if equation.operation == "zeros")
    assert [literal(operand) for operand in zeros.arguments] == [(2,), "float32"]
    assert literal(of(whole(read()), "add").operands[0]) is None


LINE = """
program: shard_map
arrays:
  A: {shape: [4, 4], init: arange(16), spec: [null, x]}
  B: {shape: [4, 4], init: "arange(16, 32)", spec: [x, null]}
graph: {C: A @ B}
per_device: {C: "psum(A @ B, 'x')"}
outputs: {C: []}
"""
"""The worked example of docs/design.md."""


def test_a_line_is_followed_from_the_file_to_the_verdict(tmp_path: Path) -> None:
    experiment = harness.experiment(LINE)
    graph = experiment.per_device
    ((line, expression),) = expressions(graph)
    assert str(line) == "C"
    assert line.origin is not None
    assert line.origin.key == ("per_device", "C")
    product = Apply("matmul", (Name("A", at=(5, 6)), Name("B", at=(9, 10))), spelled="operator", at=(5, 10))
    assert expression.term == Apply("psum", (product, Const("x", at=(12, 15))), at=(0, 16))
    assert str(graph) == "%2 = matmul(%0, %1)\n%3 C = psum(%2, 'x')"
    columns = [(each.source.start, each.source.end, each.source.whole) for each in graph.equations]
    assert columns == [(5, 10, False), (0, 16, True)]
    named = harness.experiment(LINE, per_device={"partial": "A @ B", "C": "psum(partial, 'x')"})
    values = interpret(named, "per_device", data.make(named, tmp_path)).values
    partial = [id(value) for value in values["partial"]]
    assert partial == [partial[0], partial[0], partial[2], partial[2]]
    assert len(set(partial)) == 2
    assert len({id(value) for value in values["C"]}) == 1
    outcome = harness.run(LINE, tmp_path)
    written = outcome.sources["shard_map"]
    assert 'with jax.named_scope("C"):\n            C = jax.lax.psum(A @ B, "x")\n' in written
    (collective,) = outcome.record.compiled["shard_map"].collectives or []
    assert (collective.kind, collective.nodes, collective.axes) == ("all-reduce", ["C"], ["x"])
    assert not collective.inserted
    assert collective.bytes_out == 64
    assert outcome.checks["shard_map"].value.status == "passed"
