"""Pins the values of a record in a file, and reads that file.

Pinned values are decisions of the compiler that users want to know of when they change: the collectives, and the bytes
and layouts of the outputs. Times, estimates and temporary memory are not pinned. A golden file holds one experiment,
`{"jax 0.10": {"cpu": {"shard_map": {…}}}}`: the series of JAX, the target, the program.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

from runner.base import codec, plain
from runner.base.faults import BadInput
from runner.base.layout import Spec
from runner.base.untyped import is_dict, is_list
from runner.base.words import shown
from runner.compiled.evidence.model import Collective
from runner.reports.record import writing
from runner.reports.record.model import CompiledProgram, ProgramRecord

Pinned = dict[str, Any]
"""The pinned values of a program: `bytes`, `outputs`, `collectives`, `dims` if they differ from the file's, `names`."""

Goldens = dict[str, dict[str, dict[str, Pinned]]]
"""The content of one file: series of JAX, target, program."""

Place = tuple[str, str, str]
"""Series of JAX, target, program."""

NAMES = "names"
"""The key of the readers' names of pinned lines and outputs, which are not compared."""

OPERANDS = "operands"
"""The key of the layouts of a function's operands; the golden of a file has none, nor have older goldens."""

_ALWAYS = ("kind", "node", "inserted", "axes", "dtype", "bytes_in", "bytes_out", "bytes_sent", "count")
WHERE_SET = ("gradient", "asynchronous")
"""The flags of a collective that a golden contains only if they are true."""

OUTPUT = ("shape", "dtype", "spec", "shard_shape")
"""The keys of an output, in their order."""


class InvalidGolden(BadInput):
    """A golden file cannot be read; the message says which, where, and what instead."""


def series(version: str) -> str:
    """Return the series of a JAX version, within which the compiler is expected to decide alike: `jax 0.10`."""
    return "jax " + ".".join(version.split(".")[:2])


def pinned(
    program: ProgramRecord,
    dims: Mapping[str, int] | None = None,
    names: Mapping[str, str] | None = None,
    operands: Mapping[str, Spec] | None = None,
) -> Pinned:
    """Return the pinned values of a program; `dims` are the sizes of its run if they are not the experiment's own.

    For a program that was not compiled they have no collectives. `names` are the readers' names of lines and outputs of
    a user's Python code; those that are pinned are kept under `names`, for messages alone. `operands`: the layouts that
    a function was given, which no file says.
    """
    pins: Pinned = {}
    if dims:
        pins["dims"] = dict(dims)
    if not isinstance(program, CompiledProgram):
        return pins
    if operands:
        pins[OPERANDS] = {name: codec.plain(spec) for name, spec in operands.items()}
    if program.memory is not None:
        pins["bytes"] = {"argument": program.memory.argument_bytes, "output": program.memory.output_bytes}
    pins["outputs"] = {
        name: {key: codec.plain(getattr(output, key)) for key in OUTPUT} for name, output in program.outputs.items()
    }
    pins["collectives"] = _collectives(program.collectives)
    if program.collectives_unknown:
        pins["collectives_incomplete"] = True
    used = {*pins["outputs"], *_named(pins["collectives"] or [])}
    if readable := {name: shown for name, shown in (names or {}).items() if name in used and shown != name}:
        pins[NAMES] = readable
    return pins


def _named(collectives: list[Pinned]) -> Iterator[str]:
    """Yield the lines and arrays that pinned collectives name."""
    for pins in collectives:
        between: Mapping[str, list[str]] = pins.get("between") or {}
        lists: tuple[list[str] | None, ...] = (
            pins.get("nodes"), pins.get("overlapped"), between.get("from"), between.get("to"),
        )  # fmt: skip
        yield from (name for names in lists for name in names or ())
        if pins["node"] is not None:
            yield pins["node"]


def _collectives(listed: list[Collective] | None) -> list[Pinned] | None:
    if listed is None:
        return None
    counted = Counter(json.dumps(_collective(entry), sort_keys=True) for entry in listed)
    entries = [json.loads(text) | ({"times": times} if times > 1 else {}) for text, times in counted.items()]
    return sorted(entries, key=lambda entry: (entry["node"] or "", entry["kind"], json.dumps(entry, sort_keys=True)))


def _collective(collective: Collective) -> Pinned:
    pins = {key: codec.plain(getattr(collective, key)) for key in _ALWAYS}
    pins |= {key: True for key in WHERE_SET if getattr(collective, key)}
    if len(collective.nodes) > 1:
        pins["nodes"] = sorted(collective.nodes)
    if collective.between is not None:
        pins["between"] = {"from": sorted(collective.between.source), "to": sorted(collective.between.to)}
    if collective.axes is None:
        pins["groups"] = collective.groups
    if collective.asynchronous:
        pins["overlapped"] = None if collective.overlapped is None else sorted(collective.overlapped)
    return pins


def folder(config_folder: Path) -> Path:
    """Return the default folder for the goldens of a config folder.

    It is `goldens` beside the config folder if that is there or there is no `tests`, else `tests/goldens`; not inside
    the config folder, where each folder is a Hydra config group.
    """
    beside = config_folder.resolve().parent
    goldens, tests = beside / "goldens", beside / "tests"
    return tests / "goldens" if tests.is_dir() and not goldens.is_dir() else goldens


def read(path: Path) -> Goldens:
    """Read a golden file; empty if there is none. Raises `InvalidGolden`."""
    try:
        content = json.loads(plain.read_text(path))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidGolden(f"{shown(path)}  {error.strerror}; {_REMEDY}") from None
    except (ValueError, RecursionError) as error:
        where = f":{error.lineno}:{error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        what = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise InvalidGolden(f"{shown(path)}{where}\n  not JSON: {what}; {_REMEDY}") from None
    fault = _fault(content)
    if fault:
        raise InvalidGolden(f"{shown(path)}  {fault}; {_REMEDY}")
    return content


_REMEDY = "restore the file, or delete it and run pytest --update-golden"


def _fault(content: Any) -> str | None:
    """Return the first deviation from the format of `text`, if there is one."""
    if not is_dict(content):
        return "is not a mapping of series of JAX"
    for version, targets in content.items():
        if not is_dict(targets):
            return f"'{version}' is not a mapping of targets"
        for target, programs in targets.items():
            if not is_dict(programs):
                return f"'{version}', '{target}' is not a mapping of programs"
            for program, entry in programs.items():
                if (key := _misshapen(entry)) is not None:
                    return f"'{version}', '{target}', '{program}'{key} is not what --update-golden writes"
    return None


def _misshapen(entry: Any) -> str | None:
    """Return the part of a program's entry whose types differ from those that `pinned` writes; None if all agree."""
    if not is_dict(entry):
        return ""
    for key in ("bytes", "outputs", "dims", NAMES, OPERANDS):
        if not is_dict(entry.get(key, {})):
            return f", '{key}'"
    if not all(is_dict(output) and set(output) >= set(OUTPUT) for output in entry.get("outputs", {}).values()):
        return ", 'outputs'"
    listed = entry.get("collectives")
    if listed is None:
        return None
    if not is_list(listed):
        return ", 'collectives'"
    for i, entry in enumerate(listed):
        if not is_dict(entry):
            return f", 'collectives'[{i}]"
        for key, kinds in _TYPES.items():
            held = entry.get(key)
            ranged = key == "count" and is_dict(held) and not _is_range(held)
            if (
                not isinstance(held, kinds)
                or ranged
                or (key == "groups" and key not in entry and entry["axes"] is None)
            ):
                return f", 'collectives'[{i}], '{key}'"
    return None


def _is_range(held: Mapping[str, Any]) -> bool:
    return set(held) == {"min", "max"} and all(isinstance(end, int) for end in held.values())


_TYPES: dict[str, tuple[type, ...]] = {
    "kind": (str,), "node": (str, NoneType), "inserted": (bool,), "axes": (list, NoneType), "dtype": (str, NoneType),
    "bytes_in": (int, NoneType), "bytes_out": (int, NoneType), "bytes_sent": (int, NoneType),
    "count": (int, dict, NoneType), "times": (int, NoneType),
    "nodes": (list, NoneType), "groups": (list, NoneType), "overlapped": (list, NoneType),
}  # fmt: skip
"""The types of a collective's fields; null also stands for a field that is left out."""


def text(content: Goldens) -> str:
    """Return the text of a golden file: keys sorted, one collective and one output per line, for readable diffs."""
    return _text(content, "") + "\n"


def _text(value: Any, indent: str) -> str:
    inner = indent + "  "
    parts: list[Any] = list(value.values()) if is_dict(value) else value if is_list(value) else []
    if not any(is_dict(part) or (is_list(part) and _holds_mappings(part)) for part in parts):
        return json.dumps(value, sort_keys=True, ensure_ascii=False)
    if is_dict(value):
        lines = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {_text(value[key], inner)}" for key in sorted(value)]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + _text(part, inner) for part in value) + f"\n{indent}]"


def _holds_mappings(parts: list[Any]) -> bool:
    return any(is_dict(part) for part in parts)


def entry(content: Goldens, place: Place) -> Pinned | None:
    """Return the pinned values for a series, a target and a program; None if there are none."""
    version, target, program = place
    return content.get(version, {}).get(target, {}).get(program)


def pin(path: Path, place: Place, value: Pinned | None) -> None:
    """Pin `value` at one place of a file, or remove it if None; other places stay unchanged.

    Safe with concurrent processes that pin in the same file. Raises `InvalidGolden` for a file that cannot be read.
    """
    version, target, program = place
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        content = read(path)
        if value is None:
            programs = content.get(version, {}).get(target, {})
            programs.pop(program, None)
        else:
            content.setdefault(version, {}).setdefault(target, {})[program] = value
        content = {
            version: kept
            for version, targets in content.items()
            if (kept := {target: programs for target, programs in targets.items() if programs})
        }
        writing.write_text(path, text(content))


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None, None, None]:
    """Hold an exclusive lock on a folder among the processes of this machine; it ends with its process."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
