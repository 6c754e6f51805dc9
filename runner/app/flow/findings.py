"""Takes the worker's results; adds oracles, verdicts, warnings and the rest to the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runner.app.flow.dimensions import Fitting
from runner.app.flow.drawing import draw
from runner.app.flow.recording import lines, output_of, shards
from runner.base import dtypes, executions
from runner.base.executions import Count, Range
from runner.base.faults import invalid
from runner.base.layout import Layout
from runner.checks import blame, known, oracles, parting, registry, twins, unseen
from runner.checks.context import Context
from runner.checks.kind import Case, Needs
from runner.checks.kinds import pinned, sections
from runner.checks.reference.arithmetic import Floats
from runner.compiled.estimate.model import Estimate
from runner.compiled.evidence.gather import gather
from runner.compiled.evidence.model import Collective, Evidence, Gathered
from runner.compiled.why.reasons import explained
from runner.experiment import extent, memory, value_names
from runner.experiment.data import Arrays
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.experiment.value_names import NamedCode
from runner.graph.sharding import ring
from runner.graph.source import SECTIONS
from runner.link.events import Devices, Finished, Parted, Profiled, Ran, Traced, Types
from runner.link.steps import Step, StepWork
from runner.link.target import ProgramRun, program_run, read_gradients, traced_values
from runner.programs.derivation.section import with_lines
from runner.reports.record import record as records
from runner.reports.record.model import ArrayRecord, CompiledProgram, MeshShape, ProgramRecord, Record, Status, Trace
from runner.reports.record.verdicts import Checks, FileChecks, NotRun, SectionsVerdict, ValueVerdict, Verdict

if TYPE_CHECKING:
    from runner.app.flow.reruns import Reruns
    from runner.checks.diagnosis.search import Refused
    from runner.compiled.evidence import planes
    from runner.compiled.evidence.narrow import NarrowFloats


class Findings:
    """Collects the results of one run into the record, in the order in which the worker sends them.

    Without `arrays` the programs are compiled for a topology that is not here.
    """

    def __init__(
        self,
        experiment: Experiment,
        arrays: Arrays | None,
        record: Record,
        refused: Refused | None = None,
        reruns: Reruns | None = None,
    ) -> None:
        self._refused = refused
        self._reruns = reruns
        self._unsharded: ProgramRun | None = None
        self._experiment = experiment
        self._arrays = arrays
        self._record = record
        self._context: Context | None = None
        self._derived: Experiment | None = None
        self._runs: list[ProgramRun] = []
        self._of_functions: list[str] | None = None
        self._verdicts: dict[Program, Checks] = {}
        self._profiles: dict[Program, planes.Profile] = {}
        traced = experiment.traced
        self._traced = Finished(step=Step(traced, StepWork.TRACE), error=f"program {traced} did not run")
        self._held: dict[str, np.ndarray] | None = None
        """The devices' parts of each traced value."""
        _describe(experiment, arrays, record)

    @property
    def runs(self) -> Sequence[ProgramRun]:
        """The run of each program, in the order in which they ended; the record has only small values."""
        return self._runs

    def consult_oracles(self, types: Types, left_here: Path) -> None:
        """Interpret both sections, once the types are known; the worker compiles meanwhile.

        The worker leaves the values that it computes for the oracles in the folder `left_here`.

        Raises `InvalidExperiment` for pinned values that do not fit into their output.
        """
        record = self._record
        record.target = types.target
        record.environment.jax, record.environment.jaxlib = types.jax, types.jaxlib
        for program, reason in types.unsupported.items():
            self._leave_out(program, reason)
        if self._arrays is not None:
            memory.check_values(self._experiment, types.nodes)
        if types.derived is not None and types.derivation is not None:
            bare, check_vma = self._experiment.alone("graph"), types.derivation.check_vma
            self._derived = with_lines(bare, types.derived.lines, check_vma=check_vma)
            record.derivation = types.derivation
        record.lines = lines(self._experiment, self._derived, types)
        released = pinned.released(self._experiment.values, record.overrides)
        self._context = oracles.consult(self._experiment, self._arrays, types.outputs, types.floats, released)
        self._context.jax = types.jax
        pinned.fit(self._context)
        record.warnings += [*extent.unread(self._experiment), *types.advice]
        for section in SECTIONS:
            record.warnings += extent.warnings(self._experiment.computed(section), section)
        if self._arrays is None:
            return
        if types.gradient is not None:
            oracles.consult_gradients(self._context, *read_gradients(self._experiment, types.gradient, left_here))
        record.warnings += oracles.doubts(self._context)

    def add(self, finished: Finished, arrays: Path) -> None:
        """Add the result of one program, and check it on its own; its outputs are in `arrays`."""
        context, step = self._context, finished.step
        assert context is not None
        if step.work is StepWork.TRACE:
            self._traced = finished
        match finished.result:
            case Traced() as traced:
                self._held = traced_values(traced, arrays)
            case Profiled() as left:
                # Few runs are profiled.
                from runner.compiled.evidence import planes

                self._profiles[step.program] = planes.collect(left, arrays)
            case Ran() as ran:
                layouts: dict[str, Layout] = {name: context.layout(name) for name in context.outputs}
                shapes = {name: shape for name, (shape, _) in context.outputs.items()}
                run = program_run(step.program, ran, shapes, lambda name, at: layouts[name].ranges(at), arrays)
                self._runs.append(run)
                self._verdicts[run.program] = _checked(Case(context=context, run=run), Needs.LAYOUTS, Needs.VALUES)
            case None if step.work is StepWork.PROFILE:
                self._profiles[step.program] = finished.error or ""
            case None if step.work is StepWork.RUN and finished.unsupported is not None:
                self._leave_out(step.program, finished.unsupported)
            case None if step.work is StepWork.RUN:
                self._runs.append(ProgramRun(step.program, error=finished.error))
            case Parted() | None:
                pass

    def _leave_out(self, program: str, reason: str) -> None:
        """Record that JAX cannot express a program. Raises `InvalidExperiment` if the user asked for it by name."""
        reason = f"{reason} (JAX {self._record.environment.jax})"
        if self._experiment.chosen:
            raise invalid(("program",), f"JAX cannot express program '{program}': {reason}")
        self._record.not_supported[program] = reason
        self._record.warnings.append(f"program {program} is left out: {reason}")

    def conclude(self, folder: Path, fitting: Fitting) -> None:
        """Compare the programs with each other, report failures, and draw the pictures into the run folder.

        `fitting` has the names that may be those of the outputs' dimensions.
        """
        if self._context is not None:
            if self._experiment.trace and self._arrays is not None:
                self._record.trace = self._trace(self._context)
            self._tell_operands()
            self._judge(self._context, folder)
            draw(self._context, self._runs, folder, self._record, fitting)

    def _trace(self, context: Context) -> Trace:
        from runner.checks import trace

        program, finished = self._experiment.traced, self._traced
        run = next((run for run in self._runs if run.program is program), None)
        reason = finished.unsupported or finished.error
        if reason and not self._experiment.on_mesh:
            reason = f"program {program} was not selected"
        event = finished.result if isinstance(finished.result, Traced) else None
        in_order = range(self._experiment.mesh.size) if event is None else event.device_ids
        process_of = {} if event is None else event.process_of
        taken = trace.take(context, program, self._named(context), self._held, reason, list(in_order), run, process_of)
        # That a program is left out has a warning of its own, with the reason.
        if taken.taken_from is None and program not in self._record.not_supported:
            self._record.warnings.append(f"there is no trace: {taken.reason}")
        return taken

    def _named(self, context: Context) -> NamedCode | None:
        """The code that a trace shows, as far as it has an oracle; None without derived lines."""
        if self._experiment.traced is Program.AUTO:
            return value_names.inside(context.experiment.written or context.experiment)
        if self._experiment.traced is not Program.DERIVED:
            return value_names.named(context.experiment.alone("per_device"))
        if self._derived is None:
            return None
        return value_names.named(self._derived if context.experiment.reads_gradients else self._derived.forward)

    def _tell_operands(self) -> None:
        """Replace the specs of the arrays by the devices' actual parts, where a program ran on the mesh."""
        arrays = self._record.arrays
        for run in [run for run in self._runs if run.event and run.event.operands][:1]:
            for name, held in run.ran.operands.items():
                listed = shards(held, run.ran.device_ids, run.ran.process_of)
                arrays[name] = replace(arrays[name], shards_from=run.program, shards=listed)

    def _judge(self, context: Context, folder: Path) -> None:
        record = self._record
        ran = [run for run in self._runs if run.error is None]
        held = self._hold_sections(context, ran)
        record.checks = FileChecks(sections=held)
        alike = held.status != "failed"
        of_interpreter = blame.INTERPRETER in held.diagnosis
        values = {
            program: checks.value
            for program, checks in self._verdicts.items()
            if isinstance(checks.value, ValueVerdict)
        }
        values = blame.unblamed(context, self._decided(context, values, ran), ran, alike=alike)
        context.failed = {
            (program, name)
            for program, verdict in values.items()
            for name, output in verdict.compared.items()
            if output.status == "failed"
        }
        for run in self._runs:
            if run.error is not None:
                record.programs[run.program] = ProgramRecord(status="error", error=run.error, checks=Checks())
                continue
            checks = self._verdicts[run.program]
            checks = checks.but(value=values.get(run.program, checks.value))
            peers = [peer for peer in ran if peer is not run]
            case = Case(context=context, run=run, others=peers, alike=alike, derived=self._lines())
            checks = _checked(case, Needs.OTHERS, Needs.LINES, already=checks)
            if isinstance(checks.value, ValueVerdict) and checks.value.status == "failed":
                blamed = of_interpreter and run.program.section == "per_device"
                who = blame.INTERPRETER if blamed else self._blame(context, values, run.program, alike=alike)
                of_functions = self._of_written(context, run)
                others = [*checks.value.diagnosis, *self._differs(run.program)]
                verdict = replace(checks.value, diagnosis=of_functions or [who, *others])
                checks = checks.but(value=verdict)
            checks = known.judge(context, run.program, checks)
            record.programs[run.program] = self._compiled(context, run, checks, folder)
        if held.status == "failed":
            for name, result in record.programs.items():
                # It computes what its section says, which is not what the graph says.
                if Program(name).section == "per_device":
                    record.programs[name] = replace(result, status=records.worst([result.status, "failed"]))
        record.warnings += unseen.warnings(context, record.programs)
        self._warn_of_state(folder)
        traced = record.programs.get(self._experiment.traced)
        if traced is None or (traced.checks.value and traced.checks.value.status == "passed"):
            record.warnings += self._differs(self._experiment.traced)
        parts: list[Status] = [program.status for program in record.programs.values()]
        record.status = records.worst([record.status, records.of_checks(record.checks), *parts])

    def _warn_of_state(self, folder: Path) -> None:
        """Warn of donated memory that is not used, and of a step's state that comes out laid out otherwise."""
        imports = self._experiment.imports
        if not imports.donated and not imports.state:
            return
        # Few runs are of a step.
        from runner.checks import step_state

        for name, compiled in self._record.compiled.items():
            program = Program(name)
            if not program.on_mesh or not program.whole:
                continue
            specs = {output: described.spec for output, described in compiled.outputs.items()}
            if "state_layout" not in self._experiment.expected[program].named:
                self._record.warnings += step_state.kept(self._experiment, program, specs)
            if imports.donated:
                module = (folder / f"hlo_{program}.txt").read_text(encoding="utf-8")
                self._record.warnings += filter(None, [step_state.unused(self._experiment, program, module, specs)])

    def _decided(
        self, context: Context, values: Mapping[Program, ValueVerdict], ran: Sequence[ProgramRun]
    ) -> dict[Program, ValueVerdict]:
        """The `value` verdicts, those that rounding does not decide as the programs' twins in float64 decide them."""
        verify = self._experiment.verify
        wanted = [program for program, verdict in values.items() if verify == "twin" or twins.doubtful(verdict)]
        if not wanted or verify == "rounding" or self._reruns is None:
            return dict(values)
        layouts = {name: context.layout(name) for name in context.outputs}
        runs, gradients = self._reruns.twins(wanted, layouts, gradient=twins.needs_gradients(context))
        decided = twins.Decided(context, gradients)
        of = {run.program: run for run in ran}
        judged = {
            program: decided.decide(of[program], verdict, runs[program]) if program in runs else verdict
            for program, verdict in values.items()
        }
        self._record.warnings += twins.unrun(judged)
        judged = twins.annotated(judged) if verify == "twin" else judged
        alone = {program: verdict for program, verdict in judged.items() if parting.sought(verdict)}
        judged |= self._parted(context, alone)
        context.proved = twins.proved(judged)
        return judged

    def _parted(self, context: Context, values: Mapping[Program, ValueVerdict]) -> dict[Program, ValueVerdict]:
        """The `value` verdicts on programs that are wrong in their own dtypes alone, with the line where they part."""
        if not values or self._reruns is None:
            return {}
        measured = self._reruns.parted(list(values))
        judged: dict[Program, ValueVerdict] = {}
        for program, verdict in values.items():
            parted = measured[program]
            if not isinstance(parted, str) and (right := parting.proved(verdict, parted)) is not None:
                judged[program] = right
                continue
            if isinstance(parted, str):
                sentence, place = f"where program and twin part is not known: {parted}", None
            else:
                place = parting.first(self._written(program), program, parted)
                sentence = parting.sentence(place, parted)
                context.rounded |= {program} if parting.rounds(parted) else set()
            judged[program] = replace(verdict, parting=place, diagnosis=[*verdict.diagnosis, sentence])
        return judged

    def _blame(self, context: Context, values: Mapping[Program, ValueVerdict], program: Program, *, alike: bool) -> str:
        """Which side is wrong where the `value` check of a program failed, in words."""

        def agrees(names: Sequence[str]) -> bool | None:
            if self._reruns is None:
                return None
            if self._unsharded is None:
                self._unsharded = self._reruns.unsharded({name: shape for name, (shape, _) in context.outputs.items()})
            if self._unsharded.error is not None:
                return None
            return blame.agrees(context, self._unsharded, names)

        return blame.blame(context, values, program, alike=alike, unsharded=agrees)

    def _of_written(self, context: Context, run: ProgramRun) -> list[str]:
        """What is wrong with the user's functions that contain a `shard_map`, which their references do not."""
        if run.program.section != "graph" or context.experiment.written is None:
            return []
        if self._of_functions is None:
            # Only a check that failed is diagnosed.
            from runner.checks.diagnosis import search

            try:
                self._of_functions = search.diagnose_written(context, self._refused)
            except search.NotInterpreted as reason:
                self._of_functions = []
                self._record.warnings.append(
                    f"no line of the function was looked for: NumPy does not evaluate it as it was read ({reason})"
                )
        return self._of_functions

    def _differs(self, program: Program) -> list[str]:
        """The first value of the trace that differs from the SPMD interpreter's, if it is of the program's lines."""
        first = self._record.trace.first_difference if self._record.trace else None
        traced = self._experiment.traced
        of_program = (program.whole, program.section) == (traced.whole, traced.section)
        return [first.text] if first and of_program else []

    def _written(self, program: Program) -> Experiment:
        """The experiment that a program was written from: with the derived lines, if it was `derived`."""
        derived = self._derived if program is Program.DERIVED else None
        return derived or self._experiment.run_by(program)

    def _lines(self) -> tuple[Experiment, Floats] | None:
        """The experiment with the derived lines, and their dtypes; None if there are none."""
        if self._derived is None or self._context is None:
            return None
        return self._derived, self._context.floats.get(Program.DERIVED, {})

    def _compiled(self, context: Context, run: ProgramRun, checks: Checks, folder: Path) -> CompiledProgram:
        """The record of a program, with the evidence and what `expect` says of it."""
        profiled = self._profiles.get(run.program)
        written, ran = self._written(run.program), run.ran
        gathered = gather(
            written, run.program, folder, ran.stderr, ran.unreadable, profiled, ran.reshards, ran.device_ids,
            self._narrow(run),
        )  # fmt: skip
        evidence = gathered.evidence
        evidence = replace(evidence, collectives=self._explained(run, evidence.collectives))
        if evidence.profile is not None and not evidence.profile.devices:
            reason = "; ".join(evidence.profile.unknown)
            self._record.warnings.append(f"program {run.program} has no profile: {reason}")
        sent = _sent(evidence)
        compiled = CompiledProgram(
            status="passed",
            error=None,
            checks=checks,
            outputs={name: output_of(run, output) for name, output in run.outputs.items()},
            **vars(ran.compilation),
            **vars(evidence),
            estimate=self._estimate(run, gathered),
            bytes_sent=executions.most(sent),
            bytes_sent_min=sent.min if isinstance(sent, Range) else None,
        )
        checks = _checked(Case(context=context, run=run, compiled=compiled), Needs.EVIDENCE, already=checks)
        return replace(compiled, status=records.of_checks(checks), checks=checks)

    def _estimate(self, run: ProgramRun, gathered: Gathered) -> Estimate | None:
        """The least time of a run on the hardware that the experiment names, if any."""
        hardware = self._experiment.hardware
        if hardware is None or gathered.work is None:
            return None
        from runner.compiled.estimate import estimate

        ran, memory, evidence = run.ran, run.ran.compilation.memory, gathered.evidence
        return estimate.estimate(
            hardware,
            self._experiment.mesh,
            gathered.work,
            evidence.collectives,
            coordinates=None if ran.coordinates is None else [tuple(place) for place in ran.coordinates],
            needed_bytes=None if memory is None else memory.needed_bytes,
            compiled_for=estimate.compiled_for(self._experiment),
            notes=[*evidence.collectives_missing, *estimate.doubts(self._experiment)],
            narrow_lines=self._narrow(run),
        )

    def _narrow(self, run: ProgramRun) -> dict[str, NarrowFloats]:
        """The lines of a program whose floats have fewer bits in the file than in a module compiled for CPUs."""
        from runner.compiled.evidence.narrow import narrow

        target = self._experiment.target
        if self._experiment.hardware is None or self._context is None or target.platform != "cpu":
            return {}
        section = Program.DERIVED if run.program is Program.DERIVED else run.program.lines
        return narrow(self._written(run.program), run.program.lines, self._context.floats.get(section, {}))

    def _explained(self, run: ProgramRun, listed: list[Collective] | None) -> list[Collective] | None:
        """The collectives with their reasons; on one device there are none."""
        if not listed or not run.program.on_mesh:
            return listed
        derived = self._record.derivation if run.program is Program.DERIVED else None
        compiled = run.ran.compilation
        return explained(
            self._written(run.program), run.program, listed, compiled.plan, derived and derived.plan, compiled.lowered
        )

    def _hold_sections(self, context: Context, ran: list[ProgramRun]) -> SectionsVerdict | NotRun:
        """Compare the two oracles, and diagnose a difference."""
        if (reason := sections.lacking(context.experiment)) is not None:
            return NotRun(reason=reason)
        if self._arrays is None:
            # Until `flow.sections` or a verification compares them.
            absent = context.experiment.target.topology
            assert absent is not None
            return NotRun(reason=absent.not_here)
        verdict = sections.check(context)
        if verdict.status != "failed":
            return verdict
        wrong = blame.interpreter_is_wrong(context, ran)
        if wrong:
            return replace(verdict, diagnosis=[blame.INTERPRETER])
        # Only a check that failed is diagnosed.
        from runner.checks.diagnosis import search

        return replace(verdict, diagnosis=search.diagnose(context, self._refused))


