"""What a run found in; `result.json` out. The record is the contract: fields may be added, none changes its meaning."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from runner import __version__

SCHEMA = 1

STATUSES = {"passed": 0, "known": 0, "weak": 1, "failed": 1, "invalid": 2, "error": 3}
"""The statuses of a run from the best to the worst, and its exit status."""

Record = dict[str, Any]


def exit_status(status: str) -> int:
    """The exit status of a run.

    0: nothing is wrong but what is known to be; 1: a check failed or is weak; 2: the experiment is invalid; 3: a
    program could not be compiled or run.
    """
    return STATUSES[status]


def worst(statuses: list[str]) -> str:
    """The status of a whole made of parts with these statuses."""
    return max(statuses, key=list(STATUSES).index, default="passed")


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write(record: Record, folder: Path) -> Path:
    """Write `result.json` into the run folder; return its path."""
    path = folder / "result.json"
    write_text(path, _text(_plain(record)) + "\n")
    return path


_WIDTH = 120


def _text(value: Any, before: str = "", indent: int = 0) -> str:
    """JSON in which what fits on a line stands on one; `before` is the key that stands on it too."""
    line = before + json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not value or not isinstance(value, dict | list) or (indent and indent + len(line) < _WIDTH):
        return line
    inside = [
        _text(item, f"{json.dumps(key, ensure_ascii=False)}: " if isinstance(value, dict) else "", indent + 2)
        for key, item in (value.items() if isinstance(value, dict) else enumerate(value))
    ]
    start, end = "{}" if isinstance(value, dict) else "[]"
    separator = ",\n" + " " * (indent + 2)
    return f"{before}{start}\n{' ' * (indent + 2)}{separator.join(inside)}\n{' ' * indent}{end}"


def read(folder: Path) -> Record:
    """Read the record of a run folder. Numbers that JSON lacks come back as floats."""
    with open(folder / "result.json", encoding="utf-8") as file:
        return json.load(file, object_hook=_numbers)


_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinities: they are written as the strings by which JavaScript knows them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, complex):
        return {"real": _plain(value.real), "imag": _plain(value.imag)}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _numbers(value: dict[str, Any]) -> dict[str, Any]:
    def restore(item: Any) -> Any:
        if isinstance(item, list):
            return [restore(part) for part in item]
        return _SPECIAL.get(item, item) if isinstance(item, str) else item

    return {key: restore(item) for key, item in value.items()}


def environment() -> Record:
    """What the run runs on. The versions of JAX are the worker's to tell; null when it was never imported."""
    return {
        "jax": None,
        "jaxlib": None,
        "python": platform.python_version(),
        "runner": __version__,
        "git": _git(),
    }


def _git() -> Record | None:
    """The commit of the folder that the user stands in, where it is a git checkout."""
    try:
        sha = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
        if sha.returncode:
            return None
        status = ["git", "status", "--porcelain", "--untracked-files=no"]
        dirty = subprocess.run(status, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"sha": sha.stdout.strip(), "dirty": bool(dirty.stdout.strip())}
