"""The checks of `expect`: what the compiler did against what the experiment promises of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from runner.evidence.model import Collective
from runner.evidence.words import collective, described
from runner.experiment.expect import KINDS, Expectations
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.layout import Layout, Mesh, Spec
from runner.record.model import CompiledProgram
from runner.record.verdicts import CountsVerdict, LimitVerdict, NotRun, Verdict
from runner.words import bytes_text


def check(experiment: Experiment, program: Program, compiled: CompiledProgram) -> dict[str, Verdict]:
    """One verdict for each expectation that binds the program, by the names of `Checks`."""
    expected = experiment.expected[program]
    found: dict[str, Verdict] = {}
    for name, compare, what, kind in _CHECKS:
        if name not in expected.named:
            continue
        if not program.on_mesh and name != "max_memory_bytes":
            found[name] = NotRun(reason=f"{program} runs on one device, which communicates with none")
        elif what == "collectives" and compiled.collectives is None:
            # An expectation that nobody can check is not met.
            unread = compiled.collectives_unknown or ["the backend does not tell the collectives"]
            found[name] = kind(status="failed", reason=unread[0], details=unread[1:])
        else:
            found[name] = compare(expected, compiled, experiment)
            missing = compiled.collectives_missing
            if what == "collectives" and found[name].status == "passed" and missing:
                found[name] = replace(found[name], status="failed", reason=_IN_PART, details=list(missing))
    return found


_IN_PART = "what could be read of the compiled module is as expected, but it may communicate more than that"


def _collectives(expected: Expectations, compiled: CompiledProgram, experiment: Experiment) -> CountsVerdict:
    assert expected.collectives is not None
    return _counted(expected.collectives, compiled)


def _no_collectives(expected: Expectations, compiled: CompiledProgram, experiment: Experiment) -> CountsVerdict:
    return _counted({}, compiled)


def _counted(expected: Mapping[str, int], compiled: CompiledProgram) -> CountsVerdict:
    there = compiled.collectives or []
    unknown = [one for one in there if one.count is None]
    counts: Counter[str] = Counter()
    for one in there:
        counts[one.kind] += one.count or 0
    wrong = [kind for kind in KINDS if counts[kind] != expected.get(kind, 0)]
    if unknown:
        names = ", ".join(collective(one) for one in unknown)
        reason = f"expected {_kinds(expected)}; how often these run is not known: {names}"
        return CountsVerdict(status="failed", reason=reason)
    if not wrong:
        return CountsVerdict(status="passed", found=dict(counts))
    shown = [one for one in there if one.kind in wrong]
    missing = [f"no {kind} was compiled" for kind in wrong if not counts[kind]]
    return CountsVerdict(
        status="failed",
        reason=f"expected {_kinds(expected)}, found {_kinds(counts)}",
        details=[*missing, *map(described, shown), *compiled.collectives_unknown],
        found=dict(counts),
    )


def _kinds(counts: Mapping[str, int]) -> str:
    told = [f"{counts[kind]} {kind}" for kind in KINDS if counts.get(kind)]
    return ", ".join(told) or "no collectives"


def _bytes(expected: Expectations, compiled: CompiledProgram, experiment: Experiment) -> LimitVerdict:
    limit = expected.max_bytes_per_device
    assert limit is not None
    there = compiled.collectives or []
    for unknown, why in (
        ([one for one in there if one.count is None], "since these run an unknown number of times"),
        ([one for one in there if one.bytes is None], "since the size of these is not"),
    ):
        if unknown:
            reason = f"how much is communicated is not known, {why}"
            return LimitVerdict(status="failed", reason=reason, details=[described(one) for one in unknown])
    moved = [(one.count * one.bytes, one) for one in there if one.count is not None and one.bytes is not None]
    total = sum(size for size, _ in moved)
    if total <= limit:
        return LimitVerdict(status="passed", found=total, allowed=limit)
    return LimitVerdict(
        status="failed",
        reason=f"collectives move {total} bytes on each device ({bytes_text(total)}), more than {limit}",
        details=[described(one) for _, one in sorted(moved, key=lambda pair: -pair[0])[:4]],
        found=total,
        allowed=limit,
    )


def _memory(expected: Expectations, compiled: CompiledProgram, experiment: Experiment) -> LimitVerdict:
    limit, memory = expected.max_memory_bytes, compiled.memory
    assert limit is not None
    parts = {} if memory is None else {
        "arguments": memory.argument_bytes, "outputs": memory.output_bytes, "temps": memory.temp_bytes
    }  # fmt: skip
    known = {name: size for name, size in parts.items() if size is not None and size >= 0}
    if memory is None or len(known) < len(parts):
        return LimitVerdict(status="failed", reason="the backend does not tell the memory")
    peak = memory.peak_bytes or 0
    used = peak if peak > 0 else sum(known.values())
    if used <= limit:
        return LimitVerdict(status="passed", found=used, allowed=limit)
    told = ", ".join(f"{name} {bytes_text(size)}" for name, size in known.items())
    reason = f"each device needs {used} bytes of memory ({bytes_text(used)}), more than {limit}: {told}"
    return LimitVerdict(status="failed", reason=reason, found=used, allowed=limit)


def _overlapped(expected: Expectations, compiled: CompiledProgram, experiment: Experiment) -> Verdict:
    return _overlap(expected.overlapped, True, compiled, experiment)


def _not_overlapped(expected: Expectations, compiled: CompiledProgram, experiment: Experiment) -> Verdict:
    return _overlap(expected.not_overlapped, False, compiled, experiment)


def _overlap(lines: Iterable[str], wanted: bool, compiled: CompiledProgram, experiment: Experiment) -> Verdict:
    if experiment.target.platform == "cpu":
        return NotRun(reason="CPU devices communicate synchronously; nothing can overlap")
    collectives = compiled.collectives or []
    wrong: list[str] = []
    for line in lines:
        there = [one for one in collectives if line in one.nodes]
        if not there:
            wrong.append(f"{line} has no collective")
        wrong += [f"{described(one)}: {_meanwhile(one)}" for one in there if _otherwise(one, wanted)]
    # Of which line these are nobody knows: perhaps of one of those.
    strays = [one for one in collectives if not one.nodes and _otherwise(one, wanted)]
    wrong += [f"{described(one)}: {_meanwhile(one)}" for one in strays]
    reason = f"expected {'to' if wanted else 'not to'} overlap with computation"
    return Verdict(status="failed", reason=reason, details=wrong) if wrong else Verdict(status="passed")


def _otherwise(one: Collective, wanted: bool) -> bool:
    return one.overlapped is None or bool(one.overlapped) != wanted


def _meanwhile(one: Collective) -> str:
    if one.overlapped is None:
        return "what overlaps with it is not known"
    if one.overlapped:
        return f"it overlaps with {', '.join(one.overlapped)}"
    return "nothing is computed meanwhile" if one.asynchronous else "it is synchronous"


def _layouts(expected: Expectations, compiled: CompiledProgram, experiment: Experiment) -> Verdict:
    if compiled.layouts is None:
        return NotRun(reason="a value of per_device is what each device holds; it has no layout")
    wrong: list[str] = []
    for name, spec in expected.layouts.items():
        there = compiled.layouts[name]
        if there.spec is None:
            wrong.append(f"{name} has no PartitionSpec: {there.text}")
            continue
        found = Spec.of(there.spec)
        if not _same(spec, found, experiment.mesh, tuple(there.shape)):
            wrong.append(f"{name} lies as {found}, expected {spec}")
    return Verdict(status="failed", reason="; ".join(wrong)) if wrong else Verdict(status="passed")


def _same(expected: Spec, found: Spec, mesh: Mesh, shape: tuple[int, ...]) -> bool:
    """Whether both give every device the same index range."""
    if len(expected) > len(shape):
        return False
    mine, theirs = Layout(mesh, shape, expected), Layout(mesh, shape, found)
    return all(mine.block(i) == theirs.block(i) for i in range(mesh.size))


_Compare = Callable[[Expectations, CompiledProgram, Experiment], Verdict]

_CHECKS: Iterable[tuple[str, _Compare, str, type[Verdict]]] = (
    ("collectives", _collectives, "collectives", CountsVerdict),
    ("no_collectives", _no_collectives, "collectives", CountsVerdict),
    ("max_bytes_per_device", _bytes, "collectives", LimitVerdict),
    ("max_memory_bytes", _memory, "memory", LimitVerdict),
    ("overlapped", _overlapped, "collectives", Verdict),
    ("not_overlapped", _not_overlapped, "collectives", Verdict),
    ("layouts", _layouts, "layouts", Verdict),
)
"""Of each expectation its name, its check, what it is an expectation of, and the class of its verdict."""
