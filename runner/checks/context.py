"""What every check of a run reads: the experiment, the oracles, and what rounding does to their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import field

import numpy as np

from runner.base.layout import Layout, Spec, Typed
from runner.base.lazy import dataclass
from runner.checks.compare import Alternatives, Tolerance, tolerance
from runner.checks.reference import Gradients, Oracle, PerDevice, Rounding, UndecidedLine
from runner.checks.reference.arithmetic import Floats
from runner.checks.reference.decisions import Script
from runner.checks.reference.rounding import row_step
from runner.experiment.data import Arrays
from runner.experiment.expect import among
from runner.experiment.model import Experiment, Section
from runner.experiment.program import Program
from runner.reports.record.verdicts import DecidingLine

Ranges = tuple[tuple[int, int], ...]
"""A half-open index range for each dimension."""


def deciding(place: UndecidedLine, section: Section | None = None) -> DecidingLine:
    """The entry of a verdict for a line with decisions that rounding may change."""
    return DecidingLine(section=section, **vars(place))


@dataclass
class Context:
    """The oracles of one run.

    - `outputs`: each output's whole shape and dtype; `floats`: the dtypes of the expressions of each section.
    - `graph`, `per_device`: the values of each section, and their rounding.
    - `in_float64`: what float64's own rounding does to the outputs of each section, where there are two.
    - `uncast`: where a section casts floats, the outputs of each section with casts that do not round.
    """

    experiment: Experiment
    arrays: Arrays
    outputs: Mapping[str, Typed]
    floats: Mapping[str, Floats]
    graph: Oracle | None
    per_device: Oracle | None
    in_float64: Mapping[Section, Mapping[str, Rounding]] = field(default_factory=dict[Section, Mapping[str, Rounding]])
    in_float64_uncast: Mapping[Section, Mapping[str, Rounding]] = field(
        default_factory=dict[Section, Mapping[str, Rounding]]
    )
    """The same where no cast rounds; empty until it is needed."""
    uncast: Mapping[Section, Mapping[str, PerDevice]] = field(default_factory=dict[Section, Mapping[str, PerDevice]])
    released: Mapping[str, str] = field(default_factory=dict[str, str])
    """The outputs whose pinned values do not apply to this run, each with the reason."""
    jax: str = ""
    """The version of JAX that ran."""
    drawn: Sequence[Arrays] = ()
    """Where lines read gradients: the arrays, with gradients moved by their measured rounding errors."""
    known_as: Arrays | None = None
    """Where only one section reads gradients: the arrays, with gradients moved by float64's rounding."""
    gradients: Gradients = field(default_factory=Gradients)
    """The oracles of the gradients, whose values are also in the two sections."""
    without_rules: frozenset[str] = frozenset()
    """The outputs that depend on a rule of the user's own, which derived lines do not have."""
    proved: Set[tuple[Program, str]] = frozenset()
    """The outputs of programs that rounding does not decide and whose twins are right."""
    rounded: Set[Program] = frozenset()
    """The programs that are right in float64, and whose rounding alone makes values infinite or NaN."""
    failed: Set[tuple[Program, str]] = frozenset()
    """The outputs of programs whose `value` failed."""
    specs: Mapping[str, Spec] = field(init=False)
    """The layout that the experiment promises for each output, with or without an oracle."""

    def __post_init__(self) -> None:
        self.specs = self.experiment.outputs

    @property
    def unruled(self) -> frozenset[str]:
        """The outputs whose only oracle, differences of the lines, may lack a rule of the user's own."""
        return self.without_rules if self.graph is None else frozenset()

    def layout(self, name: str) -> Layout:
        """The layout that the experiment promises for an output."""
        return Layout(self.experiment.mesh, self.outputs[name][0], self.specs[name])

    def blocks(self, name: str) -> Layout:
        """The layout of an output within `per_device` and its oracle."""
        return self.experiment.block(self.layout(name))

    def oracle(self, section: Section) -> Oracle:
        """The oracle of a section."""
        oracle = self.graph if section == "graph" else self.per_device
        assert oracle is not None
        return oracle

    def bounded(self, section: Section) -> Script:
        """A script of an interpretation that may not end: its whiles take a few more steps than those of a section."""
        return Script(self.oracle(section).recorded)

    def knows(self, program: Program, name: str) -> Section | None:
        """The section whose oracle a program's output is compared with: the one that the program is written from.

        A gradient without an oracle in that section is compared with the other's. None where neither has one, or where
        the program's lines are to compute something else.
        """
        own = program.section
        if program is Program.DERIVED and name in self.without_rules:
            return None
        sections: tuple[Section, ...] = (own, "graph") if own == "per_device" else (own,)
        for section in sections:
            oracle = self.graph if section == "graph" else self.per_device
            if oracle is not None and name in oracle.values:
                return section
        return None

    def known_wrong(self, program: Program) -> frozenset[str]:
        """The outputs of a program that `expect.wrong` declares wrong for this version of JAX."""
        known = self.experiment.wrong.get(program, {})
        return frozenset(name for name, versions in known.items() if among(self.jax, versions))

    def rounding(self, section: Section, name: str) -> Rounding:
        """What rounding does to an output of a section."""
        return self.oracle(section).rounding[name]

    def tolerance(self, section: Section, name: str) -> Tolerance:
        """The tolerance of an output of a program that is written from a section."""
        return tolerance(self.outputs[name][1], self.rounding(section, name))

    def expected(self, section: Section, name: str, position: int, ranges: Ranges) -> np.ndarray:
        """The value that a section's oracle has in `ranges` on the device at `position`."""
        return self.part(section, name, self.oracle(section).values[name], position, ranges)

    def beside(self, section: Section, name: str, position: int, ranges: Ranges) -> Alternatives | None:
        """The other values that are right there; None if there are none."""
        return Alternatives.of(
            self.rounding(section, name), lambda value: self.part(section, name, value, position, ranges)
        )

    def assembled(self, section: Section, name: str, value: PerDevice) -> np.ndarray:
        """An output of a section as one array."""
        return self.blocks(name).assembled(value) if section == "per_device" else np.asarray(value[0])

    def whole(self, section: Section, name: str, value: PerDevice) -> np.ndarray:
        """An output of a section as one array, or only the rows that enter its moments."""
        step = row_step(self.outputs[name][0])
        if section == "per_device":
            return self.blocks(name).assembled(value, step)
        return np.asarray(value[0])[::step] if step > 1 else np.asarray(value[0])

    def part(self, section: Section, name: str, value: PerDevice, position: int, ranges: Ranges) -> np.ndarray:
        """The part in `ranges` of a value of a section, on the device at `position`."""
        if section == "graph":
            return np.asarray(value[0])[tuple(slice(start, stop) for start, stop in ranges)]
        if not self.experiment.automatic:
            return np.asarray(value[position])
        starts = [start for start, _ in self.blocks(name).ranges(position)]
        within = tuple(slice(start - first, stop - first) for (start, stop), first in zip(ranges, starts, strict=True))
        return np.asarray(value[position])[within]
