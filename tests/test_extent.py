"""Unbounded work is counted first, and refused with one message; a user's text stays text everywhere."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.base.faults import InvalidExperiment
from runner.experiment import extent
from runner.experiment.config import text_size
from runner.experiment.config.compose import InvalidConfiguration, refuse_too_much
from runner.experiment.model import Experiment
from runner.experiment.reader import read
from runner.programs.source import in_docstring
from tests import harness
from tests.command import ROOT

ARRAYS = "arrays: {A: {shape: [4, 4], spec: [x]}}\noutputs: {C: []}\n"


def fault(text: str) -> str:
    with pytest.raises(InvalidExperiment) as error:
        harness.experiment(text)
    return str(error.value)


def chain(count: int, expression: str) -> str:
    lines = "".join(f"  f{i}(x): {expression.format(i + 1)}\n" for i in range(count))
    return f"{ARRAYS}functions:\n{lines}  f{count}(x): x\ngraph: {{C: sum(f0(A))}}\n"


def test_a_chain_as_deep_as_may_be_is_read() -> None:
    assert isinstance(harness.experiment(chain(extent.DEEPEST - 1, "f{}(x) + 1")), Experiment)


@pytest.mark.parametrize("count", [extent.DEEPEST, 500, 3000])
def test_a_deeper_chain_is_refused(count: int) -> None:
    assert fault(chain(count, "f{}(x) + 1")) == (
        "functions.f0(x): calls of functions nest more than 50 deep: f0 → f1 → … → f50; write some of them as one"
    )


@pytest.mark.parametrize("expression", ["f{0}(x) + f{0}(x)", "f{0}(f{0}(x))", "map(f{0}, x) + map(f{0}, x)"])
def test_exponential_calls_are_counted_before_they_are_written_out(expression: str) -> None:
    start = time.process_time()
    assert "as each call in it is written out; the limit is 10,000" in fault(chain(30, expression))
    assert time.process_time() - start < 5


def test_calls_of_a_section_are_counted_together() -> None:
    lines = "".join(f"  y{i}: f0(A)\n" for i in range(30))
    text = f"{chain(8, 'f{0}(x) + f{0}(x)').partition('graph')[0]}graph:\n{lines}  C: sum(y0)\n"
    message = "its calls come to 512 lines, and graph to more than 10,000, the most allowed"
    assert fault(text) == f"graph.y19: {message}"


@pytest.mark.parametrize("steps", ["10000", "10**30", str(extent.UNROLLED + 1)])
def test_an_unrolled_repeat_of_many_steps_is_refused_before_it_is_traced(steps: str) -> None:
    text = f"{ARRAYS}graph: {{r: {{repeat: '{steps}', carry: {{a: A}}, body: {{a: a + 1}}}}, C: sum(r.a)}}\n"
    assert "unroll: false compiles one step" in fault(text)
    if steps != "10**30":
        assert harness.experiment(text.replace("carry:", "unroll: false, carry:")).graph


def test_repeats_in_repeats_multiply() -> None:
    inner = "{repeat: 40, carry: {b: a}, body: {b: b + 1}}"
    body = f"{{inner: {inner}, a: inner.b}}"
    text = f"{ARRAYS}graph: {{r: {{repeat: 30, carry: {{a: A}}, body: {body}}}, C: sum(r.a)}}\n"
    assert "compile its 1,230 lines one by one, and the limit is 1,000 lines" in fault(text)


def test_an_unrolled_repeat_of_some_steps_is_said_to_cost_time() -> None:
    text = f"{ARRAYS}graph: {{r: {{repeat: 300, carry: {{a: A}}, body: {{a: a + 1}}}}, C: sum(r.a)}}\n"
    experiment = harness.experiment(text)
    (warning,) = extent.warnings(experiment.computed("graph"), "graph")
    assert warning.startswith("'r' of graph is unrolled to 300 lines")
    assert extent.warnings(harness.experiment(text.replace("300", "9")).computed("graph"), "graph") == []


@pytest.mark.parametrize(
    "written", ["{r: {repeat: '10**30', unroll: false, carry: {a: A}, body: {a: a + 1}}, C: sum(r.a)}",
                "{B: 'map(lambda x: x + 1, A, length=10**30)', C: sum(B)}"]
)  # fmt: skip
def test_steps_without_bound_are_refused(written: str) -> None:
    assert "and the reference computes each in NumPy; the limit is 1,000,000" in fault(f"{ARRAYS}graph: {written}\n")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("'f(x, x)': x", "the parameter 'x' appears twice"),
        ("f: {of: [x, x], result: x}", "the parameter 'x' appears twice"),
        ("'f(x, x=1)': x", "the parameter 'x' appears twice"),
        ("'f(x, y={1: 2})': x", "is not a number, a text, or a tuple of them"),
        ("'f(x, y={[]})': x", "is not a number, a text, or a tuple of them"),
        ("'f(x, y=b\"a\")': x", "is not a number, a text, or a tuple of them"),
        ("'f(x): pass; def g(x)': x", "is not a name with parameters"),
        ("'f(x): return x #': x", "is not a name with parameters"),
        ('"f(x, y=\\0)": x', "is not a name with parameters"),
        (f"f: {{of: 'x, y={'9' * 5000}', result: x}}", "999…' is not a name with parameters"),
        (f"f: {{of: 'x, y={'(' * 3000}{')' * 3000}', result: x}}", "(((…' is not a name with parameters"),
    ],
    ids=range(11),
)
def test_invalid_parameters_are_refused(written: str, message: str) -> None:
    assert message in fault(f"{ARRAYS}functions: {{{written}}}\ngraph: {{C: 'sum(f(A))'}}\n")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_docstring_has_exactly_the_text(text: str) -> None:
    source = f'"""{in_docstring(text)}\n"""\n'
    assert ast.get_docstring(ast.parse(source), clean=False) == f"{text}\n"
    source.encode()


@pytest.mark.parametrize("digits", ["9" * 1001, "0x" + "f" * 1000, "-" + "1" * 5000])
def test_a_number_of_very_many_digits_is_refused_before_it_is_read(digits: str) -> None:
    refusal = text_size.refusal(f"dims:\n  I: {digits}\n")
    assert refusal is not None
    assert refusal[:2] == (2, 6)
    assert refusal[2].endswith("digits; the limit is 1,000, and no dtype has more than 64 bits")
    with pytest.raises(InvalidConfiguration, match="the limit is 1,000"):
        refuse_too_much([f"seed={digits}"], [ROOT / "conf"])
    assert text_size.refusal(f"summary: '{digits}'\n") is None


@pytest.mark.parametrize("key", ["summary", "source"])
def test_an_unpaired_surrogate_is_refused(key: str) -> None:
    config = harness.config(f"{ARRAYS}graph: {{C: sum(A)}}\n")
    with pytest.raises(InvalidExperiment, match="a lone surrogate"):
        read({**config, key: "a\ud800"})
    assert text_size.refusal(f'name: a\n{key}: "a\\ud800"\n') is not None
    assert text_size.refusal(f'name: a\n{key}: "a\\U0001F600"\n') is None


def test_a_value_with_too_many_dimensions_for_numpy_is_refused_at_its_line(tmp_path: Path) -> None:
    text = f"{ARRAYS}graph: {{B: 'reshape(A, ({'1, ' * 68}4, 4))', C: sum(B)}}\n"
    with pytest.raises(InvalidExperiment, match=r"graph\.B: it has more than 64 dimensions"):
        harness.consulted(harness.experiment(text), tmp_path)


def test_einsum_letters_beyond_numpys_are_supported(tmp_path: Path) -> None:
    text = f"{ARRAYS}graph: {{B: \"einsum('éü,üб', A, A)\", C: \"einsum('éü->', B)\"}}\n"
    outcome = harness.run(text, tmp_path, program="auto")
    assert outcome.failures() == []


def test_more_elements_than_xla_counts_are_refused_where_they_are_made() -> None:
    text = f"{ARRAYS}graph: {{B: 'tile(A, (10**9, 10**9))', C: sum(B)}}\n"
    with pytest.raises(InvalidExperiment, match=r"graph\.B: it has 16,000,000,000,000,000,000 elements"):
        harness.types(text)


@pytest.mark.in_turn
def test_a_derived_line_that_would_nest_too_deep_is_not_derived(tmp_path: Path) -> None:
    outcome = harness.run(f"{ARRAYS}graph: {{C: 'sum(A{'.T' * 99})'}}\n", tmp_path)
    assert outcome.failures() == []
    assert "nested more than 100 levels deep" in outcome.types.unsupported["derived"]


@pytest.mark.in_turn
def test_a_choice_in_a_branch_of_a_choice_of_the_same_name(tmp_path: Path) -> None:
    functions = "{'f(x)': 'cond(sum(x) > 0, g, h, x)', 'g(x)': 'cond(sum(x) > 1, h, h, x)', 'h(x)': x + 1}"
    outcome = harness.run(f"{ARRAYS}functions: {functions}\ngraph: {{C: sum(f(A))}}\n", tmp_path)
    assert outcome.failures() == []
