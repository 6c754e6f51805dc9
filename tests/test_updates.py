"""`x.at[index]` and scans by a function: their spelling, their gradients, and the lines of a program."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.graph.language import printing
from runner.graph.language.operations import OPERATIONS
from runner.graph.language.syntax import SyntaxFault, parse
from runner.graph.term import calls, within
from runner.programs.writers import WRITERS
from tests import harness

SPELLED = [
    "x.at[i].set(v)",
    "x.at[1:, ..., i].add(v * 2, mode='drop')",
    "x.at[::2].get()",
    "(x @ y).at[None, rows].multiply(x.at[...].get(mode='fill'), unique_indices=True)",
]


@pytest.mark.parametrize("text", SPELLED)
def test_a_parsed_update_is_printed_unchanged(text: str) -> None:
    assert printing.text(parse(text).term) == text


def test_an_indexed_update_has_the_span_of_its_text() -> None:
    text = "1 + x.at[i].add(v)"
    expression = parse(text)
    (call,) = (part for part in within(expression.term) if calls(part, OPERATIONS))
    assert call.at is not None
    assert text[slice(*call.at)] == "x.at[i].add(v)"


@pytest.mark.parametrize("name", ["at_add(x, i, v)", "x.at[i].apply(f)", "x.at.add(v)"])
def test_updates_have_no_other_spelling(name: str) -> None:
    try:
        term = parse(name).term
    except SyntaxFault:
        return
    assert not any(calls(part, OPERATIONS) for part in within(term))


GRAD = """
mesh: {axes: [x, y], shape: [2, 2]}
arrays:
  a: {shape: [8, 4], spec: [x, y]}
  c: {shape: [4, 4], spec: [null, y]}
  m: {shape: [8, 8], spec: [x, null]}
  w: {shape: [2, 4, 4], spec: [null, null, y]}
  k: {shape: [4], dtype: int32, init: [5, 0, -1, 3], spec: []}
graph:
  set: a.at[k].set(c)
  added: set.at[k, 1].add(c[0], mode='drop')
  times: added.at[k].multiply(c, unique_indices=True)
  read: times.at[k + 6].get(mode='fill', fill_value=1.5)
  product: dot_general(m, times, (((1,), (0,)), ((), ())))
  ragged: ragged_dot(product, w, asarray([3, 4]))
  scanned: "associative_scan(lambda p, q: p * q, tanh(ragged), axis=0)"
  q, r: qr(c + 4 * eye(4))
  values, vectors: eigh(c @ c.T)
  loss: >-
    sum(read ** 2) + sum(scanned ** 2) + sum(q * c) + sum(abs(r)) + sum(values ** 2) + sum((vectors.T @ c[:, :1]) ** 4)
outputs: {loss: []}
grad: {of: loss, wrt: [a, c, m, w]}
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("program", ["auto", "derived"])
def test_their_gradients_are_those_of_the_differences(tmp_path: Path, program: str) -> None:
    assert harness.run(GRAD, tmp_path, program=program).failures() == []


def test_a_program_has_updates_as_jax_writes_them(tmp_path: Path) -> None:
    lines = {
        "added": "a.at[k, 1].add(c[0], mode='drop')",
        "out": "associative_scan(lambda m, q: m * q, added[::2].T)",
    }
    experiment = harness.experiment(GRAD, grad=None, graph=lines, outputs={"out": []}, program="auto")
    source = WRITERS[experiment.programs[0]](experiment, tmp_path, harness.infer(experiment))
    assert 'added = a.at[k, 1].add(c[0], mode="drop")' in source
    # The lambda shadows the name of an array.
    assert "jax.lax.associative_scan(lambda m_, q: m_ * q, added[::2].T)" in source


def test_an_update_of_no_elements_may_have_any_shape(tmp_path: Path) -> None:
    lines = "{C: 'x.at[0, 2:6].set(v) + x.at[1, 2:2].multiply(v)'}"
    text = f"{{arrays: {{x: {{shape: [4, 2]}}, v: {{shape: [3]}}}}, graph: {lines}, outputs: {{C: []}}}}"
    outcome = harness.run(text, tmp_path, program="auto")
    assert outcome.record.status == "passed", outcome.record
