"""The name of an experiment in; out whether it can be that of a folder."""

from __future__ import annotations

import re

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*\Z")
_LONGEST = 100


def misnamed(name: str) -> str | None:
    """Why a name cannot be that of a folder; None where it can."""
    if not _FILE_NAME.match(name):
        return f"{name!r} cannot name a folder; use letters, digits, '_', '-', '.'"
    if len(name) > _LONGEST:
        return f"a name of {len(name)} characters is too long for files: at most {_LONGEST}"
    return None
