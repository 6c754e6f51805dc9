"""Plans an experiment's graph by Shardy, value by value, and derives the per-device lines."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from functools import cached_property
from typing import Any

import jax
from jax.sharding import NamedSharding

from runner.base.layout import Parts, Spec, Typed
from runner.base.lazy import dataclass
from runner.base.untyped import is_sequence
from runner.base.words import bytes_text, listed, time_text
from runner.compiled.estimate.prices import BYTES, EstimatedSeconds, Prices, permuted
from runner.compiled.evidence.hlo import Metadata
from runner.compiled.why import notation
from runner.experiment.model import Experiment
from runner.experiment.traced import TracedLine
from runner.graph.language.syntax import SyntaxFault
from runner.graph.model import Equation, Operand, Ref
from runner.graph.sharding.propagation import Derivation, Plan, whole_axes
from runner.programs.derivation.derive import TRIES, Derived, Typing, derive, settled
from runner.programs.derivation.rewriting import rewritten
from runner.programs.derivation.ruling import Rulings
from runner.programs.derivation.scopes import Names, NotDerived
from runner.programs.derivation.section import section
from runner.programs.derivation.writer import Hints
from runner.programs.planning.inner import inner_layouts
from runner.programs.types import Floats
from runner.worker import calls
from runner.worker.lowered import Requested
from runner.worker.propagation import NOWHERE, ModuleNames, Place, plan
from runner.worker.refusing import refusal
from runner.worker.specs import partition, structs
from runner.worker.versions import abstract_mesh
from runner.worker.walk import REFUSALS, Walker

_SCOPE = re.compile(r"(?:^|/)equation(\d+)(/value)?(?=/|$)")


@dataclass
class _Planner(Walker):
    """Evaluates a graph with a named scope for each equation and value, and constrains values as requested."""

    types: dict[int, Typed | tuple[Typed, ...] | None] = field(
        default_factory=dict[int, Typed | tuple[Typed, ...] | None]
    )

    def equation(self, equation: Equation) -> Any:
        with jax.named_scope(f"equation{equation.results[0].number}"):
            return super().equation(equation)

    def computed(self, equation: Equation) -> Any:
        with jax.named_scope("value"):
            value = super().computed(equation)
        self._record(equation.results[0].number, value)
        return value

    def read(self, operand: Operand) -> Any:
        value = super().read(operand)
        if isinstance(operand, Ref):
            self._record(operand.number, value)
        return value

    def _record(self, number: int, value: Any) -> None:
        parts = value if is_sequence(value) else (value,)
        arrays = tuple(itertools.takewhile(lambda part: hasattr(part, "shape") and hasattr(part, "dtype"), parts))
        if not arrays:
            return
        types = tuple(Typed(tuple((kind := jax.typeof(array)).shape), str(kind.dtype)) for array in arrays)
        typed = types if is_sequence(value) else types[0]
        self.types[number] = typed if self.types.get(number, typed) == typed else None

    def settle(self, path: str, value: Any) -> Any:
        spec = self.experiment.constrained.get(path, self.experiment.results.get(path))
        return value if spec is None else self.laid_out(value, spec)

    def laid_out(self, value: Any, spec: Spec) -> Any:
        """Return a value with a sharding constraint."""
        mesh = abstract_mesh(self.experiment.mesh)
        return calls.with_sharding_constraint(value, NamedSharding(mesh, partition(spec)))


def _traced(experiment: Experiment) -> tuple[jax.stages.Traced, dict[int, Typed | tuple[Typed, ...] | None]]:
    """Trace the graph with its constraints; returns it with the types of all of its values."""
    types: dict[int, Typed | tuple[Typed, ...] | None] = {}
    graph, mesh = experiment.computed("graph"), abstract_mesh(experiment.mesh)

    def whole(*arrays: Any) -> Any:
        values = dict(zip((a.name for a in experiment.given), arrays, strict=True))
        planner = _Planner(experiment, values, types=types)
        for array in experiment.arrays:
            if array.name in experiment.constraints:
                values[array.name] = planner.laid_out(values[array.name], experiment.constraints[array.name])
        planner.run(graph, "graph")
        return tuple(planner.values[name] for name in experiment.results)

    with jax.sharding.use_abstract_mesh(mesh):
        return calls.jit(whole).trace(*structs(experiment, mesh)), types


def value_types(experiment: Experiment) -> Parts:
    """The types of all values of the graph, by number."""
    return _traced(experiment)[1]


def planned(experiment: Experiment) -> tuple[Plan, Parts]:
    """Shardy's plan of the graph with its constraints, and the types of all of its values, by number."""
    traced, types = _traced(experiment)
    graph = experiment.computed("graph")
    with jax.sharding.use_abstract_mesh(abstract_mesh(experiment.mesh)):
        try:
            lowered = traced.lower(lowering_platforms=("cpu",))
        except REFUSALS as error:
            return Plan(missing=f"the graph cannot be lowered: {refusal(error, [])}"), types

    def where(metadata: Metadata) -> Place:
        scopes = list(_SCOPE.finditer(metadata.op_name))
        if not scopes:
            return NOWHERE
        number = int(scopes[-1][1])
        return graph.producers[number].source.line.path, number if scopes[-1][2] else None, False

    arrays = {f"arrays[{at}]": array.name for at, array in enumerate(experiment.given)}
    return plan(lowered, experiment, ModuleNames(where, arrays.get, tuple(experiment.results))), types


