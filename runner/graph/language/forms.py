"""Finds the functions and the operands of a call that takes functions.

`cond`, `switch` and `map` are not operations: they call the experiment's own functions, whose lines are inlined
(`runner/experiment/sections.py`).
"""

from __future__ import annotations

from typing import TypeGuard

from runner.base.lazy import dataclass
from runner.graph.term import Apply, Term, calls, elements

CHOICES = {
    "cond": ("pred, true_fun, false_fun, *operands", "jax.lax.cond"),
    "switch": ("index, branches, *operands", "jax.lax.switch"),
}
"""The arguments of `cond` and `switch`, and the JAX function of each."""

MAP = "map"
"""The call that runs a function over the slices of an array."""

CALLING = {**CHOICES, MAP: ("f, xs, *, length=None", "jax.lax.map")}
"""Every call that takes functions."""

SWITCH = "switch"
"""The call whose second operand is a list of functions."""

FUNCTIONS = {"cond": (1, 2), MAP: (0,)}
"""The positions of the operands that are functions, for calls that do not take a list of them."""

_FORMS = {"cond": "cond(p, f, g, x)", "switch": "switch(i, [f, g], x)"}


@dataclass(frozen=True)
class Asked:
    """A call of `cond` or `switch`.

    - `on`: the predicate or the index; `operands`: the operands of every branch.
    - `cases`: the branches, each a name or a lambda, in the order of `jax.lax.switch`; for `cond`, false comes first.
    """

    name: str
    on: Term
    cases: tuple[Term, ...]
    operands: tuple[Term, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The names of cases that are lambdas."""
        return ("false", "true") if self.name == "cond" else tuple(f"case{i}" for i in range(len(self.cases)))


def is_choice(term: Term) -> TypeGuard[Apply]:
    """Whether a term calls `cond` or `switch`."""
    return calls(term, CHOICES)


def is_map(term: Term) -> TypeGuard[Apply]:
    """Whether a term calls `map`."""
    return calls(term, (MAP,))


def _cases(call: Apply) -> tuple[Term, ...]:
    if call.operation != SWITCH:
        return call.operands[1:3]
    cases = call.operands[1] if len(call.operands) > 1 else None
    return elements(cases) or ()


def read(call: Apply) -> Asked | str:
    """Parse a call of `cond` or `switch`; return the message if it is malformed."""
    name, cases = call.operation, _cases(call)
    form = _FORMS[name]
    if call.named:
        return f"{name} has no argument '{call.named[0][0]}'; write {form}"
    if name == "cond" and len(call.operands) < 3:
        return f"{name} takes a predicate and two functions: {form}"
    if name == SWITCH and not cases:
        return f"{name} takes an index and a list of functions: {form}"
    start = 3 if name == "cond" else 2
    ordered = reversed(cases) if name == "cond" else cases
    return Asked(name, call.operands[0], tuple(ordered), call.operands[start:])
