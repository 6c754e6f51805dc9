"""Traces and calls users' functions as their callers do: on a mesh with its axis types, within `jax.set_mesh` or not.

A process has no mesh set but around such a call, whatever the imported modules set.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding

from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.worker import calls
from runner.worker.refusing import text_of
from runner.worker.specs import partition
from runner.worker.versions import abstract_mesh

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Setting:
    """How a function is traced: whether its arrays have the types of Explicit axes, and whether the mesh is set."""

    explicit: bool
    within: bool


PLAIN = Setting(explicit=False, within=False)
"""How a device's code is traced: the mesh is that of the `shard_map` around it."""

TYPED, WITHIN = Setting(explicit=True, within=False), Setting(explicit=True, within=True)

_WANTS_MESH = re.compile(
    r"mesh context|non-empty mesh|context mesh cannot be empty|set a mesh via `jax\.set_mesh`|"
    r"under a mesh|requires a mesh|set_mesh\(",
    re.IGNORECASE,
)
"""JAX's messages for what it accepts within `jax.set_mesh` only."""


def wants_mesh(error: BaseException) -> bool:
    """Whether JAX refused something because no mesh is set."""
    return _WANTS_MESH.search(text_of(error)) is not None


def settings(programs: Sequence[Program], ambient: bool) -> Iterator[tuple[Setting, bool]]:
    """The settings in which a function may be traced, first as the first program calls it.

    Each comes with whether it is only for what `wants_mesh`. `ambient`: whether the caller has set the mesh.
    """
    first = bool(programs) and programs[0].typed
    kinds = [first] if len({program.typed for program in programs}) < 2 else [first, not first]
    for explicit in kinds:
        if not ambient:
            yield Setting(explicit, within=False), False
        yield Setting(explicit, within=True), not ambient


def of_reference(programs: Sequence[Program]) -> Iterator[tuple[Setting, bool]]:
    """The settings in which a reference may be traced, which computes the same on whole arrays: first without types."""
    yield Setting(explicit=False, within=False), False
    yield Setting(explicit=False, within=True), True
    if any(program.typed for program in programs):
        yield Setting(explicit=True, within=False), False
        yield Setting(explicit=True, within=True), True


def mesh(experiment: Experiment, *, explicit: bool) -> Any:
    """The mesh of an experiment on the devices here; without devices if there are too few, or it is for others.

    A concrete mesh and an abstract one without devices are different meshes for JAX's types.
    """
    own = experiment.mesh
    axes = own.explicit if explicit else ()
    types = tuple(AxisType.Explicit if axis in axes else AxisType.Auto for axis in own.axes)
    if experiment.target.topology is None:
        devices = calls.devices(experiment.target.platform)
        if own.devices is not None and len(devices) >= own.needed:
            ordered = np.array([devices[at] for at in own.devices]).reshape(own.shape)
            return jax.sharding.Mesh(ordered, own.axes, axis_types=types)
        if own.devices is None and len(devices) >= own.size:
            return calls.make_mesh(own.shape, own.axes, axis_types=types, devices=devices[: own.size])
    return abstract_mesh(own, axes)


def within(mesh: Any) -> AbstractContextManager[Any]:
    """The context in which a mesh is set, as by `jax.set_mesh`."""
    if isinstance(mesh, jax.sharding.AbstractMesh):
        return jax.sharding.use_abstract_mesh(mesh)
    return calls.set_mesh(mesh)


def without() -> AbstractContextManager[Any]:
    """The context in which no mesh is set, also while JAX traces."""
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))


@contextlib.contextmanager
def unset() -> Generator[None]:
    """Import modules in this context: a mesh that they set is not set behind it."""
    try:
        yield
    finally:
        calls.set_mesh(None)


def typed(struct: Any, mesh: Any, spec: Spec) -> Any:
    """The type of an array that lies on a mesh."""
    return jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=NamedSharding(mesh, partition(spec)))


@dataclass
class CallSettings:
    """The settings in which an experiment's functions are traced.

    - `ambient`: whether the caller has set the mesh. `final`: the exceptions that no other setting would avoid.
    - `within`: whether a function was traced within `jax.set_mesh`, since JAX accepts it only there.
    - `refused`: what JAX raised on Auto axes for a function that it accepts on Explicit ones.
    """

    experiment: Experiment
    ambient: bool
    final: tuple[type[Exception], ...]
    within: bool = False
    refused: BaseException | None = None
    meshes: dict[bool, Any] = field(default_factory=dict[bool, Any])
    """JAX's mesh of the experiment, with its Explicit axes or with all of them Auto."""

    def accepted(
        self, trace: Callable[[Setting], _Result], *, reference: bool = False, every: bool = False
    ) -> tuple[_Result, Setting]:
        """Trace a function as the programs call it; return the result and the first setting in which JAX accepts it.

        A reference is called by no program, and traced without types if JAX accepts that. Raises what JAX raises in
        the first setting if it accepts none; with `every` also if it refuses the function on the axes of one program.
        """
        refused: dict[bool, BaseException] = {}
        accepted: dict[bool, tuple[_Result, Setting]] = {}
        programs = self.experiment.programs
        for how, wanting in of_reference(programs) if reference else settings(programs, self.ambient):
            if how.explicit in accepted or (wanting and not wants_mesh(refused[how.explicit])):
                continue
            try:
                accepted[how.explicit] = trace(how), how
            except self.final:
                raise
            except Exception as error:
                refused[how.explicit] = error
                continue
            if not every:
                break
        missing = [refused[kind] for kind in refused if kind not in accepted]
        if not reference:
            self.within |= any(setting.within for _, setting in accepted.values())
            self.refused = missing[0] if missing and True in accepted else self.refused
        if not accepted or (every and missing):
            raise missing[0]
        return next(iter(accepted.values()))

    def context(self, how: Setting) -> AbstractContextManager[Any]:
        """The context in which a function is called."""
        return within(self.mesh(how.explicit)) if how.within else contextlib.nullcontext()

    def typed(self, structs: Mapping[str, Any], layouts: Mapping[str, Spec], how: Setting) -> dict[str, Any]:
        """The types of operands: with their layouts, if the axes are Explicit.

        On Auto axes in place of the caller's Explicit ones they have the mesh too: JAX refuses there what needs types.
        """
        if not how.explicit and not self.experiment.mesh.explicit:
            return {**structs}
        on = self.mesh(how.explicit)
        return {
            name: typed(struct, on, layouts[name]) if name in layouts else struct for name, struct in structs.items()
        }

    def mesh(self, explicit: bool) -> Any:
        """JAX's mesh of the experiment."""
        if explicit not in self.meshes:
            self.meshes[explicit] = mesh(self.experiment, explicit=explicit)
        return self.meshes[explicit]
