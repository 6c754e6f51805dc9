"""Makes the user's own Python files importable: a file by its place, what lies beside it after all libraries.

So a `types.py` in a user's folder replaces no module of Python or of a library, whatever is imported later; and no job
sees what another has imported.

The modules, objects and references that a definition names are imported here, with the lines by which programs do so.
"""

from __future__ import annotations

import contextlib
import importlib
import linecache
import os
import re
import sys
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import field
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from inspect import ismodule
from pathlib import Path
from types import ModuleType
from typing import Any

from runner.base.faults import Key, invalid
from runner.base.lazy import dataclass
from runner.compiled.evidence.source_lines import is_library
from runner.experiment.identifiers import OWN
from runner.experiment.plain import check_name
from runner.graph.language.operations import OPERATIONS
from runner.worker import imported, setting, versions
from runner.worker.refusing import reported

_LIBRARIES = tuple(sys.path)
"""Where Python's own modules and installed packages are."""

_before = frozenset(sys.modules)
"""What was imported before the job: in a copy of a user's process, the user's own modules too."""

_FILES: dict[str, Path] = {}
"""The files that the experiment of this job imports, by the names of their modules."""


class NameTaken(Exception):
    """A file has the name of another module, which Python, JAX or this program needs; the message says so."""


class _Named:
    """Finds the modules of `_FILES`; one of Python's meta path finders."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The file of a module that has one."""
        return spec_from_file_location(name, _FILES[name]) if name in _FILES else None


@contextlib.contextmanager
def of_a_job() -> Generator[None]:
    """Find and import the user's files as a new process does, and leave none of them to the next job."""
    global _before
    _before = frozenset(sys.modules)
    path, finders = [*sys.path], [*sys.meta_path]
    forget()
    try:
        yield
    finally:
        forget()
        _FILES.clear()
        sys.path[:], sys.meta_path[:] = path, finders


def forget() -> None:
    """Drop the user's modules that the job has imported, and all caches of their files, which may have changed."""
    for name in [name for name, module in sys.modules.items() if name not in _before and _is_users(module)]:
        del sys.modules[name]
    _forget_classes()
    importlib.invalidate_caches()
    imported.forget()
    versions.forget_frames()
    linecache.checkcache()


def _forget_classes() -> None:
    """Let a script's classes be made anew from their pickles: their bases may be of modules that were dropped.

    In a copy of the caller's process they would be the originals.
    """
    module: Any = sys.modules.get("cloudpickle.cloudpickle")
    if module is not None:
        module._DYNAMIC_CLASS_TRACKER_BY_CLASS.clear()
        module._DYNAMIC_CLASS_TRACKER_BY_ID.clear()


def _is_users(module: ModuleType) -> bool:
    """Whether a module is the user's own Python, or a package without a file of which a folder is the user's."""
    spec = getattr(module, "__spec__", None)
    if spec is None:
        return False
    if spec.origin is None:
        return not all(map(is_library, spec.submodule_search_locations or ()))
    return spec.origin.endswith(".py") and not is_library(spec.origin)


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
    if _FILES.setdefault(name, file) != file:
        both = f"'{_FILES[name]}' and '{file}'"
        raise NameTaken(f"{both} have one name, and Python imports one module of a name: rename one of them")
    if _Named not in sys.meta_path:
        sys.meta_path.insert(0, _Named)
    _beside(folder)
    # Where a program runs alone nothing else finds the file before an installed module of its name.
    return _lines(folder, "append(" if at_end else "insert(1, ")


def add_module(name: str) -> list[str]:
    """Make a module of the current folder importable by its name, unless a library has it; return as `add` does."""
    folder = os.getcwd()
    _beside(folder)
    inherited = folder in _LIBRARIES or PathFinder.find_spec(name.partition(".")[0], list(_LIBRARIES)) is not None
    return [] if inherited else _lines(folder, "append(")


def _lines(folder: str, put: str) -> list[str]:
    return ["import sys", "", f"sys.path.{put}{folder!r})", ""]


def _beside(folder: str) -> None:
    """Let modules in a folder be imported: after all libraries, before other folders."""
    if folder in _LIBRARIES:
        return
    while folder in sys.path:
        sys.path.remove(folder)
    last = max((at for at, each in enumerate(sys.path) if each in _LIBRARIES), default=-1)
    sys.path.insert(last + 1, folder)


