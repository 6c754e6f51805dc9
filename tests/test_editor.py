"""The JSON Schema for editors accepts and refuses the same files as the runner."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from runner.app.cli import editor
from runner.experiment.config import schema, shape
from runner.experiment.config.compose import compose
from runner.experiment.forms import FORMS, check
from tests.command import EXPERIMENTS, ROOT

CONF = ROOT / "conf"
VALIDATOR = jsonschema.Draft7Validator(editor.json_schema())

GOOD = """\
# @package _global_
name: mine
mesh: {axes: [x], shape: [2]}
dims: {I: 4, J: 2 * I}
arrays:
  A: {shape: [I, J], spec: [x, null], dtype: bfloat16, init: "normal()"}
per_device:
  r: {repeat: I, carry: {a: A}, body: {a: a + 1}}
  B: psum(r.a, 'x')
functions:
  scaled(x): {y: {graph: x * 2, per_device: x + x}, result: y, checkpoint: dots_saveable}
outputs:
  B: [null, null]
expect:
  collectives: {all-reduce: 1, tpu: {reduce-scatter: 1}, shard_map: {auto: {}}}
"""

WRONG = {
    "an unknown key": ("name: mine", "nmae: mine"),
    "an unknown key of an array": ("spec:", "sepc:"),
    "an unknown key of a repeat": ("repeat: I", "repaet: I"),
    "an unknown key of a mesh": ("shape: [2]}", "shape: [2], type: [auto]}"),
    "a misspelt policy": ("dots_saveable", "dots_savable"),
    "an unknown section": ("{graph: x * 2,", "{grahp: x * 2,"),
    "a function without a result": ("result: y, ", ""),
    "a mapping for a count": ("{all-reduce: 1,", "{all-reduce: {min: 0},"),
    "a text where a program's count stands": ("shard_map: {auto: {}}", "shard_map: {auto: none}"),
    "a size of no axis": ("shape: [2]}", "shape: [0]}"),
    "a name that is none": ("axes: [x]", "axes: [2x]"),
    "a misspelt dtype": ("bfloat16", "bflaot16"),
    "a misspelt collective": ("all-reduce", "allreduce"),
    "a text for a list": ("spec: [x, null]", "spec: x"),
    "a list for a mapping": ("dims: {I: 4, J: 2 * I}", "dims: [I]"),
    "a number for an axis": ("B: [null, null]", "B: [1]"),
    "a mapping for a line": ("B: psum(r.a, 'x')", "B: {psum: 1}"),
    "a program that there is not": ("name: mine", "name: mine\nprogram: shardmap"),
    "a mesh that there is not": ("mesh: {axes: [x], shape: [2]}", "mesh: x9"),
    "a text for a number": ("name: mine", "name: mine\nseed: many"),
}


def faults(text: str) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(text))]


def test_the_file_is_up_to_date() -> None:
    jsonschema.Draft7Validator.check_schema(editor.json_schema())
    assert (CONF / editor.FILE).read_text(encoding="utf-8") == editor.text(), "python -m runner editor writes it"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_names_it_and_is_valid(name: str) -> None:
    file = CONF / "experiment" / f"{name}.yaml"
    text = file.read_text(encoding="utf-8")
    assert text == editor.named(file, CONF), "python -m runner editor names it"
    line = text.splitlines()[1]
    assert (file.parent / line.removeprefix("# yaml-language-server: $schema=")).resolve() == CONF / editor.FILE
    assert faults(text) == []


def test_a_right_file_is_valid() -> None:
    assert faults(GOOD) == []


def test_the_options_of_config_groups_are_listed(tmp_path: Path) -> None:
    option = GOOD.replace("mesh: {axes: [x], shape: [2]}", "mesh: x2\nhardware: v5p")
    assert faults(option) == []
    (tmp_path / "mesh").mkdir()
    (tmp_path / "mesh" / "pair.yaml").write_text("axes: [x]\nshape: [2]\n", encoding="utf-8")
    theirs = jsonschema.Draft7Validator(editor.json_schema(tmp_path))
    assert not list(theirs.iter_errors({"mesh": "pair", "hardware": "h100"}))


@pytest.mark.parametrize("mistake", WRONG)
def test_the_schema_refuses_a_wrong_file(mistake: str) -> None:
    old, new = WRONG[mistake]
    assert GOOD.count(old) == 1
    assert faults(GOOD.replace(old, new))


def forms(form: Any) -> Iterator[tuple[str, str]]:
    """Return the forms that keys name, each with its key's type."""
    if form.named:
        yield form.named, form.kind
    for inner in (*form.keys.values(), *([form.of] if form.of else [])):
        yield from forms(inner)


def test_every_form_belongs_to_a_key_or_another_form() -> None:
    named = {name for name, _ in forms(shape.root())} - {"flag"}
    assert named | editor._REFERRED == set(FORMS)


def test_a_form_narrows_the_type_of_its_key() -> None:
    types = {"text": {"text", "name"}, "list": {"list"}, "mapping": {"mapping"}, "integer": {"integer"}}
    for name, kind in set(forms(shape.root())):
        # A spec and the shape of a mesh may also be the word `auto`.
        if kind in types and name not in ("spec", "sizes-of-axes"):
            assert FORMS[name].kind in types[kind], name


def test_every_default_has_the_form_of_its_key() -> None:
    def walk(config: Any, key: tuple[str, ...]) -> None:
        for field in dataclasses.fields(config):
            below, value = (*key, field.name), getattr(config, field.name)
            kind = shape.at(below)
            if dataclasses.is_dataclass(value):
                walk(value, below)
            elif kind is not None and kind.named and value is not None and value != schema.MISSING:
                check(value, below)

    walk(schema.ExperimentConfig(), ())
    for name, value in schema.ARRAY.items():
        assert value is None or check(value, ("arrays", "A", name)) is None


def test_every_key_of_an_experiment_is_in_the_schema() -> None:
    assert set(editor.json_schema()["properties"]) == {*shape.root().keys, "defaults", "hydra"}


def test_a_users_folder_gets_the_schema_and_still_runs(tmp_path: Path) -> None:
    inner = tmp_path / "experiment" / "more"
    inner.mkdir(parents=True)
    (inner / "mine.yaml").write_text(GOOD, encoding="utf-8")
    for _ in range(2):
        assert editor.main([str(tmp_path)]) == 0
        lines = (inner / "mine.yaml").read_text(encoding="utf-8").splitlines()
        assert lines[:2] == ["# @package _global_", "# yaml-language-server: $schema=../../experiment.schema.json"]
        assert "\n".join([lines[0], *lines[2:], ""]) == GOOD
    assert (tmp_path / editor.FILE).read_text(encoding="utf-8") == editor.text(tmp_path)
    assert compose("more/mine", tmp_path).plain["name"] == "mine"


def test_a_folder_without_experiments_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert editor.main([str(tmp_path)]) == 2
    assert "it has no folder 'experiment'" in capsys.readouterr().err
