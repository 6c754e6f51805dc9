"""Reads XLA's analyses of a compiled module, its memory and its cost, in which loops are counted step by step.

XLA counts the body of a loop once, however often it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from runner.compiled.evidence import hlo
from runner.compiled.evidence.counts import BRANCHES
from runner.compiled.evidence.hlo import Computation, Module
from runner.link.events import Cost, Memory
from runner.worker.versions import module_cost

_FIELDS = {"flops": "flops", "bytes_accessed": "bytes accessed"}
_HEADER = re.compile(r", entry_computation_layout=\{.*?\}\}?(?=, [a-z_]+=|$)|, is_scheduled=true")
"""The attributes removed from a module's header for a part of it: its entry's layout, and that it is scheduled.

XLA's parser aborts the process if the order of a scheduled module is invalid, as in some modules of libtpu.
"""


class _UnknownCost(Exception):
    """The trip counts of loops are unknown; the message says why."""


_TELLING_PEAKS = ("tpu",)
"""The platforms whose compiler reports a peak; XLA's figure for CPUs omits temporaries."""


def memory(executable: Any, platform: str) -> Memory | None:
    """Bytes per device; None if the backend does not report them."""
    stats = executable.memory_analysis()
    if stats is None:
        return None
    return Memory.of(
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes,
        stats.temp_size_in_bytes,
        stats.alias_size_in_bytes,
        stats.peak_memory_in_bytes if platform in _TELLING_PEAKS else None,
    )


def of(executable: Any, text: str) -> Cost | None:
    """The compiler's estimate per device: operations, bytes accessed, seconds, as far as it is reported."""
    analysis: dict[str, float] = executable.cost_analysis() or {}

    def known(name: str) -> float | None:
        return float(analysis[name]) if analysis.get(name, -1.0) >= 0 else None

    total = Cost(flops=known("flops"), bytes_accessed=known("bytes accessed"), optimal_seconds=known("optimal_seconds"))
    return None if total == Cost() else with_loops(total, text)


def with_loops(cost: Cost, text: str) -> Cost:
    """Add `total_flops` and `total_bytes_accessed`, or in `total_unknown` the reason why they are unknown."""
    if " while(" not in text:
        return replace(cost, total_flops=cost.flops, total_bytes_accessed=cost.bytes_accessed)
    module = hlo.read(text)
    if module.entry is None:
        return replace(cost, total_unknown="the module has no entry computation that could be read")
    counter = _Counter(module, text)
    try:
        more = counter.more(module.entry)
    except _UnknownCost as unknown:
        return replace(cost, total_unknown=str(unknown))
    totals = {
        f"total_{name}": None if getattr(cost, name) is None else getattr(cost, name) + more[name] for name in _FIELDS
    }
    return replace(cost, **totals)


class _Counter:
    def __init__(self, module: Module, text: str) -> None:
        self._module = module
        head, _, self._rest = text.partition("\n")
        self._head = _HEADER.sub("", head)
        self._once: dict[str, dict[str, float]] = {}

    def more(self, computation: Computation) -> dict[str, float]:
        """The cost of running a computation once in excess of XLA's analysis of it."""
        total = dict.fromkeys(_FIELDS, 0.0)
        for inner, times in self._called(computation):
            extra, once = self.more(inner), {} if times == 1 else self._cost(inner.name)
            for name in _FIELDS:
                total[name] += times * extra[name] + (times - 1) * once.get(name, 0.0)
        return total

    def _called(self, computation: Computation) -> Iterator[tuple[Computation, int]]:
        """Yield the computations that another calls, and how often. Raises `_UnknownCost`."""
        for instruction in computation.instructions.values():
            if instruction.opcode == "fusion":
                continue  # They contain no loops.
            steps: int | None = 1
            if instruction.opcode == "while":
                steps = hlo.trip_count(self._module, instruction, computation)
                if steps is None:
                    raise _UnknownCost(f"how often the loop {instruction.name} runs is not known")
            for role, name in instruction.called:
                inner = self._module.computations.get(name)
                if inner is not None and role in BRANCHES and any(self.more(inner).values()):
                    raise _UnknownCost(f"how often the loops in the branches of {instruction.name} run is not known")
                if inner is not None and role in ("body", "condition", "to_apply", "calls", "called_computations"):
                    yield inner, steps + (role == "condition") if instruction.opcode == "while" else 1

    def _cost(self, computation: str) -> dict[str, float]:
        """XLA's analysis of a computation, as if it were the module's entry. Raises `_UnknownCost`."""
        if computation not in self._once:
            rest = re.sub(r"^ENTRY ", "", self._rest, flags=re.MULTILINE)
            rest = re.sub(rf"^(%?{re.escape(computation)} )", r"ENTRY \1", rest, flags=re.MULTILINE)
            analysis = module_cost(f"{self._head}\n{rest}")
            if isinstance(analysis, str):
                raise _UnknownCost(analysis)
            self._once[computation] = {name: float(analysis.get(theirs, 0.0)) for name, theirs in _FIELDS.items()}
        return self._once[computation]
