"""Counts how often each computation of a compiled module runs."""

from __future__ import annotations

from runner.base import executions
from runner.base.executions import Count, InBranch
from runner.base.lazy import dataclass
from runner.compiled.evidence import hlo
from runner.compiled.evidence.hlo import Computation, Instruction, Module

BRANCHES = ("true_computation", "false_computation", "branch_computations")
"""The roles of called computations of which an instruction runs only one."""


@dataclass(frozen=True)
class Runs:
    """How often a computation runs.

    - `times`: the least and the most per execution of the innermost of its `branches`, or of the program; None if
      unknown. In branches both are equal.
    - `branches`: the branches around it; none if a computation is called in several places, for which only the range is
      known.
    """

    times: tuple[int, int] | None
    branches: tuple[InBranch, ...] = ()

    @property
    def count(self) -> Count:
        """How often it runs in the whole program."""
        if self.times is None or self.branches:
            return executions.count(self.times and self.times[1], self.branches)
        return executions.between(*self.times)


class Counts:
    """How often each computation of a module runs."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[str, Runs] = {}

    def of(self, computation: str) -> Runs:
        """How often a computation runs; unknown in a loop of unknown length."""
        if computation not in self._known:
            entry = self._module.entry
            once = Runs((1, 1))
            self._known[computation] = once if entry and computation == entry.name else self._called(computation)
        return self._known[computation]

    def _called(self, computation: str) -> Runs:
        calls: list[Runs] = []
        for outer, instruction, role in self._module.callers.get(computation, ()):
            before = sum(runs.branches[-1:] != () and runs.branches[-1].choice == instruction.name for runs in calls)
            calls.append(self._from(computation, outer, instruction, role, before))
        if len(calls) == 1:
            return calls[0]
        together = executions.total((call.count, call.branches, 1) for call in calls)
        return Runs(None if together is None else executions.ends(together))

    def _from(self, computation: str, outer: Computation, instruction: Instruction, role: str, before: int) -> Runs:
        """How often an instruction runs what it calls, in addition to the branches in `before`."""
        around = self.of(outer.name)
        if around.times is None:
            return around
        least, most = around.times
        if role in ("body", "condition"):
            steps = hlo.trip_count(self._module, instruction, outer)
            if steps is None:
                return Runs(None)
            steps += role == "condition"
            return Runs((least * steps, most * steps), around.branches)
        cases = [name for of, name in instruction.called if of in BRANCHES]
        if role not in BRANCHES or len(cases) == 1:
            return around
        if least != most:
            return Runs((0, most))
        number = [index for index, name in enumerate(cases) if name == computation][before]
        chosen = InBranch(choice=instruction.name, branch=number, of=len(cases), times=most)
        return Runs((1, 1), (*around.branches, chosen))
