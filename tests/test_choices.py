"""`cond` and `switch`: the lines that they become, the programs, the results, and the refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from runner.base.executions import Range
from runner.base.faults import Fault, InvalidExperiment
from runner.checks.diagnosis import mutants
from runner.checks.reference import interpret
from runner.compiled.evidence.hlo import Metadata
from runner.compiled.evidence.nodes import Origins
from runner.experiment.model import Experiment
from runner.graph.inlining import inlined
from runner.graph.language import printing
from runner.graph.language.lines import every_line, expressions
from runner.graph.model import Branches, CalledFunction, Graph, Repeat
from runner.reports.record.model import CompiledProgram
from tests.harness import consulted, experiment, run

STEP = """\
mesh: {axes: [x, y], shape: [2, 2]}
dims: {B: 8, D: 8}
arrays:
  h: {shape: [B, D], spec: [x, null]}
  w: {shape: [D, D], spec: [null, y], init: "normal(0, 0.3)"}
  s: {shape: [], init: 1.0}
  i: {shape: [], dtype: int32, init: 1}
functions:
  dense(x, w):
    part: {graph: x @ w, per_device: "all_gather(x @ w, 'y', axis=1, tiled=True, to='invarying')"}
    result: tanh(part)
  scaled(x, w): {graph: x * sum(w ** 2), per_device: "x * psum(sum(w ** 2), 'y')"}
  block(x, w, s):
    a: "cond(s > 2, dense, lambda x, w: x + dense(x, w), x, w)"
    result: a + 1
both:
  y: cond(s > 0, dense, scaled, h, w)
  z: "switch(i + 1, [dense, lambda x, w: x - 1, scaled], y + 1, w)"
  b: block(z, w, s)
  u, v: "cond(s > 1, lambda: (b, dense(b, w)), lambda: (b + 1, b))"
  layers:
    repeat: 3
    carry: {c: u}
    body:
      c: "cond(i == 1, lambda: c * 2 + v, lambda: c)"
    unroll: false
  l: {graph: mean(layers.c ** 2), per_device: "pmean(mean(layers.c ** 2), 'x')"}
outputs: {y: [x, null], z: [x, null], u: [x, null], v: [x, null], l: []}
grad: {of: l, wrt: [w, h]}
"""


def changed(**sections: Any) -> dict[str, Any]:
    return {**yaml.safe_load(STEP), **sections}


def refused(config: dict[str, Any], **changes: Any) -> Fault:
    with pytest.raises(InvalidExperiment) as caught:
        experiment(config, **changes)
    return caught.value.fault


def value(of: Experiment, name: str, **given: np.ndarray) -> np.ndarray:
    whole: np.ndarray = interpret(of, "graph", given).values[name][0]
    return whole


def test_one_branch_is_taken_and_the_index_is_clamped() -> None:
    drawn = np.random.default_rng(3)
    h, w = drawn.normal(size=(8, 8)), drawn.normal(size=(8, 8))
    plain = experiment(changed())
    dense, scaled = np.tanh(h @ w), h * (w**2).sum()
    for s, expected in ((1.0, dense), (-1.0, scaled)):
        given = {"h": h, "w": w, "s": np.array(s), "i": np.array(-1)}
        np.testing.assert_allclose(value(plain, "y", **given), expected, rtol=1e-12)
        y1 = expected + 1
        for i, result in (
            (-7, np.tanh(y1 @ w)),
            (-1, np.tanh(y1 @ w)),
            (0, y1 - 1),
            (1, y1 * (w**2).sum()),
            (9, y1 * (w**2).sum()),
        ):
            taken = value(plain, "z", **(given | {"i": np.array(i)}))
            np.testing.assert_allclose(taken, result, rtol=1e-12)


@pytest.mark.in_turn
def test_every_program_and_its_gradients_are_right(tmp_path: Path) -> None:
    outcome = run(STEP, tmp_path)
    assert outcome.failures() == []
    assert set(outcome.checks) == {"auto", "constraint", "explicit", "derived", "shard_map", "vmap"}
    source = outcome.sources["shard_map"]
    assert "y = jax.lax.cond(y_on, dense, scaled, h, w)" in source
    assert "z = jax.lax.switch(z_index, [lambda: dense(z_x, w), lambda: z_x - 1, lambda: scaled(z_x, w)])" in source
    assert "jax.lax.cond" not in outcome.sources["derived"]
    derivation = outcome.types.derivation
    assert derivation is not None
    assert "every branch of 'y' is computed: derived lines have no functions to choose between" in derivation.notes
    # The branch is only known when the program runs, so the record cannot say more.
    mine = outcome.record.programs["shard_map"]
    assert isinstance(mine, CompiledProgram)
    assert mine.collectives is not None
    counts = {(each.node, each.gradient): each.count for each in mine.collectives}
    assert counts["y_dense_part", False] == Range(min=0, max=1)
    assert counts["l", False] == 1
    assert mine.collectives_unknown == []


@pytest.mark.in_turn
def test_a_branch_that_is_not_taken_may_be_infinite(tmp_path: Path) -> None:
    text = """\
