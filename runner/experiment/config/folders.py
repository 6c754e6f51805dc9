"""Finds experiments by name or file, and says what a folder can be named. Imports little."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from runner.base.faults import BadInput

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*\Z")
_LONGEST = 100


def added(folders: Iterable[Path]) -> list[str]:
    """The absolute paths of the config folders that a user added to the runner's own, without duplicates."""
    own = conf_folder().resolve()
    return [str(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders) if folder != own]


def conf_folder() -> Path:
    """The runner's own config folder: beside the package in a checkout, inside it in a wheel."""
    inside = Path(__file__).parents[2] / "conf"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "conf"


def options_of(folders: Iterable[Path], group: str) -> list[str]:
    """The sorted options of a config group: its files in the folders, and for `target` the named slices of TPUs."""
    from runner.experiment.config.slices import slices

    files = {file.stem for folder in folders for file in (folder / group).glob("*.yaml")}
    return sorted(files | (slices().keys() if group == "target" else set[str]()))


class InvalidName(BadInput):
    """A path does not name an experiment; the message says why."""


def file_of(folder: Path, group: str, option: str) -> Path:
    """The file in which Hydra looks for an option of a config group; the option may lead out of the group's folder.

    For example `../my` is the experiment of a `my.yaml` that lies directly in the config folder.
    """
    file = folder / group / f"{option.removesuffix('.yaml')}.yaml"
    return Path(os.path.realpath(file)) if ".." in file.parts else file


def located(file: Path, folder: Path | None = None) -> tuple[Path, str]:
    """Return the config folder of an experiment's file, and the experiment's name in it.

    The config folder is `folder` if given; else the parent of the nearest `experiment/` above the file; else the file's
    own folder. Raises `InvalidName` for a path that is no `.yaml` file.
    """
    path = Path(os.path.abspath(file))
    if not path.is_file():
        raise InvalidName(
            "this is a folder, not a file" if path.is_dir() else f"there is no such file{_file_meant(path)}"
        )
    if path.suffix != ".yaml":
        raise InvalidName("the file of an experiment ends in .yaml: rename it")
    if folder is None:
        home = next((parent for parent in path.parents if parent.name == "experiment"), None)
        folder = path.parent if home is None else home.parent
    home = Path(os.path.realpath(folder / "experiment"))
    there = path if path.is_relative_to(home) else Path(os.path.realpath(path))
    return folder, Path(os.path.relpath(there, home)).with_suffix("").as_posix()


def _file_meant(path: Path) -> str:
    """Return the end of a message for a YAML file that does not exist: a similar one, or the runner's own."""
    import difflib

    from runner.base.faults import nearest

    if (conf_folder() / "experiment" / f"{path.stem}.yaml").is_file():
        return f"; write {path.stem} for the experiment of that name that comes with Shardproof"
    # The ending is alike in all of them.
    stems = [file.stem for file in path.parent.glob("*.yaml") if is_there(file)]
    return nearest(path.name, [f"{stem}.yaml" for stem in difflib.get_close_matches(path.stem, stems, cutoff=0.5)])


def misnamed(name: str) -> str | None:
    """The message why no folder can have this name; None where one can."""
    if not _FILE_NAME.match(name):
        return f"{name!r} cannot name a folder; use letters, digits, '_', '-', '.'"
    if len(name) > _LONGEST:
        return f"a name of {len(name)} characters is too long for files: at most {_LONGEST}"
    return None


def folder_name(name: object, otherwise: str = "experiment") -> str:
    """The name of a folder or file for what has this name, or `otherwise`; whoever reads the name then refuses it."""
    return name if isinstance(name, str) and misnamed(name) is None else otherwise


def dated(name: str) -> Path:
    """The default run folder of an experiment with that name."""
    return Path("outputs") / name / datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")


def experiments(folder: Path) -> list[Path]:
    """The sorted experiment files of a config folder, unreadable ones included."""
    return sorted(file for file in (folder / "experiment").rglob("*.yaml") if not _is_folder(file))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def is_there(file: Path) -> bool:
    """Whether `file` is a regular file; False, too, for a name that the system rejects."""
    try:
        return file.is_file()
    except OSError:
        return False
