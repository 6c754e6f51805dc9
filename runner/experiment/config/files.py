"""Reads a configuration file, or says why it is invalid, and lists the files of a configuration in merge order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml

from runner.base import plain
from runner.base.lazy import dataclass
from runner.base.untyped import is_dict, is_list, is_sequence
from runner.base.words import shown
from runner.experiment.config import text_size
from runner.experiment.config.folders import file_of, is_there
from runner.experiment.config.shape import GROUPS, described

PACKAGE = "# @package _global_"
"""The first line that Hydra asks of an experiment; without it the keys of the file are read as an experiment's too."""

_HEADER = re.compile(r"^\s*#\s*@package\b[ \t]*(\S*)", re.MULTILINE)


@dataclass(frozen=True)
class Layer:
    """One file of the configuration and the key (`package`) under which its content is merged."""

    file: Path
    package: tuple[str, ...] = ()
    group: str = ""
    """The config group that the file is an option of."""


def is_experiment(group: str) -> bool:
    """Whether the options of a config group are experiments."""
    return group.split("/")[0] == "experiment"


def package(written: str, group: str) -> str:
    """Where the keys of a file of `group` belong, as Hydra names it: its header, or at the top for an experiment."""
    header = _HEADER.search(written)
    if header is not None:
        return header.group(1)
    return "_global_" if is_experiment(group) else ".".join(group.split("/"))


class UnmadeTag(yaml.MarkedYAMLError):
    """A YAML value cannot be converted to the type that its tag names."""


class Loader(yaml.SafeLoader):
    """Read values as OmegaConf does, dates as strings; every failed conversion raises `UnmadeTag`."""

    def construct_document(self, node: yaml.Node) -> Any:
        try:
            return cast("Any", super()).construct_document(node)
        except yaml.YAMLError:
            raise
        except Exception as error:
            raise UnmadeTag(None, None, f"{error}", node.start_mark) from error

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return cast("Any", super()).construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as error:
            kind = node.tag.rsplit(":", 1)[-1]
            raise UnmadeTag(None, None, f"{node.value!r:.60} is no {kind}", node.start_mark) from error


_OF_DATES = "tag:yaml.org,2002:timestamp"
cast("Any", Loader).yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _OF_DATES]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
cast("Any", Loader).add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(?:_\d+)*(?:\.[\d_]*)?[eE][-+]?\d+\Z"), [*"-+0123456789"]
)


def load(text: str) -> Any:
    """Parse YAML. Raises `yaml.YAMLError`."""
    return yaml.load(text, Loader)


class UnreadableFile(Exception):
    """A file cannot be read as text; the message says where."""


def text(file: Path) -> str:
    """Read a file as UTF-8, with or without a byte order mark. Raises `UnreadableFile`."""
    if not is_there(file):
        raise UnreadableFile(f"{shown(file)}:1:1\n  this is no regular file, but a folder, a pipe or a dangling link")
    try:
        return plain.content(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        raise UnreadableFile(
            f"{shown(file)}:{line}:{column}\n  not UTF-8: {error.reason}; save the file as UTF-8"
        ) from None
    except OSError as error:
        raise UnreadableFile(f"{shown(file)}:1:1\n  {error.strerror or error}") from None


def refusal(file: Path, *, experiment: bool) -> str | None:
    """Return the message, with its place, why a file is no configuration; None if valid or a YAML syntax error."""
    try:
        content = load(written := text(file))
    except UnreadableFile as error:
        return str(error)
    except UnmadeTag as error:
        mark = error.problem_mark
        place = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
        return f"{shown(file)}:{place}\n  not YAML: {error.problem}"
    except yaml.YAMLError:
        # Hydra's loader raises this too, and `composition.report` words it.
        return None
    if content in (None, {}):
        return f"{shown(file)}:1:1\n  the file is empty"
    if not isinstance(content, dict):
        return f"{shown(file)}:1:1\n  the file holds {described(content)}, not a mapping of keys to values"
    if not experiment:
        return None
    return _header(file, written)


def too_much(overrides: Sequence[str], folders: Sequence[Path]) -> str | None:
    """Return the message for the first experiment among `overrides` whose file exceeds the limits; None for none."""
    for override in overrides:
        key, _, names = override.partition("=")
        for name in names.split(",") if key.lstrip("+") == "experiment" else ():
            for file in (file_of(folder, "experiment", name.strip().strip("'\"")) for folder in folders):
                refusal = text_size.refusal(plain.read_text(file, "replace")) if is_there(file) else None
                if refusal is not None:
                    line, column, message = refusal
                    return f"{shown(file)}:{line}:{column}\n  {message}"
    return None


def _header(file: Path, written: str) -> str | None:
    """Check that the `@package` line of an experiment's file, where it has one, puts the keys at the top."""
    header = _HEADER.search(written)
    if header is None or header.group(1) == "_global_":
        return None
    line = written.count("\n", 0, header.start(1)) + 1
    return f"{shown(file)}:{line}:1\n  this line must be: {PACKAGE}; or leave it out"


def content(file: Path) -> Any:
    """The parsed content of a file; None where it is not YAML."""
    try:
        return load(plain.read_text(file, "replace"))
    except yaml.YAMLError:
        return None


def options(content: Mapping[str, Any]) -> dict[str, str]:
    """The options that an experiment's file names of config groups, `{"hardware": "v5p"}` where it has `hardware: v5p`.

    A string with an interpolation is a value, and so is one that no file can be called.
    """
    named = ((group, content.get(group)) for group in GROUPS)
    return {
        group: option
        for group, option in named
        if isinstance(option, str) and "${" not in option and "\0" not in option
    }


def chosen_twice(content: Mapping[str, Any]) -> str | None:
    """The config group of which a file names an option at the top and another in its defaults list, or None."""
    defaults: Any = content.get("defaults")
    entries = [entry for entry in defaults if is_dict(entry)] if is_list(defaults) else []
    listed = {str(name).split("/")[-1] for entry in entries for name in entry}
    return next((group for group in options(content) if group in listed), None)


def unread(file: Path) -> yaml.YAMLError | None:
    """The error that PyYAML raises for a file; None where it parses."""
    try:
        load(plain.read_text(file, "replace"))
    except yaml.YAMLError as error:
        return error
    return None


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
    place = package(text, group)
    below = () if place == "_global_" else tuple(place.removeprefix("_global_.").split("."))
    based_on: list[Layer] = []
    for entry in _defaults(text):
        if isinstance(entry, str) and entry != "_self_":
            based_on += _chain(folders, group, entry.rsplit("/", 1)[-1].split("@")[0], chosen, (*above, file))
        elif is_dict(entry):
            for name, value in entry.items():
                words = str(name).split()
                other, _, named = words[-1].lstrip("/").partition("@")
                # With a package of its own, as in `/experiment@_global_: base`, it is not the option of the group.
                added = other not in chosen or (named != "" and "override" not in words)
                if isinstance(value, str) and not other.startswith("hydra") and added:
                    based_on += _chain(folders, other, value, chosen, (*above, file))
    return [*based_on, Layer(file, below, group)]


@cache
def _defaults(text: str) -> list[Any]:
    try:
        content = load(text)
    except yaml.YAMLError:
        return []
    if not is_dict(content):
        return []
    entries = content.get("defaults")
    return [*(entries if is_list(entries) else []), options(content)]
