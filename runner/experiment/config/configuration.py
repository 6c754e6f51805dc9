"""Holds a resolved configuration and its inputs, and makes the checks that OmegaConf does not make.

Hydra merges the file of an experiment over the option of a config group. Where that file has the group as a mapping,
its keys win over those of the option, even if the command line, or an experiment that builds on the file, chose it.
That is answered with what to write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, NamedTuple, cast

from runner.base.faults import BadInput, Fault, Key, key_text, nearest
from runner.base.lazy import dataclass
from runner.base.untyped import is_dict, is_list, is_sequence
from runner.base.words import shown
from runner.experiment.config import files, quoting
from runner.experiment.config.folders import misnamed, options_of
from runner.experiment.config.shape import GROUPS
from runner.experiment.config.sources import Sources, key_place, text_place


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
    from runner.experiment.config import config_errors, shape, specs

    if sources.mapping is None and (message := without_effect(sources)) is not None:
        raise InvalidConfiguration(message)
    for key, message in specs.wrong(given):
        raise InvalidConfiguration(sources.report(Fault(key, message)))
    given = specs.normal(given)
    for misfit in shape.misfits(given):
        raise InvalidConfiguration(config_errors.of_misfit(misfit, sources))
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
    from runner.experiment.config import config_errors, shape

    for misfit in shape.misfits(numbers, ("hardware",)):
        raise InvalidConfiguration(config_errors.of_misfit(misfit, sources))


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


class _Choice(NamedTuple):
    """The last choice of an option of a config group.

    - `place`: where it is made; `file`: the file, None for the command line.
    - `below`: the number of files whose mappings it should win over: an experiment overrides its own choice on purpose.
    """

    place: str
    option: str
    file: Path | None
    below: int


def without_effect(sources: Sources) -> str | None:
    """The message for a chosen option, some of whose keys an experiment's file or its bases set otherwise.

    Of several files that set a key the last one counts, as in the merged configuration. Keys that the command line sets
    are left out.
    """
    names = [quoting.name(override) for override in sources.overrides]
    based = sum(layer.group == "experiment" for layer in sources.layers) > 1
    groups = [group for group in GROUPS if based or group in names]
    contents = [files.content(layer.file) for layer in sources.layers] if groups else []
    for group in groups:
        if (choice := _choice(group, sources, contents)) is None:
            continue
        written = tuple(f"{name}." for name in names if name.startswith(f"{group}."))
        option: Mapping[str, Any] = {}
        own: dict[Key, tuple[int, object]] = {}
        for number, (layer, content) in enumerate(zip(sources.layers, contents, strict=True)):
            if not is_dict(content):
                continue
            if layer.package == (group,):
                option = content
            elif layer.package == () and is_dict(values := content.get(group)):
                own |= {key: (number, value) for key, value in _leaves(values, (group,))}
        for key, (number, value) in own.items():
            overridden = f"{key_text(key)}.".startswith(written)
            if number < choice.below and _differs(value, option, key[1:]) and not overridden:
                place = key_place(sources.layers[number].file, key)
                return f"{choice.place}\n  {place} {_instead(choice, group, key, option)}"
    return None


def _choice(group: str, sources: Sources, contents: list[Any]) -> _Choice | None:
    """Return the last choice: of the command line, or of the last file that has one."""
    on_line = [override for override in sources.overrides if quoting.name(override) == group]
    if on_line:
        return _Choice(f"command line: {on_line[-1]}", on_line[-1].partition("=")[2], None, len(contents))
    for number in reversed(range(len(contents))):
        layer, content = sources.layers[number], contents[number]
        if layer.group == "experiment" and is_dict(content) and (option := _chosen(content, group)) is not None:
            return _Choice(f"{text_place(layer.file, group)}  {group}", option, layer.file, number)
    return None


def _chosen(content: Mapping[str, Any], group: str) -> str | None:
    """Return the option that an experiment's file chooses, `mesh: x2_y2` or `defaults: [override /mesh: x2_y2]`."""
    entries = content.get("defaults")
    for entry in entries if is_list(entries) else []:
        for name, option in entry.items() if is_dict(entry) else ():
            if str(name).split("/")[-1] == group and isinstance(option, str):
                return option
    return files.options(content).get(group)


def _leaves(values: Mapping[str, Any], key: Key) -> Iterator[tuple[Key, object]]:
    """Yield the values in a mapping that are no mappings, with their keys."""
    for name, value in values.items():
        if is_dict(value):
            yield from _leaves(value, (*key, name))
        else:
            yield (*key, name), value


def _differs(value: object, option: Mapping[str, Any], key: Key) -> bool:
    """Return whether an option has another value at a key; False if it has none there."""
    below: object = option
    for name in key:
        if not is_dict(below):
            return True
        if name not in below:
            return False
        below = below[name]
    return value != below


def _instead(choice: _Choice, group: str, key: Key, option: Mapping[str, Any]) -> str:
    sets = f"sets {key_text(key)}, and wins over this choice: override its keys"
    nested = any(map(is_dict, option.values()))
    if choice.file is not None:
        values = ", ".join(f"{name}: {_text(value, ', ')}" for name, value in option.items())
        return f"{sets} here, {key_text(key)}" if nested else f"{sets} here, {group}: {{{values}}}"
    keys = f"{key_text(key)}=…" if nested else " ".join(f"{group}.{name}={_text(v)}" for name, v in option.items())
    return f"{sets}, {keys}, or write {group}: {choice.option} in the file"


def _text(value: object, between: str = ",") -> str:
    return f"[{between.join(_text(each, between) for each in value)}]" if is_sequence(value) else str(value)
