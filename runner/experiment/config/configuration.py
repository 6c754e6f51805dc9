"""A resolved configuration and its inputs, and the checks that OmegaConf does not make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, cast

from runner.base.faults import BadInput, Fault, nearest
from runner.base.lazy import dataclass
from runner.base.untyped import is_dict
from runner.base.words import shown
from runner.experiment.config.folders import misnamed, options_of
from runner.experiment.config.sources import Sources


class InvalidConfiguration(BadInput):
    """The configuration cannot be composed; the message says where, what, and what instead."""


@dataclass(frozen=True)
class Configuration:
    """A resolved configuration, and the files and overrides that set its values."""

    plain: dict[str, Any]
    sources: Sources


def named(option: str) -> str:
    """Return the name of an experiment whose file gives none: the file's name, `mine` of the option `../mine`."""
    return PurePath(option).name.removesuffix(".yaml")


def checked(given: Any, sources: Sources) -> Configuration:
    """Check values and choices that OmegaConf does not, and complete them.

    Raises `InvalidConfiguration`, as `resolved` does.
    """
    from runner.experiment.config import choices, composition, shape, specs

    if (message := choices.without_effect(sources)) is not None:
        raise InvalidConfiguration(message)
    for key, message in specs.wrong(given):
        raise InvalidConfiguration(sources.report(Fault(key, message)))
    given = specs.normal(given)
    for misfit in shape.misfits(given):
        raise InvalidConfiguration(composition.of_misfit(misfit, sources))
    plain: Any = without_missing(given)
    plain |= shape.flags(plain)
    if plain.get("name") is None and isinstance(option := sources.choices.get("experiment"), str):
        plain["name"] = named(option)
    _refuse_absent_targets(plain, sources)
    return _with_derivation(_with_hardware(Configuration(plain, sources)))


def _with_hardware(configuration: Configuration) -> Configuration:
    """Merge the hardware of the target's topology under the configuration's own `hardware`."""
    plain, sources = configuration.plain, configuration.sources
    topology = plain["target"]["topology"]
    own: Mapping[str, Any] = plain["hardware"] or {}
    if not isinstance(topology, str) or own.get("name") is not None:
        return configuration
    generation = topology.partition(":")[0]
    below = _hardware_called(generation, sources)
    if below is None:
        return configuration
    sources = replace(sources, choices={**sources.choices, "hardware": generation})
    merged = {**own, **_laid_over(below, own)}
    _check_hardware(merged, sources)
    return Configuration({**plain, "hardware": merged}, sources)


def _with_derivation(configuration: Configuration) -> Configuration:
    """Put the numbers of the hardware that `derive` names in the place of its name."""
    from runner.experiment.config.shape import listed

    plain, sources = configuration.plain, configuration.sources
    derive: Mapping[str, Any] = plain["derive"] or {}
    name = derive.get("hardware")
    if not isinstance(name, str):
        return configuration
    numbers = _hardware_called(name, sources)
    if numbers is None:
        there = [option for option in options_of(sources.folders, "hardware") if option != "none"]
        message = f"no hardware '{name}'{nearest(name, there) or listed(there)}"
        raise InvalidConfiguration(sources.report(Fault(("derive", "hardware"), message)))
    _check_hardware(numbers, sources)
    return Configuration({**plain, "derive": {**derive, "hardware": numbers}}, sources)


def _check_hardware(numbers: Mapping[str, Any], sources: Sources) -> None:
    """Raise `InvalidConfiguration` if the numbers of hardware, from its file, do not have the shape of the key."""
    from runner.experiment.config import composition, shape

    for misfit in shape.misfits(numbers, ("hardware",)):
        raise InvalidConfiguration(composition.of_misfit(misfit, sources))


def _hardware_called(name: str, sources: Sources) -> dict[str, Any] | None:
    """The numbers in the file of the config group `hardware` that has this name; None if there is none."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from runner.experiment.config import files

    if misnamed(name) is not None:
        return None
    hardware = [file for folder in sources.folders if (file := folder / "hardware" / f"{name}.yaml").is_file()]
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


def _refuse_absent_targets(plain: Mapping[str, Any], sources: Sources) -> None:
    from runner.experiment.config.shape import listed

    test: Mapping[str, Any] = plain["test"] or {}
    targets: Sequence[Any] = test.get("targets") or ()
    if not targets:
        return
    there = options_of(sources.folders, "target")
    for i, target in enumerate(targets):
        if isinstance(target, str) and target not in there:
            message = f"no target '{target}'{nearest(target, there) or listed(there)}"
            raise InvalidConfiguration(sources.report(Fault(("test", "targets", i), message)))


def without_missing(value: Any) -> Any:
    """Replace `???`, OmegaConf's mark of a missing mandatory value, by None."""
    if is_dict(value):
        return {key: without_missing(item) for key, item in value.items()}
    return None if value == "???" else value
