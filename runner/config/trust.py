"""A composed configuration in; refused where a file has set what only a command line may: docs/security.md.

What Hydra's settings hold is run: callbacks, launchers and loggers name what is to be called, and folders what is
written. An experiment is data, so of these settings its files may set what `MAY_SET` says, by whatever way: a key, a
default, a package. That is held by effect: the settings are those of the same command line without any experiment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import OmegaConf

from runner.config import files
from runner.config.folders import conf_folder
from runner.config.layers import layers
from runner.config.quoting import of_hydra
from runner.config.shape import described
from runner.config.sources import Layer, key_place, shown, text_place
from runner.faults import Fault, Key, key_text
from runner.untyped import is_dict

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig

_PARAMS = ("sweeper", "params")
_VERBOSE = ("verbose",)

MAY_SET = (_PARAMS, _VERBOSE)
"""What the files of an experiment may set of Hydra's settings."""

_OUR_SWEEPER = "hydra_plugins.shardproof_sweeper.ShardproofSweeper"

_ALLOWED = "an experiment sets hydra.sweeper.params and hydra.verbose; the command line sets what else Hydra has"

_KEY = re.compile(r"[+~]{0,2}\w[\w./-]*")
"""A key of an experiment, as a sweep's parameters name it."""


class Untrusted(ConfigCompositionException):
    """A file sets what only a command line may; the message says where, what, and what files may set."""


def check(config: DictConfig, loader: ConfigLoader, typed: Sequence[str]) -> None:
    """Raise `Untrusted` where a file has set more of Hydra's settings than it may; `typed` are all overrides.

    A file that stands in the place of one of Hydra's own, or of ours, is one of these.
    """
    folders = [Path(s.path) for s in config.hydra.runtime.config_sources if s.schema == "file" and s.path]
    check_folders(folders)
    settings = _plain(config)
    own = [override for override in typed if of_hydra(override)]
    due = _due(loader, config.hydra.job.config_name, own, folders)
    _refuse_sweeper(settings["sweeper"], own, config, folders)
    by_owner = {"hydra": [o for o in typed if _is_hydras(o)], "task": [o for o in typed if not _is_hydras(o)]}
    key = _first_difference(_compared(settings), _compared(due)) or _first_difference(settings["overrides"], by_owner)
    if key is not None:
        raise Untrusted(_located(("hydra", *key), _ALLOWED, config, folders))


def check_folders(folders: Sequence[Path]) -> None:
    """Raise `Untrusted` where a config folder has a file by the name of what is defined in Python, which it would hide.

    What is defined there is Hydra's, a plugin's, or the runner's.
    """
    store = ConfigStore.instance()
    for folder in folders:
        if folder.resolve() == conf_folder().resolve():
            continue
        for file in [*sorted(folder.glob("*.yaml")), *sorted((folder / "hydra").rglob("*.yaml"))]:
            name = file.relative_to(folder).as_posix()
            if store.get_type(name) == ObjectType.CONFIG:
                owner = "Hydra's" if name.startswith("hydra/") else "the runner's"
                raise Untrusted(
                    f"{shown(file)}:1:1\n  this file would stand in the place of {owner} own {name}; rename it"
                )


