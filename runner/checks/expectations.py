"""The checks of `expect`: what the compiler did against what the experiment promises of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from runner.checks.context import Check
from runner.evidence.words import bytes_text, collective, described
from runner.experiment.expect import KINDS, Expectations
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.layout import Layout, Mesh, Spec
from runner.record.record import Record


def check(experiment: Experiment, program: Program, evidence: Record) -> dict[str, Check]:
    """One verdict for each expectation that binds the program."""
    expected = experiment.expected[program]
    found: dict[str, Check] = {}
    for name, compare, what in _CHECKS:
        if name not in expected.named:
            continue
        if not program.on_mesh and name != "max_memory_bytes":
            found[name] = {"status": "not_run", "reason": f"{program} runs on one device, which communicates with none"}
        elif what in evidence and evidence[what] is None:
            # An expectation that nobody can check is not met.
            unread = evidence["collectives_unknown"] if what == "collectives" else ()
            found[name] = _failed(*(unread or (f"the backend does not tell the {what}",)))
        else:
            found[name] = compare(expected, evidence, experiment)
            if what == "collectives" and found[name]["status"] == "passed" and evidence["collectives_missing"]:
                found[name] |= _failed(_IN_PART, *evidence["collectives_missing"])
    return found


_IN_PART = "what could be read of the compiled module is as expected, but it may communicate more than that"


def _failed(*lines: str) -> Check:
    return {"status": "failed", "reason": lines[0], "details": list(lines[1:])}


def _collectives(expected: Expectations, evidence: Record, experiment: Experiment) -> Check:
    assert expected.collectives is not None
    return _counted(expected.collectives, evidence)


def _no_collectives(expected: Expectations, evidence: Record, experiment: Experiment) -> Check:
    return _counted({}, evidence)


def _counted(expected: Mapping[str, int], evidence: Record) -> Check:
    there = evidence["collectives"]
    unknown = [one for one in there if one["count"] is None]
    counts: Counter[str] = Counter()
    for one in there:
        counts[one["kind"]] += one["count"] or 0
    wrong = [kind for kind in KINDS if counts[kind] != expected.get(kind, 0)]
    if unknown:
        names = ", ".join(collective(one) for one in unknown)
        return _failed(f"expected {_kinds(expected)}; how often these run is not known: {names}")
    if not wrong:
        return {"status": "passed", "found": dict(counts)}
    shown = [one for one in there if one["kind"] in wrong]
    missing = [f"no {kind} was compiled" for kind in wrong if not counts[kind]]
    return {
        **_failed(
            f"expected {_kinds(expected)}, found {_kinds(counts)}",
            *missing,
            *map(described, shown),
            *evidence["collectives_unknown"],
        ),
        "found": dict(counts),
    }


def _kinds(counts: Mapping[str, int]) -> str:
    told = [f"{counts[kind]} {kind}" for kind in KINDS if counts.get(kind)]
    return ", ".join(told) or "no collectives"


def _bytes(expected: Expectations, evidence: Record, experiment: Experiment) -> Check:
    limit = expected.max_bytes_per_device
    assert limit is not None
    there = evidence["collectives"]
    if any(one["count"] is None for one in there):
        unknown = [described(one) for one in there if one["count"] is None]
        return _failed("how much is communicated is not known, since these run an unknown number of times", *unknown)
    if any(one["bytes"] is None for one in there):
        unknown = [described(one) for one in there if one["bytes"] is None]
        return _failed("how much is communicated is not known, since the size of these is not", *unknown)
    moved = sum(one["count"] * one["bytes"] for one in there)
    if moved <= limit:
        return {"status": "passed", "found": moved, "allowed": limit}
    largest = sorted(there, key=lambda one: -one["count"] * one["bytes"])
    lines = [described(one) for one in largest[:4]]
    told = f"collectives move {moved} bytes on each device ({bytes_text(moved)}), more than {limit}"
    return {**_failed(told, *lines), "found": moved, "allowed": limit}


def _memory(expected: Expectations, evidence: Record, experiment: Experiment) -> Check:
    limit, memory = expected.max_memory_bytes, evidence["memory"]
    assert limit is not None
    parts = ("argument_bytes", "output_bytes", "temp_bytes")
    if any(memory[part] is None or memory[part] < 0 for part in parts):
        return _failed("the backend does not tell the memory")
    peak = memory.get("peak_bytes") or 0
    used = peak if peak > 0 else sum(memory[part] for part in parts)
    if used <= limit:
        return {"status": "passed", "found": used, "allowed": limit}
    told = ", ".join(f"{part.removesuffix('_bytes')}s {bytes_text(memory[part])}" for part in parts)
    return {
        **_failed(f"each device needs {used} bytes of memory ({bytes_text(used)}), more than {limit}: {told}"),
        "found": used,
        "allowed": limit,
    }


def _overlapped(expected: Expectations, evidence: Record, experiment: Experiment) -> Check:
    return _overlap(expected.overlapped, True, evidence, experiment)


def _not_overlapped(expected: Expectations, evidence: Record, experiment: Experiment) -> Check:
    return _overlap(expected.not_overlapped, False, evidence, experiment)


def _overlap(lines: Iterable[str], wanted: bool, evidence: Record, experiment: Experiment) -> Check:
    if experiment.target.platform == "cpu":
        return {"status": "not_run", "reason": "CPU devices communicate synchronously; nothing can overlap"}
    wrong = []
    for line in lines:
        there = [one for one in evidence["collectives"] if line in one["nodes"]]
        if not there:
            wrong.append(f"{line} has no collective")
        wrong += [f"{described(one)}: {_meanwhile(one)}" for one in there if _otherwise(one, wanted)]
    # Of which line these are nobody knows: perhaps of one of those.
    strays = [one for one in evidence["collectives"] if not one["nodes"] and _otherwise(one, wanted)]
    wrong += [f"{described(one)}: {_meanwhile(one)}" for one in strays]
    how = "to" if wanted else "not to"
    return _failed(f"expected {how} overlap with computation", *wrong) if wrong else {"status": "passed"}


def _otherwise(one: Mapping[str, Any], wanted: bool) -> bool:
    return one["overlapped"] is None or bool(one["overlapped"]) != wanted


def _meanwhile(one: Mapping[str, Any]) -> str:
    if one["overlapped"] is None:
        return "what overlaps with it is not known"
    if one["overlapped"]:
        return f"it overlaps with {', '.join(one['overlapped'])}"
    return "nothing is computed meanwhile" if one["asynchronous"] else "it is synchronous"


def _layouts(expected: Expectations, evidence: Record, experiment: Experiment) -> Check:
    if "layouts" not in evidence:
        return {"status": "not_run", "reason": "a value of per_device is what each device holds; it has no layout"}
    wrong = []
    for name, spec in expected.layouts.items():
        there = evidence["layouts"][name]
        if there["spec"] is None:
            wrong.append(f"{name} has no PartitionSpec: {there['text']}")
            continue
        found = Spec.of(there["spec"])
        if not _same(spec, found, experiment.mesh, tuple(there["shape"])):
            wrong.append(f"{name} lies as {found}, expected {spec}")
    return _failed("; ".join(wrong)) if wrong else {"status": "passed"}


def _same(expected: Spec, found: Spec, mesh: Mesh, shape: tuple[int, ...]) -> bool:
    """Whether both give every device the same index range."""
    if len(expected) > len(shape):
        return False
    mine, theirs = Layout(mesh, shape, expected), Layout(mesh, shape, found)
    return all(mine.block(i) == theirs.block(i) for i in range(mesh.size))


_CHECKS: Iterable[tuple[str, Callable[[Expectations, Record, Experiment], Check], str]] = (
    ("collectives", _collectives, "collectives"),
    ("no_collectives", _no_collectives, "collectives"),
    ("max_bytes_per_device", _bytes, "collectives"),
    ("max_memory_bytes", _memory, "memory"),
    ("overlapped", _overlapped, "collectives"),
    ("not_overlapped", _not_overlapped, "collectives"),
    ("layouts", _layouts, "layouts"),
)
