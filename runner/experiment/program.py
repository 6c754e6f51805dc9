"""The programs: the ways to compile an experiment, and the traits of each that other packages need."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from runner.graph.source import Section
    from runner.layout import Mesh


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The traits of a program.

    - `section`: the section that it is written from.
    - `whole`: whether its lines compute whole arrays, whose layouts the compiler chooses; otherwise they compute one
      device's shards, and are derived if they are written from `graph`.
    """

    section: Section
    whole: bool
    on_mesh: bool = True
    places: bool = True
    typed: bool = False


class Program(StrEnum):
    """A way to compile an experiment; the value is its name.

    A program is an entry here and a writer, `runner/programs/NAME.py`; programs run, and are shown, in this order.
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
        """The section of its lines: `per_device` for lines that are derived from `graph`."""
        return self.section if self.whole else "per_device"

    def axis_types(self, mesh: Mesh) -> tuple[Literal["Auto", "Explicit"], ...]:
        """The `AxisType` of each axis of its mesh."""
        return tuple("Explicit" if self.typed and axis in mesh.explicit else "Auto" for axis in mesh.axes)