def _sent(evidence: Evidence) -> Count:
    """The bytes that a device sends for all collectives; None if the list may be incomplete."""
    if evidence.collectives is None or evidence.collectives_missing:
        return None
    return ring.total(evidence.collectives)


def _checked(case: Case, *needs: Needs, already: Checks | None = None) -> Checks:
    """The checks of a program that need no more than `case`; on absent hardware there are no values to check."""
    absent = case.context.experiment.target.topology
    kinds = [check for check in registry.applying(case.context.experiment, case.run.program) if check.needs in needs]
    verdicts: dict[str, Verdict] = {
        kind.name: NotRun(reason=absent.not_here) if absent and kind.needs.values else kind.check(case)
        for kind in kinds
    }
    return (already or Checks()).but(**verdicts)


def _describe(experiment: Experiment, arrays: Arrays | None, record: Record) -> None:
    absent = experiment.target.topology
    record.paths = dict(experiment.imports.paths)
    record.mesh = MeshShape(axes=list(experiment.mesh.axes), shape=list(experiment.mesh.shape))
    record.target = Devices(
        platform=experiment.target.platform,
        devices=absent.devices if absent else experiment.mesh.size,
        kind=None,
        topology=absent.name if absent else None,
    )
    for program in experiment.left_out:
        assert absent is not None
        reason = f"it would run on one device of {absent.name}; program={program} compiles it"
        record.not_supported[program] = reason
    positions = list(range(experiment.mesh.size))
    for array in experiment.arrays:
        record.arrays[array.name] = ArrayRecord(
            shape=list(array.shape),
            dtype=array.dtype,
            spec=array.layout.spec,
            shard_shape=list(array.layout.shard_shape),
            shards_from="spec",
            shards=shards(((i, array.layout.ranges(i)) for i in positions), positions),
        )
        if arrays is not None and not dtypes.dtype(array.dtype).exact:
            values = arrays[array.name]
            for count, what in ((np.isnan(values).sum(), "NaN"), (np.isinf(values).sum(), "infinite")):
                if count:
                    record.warnings.append(f"{count} of the {values.size} values of '{array.name}' are {what}")
