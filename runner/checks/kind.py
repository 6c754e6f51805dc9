"""What a check declares about itself for the flow, records, the terminal, pages and pytest.

Each file of `runner/checks/kinds/` ends in its `KINDS`, which is all that a new check needs: `registry.py` reads the
folder. From that the check gets its column, its lines below the tables, its callout on the page, its pytest item, its
part of the JSON Schema and its row in the documentation; no other code names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from runner.base.lazy import dataclass

if TYPE_CHECKING:
    from runner.checks.context import Context
    from runner.experiment.model import Experiment
    from runner.experiment.program import Program
    from runner.link.target import ProgramRun
    from runner.reports.record.verdicts import Verdict


class Needs(Enum):
    """What must be known before a check can run."""

    FILE = "the file: `flow` runs it once, without a program"
    LAYOUTS = "the layouts that the compiler reports of one program"
    EVIDENCE = "what was read of the compiled module"
    VALUES = "what the devices hold after one program"
    OTHERS = "what they hold after every program"
    LINES = "the lines that were derived"

    @property
    def values(self) -> bool:
        """Whether it needs computed values, which do not exist for absent hardware."""
        return self in (Needs.VALUES, Needs.OTHERS, Needs.LINES)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a check of a program receives; fields that are known later than its `needs` are empty.

    - `others`: the other programs that ran; `alike`: whether `graph` and `per_device` compute the same.
    - `derived`: the experiment with the derived lines, and their dtypes; `compiled`: the `CompiledProgram`.
    """

    context: Context
    run: ProgramRun
    others: Sequence[ProgramRun] = ()
    alike: bool = True
    derived: Any = None
    compiled: Any = None


def excused_by_outputs(_: Context, verdict: Any, wrong: frozenset[str]) -> Verdict:
    """Return `known` if all failed outputs are known to be wrong."""
    failed = {name for name, output in verdict.outputs.items() if output.status == "failed"}
    return replace(verdict, status="known") if verdict.status == "failed" and failed <= wrong else verdict


def _always(experiment: Experiment, program: Program) -> bool:
    return True


def _of_file(case: Case) -> Verdict:
    raise NotImplementedError("a check of the file has no program")


@dataclass(frozen=True)
class CheckKind:
    """A kind of check.

    - `verdict`: the class of its verdict, or a union of classes.
    - `says`: what it says if it passes, for the table in the documentation, in Markdown; "" for an expectation.
    - `order`: its place in a report, the smallest first; of equal ones, in the order of the names of their files.
    - `applies`: whether it is made for a program of an experiment.
    - `excused`: the verdict where some outputs are known to be wrong (`expect.wrong`).
    - `of_mutants`: whether it can notice a mutant from the devices' values alone.
    - `own_dims`: why it does not apply to a verification at other sizes.
    """

    name: str
    verdict: Any
    needs: Needs
    says: str = field(kw_only=True)
    order: int = field(kw_only=True)
    check: Callable[[Case], Verdict] = _of_file
    applies: Callable[[Experiment, Program], bool] = _always
    excused: Callable[[Context, Any, frozenset[str]], Verdict] | None = None
    of_mutants: bool = False
    own_dims: str | None = None
