"""The rules of derivation, each registered for the operations that it is of, beside what one device computes.

A rule says of a call which factors its dimensions have; None, or `NotStatic`, where it does not cover the call. What is
written for an assignment is a function of the site alone. An operation without a rule gets whole operands, which is
always right, and says why it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from runner.derivation.calls import Call
from runner.derivation.rules import Rule
from runner.derivation.site import Site
from runner.graph.term import Term

Ruled = Callable[[Call], Rule | None]
Write = Callable[[Site], Term]


def as_written(site: Site) -> Term:
    """The operation as it stands, on the operands' blocks."""
    return site.rewritten()


@dataclass(frozen=True)
class Way:
    """How to run an operation: its rule, and what one device computes."""

    rule: Ruled
    write: Write = as_written


WAYS: dict[str, tuple[Way, ...]] = {}
"""For each operation the ways to run it, the first whose rule covers the call being taken."""

WHOLE: dict[str, str] = {}
"""The operations that get whole operands, and why."""


def rule_for(*names: str, write: Write = as_written, otherwise: Iterable[Way] = ()) -> Callable[[Ruled], Ruled]:
    """Register a rule for operations; `otherwise` are the ways to run the calls that it does not cover."""

    def register(rule: Ruled) -> Ruled:
        for name in names:
            assert name not in WAYS, name
            WAYS[name] = (Way(rule, write), *otherwise)
        return rule

    return register


def whole(*names: str, because: str) -> None:
    """Say why operations have no rule."""
    WHOLE.update(dict.fromkeys(names, because))
