"""Writes `called.py`, the module in a run folder by which the worker and the programs have a call."""

from __future__ import annotations

import os
import pickle
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from runner.app.called import pickling
from runner.compiled.evidence.source_lines import is_library
from runner.experiment.identifiers import name_of
from runner.experiment.imported import CALLED
from runner.reports.record.writing import write_text

MODULE = Path(CALLED).stem

_TEXT = Path(__file__).parents[2] / "worker" / "call_module.py"
"""The text of the module, which has a line for each value of the call."""


def files_of_caller(folders: Sequence[str]) -> dict[str, str]:
    """The files of the user's modules in this process for which a process with these folders would take others.

    Of several folders with a `helpers.py` this process has the one that was the first when it was imported.
    """
    return {
        name: file
        for name, module in list(sys.modules.items())
        if "." not in name and (file := _users_file(module)) is not None and _file(name, folders) != file
    }


def _users_file(module: Any) -> str | None:
    """The file of a module that is the user's Python."""
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    return origin if isinstance(origin, str) and origin.endswith(".py") and not is_library(origin) else None


def _file(name: str, folders: Sequence[str]) -> str | None:
    spec = PathFinder.find_spec(name, [*folders])
    return None if spec is None else spec.origin


def write(
    folder: Path,
    *,
    settings: dict[str, Any],
    specs: tuple[Any, Any],
    call: tuple[Any, Any, tuple[Any, ...], tuple[str, ...]],
    axes: dict[str, int],
    explicit: Iterable[str],
    ambient: bool,
    names: Sequence[str],
    donated: Sequence[str],
    elsewhere: bool,
    folders: Sequence[str],
) -> None:
    """Write `called.py` and `called.pkl`.

    - `call`: the function, its reference, the operands, and the names of those that are given by keyword.
    - `specs`: those of the operands, and those of the results.
    - `names`: those of the operands in the experiment.
    - `donated`: the names of the operands whose memory the results may take.
    - `elsewhere`: whether the programs are compiled for devices that are not here.

    Raises what the pickling of an object raises.
    """
    objects, arrays, cells = pickling.pickled(pickling.nodes(), specs, call)
    content = [*map(pickle.dumps, (settings, cells)), pickle.dumps(arrays, pickle.HIGHEST_PROTOCOL), objects]
    # Whoever can read it sees what the function refers to, and whoever can write it runs code in the programs.
    with open(folder / f"{MODULE}.pkl", "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(b"".join(content))
    values = {
        "name": name_of(call[0]),
        "FOLDERS": [*folders],
        "FILES": files_of_caller(folders),
        "AXES": axes,
        "TYPES": tuple("Explicit" if axis in set(explicit) else "Auto" for axis in axes),
        "context": ambient,
        "NAMES": tuple(names),
        "donated": [*donated],
        "elsewhere": elsewhere,
    }
    text = _TEXT.read_text(encoding="utf-8")
    for name, value in values.items():
        before, line, rest = re.split(rf"^({name}: .*) = .*$", text, maxsplit=1, flags=re.MULTILINE)
        text = f"{before}{line} = {value!r}{rest}"
    write_text(folder / CALLED, text)
