"""Compares the sections of an experiment that is only compiled, or says why they were not compared.

`sections` needs no program and no device. If the experiment is verified, it is a check of that run; otherwise both
sections are interpreted here, at `verify_dims` or at the file's own sizes, where memory and time allow.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from runner.app.flow import clock, verification
from runner.base.faults import InvalidExperiment
from runner.base.words import bytes_text, long_text
from runner.experiment import data, effort, memory
from runner.experiment.model import Experiment
from runner.link import scratch
from runner.link.events import Types
from runner.link.target import GradientArrays, types_and_gradients_of
from runner.link.workers import Workers
from runner.reports.record.model import Record
from runner.reports.record.verdicts import NotRun, SectionsVerdict

if TYPE_CHECKING:
    from runner.experiment.config.sources import Sources

SECONDS = 60.0
"""The longest estimated interpretation, in seconds, where no run was asked for."""


def hold(
    experiment: Experiment,
    record: Record,
    sources: Sources,
    workers: Workers,
    part: Callable[[str], AbstractContextManager[None]],
) -> SectionsVerdict | NotRun:
    """The `sections` verdict of an experiment that is not run; `record` has its compiled programs.

    Raises `InvalidExperiment` for values that do not fit the collective that a line calls.
    """
    from runner.checks.kinds import sections

    if (reason := sections.lacking(experiment)) is not None:
        return NotRun(reason=reason)
    dims = dict(experiment.verify_dims)
    try:
        smaller = experiment.at(dims=dims, **verification.only_results(experiment))
        held = _held(smaller, record if not dims else None, sources, workers, part)
    except InvalidExperiment as error:
        raise verification.located(error, experiment) if dims else error from None
    return replace(held, dims=dims) if dims and isinstance(held, SectionsVerdict) else held


def _held(
    experiment: Experiment,
    compiled: Record | None,
    sources: Sources,
    workers: Workers,
    part: Callable[[str], AbstractContextManager[None]],
) -> SectionsVerdict | NotRun:
    """Compare the sections of an experiment; `compiled` are its programs at these sizes, if there are any."""
    try:
        memory.check(experiment)
        types, _ = _types(experiment, workers, sources, gradient=False)
        memory.check_values(experiment, types.nodes)
    except InvalidExperiment as error:
        return NotRun(reason=error.fault.message)
    if (reason := _too_much(effort.effort(experiment, types.nodes, _flops(compiled)))) is not None:
        return NotRun(reason=reason)
    try:
        with part("comparing graph and per_device"):
            return _compared(experiment, types, sources, workers)
    except (clock.TimedOut, MemoryError) as error:
        reason = str(error) if isinstance(error, clock.TimedOut) else "the system had no more memory to give"
        return NotRun(reason=f"{reason}; verify_dims names smaller sizes")


def _flops(compiled: Record | None) -> float:
    """The most operations that a compiled program computes on one device; None if unknown."""
    if compiled is None or compiled.mesh is None:
        return 0.0
    costs = [program.cost.total_flops for program in compiled.compiled.values() if program.cost is not None]
    return max([cost for cost in costs if cost is not None], default=0.0)


def _too_much(needed: effort.Effort) -> str | None:
    """Why the sections are not interpreted, if that would take too much time or memory."""
    what = "interpreting graph and per_device takes about"
    if needed.seconds > SECONDS:
        return f"{what} {long_text(needed.seconds)}; verify_dims names smaller sizes"
    free = memory.available()
    if free is not None and needed.bytes > free:
        needs = f"{what} {bytes_text(needed.bytes)} of memory, and {bytes_text(free)} are free"
        return f"{needs}; verify_dims names smaller sizes"
    return None


def _types(
    experiment: Experiment, workers: Workers, sources: Sources, *, gradient: bool
) -> tuple[Types, GradientArrays | None]:
    """The types, and the gradients of the unsharded graph if they are needed."""
    with scratch.Folder() as own:
        folder = data.folder(experiment, sources)
        return types_and_gradients_of(workers, experiment, own.path, folder, gradient=gradient, at_once=True)


def _compared(experiment: Experiment, types: Types, sources: Sources, workers: Workers) -> SectionsVerdict:
    from runner.checks import oracles
    from runner.checks.diagnosis import search
    from runner.checks.kinds import sections

    arrays = data.make(experiment, data.folder(experiment, sources))
    gradients = None
    if experiment.grad:
        types, gradients = _types(experiment, workers, sources, gradient=True)
    context = oracles.consult(experiment, arrays, types.outputs, types.floats)
    if gradients is not None:
        oracles.consult_gradients(context, *gradients)
    verdict = sections.check(context)
    return replace(verdict, diagnosis=search.diagnose(context)) if verdict.status == "failed" else verdict
