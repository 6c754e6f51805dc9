"""The programs, their writers, and the steps of a job that they form."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

from runner.experiment.program import Program
from runner.link.steps import Step, StepWork
from runner.programs.writers import MODULES

RUN, PROFILE, TRACE = (Step(Program.SHARD_MAP, work) for work in (StepWork.RUN, StepWork.PROFILE, StepWork.TRACE))
OTHER = Step(Program.VMAP)


@pytest.mark.parametrize("program", Program)
def test_a_program_is_its_name_and_has_a_writer_of_that_name(program: Program) -> None:
    assert json.loads(json.dumps({program: program})) == {program.value: program.value}
    assert f"{program}" == program.value
    assert callable(getattr(import_module(f"runner.programs.{MODULES[program]}"), program))


@pytest.mark.parametrize("work", StepWork)
@pytest.mark.parametrize("program", Program)
def test_a_step_is_the_same_after_the_wire(program: Program, work: StepWork) -> None:
    step = Step(program, work)
    assert Step.from_json(json.loads(json.dumps(step.to_json()))) == step


def test_the_end_of_a_program_ends_its_steps_and_that_of_a_step_no_others() -> None:
    steps = (RUN, PROFILE, TRACE, OTHER)
    assert [step for step in steps if step.left_by(RUN)] == [OTHER]
    assert [step for step in steps if step.left_by(PROFILE)] == [RUN, TRACE, OTHER]
    assert [step for step in steps if step.left_by(TRACE)] == [RUN, PROFILE, OTHER]


def test_a_program_that_jax_cannot_express_has_a_trace_at_most() -> None:
    assert [step for step in (RUN, PROFILE, TRACE, OTHER) if step.supported({"shard_map"})] == [TRACE, OTHER]
