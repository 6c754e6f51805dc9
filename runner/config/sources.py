"""A key in; the file, line and column at which it was written out. Read only when there is something to report.

Hydra merges files and knows no lines. This walks the YAML nodes of every file that went into the configuration, in the
order of composition, and finds the last one that says something about the key.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from runner.config.folders import experiments, is_there
from runner.faults import Fault, Key, key_text


@dataclass(frozen=True)
class Location:
    """A place in a file; line and column count from 1."""

    file: Path
    line: int
    column: int

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.line}:{self.column}"


def shown(path: Path) -> str:
    """A path as short as it can be said from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


@dataclass(frozen=True)
class Layer:
    """One file of the configuration and the key below which its content was laid."""

    file: Path
    package: tuple[str, ...] = ()
    group: str = ""
    """The config group of which it is an option."""


@dataclass(frozen=True)
class Sources:
    """The files of one configuration, in the order in which they were merged, and the overrides of the command line."""

    layers: tuple[Layer, ...] = ()
    overrides: tuple[str, ...] = field(default=())
    folders: tuple[Path, ...] = ()
    """The config folders in which they were looked for."""

    def place(self, key: Key) -> Location | None:
        """Where the value of `key`, or of the longest part of it that was written, stands in a file."""
        best: tuple[int, Location] | None = None
        for layer in self.layers:
            candidate = _find(layer, key)
            if candidate is not None and (best is None or candidate[0] >= best[0]):
                best = candidate
        return best[1] if best else None

    def places(self, keys: Mapping[str, Key]) -> dict[str, str]:
        """Where the values of keys were written: a place in a file, or the override of the command line."""
        if not keys:
            return {}
        nodes = {layer: _compose(layer.file) for layer in self.layers}
        place_of: dict[str, str] = {}
        for name, key in keys.items():
            override = self.override(key)
            places = [place for layer, node in nodes.items() if (place := _below(layer, node, key)) is not None]
            if override is not None:
                place_of[name] = f"command line: {override}"
            elif places:
                deepest = max(depth for depth, _ in places)
                place_of[name] = str([place for depth, place in places if depth == deepest][-1])
        return place_of

    def names(self, key: Key) -> list[str]:
        """The names that the files write below `key`."""
        keys: list[str] = []
        for layer in self.layers:
            node: yaml.Node | None = _compose(layer.file)
            if tuple(key[: len(layer.package)]) != layer.package:
                continue
            for part in key[len(layer.package) :]:
                step = _step(node, part) if node is not None else None
                node = step[1] if step else None
            if isinstance(node, yaml.MappingNode):
                keys += [name.value for name, _ in node.value if name.value not in keys]
        return keys

    def override(self, key: Key) -> str | None:
        """The override of the command line that set `key`, if one did."""
        dotted = [str(part) for part in key]
        for text in reversed(self.overrides):
            name = text.split("=", 1)[0].lstrip("+~").replace("/", ".").split("@")[0]
            parts = [part for part in name.split(".") if part]
            if parts and dotted[: len(parts)] == parts and not self._chooses(text, key):
                return text
        return None

    def _chooses(self, override: str, key: Key) -> bool:
        """Whether an override chooses the file in which a rule stands, which then is the place to look at."""
        group, _, option = override.partition("=")
        return group.lstrip("+") == key[0] == "rules" and any(
            layer.package == ("rules",) and layer.file.stem == option for layer in self.layers
        )

    def report(self, fault: Fault) -> str:
        """The message for a fault: where, what, and the expression with a caret under what is wrong."""
        override = self.override(fault.key)
        place = None if override else self.place(fault.key)
        where = f"command line: {override}" if override else str(place) if place else "configuration"
        name = key_text(fault.key)
        lines = [f"{where}  {name}" if name else where]
        lines += [f"  {line}" for line in fault.message.splitlines()]
        if fault.expression:
            start, end = fault.start, min(max(fault.end, fault.start + 1), max(len(fault.expression), fault.start + 1))
            shift = max(0, start - 70)
            shown_end = shift + 140
            before, cut = "…" if shift else "", "…" if len(fault.expression) > shown_end else ""
            text = fault.expression.replace("\t", " ")
            lines.append(f"    {before}{text[shift:shown_end]}{cut}")
            under = " " * _columns(before + text[shift:start]) + "^" * max(
                _columns(text[start : min(end, shown_end)]), 1
            )
            lines.append(f"    {under}")
        beside = [*(("called in", key) for key in fault.uses), *((f"{what}:", key) for what, key in fault.also)]
        return "\n".join([*lines, *(self._beside(what, key) for what, key in beside)])

    def _beside(self, what: str, key: Key) -> str:
        """What else concerns a fault, and where it stands: the lines that call the function in whose line it is."""
        where = self.override(key) or self.place(key)
        return f"  {what} {key_text(key)}{f' ({where})' if where else ''}"

    def folder(self, key: Key) -> Path:
        """The folder against which a file name in the value of `key` is read: its file's, or the current one."""
        place = None if self.override(key) else self.place(key)
        return place.file.parent if place else Path.cwd()


