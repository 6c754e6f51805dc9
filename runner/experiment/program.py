"""The programs: the ways to compile an experiment, and what everyone has to know of each. Names in; programs out."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from runner.graph.source import Section
    from runner.layout import Mesh


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a program is for those who write, run, check or show it.

    - `section`: what it is written from.
    - `whole`: whether its lines are of whole arrays, whose layouts the compiler chooses; otherwise they are of one
      device, and where they are written from `graph` they are derived.
    - `on_mesh`: whether its arrays lie on the mesh; otherwise one device has the work of all.
    - `places`: whether its outputs lie as the experiment promises; otherwise the compiler chooses.
    - `typed`: whether shardings are part of JAX's types (`AxisType.Explicit`), which may refuse an operation.
    """

    section: Section
    whole: bool
    on_mesh: bool = True
    places: bool = True
    typed: bool = False


class Program(StrEnum):
    """One way to compile an experiment; it is its name wherever one is written.

    A program is an entry here and a writer, `runner/programs/NAME.py`; they run, and are shown, in this order.
    """

    AUTO = "auto", Traits(section="graph", whole=True, places=False)
    CONSTRAINT = "constraint", Traits(section="graph", whole=True)
    EXPLICIT = "explicit", Traits(section="graph", whole=True, typed=True)
    DERIVED = "derived", Traits(section="graph", whole=False)
    SHARD_MAP = "shard_map", Traits(section="per_device", whole=False)
    VMAP = "vmap", Traits(section="per_device", whole=False, on_mesh=False)

    section: Section
    whole: bool
    on_mesh: bool
    places: bool
    typed: bool

    def __new__(cls, name: str, traits: Traits) -> Program:
        program = str.__new__(cls, name)
        program._value_ = name
        for trait in fields(traits):
            setattr(program, trait.name, getattr(traits, trait.name))
        return program

    @property
    def lines(self) -> Section:
        """The section of which its own lines are: those that are derived from `graph` are `per_device`'s."""
        return self.section if self.whole else "per_device"

    def axis_types(self, mesh: Mesh) -> tuple[Literal["Auto", "Explicit"], ...]:
        """The `AxisType` of each axis of its mesh."""
        return tuple("Explicit" if self.typed and axis in mesh.explicit else "Auto" for axis in mesh.axes)
