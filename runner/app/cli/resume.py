"""Reads from `resume=FOLDER` the command line of a sweep, and writes the file that this needs.

A folder is untrusted data: only its arguments that concern experiments are taken, and nothing that these import is run
until the user says `trust=true`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from runner.base import plain
from runner.base.lazy import dataclass
from runner.base.untyped import is_dict, is_list
from runner.experiment.config import folders, quoting, sources
from runner.experiment.config.compose import InvalidConfiguration
from runner.reports.record import manifest
from runner.reports.record.folders import FILE
from runner.reports.record.writing import write_text

_WORD = "resume="
TRUST = "trust=true"
"""The word by which a resumed sweep may import Python."""
_FOLDER = "hydra.sweep.dir="
_KNOWN = (_FOLDER, "hydra.mode=")
"""The Hydra settings of a sweep that need not be typed again: its folder, and that it is a sweep."""

_SWEEP = ("-m", "--multirun")
_CONFIG = ("--config-dir", "-cd")


@dataclass(frozen=True)
class Resumed:
    """The folder of a sweep, and the command line that resumes it; `trusted`: whether its points may import Python."""

    folder: Path
    arguments: list[str]
    trusted: bool


def read(overrides: Sequence[str]) -> Resumed | None:
    """Return the sweep that a command line resumes; None if it names none. Raises `InvalidConfiguration`."""
    named = [override for override in overrides if override.startswith(_WORD)]
    if not named:
        return None
    folder = Path(named[0].removeprefix(_WORD).strip("'\""))
    typed = [override for override in overrides if override not in (*named, TRUST)]
    others = [override for override in typed if not quoting.of_hydra(override) or override.startswith(_FOLDER)]
    if others or len(named) > 1:
        raise _refused(named[0], f"a resumed sweep keeps its arguments: leave out {' '.join(others or named[1:])}")
    kept = _kept(named[0], folder, typed)
    return Resumed(folder, ["-m", *kept, *typed, f"{_FOLDER}{quoting.in_quotes(str(folder))}"], TRUST in overrides)


def distrusted(folder: Path) -> str:
    """Return the message for a point of a resumed sweep that imports Python."""
    return (
        f"the folder of the sweep names this Python, which would be run; if you trust {folder}, say so: "
        f"{quoting.for_shell(f'resume={folder}')} {TRUST}"
    )


def _kept(named: str, folder: Path, typed: Sequence[str]) -> list[str]:
    """Return the arguments of the sweep's own command line to keep; `typed` are the Hydra settings given now."""
    try:
        content = plain.read(folder / FILE)
    except (FileNotFoundError, NotADirectoryError):
        what = (
            "there is no such folder" if not folder.is_dir() else f"it has no {FILE}: it is not the folder of a sweep"
        )
        raise _refused(named, what) from None
    except plain.NotJson as error:
        raise _refused(named, f"{folder / FILE} is {error}") from None
    arguments = content.get("arguments") if is_dict(content) else None
    if not is_list(arguments) or not all(isinstance(argument, str) for argument in arguments):
        raise _refused(named, f"{folder / FILE} does not hold the arguments of the sweep")
    kept: list[str] = []
    settings: list[str] = []
    rest = iter(map(str, arguments))
    for argument in rest:
        flag, equals, _ = argument.partition("=")
        if argument in _CONFIG:
            kept += [argument, next(rest, "")]
        elif equals and flag in _CONFIG:
            kept.append(argument)
        elif argument in _SWEEP:
            continue
        elif argument.startswith("-"):
            raise _refused(
                named,
                f"{folder / FILE} has {argument}; only sweeps with no flags but -m and --config-dir can be resumed",
            )
        elif not quoting.of_hydra(argument):
            kept.append(argument)
        elif not argument.startswith(_KNOWN) and argument not in typed:
            settings.append(argument)
    if settings:
        names, it = ", ".join(map(quoting.name, settings)), "it" if len(settings) == 1 else "them"
        raise _refused(
            named,
            f"{folder / FILE} sets Hydra's {names}, and a sweep's folder may not; to set {it} again, type {it} too:\n"
            f"    {' '.join(map(quoting.for_shell, settings))}",
        )
    return kept


def leave(folder: Path, arguments: Sequence[str]) -> None:
    """Write a sweep's arguments and working directory into its folder, and the experiment if that has no file."""
    folder.mkdir(parents=True, exist_ok=True)
    if manifest.read(folder) is None:
        manifest.mark(folder, "sweep")
    manifest.again(folder)
    kept = list(arguments)
    for file in sources.OF_MAPPINGS:
        kept = _with_copy(kept, file, folder)
    text = json.dumps({"arguments": kept, "from": os.getcwd()}, indent=1, ensure_ascii=False)
    write_text(folder / FILE, text + "\n")


def _with_copy(arguments: list[str], file: Path, folder: Path) -> list[str]:
    """Copy the temporary file of an experiment into the sweep's folder; return the arguments that name the copy."""
    copy = folder / "conf" / "experiment" / file.name
    copy.parent.mkdir(parents=True, exist_ok=True)
    write_text(copy, file.read_text(encoding="utf-8"))
    *others, _, own, _ = arguments
    config, name = folders.located(copy, None if Path(own) == file.parent.parent else Path(own))
    return [*others, "--config-dir", str(config), f"+experiment={quoting.for_hydra(name)}"]


def _refused(argument: str, message: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"command line: {argument}\n  {message}")
