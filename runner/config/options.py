"""A configuration file in, in which a config group may have an option's name; what Hydra makes of the option out.

`hardware: v5p` at the top of an experiment is short for `defaults: [override /hardware: v5p]`. Hydra reads every file
of a config folder through `FileConfigSource`, so the short form is expanded there, and all that Hydra does with a
defaults list holds for it: the command line, sweeps, and experiments that build on the file override it.
"""

from __future__ import annotations

from typing import Any, cast

from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

from runner.config import files
from runner.untyped import is_list


class FileConfigSource(file_config_source.FileConfigSource):
    """Reads the files of a folder as Hydra does, and expands options of config groups."""

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the content of a file, with its options in the defaults list.

        Raises `ConfigCompositionException` for a group with two options; `config/composition.py` says which and where.
        """
        result = super().load_config(config_path)
        if result.header.get("package") == "_global_" and isinstance(result.config, DictConfig):
            result.config = _expanded(result.config)
        return result


def _expanded(config: DictConfig) -> DictConfig:
    content = cast("dict[str, Any]", OmegaConf.to_container(config, resolve=False))
    options = files.options(content)
    defaults = content.get("defaults", [])
    if not options or not is_list(defaults):
        return config
    if (twice := files.chosen_twice(content)) is not None:
        raise ConfigCompositionException(f"two options of {twice}")
    kept = OmegaConf.masked_copy(config, [str(key) for key in config if key not in options])
    kept["defaults"] = [*defaults, *({f"override /{group}": option} for group, option in options.items())]
    return kept


def register() -> None:
    """Make Hydra read files by `FileConfigSource`."""
    # Hydra registers its own source when it finds its plugins, and refuses a second one for the same scheme.
    Plugins.instance()
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource
