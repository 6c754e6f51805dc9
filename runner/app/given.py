"""Refuses what a caller of the package's functions gives where it is no path, no experiment and no override."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, cast

_LONGEST = 255
"""The most bytes of a name in a path."""

_WHOLE = 4096
"""The most bytes of a path."""

_DEEPEST = 100
"""The most levels of an experiment's mapping."""


def path(value: object, what: str, instead: str) -> Path:
    """Return a path that a file system can have; `what` it is, and what to give `instead`. Raises `ValueError`."""
    if not isinstance(value, str | Path):
        raise ValueError(f"{what} is {shown(value)}; give {instead}")
    wrong = unusable(str(value))
    if wrong is not None:
        raise ValueError(f"{what} is {shown(str(value))}, {wrong}; give {instead}")
    return Path(value)


def text(value: object, what: str) -> str | None:
    """Return a text, or None. Raises `ValueError` for anything else; `what` it is."""
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{what} is {shown(value)}; give a name")
    return value


def columns(value: object) -> int:
    """Return a number of columns of at least one. Raises `ValueError`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"width is {shown(value)}; give the number of columns, at least 1")
    return value


def unusable(text: str) -> str | None:
    """Why no file system has a path; None if one may."""
    try:
        parts = [os.fsencode(part) for part in text.split(os.sep)]
    except UnicodeEncodeError:
        return "which is no text that a path can be"
    if any(b"\0" in part for part in parts):
        return "which has a NUL character"
    longest = max(map(len, parts))
    if longest > _LONGEST:
        return f"with a name of {longest} bytes, where file systems have at most {_LONGEST}"
    whole = len(os.fsencode(text))
    return None if whole < _WHOLE else f"a path of {whole} bytes, where systems have less than {_WHOLE}"


def experiment(value: object) -> str | Path | Mapping[str, Any]:
    """Return an experiment's name, the path of its file, or its mapping.

    Raises `TypeError` for a function, and `ValueError` for anything else.
    """
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    if callable(value):
        name = getattr(value, "__name__", "f")
        raise TypeError(f"a function is no experiment: write runner.check({name}, (x, w), …) with its operands")
    if not isinstance(value, str | Path):
        instead = "give its name, the path of its file, or a mapping of its keys"
        raise ValueError(f"{shown(value)} is no experiment; {instead}")
    wrong = unusable(str(value))
    if wrong is not None:
        raise ValueError(f"an experiment is named {shown(str(value))}, {wrong}")
    return value


def overrides(value: object) -> list[str] | Mapping[str, Any]:
    """Return overrides as they may be given, one text as a list of one. Raises `ValueError`."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        given = cast("Mapping[Any, Any]", value)
        wrong = next((key for key in given if not isinstance(key, str)), None)
        if wrong is not None:
            raise ValueError(f"{shown(wrong)} is no key of an experiment; overrides are {{'dims.B': 8}}")
        return cast("Mapping[str, Any]", value)
    many = isinstance(value, Sequence | AbstractSet) and not isinstance(value, bytes | bytearray)
    several = [*cast("Iterable[object]", value)] if many else [cast("object", value)]
    if not all(isinstance(each, str) for each in several):
        other = next(each for each in several if not isinstance(each, str))
        raise ValueError(f"{shown(other)} is no override; give texts, ['dims.B=8'], or a mapping, {{'dims.B': 8}}")
    return cast("list[str]", several)


def plain(value: Any, key: str = "", level: int = 0) -> Any:
    """Return what an experiment's file can have for a value: lists for PartitionSpecs, Python's numbers for NumPy's.

    Raises `ValueError` for what no file can have; `key` is where the value is.
    """
    if level > _DEEPEST:
        raise ValueError(f"{key.split('.')[0]}: it has more than {_DEEPEST} levels, or contains itself")
    if isinstance(value, Mapping):
        parts = cast("Mapping[Any, Any]", value).items()
        return {name: plain(part, f"{key}.{name}" if key else str(name), level + 1) for name, part in parts}
    if isinstance(value, list | tuple) or is_spec(value):
        return [plain(part, key, level + 1) for part in cast("Iterable[Any]", value)]
    if _is_scalar(value):
        return value.item()
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise ValueError(f"{key}: a number of {value.bit_length()} bits; no dtype has more than 64")
    if isinstance(value, str):
        # That of an enumeration is a text too.
        return value[:]
    if value is None or isinstance(value, int | float):
        return value
    instead = (
        "give its .tolist()"
        if hasattr(cast("Any", type(value)), "tolist")
        else "a file has texts, numbers, lists and mappings"
    )
    raise ValueError(f"{key}: {shown(value)} cannot be written to an experiment's file; {instead}")


_BITS = 3300
"""The most bits of a number that has at most 1,000 digits, which is the most that a file may have."""


def _is_scalar(value: Any) -> bool:
    # Who has a number of NumPy has imported it.
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def is_spec(value: object) -> bool:
    """Whether a value is a PartitionSpec."""
    # A caller with a PartitionSpec has imported JAX.
    jax: Any = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.sharding.PartitionSpec)


def shown(value: object) -> str:
    """A value in a message, as Python writes it, and in a few words if that is long."""
    try:
        text = repr(value)
    except Exception:
        text = ""
    if 0 < len(text) <= _SHOWN and "\n" not in text:
        return text
    return f"{value[:_SHOWN]!r}…" if isinstance(value, str) else f"a value of the type {type(value).__name__}"


_SHOWN = 60
"""The most characters of a value in a message."""
