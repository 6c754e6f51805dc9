"""Refuses a configuration in which a file sets what only the command line may: docs/security.md.

Hydra acts on its settings: callbacks, launchers and loggers name code to call, and folders are written to. An
experiment is data, so its files may set only the settings in `MAY_SET`, whether by a key, a default or a package. This
is checked by effect: all other settings must equal those of the same command line without any experiment. Composing
these takes as long as the run's own configuration, so it is left out where no file names Hydra's settings at all.
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

from runner.base.faults import Fault, Key, key_text
from runner.base.untyped import is_dict
from runner.base.words import shown
from runner.experiment.config import files, options
from runner.experiment.config.files import Layer, layers
from runner.experiment.config.folders import conf_folder
from runner.experiment.config.quoting import of_hydra
from runner.experiment.config.shape import described
from runner.experiment.config.sources import key_place, text_place

if TYPE_CHECKING:
    from hydra.core.config_loader import ConfigLoader
    from omegaconf import DictConfig

_PARAMS = ("sweeper", "params")
_VERBOSE = ("verbose",)

MAY_SET = (_PARAMS, _VERBOSE)
"""The Hydra settings that the files of an experiment may set."""

_OUR_SWEEPER = "hydra_plugins.shardproof_sweeper.ShardproofSweeper"

_ALLOWED = "an experiment may set only hydra.sweeper.params and hydra.verbose; the command line sets the rest of Hydra"

_OF_HYDRA = ("hydra", "schema")
"""The providers of configurations in Python: Hydra's own, and the runner's schema."""

_KEY = re.compile(r"[+~]{0,2}\w[\w./-]*")
"""A key of an experiment, as the parameters of a sweep name it."""


class Untrusted(ConfigCompositionException):
    """A file sets what only the command line may; the message says where, what, and what files may set."""


def check(config: DictConfig, loader: ConfigLoader, typed: Sequence[str], read: options.Reading) -> None:
    """Raise `Untrusted` where a file set a Hydra setting that it may not; `typed` are all overrides.

    `read` are the files that Hydra read for this configuration. Also raises for a file that hides one of Hydra's own
    configurations or the runner's.
    """
    folders = [Path(s.path) for s in config.hydra.runtime.config_sources if s.schema == "file" and s.path]
    check_folders(folders)
    settings = _plain(config)
    own = [override for override in typed if of_hydra(override)]
    _refuse_sweeper(settings["sweeper"], own, config, folders)
    by_owner = {"hydra": [o for o in typed if _is_hydras(o)], "task": [o for o in typed if not _is_hydras(o)]}
    key: tuple[str, ...] | None = None
    if _may_reach_hydra(config, typed, read):
        due = _due(loader, config.hydra.job.config_name, own, folders)
        key = _first_difference(_compared(settings), _compared(due))
    key = key or _first_difference(settings["overrides"], by_owner)
    if key is not None:
        raise Untrusted(_located(("hydra", *key), _ALLOWED, config, folders))


def _may_reach_hydra(config: DictConfig, typed: Sequence[str], read: options.Reading) -> bool:
    """Whether a file beside the primary configuration may have set Hydra's settings, as far as their texts say."""
    primary, own = str(config.hydra.job.config_name), conf_folder().resolve()
    foreign = [s for s in config.hydra.runtime.config_sources if s.schema != "file" and s.provider not in _OF_HYDRA]
    # The runner's own options of Hydra's groups are chosen by the primary configuration or the command line.
    reaching = [name for home, name in read.reaching if not (home == own and name.startswith("hydra/"))]
    # `of_hydra` knows a typed package, mesh@hydra.job=NAME; what else names Hydra is compared by its effect.
    named = any("hydra" in override for override in typed if not of_hydra(override))
    known = any(name == primary for _, name in read.files)
    return not known or any(name != primary for name in reaching) or bool(foreign) or named


def check_folders(folders: Sequence[Path]) -> None:
    """Raise `Untrusted` where a file would hide a configuration that Hydra, a plugin or the runner has in Python."""
    store = ConfigStore.instance()
    for folder in folders:
        if folder.resolve() == conf_folder().resolve():
            continue
        for file in [*sorted(folder.glob("*.yaml")), *sorted((folder / "hydra").rglob("*.yaml"))]:
            name = file.relative_to(folder).as_posix()
            if store.get_type(name) == ObjectType.CONFIG:
                owner = "Hydra's" if name.startswith("hydra/") else "the runner's"
                raise Untrusted(f"{shown(file)}:1:1\n  this file would replace {owner} own {name}; rename it")


def of_point(loader: ConfigLoader, config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Compose and check one point of the sweep `config`. Raises `Untrusted` and Hydra's own exceptions."""
    with options.reading() as read:
        whole = loader.load_sweep_config(config, list(overrides))
    check(whole, loader, [*config.hydra.overrides.hydra, *overrides], read)
    return whole


def check_choices(config: DictConfig, loader: ConfigLoader, typed: Sequence[str]) -> None:
    """Check, option by option, the files that the sweep `config` may choose. Raises `Untrusted`.

    Does nothing for our own sweeper, which checks each point before it runs it. The points of another sweeper are not
    known before it runs them.
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
            with options.reading() as read:
                whole = loader.load_configuration(config.hydra.job.config_name, [*fixed, *points], RunMode.RUN)
            check(whole, loader, [*fixed, *points], read)


def of_file(content: Mapping[str, Any]) -> Fault | None:
    """Return the fault of the Hydra settings that a file sets; None where it may set them all."""
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
    """Return the message for invalid sweep parameters, each of which becomes an override of a point, or None."""
    if parameters is None:
        return None
    if not is_dict(parameters):
        return f"'hydra.sweeper.params' is a mapping of keys to their values, not {described(parameters)}"
    for name in parameters:
        if not isinstance(name, str) or not _KEY.fullmatch(name) or of_hydra(name):
            return f"a sweep's parameters are keys of experiments, and {name!r} is not one"
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
"""Cache of Hydra's settings without any experiment, by the inputs of their composition."""


def _due(loader: ConfigLoader, name: str, typed: Sequence[str], folders: Sequence[Path]) -> dict[str, Any]:
    """Compose Hydra's settings from the command line alone."""
    # `MAY_SET` is not compared, and its overrides may refer to keys that only the experiment's file has.
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
    """Whether Hydra lists an override in `hydra.overrides.hydra`."""
    return override.strip().lstrip("+~").startswith(("hydra.", "hydra/"))


def _compared(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings to compare: without `MAY_SET` and Hydra's own record of the files and overrides."""
    job = {**settings["job"], "override_dirname": None}
    sweeper = {**settings["sweeper"], "params": None}
    choices = {name: value for name, value in settings["runtime"]["choices"].items() if name.startswith("hydra/")}
    runtime = {**settings["runtime"], "choices": choices}
    kept = {name: value for name, value in settings.items() if name not in ("overrides", *_VERBOSE)}
    return {**kept, "job": job, "sweeper": sweeper, "runtime": runtime}


def _first_difference(mine: Any, due: Any, key: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    """The key of the first value that differs from `due`; () where the two themselves do, None where none does."""
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
    """Return the message with the place of the last file that sets Hydra settings."""
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
