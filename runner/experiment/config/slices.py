"""Lists the generations of TPUs, and the slices of each that `target=` names: `v5e_4x4` is 16 chips of TPU v5e.

Each name is an option of the config group `target`, beside the files of `conf/target/`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from functools import cache

from runner.base.lazy import dataclass

_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16", "16x16x16")
_NAMED = {2: _FLAT, 3: _CUBES}
"""The shapes of slices that have a name, by the dimensions of the interconnect: up to 4,096 chips."""


@dataclass(frozen=True)
class Generation:
    """A generation of TPUs: its name, the dimensions of its interconnect, and the JAX devices of a chip.

    A chip of two cores is one device if both work as one (megacore), as on v5p and by default on v4.
    """

    name: str
    dimensions: int
    devices_per_chip: int = 1
    options: Mapping[str, str] = field(default_factory=dict[str, str])


GENERATIONS = {
    "v4": Generation("TPU v4", 3, options={"chip_config_name": "megacore"}),
    "v5e": Generation("TPU v5e", 2),
    "v5p": Generation("TPU v5p", 3),
    "v6e": Generation("TPU v6e", 2),
    "tpu7x": Generation("TPU 7x", 3, devices_per_chip=2),
}


@dataclass(frozen=True)
class Slice:
    """A slice that has a name: the values of `target`, and what they are, in words."""

    topology: str
    says: str

    @property
    def values(self) -> dict[str, str]:
        """The values that the option gives the keys of `target`."""
        return {"platform": "tpu", "topology": self.topology}


@cache
def slices() -> Mapping[str, Slice]:
    """Return all named slices by their options: `v5e_4x4`."""
    return {
        f"{key}_{shape}": Slice(f"{key}:{shape}", _says(generation, shape))
        for key, generation in GENERATIONS.items()
        for shape in _NAMED[generation.dimensions]
    }


def _says(generation: Generation, shape: str) -> str:
    chips = math.prod(map(int, shape.split("x")))
    devices = f": {chips * generation.devices_per_chip} devices" if generation.devices_per_chip > 1 else ""
    return f"{chips} chip{'s' if chips > 1 else ''} of {generation.name}{devices}, compile only."
