"""Makes the user's own Python files importable: a file by its place, what lies beside it after all libraries.

So a `types.py` in a user's folder replaces no module of Python or of a library, whatever is imported later.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

_LIBRARIES = tuple(sys.path)
"""Where Python's own modules and installed packages are."""

_FILES: dict[str, Path] = {}
"""The files that experiments have imported, by the names of their modules."""


class NameTaken(Exception):
    """A file has the name of a module that Python, JAX or a program needs; the message says so."""


class _Named:
    """Finds the modules of `_FILES`; one of Python's meta path finders."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The file of a module that has one."""
        return spec_from_file_location(name, _FILES[name]) if name in _FILES else None


def add(file: Path) -> list[str]:
    """Make a file importable by its name, and return the lines of a program that does the same. Raises `NameTaken`."""
    name, folder = file.stem, str(file.parent)
    spec = PathFinder.find_spec(name, list(_LIBRARIES))
    other = None if spec is None else spec.origin
    at_end = other is None or os.path.realpath(other) == str(file)
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if name in sys.stdlib_module_names or (not at_end and loaded == other):
        whose = "Python" if name in sys.stdlib_module_names else "a library"
        raise NameTaken(f"'{file.name}' has the name of a module of {whose}, which programs may need: rename the file")
    _FILES[name] = file
    if _Named not in sys.meta_path:
        sys.meta_path.insert(0, _Named)
    beside(folder)
    # Where a program runs alone nothing else finds the file before an installed module of its name.
    return ["import sys", "", f"sys.path.{'append(' if at_end else 'insert(1, '}{folder!r})", ""]


def beside(folder: str) -> None:
    """Let modules in a folder be imported: after all libraries, before other folders."""
    if folder in _LIBRARIES:
        return
    while folder in sys.path:
        sys.path.remove(folder)
    last = max((at for at, each in enumerate(sys.path) if each in _LIBRARIES), default=-1)
    sys.path.insert(last + 1, folder)
