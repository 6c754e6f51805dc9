"""Hydra's and OmegaConf's errors in; our one message out: the file and line, what is wrong, what would be right."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from runner.config import schema
from runner.config.sources import Layer, Sources, key_place, listing, said, shown, text_place
from runner.faults import Fault, Key, nearest


def layers(folders: Sequence[Path], choices: Mapping[str, Any]) -> tuple[Layer, ...]:
    """The files that a configuration is made of, for the chosen option of each config group."""
    found = [Layer(folder / "config.yaml") for folder in folders if (folder / "config.yaml").is_file()][:1]
    groups = [group for group in choices if not group.startswith("hydra/") and group != "hydra"]
    for group in sorted(groups, key=lambda group: group == "experiment"):
        options = choices[group]
        for option in options if isinstance(options, list | tuple) else [options]:
            if isinstance(option, str):
                found += _chain(folders, group, option)
    return tuple(found)


def _chain(folders: Sequence[Path], group: str, option: str, seen: tuple[Path, ...] = ()) -> list[Layer]:
    """The file of one option, after the files of its group that it is based on."""
    file = next(
        (f for folder in folders if (f := folder / group / f"{option.removesuffix('.yaml')}.yaml").is_file()), None
    )
    if file is None or file in seen:
        return []
    text = file.read_text(encoding="utf-8")
    header = re.search(r"^#\s*@package\s+(\S+)", text, re.MULTILINE)
    package = header.group(1) if header else ".".join(group.split("/"))
    below = () if package == "_global_" else tuple(package.removeprefix("_global_.").split("."))
    based_on: list[Layer] = []
    for entry in _defaults(text):
        if isinstance(entry, str) and entry != "_self_":
            based_on += _chain(folders, group, entry.rsplit("/", 1)[-1].split("@")[0], (*seen, file))
        elif isinstance(entry, dict):
            for name, value in entry.items():
                other = str(name).removeprefix("override ").removeprefix("optional ").strip().lstrip("/").split("@")[0]
                if isinstance(value, str) and not other.startswith("hydra"):
                    based_on += _chain(folders, other, value, (*seen, file))
    return [*based_on, Layer(file, below)]


def _defaults(text: str) -> list[Any]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError:
        return []
    return (content.get("defaults") or []) if isinstance(content, dict) else []


def _choices(overrides: Sequence[str], folders: Sequence[Path]) -> dict[str, str]:
    """The config groups that the command line chooses, when Hydra could not say."""
    chosen = {}
    for override in overrides:
        name, _, value = override.lstrip("+").partition("=")
        if any((folder / name).is_dir() for folder in folders):
            chosen[name] = value
    return chosen


def report(error: Exception, folders: Sequence[Path], overrides: Sequence[str]) -> str:
    """The message for an error that ended the composition."""
    sources = Sources(layers(folders, _choices(overrides, folders)), tuple(overrides))
    return _message(error, sources, folders)


def in_task(error: Exception, sources: Sources) -> str:
    """The message for an interpolation that could not be resolved."""
    return _of_config(error, sources)


def _message(error: Exception, sources: Sources, folders: Sequence[Path]) -> str:
    from hydra.errors import MissingConfigException, OverrideParseException

    yaml_error = _caused_by(error, yaml.YAMLError)
    if yaml_error is not None:
        return _of_yaml(yaml_error)
    if isinstance(error, OverrideParseException):
        return f"command line: {error.override}\n  {_sentence(str(error))}"
    missing = _caused_by(error, MissingConfigException)
    if missing is not None and missing.missing_cfg_file is not None:
        return _of_missing(str(missing.missing_cfg_file), sources, folders)
    return _of_config(error, sources)


def _caused_by(error: BaseException | None, kind: type[Any]) -> Any:
    while error is not None:
        if isinstance(error, kind):
            return error
        error = error.__cause__ or error.__context__
    return None


def _of_yaml(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = "configuration"
    if mark is not None:
        where = f"{shown(Path(mark.name))}:{mark.line + 1}:{mark.column + 1}"
    duplicate = re.match(r"found duplicate key (.*)", problem)
    message = f"the key '{duplicate.group(1)}' stands twice" if duplicate else f"not YAML: {problem}"
    context = getattr(error, "context", None)
    if context and not duplicate:
        message += f", {context}"
    return f"{where}\n  {message}"


def _of_missing(missing: str, sources: Sources, folders: Sequence[Path]) -> str:
    """A config group's option, or a group, that no file has."""
    group, _, option = missing.removesuffix(".yaml").rpartition("/")
    there = sorted({f.stem for folder in folders for f in (folder / group).glob("*.yaml")}) if group else []
    where = _where(option, group, sources)
    if not there:
        groups = sorted({d.name for folder in folders for d in folder.iterdir() if d.is_dir() and d.name != "hydra"})
        name = group or option
        return f"{where}\n  there is no config group '{name}'{nearest(name, groups) or _list(groups)}"
    meant = _experiment_meant(option, folders) if group == "experiment" else nearest(option, there)
    return f"{where}\n  no {group} '{option}'{meant or _list(there)}"