def _columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _find(layer: Layer, key: Key) -> tuple[int, Location] | None:
    """How many parts of `key` a layer knows, and where the last of them stands."""
    return _below(layer, _compose(layer.file) if _concerns(layer, key) else None, key)


def _concerns(layer: Layer, key: Key) -> bool:
    return tuple(key[: len(layer.package)]) == layer.package


def _below(layer: Layer, node: yaml.Node | None, key: Key) -> tuple[int, Location] | None:
    """The same in a file that was read."""
    package = layer.package
    if node is None or not _concerns(layer, key):
        return None
    depth = len(package)
    at: tuple[int, yaml.Mark] | None = None
    for part in key[len(package) :]:
        step = _step(node, part)
        if step is None:
            break
        mark, node = step
        depth += 1
        at = depth, mark
    if at is None:
        return None
    depth, mark = at
    return depth, Location(layer.file, mark.line + 1, mark.column + 1)


def _step(node: yaml.Node, part: str | int) -> tuple[yaml.Mark, yaml.Node] | None:
    """The place and the node of one part of a key. A scalar's place is its value's, a mapping's its key's."""
    if isinstance(node, yaml.MappingNode):
        pairs = [(name, value) for name, value in node.value if _is(name, part)]
        pairs += [(name, value) for name, value in node.value if part in one_by_one(str(name.value))]
        if pairs:
            name, value = pairs[0]
            scalar = isinstance(value, yaml.ScalarNode | yaml.SequenceNode)
            mark = value.start_mark if scalar else name.start_mark
            if isinstance(value, yaml.MappingNode) and len(pairs) > 1:
                # What is said of one name stands over what is said of several.
                said = [pair for _, each in pairs if isinstance(each, yaml.MappingNode) for pair in each.value]
                value = yaml.MappingNode(value.tag, said, value.start_mark, value.end_mark)
            return mark, value
        for name, value in node.value:
            if name.tag == "tag:yaml.org,2002:merge":
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if (step := _step(merged, part)) is not None:
                        return step
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark, node.value[part]
    return None


def _is(name: yaml.Node, part: str | int) -> bool:
    """Whether a key of a file is this part of a key, which YAML may have read as true or false."""
    if isinstance(part, bool):
        return name.tag == "tag:yaml.org,2002:bool" and yaml.safe_load(str(name.value)) is part
    return name.value == str(part)


def one_by_one(written: str) -> list[str]:
    """The names of a key that says something of several, `w1, w3`; none of a key of one name, or of a function."""
    several = "," in written and "(" not in written
    return [name.strip() for name in written.split(",")] if several else []


def _compose(file: Path) -> yaml.Node | None:
    # What is no regular file, such as a pipe, may never come to its end.
    if not is_there(file):
        return None
    try:
        text = file.read_text(encoding="utf-8")
        return cast("Any", yaml).compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None


def key_place(file: Path, key: Key) -> Location | None:
    """Where the last part of `key` is written as a key, for a key that should not be there."""
    node = _compose(file)
    for depth, part in enumerate(key):
        if not isinstance(node, yaml.MappingNode):
            return None
        for name, value in node.value:
            if _is(name, part):
                if depth == len(key) - 1:
                    return Location(file, name.start_mark.line + 1, name.start_mark.column + 1)
                node = value
                break
        else:
            return None
    return None


def text_place(file: Path, text: str) -> Location:
    """The first place in a file where `text` stands as a word, else its first character."""
    try:
        content = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Location(file, 1, 1)
    match = re.search(rf"(?<![\w.-]){re.escape(text)}(?![\w-])", content)
    if match is None:
        return Location(file, 1, 1)
    before = content[: match.start()]
    return Location(file, before.count("\n") + 1, match.start() - (before.rfind("\n") + 1) + 1)


def listing(folders: Iterable[Path]) -> list[tuple[str, str, Path]]:
    """Name, summary and file of every experiment in `folders`, the first folder winning a name."""
    summaries: dict[str, tuple[str, str, Path]] = {}
    for folder in folders:
        for file in experiments(folder):
            name = file.relative_to(folder / "experiment").with_suffix("").as_posix()
            summaries.setdefault(name, (name, said(file, "summary", "(this file cannot be read)"), file))
    return sorted(summaries.values())


def said(file: Path, key: str, unreadable: str = "") -> str:
    """The text that a file gives a key of its own, on one line; "" where it gives none."""
    node = _compose(file)
    if not isinstance(node, yaml.MappingNode):
        return unreadable
    for name, value in node.value:
        if name.value == key:
            return " ".join(str(value.value).split())
    return ""
