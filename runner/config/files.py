"""One file of a configuration in; what keeps it from being one out: no text, no YAML, no mapping, the wrong package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from runner.config import limits
from runner.config.shape import described
from runner.config.sources import shown

PACKAGE = "# @package _global_"
"""The first line of an experiment: without it Hydra puts its keys below `experiment`."""

_BOM = "\ufeff"


def refusal(file: Path, *, experiment: bool) -> str | None:
    """Why a file cannot be read, as a message with its place; None where it can."""
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        line, column = before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1
        return f"{shown(file)}:{line}:{column}\n  not UTF-8: {error.reason}; save the file as UTF-8"
    if text.startswith(_BOM):
        return f"{shown(file)}:1:1\n  a byte order mark hides this line from Hydra; save the file as UTF-8 without BOM"
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError:
        # Hydra's own loader refuses more, and has the words for it.
        return None
    if content is None:
        return f"{shown(file)}:1:1\n  the file is empty"
    if not isinstance(content, dict):
        return f"{shown(file)}:1:1\n  the file holds {described(content)}, not a mapping of keys to values"
    return _header(file, text) if experiment else None


def too_much(overrides: Sequence[str], folders: Sequence[Path]) -> str | None:
    """Why Hydra had better not expand the experiments that some overrides name, as a message with its place."""
    for override in overrides:
        key, _, names = override.partition("=")
        for name in names.split(",") if key.lstrip("+") == "experiment" else ():
            for file in (folder / "experiment" / f"{name.strip()}.yaml" for folder in folders):
                found = limits.refusal(file.read_text(encoding="utf-8", errors="replace")) if file.is_file() else None
                if found is not None:
                    line, column, message = found
                    return f"{shown(file)}:{line}:{column}\n  {message}"
    return None


def _header(file: Path, text: str) -> str | None:
    """What is wrong with the lines above the first key of an experiment."""
    lines = text.splitlines()
    head = [number for number, line in enumerate(lines, 1) if re.match(r"\s*#\s*@package\b", line)]
    above = next(number for number, line in enumerate(lines, 1) if line.strip() and not re.match(r"\s*#\s*@", line))
    place = f"{shown(file)}:{head[0] if head else 1}:1"
    if not head:
        return f"{place}\n  an experiment begins with the line: {PACKAGE}"
    if not re.fullmatch(r"\s*#\s*@package\s+_global_\s*", lines[head[0] - 1]):
        return f"{place}\n  this line of an experiment is: {PACKAGE}"
    if above < head[0]:
        return f"{place}\n  this line has to be the first: Hydra looks for it no further than line {above}"
    return None


def content(file: Path) -> Any:
    """What a file holds; None where it cannot be read."""
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8", errors="replace"))
    except yaml.YAMLError:
        return None
