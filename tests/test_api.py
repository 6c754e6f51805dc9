"""The Python interface of `runner`: cheap to import, with the same results as the command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

import runner
from runner.link import copied
from runner.reports.record.record import UnreadableRecord
from runner.reports.show import html
from tests import evidence
from tests.command import ROOT, errors, run_command
from tests.here import Here

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def script(text: str, folder: Path) -> str:
    """Return the output of a script in its own process, which does not look for TPUs although libtpu is installed."""
    (folder / "script.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-W", "error", "script.py"]
    ran = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        check=False,
        encoding="utf-8",
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    assert errors(ran.stderr) == ""
    return ran.stdout


@pytest.mark.in_turn
def test_the_page_is_true_and_the_process_imports_no_jax(tmp_path: Path) -> None:
    assert len(BLOCKS) >= 6
    shown = 'import sys\nassert "jax" not in sys.modules\nprint(record)\n'
    printed = script("".join(BLOCKS) + shown, tmp_path)
    assert "mesh x=2 × y=2 on 4 simulated cpu devices" in printed
    assert printed.rstrip().endswith("result.json")
    assert (tmp_path / "outputs" / "doubled" / "result.json").is_file()


@pytest.mark.in_turn
def test_the_page_of_functions_is_true(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "functions.md").read_text(encoding="utf-8")
    checked, own, referring = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    defined = """
