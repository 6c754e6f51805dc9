"""Knows which files in a folder a run wrote, so that nothing else is overwritten or deleted.

A folder belongs to a run if it has the run's manifest. The run writes it at its start, into an empty folder, and again
at its end, then with the name and the hash of each file. If a run was killed, its files are known by their names.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from runner.base import codec, plain
from runner.base.faults import BadInput
from runner.base.lazy import dataclass, pattern
from runner.reports.record.folders import PICTURES, RECORD, natural
from runner.reports.record.writing import write_text

FILE = "manifest.json"

RunKind: TypeAlias = Literal["run", "point", "sweep"]
"""A run alone, a point of a sweep, or a sweep, whose points have manifests of their own."""


@dataclass(frozen=True)
class Manifest:
    """The files of a run: the SHA-256 of each by its path in the folder; `files` is None until the run has ended."""

    kind: RunKind
    files: Mapping[str, str] | None = None


class Occupied(BadInput):
    """A folder is not empty, so that a run in it could overwrite files; the message names one."""


_NAMES = pattern(
    "|".join(map(re.escape, PICTURES)) + r"|result\.json|runner\.log|worker\.log|report\.html"
    r"|called\.(py|pkl)|trees(_verification)?/[^/]+\.npy"
    r"|mutants\.json|plan\.json|(program|trace|twin)_\w+\.py|(stablehlo|hlo)_\w+\.txt|plan_\w+\.json"
    r"|results\.(csv|jsonl)|sweep\.json|multirun\.yaml|optimization_results\.yaml"
    r"|\.hydra/(config|hydra|overrides)\.yaml|conf/experiment/[^/]+\.yaml|__pycache__/(program|trace|twin)_[\w.-]+\.pyc"
    r"|profile/\w+/plugins/profile/[^/]+/[^/]+\.(xplane\.pb|trace\.json\.gz|json\.gz|pb)|\.submitit/[^/]+/[^/]+"
)
"""The names of the files that runs and sweeps write (docs/record.md), also in `verification` and in folders of
candidates.
"""

_INSIDE = pattern(r"(candidate_\d+/)?(verification/)?")
"""The folders of runs inside another run's folder: its verification, and the candidates of its plan."""


_FOLDERS = pattern(
    r"candidate_\d+|(candidate_\d+/)?(verification|(verification/)?(trees(_verification)?|\.hydra|conf(/experiment)?"
    r"|__pycache__|profile(/\w+(/plugins(/profile(/[^/]+)?)?)?)?))|\.submitit(/[^/]+)?"
)
"""The folders that contain such files."""


