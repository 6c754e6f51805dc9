"""Says what rematerialisation saves and adds in each program of a record."""

from __future__ import annotations

from runner.base.grouping import by_key
from runner.base.words import bytes_text, flops_text, listed
from runner.link.events import Cost, Memory
from runner.reports.record.model import CompiledProgram, Record


def lines(record: Record) -> list[str]:
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
