"""A record in; what rematerialisation saves and adds in each program, in words, out."""

from __future__ import annotations

from runner.link.events import Cost, Memory
from runner.record.model import CompiledProgram, Record
from runner.words import bytes_text, listed


def lines(found: Record) -> list[str]:
    """What each program that rematerialises needs, and what it needs without; those of which that is alike together."""
    having: dict[str, list[str]] = {}
    for name, program in found.compiled.items():
        told = _told(program)
        if told:
            having.setdefault(told, []).append(name)
    return [f"{listed(names)} rematerialise{'s' if len(names) == 1 else ''}: {told}" for told, names in having.items()]


def _told(program: CompiledProgram) -> str | None:
    if program.keeping_all is None:
        return None
    mine, theirs = _needed(program.memory, program.cost), _needed(program.keeping_all.memory, program.keeping_all.cost)
    return f"{mine}; keeping everything: {theirs}"


def _needed(memory: Memory | None, cost: Cost | None) -> str:
    temporaries = None if memory is None else memory.temp_bytes
    flops = None if cost is None else cost.total_flops
    held = "memory unknown" if temporaries is None else f"{bytes_text(temporaries)} of temporaries"
    return f"{held}, {'flops unknown' if flops is None else f'{flops:,.0f} flops'} on a device"
