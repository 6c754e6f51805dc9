"""`resume=FOLDER` in; the command line of the sweep that the folder is of out, and back: what a sweep leaves for it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.config.compose import InvalidConfiguration
from runner.record import plain
from runner.record.files import write_text
from runner.untyped import is_dict, is_list

FILE = "sweep.json"
"""Where in the folder of a sweep its command line is."""

_WORD = "resume="
_FOLDER = "hydra.sweep.dir="


@dataclass(frozen=True)
class Resumed:
    """The folder of a sweep, and the command line that goes on with it."""

    folder: Path
    arguments: list[str]


def read(overrides: Sequence[str]) -> Resumed | None:
    """The sweep that a command line goes on with; None where it names none. Raises `InvalidConfiguration`."""
    named = [override for override in overrides if override.startswith(_WORD)]
    if not named:
        return None
    folder = Path(named[0].removeprefix(_WORD).strip("'\""))
    if len(overrides) > 1:
        others = " ".join(override for override in overrides if override not in named)
        raise _refused(named[0], f"the sweep goes on as it was begun: leave out {others or named[1:]}")
    try:
        told = plain.read(folder / FILE)
    except FileNotFoundError:
        what = (
            "there is no such folder" if not folder.is_dir() else f"it has no {FILE}: it is not the folder of a sweep"
        )
        raise _refused(named[0], what) from None
    except plain.NotJson as error:
        raise _refused(named[0], f"{folder / FILE} is {error}") from None
    arguments = told.get("arguments") if is_dict(told) else None
    if not is_list(arguments) or not all(isinstance(argument, str) for argument in arguments):
        raise _refused(named[0], f"{folder / FILE} does not say with which arguments the sweep was begun")
    kept = [str(argument) for argument in arguments if not str(argument).startswith(_FOLDER)]
    quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    return Resumed(folder, [*kept, f"{_FOLDER}'{quoted}'"])


def leave(folder: Path, arguments: Sequence[str]) -> None:
    """Leave in the folder of a sweep with which arguments it was begun, and from where."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"arguments": list(arguments), "from": os.getcwd()}, indent=1, ensure_ascii=False)
    write_text(folder / FILE, text + "\n")


def _refused(argument: str, message: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"command line: {argument}\n  {message}")
