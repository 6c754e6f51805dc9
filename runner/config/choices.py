"""The command line's options of config groups in; the message for one that the experiment's file overrides out.

Hydra merges the file of an experiment over the option of a config group. Where that file has the group as a mapping,
its keys win over those of the option, even if the command line chose it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from runner.config import files, quoting
from runner.config.shape import GROUPS
from runner.config.sources import Sources, key_place
from runner.faults import Key, key_text
from runner.untyped import is_dict, is_sequence


def without_effect(overrides: Sequence[str], sources: Callable[[], Sources]) -> str | None:
    """The message for an option on the command line whose keys the experiment's file sets to other values.

    Keys that the command line sets itself are left out. `sources` are called only if it chooses an option.
    """
    names = [quoting.name(override) for override in overrides]
    for group in GROUPS:
        if group not in names:
            continue
        choice = next(override for override in reversed(overrides) if quoting.name(override) == group)
        written = [f"{name}." for name in names if name.startswith(f"{group}.")]
        option: Mapping[str, Any] = {}
        for layer in sources().layers:
            content = files.content(layer.file)
            if not is_dict(content):
                continue
            if layer.package == (group,):
                option = content
            elif layer.package == () and is_dict(own := content.get(group)):
                for key in _kept(option, own, (group,)):
                    if not f"{key_text(key)}.".startswith(tuple(written)):
                        return f"command line: {choice}\n  {key_place(layer.file, key)} {_instead(choice, key, option)}"
    return None


def _kept(option: Mapping[str, Any], own: Mapping[str, Any], key: Key) -> Iterator[Key]:
    """The keys that have another value in the file than in the option."""
    for name, value in own.items():
        below = option.get(name)
        if is_dict(value) and is_dict(below):
            yield from _kept(below, value, (*key, name))
        elif name in option and value != below:
            yield (*key, name)


def _instead(choice: str, key: Key, option: Mapping[str, Any]) -> str:
    group, _, name = choice.partition("=")
    nested = any(map(is_dict, option.values()))
    keys = f"{key_text(key)}=…" if nested else " ".join(f"{group}.{at}={_text(v)}" for at, v in option.items())
    return (
        f"sets {key_text(key)}, and wins over this choice: override its keys, {keys}, "
        f"or write {group}: {name} in the file"
    )


def _text(value: object) -> str:
    return f"[{','.join(map(_text, value))}]" if is_sequence(value) else str(value)
