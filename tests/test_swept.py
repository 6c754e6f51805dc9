"""Sweeps from Python: overrides in three forms, the table, and reading it back."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import runner
from runner.app import swept
from runner.app.cli import resume
from runner.experiment.config import sources
from runner.experiment.config.quoting import for_hydra
from runner.reports.record.record import UnreadableRecord
from tests.faults import GOOD


@pytest.mark.parametrize(
    ("overrides", "texts"),
    [
        ("dims.J=8", ["dims.J=8"]),
        (["dims.J=8", "program=auto"], ["dims.J=8", "program=auto"]),
        ({"dims.J": 8, "program": "auto"}, ["++dims.J=8", "++program=auto"]),
        (
            {"mesh.shape": [4, 2], "expect": None, "explain": True},
            ["++mesh.shape=[4,2]", "++expect=null", "++explain=true"],
        ),
        ({"dims.J": (4, 8), "arrays.A.spec": ([None, "x"], ["x"])}, ["++dims.J=4,8", "++arrays.A.spec=[null,x],[x]"]),
        ({"graph.C": "A @ B.T", "outputs": {"C": ["x"]}}, ["++graph.C='A @ B.T'", "++outputs={C:[x]}"]),
        ({"mesh": "x4", "rules": ("a", "b"), "hardware": None}, ["mesh=x4", "rules=a,b", "++hardware=null"]),
        ({"mesh": {"axes": ["x"], "shape": [4]}}, ["++mesh={axes:[x],shape:[4]}"]),
        ((), []),
    ],
)
def test_overrides_may_be_a_text_a_list_or_a_mapping(overrides: Any, texts: list[str]) -> None:
    assert swept.texts(overrides) == texts


def test_keywords_are_more_overrides() -> None:
    assert swept.texts("seed=1", {"program": "auto"}) == ["seed=1", "++program=auto"]


def test_a_partition_spec_is_a_value() -> None:
    from jax.sharding import PartitionSpec as P

    overrides = {"arrays.A.spec": P(None, ("x", "y")), "outputs.C": (P("x"), P())}
    assert swept.texts(overrides) == ["++arrays.A.spec=[null,[x,y]]", "++outputs.C=[x],[]"]


def test_several_overrides_in_one_text_are_one_message() -> None:
    with pytest.raises(runner.InvalidConfiguration) as refused:
        runner.compose("case3_allreduce", "program=auto dims.J=8")
    assert str(refused.value) == (
        "command line: program=auto dims.J=8\n  these are 2 overrides in one text: write each by itself, "
        'in Python ["program=auto", "dims.J=8"]'
    )


@pytest.mark.parametrize(
    "text", ["", "it's", "a\\b", "a\\", "a\\\\", "a\\'b", "psum(x, 'x')", "null", "4,8", "${nope", "1.5", "true"]
)
def test_a_text_is_that_text_for_hydra_too(text: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    (parsed,) = OverridesParser.create().parse_overrides([f"a={for_hydra(text)}"])
    assert parsed.value() == text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep."""
    home = tmp_path_factory.mktemp("swept")
    (home / "mine.yaml").write_text(GOOD, encoding="utf-8")
    table = runner.sweep(home / "mine.yaml", {"program": ("auto", "shard_map"), "seed": 3}, folder=home / "sweep")
    assert isinstance(table, swept.Rows)
    return table.folder


@pytest.mark.in_turn
def test_a_sweep_is_a_table_with_a_row_for_each_program(folder: Path) -> None:
    table = runner.read(folder)
    assert table.columns[:4] == ["point", "experiment", "program", "status"]
    assert table["program"] == ["auto", "shard_map"]
    assert [row["bytes_sent"] for row in table] == [64, 64]
    assert table[0]["status"] == "passed"
    assert len(table[1:]) == 1
    assert repr(table).splitlines()[0].split()[:4] == ["point", "experiment", "program", "status"]
    assert table._repr_html_().startswith('<div style="overflow-x: auto')
    assert "<td" in table._repr_html_()
    with pytest.raises(KeyError):
        table["nosuch"]


def test_a_table_shows_four_digits_of_a_measure() -> None:
    table = swept.Rows([{"flops": 128.0, "run_s": 0.0002987730003951583, "error": None}], Path())
    assert [line.split() for line in repr(table).splitlines()] == [["flops", "run_s"], ["128", "0.0002988"]]


def test_with_pandas_the_table_is_a_frame(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def frame(rows: list[dict[str, Any]]) -> Any:
        return SimpleNamespace(rows=rows, attrs={})

    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=frame))
    table = runner.read(folder)
    assert [row["program"] for row in table.rows] == ["auto", "shard_map"]
    assert table.attrs == {"folder": str(folder)}


def test_a_sweep_without_points_raises_what_the_command_says(tmp_path: Path) -> None:
    with pytest.raises(runner.InvalidConfiguration, match="no experiment 'nosuch'"):
        runner.sweep("nosuch", "seed=1,2", folder=tmp_path / "sweep")


def test_a_message_about_a_mapping_names_no_temporary_file(tmp_path: Path) -> None:
    experiment = {"name": "mine", "mesh": {"axes": ["x"], "shape": [2]}, "grap": {"C": "A"}}
    with pytest.raises(runner.InvalidConfiguration) as error:
        runner.sweep(experiment, "seed=1,2", folder=tmp_path / "sweep")
    assert str(error.value) == "runner.sweep({…})  grap\n  there is no key 'grap'; did you mean 'graph'?"


def test_a_sweep_of_a_mapping_keeps_its_experiment_for_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary" / "experiment" / "mine_.yaml"
    temporary.parent.mkdir(parents=True)
    temporary.write_text(GOOD, encoding="utf-8")
    monkeypatch.setattr(sources, "OF_MAPPINGS", {temporary})
    chosen = ["--config-dir", str(temporary.parents[1]), "+experiment=mine_"]
    resume.leave(tmp_path / "sweep", ["-m", "seed=1,2", *chosen])
    temporary.unlink()
    resumed = resume.read([f"resume={tmp_path / 'sweep'}"])
    assert resumed is not None
    assert resumed.arguments[2:5] == ["--config-dir", str(tmp_path / "sweep" / "conf"), "+experiment=mine_"]
    assert (tmp_path / "sweep" / "conf" / "experiment" / "mine_.yaml").read_text(encoding="utf-8") == GOOD


def test_a_table_that_cannot_be_read_is_one_message(tmp_path: Path) -> None:
    (tmp_path / swept.TABLE).write_text("[1]\n", encoding="utf-8")
    with pytest.raises(UnreadableRecord, match="has a line that is not a row of a sweep"):
        runner.read(tmp_path)
