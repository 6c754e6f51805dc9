"""Finds the file, line and column that set a key. Files are read only when there is something to report.

Hydra merges files and keeps no line numbers. This module walks the YAML nodes of each file of the configuration, in
merge order, and finds the last one that sets the key.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import yaml

from runner.base.faults import Fault, Key, key_text
from runner.base.lazy import dataclass
from runner.base.words import shortened, shown
from runner.experiment.config.files import Layer, layers
from runner.experiment.config.folders import experiments, is_there


@dataclass(frozen=True)
class Location:
    """A place in a file; lines and columns count from 1."""

    file: Path
    line: int
    column: int

    def __str__(self) -> str:
        return "runner.sweep({…})" if self.file in OF_MAPPINGS else f"{shown(self.file)}:{self.line}:{self.column}"


OF_MAPPINGS: set[Path] = set()
"""The temporary files of experiments that the caller of `runner.sweep` gave as a mapping, and that no message names."""


@dataclass(frozen=True)
class Sources:
    """What one configuration is made of: files, and the overrides of the command line.

    - `made_of`: the files in merge order; empty: those of the chosen options.
    - `folders`: the config folders that were searched; `choices`: the chosen option of each config group.
    - `arguments`: what the caller of `runner.check` wrote for a key and those below it; no file of theirs has it.
    - `mapping`: the file of an experiment that was given as a mapping, all of whose keys are in that file.
    """

    made_of: tuple[Layer, ...] = ()
    overrides: tuple[str, ...] = field(default=())
    folders: tuple[Path, ...] = ()
    choices: Mapping[str, Any] = field(default_factory=dict[str, Any])
    arguments: Mapping[Key, str] = field(default_factory=dict[Key, str])
    mapping: Path | None = None

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The files in merge order, which are read only when there is something to report."""
        return self.made_of or layers(self.folders, self.choices)

    def place(self, key: Key) -> Location | None:
        """The place in a file of the value of `key`, or of its longest prefix that a file has."""
        return _deepest({layer: _compose(layer.file) for layer in self.layers if _concerns(layer, key)}, key)

    def places(self, keys: Mapping[str, Key]) -> dict[str, str]:
        """For each name, the file and line or the override that set its key; keys that nothing sets are left out."""
        if not keys:
            return {}
        place_of = {name: argument for name, key in keys.items() if (argument := self._argument(key))}
        nodes = {layer: _compose(layer.file) for layer in self.layers} if len(place_of) < len(keys) else {}
        for name, key in keys.items():
            if name in place_of:
                continue
            if (override := self.override(key)) is not None:
                place_of[name] = f"command line: {override}"
            elif place := _deepest(nodes, key):
                place_of[name] = str(place)
        return place_of

    def names(self, key: Key) -> list[str]:
        """The keys that the files have below `key`."""
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
        """The override that set `key`; None where none did."""
        dotted = [str(part) for part in key]
        for text in reversed(self.overrides):
            name = text.split("=", 1)[0].lstrip("+~").replace("/", ".").split("@")[0]
            parts = [part for part in name.split(".") if part]
            if parts and dotted[: len(parts)] == parts and not self._chooses(text, key):
                return text
        return None

    def _chooses(self, override: str, key: Key) -> bool:
        """Whether an override chooses the rules file that has the key; the place to report is then in that file."""
        group, _, option = override.partition("=")
        return group.lstrip("+") == key[0] == "rules" and any(
            layer.package == ("rules",) and layer.file.stem == option for layer in self.layers
        )

    def report(self, fault: Fault) -> str:
        """Return the message for a fault: where, what, and the expression with carets under the wrong part."""
        if argument := self._argument(fault.key):
            lines = [argument, *(f"  {line}" for line in fault.message.splitlines())]
            lines += [f"  {what} {self._argument(key) or key_text(key)}" for what, key in fault.also]
            return shortened("\n".join(lines))
        override = self.override(fault.key)
        place = None if override else self.place(fault.key)
        where = f"command line: {override}" if override else str(place) if place else self._whole
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

    def _argument(self, key: Key) -> str | None:
        """What the caller of `runner.check` wrote for a key; None for an experiment of a file."""
        if not self.arguments:
            return None
        longest = next((key[:size] for size in range(len(key), 0, -1) if key[:size] in self.arguments), None)
        return key_text(key) or "runner.check" if longest is None else self.arguments[longest]

    @property
    def _whole(self) -> str:
        """The experiment's file, where what nothing sets is missing."""
        return next(
            (shown(layer.file) for layer in reversed(self.layers) if layer.group == "experiment"), "configuration"
        )

    def _beside(self, what: str, key: Key) -> str:
        """Return the line of a message for a related key and its place, such as a call of the function at fault."""
        where = self.override(key) or self.place(key)
        return f"  {what} {key_text(key)}{f' ({where})' if where else ''}"

    def folder(self, key: Key) -> Path:
        """The folder to which a relative file name in the value of `key` refers: its file's, or the current one."""
        if self.mapping is not None:
            return self.mapping.parent
        place = None if self.override(key) else self.place(key)
        return place.file.parent if place else Path.cwd()


