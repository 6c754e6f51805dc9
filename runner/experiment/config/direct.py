"""Composes an experiment without Hydra where Hydra has nothing to decide.

Hydra takes 0.3 s to be imported and to compose, as long as a small run takes besides. Values of the declared types,
options that are chosen by their names and overrides of plain values leave it nothing to do but to add the defaults,
which this module does. Hydra composes all others, and reports what is wrong in them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from runner.base.lazy import dataclass, pattern
from runner.base.untyped import is_dict, is_list
from runner.experiment.config import files, shape
from runner.experiment.config.configuration import Configuration, checked, named
from runner.experiment.config.folders import conf_folder, dated, file_of, folder_name, is_there
from runner.experiment.config.schema import MISSING
from runner.experiment.config.shape import GROUPS, Form, Inner
from runner.experiment.config.sources import Sources

_CHOICES: Mapping[str, Any] = {"target": "cpu", "rules": None, "hardware": None, "mesh": None}
"""The options of config groups that `conf/config.yaml` chooses."""

_EXPERIMENT = "+experiment="
_RUN_FOLDER = "hydra.run.dir"

_HYDRAS = ("hydra", "config.yaml", "schema.yaml", "_dummy_empty_config_.yaml")
"""The names in a config folder that are those of Hydra's own configurations, and of the runner's."""

_OPTION = pattern(r"(\.\./)?[A-Za-z_]\w*", re.ASCII)
"""The name of an option, here or, for an experiment, in the folder above."""

_FOLDER = pattern(r"[\w./-]*[A-Za-z_/][\w./-]*", re.ASCII)
"""A path that Hydra reads as it is."""

_KEY = pattern(r"[a-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


@dataclass(frozen=True)
class Composition:
    """What Hydra would compose of a command line: `values`, with all defaults, and the `folder` of the run."""

    values: dict[str, Any]
    sources: Sources
    folder: Path

    def checked(self) -> Configuration:
        """The configuration. Raises `InvalidConfiguration`."""
        return checked(self.values, self.sources)

    def leave(self, folder: Path) -> None:
        """Write the values and the overrides to the files in which Hydra leaves them."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in (("config", self.values), ("overrides", [*self.sources.overrides])):
            text: str = yaml.dump(value, default_flow_style=False, allow_unicode=True, sort_keys=False, Dumper=_Dumper)
            (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def chosen(overrides: Sequence[str], folder: Path | None = None) -> Composition | None:
    """What the overrides compose, one of which names an experiment; None if only Hydra can compose it.

    `folder` is the user's config folder.
    """
    options = [override.removeprefix(_EXPERIMENT) for override in overrides if override.startswith(_EXPERIMENT)]
    where = [override.partition("=")[2] for override in overrides if override.startswith(f"{_RUN_FOLDER}=")]
    if len(options) != 1 or len(where) > 1 or not all(map(_FOLDER.fullmatch, where)):
        return None
    if folder is not None and any((folder / name).exists() for name in _HYDRAS):
        return None
    folders = (conf_folder().resolve(), *(() if folder is None else (folder.resolve(),)))
    content, choices = _of_files(options[0], folders)
    values = completed(content)
    typed = tuple(override for override in overrides if not override.startswith(f"{_RUN_FOLDER}="))
    for override in typed:
        if not override.startswith(_EXPERIMENT):
            values = values and _overridden(values, override)
    if values is None or values["target"]["cluster"]:
        return None
    given = None if values["name"] == MISSING else values["name"]
    name = folder_name(given or named(options[0]), "unnamed")
    sources = Sources((), typed, folders, {"experiment": options[0], **choices})
    return Composition(values, sources, Path(where[0]) if where else dated(name))


def _of_files(option: str, folders: Sequence[Path]) -> tuple[Any, dict[str, Any]]:
    """The values in an experiment's file and in those of the options that it chooses, and these options.

    The values are None where Hydra has to read the files.
    """
    content, choices = _read("experiment", option, folders), dict(_CHOICES)
    if not is_dict(content):
        return None, choices
    short = files.options(content)
    listed = content.get("defaults", [])
    values = {key: value for key, value in content.items() if key not in short and key != "defaults"}
    entries: list[tuple[Any, Any]] = [*short.items()]
    for entry in (listed[:-1] if listed[-1:] == ["_self_"] else listed) if is_list(listed) else [None]:
        ((name, named_option),) = entry.items() if is_dict(entry) and len(entry) == 1 else ((None, None),)
        override, _, group = str(name).partition("/")
        entries.append((group if override == "override " else None, named_option))
    for group, named_option in entries:
        under = _read(group, named_option, folders) if group in GROUPS and group not in values else None
        if not is_dict(under) or choices[group] != _CHOICES[group]:
            return None, choices
        choices[group] = named_option
        values[group] = under
    return values, choices


def _read(group: str, option: object, folders: Sequence[Path]) -> Any:
    """The content of the file of an option; None where Hydra has to find, to read or to refuse it."""
    if not isinstance(option, str) or not _OPTION.fullmatch(option):
        return None
    there = [file for folder in folders if is_there(file := file_of(folder, group, option))]
    if len(there) != 1:
        return None
    try:
        text = files.text(there[0])
        where = files.package(text, group)
        content = yaml.load(text, _Loader)
    except (files.UnreadableFile, yaml.YAMLError, ValueError):
        return None
    return content if where == ("_global_" if group == "experiment" else group) else None


class _Loader(files.Loader):
    """Reads a file as OmegaConf does, which refuses a key that is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        """The mapping of a node. Raises `yaml.YAMLError`."""
        names = [str(key.value) for key, _ in cast("list[tuple[yaml.Node, yaml.Node]]", node.value)]
        if len({*names}) < len(names):
            raise yaml.MarkedYAMLError(problem="a key is there twice")
        return cast("Any", super()).construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes values as OmegaConf does."""


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    quoted = _BOOLEAN.fullmatch(text) is not None or _is_number(text)
    return cast("Any", dumper).represent_scalar("tag:yaml.org,2002:str", text, style="'" if quoted else None)


_BOOLEAN = pattern("[yYnN]|YES|[yY]es|NO|[nN]o|TRUE|[tT]rue|FALSE|[fF]alse|ON|[oO]n|OFF|[oO]ff")
_Dumper.add_representer(str, _represent)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _overridden(values: dict[str, Any], override: str) -> dict[str, Any] | None:
    """The values with an override's; None where Hydra has to parse, to convert or to refuse it."""
    key, _, text = override.partition("=")
    if not _KEY.fullmatch(key) or key in GROUPS:
        return None
    path = key.split(".")
    kind, value = shape.at(tuple(path)), _value(text)
    if kind is None or value is _UNREAD or is_dict(value) or not _is_typed(value, kind):
        return None
    *above, last = path
    inner = whole = dict(values)
    for name in above:
        if not is_dict(inner.get(name)):
            return None
        inner[name] = inner = dict(inner[name])
    if last not in inner or is_dict(inner[last]):
        return None
    inner[last] = value
    return whole


_UNREAD = object()
"""A value that Hydra has to parse."""

_WORDS = {"true": True, "false": False, "null": None}
_INTEGER = pattern(r"-?(0|[1-9]\d{0,17})", re.ASCII)
_NUMBER = pattern(r"-?\d{1,9}\.\d{1,9}", re.ASCII)
_WORD = pattern(r"(?!(?:true|false|null|nan|inf)\Z)[a-z_]\w*", re.ASCII | re.IGNORECASE)


def _value(text: str) -> Any:
    """The value that an override gives, if it is a word, a number, or a list of such: Hydra reads more than that."""
    if text.startswith("[") and text.endswith("]"):
        parts = [_value(part.strip(" ")) for part in _parts(text[1:-1])]
        return _UNREAD if _UNREAD in parts else parts
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text)
    return text if _WORD.fullmatch(text) else _UNREAD


