"""Says what a report's reader should know of weak checks, absent hardware and rematerialised programs."""

from __future__ import annotations

from runner.base.grouping import by_key
from runner.base.words import bytes_text, flops_text, listed
from runner.link.events import Cost, Devices, Memory
from runner.reports.record.model import CompiledProgram, Record
from runner.reports.record.verdicts import NotRun, ValueVerdict
from runner.reports.show.console import say


def show_checks_elsewhere(record: Record, target: Devices) -> None:
    """Print which checks ran, and on what, for a target that is not here."""
    if target.device_order:
        reason = target.device_order_reason
        say(f"device order: {target.device_order}" + (f", since {reason}" if reason else ""))
    verified = record.verification
    if verified:
        dims = ", ".join(f"{name}={size}" for name, size in verified.dims.items())
        count = verified.target.devices
        say(f"only compiled; values, replicas and agreement are those at {dims} on {count} simulated CPU devices")
    else:
        reasons = [check.reason for p in record.programs.values() for check in p.checks if check.status == "not_run"]
        if reasons:
            say(f"values, replicas and agreement were not checked: {reasons[0]}")
    sections = record.checks.sections
    if isinstance(sections, NotRun):
        say(f"sections was not run: {sections.reason}")
    elif sections is not None and not verified:
        at = ", ".join(f"{name}={size}" for name, size in (sections.dims or {}).items())
        say(f"graph and per_device were compared at {at or 'their own sizes'}, without a device")


def rematerialised(record: Record) -> list[str]:
    """Compare each program with and without its rematerialisation; programs with equal figures share a line."""
    alike = by_key((_comparison(program), name) for name, program in record.compiled.items())
    return [
        f"{listed(names)} rematerialise{'s' if len(names) == 1 else ''}: {comparison}"
        for comparison, names in alike.items()
        if comparison
    ]


def _comparison(program: CompiledProgram) -> str | None:
    if program.keeping_all is None:
        return None
    mine, theirs = _needed(program.memory, program.cost), _needed(program.keeping_all.memory, program.keeping_all.cost)
    return f"{mine}; keeping everything: {theirs}"


def _needed(memory: Memory | None, cost: Cost | None) -> str:
    temporaries = None if memory is None else memory.temp_bytes
    flops = None if cost is None else cost.total_flops
    held = "memory unknown" if temporaries is None else f"{bytes_text(temporaries)} of temporaries"
    return f"{held}, {'flops unknown' if flops is None else flops_text(flops)} on a device"


_MEANS = "weak: it passed, and a wrong program might have passed too"


def weak_advice(record: Record) -> list[str]:
    """Return one line for each way in which a check is weak."""
    outputs = [
        output
        for program in record.programs.values()
        if isinstance(program.checks.value, ValueVerdict)
        for output in program.checks.value.compared.values()
        if output.status == "weak"
    ]
    ways: list[str] = []
    if any(output.undecided for output in outputs) or _of_sections(record):
        ways.append("rounding alone decides some elements: use another seed (seed=1), or values (init) further apart")
    if any(output.overflowing and not output.undecided for output in outputs):
        ways.append(
            "values overflow the dtype: use smaller ones (init), or a dtype that holds them, bfloat16 or float32"
        )
    if any(not output.overflowing and not output.undecided for output in outputs):
        ways.append(
            "rounding hides smaller mistakes: use more elements (dims), over which it averages out; dtype: float32, "
            "which rounds less; larger values (init); or another seed (seed=1)"
        )
    return [f"{_MEANS}, since {way}" for way in ways] + ["expect.weak: NAME accepts it of an output"] * bool(ways)


def _of_sections(record: Record) -> bool:
    sections = record.checks.sections
    return sections is not None and sections.status == "weak"
