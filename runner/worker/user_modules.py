"""Imports the modules, objects and references that a definition names, with the lines by which programs do so."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Collection
from dataclasses import field
from inspect import ismodule
from pathlib import Path
from typing import Any

from runner.base.faults import Key, invalid
from runner.base.lazy import dataclass
from runner.experiment.identifiers import OWN
from runner.experiment.plain import check_name
from runner.graph.language.operations import OPERATIONS
from runner.worker import own_files, setting
from runner.worker.refusing import reported

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
                lines = own_files.add(file)
            except own_files.NameTaken as taken:
                raise invalid(key, str(taken)) from None
        else:
            lines = own_files.add_module(name)
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
