"""An experiment composed without Hydra: the configuration that Hydra composes, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf, open_dict

from runner.app import swept
from runner.experiment.config import compose, direct
from runner.experiment.config.sources import Sources

WHOLE: dict[str, Any] = {
    "mesh": {"axes": ["x", "y"], "shape": [2, 2]},
    "dims": {"I": 4, "large": 8},
    "arrays": {"A": {"shape": ["I", 4], "dtype": "float32", "init": "arange(16)", "spec": [None, "x"]}},
    "graph": {"B": "A * 2"},
    "outputs": {"B": []},
    "program": "auto",
    "precision": "default",
}

SAME: dict[str, dict[str, Any]] = {
    "a whole experiment": {},
    "a check": {
        "imports": {"called": "/a/called.py", "f": "/a/called.py:function"},
        "references": {},
        "arrays": {"x": {"tree": "called.operands[0]", "specs": "called.in_specs[0]"}},
        "graph": {"result": "f(x)"},
        "outputs": {"result": "called.out_specs"},
        "program": ["auto", "derived"],
    },
    "nested keys": {
        "expect": {"collectives": {"all-reduce": 1}, "max_bytes_per_device": 64},
        "target": {"devices": 8},
        "timeout": 5.0,
        "grad": {"of": "B", "wrt": ["A"]},
        "hardware": {"name": "mine", "memory": {"bandwidth": 1e12}},
    },
    "keys that are null": {"dims": None, "hardware": None, "expect": None, "source": "a text"},
    "flags": {"trace": True, "explain": True, "show": "none"},
    "derived for hardware": {"derive": {"cost": "time", "hardware": "h100"}},
    "a topology": {"target": {"topology": "v5e:2x2"}},
}

OF_HYDRA: dict[str, dict[str, Any]] = {
    "an unknown key": {"timeot": 3},
    "an integer for a number": {"timeout": 5},
    "a text for a list": {"outputs": {"B": []}, "mesh": {"axes": ["x"], "shape": "auto"}},
    "a group's file": {"defaults": [{"override /mesh": "x2_y2"}, "_self_"]},
    "an interpolation": {"summary": "${name}"},
    "a missing value": {"dims": {"I": "???"}},
    "a flag in words": {"trace": "yes"},
    "null where a value must be": {"mesh": {"axes": None, "shape": [2]}},
    "a number for a text": {"source": 3},
    "a name that is no text": {"dims": {1: 4}},
    "Hydra's own settings": {"hydra": {"job": {"chdir": True}}},
}


def written(folder: Path, more: dict[str, Any]) -> tuple[dict[str, Any], Path]:
    """Return the content of an experiment's file, and the file."""
    given = {**WHOLE, **more}
    return swept.content(given, "mine"), swept.written(given, "mine", folder)


def files_and_overrides(sources: Sources) -> tuple[object, ...]:
    """Hydra chooses options of its own besides these."""
    return sources.layers, sources.overrides, sources.folders


@pytest.mark.parametrize("name", SAME)
def test_hydra_composes_the_same(tmp_path: Path, name: str) -> None:
    content, file = written(tmp_path, SAME[name])
    direct_ = direct.composed(content, file)
    composed = compose.by_hydra([f"+experiment={file.stem}"], file.parents[1])
    assert direct_ is not None
    # The order of keys, and whether a number is an integer, count too.
    assert repr(direct_.plain) == repr(composed.plain)
    assert files_and_overrides(direct_.sources) == files_and_overrides(composed.sources)
    assert yaml.safe_load(file.read_text(encoding="utf-8")) == content


@pytest.mark.parametrize("name", OF_HYDRA)
def test_what_needs_hydra_is_left_to_it(tmp_path: Path, name: str) -> None:
    assert direct.composed(*written(tmp_path, OF_HYDRA[name])) is None


def test_a_wrong_value_has_the_message_of_its_file(tmp_path: Path) -> None:
    content, file = written(tmp_path, {"derive": {"hardware": "h1000"}})
    messages: list[str] = []
    for composing in (
        lambda: direct.composed(content, file),
        lambda: compose.by_hydra([f"+experiment={file.stem}"], file.parents[1]),
    ):
        with pytest.raises(compose.InvalidConfiguration) as raised:
            composing()
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    assert "no hardware 'h1000'" in messages[0]


