"""Composes an experiment's name and overrides to its resolved configuration.

The command, the Python API and the pytest plugin all compose here. In a sweep, Hydra composes each point and `resolved`
resolves it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, cast

from runner.base.faults import Fault, nearest
from runner.base.lazy import dataclass
from runner.base.untyped import is_dict
from runner.experiment.config.folders import conf_folder, folder_name, misnamed, options_of
from runner.experiment.config.sources import Sources, shown

if TYPE_CHECKING:
    from hydra.conf import HydraConf
    from omegaconf import DictConfig, ListConfig


class InvalidConfiguration(Exception):
    """The configuration cannot be composed; the message says where, what, and what instead."""


@dataclass(frozen=True)
class Provenance:
    """The inputs of a configuration: config folders, the chosen option of each config group, overrides."""

    folders: tuple[Path, ...]
    choices: dict[str, Any]
    overrides: tuple[str, ...]

    @cached_property
    def sources(self) -> Sources:
        """The files and overrides in which keys are located; read only when there is something to report."""
        from runner.experiment.config.layers import layers

        return Sources(layers(self.folders, self.choices), self.overrides, self.folders)


@dataclass(frozen=True)
class Configuration:
    """A resolved configuration and its inputs."""

    plain: dict[str, Any]
    provenance: Provenance

    @property
    def sources(self) -> Sources:
        """The files and overrides that set its values."""
        return self.provenance.sources


def compose(experiment: str, folder: Path, overrides: Sequence[str] = ()) -> Configuration:
    """Compose the experiment called `experiment`; `folder` is the command's `--config-dir`, or the runner's own.

    Raises `InvalidConfiguration`.
    """
    from omegaconf import open_dict

    chosen = (f"+experiment={experiment}", *with_specs(overrides))
    own = folder.resolve() == conf_folder().resolve()
    with composed(chosen, None if own else folder) as config:
        provenance = provenance_of(config.hydra)
        with open_dict(config):
            del config["hydra"]
        return resolved(config, provenance)


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

    from runner.experiment.config import composition, options, trust

    register()
    own = conf_folder().resolve()
    refuse_too_much(overrides, [own] if folder is None else [own, folder])
    # In Hydra's grammar a quoted value may hold any character of a path; a quote in it is escaped.
    added = [] if folder is None else [f"hydra.searchpath=[{_quoted(f'file://{folder.resolve()}')}]"]
    with initialize_config_dir(str(own), job_name="runner", version_base="1.3"):
        try:
            trust.check_folders([] if folder is None else [folder])
            with options.reading() as read:
                config = compose("config", overrides=[*added, *overrides], return_hydra_config=True)
            trust.check(config, GlobalHydra.instance().config_loader(), [*added, *overrides], read)
        except Exception as error:
            folders = [own] if folder is None else [own, folder.resolve()]
            raise InvalidConfiguration(composition.report(error, folders, overrides)) from error
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
        path = ",".join([_quoted(f"file://{folder.resolve()}"), *others])
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


def named(option: str) -> str:
    """Return the name of an experiment whose file gives none: the file's name, `mine` of the option `../mine`."""
    return PurePath(option).name.removesuffix(".yaml")


def provenance_of(settings: HydraConf) -> Provenance:
    """Read the inputs of a configuration from its Hydra settings."""
    from omegaconf import OmegaConf

    folders = tuple(Path(s.path) for s in settings.runtime.config_sources if s.schema == "file" and s.path)
    # Unresolved: interpolations in overrides refer to the configuration, not to Hydra's settings.
    overrides = cast("list[str]", OmegaConf.to_container(cast("ListConfig", settings.overrides.task), resolve=False))
    return Provenance(folders, dict(settings.runtime.choices), tuple(overrides))