def _experiment_meant(option: str, folders: Sequence[Path]) -> str:
    """`; did you mean 'NAME'?` where an experiment, or the example that it does of its source, is nearly called so."""
    called: dict[str, tuple[str, str]] = {}
    shared: set[str] = set()
    for name, _, file in listing(folders):
        source = said(file, "source")
        # `MinText, Tutorial 1, section 3.5, matmul_case4_allgather_B`; what several experiments share is none's name.
        for part in re.split(r", | and ", re.sub(r"\bsection [\d.]+", "", source)):
            own = part.strip(' "').lower()
            shared |= {own} & called.keys()
            called[own] = name, f" ({source})"
    called = {own: meant for own, meant in called.items() if own not in shared}
    called |= {name.lower(): (name, "") for name, _, _ in listing(folders)}
    close = difflib.get_close_matches(option.lower(), called, n=1)
    name, source = called[close[0]] if close else ("", "")
    return f"; did you mean '{name}'{source}?" if name else ""


def _list(names: Sequence[str]) -> str:
    if not names:
        return "; there is none yet"
    return f"; there are {', '.join(names[:12])}{', …' if len(names) > 12 else ''}"


def _where(option: str, group: str, sources: Sources) -> str:
    for override in reversed(sources.overrides):
        name, _, value = override.lstrip("+").partition("=")
        if name == group and option in value:
            return f"command line: {override}"
    for layer in reversed(sources.layers):
        if re.search(rf"{re.escape(group)}\s*:\s*{re.escape(option)}\b", layer.file.read_text(encoding="utf-8")):
            return str(text_place(layer.file, option))
    return "configuration"


def _of_config(error: Exception, sources: Sources) -> str:
    """A key that does not exist, a value of the wrong type, an interpolation that leads nowhere."""
    from omegaconf.errors import OmegaConfBaseException

    inner = _caused_by(error, OmegaConfBaseException)
    text = str(inner or error)
    full_key = getattr(inner, "full_key", None) or ""
    key: Key = tuple(_parts(full_key))
    unknown = re.search(r"Key '([^']*)' (?:not in|is not in struct)", text)
    if unknown:
        key = key or (unknown.group(1),)
        siblings = _siblings(key) or sources.names(key[:-1])
        message = f"there is no key '{key[-1]}'{nearest(str(key[-1]), siblings) or _list(siblings)}"
        override = sources.override(key)
        if override and len(key) > 1 and not _siblings(key):
            message += f"; to add a name, write ++{override.lstrip('+')}"
        for layer in reversed(sources.layers):
            below = key[len(layer.package) :] if key[: len(layer.package)] == layer.package else key
            place = key_place(layer.file, below)
            if place is not None and sources.override(key) is None:
                return f"{place}  {'.'.join(map(str, key))}\n  {message}"
        return sources.report(Fault(key, message))
    if "Could not override" in str(error) or "Could not override" in text:
        named = re.search(r"Could not override '([^']*)'", str(error) + text)
        name = named.group(1) if named else ""
        siblings = _siblings(tuple(_parts(name)))
        last = name.split(".")[-1]
        override = next((o for o in sources.overrides if o.lstrip("+~").startswith(name)), name)
        return f"command line: {override}\n  there is no key or config group '{name}'{nearest(last, siblings)}"
    return sources.report(Fault(key, _sentence(text)))


def _parts(full_key: str) -> list[str | int]:
    parts: list[str | int] = []
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", full_key):
        parts.append(int(index) if index else name)
    return parts


def _siblings(key: Key) -> list[str]:
    """The keys that the schema has where `key` stands."""
    config: Any = schema.ExperimentConfig
    for part in key[:-1]:
        fields = {f.name: f.type for f in dataclasses.fields(config)} if dataclasses.is_dataclass(config) else None
        if fields is None:
            break
        kind = str(fields.get(str(part), ""))
        name = re.search(r"(\w+Config)", kind)
        config = getattr(schema, name.group(1)) if name else None
        if config is not None and kind.startswith("dict"):
            # The next part is a name of the user's.
            return [f.name for f in dataclasses.fields(config)] if len(key) > 2 else []
    return [f.name for f in dataclasses.fields(config)] if dataclasses.is_dataclass(config) else []


def _sentence(text: str) -> str:
    """The first line of a message of OmegaConf's, without its own account of where it is."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else text
