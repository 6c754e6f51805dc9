"""Registers sharding rules by operation, each with the writer of one device's computation.

A rule gives the factors of a call's dimensions; it returns None or raises `NotStatic` for a call that it does not
cover. The term for an assignment depends on the site alone. An operation without a rule gets whole operands, which is
always correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from runner.base.lazy import dataclass
from runner.graph.term import Term
from runner.programs.derivation.calls import Call
from runner.programs.derivation.rules import Rule
from runner.programs.derivation.site import Site

Ruled = Callable[[Call], Rule | None]
Write = Callable[[Site], Term]

_Rule = TypeVar("_Rule", bound=Ruled)


def as_written(site: Site) -> Term:
    """The operation unchanged, on the operands' blocks."""
    return site.rewritten()


@dataclass(frozen=True)
class Way:
    """A way to run an operation: its rule, and the writer of one device's computation."""

    rule: Ruled
    write: Write = as_written


WAYS: dict[str, tuple[Way, ...]] = {}
"""The ways to run each operation; the first whose rule covers the call is used."""


def rule_for(*names: str, write: Write = as_written, otherwise: Iterable[Way] = ()) -> Callable[[_Rule], _Rule]:
    """Register a rule for operations; `otherwise` are the ways to run calls that it does not cover.

    What operations of one rule differ in is an argument of the rule: `rule_for("max")(partial(reduced, kind="max"))`.
    """

    def register(rule: _Rule) -> _Rule:
        for name in names:
            assert name not in WAYS, name
            WAYS[name] = (Way(rule, write), *otherwise)
        return rule

    return register
