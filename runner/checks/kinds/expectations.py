"""The checks of `expect`: compares what the compiler did with what the experiment promises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from runner.base.layout import Layout, Mesh, Spec
from runner.base.words import bytes_text
from runner.checks import communication
from runner.checks.communication import CountsVerdict, LimitVerdict
from runner.checks.kind import CheckKind, Needs
from runner.checks.step_state import moved
from runner.compiled.evidence.model import Collective
from runner.compiled.evidence.words import described
from runner.experiment.expect import CHECKED, SUBJECTS, Expectations
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.reports.record.model import CompiledProgram
from runner.reports.record.readable import readable_program
from runner.reports.record.verdicts import Judged, NotRun, ValueVerdict, Verdict


def check(experiment: Experiment, program: Program, compiled: CompiledProgram) -> dict[str, Verdict]:
    """One verdict for each expectation of the program, by the names of `Checks`."""
    return {name: _verdict(name, experiment, program, compiled) for name in experiment.expected[program].named}


def _verdict(name: str, experiment: Experiment, program: Program, compiled: CompiledProgram) -> Verdict:
    """The verdict on one expectation."""
    expected, of, what = experiment.expected[program], _of(name), name.removeprefix(f"{_of(name)}_")
    if not program.on_mesh and not SUBJECTS[what].one_device:
        return NotRun(reason=f"{program} runs on one device, which communicates with none")
    lines = {line: str(frame) for line, frame in experiment.frames[program.section].items()}
    places = {**experiment.imports.paths, **lines}
    if what == "max_bytes_per_device":
        verdict = communication.sent(expected, program, readable_program(compiled, places), of)
    elif what in ("collectives", "no_collectives"):
        named_program = readable_program(compiled, places)
        verdict = communication.counts(expected, program, named_program, of, none=what == "no_collectives")
    elif what in _OVERLAPS and compiled.collectives is None:
        # An expectation that cannot be checked fails.
        unread = compiled.collectives_unknown or ["the backend does not report the collectives"]
        return Judged(status="failed", reason=unread[0], details=unread[1:])
    else:
        verdict = _OTHERS[what](expected, compiled, experiment)
    return _incomplete(verdict, compiled) if of == "compiled" and SUBJECTS[what].collectives else verdict


def _of(name: str) -> str:
    """The subject of an expectation: for `lowered_collectives` the lowered module, by default the compiled one."""
    return next((of for of in communication.OF if name.startswith(f"{of}_")), "compiled")


def _incomplete(verdict: Verdict, compiled: CompiledProgram) -> Verdict:
    """The verdict on a list of compiled collectives that may be incomplete."""
    missing = compiled.collectives_missing
    if verdict.status != "passed" or not missing:
        return verdict
    return replace(verdict, status="failed", reason=_IN_PART, details=list(missing))


_IN_PART = "the collectives that could be read are as expected, but others may be missing"


def _memory(expected: Expectations, compiled: CompiledProgram, experiment: Experiment) -> LimitVerdict:
    limit, memory = expected.max_memory_bytes, compiled.memory
    assert limit is not None
    if memory is None or memory.needed_bytes is None:
        return LimitVerdict(status="failed", reason="the backend does not report the memory")
    used = memory.needed_bytes
    if used <= limit:
        return LimitVerdict(status="passed", found=used, allowed=limit)
    parts = {
        "arguments": memory.argument_bytes, "outputs": memory.output_bytes, "temps": memory.temp_bytes,
        "aliased": memory.alias_bytes or None,
    }  # fmt: skip
    sizes = ", ".join(f"{name} {bytes_text(size)}" for name, size in parts.items() if size is not None)
    reason = f"each device needs {used} bytes of memory ({bytes_text(used)}), more than {limit}: {sizes}"
    return LimitVerdict(status="failed", reason=reason, found=used, allowed=limit)


def _overlapped(expected: Expectations, compiled: CompiledProgram, experiment: Experiment) -> Verdict:
    return _overlap(expected.overlapped, True, compiled, experiment)


def _not_overlapped(expected: Expectations, compiled: CompiledProgram, experiment: Experiment) -> Verdict:
    return _overlap(expected.not_overlapped, False, compiled, experiment)


def _overlap(lines: Iterable[str], wanted: bool, compiled: CompiledProgram, experiment: Experiment) -> Verdict:
    if experiment.target.platform == "cpu":
        return NotRun(reason="CPU devices communicate synchronously; nothing can overlap")
    collectives = [collective for collective in compiled.collectives or () if not collective.alone]
    wrong: list[str] = []
    for line in lines:
        there = [collective for collective in collectives if line in collective.nodes]
        if not there:
            wrong.append(f"{line} has no collective")
        wrong += [
            f"{described(collective)}: {_meanwhile(collective)}"
            for collective in there
            if _otherwise(collective, wanted)
        ]
    # Their lines are unknown: one may be a line that is expected to overlap.
    strays = [collective for collective in collectives if not collective.nodes and _otherwise(collective, wanted)]
    wrong += [f"{described(collective)}: {_meanwhile(collective)}" for collective in strays]
    reason = f"expected {'to' if wanted else 'not to'} overlap with computation"
    return Judged(status="failed", reason=reason, details=wrong) if wrong else Judged(status="passed")


def _otherwise(collective: Collective, wanted: bool) -> bool:
    return collective.overlapped is None or bool(collective.overlapped) != wanted


def _meanwhile(collective: Collective) -> str:
    if collective.overlapped is None:
        return "the computation that overlaps with it is not known"
    if collective.overlapped:
        return f"it overlaps with {', '.join(collective.overlapped)}"
    return "nothing is computed meanwhile" if collective.asynchronous else "it is synchronous"


def _layouts(expected: Expectations, compiled: CompiledProgram, experiment: Experiment) -> Verdict:
    if compiled.layouts is None:
        return NotRun(reason="a value of per_device is what each device holds; it has no layout")
    wrong: list[str] = []
    for name, spec in expected.layouts.items():
        there = compiled.layouts[name]
        if there.spec is None:
            wrong.append(f"{name} has no PartitionSpec: {there.text}")
            continue
        if not _same(spec, there.spec, experiment.mesh, tuple(there.shape)):
            wrong.append(f"{name} is laid out as {there.spec}, expected {spec}")
    return Judged(status="failed", reason="; ".join(wrong)) if wrong else Judged(status="passed")


def _state_layout(expected: Expectations, compiled: CompiledProgram, experiment: Experiment) -> Verdict:
    if not experiment.imports.state:
        return Judged(status="failed", reason="no result is the next value of an operand: it is not a step")
    specs = {name: output.spec for name, output in compiled.outputs.items()}
    wrong = [f"{output} is {after}, and {name} {before}" for name, output, before, after in moved(experiment, specs)]
    return Judged(status="failed", reason="; ".join(wrong[:4])) if wrong else Judged(status="passed")


def _accuracy(expected: Expectations, compiled: CompiledProgram, experiment: Experiment) -> Verdict:
    value = compiled.checks.value
    if not isinstance(value, ValueVerdict):
        return NotRun(reason="nothing was compared with an oracle")
    measured = value.accuracies
    limit = expected.accuracy
    assert limit is not None
    wrong = [
        f"{name} is off by {times:.2g} × the measured rounding" for name, times in measured.items() if times > limit
    ]
    if wrong:
        return Judged(status="failed", reason=f"more than {limit:g}: {'; '.join(wrong)}")
    return Judged(status="passed") if measured else NotRun(reason="no output is a float that rounds")


def _same(expected: Spec, actual: Spec, mesh: Mesh, shape: tuple[int, ...]) -> bool:
    """Whether both layouts give every device the same index range."""
    if len(expected) > len(shape):
        return False
    promised, compiled = Layout(mesh, shape, expected), Layout(mesh, shape, actual)
    return all(promised.block(i) == compiled.block(i) for i in range(mesh.size))


_Compare = Callable[[Expectations, CompiledProgram, Experiment], Verdict]

_OVERLAPS = ("overlapped", "not_overlapped")

_OTHERS: Mapping[str, _Compare] = {
    "max_memory_bytes": _memory,
    "overlapped": _overlapped,
    "not_overlapped": _not_overlapped,
    "layouts": _layouts,
    "state_layout": _state_layout,
    "accuracy": _accuracy,
}
"""The comparisons of the expectations that are not about collectives or bytes."""


def _kind(name: str) -> CheckKind:
    says = LimitVerdict if "max_" in name else CountsVerdict if name.endswith("collectives") else Judged
    return CheckKind(
        name, says | NotRun, Needs.EVIDENCE,
        lambda case: _verdict(name, case.context.experiment, case.run.program, case.compiled),
        order=90, applies=lambda experiment, program: name in experiment.expected[program].named,
        # One row of the table stands for all expectations.
        says="",
    )  # fmt: skip


KINDS = tuple(map(_kind, CHECKED))
