"""The documents say what is so."""

from __future__ import annotations

import dataclasses
import re

import yaml

from runner import schema
from runner.language.__main__ import markdown
from runner.language.operations import OPERATIONS
from tests.command import EXPERIMENTS, ROOT


def test_the_page_of_operations_is_the_table() -> None:
    assert (ROOT / "docs" / "operations.md").read_text(encoding="utf-8") == markdown()


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


def test_every_experiment_begins_with_the_command_that_runs_it_and_says_what_it_shows() -> None:
    for name in EXPERIMENTS:
        text = (ROOT / "conf" / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
        lines = text.splitlines()
        assert lines[0] == "# @package _global_", name
        assert lines[1] == f"# python -m runner +experiment={name}", name
        content = yaml.safe_load(text)
        assert content["name"] == name
        assert len(content["summary"]) > 20, name
        assert content["source"], name


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), (page.name, target)


def test_the_page_of_sources_names_every_experiment_and_only_those() -> None:
    page = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
    rows = [line.split("|")[2] for line in page.splitlines() if line.startswith("|") and "---" not in line]
    named = {name for cell in rows for name in re.findall(r"`([a-z]\w+)`", cell.split("(")[0])}
    assert named == set(EXPERIMENTS)
