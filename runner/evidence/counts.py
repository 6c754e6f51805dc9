"""A compiled module in; how often each of its computations runs out."""

from __future__ import annotations

from runner.evidence import hlo
from runner.evidence.hlo import Module

BRANCHES = ("true_computation", "false_computation", "branch_computations")
"""The roles in which an instruction names what it runs in one case of several."""


class Counts:
    """How often the computations of a module run."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[str, int | None] = {}

    def of(self, computation: str) -> int | None:
        """How often a computation runs; None where it stands in a branch, or in a loop of unknown length."""
        if computation not in self._known:
            entry = self._module.entry
            self._known[computation] = 1 if entry and computation == entry.name else self._sum_of_calls(computation)
        return self._known[computation]

    def branch_of(self, computation: str) -> str | None:
        """The instruction in a branch of which a computation stands, if it does."""
        for outer, instruction, role in self._module.callers.get(computation, ()):
            found = instruction.name if role in BRANCHES else self.branch_of(outer.name)
            if found is not None:
                return found
        return None

    def _sum_of_calls(self, computation: str) -> int | None:
        total = 0
        for outer, instruction, role in self._module.callers.get(computation, ()):
            times: int | None = 1
            if role in ("body", "condition"):
                times = hlo.trip_count(self._module, instruction, outer)
                times = times if times is None or role == "body" else times + 1
            elif role in BRANCHES:
                times = None
            around = self.of(outer.name)
            if times is None or around is None:
                return None
            total += times * around
        return total
