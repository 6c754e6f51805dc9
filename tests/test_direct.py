"""A mapping composed without Hydra: the configuration that Hydra composes, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.app import swept
from runner.experiment.config import compose, direct

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


@pytest.mark.parametrize("name", SAME)
def test_hydra_composes_the_same(tmp_path: Path, name: str) -> None:
    content, file = written(tmp_path, SAME[name])
    direct_ = direct.composed(content, file)
    composed = compose.compose(file.stem, file.parents[1])
    assert direct_ is not None
    # The order of keys, and whether a number is an integer, count too.
    assert repr(direct_.plain) == repr(composed.plain)
    assert direct_.sources == composed.sources
    assert yaml.safe_load(file.read_text(encoding="utf-8")) == content


@pytest.mark.parametrize("name", OF_HYDRA)
def test_what_needs_hydra_is_left_to_it(tmp_path: Path, name: str) -> None:
    assert direct.composed(*written(tmp_path, OF_HYDRA[name])) is None


def test_a_wrong_value_has_the_message_of_its_file(tmp_path: Path) -> None:
    content, file = written(tmp_path, {"derive": {"hardware": "h1000"}})
    messages: list[str] = []
    for composing in (lambda: direct.composed(content, file), lambda: compose.compose(file.stem, file.parents[1])):
        with pytest.raises(compose.InvalidConfiguration) as raised:
            composing()
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
    assert "no hardware 'h1000'" in messages[0]