mesh: {axes: [x], shape: [2]}
arrays:
  s: {shape: [], init: -2.0}
  v: {shape: [4], spec: [x]}
functions:
  root(s): sqrt(s)
graph:
  r: "cond(s > 0, root, lambda s: 0.5 * s, s)"
  l: sum(v * r)
outputs: {l: []}
grad: {of: l, wrt: [s]}
"""
    outcome = run(text, tmp_path, program=["auto", "explicit"])
    assert outcome.failures() == []
    # If both branches are computed, as in a `where`, the gradient is NaN: 0 times infinity.
    both = text.replace('"cond(s > 0, root, lambda s: 0.5 * s, s)"', "where(s > 0, root(s), 0.5 * s)")
    assert run(both, tmp_path, program="auto").failures() != []


def test_branches_with_other_layouts_are_resharded_to_the_first(tmp_path: Path) -> None:
    text = """\
mesh: {axes: [x], shape: [2]}
arrays:
  a: {shape: [4, 4], spec: [x, null]}
  b: {shape: [4, 4], spec: [null, x]}
  s: {shape: [], init: 1.0}
graph:
  y: "cond(s > 0, lambda: a * 2, lambda: b)"
outputs: {y: [x, null]}
"""
    outcome = run(text, tmp_path, program="explicit")
    assert outcome.failures() == []
    assert "lambda: jax.reshard(" in outcome.sources["explicit"]


def choices(graph: Graph) -> list[Branches]:
    return [equation.form for equation in graph.equations if isinstance(equation.form, Branches)]


def defined(graph: Graph) -> list[str]:
    return [line.name for line in every_line(inlined(graph))]


def forms(graph: Graph) -> list[str]:
    """Return the names of lines and, of calls and choices, those of the functions."""
    lines = (equation for equation in graph.equations if equation.results[0].name)
    return [equation.results[0].name if equation.form is None else equation.operation for equation in lines]


def test_a_choice_is_calls_whose_single_lines_compute_every_branch() -> None:
    given = experiment(changed())
    chosen = {choice.call.label: choice for choice in choices(given.graph)}
    assert list(chosen) == ["y", "z", "u_v"]
    assert [call.function for call in chosen["y"].calls] == ["scaled", "dense"]
    assert [call.arguments for call in chosen["y"].calls] == [(("x", "h"), ("w", "w"))] * 2
    (loop,) = [equation for equation in given.graph.equations if isinstance(equation.form, Repeat)]
    assert choices(loop.bodies[0])
    (block,) = [equation for equation in given.graph.equations if isinstance(equation.form, CalledFunction)]
    assert [choice.call.label for choice in choices(block.bodies[0])] == ["a"]
    lines = {line.name: printing.text(each.term) for line, each in expressions(given.computed("graph"))}
    assert [name for name in lines if name.startswith("y")] == ["y_on", "y_scaled", "y_dense_part", "y_dense", "y"]
    assert (lines["y_dense"], lines["y"]) == ("tanh(y_dense_part)", "where(y_on, y_dense, y_scaled)")
    assert lines["b_a_dense_part"] == "z @ w"


def test_a_gradient_takes_a_choice_whole_and_a_call_apart() -> None:
    text = """\
mesh: {axes: [x], shape: [2]}
arrays:
  w: {shape: [4, 4], spec: [x, null]}
  s: {shape: [], init: 1.0}
functions:
  moved(w, g, s):
    rate: sqrt(s)
    result: w - rate * g
  twice(w): w * 2
graph:
  v: twice(w)
  l: sum(v ** 2)
  n: "cond(s > 0, moved, lambda w, g, s: w, w, grad.w, s)"
  m: moved(v, grad.w, s)
  o: twice(n)
