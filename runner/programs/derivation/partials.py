"""Computes a term of sums over devices from each device's own parts, and takes the collectives out of it.

What is linear in sums over devices can be computed from the parts, and summed over devices once.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import field, replace

from runner.base.lazy import dataclass
from runner.experiment.traced import TracedTerm
from runner.graph.language.operations import OPERATIONS
from runner.graph.language.parts import called
from runner.graph.term import Apply, Const, Name, Term, calls

_SUMS = frozenset(name for name, row in OPERATIONS.items() if row.over is not None and row.over.linear)
"""The collectives that add up the devices' values."""


@dataclass
class Stripping:
    """Takes the sums over devices out of terms that are linear in them.

    - `read_once`: the only line that defines a name, if the name is read once; else None.
    - `is_scalar`: whether a term is a number that is the same on all devices.
    - `sums`: the collectives taken out; `stripped`: the rewritten terms of other lines.
    """

    read_once: Callable[[str], TracedTerm | None]
    is_scalar: Callable[[Term], bool]
    sums: list[Apply] = field(default_factory=list[Apply])
    stripped: dict[str, Term] = field(default_factory=dict[str, Term])

    def strip(self, term: Term) -> Term | None:
        """A term linear in sums over devices, without these sums; None if it is not linear."""
        match term:
            case Apply() if calls(term, _SUMS):
                self.sums.append(term)
                return term.operands[0]
            case Name(name=name) if (line := self.read_once(name)) is not None:
                stripped = self.strip(line.term)
                if stripped is None:
                    return None
                self.stripped[name] = stripped
                return term
            case Apply(operands=operands) if (row := called(term)) is not None and row.linear == "together":
                parts = [self.strip(operand) for operand in operands]
                kept = tuple(part for part in parts if part is not None)
                return replace(term, operands=kept) if len(kept) == len(parts) else None
            case Apply(operands=(left, right)) if (row := called(term)) is not None and row.linear:
                if self.is_scalar(right):
                    stripped = self.strip(left)
                    return None if stripped is None else replace(term, operands=(stripped, right))
                if row.linear == "each" and self.is_scalar(left):
                    stripped = self.strip(right)
                    return None if stripped is None else replace(term, operands=(left, stripped))
                return None
            case _:
                return None


def around(collective: Apply, x: Term) -> Apply:
    """The collective of another term."""
    return replace(collective, operands=(x, *collective.operands[1:]))


def is_scalar(term: Term, numbers: Container[str]) -> bool:
    """Whether a term is a number, the same on all devices; `numbers` are the names that stand for one."""
    match term:
        case Const(value=value):
            return isinstance(value, int | float)
        case Name(name=name):
            return name in numbers
        case Apply(operands=operands, spelled="operator"):
            return all(is_scalar(operand, numbers) for operand in operands)
        case _:
            return False
