"""A function as people write it, with its reference, its layouts and mistakes that people make in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType


@dataclass(frozen=True)
class Case:
    """A function that is right, and texts in its module with what a mistake would put in their place.

    - `mistakes`: text and replacement; each text stands once in the function, or in what it calls.
    - `jitted`: whether the function is in the global view, rather than a device's code for `shard_map`.
    - `setting`: whether it is called within `jax.set_mesh`, as a function with bare specs is.
    """

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    mesh: Any
    in_specs: Any
    out_specs: Any
    reference: Callable[..., Any]
    mistakes: tuple[tuple[str, str], ...]
    check_vma: bool = True
    jitted: bool = False
    within: tuple[Callable[..., Any], ...] = ()
    setting: bool = False

    @property
    def name(self) -> str:
        return self.function.__name__

    def whole(self) -> Callable[..., Any]:
        """The function on whole arrays."""
        if self.jitted:
            return self.function
        return jax.shard_map(
            self.function, mesh=self.mesh, in_specs=self.in_specs, out_specs=self.out_specs, check_vma=self.check_vma
        )

    @property
    def program(self) -> str:
        """The program that it is run as."""
        typed = AxisType.Explicit in getattr(self.mesh, "axis_types", ())
        return "explicit" if self.setting or (typed and not self.jitted) else "auto"

    def context(self) -> AbstractContextManager[Any]:
        """What it is called in."""
        return jax.set_mesh(self.mesh) if self.setting else nullcontext()

    def broken(self, text: str, mistake: tuple[str, str]) -> tuple[str, int]:
        """The text of its module with a mistake, and the number of the line where it is."""
        old, new = mistake
        for part in (self.function, *self.within):
            source, first = inspect.getsourcelines(part)
            at = [number for number, line in enumerate(source) if old in line]
            if at:
                assert len(at) == 1, (self.name, old)
                lines = text.splitlines(keepends=True)
                lines[first - 1 + at[0]] = lines[first - 1 + at[0]].replace(old, new)
                return "".join(lines), first + at[0]
        raise AssertionError((self.name, old))


def normal(seed: int, *shape: int) -> np.ndarray:
    """Normally distributed float32."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def uniform(seed: int, *shape: int) -> np.ndarray:
    """Float32 between 0.05 and 0.95."""
    return np.random.default_rng(seed).uniform(0.05, 0.95, shape).astype(np.float32)


def ints(seed: int, most: int, *shape: int) -> np.ndarray:
    """Int32 from 0 to below `most`."""
    return np.random.default_rng(seed).integers(0, most, shape).astype(np.int32)