outputs: {l: [], n: [x, null], m: [x, null], o: [x, null]}
grad: {of: l, wrt: [w]}
"""
    given = experiment(text)
    before, after = given.before("graph"), given.after("graph")
    assert forms(before) == ["twice", "l", "n_on", "m_rate"]
    assert defined(before) == ["v", "l", "n_on", "m_rate"]
    assert forms(after) == ["n_x", "cond", "m_g", "m", "twice"]
    assert defined(after) == ["n_x", "n_false", "n_moved_rate", "n_moved", "n", "m_g", "m", "o"]
    assert given.passed("graph") == ("v", "n_on", "m_rate")


def test_instructions_of_a_branch_lead_back_to_its_line() -> None:
    origins = Origins(experiment(changed()), "per_device")
    names = {
        "jit(f)/shard_map/y/cond/branch_1_fun/part/all_gather": "y_dense_part",
        "jit(f)/transpose(jvp())/shard_map/y/cond/branch_0_fun/psum": "y_scaled",
        "jit(f)/shard_map/b/a/cond/branch_0_fun/dense/part/all_gather": "b_a_false_dense_part",
        "jit(f)/shard_map/z/cond/branch_0_fun/part/all_gather": "z_dense_part",
    }
    for stack, line in names.items():
        assert [origin.node for origin in origins.of(Metadata(stack))] == [line], stack


def test_a_branch_that_is_broken_is_noticed(tmp_path: Path) -> None:
    only = changed(both={"y": "cond(s > 0, dense, scaled, h, w)"}, outputs={"y": ["x", None]}, grad=None)
    judgements = mutants.mutants(consulted(experiment(only), tmp_path))
    swapped = [mutant for mutant in judgements if mutant.edit.after == "where(y_on, y_scaled, y_dense)"]
    assert [mutant.outcome for mutant in swapped] == ["noticed"]
    # The value of the branch that is not taken makes no difference.
    assert {mutant.outcome for mutant in judgements if str(mutant.edit.line) == "y_scaled"} <= {
        "equivalent",
        "refused",
        "survived",
    }
    assert "noticed" in {mutant.outcome for mutant in judgements if str(mutant.edit.line) == "y_dense_part"}


def test_values_of_a_branch_are_visible_only_in_it() -> None:
    reads = changed(both={"y": "cond(s > 0, dense, scaled, h, w)", "z": "y_dense + 1"}, outputs={"z": []}, grad=None)
    assert "no array, dim or earlier name 'y_dense'" in refused(reads).message


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("cond(s > 0, lambda: nosuch, lambda: h)", "nosuch"),
        ("cond(s > 0, lambda: h, lambda: h * y_true)", "y_true"),
        ("cond(s > 0, lambda v: v + y_false, lambda v: v, h)", "y_false"),
        ("switch(s, [lambda: h, lambda: cond(s > 0, lambda: h, lambda: y_case1)])", "y_case1"),
        ("cond(s > 0, lambda: map(lambda v: v * v_x, h), lambda: h)", "v_x"),
    ],
)
def test_a_name_that_a_lambda_reads_and_nothing_defines_is_named(line: str, name: str) -> None:
    fault = refused(changed(both={"y": line}, outputs={"y": []}, grad=None))
    assert f"no array, dim or earlier name '{name}'" in fault.message
    assert (fault.expression or "")[fault.start : fault.end] == name


@pytest.mark.parametrize(
    ("line", "known"),
    [("cond(sum(s) > 0, lambda q: q + p, lambda q: q, h)", "q"), ("map(lambda q: q + p, h)", "q")],
)
def test_the_names_that_a_lambda_may_read_are_its_parameters_and_none_that_the_reader_made(
    line: str, known: str
) -> None:
    fault = refused(changed(both={"y": line}, outputs={"y": []}, grad=None))
    names = fault.message.partition("; there are ")[2].split(", ")
    assert known in names
    assert not [name for name in names if name.startswith("y_")]


@pytest.mark.parametrize("line", ["step(w, grad.w, s)", "cond(s > 0, step, kept, w, grad.w, s)"])
def test_a_function_of_which_some_lines_need_gradients_runs(line: str, tmp_path: Path) -> None:
    text = f"""\
mesh: {{axes: [x], shape: [2]}}
arrays:
  w: {{shape: [4, 4], spec: [x, null]}}
  s: {{shape: [], init: 1.0}}
functions:
  step(w, g, s):
    rate: s * 0.1 + 1
    result: w - rate * g
  kept(w, g, s): w
graph:
  l: sum(w ** 2)
  n: {line}