@dataclass(frozen=True)
class Judge:
    """What JAX says of per-device lines.

    - `refused`: its objection to them, if any; collects the dtypes in them.
    - `requested`: the collectives of the lines and of their backward pass, each with 1,
      or with -1 to cancel one that the backward pass repeats.
    """

    refused: Callable[[Experiment, Floats], str | None]
    requested: Callable[[Experiment], Iterable[tuple[Requested, int]]]


def derived(experiment: Experiment, judge: Judge) -> tuple[Experiment, Derivation, Floats] | str:
    """The experiment with per-device lines, their derivation and their dtypes; or the reason why there are none.

    The layouts are Shardy's, as improved line by line, or those of the cheapest assignment of the whole graph if the
    lines then cost less, backward pass included.
    """
    if experiment.regions:
        return f"the shard_map in {listed(experiment.regions)} is per-device code already; nothing is derived from it"
    shardy, types = planned(experiment)
    own, plan_of_own = experiment, shardy
    graph = rewritten(Names(experiment, types), shardy.values)
    if graph is not None:
        experiment = replace(experiment, graph=graph)
        shardy, types = planned(experiment)
    hints = Hints({number: whole_axes(spec) for number, spec in shardy.values.items()})
    hardware, mesh = experiment.derive.hardware, experiment.mesh
    prices = BYTES if hardware is None else EstimatedSeconds(hardware, mesh, experiment.precision)
    rulings = Rulings()
    best = _accepted(experiment, types, hints, prices, rulings, judge)
    other = _accepted_of_graph(experiment, types, prices, rulings, judge, best)
    if isinstance(best, str) and other is None:
        return best
    notes: list[str] = []
    if other is not None:
        if not isinstance(best, str):
            notes.append(_of_whole_graph(other, best, prices))
        best = other
    assert not isinstance(best, str)
    if isinstance(prices, EstimatedSeconds):
        took = f"{time_text(best.cost(prices))}{_backward(experiment)}"
        notes.append(f"chosen by the estimated time on {prices.name}, here {took}")
        notes += [f"taken as free: {each}" for each in prices.unknown]
    summary = Derivation(
        per_device=section(best.written.per_device),
        check_vma=best.derived.check_vma,
        sent_bytes=round(best.derived.sent),
        notes=[*best.derived.notes, *notes],
        plan=plan_of_own.summary(),
        notation=notation.lines(own, plan_of_own),
    )
    return replace(best.written, graph=own.graph), summary, best.floats