_SOURCE = re.compile(r"(?:[^:]*\.py|[^\W\d]\w*(?:\.[^\W\d]\w*)*)(?::[^\W\d]\w*(?:\.[^\W\d]\w*)*)?")
"""What `imports` may name: a file or a module, and an attribute of it."""


@dataclass
class UserModules:
    """The modules and objects that an experiment imports.

    - `folder`: relative paths are below it. `names`: those of the experiment's dims and arrays.
    - `objects`: by their names in the file; `preamble`: the lines of a program that import them.
    """

    folder: Path
    names: Collection[str]
    preamble: list[str]
    objects: dict[str, Any] = field(default_factory=dict[str, Any])

    def add(self, name: str, source: str) -> None:
        """Import a source under a name. Raises `InvalidExperiment`, also for what the user's code raises."""
        key = ("imports", name)
        check_name(name, key)
        if name in OPERATIONS or name in self.names:
            raise invalid(key, f"'{name}' is an operation, a dim or an array already; a name means one thing")
        if name in OWN and OWN[name] != source:
            raise invalid(key, f"'{name}' is what programs call something of their own; choose another name")
        module, attribute, lines = self._module(source, key)
        self.objects[name] = module if attribute is None else _attribute(module, attribute, source, key)
        self.preamble += [line for line in lines if line not in self.preamble]
        imported = module.__name__
        if attribute is None:
            self.preamble.append(f"import {imported}" + ("" if imported == name else f" as {name}"))
        elif "." not in attribute:
            as_name = "" if attribute == name else f" as {name}"
            self.preamble.append(f"from {imported} import {attribute}{as_name}")
        else:
            self.preamble += [f"import {imported}", f"{name} = {imported}.{attribute}"]

    def reference(self, source: str, key: Key) -> Callable[..., Any]:
        """The function that a reference names."""
        root, _, rest = source.partition(".")
        if source in self.objects:
            function = self.objects[source]
        elif root in self.objects and rest and ":" not in rest:
            function = _attribute(self.objects[root], rest, source, key)
        else:
            module, attribute, _ = self._module(source, key)
            function = module if attribute is None else _attribute(module, attribute, source, key)
        if ismodule(function):
            raise invalid(key, f"'{source}' is a module; a reference is a function: {source}:NAME")
        if not callable(function):
            raise invalid(key, f"'{source}' is not a function; a reference must be one")
        return function

    def _module(self, source: str, key: Key) -> tuple[Any, str | None, list[str]]:
        """The module of a source, the attribute named after it, and the lines by which a program finds it."""
        if not _SOURCE.fullmatch(source):
            message = f"{source!r} is neither FILE.py, FILE.py:NAME, nor a module by its name: my_models.mlp:loss"
            raise invalid(key, message)
        where, _, attribute = source.partition(":")
        name = where
        if where.endswith(".py"):
            file = (self.folder / where).resolve()
            if not file.is_file():
                raise invalid(key, f"there is no file '{file}'")
            name = file.stem
            if not name.isidentifier():
                raise invalid(key, f"'{file.name}' cannot be imported by its name; a module's name is an identifier")
            try:
                lines = add(file)
            except NameTaken as taken:
                raise invalid(key, str(taken)) from None
        else:
            lines = add_module(name)
        try:
            with setting.unset():
                return importlib.import_module(name), attribute or None, lines
        except BaseException as error:
            raise reported(error, f"importing {source}", key) from None


def _attribute(module: Any, attribute: str, source: str, key: Key) -> Any:
    value = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise invalid(key, f"'{source}': {getattr(value, '__name__', value)} has no '{part}'")
        value = getattr(value, part)
    return value


class Standing:
    """A proxy of a module or object, with the function at a path below it replaced by a reference."""

    def __init__(self, module: Any, path: str, reference: Any) -> None:
        self._module, (self._name, _, self._rest) = module, path.partition(".")
        self._reference = reference

    def __getattr__(self, name: str) -> Any:
        if name != self._name:
            return getattr(self._module, name)
        inner = getattr(self._module, name)
        return Standing(inner, self._rest, self._reference) if self._rest else self._reference