COMMANDS = (
    ("+experiment=case3_allreduce",),
    ("+experiment=case3_allreduce", "program=[auto,derived]", "timeout=5.5", "explain=true", "show=none"),
    ("+experiment=case3_allreduce", "name=other", "arrays.A.dtype=bfloat16", "outputs.C=[[x, y],null]", "dims.J=8"),
    ("+experiment=case3_allreduce", "mesh.shape=[4,1]", "derive.cost=time", "hardware.name=null"),
    ("+experiment=case3_allreduce", "timeout=-1.5", "name=no", "dims.J=4", "dims.J=16"),
    ("+experiment=ring_attention",),
    ("+experiment=mine", "dims.large=16"),
    ("+experiment=../beside",),
)

FILES = {
    "experiment/mine": "mesh: x2_y2\ndims: {large: 8, n: 1_000}\narrays: {A: {shape: [large], spec: [x]}}\n"
    "graph: {B: A * 2}\noutputs: {B: []}\ntimeout: 1e2\nsummary: 'A text: é, \"on\", 12'\nsource: '1e5'\n",
    "beside": "defaults: [override /mesh: x4_y2, _self_]\nname: 'yes'\nhardware: v5p\narrays: {}\n",
}
"""Files of a user's config folder."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("conf")
    for name, text in FILES.items():
        file = home / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return home


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_hydra_composes_the_same_of_a_command_and_leaves_the_same_files(
    command: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    whole = direct.chosen(command, folder)
    assert whole is not None
    whole.leave(tmp_path)
    with compose.composed(command, folder) as config, open_dict(config):
        overrides = config.hydra.overrides.task
        del config["hydra"]
        assert (tmp_path / "config.yaml").read_text(encoding="utf-8") == OmegaConf.to_yaml(config)
    assert (tmp_path / "overrides.yaml").read_text(encoding="utf-8") == OmegaConf.to_yaml(overrides)
    by_us, by_hydra = whole.checked(), compose.by_hydra(command, folder)
    assert repr(by_us.plain) == repr(by_hydra.plain)
    assert files_and_overrides(by_us.sources) == files_and_overrides(by_hydra.sources)


@pytest.mark.parametrize(
    "override",
    [
        "dims.L=8", "+dims.L=8", "~dims.J", "mesh=x4_y2", "target=v5e_4x4", "timeout=5", "dims.J=010", "dims.J=1e3",
        "program=auto,derived", "name=a b", "name='a'", "summary=null", "name=${source}", "arrays={}", "timeot=3",
        "hydra.verbose=true", "hydra.run.dir=${name}", "program=[auto", "program=[au]to]", "program=[,]",
        "expect.no=1", "target.cluster=true", "outputs.C.x=1", "name=Null", "hydra/callbacks=mlflow", "rules.x=[y]",
    ],
)  # fmt: skip
def test_an_override_that_needs_hydra_is_left_to_it(override: str) -> None:
    assert direct.chosen(("+experiment=case3_allreduce", override)) is None


@pytest.mark.parametrize(
    "text",
    [
        "defaults: [case3_allreduce]", "defaults: [{override /mesh: x2_y2}, {override /mesh: x4}]", "mesh: none_such",
        "defaults: [_self_, {override /mesh: x2_y2}]", "defaults: {override /mesh: x2_y2}", "mesh: '${name}'",
        "mesh: x2_y2\ndefaults: [{override /mesh: x4_y2}]", "dims: {a: 1}\ndims: {a: 2}", "- a", "", "a: [",
        "# @package dims\na: 1", "hydra: {verbose: true}", "defaults: [{/mesh: x2_y2, override /rules: x}]", "date: 1",
        "mesh: {shape: [2]}\ndefaults: [{override /mesh: x2_y2}]", "target: v5e_4x4",
    ],
)  # fmt: skip
def test_a_file_that_needs_hydra_is_left_to_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    assert direct.chosen(["+experiment=mine"], tmp_path) is None


@pytest.mark.parametrize("name", ["experiment/case3_allreduce.yaml", "hydra/help/mine.yaml", "schema.yaml"])
def test_a_folder_with_a_file_of_the_same_name_as_another_is_left_to_hydra(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("name: other\n")
    assert direct.chosen(["+experiment=case3_allreduce"], tmp_path) is None