def _parts(text: str) -> list[str]:
    """The parts of a list between its commas; those inside of a list in it do not divide."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts if text.strip(" ") else []


def composed(content: Any, file: Path) -> Configuration | None:
    """The configuration of the experiment in `file`, whose content is given; None if only Hydra can compose it.

    Raises `InvalidConfiguration`.
    """
    whole = completed(content)
    if whole is None:
        return None
    folder = file.parents[1].resolve()
    choices = {"experiment": file.stem, **_CHOICES}
    sources = Sources((), (f"+experiment={file.stem}",), (conf_folder(), folder), choices, mapping=file)
    return checked(whole, sources)


def completed(content: Any) -> dict[str, Any] | None:
    """Return the given values with the default of every absent key.

    None if a value is not of the type that its key declares, or has an interpolation: OmegaConf converts, resolves or
    refuses these.
    """
    if not is_dict(content) or not _is_typed(content, shape.root()):
        return None
    return _completed(content, shape.root())


def _is_typed(value: Any, form: Inner | None) -> bool:
    """Whether OmegaConf leaves a value unchanged: all of it has the kind's type, and there are no interpolations."""
    assert isinstance(form, Form)
    if value is None:
        return form.optional or form.kind == "anything"
    match form.kind:
        case "mapping":
            if not is_dict(value):
                return False
            if any(name not in form.keys if form.keys else not _is_text(name) for name in value):
                return False
            return all(_is_typed(inner, form.keys.get(name, form.of)) for name, inner in value.items())
        case "list":
            return is_list(value) and _is_plain(value)
        case "text":
            return _is_text(value)
        case "integer":
            return type(value) is int
        case "number":
            return type(value) is float
        case "flag":
            return type(value) is bool
        case _:
            return _is_plain(value)


def _is_plain(value: Any) -> bool:
    """Whether a value that may be anything is plain data without interpolations."""
    if is_dict(value):
        return all(_is_text(name) and _is_plain(each) for name, each in value.items())
    if is_list(value):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float) or _is_text(value)


def _is_text(value: object) -> bool:
    return type(value) is str and "${" not in value and value != MISSING


def _completed(value: Any, form: Inner | None) -> Any:
    """A value with all keys that classes declare, in their order: those given, and the defaults of the others."""
    if not isinstance(form, Form) or value is None:
        return value
    if form.declared is None:
        classes = isinstance(form.of, Form) and form.of.declared is not None
        return {name: _completed(part, form.of) for name, part in value.items()} if classes else value
    whole: dict[str, Any] = {}
    for key in dataclasses.fields(form.declared):
        default = key.default if key.default_factory is dataclasses.MISSING else key.default_factory()
        given = value.get(key.name, {} if dataclasses.is_dataclass(default) else default)
        whole[key.name] = _completed(given, form.keys[key.name])
    return whole
