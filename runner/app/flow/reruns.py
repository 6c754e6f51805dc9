"""Runs programs once more beside the run: as twins in float64, with all their values, or unsharded on one device."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.base.faults import InvalidExperiment
from runner.base.layout import Layout
from runner.base.lazy import dataclass
from runner.experiment.data import Arrays
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.link import scratch
from runner.link.events import Died, Event, Finished, GradientFile, Invalid, Parted, Ran, Ranges, Types
from runner.link.order import job, kind
from runner.link.steps import Step, StepWork
from runner.link.target import ProgramRun, program_run, read_gradients
from runner.link.workers import Workers

HERE = {"platform": "cpu", "topology": None, "slices": 1, "processes": 1, "cluster": False}
"""The target of what runs again: simulated devices in one process."""


@dataclass(frozen=True)
class Reruns:
    """Runs the programs of an experiment again; twins leave their files in `folder`; `load` looks in `data_folder`."""

    experiment: Experiment
    workers: Workers
    folder: Path
    data_folder: Path

    def twins(
        self, programs: Sequence[Program], layouts: Mapping[str, Layout], *, gradient: bool
    ) -> tuple[Mapping[Program, ProgramRun], Arrays]:
        """Run the twins of some programs, whose outputs have these layouts; a run may have an `error` in their place.

        If asked for, it also returns the gradients of the unsharded graph as twins compute them, by the arrays' names;
        none if that failed.
        """
        asked = self._asked(programs)
        shapes = {name: layout.shape for name, layout in layouts.items()}
        runs: dict[Program, ProgramRun] = {}
        gradients: Arrays = {}
        ended = "the worker ended"
        with scratch.Folder() as own:
            steps = [Step(program, StepWork.TWIN) for program in programs]
            task = {**job(asked, self.folder, self.data_folder, str(own.path), steps), "wide_gradient": gradient}
            for event in self._events(asked, task):
                match event:
                    case Types(gradient=GradientFile() as left):
                        gradients = read_gradients(asked, left, own.path)[0]
                    case Finished(result=Ran() as ran):
                        program = event.step.program
                        runs[program] = program_run(
                            program, ran, shapes, lambda name, at: layouts[name].ranges(at), own.path
                        )
                    case Finished():
                        runs[event.step.program] = ProgramRun(event.step.program, error=_why_not(event))
                    case Invalid() | Died():
                        ended = _ended(event)
                    case _:
                        continue
        return {program: runs.get(program) or ProgramRun(program, error=ended) for program in programs}, gradients

    def parted(self, programs: Sequence[Program]) -> Mapping[Program, Parted | str]:
        """Measure the equations of some programs beside float64; a text says why that failed."""
        asked = self._asked(programs)
        parted: dict[Program, Parted | str] = {}
        ended = "the worker ended"
        with scratch.Folder() as own:
            steps = [Step(program, StepWork.PARTING) for program in programs]
            for event in self._events(asked, job(asked, own.path, self.data_folder, str(own.path), steps)):
                match event:
                    case Finished(result=Parted() as result):
                        parted[event.step.program] = result
                    case Finished():
                        parted[event.step.program] = _why_not(event)
                    case Invalid() | Died():
                        ended = _ended(event)
                    case _:
                        continue
        return {program: parted.get(program, ended) for program in programs}

    def unsharded(self, shapes: Mapping[str, tuple[int, ...]]) -> ProgramRun | str:
        """Run the graph in its own dtypes on one device, unsharded; a text says why that failed.

        `shapes` are those of the outputs.
        """
        try:
            ones = dict.fromkeys(self.experiment.mesh.axes, 1)
            asked = self.experiment.at(
                mesh=ones, target=self._target, program=[str(Program.AUTO)], per_device={}, expect={}, profile=False,
                trace=False,
            )  # fmt: skip
        except InvalidExperiment as error:
            return error.fault.message
        if (asked.written or asked).regions:
            return "the functions have a shard_map of their own"
        result: ProgramRun | str = "the worker ended"
        with scratch.Folder() as own:
            task = job(asked, own.path, self.data_folder, str(own.path), [Step(Program.AUTO)])
            for event in self._events(asked, task):
                match event:
                    case Finished(result=Ran() as ran):
                        result = program_run(Program.AUTO, ran, shapes, lambda name, _: _whole(shapes[name]), own.path)
                    case Finished():
                        result = _why_not(event)
                    case Invalid() | Died():
                        result = _ended(event)
                    case _:
                        continue
        return result

    @property
    def _target(self) -> dict[str, Any]:
        return {**self.experiment.definition["target"], **HERE}

    def _asked(self, programs: Sequence[Program]) -> Experiment:
        return self.experiment.at(
            target=self._target, program=[*map(str, programs)], expect={}, profile=False, trace=False
        )

    def _events(self, asked: Experiment, task: Mapping[str, Any]) -> Generator[Event, None, None]:
        # The judgement that waits for them has a time limit of its own, which ends the run.
        limit = asked.timeout / (1 + len(task["steps"]))
        yield from self.workers.aside(kind(asked)).submit(dict(task), kind(asked), limit)


def _whole(shape: Sequence[int]) -> Ranges:
    return tuple((0, size) for size in shape)


def _why_not(finished: Finished) -> str:
    return finished.error or finished.unsupported or "it gave no result"


def _ended(event: Invalid | Died) -> str:
    return event.fault.message if isinstance(event, Invalid) else event.error
