"""Maps the experiment's names to Python identifiers."""

from __future__ import annotations

import builtins
import copy
import keyword
from collections.abc import Container, Iterable, Mapping
from functools import partial
from typing import Any

from runner.experiment.model import Experiment

_MODULES = {"jax": "jax", "jnp": "jax.numpy", "np": "numpy", "ml_dtypes": "ml_dtypes", "os": "os"}
_OTHERS = (
    "P AxisType NamedSharding rng mesh devices mesh_utils topologies topology abstract_inputs inputs make_mesh "
    "shardings program main split join per_device"
)
OWN: Mapping[str, str | None] = {**_MODULES, **dict.fromkeys(_OTHERS.split())}
"""The names of a script that no import of an experiment may have, each with the module that it names, if it is one."""

CONSTRAINING = ("collections", "itertools", "re", "jex", "constraining", "within", "given", "scopes_of")
"""The names that the decorator of `runner/programs/within.py` reads or defines."""

_RESERVED = frozenset(
    {*keyword.kwlist, *dir(builtins), *OWN, "step", "carry", "over", "steps", *CONSTRAINING},
)


def name_of(function: Any) -> Any:
    """The name of a function: of a partial that of its function, of another callable object that of its class."""
    while not hasattr(function, "__name__") and partial in type(function).__mro__:
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def importable(name: object, taken: Container[str] = ()) -> str:
    """The name under which a program imports a function of this name: `_` is appended to one that is `taken`.

    A function may be called anything, even by what is no text.
    """
    text = name if isinstance(name, str) and name.isascii() and name.isidentifier() else ""
    text = text.strip("_")[:_LONGEST]
    if not text or keyword.iskeyword(text):
        text = "function"
    while text in taken or text in OWN:
        text += "_"
    return text


_LONGEST = 60
"""The most characters of a function's name that a program has."""


class Identifiers:
    """Maps the experiment's names to distinct Python identifiers that do not collide with the script's own."""

    def __init__(self, experiment: Experiment) -> None:
        self._identifiers: dict[str, str] = {}
        self._reserved = _RESERVED | frozenset(experiment.imports.names)
        self._taken = set(self._reserved)
        self._functions: set[str] = set()
        self._dims = tuple(experiment.dims)
        for name in (*experiment.dims, *(array.name for array in experiment.arrays)):
            self.add(name)
        self._script: set[str] = set()
        self.function = self.reserve(experiment.name.replace("-", "_").replace(".", "_").replace("+", "_"))

    def reserve(self, wish: str) -> str:
        """Reserve an identifier for the script itself, `wish` or one like it."""
        identifier = self._free(wish)
        self._script.add(identifier)
        return identifier

    def inside(self) -> Identifiers:
        """The names in scope in a function of the program: the dims, the script's own, and the functions before it."""
        inner = copy.copy(self)
        inner._identifiers = {dim: self._identifiers[dim] for dim in self._dims}
        inner._taken = {*self._reserved, *self._script, *self._functions, *inner._identifiers.values()}
        return inner

    def within(self, own: Iterable[str]) -> Identifiers:
        """The names in scope in a lambda with the parameters `own`."""
        inner = copy.copy(self)
        inner._identifiers, inner._taken = dict(self._identifiers), set(self._taken)
        for name in own:
            inner._identifiers.pop(name, None)
            inner.add(name)
        return inner

    def reserve_function(self, wish: str, inner: Identifiers) -> str:
        """Reserve an identifier for a function that shadows no name around it and none of its `inner` names."""
        name, count = wish, 2
        while name in self._taken | inner._taken:
            name, count = f"{wish}_{count}", count + 1
        self._taken.add(name)
        self._functions.add(name)
        return name

    def _free(self, wish: str) -> str:
        if not wish.isidentifier():
            wish = f"experiment_{wish}"
        while wish in self._taken:
            wish += "_"
        self._taken.add(wish)
        return wish

    def add(self, name: str) -> str:
        """The identifier of a name; chosen when the name is new."""
        if name not in self._identifiers:
            self._identifiers[name] = self._free(name.replace(".", "_"))
        return self._identifiers[name]

    def __getitem__(self, name: str) -> str:
        return self._identifiers[name]
