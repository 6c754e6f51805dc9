"""Runs programs once more beside the run: as twins in float64, with all their values, or unsharded on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.base.faults import InvalidExperiment
from runner.base.layout import Layout
from runner.base.lazy import dataclass
from runner.experiment.data import Arrays
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.link import scratch
from runner.link.events import Died, Finished, GradientFile, Invalid, Parted, Ran, Ranges, Types
from runner.link.jobs import job, kind
from runner.link.steps import Step, StepWork
from runner.link.target import BlockRanges, ProgramRun, program_run, read_gradients
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
        steps = [Step(program, StepWork.TWIN) for program in programs]
        with scratch.Folder() as own:
            finished, left = self._finished(asked, steps, self.folder, own.path, wide_gradient=gradient)
            runs = {
                program: _run(event, shapes, lambda name, at: layouts[name].ranges(at), own.path)
                for program, event in finished.items()
            }
            return runs, {} if left is None else read_gradients(asked, left, own.path)[0]

    def parted(self, programs: Sequence[Program]) -> Mapping[Program, Parted | str]:
        """Measure the equations of some programs beside float64; a text says why that failed."""
        steps = [Step(program, StepWork.PARTING) for program in programs]
        with scratch.Folder() as own:
            finished, _ = self._finished(self._asked(programs), steps, own.path, own.path)
        return {
            program: event.result if isinstance(event.result, Parted) else _why_not(event)
            for program, event in finished.items()
        }

    def unsharded(self, shapes: Mapping[str, tuple[int, ...]]) -> ProgramRun:
        """Run the graph in its own dtypes on one device, unsharded; the run may have an `error`.

        `shapes` are those of the outputs.
        """
        ones = dict.fromkeys(self.experiment.mesh.axes, 1)
        try:
            asked = self._asked([Program.AUTO], mesh=ones, per_device={})
        except InvalidExperiment as error:
            return ProgramRun(Program.AUTO, error=error.fault.message)
        if (asked.written or asked).regions:
            return ProgramRun(Program.AUTO, error="the functions have a shard_map of their own")
        with scratch.Folder() as own:
            finished, _ = self._finished(asked, [Step(Program.AUTO)], own.path, own.path)
            return _run(finished[Program.AUTO], shapes, lambda name, _: _whole(shapes[name]), own.path)

    def _asked(self, programs: Sequence[Program], **keys: Any) -> Experiment:
        return self.experiment.at(
            target={**self.experiment.definition["target"], **HERE}, program=[*map(str, programs)], expect={},
            profile=False, trace=False, **keys,
        )  # fmt: skip

    def _finished(
        self, asked: Experiment, steps: Sequence[Step], folder: Path, left_here: Path, **more: Any
    ) -> tuple[Mapping[Program, Finished], GradientFile | None]:
        """How each step ended, by its program, and the gradients, where the worker leaves some."""
        # The judgement that waits for them has a time limit of its own, which ends the run.
        limit = asked.timeout / (1 + len(steps))
        task = {**job(asked, folder, self.data_folder, str(left_here), steps), **more}
        finished: dict[Program, Finished] = {}
        gradient, ended = None, "the worker ended"
        for event in self.workers.aside(kind(asked)).submit(task, kind(asked), limit):
            match event:
                case Types():
                    gradient = event.gradient
                case Finished():
                    finished[event.step.program] = event
                case Invalid():
                    ended = event.fault.message
                case Died():
                    ended = event.error
                case _:
                    continue
        finished |= {step.program: Finished(step=step, error=ended) for step in steps if step.program not in finished}
        return finished, gradient


def _whole(shape: Sequence[int]) -> Ranges:
    return tuple((0, size) for size in shape)


def _run(
    finished: Finished, shapes: Mapping[str, tuple[int, ...]], block_ranges: BlockRanges, left_here: Path
) -> ProgramRun:
    program = finished.step.program
    if not isinstance(finished.result, Ran):
        return ProgramRun(program, error=_why_not(finished))
    return program_run(program, finished.result, shapes, block_ranges, left_here)


def _why_not(finished: Finished) -> str:
    return finished.error or finished.unsupported or "it gave no result"