outputs: {{l: [], n: [x, null]}}
grad: {{of: l, wrt: [w]}}
"""
    assert run(text, tmp_path).failures() == []


@pytest.mark.in_turn
def test_a_reader_of_a_choice_that_reads_a_gradient_comes_after_it(tmp_path: Path) -> None:
    text = """\
mesh: {axes: [x], shape: [2]}
arrays:
  w: {shape: [4, 4], spec: [x, null]}
  s: {shape: [], init: 1.0}
graph:
  l: sum(w ** 2)
  t, u: "cond(s > 0, lambda: (w - grad.w, s * 2), lambda: (w, s))"
  v: w * u
  o: t + v
outputs: {l: [], o: [x, null], v: [x, null]}
grad: {of: l, wrt: [w]}
"""
    assert run(text, tmp_path).failures() == []


UNEVEN = {
    "over the axis": ("cond(c[0, 0] > 0, lambda: psum(c, 'x'), lambda: c)", "never reach this psum"),
    "a permute over another": ("cond(c[0, 0] > 0, lambda: ppermute(c, 'y', shift=1), lambda: c)", "this ppermute"),
    "an index": ("cond(axis_index('x') == 0, lambda: all_gather(c, 'x')[0], lambda: c)", "reach this all_gather"),
    "what a loop carries": ("cond(loop.t > 0, lambda: psum(c, 'x'), lambda: c)", "along 'x'"),
    "what another choice gives": (
        "cond(cond(c[0, 0] > 0, lambda: 1, lambda: 0) > 0, lambda: psum(c, 'x'), lambda: c)",
        "psum",
    ),
    "in a function": ("cond(c[0, 0] > 0, total, lambda c: c, c)", "never reach this psum"),
    "in a switch": ("switch(astype(c[0, 0], 'int32'), [lambda: c, lambda: psum(c, 'x')])", "never reach this psum"),
}

EVEN = {
    "over another axis": "cond(c[0, 0] > 0, lambda: pmean(c, 'y'), lambda: c)",
    "made the same": "cond(pmax(c[0, 0], 'x') > 0, lambda: pcast(psum(c, 'x'), 'x', to='varying'), lambda: c)",
    "gathered": "cond(all_gather(c[0, 0], 'x', to='invarying')[0] > 0, lambda: ppermute(c, 'x', shift=1), lambda: c)",
    "of no device": "cond(s > 0, lambda: ppermute(c, 'x', shift=1), lambda: c)",
}


def uneven(line: str) -> dict[str, Any]:
    return {
        "mesh": {"axes": ["x", "y"], "shape": [2, 2]},
        "arrays": {"c": {"shape": [4, 4], "spec": ["x", None]}, "s": {"shape": [], "init": 1.0}},
        "functions": {"total(c)": "psum(c, 'x')"},
        "per_device": {
            "start": "pcast(s, 'x', to='varying')",
            "loop": {"repeat": 2, "carry": {"t": "start"}, "body": {"t": "t + c[0, 0]"}},
            "y": line,
        },
        "outputs": {"y": ["x", None]},
    }


@pytest.mark.parametrize("case", UNEVEN)
def test_a_collective_that_some_devices_never_reach_is_refused(case: str) -> None:
    line, message = UNEVEN[case]
    for check_vma in (False, True):
        assert message in refused(uneven(line), check_vma=check_vma).message


@pytest.mark.in_turn
def test_a_collective_that_all_devices_reach_runs(tmp_path: Path) -> None:
    for line in EVEN.values():
        assert run(uneven(line), tmp_path).failures() == [], line


@pytest.mark.in_turn
def test_a_gradient_that_is_summed_in_a_branch_is_refused(tmp_path: Path) -> None:
    config = uneven("cond(c[0, 0] > 0, lambda: c * s, lambda: c)") | {"grad": {"of": "l", "wrt": ["s"]}}
    config["per_device"]["l"] = "pmean(mean(y ** 2), 'x')"
    config["outputs"]["l"] = []
    fault = refused(config)
    assert "the sum over 'x' in the gradient of 's'; add a line before it: " in fault.message
    assert fault.message.endswith("s_here: pcast(s, 'x', to='varying')")
    assert (fault.expression or "")[fault.start : fault.end] == "s"
    config["per_device"] = {"s_here": "pcast(s, 'x', to='varying')"} | config["per_device"]
    config["per_device"]["y"] = "cond(c[0, 0] > 0, lambda: c * s_here, lambda: c)"
    assert run(config, tmp_path).failures() == []
