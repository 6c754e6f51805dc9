"""Derives an experiment's per-device lines, as in the YAML, from the types in its graph and Shardy's plan."""

from __future__ import annotations

from dataclasses import replace

from runner.base.layout import Parts, Spec
from runner.base.lazy import dataclass
from runner.compiled.estimate.prices import Prices
from runner.experiment.model import Experiment
from runner.experiment.traced import TracedLine, with_terms
from runner.graph.language.check import canonical_term
from runner.graph.term import Name
from runner.programs.derivation.ruling import Rulings
from runner.programs.derivation.section import with_lines
from runner.programs.derivation.sharing import hoisted, inlined, shared, without_single
from runner.programs.derivation.writer import Hints, Typing, Writer

TRIES = (
    *(
        Typing(invarying=invarying, casts=casts, spread=spread)
        for casts in (False, True)
        for invarying in (False, True)
        for spread in (True, False)
    ),
    Typing(invarying=True, casts=True, single=True),
    Typing(check_vma=False),
)
"""The typings to try, in order; the first that JAX accepts is used."""

_TRIALS = 16
"""The most alternative layouts of results that are tried."""

_WRITTEN = 4096
"""The most equations that are written for these trials: a large graph has fewer."""


@dataclass(frozen=True)
class Derived:
    """The derived lines of one device.

    - `check_vma`: whether JAX's types can tell which values are the same on all devices.
    - `sent`: the bytes that a device sends in all, on a ring, without the backward pass; `cost`: the cost of what it
      sends and computes, in the unit of the prices; `computing`: the cost of its computation alone.
    - `notes`: the decisions that are not the plan's.
    - `spread`: whether a line casts an array to varying for its gradient; otherwise a typing with `spread` gives the
      lines of the one without.
    """

    lines: tuple[TracedLine, ...]
    check_vma: bool
    spread: bool
    sent: float
    cost: float
    computing: float
    notes: tuple[str, ...]

    def experiment(self, experiment: Experiment) -> Experiment:
        """The experiment with these lines as its `per_device`."""
        return with_lines(experiment, self.lines, check_vma=self.check_vma, key=("per_device",))


def derive(
    experiment: Experiment, types: Parts, hints: Hints, typing: Typing, prices: Prices, rulings: Rulings
) -> Derived:
    """Derive the per-device lines of the graph. Raises `NotDerived` with the reason if they cannot be written.

    `rulings` are those of this graph, with these prices.
    """
    writer = Writer(experiment, types, hints, rulings, prices, typing)
    if typing.single:
        writer.singled()
    fresh = writer.names.fresh
    lines = inlined(shared(hoisted(writer.write(), fresh), fresh), writer.layouts.moved)
    spent = writer.layouts
    casts = {name: Name(array) for (array, _), name in spent.spread.items()}
    lines = without_single(lines, casts)
    spread = any(line.defines & casts.keys() for line in lines)
    return Derived(
        tuple(with_terms(line, canonical_term) for line in lines), typing.check_vma, spread,
        spent.sent, spent.cost, spent.computing, tuple(writer.names.notes),
    )  # fmt: skip


def settled(experiment: Experiment, types: Parts, hints: Hints, prices: Prices, rulings: Rulings) -> Hints:
    """The plan's layouts, replaced by those that the readers of a line need wherever this costs less.

    `rulings` are those of this graph, with these prices. Raises `NotDerived`.
    """

    writer = Writer(experiment, types, hints, rulings, prices, Typing())
    best = writer.first()
    tried: set[tuple[int, Spec]] = set()
    for _ in range(min(_TRIALS, _WRITTEN // max(len(experiment.computed("graph").producers), 1))):
        asked = next((item for item in best.asked.items() if item not in tried), None)
        if asked is None:
            break
        tried.add(asked)
        number, spec = asked
        other = replace(hints, layouts={**hints.layouts, number: spec})
        attempt = writer.other(other, best, number)
        if attempt.cost < best.cost:
            best, hints = attempt, other
    return hints
