"""The steps of a job: the worker does one after the other, and reports on each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from runner.base.lazy import dataclass
from runner.experiment.program import Program


class StepWork(StrEnum):
    """What a step does with its program."""

    RUN = "run"
    TRACE = "trace"
    PROFILE = "profile"
    TWIN = "twin"
    PARTING = "parting"


class Spare(StrEnum):
    """The parts of a job that it can do without: passes of Shardy, which crash on a few programs."""

    PLAN = "plan"
    ORIGINS = "origins"


@dataclass(frozen=True)
class Step:
    """A program is compiled and run; or its trace, its profile or its twin in float64 is taken.

    `parting` measures each of its equations beside float64.
    """

    program: Program
    work: StepWork = StepWork.RUN

    def __str__(self) -> str:
        return self.program if self.work is StepWork.RUN else f"{self.program}, its {self.work}"

    @classmethod
    def from_json(cls, plain: Mapping[str, str]) -> Step:
        """The step that `to_json` returned."""
        return cls(Program(plain["program"]), StepWork(plain["work"]))

    def to_json(self) -> dict[str, str]:
        """The step as plain data, for a job or an event."""
        return {"program": self.program.value, "work": self.work.value}

    def left_by(self, ended: Step) -> bool:
        """Whether it can be done after a step that ended its worker; other steps of the same program cannot."""
        return self.program != ended.program if ended.work is StepWork.RUN else self != ended

    def supported(self, unsupported: Collection[str]) -> bool:
        """Whether it can be done if JAX cannot express some programs; a trace is a program of its own."""
        return self.work is StepWork.TRACE or self.program not in unsupported
