"""The programs: the ways to compile an experiment, and the traits of each that other packages need."""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, TypeAlias

from runner.base.lazy import dataclass

if TYPE_CHECKING:
    from runner.base.layout import Mesh
    from runner.graph.source import Section


Placer: TypeAlias = Literal["compiler", "constraints", "types", "specs"]
"""Who decides the layouts of computed values; the compiler does for values without a constraint."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The traits of a program.

    - `section`: the section that it is written from.
    - `placed_by`: who decides the layouts of its values. With `specs` its lines compute one device's shards, and are
      derived if they are written from `graph`; otherwise they compute whole arrays.
    - `on_mesh`: whether it runs on the mesh.
    """

    section: Section
    placed_by: Placer
    on_mesh: bool = True


class Program(StrEnum):
    """A way to compile an experiment; the value is its name.

    A program is an entry here and a writer in `runner/programs/writers.py`; programs run, and are shown, in this order.
    """

    AUTO = "auto", Traits(section="graph", placed_by="compiler")
    CONSTRAINT = "constraint", Traits(section="graph", placed_by="constraints")
    EXPLICIT = "explicit", Traits(section="graph", placed_by="types")
    DERIVED = "derived", Traits(section="graph", placed_by="specs")
    SHARD_MAP = "shard_map", Traits(section="per_device", placed_by="specs")
    VMAP = "vmap", Traits(section="per_device", placed_by="specs", on_mesh=False)

    section: Section
    placed_by: Placer
    on_mesh: bool

    def __new__(cls, name: str, traits: Traits) -> Program:
        program = str.__new__(cls, name)
        program._value_ = name
        for trait in fields(traits):
            setattr(program, trait.name, getattr(traits, trait.name))
        return program

    @property
    def whole(self) -> bool:
        """Whether its lines compute whole arrays, not one device's shards."""
        return self.placed_by != "specs"

    @property
    def places(self) -> bool:
        """Whether it says the layouts of its outputs."""
        return self.placed_by != "compiler"

    @property
    def typed(self) -> bool:
        """Whether JAX's sharding types determine the layouts."""
        return self.placed_by == "types"

    @property
    def lines(self) -> Section:
        """The section of its lines: `per_device` for lines that are derived from `graph`."""
        return self.section if self.whole else "per_device"

    def axis_types(self, mesh: Mesh) -> tuple[Literal["Auto", "Explicit"], ...]:
        """The `AxisType` of each axis of its mesh."""
        return tuple("Explicit" if self.typed and axis in mesh.explicit else "Auto" for axis in mesh.axes)