def _of_whole_graph(mine: _Accepted, line_by_line: _Accepted, prices: Prices) -> str:
    """The note that says what layouts for the whole graph save, in what is to be small."""
    own, other = (
        time_text(each.cost(prices)) if isinstance(prices, EstimatedSeconds) else bytes_text(round(each.cost(prices)))
        for each in (mine, line_by_line)
    )
    sends = "" if isinstance(prices, EstimatedSeconds) else "a device sends "
    backward = _backward(mine.written)
    return f"the layouts are chosen for the whole graph: {sends}{own}, line by line {other}{backward}"


def _backward(experiment: Experiment) -> str:
    return "" if experiment.grad is None else ", with the backward pass"


@dataclass(frozen=True)
class _Accepted:
    """Derived lines that JAX accepts, the experiment with them, and the dtypes in them."""

    derived: Derived
    written: Experiment
    floats: Floats
    judge: Judge

    @cached_property
    def requested(self) -> tuple[tuple[Requested, int], ...]:
        """The collectives that the judge sees; each time it traces the lines and their backward pass."""
        return tuple(self.judge.requested(self.written))

    def cost(self, prices: Prices) -> float:
        """The cost of the lines and of their backward pass, whose products are two for each of the lines'."""

        def cost(each: Requested) -> float:
            if each.kind != "collective-permute":
                return prices.rate(each.kind, each.axes).cost(each.sent)
            return permuted(prices, self.written.mesh, each.axes, each.permutation).cost(each.sent)

        sent = sum(sign * each.times * cost(each) for each, sign in self.requested)
        many = 1 if self.written.grad is None else 3
        return sent + (0.0 if prices is BYTES else many * self.derived.computing)


def _accepted(
    experiment: Experiment,
    types: Parts,
    hints: Hints,
    prices: Prices,
    rulings: Rulings,
    judge: Judge,
    known: _Accepted | None = None,
) -> _Accepted | str:
    """The lines of the cheapest layouts that begin with a plan, under the first typing that JAX accepts; or why not.

    Lines that are also those in `known` are not judged again.
    """
    reason = None
    try:
        hints = settled(experiment, types, hints, prices, rulings)
        first = derive(experiment, types, hints, TRIES[0], prices, rulings)
        every = [(first, first.experiment(experiment))]
    except NotDerived as error:
        return str(error)
    except SyntaxFault as fault:
        # A derived line is longer than its source, and may exceed the language's limits.
        return f"a derived line would be {fault}"
    if known is not None and experiment.grad is None and not _less(first.cost, known.derived.cost):
        return "it costs no less"
    tried: list[tuple[TracedLine, ...]] = []
    alike: Typing | None = None
    for typing in TRIES:
        if typing == alike:
            continue
        if every:
            derivation, written = every.pop()
        else:
            derivation = derive(experiment, types, hints, typing, prices, rulings)
            written = derivation.experiment(experiment)
        if known is not None and derivation.lines == known.derived.lines:
            return "it is the same"
        alike = None if derivation.spread else replace(typing, spread=False)
        if typing.check_vma and derivation.lines in tried:
            continue
        tried.append(derivation.lines)
        floats = Floats()
        reason = judge.refused(written, floats)
        if reason is None:
            return _Accepted(derivation, written, floats, judge)
    return f"JAX refuses the lines: {reason}"


def _accepted_of_graph(
    experiment: Experiment, types: Parts, prices: Prices, rulings: Rulings, judge: Judge, best: _Accepted | str
) -> _Accepted | None:
    """The lines of the cheapest assignment of the whole graph, if they cost a twentieth less than the best so far."""
    known, better = None if isinstance(best, str) else best, None
    try:
        hints = inner_layouts(experiment, types, prices)
    except NotDerived:
        return None
    if hints is None:
        return None
    for binding in (False, True):
        other = _accepted(experiment, types, replace(hints, binding=binding), prices, rulings, judge, known)
        if isinstance(other, str):
            continue
        if known is None or _less(other.cost(prices), known.cost(prices)):
            known = better = other
    return better


_WORTH = 0.95
"""The share of the cost of the lines so far below which others are taken.

For less than a twentieth, more collectives or more computing on every device are not worth it.
"""


def _less(cost: float, other: float) -> bool:
    return cost < other * _WORTH