def read(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None if it has no readable one."""
    file = folder / FILE
    try:
        return None if file.is_symlink() else codec.build(Manifest, json.loads(plain.read_text(file)))
    except (OSError, ValueError, RecursionError, codec.Misfit):
        return None


def refusal(folder: Path) -> str | None:
    """Return the reason why no run may begin in a folder; None if it is empty or does not exist."""
    where = os.path.abspath(folder)
    if where.encode(errors="ignore").decode() != where:
        return f"{where.encode(errors='replace').decode()} has bytes that are not UTF-8, which XLA and YAML cannot name"
    try:
        inside = sorted(entry.name for entry in os.scandir(folder))
    except OSError:
        # Creating the folder reports what is wrong.
        return None
    if not inside:
        return None
    if read(folder) is not None or RECORD in inside:
        whose = "sweep" if (manifest := read(folder)) is not None and manifest.kind == "sweep" else "run"
        return f"{folder} is the folder of another {whose}, which would be lost: remove it, or name another one"
    more = f" and {len(inside) - 1} more" if len(inside) > 1 else ""
    return (
        f"{folder} is not empty: it has {inside[0]}{more}, which no run wrote and this one could overwrite; "
        "name a folder that is empty, or not there"
    )


def begin(folder: Path, kind: RunKind) -> None:
    """Claim an empty or new folder for a run of this process alone. Raises `Occupied`."""
    if (why := refusal(folder)) is not None:
        raise Occupied(why)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise Occupied(f"{folder} is a file, or below one; name a folder that is empty, or not there") from None
    mark(folder, kind)


def mark(folder: Path, kind: RunKind) -> None:
    """Mark the start of a run in a folder. Raises `Occupied` if one has begun there."""
    try:
        with open(folder / FILE, "x", encoding="utf-8") as file:
            file.write(_text(Manifest(kind)))
    except FileExistsError:
        raise Occupied(f"{folder} is the folder of another run; name another one") from None


def end(folder: Path) -> None:
    """Record the files that a run wrote into its folder, if it is a run's; files written later are not part of it."""
    manifest = read(folder)
    if manifest is None:
        return
    # The folder was empty when the run began: files with the names of run files are this run's.
    hashes: dict[str, str] = {}
    for home, below, names in os.walk(folder):
        here = Path(home)
        below[:] = [name for name in below if _FOLDERS.fullmatch((here / name).relative_to(folder).as_posix())]
        for path in (here / name for name in sorted(names)):
            name = path.relative_to(folder).as_posix()
            if _is_ours(name) and path.is_file() and not path.is_symlink():
                hashes[name] = _hash(path)
    _write(folder, Manifest(manifest.kind, hashes))


def is_as_written(file: Path) -> bool:
    """Return whether a file is unchanged since the run of its folder wrote it; False if nothing proves that."""
    manifest = read(file.parent)
    return manifest is not None and manifest.files is not None and _is_as_written(file, manifest.files.get(file.name))


def add(files: Iterable[Path]) -> None:
    """Record files that the runner wrote into folders of runs that may have ended before."""
    for path in files:
        manifest = read(path.parent)
        if manifest is not None and manifest.files is not None:
            _write(path.parent, Manifest(manifest.kind, {**manifest.files, path.name: _hash(path)}))


def again(folder: Path) -> None:
    """Mark that a sweep which had ended is resumed."""
    manifest = read(folder)
    if manifest is not None:
        _write(folder, Manifest(manifest.kind))


@dataclass(frozen=True)
class _Contents:
    """The contents of a run folder: the runs' own files, each before its folder, and those that no run wrote."""

    ours: list[Path]
    foreign: list[Path]


def strangers(folder: Path) -> list[Path]:
    """Return the entries of a folder that no run wrote, or that were changed later; links are among them."""
    return _contents(folder).foreign


def delete(folder: Path) -> list[Path]:
    """Delete the folder of a run if runs wrote everything in it; otherwise delete nothing, and return the rest.

    Raises `OSError`, also for a file that appeared during the deletion, which stays.
    """
    contents = _contents(folder)
    if not contents.foreign:
        for path in contents.ours:
            path.rmdir() if path.is_dir() else path.unlink()
    return contents.foreign


def _contents(folder: Path) -> _Contents:
    """Return the contents of a folder; the folder itself is the last of `ours`."""
    manifest = None if folder.is_symlink() else read(folder)
    if manifest is None:
        return _Contents([], [folder / FILE])
    ours: list[Path] = []
    foreign: list[Path] = []

    def walk(at: Path) -> None:
        for entry in sorted(os.scandir(at), key=lambda entry: natural(entry.name)):
            path = Path(entry.path)
            name = path.relative_to(folder).as_posix()
            if entry.is_dir(follow_symlinks=False):
                if manifest.kind == "sweep" and at == folder and _is_point(path):
                    inside = _contents(path)
                    ours.extend(inside.ours)
                    foreign.extend(inside.foreign)
                elif _FOLDERS.fullmatch(name) is None:
                    foreign.append(path)
                else:
                    walk(path)
                    ours.append(path)
            elif not entry.is_file(follow_symlinks=False):
                foreign.append(path)
            elif name == FILE or (
                _is_ours(name) if manifest.files is None else _is_as_written(path, manifest.files.get(name))
            ):
                ours.append(path)
            else:
                foreign.append(path)

    walk(folder)
    return _Contents([*ours, folder], foreign)


def _is_point(folder: Path) -> bool:
    manifest = read(folder)
    return manifest is not None and manifest.kind == "point"


def _is_ours(name: str) -> bool:
    return _NAMES.fullmatch(_INSIDE.sub("", name, count=1)) is not None


def _hash(path: Path) -> str:
    """Return the manifest's entry for a file: its SHA-256; for a log also its size at that time."""
    with open(path, "rb") as file:
        sha = hashlib.file_digest(file, "sha256").hexdigest()
        return f"{sha}:{file.tell()}" if path.suffix == ".log" else sha


def _is_as_written(path: Path, noted: str | None) -> bool:
    """Return whether a file matches its entry; a log may have grown, since launchers append to it later."""
    sha, _, size = (noted or "").partition(":")
    if not size.isdecimal():
        return sha == _hash(path)
    with open(path, "rb") as file:
        return sha == hashlib.sha256(file.read(int(size))).hexdigest()


def _write(folder: Path, manifest: Manifest) -> None:
    write_text(folder / FILE, _text(manifest))


def _text(manifest: Manifest) -> str:
    files = None if manifest.files is None else dict(manifest.files)
    return json.dumps({"kind": manifest.kind, "files": files}, indent=1) + "\n"
