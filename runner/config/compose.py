"""The name of an experiment and overrides in; its resolved mapping out: what the command composes, without a command.

For callers that run experiments in their own process, such as the pytest plugin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.config.sources import Sources


def conf_folder() -> Path:
    """The configuration that comes with the runner: beside it in a checkout, inside it in a wheel."""
    inside = Path(__file__).parents[1] / "conf"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "conf"


class InvalidConfiguration(Exception):
    """The configuration cannot be composed; the message says where, what, and what instead."""


@dataclass(frozen=True)
class Configuration:
    """A resolved configuration, and the files and overrides that it was made of."""

    plain: dict[str, Any]
    sources: Sources


def compose(experiment: str, folder: Path, overrides: Sequence[str] = ()) -> Configuration:
    """Compose the experiment of that name, with `folder` as the command's `--config-dir` (or the runner's own).

    Raises `InvalidConfiguration`.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from runner.config import composition
    from runner.config.schema import ExperimentConfig

    ConfigStore.instance().store(name="schema", node=ExperimentConfig)
    own = conf_folder().resolve()
    folders = [own] if folder.resolve() == own else [own, folder.resolve()]
    chosen = (f"+experiment={experiment}", *overrides)
    # In Hydra's grammar a quoted value may hold any character of a path; a quote in it is escaped.
    search = [f"hydra.searchpath=[{_quoted(f'file://{path}')}]" for path in folders[1:]]
    try:
        with initialize_config_dir(str(own), version_base="1.3"):
            config = compose("config", overrides=[*search, *chosen], return_hydra_config=True)
        choices = dict(config.hydra.runtime.choices)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise InvalidConfiguration(composition.report(error, folders, chosen)) from None
    sources = Sources(composition.layers(folders, choices), tuple(chosen))
    with open_dict(config):
        del config["hydra"]
    try:
        plain: Any = without_missing(OmegaConf.to_container(config, resolve=True))
    except OmegaConfBaseException as error:
        raise InvalidConfiguration(composition.in_task(error, sources)) from None
    return Configuration(plain, sources)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def without_missing(value: Any) -> Any:
    """OmegaConf spells a mandatory value that nobody gave as `???`."""
    if isinstance(value, dict):
        return {key: without_missing(item) for key, item in value.items()}
    return None if value == "???" else value
