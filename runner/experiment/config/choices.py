"""Words the message for a chosen option of a config group that a mapping overrides.

Hydra merges the file of an experiment over the option of a config group. Where that file has the group as a mapping,
its keys win over those of the option, even if the command line, or an experiment that builds on the file, chose it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from runner.base.faults import Key, key_text
from runner.base.untyped import is_dict, is_list, is_sequence
from runner.experiment.config import files, quoting
from runner.experiment.config.shape import GROUPS
from runner.experiment.config.sources import Sources, key_place, text_place


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
