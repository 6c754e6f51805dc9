"""Composes an experiment's name and overrides to its resolved configuration.

The command, the Python API and the pytest plugin all compose here. In a sweep, Hydra composes each point and `resolved`
resolves it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from runner.experiment.config import direct
from runner.experiment.config.configuration import Configuration, InvalidConfiguration, checked, named
from runner.experiment.config.folders import conf_folder, folder_name
from runner.experiment.config.quoting import in_quotes
from runner.experiment.config.sources import Sources

if TYPE_CHECKING:
    from hydra.conf import HydraConf
    from omegaconf import DictConfig, ListConfig


def compose(experiment: str, folder: Path, overrides: Sequence[str] = ()) -> Configuration:
    """Compose the experiment called `experiment`; `folder` is the command's `--config-dir`, or the runner's own.

    Raises `InvalidConfiguration`.
    """
    chosen = (f"+experiment={experiment}", *with_specs(overrides))
    own = folder.resolve() == conf_folder().resolve()
    added = None if own else folder
    refuse_too_much(chosen, [conf_folder()] if added is None else [conf_folder(), added])
    if (whole := direct.chosen(chosen, added)) is not None:
        return whole.checked()
    return by_hydra(chosen, added)


def by_hydra(overrides: Sequence[str], folder: Path | None = None) -> Configuration:
    """Let Hydra compose the configuration of one run, without its own settings. Raises `InvalidConfiguration`."""
    from omegaconf import open_dict

    with composed(overrides, folder) as config:
        sources = sources_of(config.hydra)
        with open_dict(config):
            del config["hydra"]
        return resolved(config, sources)


def with_specs(overrides: Iterable[str]) -> list[str]:
    """Return the overrides with each `P(...)` rewritten as a list. Raises `InvalidConfiguration`."""
    from runner.experiment.config import specs

    try:
        return specs.overrides(overrides)
    except specs.NoSpec as error:
        raise InvalidConfiguration(str(error)) from None


@contextmanager
def composed(overrides: Sequence[str], folder: Path | None = None) -> Generator[DictConfig]:
    """Compose the configuration of one run, including Hydra's own settings; Hydra stays initialized inside the context.

    `folder` is the user's config folder. Raises `InvalidConfiguration`.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from runner.experiment.config import config_errors, options, trust

    register()
    own = conf_folder().resolve()
    refuse_too_much(overrides, [own] if folder is None else [own, folder])
    added = [] if folder is None else [f"hydra.searchpath=[{in_quotes(f'file://{folder.resolve()}')}]"]
    with initialize_config_dir(str(own), job_name="runner", version_base="1.3"):
        try:
            trust.check_folders([] if folder is None else [folder])
            with options.reading() as read:
                config = compose("config", overrides=[*added, *overrides], return_hydra_config=True)
            trust.check(config, GlobalHydra.instance().config_loader(), [*added, *overrides], read)
        except Exception as error:
            folders = [own] if folder is None else [own, folder.resolve()]
            raise InvalidConfiguration(config_errors.report(error, folders, overrides)) from error
        yield config


@contextmanager
def beforehand(
    overrides: Sequence[str], folder: Path | None, home: Path | None = None, name: str | None = None
) -> Generator[DictConfig]:
    """Compose what Hydra's command is about to compose, so that it is checked before Hydra acts on its settings.

    `home` is the folder of the primary configuration, `name` its name. Raises `Untrusted` and Hydra's own exceptions.
    """
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    from runner.experiment.config import options, trust

    typed = list(overrides)
    if folder is not None:
        searched = [override for override in typed if override.startswith("hydra.searchpath=")]
        others = [] if not searched else [searched[0].partition("=")[2].strip()[1:-1]]
        path = ",".join([in_quotes(f"file://{folder.resolve()}"), *others])
        typed = [f"hydra.searchpath=[{path}]", *(override for override in typed if override not in searched)]
    with initialize_config_dir(str((home or conf_folder()).resolve()), job_name="runner", version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        trust.check_folders([] if folder is None else [folder])
        with options.reading() as read:
            config = loader.load_configuration(
                name or "config", typed, RunMode.MULTIRUN, validate_sweep_overrides=False
            )
        trust.check(config, loader, typed, read)
        trust.check_choices(config, loader, typed)
        yield config


def refuse_too_much(overrides: Sequence[str], folders: Sequence[Path]) -> None:
    """Raise `InvalidConfiguration` for a number, a value or an experiment file beyond the limits; aliases stay."""
    from runner.experiment.config import files, text_size

    for override in overrides:
        value = override.partition("=")[2].strip()
        if (reason := text_size.digits(value) or text_size.too_much(value)) is not None:
            raise InvalidConfiguration(f"command line: {override[:60]}…\n  {reason}")
    message = files.too_much(overrides, folders)
    if message is not None:
        raise InvalidConfiguration(message)


@cache
def register() -> None:
    """Register with Hydra the types of an experiment's keys, how files are read, and the resolvers of the defaults."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    from runner.experiment.config import options
    from runner.experiment.config.schema import ExperimentConfig

    options.register()
    ConfigStore.instance().store(name="schema", node=ExperimentConfig)
    OmegaConf.register_new_resolver("folder", folder_name, replace=True)
    OmegaConf.register_new_resolver("named", named, replace=True)


def sources_of(settings: HydraConf) -> Sources:
    """Read what a configuration is made of from its Hydra settings."""
    from omegaconf import OmegaConf

    folders = tuple(Path(s.path) for s in settings.runtime.config_sources if s.schema == "file" and s.path)
    # Unresolved: interpolations in overrides refer to the configuration, not to Hydra's settings.
    overrides = cast("list[str]", OmegaConf.to_container(cast("ListConfig", settings.overrides.task), resolve=False))
    return Sources((), tuple(overrides), folders, dict(settings.runtime.choices))


def resolved(config: DictConfig, sources: Sources) -> Configuration:
    """Resolve the interpolations of a configuration from which Hydra's settings were removed.

    Raises `InvalidConfiguration` for an interpolation of a missing key, a malformed PartitionSpec, an unknown key that
    the command line added, and a flag or word that does not exist.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from runner.experiment.config import config_errors

    try:
        given: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise InvalidConfiguration(config_errors.of_config(error, sources)) from None
    return checked(given, sources)
