"""The experiment's names in; Python identifiers for them out."""

from __future__ import annotations

import builtins
import keyword

from runner.experiment.model import Experiment

_RESERVED = frozenset(
    {*keyword.kwlist, *dir(builtins)}
    | {"jax", "jnp", "np", "ml_dtypes", "P", "AxisType", "NamedSharding", "rng", "mesh", "devices"}
    | {"os", "mesh_utils", "topologies", "topology", "abstract_inputs"}
    | {"inputs", "make_mesh", "shardings", "program", "main", "split", "join", "per_device", "step", "carry"}
)


class Names:
    """The experiment's names as Python identifiers, each distinct and none that the script needs itself."""

    def __init__(self, experiment: Experiment) -> None:
        self._identifiers: dict[str, str] = {}
        self._taken = set(_RESERVED)
        for name in (*experiment.dims, *(array.name for array in experiment.arrays)):
            self.add(name)
        self.function = self._free(experiment.name.replace("-", "_").replace(".", "_").replace("+", "_"))

    def reserve(self, wish: str) -> str:
        """An identifier of the script's own, close to `wish`, that no name of the experiment gets."""
        return self._free(wish)

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