def _columns(text: str) -> int:
    """The number of terminal columns that a text takes."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _deepest(nodes: Mapping[Layer, yaml.Node | None], key: Key) -> Location | None:
    """The place of the longest prefix of `key` that a file has, in the last such file."""
    places = [place for layer, node in nodes.items() if (place := _below(layer, node, key)) is not None]
    return max(reversed(places), key=lambda place: place[0])[1] if places else None


def _concerns(layer: Layer, key: Key) -> bool:
    return tuple(key[: len(layer.package)]) == layer.package


def _below(layer: Layer, node: yaml.Node | None, key: Key) -> tuple[int, Location] | None:
    """How many parts of `key` a layer, parsed, has, and the place of the last of them; None where it has none."""
    package = layer.package
    if node is None or not _concerns(layer, key):
        return None
    depth = len(package)
    at: tuple[int, yaml.Mark] | None = None
    for part in key[len(package) :]:
        step = _step(node, part)
        if step is None:
            break
        name, node = step
        depth += 1
        at = depth, (node if isinstance(node, yaml.ScalarNode | yaml.SequenceNode) else name).start_mark
    if at is None:
        return None
    depth, mark = at
    return depth, Location(layer.file, mark.line + 1, mark.column + 1)


def _step(node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """The nodes of one part of a key and of its value; in a list both are those of the value."""
    if isinstance(node, yaml.MappingNode):
        pairs = [(name, value) for name, value in node.value if _is(name, part)]
        pairs += [(name, value) for name, value in node.value if part in one_by_one(str(name.value))]
        if pairs:
            name, value = pairs[0]
            if isinstance(value, yaml.MappingNode) and len(pairs) > 1:
                # A line for one name overrides a line for several.
                items = [pair for _, each in pairs if isinstance(each, yaml.MappingNode) for pair in each.value]
                value = yaml.MappingNode(value.tag, items, value.start_mark, value.end_mark)
            return name, value
        for name, value in node.value:
            if name.tag == "tag:yaml.org,2002:merge":
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if (step := _step(merged, part)) is not None:
                        return step
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None


def _is(name: yaml.Node, part: str | int) -> bool:
    """Whether a key node is this part of a key, which YAML may have read as a boolean."""
    if isinstance(part, bool):
        return name.tag == "tag:yaml.org,2002:bool" and yaml.safe_load(str(name.value)) is part
    return name.value == str(part)


def one_by_one(written: str) -> list[str]:
    """The names in a key for several, such as `w1, w3`; empty for a single name or a function header."""
    # The comma in a path pattern such as `loss/{q,k}` separates no names.
    names = re.split(r",(?![^{}]*\})", written)
    return [name.strip() for name in names] if len(names) > 1 and "(" not in written else []


def _compose(file: Path) -> yaml.Node | None:
    # Reading something else than a regular file, such as a pipe, may block.
    if not is_there(file):
        return None
    try:
        text = file.read_text(encoding="utf-8")
        return cast("Any", yaml).compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None


def key_place(file: Path, key: Key) -> Location | None:
    """The place of the key node of the last part of `key`; None where the file does not have it."""
    node, name = _compose(file), None
    for part in key:
        step = None if node is None else _step(node, part)
        if step is None:
            return None
        name, node = step
    return None if name is None else Location(file, name.start_mark.line + 1, name.start_mark.column + 1)


def text_place(file: Path, text: str, before: str = r"(?<![\w.-])") -> Location:
    """The place of the first occurrence of `text` as a word in a file, else of its first character.

    `before` is a pattern for what precedes it.
    """
    try:
        content = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Location(file, 1, 1)
    match = re.search(rf"{before}(?P<text>{re.escape(text)})(?![\w-])", content)
    if match is None:
        return Location(file, 1, 1)
    start = match.start("text")
    above = content[:start]
    return Location(file, above.count("\n") + 1, start - (above.rfind("\n") + 1) + 1)


def listing(folders: Iterable[Path]) -> list[tuple[str, str, Path]]:
    """The sorted names, summaries and files of all experiments; of equal names the first folder's."""
    summaries: dict[str, tuple[str, str, Path]] = {}
    for folder in folders:
        for file in experiments(folder):
            name = file.relative_to(folder / "experiment").with_suffix("").as_posix()
            summaries.setdefault(name, (name, text_at(file, "summary", "(this file cannot be read)"), file))
    return sorted(summaries.values())


def text_at(file: Path, key: str, unreadable: str = "") -> str:
    """The value of a top-level key on one line; "" where it is absent, `unreadable` where the file is no mapping."""
    node = _compose(file)
    if not isinstance(node, yaml.MappingNode):
        return unreadable
    for name, value in node.value:
        if name.value == key:
            return " ".join(str(value.value).split())
    return ""
