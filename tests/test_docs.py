"""The documents agree with the code."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from experiments import catalogue, operations
from runner.experiment.config import schema
from runner.experiment.config.folders import conf_folder
from runner.graph.language.operations import OPERATIONS
from tests.command import EXPERIMENTS, ROOT
from tests.harness import experiment


def test_the_page_of_operations_is_the_table() -> None:
    assert (ROOT / "docs" / "operations.md").read_text(encoding="utf-8") == operations.markdown()


@pytest.mark.whole
def test_the_page_of_experiments_is_generated_without_jax() -> None:
    assert (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8") == printed(conf_folder())


@pytest.mark.in_turn
def test_the_page_shows_the_data_of_some_files(tmp_path: Path) -> None:
    own = conf_folder() / "experiment"
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    for name in EXPERIMENTS[::8]:
        text = (own / f"{name}.yaml").read_text("utf-8")
        (tmp_path / "conf" / "experiment" / f"{name}.yaml").write_text(text, "utf-8")
    rows = [line for line in printed(tmp_path / "conf").splitlines() if line.startswith("| [")]
    assert len(rows) == len(EXPERIMENTS[::8])
    assert set(rows) <= set((ROOT / "docs" / "experiments.md").read_text(encoding="utf-8").splitlines())


def printed(folder: Path) -> str:
    """Return the page of a folder's experiments, made in a process without JAX."""
    script = (
        "import sys; from pathlib import Path; from experiments.catalogue import markdown; "
        f"print(markdown(Path({str(folder)!r})), end=''); sys.exit('jax' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=False, encoding="utf-8")
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_the_page_of_experiments_has_every_experiment_once() -> None:
    page = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[(\w+)\]\(", page, re.MULTILINE)) == sorted(EXPERIMENTS)
    assert f"There are {len(EXPERIMENTS)}." in page


LOOPS = """
arrays: {A: {shape: [4, 4], spec: [x]}}
per_device:
  a: psum(psum(A, 'x'), 'y') * axis_index('x')
  ring:
    repeat: axis_size('x') + 1
    carry: {b: "all_gather(a, 'x')", c: "pcast(A, 'y', to='varying')"}
    body:
      inner: {repeat: 2, index: j, carry: {d: b}, body: {d: "ppermute(d, 'x', shift=1)"}}
      b: inner.d + psum(b, 'y')
      c: c
outputs: {ring.b: []}
"""


def test_the_collectives_of_a_loop_count_as_often_as_they_run() -> None:
    assert catalogue._called(experiment(LOOPS).computed("per_device")) == {"psum": 5, "all_gather": 1, "ppermute": 6}


EXPECTING = """
arrays: {A: {shape: [4, 4], spec: [x]}}
graph: {B: A * 2}
per_device: {B: A * 2}
outputs: {B: [x]}
expect: {%s}
"""


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ("collectives: {all-reduce: 1, all-gather: 3}", "all-reduce, all-gather × 3"),
        ("collectives: {}", "none"),
        ("no_collectives: true", "none"),
        (
            "collectives: {all-gather: 2, tpu: {all-reduce: 1}, shard_map: {}}",
            "auto, constraint, explicit, derived: all-gather × 2; shard_map: none",
        ),
        ("collectives: {tpu: {all-reduce: 1}}", None),
    ],
)
def test_expected_collectives_are_listed_by_program_if_they_differ(expected: str, text: str | None) -> None:
    assert catalogue._expected(experiment(EXPECTING % expected)) == text


def test_there_are_enough_operations() -> None:
    assert sum(operation.kind == "array" for operation in OPERATIONS.values()) >= 120


def test_the_page_of_the_language_names_every_key() -> None:
    page = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
    table = page.split("## Arrays")[0]
    named = {
        key.split(".")[0]
        for line in table.splitlines()
        if line.startswith("| `")
        for key in re.findall(r"`([\w.]+)`", line.split("|")[1])
    }
    assert named == {field.name for field in dataclasses.fields(schema.ExperimentConfig)}


def test_every_experiment_begins_with_its_command_and_has_a_summary() -> None:
    for name in EXPERIMENTS:
        text = (ROOT / "conf" / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
        lines = text.splitlines()
        assert lines[0] == "# @package _global_", name
        assert lines[2] == f"# python -m runner +experiment={name}", name
        content = yaml.safe_load(text)
        assert content["name"] == name
        assert len(content["summary"]) > 20, name
        assert content["source"], name


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]+))?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            linked = page.parent / target if target else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), (target, anchor)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's titles, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = {page for group in navigation for pages in group.values() for entry in pages for page in entry.values()}
    assert {str(page.relative_to(ROOT)) for page in PAGES} <= named
    assert all((ROOT / page).is_file() for page in named)


def test_the_design_is_read_in_five_minutes_and_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 1_350
    modules = set(re.findall(r"`([\w/]+\.py)`", text))
    assert len(modules) > 10
    for module in modules - {"tests/test_house.py", "tests/test_graph.py"}:
        assert [*(ROOT / "runner").glob(f"**/{module}")], module


WRONG_ANSWERS = ROOT / "experiments" / "wrong_answers"


@pytest.mark.parametrize("script", sorted(WRONG_ANSWERS.glob("*.py")), ids=lambda script: script.stem)
def test_the_report_of_a_wrong_answer_has_the_script_and_an_experiment(script: Path) -> None:
    assert script.read_text(encoding="utf-8") in script.with_suffix(".md").read_text(encoding="utf-8")
    config = yaml.safe_load((WRONG_ANSWERS / "experiment" / script.with_suffix(".yaml").name).read_text("utf-8"))
    assert (ROOT / config["source"]).samefile(script.with_suffix(".md"))
    assert f"[{script.stem}]({script.stem}.md)" in (WRONG_ANSWERS / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("script", sorted(WRONG_ANSWERS.glob("crashes/*.py")), ids=lambda script: script.stem)
def test_the_report_of_a_crash_has_the_script(script: Path) -> None:
    assert script.read_text(encoding="utf-8") in script.with_suffix(".md").read_text(encoding="utf-8")
    page = (WRONG_ANSWERS / "README.md").read_text(encoding="utf-8")
    assert f"[{script.stem}](crashes/{script.stem}.md)" in page


def test_the_page_of_sources_names_every_experiment_and_only_those() -> None:
    page = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
    rows = [line.split("|")[2] for line in page.splitlines() if line.startswith("|") and "---" not in line]
    named = {name for cell in rows for name in re.findall(r"`([a-z]\w+)`", cell.split("(")[0])}
    assert named == set(EXPERIMENTS)
