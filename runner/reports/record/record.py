"""Writes the results of a run to `result.json` and reads them. The record is a contract: fields may be added, but no
field changes its meaning under one schema number."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.base import codec, plain
from runner.base.printable import json_text
from runner.base.untyped import is_dict, is_list
from runner.reports.record.model import SCHEMA, STATUSES, Environment, Git, Record, Status
from runner.reports.record.verdicts import Checks, FileChecks
from runner.reports.record.writing import write_text
from runner.version import __version__


class UnreadableRecord(Exception):
    """A `result.json` is not a record, or has another schema; the message says which, and what to do."""


def started(name: str | None, overrides: Sequence[str], summary: str = "") -> Record:
    """Return the record of a run that has just begun."""
    return Record(
        experiment=name,
        summary=summary,
        overrides=list(overrides),
        status="passed",
        error=None,
        warnings=[],
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        mesh=None,
        target=None,
        checks=FileChecks(),
        arrays={},
        programs={},
        not_supported={},
        environment=Environment(jax=None, jaxlib=None, python=platform.python_version(), runner=__version__, git=None),
    )


def ended(
    folder: Path, status: Status, message: str, overrides: Sequence[str], config_folders: Sequence[str] = ()
) -> Record:
    """Write and return the record of a run that ended with a message before it had results."""
    record = started(None, overrides)
    record.config_folders = list(config_folders)
    record.status, record.error, record.environment.git = status, message, git()
    write(record, folder)
    return record


def config_hash(config: Mapping[str, Any], folder: Path | None = None) -> str:
    """Return a hash of a resolved configuration and of the Python files that it imports from `folder`."""
    files = (folder / str(source).partition(":")[0] for source in config["imports"].values()) if folder else ()
    contents = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()}
    whole = {**config, "imported": contents} if contents else config
    text = json.dumps(whole, sort_keys=True, default=str, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def exit_status(status: Status) -> int:
    """Return the exit status of a run.

    0: everything passed or is a known failure; 1: a check failed or is weak; 2: the experiment is invalid; 3: a program
    could not be compiled or run.
    """
    return STATUSES[status]


def worst(statuses: Sequence[Status]) -> Status:
    """Return the status of a whole, given those of its parts."""
    best: Status = "passed"
    return max([best, *statuses], key=list(STATUSES).index)


def of_checks(checks: Checks | FileChecks) -> Status:
    """Return the worst status of the checks that were run."""
    return worst([verdict.status for verdict in checks if verdict.status != "not_run"])


def write(record: Record, folder: Path) -> Path:
    """Write `result.json` into the run folder; return its path."""
    path = folder / "result.json"
    write_text(path, json_text(_text(codec.plain(record))) + "\n")
    return path


_WIDTH = 120
_encoded = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _text(value: Any, before: str = "", indent: int = 0) -> str:
    """Return JSON in which everything that fits is on one line; `before` is the key before the value."""
    whole = not value or not (is_dict(value) or is_list(value))
    if whole or (indent and _room(value, _WIDTH - indent - len(before)) > 0):
        line = before + _encoded(value)
        if whole or indent + len(line) < _WIDTH:
            return line
    inside = [
        _text(item, f"{_encoded(key)}: " if isinstance(value, dict) else "", indent + 2)
        for key, item in (value.items() if is_dict(value) else enumerate(value))
    ]
    start, end = "{}" if isinstance(value, dict) else "[]"
    separator = ",\n" + " " * (indent + 2)
    return f"{before}{start}\n{' ' * (indent + 2)}{separator.join(inside)}\n{' ' * indent}{end}"


def _room(value: Any, room: int) -> int:
    """Return at most how many of `room` characters a value leaves, without encoding it; negative if it is longer."""
    if isinstance(value, str):
        return room - len(value) - len('""')
    if is_dict(value):
        # The first member has no comma before it.
        room += len(", ") - len("{}")
        for key, item in value.items():
            room = _room(item, room - len(', "": ') - len(key))
            if room < 0:
                break
        return room
    if is_list(value):
        room += len(", ") - len("[]")
        for item in value:
            room = _room(item, room - len(", "))
            if room < 0:
                break
        return room
    return room - 1


def read(folder: Path) -> Record:
    """Read the record of a run folder.

    Raises `UnreadableRecord` if it is not a record, or another version of the runner wrote it; `FileNotFoundError` and
    `NotADirectoryError` if there is none.
    """
    path = folder / "result.json"
    try:
        data = plain.read(path)
    except plain.NotJson as error:
        raise UnreadableRecord(f"{path}\n  {error}") from None
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise UnreadableRecord(f"{path}\n  {error.strerror or error}") from None
    number = data.get("schema") if is_dict(data) else None
    if not isinstance(number, int) or isinstance(number, bool):
        raise UnreadableRecord(f"{path}\n  not a record: it has no 'schema'")
    if number != SCHEMA:
        wrote = "an older" if number < SCHEMA else "a newer"
        raise UnreadableRecord(
            f"{path}\n  {wrote} version of shardproof wrote it: its schema is {number}, this version reads {SCHEMA}; "
            "run the experiment again, or read it with the version that environment.runner names"
        )
    # Imported here, since a run only writes its record.
    from runner.reports.record import consistent

    try:
        record = codec.build(Record, data)
        consistent.require(record, data)
        return record
    except codec.Misfit as misfit:
        raise UnreadableRecord(f"{path}\n  not a record of schema {SCHEMA}: {misfit}") from None


def schema_text() -> str:
    """Return the JSON Schema of `result.json`, which is `docs/result.schema.json`."""
    return _text(codec.schema_of_file(Record, f"result.json, schema {SCHEMA}", SCHEMA)) + "\n"


def git() -> Git | None:
    """Return the commit of the working directory, if it is in a git checkout."""
    # A folder's own .git/config may name a program to watch its files, which git would start.
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    command += ["status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        status = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = status.stdout.splitlines()
    head = next((line.removeprefix(_HEAD) for line in lines if line.startswith(_HEAD)), "(initial)")
    # A checkout without a commit has no hash.
    return None if head == "(initial)" else Git(sha=head, dirty=any(not line.startswith("#") for line in lines))


_HEAD = "# branch.oid "
"""The beginning of git's line with the hash of the commit."""