def of_point(loader: ConfigLoader, config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """What Hydra composes for a point of the sweep `config`. Raises `Untrusted`, and what Hydra raises."""
    whole = loader.load_sweep_config(config, list(overrides))
    check(whole, loader, [*config.hydra.overrides.hydra, *overrides])
    return whole


def check_choices(config: DictConfig, loader: ConfigLoader, typed: Sequence[str]) -> None:
    """Raise `Untrusted` where a file that a sweep may choose sets more than it may; `config` is the sweep's.

    Our own sweeper composes each point before it is run, so that one costs no other. Of another sweeper's points nobody
    knows before it runs them.
    """
    if str(config.hydra.sweeper.get("_target_")) == _OUR_SWEEPER:
        return
    parser = OverridesParser.create(config_loader=loader)
    parameters: Any = OmegaConf.to_container(config.hydra.sweeper.get("params") or OmegaConf.create(), resolve=True)
    parsed = parser.parse_overrides([*typed, *(f"{name}={value}" for name, value in parameters.items())])
    fixed = [str(override.input_line) for override in parsed if not override.is_sweep_override()]
    swept = [o for o in parsed if o.is_discrete_sweep() and loader.get_group_options(o.key_or_group)]
    choices = [list(override.sweep_string_iterator()) for override in swept]
    for which in range(len(swept)):
        for choice in choices[which]:
            chosen = [each[0] for each in choices]
            chosen[which] = choice
            points = [f"{o.get_key_element()}={value}" for o, value in zip(swept, chosen, strict=True)]
            whole = loader.load_configuration(config.hydra.job.config_name, [*fixed, *points], RunMode.RUN)
            check(whole, loader, [*fixed, *points])


def of_file(content: Mapping[str, Any]) -> Fault | None:
    """What a file sets of Hydra's settings that no experiment may, or not like this."""
    if "hydra" not in content:
        return None
    settings: Any = content["hydra"]
    if not is_dict(settings):
        return Fault(("hydra",), f"'hydra' is a mapping of sweeper.params and verbose, not {described(settings)}")
    for name, value in settings.items():
        key = ("hydra", str(name))
        if name == "sweeper" and not is_dict(value):
            return Fault(key, f"'hydra.sweeper' is a mapping of params, not {described(value)}")
        keys = [(str(name), str(inner)) for inner in value] if is_dict(value) and name == "sweeper" else [(str(name),)]
        for below in keys:
            if below not in MAY_SET:
                return Fault(("hydra", *below), _ALLOWED)
        if name == "sweeper" and (message := _of_parameters(value.get("params"))) is not None:
            return Fault((*key, "params"), message)
    return None


def _of_parameters(parameters: Any) -> str | None:
    """What is wrong with the parameters of a sweep that a file has: each becomes an override of a point."""
    if parameters is None:
        return None
    if not is_dict(parameters):
        return f"'hydra.sweeper.params' is a mapping of keys to what each is to be, not {described(parameters)}"
    for name in parameters:
        if not isinstance(name, str) or not _KEY.fullmatch(name) or of_hydra(name):
            return f"a sweep's parameters are keys of experiments, and {name!r} is none"
    return None


def _refuse_sweeper(sweeper: Any, typed: Sequence[str], config: DictConfig, folders: Sequence[Path]) -> None:
    if not is_dict(sweeper):
        message = f"'hydra.sweeper' is a mapping with a _target_, not {described(sweeper)}"
        override = next((override for override in reversed(typed) if override.startswith("hydra.sweeper=")), None)
        if override is not None:
            raise Untrusted(f"command line: {override}\n  {message}")
        raise Untrusted(_located(("hydra", "sweeper"), message, config, folders))
    if (message := _of_parameters(sweeper.get("params"))) is not None:
        raise Untrusted(_located(("hydra", *_PARAMS), message, config, folders))


_known: dict[tuple[Any, ...], dict[str, Any]] = {}
"""Hydra's settings without any experiment, which many have in common: by what they are made of."""


def _due(loader: ConfigLoader, name: str, typed: Sequence[str], folders: Sequence[Path]) -> dict[str, Any]:
    """Hydra's settings as the command line alone makes them."""
    # What a file may set is not compared, and what is typed of it may need what the file has.
    free = tuple(f"hydra.{'.'.join(key)}" for key in MAY_SET)
    needed = [override for override in typed if not override.lstrip("+~").startswith(free)]
    made_of = (os.getcwd(), name, *needed, *folders)
    if made_of not in _known:
        composed = loader.load_configuration(name, needed, RunMode.MULTIRUN, validate_sweep_overrides=False)
        _known[made_of] = _plain(composed)
    return _known[made_of]


def _plain(config: DictConfig) -> dict[str, Any]:
    return cast("dict[str, Any]", OmegaConf.to_container(config.hydra, resolve=False, enum_to_str=True))


def _is_hydras(override: str) -> bool:
    """Whether Hydra lists an override among those of its settings."""
    return override.strip().lstrip("+~").startswith(("hydra.", "hydra/"))


def _compared(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without what a file may set, and what Hydra notes of the files and overrides themselves."""
    job = {**settings["job"], "override_dirname": None}
    sweeper = {**settings["sweeper"], "params": None}
    choices = {name: value for name, value in settings["runtime"]["choices"].items() if name.startswith("hydra/")}
    runtime = {**settings["runtime"], "choices": choices}
    kept = {name: value for name, value in settings.items() if name not in ("overrides", *_VERBOSE)}
    return {**kept, "job": job, "sweeper": sweeper, "runtime": runtime}


def _first_difference(mine: Any, due: Any, key: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    """The key of the first value that is not as it is due; () where it is the whole."""
    if is_dict(mine) and is_dict(due):
        for name in [*mine, *(name for name in due if name not in mine)]:
            if name not in mine or name not in due:
                return (*key, str(name))
            difference = _first_difference(mine[name], due[name], (*key, str(name)))
            if difference is not None:
                return difference
        return None
    return None if mine == due else key


def _located(key: Key, message: str, config: DictConfig, folders: Sequence[Path]) -> str:
    """The message with the place in a file that says something of Hydra's settings, the last file first."""
    choices = cast("dict[str, Any]", OmegaConf.to_container(config.hydra.runtime.choices))
    made_of = [layer for layer in layers(folders, choices) if layer.file.parent not in folders]
    for layer in reversed(made_of):
        content = files.content(layer.file)
        fault = of_file(content) if is_dict(content) and layer.package == () else None
        if fault is not None:
            return _report(layer, fault)
    for layer in reversed(made_of):
        if "hydra" in layer.file.read_text(encoding="utf-8", errors="replace"):
            return f"{text_place(layer.file, 'hydra')}  {key_text(key)}\n  {message}"
    place = f"{shown(made_of[-1].file)}:1:1" if made_of else "configuration"
    return f"{place}  {key_text(key)}\n  {message}"


def _report(layer: Layer, fault: Fault) -> str:
    place = key_place(layer.file, fault.key) or shown(layer.file)
    return f"{place}  {key_text(fault.key)}\n  {fault.message}"
