"""Composes an experiment that is given as a mapping without Hydra.

Hydra takes 0.4 s to be imported and to compose, four times as long as a small check takes besides. A mapping that
chooses no files, overrides nothing and has values of the declared types has nothing for Hydra to do but to add the
defaults, which this module does. Hydra composes all others, and reports what is wrong in them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.base.untyped import is_dict, is_list
from runner.experiment.config import shape
from runner.experiment.config.compose import Configuration, Provenance, checked
from runner.experiment.config.folders import conf_folder
from runner.experiment.config.schema import MISSING
from runner.experiment.config.shape import Kind

_CHOICES: Mapping[str, Any] = {"target": "cpu", "rules": None, "hardware": None, "mesh": None}
"""The options of config groups that `conf/config.yaml` chooses."""


def composed(content: Any, file: Path) -> Configuration | None:
    """The configuration of the experiment in `file`, whose content is given; None if only Hydra can compose it.

    Raises `InvalidConfiguration`.
    """
    whole = completed(content)
    if whole is None:
        return None
    folder = file.parents[1].resolve()
    choices = {"experiment": file.stem, **_CHOICES}
    provenance = Provenance((conf_folder(), folder), choices, (f"+experiment={file.stem}",))
    return checked(whole, provenance)


def completed(content: Any) -> dict[str, Any] | None:
    """Return the given values with the default of every absent key.

    None if a value is not of the type that its key declares, or has an interpolation: OmegaConf converts, resolves or
    refuses these.
    """
    if not is_dict(content) or not _is_typed(content, shape.root()):
        return None
    return _completed(content, shape.root())


def _is_typed(value: Any, kind: Kind) -> bool:
    """Whether OmegaConf leaves a value unchanged: all of it has the kind's type, and there are no interpolations."""
    if value is None:
        return kind.optional or kind.name == "anything"
    match kind.name:
        case "mapping":
            if not is_dict(value):
                return False
            kinds = kind.keys
            if kinds is None:
                assert kind.items is not None
                return all(_is_text(name) and _is_typed(each, kind.items) for name, each in value.items())
            return all(name in kinds and _is_typed(each, kinds[name]) for name, each in value.items())
        case "list":
            return is_list(value) and _is_plain(value)
        case "text":
            return _is_text(value)
        case "integer":
            return type(value) is int
        case "number":
            return type(value) is float
        case "flag":
            return type(value) is bool
        case _:
            return _is_plain(value)


def _is_plain(value: Any) -> bool:
    """Whether a value that may be anything is plain data without interpolations."""
    if is_dict(value):
        return all(_is_text(name) and _is_plain(each) for name, each in value.items())
    if is_list(value):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float) or _is_text(value)


def _is_text(value: object) -> bool:
    return type(value) is str and "${" not in value and value != MISSING


def _completed(value: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """The values of all keys that a class declares, in its order: those given, and the defaults of the others."""
    assert kind.declared is not None
    assert kind.keys is not None
    whole: dict[str, Any] = {}
    for key in dataclasses.fields(kind.declared):
        inner, given = kind.keys[key.name], value.get(key.name)
        if key.name not in value:
            given = key.default if key.default_factory is dataclasses.MISSING else key.default_factory()
            whole[key.name] = given if inner.declared is None or given is None else _completed({}, inner)
        elif given is not None and inner.declared is not None:
            whole[key.name] = _completed(given, inner)
        elif given is not None and inner.items is not None and inner.items.declared is not None:
            whole[key.name] = {name: part and _completed(part, inner.items) for name, part in given.items()}
        else:
            whole[key.name] = given
    return whole
