"""A public function as its library has it, called on small operands that are laid out over four devices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

Explicit, Auto = AxisType.Explicit, AxisType.Auto


@dataclass(frozen=True)
class Call:
    """A function with its operands.

    - `specs`: their layouts, as for `runner.check`; `mesh`: that of the call.
    - `setting`: whether it is called within `jax.set_mesh`; `reference`: what it should compute, if that is not itself.
    """

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    specs: Any
    mesh: Mesh | None = None
    setting: bool = False
    reference: Callable[..., Any] | None = None
    keys: dict[str, Any] = field(default_factory=dict[str, Any])

    def context(self) -> AbstractContextManager[Any]:
        """What it is called in."""
        return jax.set_mesh(self.mesh) if self.setting and self.mesh is not None else nullcontext()


@dataclass(frozen=True)
class Subject:
    """A public function: its library, its name, and a function of the folder of sources that returns the call."""

    library: str
    name: str
    call: Callable[[Path], Call]


SUBJECTS: list[Subject] = []

Making = TypeVar("Making", bound=Callable[[Path], Call])


def public(library: str, name: str) -> Callable[[Making], Making]:
    """Decorate a function that imports a library and returns a call of one of its functions."""

    def decorated(making: Making) -> Making:
        SUBJECTS.append(Subject(library, name, making))
        return making

    return decorated


def mesh(axes: AxisType = Auto, **sizes: int) -> Mesh:
    """A mesh with these axes; `data` and `model`, two devices each, without any."""
    sizes = sizes or {"data": 2, "model": 2}
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(axes,) * len(sizes))


def normal(seed: int, *shape: int) -> np.ndarray:
    """Normally distributed float32."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