def resolved(config: DictConfig, provenance: Provenance) -> Configuration:
    """Resolve the interpolations of a configuration from which Hydra's settings were removed.

    Raises `InvalidConfiguration` for an interpolation of a missing key, a malformed PartitionSpec, an unknown key that
    the command line added, and a flag or word that does not exist.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from runner.experiment.config import composition

    try:
        given: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise InvalidConfiguration(composition.of_config(error, provenance.sources)) from None
    return checked(given, provenance)


def checked(given: Any, provenance: Provenance) -> Configuration:
    """Check values and choices that OmegaConf does not, and complete them.

    Raises `InvalidConfiguration`, as `resolved` does.
    """
    from runner.experiment.config import choices, composition, shape, specs

    if (message := choices.without_effect(provenance.sources)) is not None:
        raise InvalidConfiguration(message)
    for key, message in specs.wrong(given):
        raise InvalidConfiguration(provenance.sources.report(Fault(key, message)))
    given = specs.normal(given)
    for misfit in shape.misfits(given):
        raise InvalidConfiguration(composition.of_misfit(misfit, provenance.sources))
    plain: Any = without_missing(given)
    plain |= shape.flags(plain)
    if plain.get("name") is None and isinstance(option := provenance.choices.get("experiment"), str):
        plain["name"] = named(option)
    _refuse_absent_targets(plain, provenance)
    return _with_derivation(_with_hardware(Configuration(plain, provenance)))


def _with_hardware(configuration: Configuration) -> Configuration:
    """Merge the hardware of the target's topology under the configuration's own `hardware`."""
    plain, provenance = configuration.plain, configuration.provenance
    topology = plain["target"]["topology"]
    own: Mapping[str, Any] = plain["hardware"] or {}
    if not isinstance(topology, str) or own.get("name") is not None:
        return configuration
    generation = topology.partition(":")[0]
    below = _hardware_called(generation, provenance)
    if below is None:
        return configuration
    provenance = replace(provenance, choices={**provenance.choices, "hardware": generation})
    merged = {**own, **_laid_over(below, own)}
    _check_hardware(merged, provenance)
    return Configuration({**plain, "hardware": merged}, provenance)


def _with_derivation(configuration: Configuration) -> Configuration:
    """Put the numbers of the hardware that `derive` names in the place of its name."""
    from runner.experiment.config.shape import listed

    plain, provenance = configuration.plain, configuration.provenance
    derive: Mapping[str, Any] = plain["derive"] or {}
    name = derive.get("hardware")
    if not isinstance(name, str):
        return configuration
    numbers = _hardware_called(name, provenance)
    if numbers is None:
        there = [option for option in options_of(provenance.folders, "hardware") if option != "none"]
        message = f"no hardware '{name}'{nearest(name, there) or listed(there)}"
        raise InvalidConfiguration(provenance.sources.report(Fault(("derive", "hardware"), message)))
    _check_hardware(numbers, provenance)
    return Configuration({**plain, "derive": {**derive, "hardware": numbers}}, provenance)


def _check_hardware(numbers: Mapping[str, Any], provenance: Provenance) -> None:
    """Raise `InvalidConfiguration` if the numbers of hardware, from its file, do not have the shape of the key."""
    from runner.experiment.config import composition, shape

    for misfit in shape.misfits(numbers, ("hardware",)):
        raise InvalidConfiguration(composition.of_misfit(misfit, provenance.sources))


def _hardware_called(name: str, provenance: Provenance) -> dict[str, Any] | None:
    """The numbers in the file of the config group `hardware` that has this name; None if there is none."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from runner.experiment.config import files

    if misnamed(name) is not None:
        return None
    hardware = [file for folder in provenance.folders if (file := folder / "hardware" / f"{name}.yaml").is_file()]
    if not hardware:
        return None
    if (message := files.refusal(hardware[0], experiment=False)) is not None:
        raise InvalidConfiguration(message)
    try:
        # Read by OmegaConf as Hydra does: PyYAML reads 2e+12 as a string.
        return cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.load(hardware[0]), resolve=True))
    except (OmegaConfBaseException, YAMLError) as error:
        raise InvalidConfiguration(f"{shown(hardware[0])}\n  {str(error).splitlines()[0]}") from None


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings recursively; values of `above` that are not None win."""
    merged = dict(below)
    for name, value in above.items():
        if is_dict(value):
            under: Any = below.get(name)
            merged[name] = _laid_over(under if is_dict(under) else {}, value)
        elif value is not None:
            merged[name] = value
    return merged


def _refuse_absent_targets(plain: Mapping[str, Any], provenance: Provenance) -> None:
    from runner.experiment.config.shape import listed

    test: Mapping[str, Any] = plain["test"] or {}
    targets: Sequence[Any] = test.get("targets") or ()
    if not targets:
        return
    there = options_of(provenance.folders, "target")
    for i, target in enumerate(targets):
        if isinstance(target, str) and target not in there:
            message = f"no target '{target}'{nearest(target, there) or listed(there)}"
            raise InvalidConfiguration(provenance.sources.report(Fault(("test", "targets", i), message)))


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def without_missing(value: Any) -> Any:
    """Replace `???`, OmegaConf's mark of a missing mandatory value, by None."""
    if is_dict(value):
        return {key: without_missing(item) for key, item in value.items()}
    return None if value == "???" else value
