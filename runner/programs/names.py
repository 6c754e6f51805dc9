"""The experiment's names in; Python identifiers for them out."""

from __future__ import annotations

import builtins
import copy
import keyword
from collections.abc import Iterable

from runner.experiment.model import Experiment
from runner.programs import within

_RESERVED = frozenset(
    {*keyword.kwlist, *dir(builtins)}
    | {"jax", "jnp", "np", "ml_dtypes", "P", "AxisType", "NamedSharding", "rng", "mesh", "devices"}
    | {"os", "mesh_utils", "topologies", "topology", "abstract_inputs"}
    | {
        "inputs",
        "make_mesh",
        "shardings",
        "program",
        "main",
        "split",
        "join",
        "per_device",
        "step",
        "carry",
        "over",
        "steps",
    }
    | {*within.NAMES}
)


class Names:
    """The experiment's names as Python identifiers, each distinct and none that the script needs itself."""

    def __init__(self, experiment: Experiment) -> None:
        self._identifiers: dict[str, str] = {}
        self._reserved = _RESERVED | frozenset(experiment.imports.names)
        self._taken = set(self._reserved)
        self._functions: set[str] = set()
        self._dims = tuple(experiment.dims)
        for name in (*experiment.dims, *(array.name for array in experiment.arrays)):
            self.add(name)
        self.function = self._free(experiment.name.replace("-", "_").replace(".", "_").replace("+", "_"))

    def reserve(self, wish: str) -> str:
        """An identifier of the script's own, close to `wish`, that no name of the experiment gets."""
        return self._free(wish)

    def inside(self) -> Names:
        """The names inside a function of the program: of the dims, and of the functions that are there already."""
        inner = copy.copy(self)
        inner._identifiers = {dim: self._identifiers[dim] for dim in self._dims}
        inner._taken = {*self._reserved, *self._functions, *inner._identifiers.values()}
        return inner

    def within(self, own: Iterable[str]) -> Names:
        """The names inside a lambda with parameters of its `own`."""
        inner = copy.copy(self)
        inner._identifiers, inner._taken = dict(self._identifiers), set(self._taken)
        for name in own:
            inner._identifiers.pop(name, None)
            inner.add(name)
        return inner

    def reserve_function(self, wish: str, inner: Names) -> str:
        """An identifier for a function, which no name around it gets, nor one of those `inner` ones of its lines."""
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
        """The identifier of a name, made when it is new."""
        if name not in self._identifiers:
            self._identifiers[name] = self._free(name.replace(".", "_"))
        return self._identifiers[name]

    def __getitem__(self, name: str) -> str:
        return self._identifiers[name]
