"""The source of Python functions, annotated: on the page of a run, in the place of the graph, and on the terminal."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import runner
from runner.reports.show import annotated, explained_runs
from runner.reports.show.page import run as page

MODEL = """import jax.numpy as jnp


def hidden(w, x):
    return jnp.tanh(x @ w["up"])


def loss(w, x):
    return jnp.mean((hidden(w, x) @ w["down"]) ** 2)
"""


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> runner.Record:
    folder = tmp_path_factory.mktemp("annotated")
    (folder / "model.py").write_text(MODEL)
    names: dict[str, Any] = {"__file__": str(folder / "model.py")}
    exec(compile(MODEL, str(folder / "model.py"), "exec"), names)
    weights = {"up": jnp.ones((16, 32)), "down": jnp.ones((32, 16))}
    specs = {"up": P(None, "model"), "down": P("model", None)}
    return runner.check(
        names["loss"], (weights, jnp.ones((8, 16))),
        mesh={"data": 2, "model": 2}, in_specs=(specs, P("data")), explain=True, show="none", folder=folder / "run",
    )  # fmt: skip


def test_the_terminal_shows_the_users_lines_with_their_collectives(record: runner.Record) -> None:
    shown = str(record)
    annotated_lines = shown[shown.index("model.py\n") :].splitlines()
    marked = [line for line in annotated_lines if "jnp." in line]
    assert [line.split("│")[0].split() for line in marked] == [
        ["5", "██", "data,model"],
        ["9", "1×AR", "model", "256", "B", "██", "data,·"],
    ]
    assert all(len(line) <= 100 for line in annotated_lines[: annotated_lines.index("")])


def test_the_page_shows_the_source_in_the_place_of_the_graph(record: runner.Record) -> None:
    shown = page.page(record, record.folder)
    assert 'id="source"' in shown
    assert 'id="graph"' not in shown
    assert 'return jnp.tanh(x @ w["up"])' in html.unescape(shown)
    assert "shard over model" in shown


def test_a_notebook_shows_the_source_too(record: runner.Record) -> None:
    shown = record._repr_html_()
    assert 'return jnp.tanh(x @ w["up"])' in html.unescape(shown)
    assert "1×AR model" in shown
    assert "<script" not in shown


def test_an_experiment_without_functions_keeps_its_graph(tmp_path: Path) -> None:
    record = runner.run("case3_allreduce", ["program=auto", "show=none"], folder=tmp_path / "run")
    assert explained_runs.explained(record, record.folder) == []
    assert 'id="graph"' in page.page(record, record.folder)


def test_a_file_that_changed_since_shows_the_lines_of_the_record(record: runner.Record) -> None:
    file = record.folder.parent / "model.py"
    file.write_text("# a comment\n" + MODEL)
    try:
        (group,) = explained_runs.explained(record, record.folder)
    finally:
        file.write_text(MODEL)
    assert group.changed == [str(file)]
    (shown,) = annotated.files(group.explanation)
    texts = {line.number: line.text for line in shown.lines if line is not None}
    assert texts[5].strip() == 'return jnp.tanh(x @ w["up"])'


def test_a_run_without_its_module_has_tables_alone(record: runner.Record, tmp_path: Path) -> None:
    assert explained_runs.explained(record, tmp_path) == []
