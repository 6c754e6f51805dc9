"""Lists the files of a configuration, in merge order, with the chosen option of each config group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from runner.base.untyped import is_dict, is_list, is_sequence
from runner.experiment.config import files
from runner.experiment.config.folders import file_of, is_there
from runner.experiment.config.sources import Layer


def layers(folders: Sequence[Path], choices: Mapping[str, Any]) -> tuple[Layer, ...]:
    """The files of a configuration in merge order, given the chosen option of each config group."""
    made_of = [Layer(folder / "config.yaml") for folder in folders if (folder / "config.yaml").is_file()][:1]
    groups = [group for group in choices if not group.startswith("hydra/") and group != "hydra"]
    for group in sorted(groups, key=lambda group: group == "experiment"):
        options = choices[group]
        for option in options if is_sequence(options) else [options]:
            if isinstance(option, str):
                made_of += _chain(folders, group, option, frozenset(groups))
    return tuple(made_of)


def _chain(
    folders: Sequence[Path], group: str, option: str, chosen: frozenset[str], above: tuple[Path, ...] = ()
) -> list[Layer]:
    """The file of one option, after those of its defaults list; groups in `chosen` are left to their own choice."""
    there = (file_of(folder, group, option) for folder in folders)
    file = next((candidate for candidate in there if is_there(candidate)), None)
    if file is None or file in above:
        return []
    text = file.read_text(encoding="utf-8", errors="replace")
    package = files.package(text, group)
    below = () if package == "_global_" else tuple(package.removeprefix("_global_.").split("."))
    based_on: list[Layer] = []
    for entry in _defaults(text):
        if isinstance(entry, str) and entry != "_self_":
            based_on += _chain(folders, group, entry.rsplit("/", 1)[-1].split("@")[0], chosen, (*above, file))
        elif is_dict(entry):
            for name, value in entry.items():
                words = str(name).split()
                other, _, package = words[-1].lstrip("/").partition("@")
                # With a package of its own, as in `/experiment@_global_: base`, it is not the option of the group.
                added = other not in chosen or (package != "" and "override" not in words)
                if isinstance(value, str) and not other.startswith("hydra") and added:
                    based_on += _chain(folders, other, value, chosen, (*above, file))
    return [*based_on, Layer(file, below, group)]


@cache
def _defaults(text: str) -> list[Any]:
    try:
        content = files.load(text)
    except yaml.YAMLError:
        return []
    if not is_dict(content):
        return []
    entries = content.get("defaults")
    return [*(entries if is_list(entries) else []), files.options(content)]