from jax.lax import all_gather
attention = lambda q, k, v: jax.nn.softmax(q @ k.T) @ v
device_code = lambda q, k, v: attention(q, all_gather(k, "x", tiled=True), all_gather(v, "x", tiled=True))
q = k = v = jnp.ones((8, 4))
mesh = jax.sharding.AbstractMesh((4,), ("x",))
"""
    passes = "assert record.status == 'passed', record\n"
    printed = script(f"{checked}{defined}{own}{passes}{referring}{passes}", tmp_path)
    assert printed.count("passed: 1 of 1 programs passed") == 3


def test_the_import_is_cheap(tmp_path: Path) -> None:
    heavy = "{'hydra', 'omegaconf', 'numpy', 'jax', 'rich', 'yaml'}"
    script(f"import sys, runner\nassert not {heavy} & set(sys.modules), sys.modules\n", tmp_path)


def test_exactly_the_public_names_exist() -> None:
    assert dir(runner) == sorted(runner.__all__)
    for name in runner.__all__:
        assert getattr(runner, name) is not None
    with pytest.raises(AttributeError, match=r"^module 'runner' has no attribute 'runn'$"):
        runner.runn  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_the_package_is_typed() -> None:
    assert (ROOT / "runner" / "py.typed").is_file()


@pytest.mark.parametrize(
    ("experiment", "config_dir", "message"),
    [
        ("nosuch.yaml", None, "nosuch.yaml: there is no such file"),
        ("here.yaml", None, "here.yaml:1:1\n  the file is empty"),
        ("here.yml", None, "here.yml: the file of an experiment ends in .yaml: rename it"),
        ("here.yaml", ".", "config_dir is for an experiment's name; a path needs none"),
        ("mine", "nosuch", "nosuch has no folder 'experiment', where NAME.yaml belongs"),
    ],
)
def test_composition_errors_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment: str, config_dir: str | None, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.yaml").write_text("")
    (tmp_path / "here.yml").write_text("")
    with pytest.raises(runner.InvalidConfiguration) as raised:
        runner.compose(experiment, config_dir=config_dir)
    assert str(raised.value) == message
    # `run` reports it in the record, and leaves no worker behind.
    record = runner.run(experiment, config_dir=config_dir, folder="run")
    assert (record.status, record.error) == ("invalid", message)
    assert runner.read("run") == record


def test_read_takes_a_run_folder_or_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = runner.run("nothere.yaml", folder="runs/first")
    assert runner.read("runs/first/result.json") == record
    with pytest.raises(UnreadableRecord) as several:
        runner.read("runs")
    files = "a run's folder has result.json, a sweep's results.jsonl"
    assert str(several.value) == f"runs is not a run: {files}; the latest run in it is runs/first"
    with pytest.raises(UnreadableRecord, match=r"^none: there is no such folder$"):
        runner.read("none")


def test_an_experiment_may_be_named_by_its_file() -> None:
    file = ROOT / "conf" / "experiment" / "case3_allreduce.yaml"
    assert runner.compose(file, ["dims.J=8"]).plain == runner.compose("case3_allreduce", ["dims.J=8"]).plain
    assert runner.compose(str(file)).plain["name"] == "case3_allreduce"


def test_a_file_outside_of_a_config_folder_is_an_experiment_too(tmp_path: Path) -> None:
    text = (ROOT / "conf" / "experiment" / "case3_allreduce.yaml").read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(text)
    assert runner.compose(tmp_path / "mine.yaml").plain == runner.compose("case3_allreduce").plain


def shown(**more: Any) -> runner.Record:
    return runner.Record.of(evidence.record(**more), Path("/runs/case"))


def test_a_record_has_a_repr_a_page_and_a_report() -> None:
    record = shown()
    assert repr(record) == "<Record of case: passed, 1 of 1 programs passed>"
    invalid = shown(experiment=None, status="invalid", error="command line: cas\n  no experiment 'cas'", programs={})
    assert repr(invalid) == "<Record: invalid, command line: cas: no experiment 'cas'>"
    assert str(record).startswith("case\nmesh x=2 × y=2 on 4 simulated cpu devices, jax 0.10.2\n")
    console = Console(width=200)
    with console.capture() as captured:
        console.print(record)
    assert captured.get().rstrip() == str(record).rstrip()


SHOWN = """# @package _global_
defaults: [{override /mesh: x2_y2}]
name: NAME
arrays: {A: {shape: [4, 8], spec: [x, y]}, B: {shape: [4, 8], spec: []}}
graph: {C: GRAPH}
outputs: {C: [x, y]}
program: auto
SHOW
"""


@pytest.mark.parametrize(
    ("name", "graph", "show"),
    [("one", "A + B", "show: [C]"), ("none", "A + B", "show: none"), ("every", "A + B", ""), ("wrong", "A + D", "")],
)
def test_a_record_prints_what_its_run_printed(name: str, graph: str, show: str, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = SHOWN.replace("NAME", name).replace("GRAPH", graph).replace("SHOW", show)
    (tmp_path / "experiment" / f"{name}.yaml").write_text(text)
    ran = run_command("--config-dir", str(tmp_path), f"+experiment={name}", f"hydra.run.dir={tmp_path}/out")
    record = runner.read(tmp_path / "out")
    assert record.config_folders == [str(tmp_path)]
    # Errors are on a separate stream.
    assert sorted(str(record).splitlines()) == sorted([*ran.stdout.splitlines(), *ran.stderr.splitlines()])


def test_a_run_records_its_config_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copied, "worker", Here)
    (tmp_path / "experiment").mkdir()
    text = SHOWN.replace("NAME", "one").replace("GRAPH", "A + B").replace("SHOW", "")
    (tmp_path / "experiment" / "one.yaml").write_text(text)
    assert runner.run("one", config_dir=tmp_path, folder=tmp_path / "out").config_folders == [str(tmp_path)]


def test_a_notebook_shows_verdicts_faults_and_pictures() -> None:
    failed = evidence.value(status="failed", diagnosis=["<who>"])
    program = evidence.program(evidence.collective(), status="failed", checks=evidence.CHECKS.but(value=failed))
    record = shown(status="failed", programs={"auto": program}, warnings=["a & b"])
    fragment = record._repr_html_()
    # It is well-formed, and escapes text.
    tree = ElementTree.fromstring(fragment)
    assert [cell.text for cell in tree.findall(".//table[1]/thead/tr/th")][:3] == ["program", "status", "value"]
    assert [pre.text for pre in tree.findall("pre")] == ["auto: value failed\n  <who>"]
    assert "warning: a & b" in [p.text for p in tree.findall("p")]
    assert "all-reduce" in fragment
    assert html.fragment(record) == fragment


def test_the_pictures_of_a_real_run_are_in_the_page(tmp_path: Path) -> None:
    record = runner.run("case3_allreduce", ["program=vmap"], folder=tmp_path)
    assert record.status == "passed", record
    svg = (tmp_path / "shardings.svg").read_text(encoding="utf-8")
    assert svg in record._repr_html_()
    ElementTree.fromstring(record._repr_html_())
