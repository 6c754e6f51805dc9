"""An experiment that was given as a mapping in; its configuration, composed without Hydra, out.

Hydra takes 0.4 s to be imported and to compose, four times as long as a small check takes besides. A mapping that
chooses no files, overrides nothing and has values of the declared types has nothing for Hydra to do but to add the
defaults, which this module does. Hydra composes all others, and reports what is wrong in them.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.config import shape
from runner.config.compose import Configuration, Provenance, checked
from runner.config.folders import conf_folder
from runner.config.schema import MISSING, ExperimentConfig
from runner.config.shape import Kind
from runner.untyped import is_dict, is_list

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
    return _completed(content, ExperimentConfig)


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


def _completed(value: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    """The values of all keys that a class declares, in its order: those given, and the defaults of the others."""
    whole: dict[str, Any] = {}
    for name, (key, inside, within) in _keys(kind).items():
        if name not in value:
            given = key.default if key.default_factory is dataclasses.MISSING else key.default_factory()
            whole[name] = _completed({}, inside) if inside is not None and given is not None else given
        elif inside is not None and value[name] is not None:
            whole[name] = _completed(value[name], inside)
        elif within is not None and value[name] is not None:
            whole[name] = {each: part and _completed(part, within) for each, part in value[name].items()}
        else:
            whole[name] = value[name]
    return whole


@functools.cache
def _keys(kind: type[Any]) -> dict[str, tuple[dataclasses.Field[Any], type[Any] | None, type[Any] | None]]:
    """The fields of a class that declares keys; for each the class of its value, and that of the values in it."""
    hints = typing.get_type_hints(kind)
    return {
        key.name: (key, _declaring(hints[key.name]), _of_items(hints[key.name])) for key in dataclasses.fields(kind)
    }


def _declaring(hint: Any) -> type[Any] | None:
    """The class among the alternatives of a type that declares keys."""
    alternatives = (hint, *typing.get_args(hint))
    return next((each for each in alternatives if isinstance(each, type) and dataclasses.is_dataclass(each)), None)


def _of_items(hint: Any) -> type[Any] | None:
    """The class that declares the keys of each value in a mapping."""
    for each in (hint, *typing.get_args(hint)):
        if typing.get_origin(each) is dict:
            return _declaring(typing.get_args(each)[1])
    return None
