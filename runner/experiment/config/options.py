"""Makes of an option's name in a configuration file what Hydra reads as the option.

`hardware: v5p` at the top of an experiment is short for `defaults: [override /hardware: v5p]`. Hydra reads every file
of a config folder through `FileConfigSource`, so the short form is expanded there, and all that Hydra does with a
defaults list holds for it: the command line, sweeps, and experiments that build on the file override it.
"""

from __future__ import annotations

import builtins
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from pathlib import Path
from typing import Any, cast

from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

from runner.base.lazy import dataclass
from runner.base.untyped import is_list, leaves
from runner.experiment.config import files, shape
from runner.experiment.config.folders import conf_folder
from runner.experiment.config.slices import Slice, slices


@dataclass
class Reading:
    """The files that Hydra has read for a configuration: their folders, and their names there without `.yaml`.

    - `reaching`: those that may set Hydra's own settings: by a key, a package, or an entry of the defaults list.
    """

    files: set[tuple[Path, str]] = field(default_factory=set[tuple[Path, str]])
    reaching: set[tuple[Path, str]] = field(default_factory=set[tuple[Path, str]])


_reading: ContextVar[Reading | None] = ContextVar("_reading", default=None)


@contextmanager
def reading() -> Generator[Reading]:
    """Record the files that Hydra reads inside the context."""
    record = Reading()
    token = _reading.set(record)
    try:
        yield record
    finally:
        _reading.reset(token)


class FileConfigSource(file_config_source.FileConfigSource):
    """Reads the files of a folder as Hydra does, and expands options of config groups."""

    def is_group(self, config_path: str) -> bool:
        """Whether a folder holds options; never one with the name of a key that has none, such as `outputs`.

        Otherwise `outputs=null` would choose a file of the folder `outputs/` where an experiment lies beside its runs.
        """
        return shape.is_group(config_path) and super().is_group(config_path)

    def is_config(self, config_path: str) -> bool:
        """Whether a folder holds an option; the runner's own holds the named slices of TPUs, without a file of each."""
        return self._slice(config_path) is not None or super().is_config(config_path)

    def list(self, config_path: str, results_filter: ObjectType | None) -> builtins.list[str]:
        """Return the options and groups of a group, for completion and messages."""
        names = super().list(config_path, results_filter)
        if config_path == "target" and self._is_own and results_filter is not ObjectType.GROUP:
            names += slices().keys() - {*names}
        return sorted(names)

    @property
    def _is_own(self) -> bool:
        return Path(self.path).resolve() == conf_folder().resolve()

    def _slice(self, config_path: str) -> Slice | None:
        """The slice of TPUs that an option of `target` names."""
        group, _, option = config_path.removesuffix(".yaml").rpartition("/")
        return slices().get(option) if group == "target" and self._is_own else None

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the content of a file, with its options in the defaults list.

        Raises `ConfigCompositionException` for a group with two options and for an empty experiment;
        `experiment/config/config_errors.py` says which and where.
        """
        made = self._slice(config_path)
        result = super().load_config(config_path) if made is None else self._made(made)
        if (record := _reading.get()) is not None:
            file = Path(self.path).resolve(), config_path
            record.files.add(file)
            if _reaches_hydra(config_path, result):
                record.reaching.add(file)
        if files.is_experiment(config_path):
            if not result.config:
                raise ConfigCompositionException("an empty file")
            result.header["package"] = result.header.get("package") or "_global_"
        if result.header.get("package") == "_global_" and isinstance(result.config, DictConfig):
            result.config = _expanded(result.config)
        return result

    def _made(self, made: Slice) -> ConfigResult:
        path = f"{self.scheme()}://{self.path}"
        return ConfigResult(
            config=OmegaConf.create(made.values), path=path, provider=self.provider, header={"package": None}
        )


def _reaches_hydra(config_path: str, result: ConfigResult) -> bool:
    """Whether a file might set Hydra's settings: every way to do so mentions them in the content that Hydra reads.

    An interpolation in the defaults list may name anything.
    """
    if not isinstance(result.config, DictConfig):
        return True
    defaults: Any = OmegaConf.to_container(OmegaConf.masked_copy(result.config, ["defaults"]), resolve=False)
    listed = [str(leaf) for leaf in leaves(defaults.get("defaults", []))]
    names = [config_path, *map(str, result.header.values()), *map(str, result.config), *listed]
    return any("hydra" in name for name in names) or any("${" in text for text in listed)


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
