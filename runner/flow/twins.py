"""Runs, for verdicts that rounding does not decide, the twins of programs: the same programs in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from runner.experiment.data import Arrays
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.layout import Layout
from runner.link import scratch
from runner.link.events import Died, Finished, GradientFile, Invalid, Ran, Types
from runner.link.order import job, kind
from runner.link.steps import Step, StepWork
from runner.link.target import ProgramRun, program_run, read_gradients
from runner.link.workers import Workers

Twins: TypeAlias = Callable[
    [Sequence[Program], Mapping[str, Layout], bool], tuple[Mapping[Program, ProgramRun], Arrays]
]
"""Runs the twins of some programs, whose outputs have these layouts; a run may have an `error` in place of outputs.

If asked for, it also returns the gradients of the unsharded graph as twins compute them, by the arrays' names; none if
that failed.
"""

HERE = {"platform": "cpu", "topology": None, "slices": 1, "processes": 1, "cluster": False}
"""The target of a twin: simulated devices in one process."""


def asker(experiment: Experiment, workers: Workers, folder: Path, data_folder: Path) -> Twins:
    """A function that runs twins, whose files are left in `folder`; `load` looks in `data_folder`."""

    def run(
        programs: Sequence[Program], layouts: Mapping[str, Layout], gradient: bool
    ) -> tuple[Mapping[Program, ProgramRun], Arrays]:
        target = {**experiment.definition["target"], **HERE}
        asked = experiment.at(target=target, program=[*map(str, programs)], expect={}, profile=False, trace=False)
        shapes = {name: layout.shape for name, layout in layouts.items()}
        runs: dict[Program, ProgramRun] = {}
        gradients: Arrays = {}
        ended = "the worker ended"
        with scratch.Folder() as own:
            steps = [Step(program, StepWork.TWIN) for program in programs]
            task = {**job(asked, folder, data_folder, str(own.path), steps), "wide_gradient": gradient}
            # The judgement that waits for them has a time limit of its own, which ends the run.
            limit = asked.timeout / (1 + len(programs))
            for event in workers.aside(kind(asked)).submit(task, kind(asked), limit):
                match event:
                    case Types(gradient=GradientFile() as left):
                        gradients = read_gradients(asked, left, own.path)[0]
                    case Finished(result=Ran() as ran):
                        program = event.step.program
                        runs[program] = program_run(
                            program, ran, shapes, lambda name, at: layouts[name].ranges(at), own.path
                        )
                    case Finished():
                        runs[event.step.program] = ProgramRun(
                            event.step.program, error=event.error or event.unsupported
                        )
                    case Invalid():
                        ended = event.fault.message
                    case Died():
                        ended = event.error
                    case _:
                        continue
        return {program: runs.get(program) or ProgramRun(program, error=ended) for program in programs}, gradients

    return run
