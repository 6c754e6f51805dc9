"""Plans an experiment: layouts, costs and reasons for an objective."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace

import numpy as np

from runner.base.layout import Parts, Spec
from runner.base.lazy import dataclass
from runner.base.words import listed
from runner.compiled.estimate.prices import Bytes, EstimatedSeconds, Prices, scattering
from runner.experiment.model import Experiment
from runner.experiment.open_layouts import Least, LineCost
from runner.programs.derivation.scopes import NotDerived
from runner.programs.planning import clock
from runner.programs.planning.costs import costs_more, costs_the_same
from runner.programs.planning.front import front, undominated
from runner.programs.planning.limited import TooLittleMemory, limited
from runner.programs.planning.memory import Memory
from runner.programs.planning.model import Layable
from runner.programs.planning.network import Choice, Network
from runner.programs.planning.parallelism import parallelism
from runner.programs.planning.reading import layable
from runner.programs.planning.solving import SECONDS, Solution, Solver
from runner.programs.planning.tables import Contracting, Tables, held


@dataclass(frozen=True)
class Wanted:
    """The objective of a plan.

    - `least`: the cost to minimise; `memory`: the bytes that a device may need, None for no limit.
    - `free`: the keys of the layouts to choose; `seconds`: the time limit, the tables of costs included.
    - `beside`: further costs; with them the plan has a front of plans that no other one beats in all.
    - `typed`: whether functions run on Explicit axes, where JAX's types have the layouts that no code states.
    """

    least: Least
    free: tuple[str, ...]
    memory: float | None = None
    seconds: float = SECONDS
    beside: tuple[Least, ...] = ()
    typed: bool = False


class NoPlan(Exception):
    """No plan exists, for the reason in the message; `least`: the bytes of memory that would suffice, if too few."""

    def __init__(self, message: str, least: float | None = None) -> None:
        super().__init__(message)
        self.least = least


@dataclass(frozen=True, kw_only=True)
class AxesBytes:
    """The total bytes that a device sends over mesh axes by one kind of collective, which runs `count` times."""

    axes: tuple[str, ...]
    kind: str
    bytes: float
    count: int


@dataclass(frozen=True, kw_only=True)
class Split:
    """How an operation is split: the layouts of its operands and its result, and the axes that it is reduced over."""

    line: str
    operation: str
    operands: tuple[Spec, ...]
    result: Spec
    reduced: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Layouts by key, and their costs.

    - `constraints`: the layouts of lines, by name; `sent`: the bytes that a device sends; `held`: the bytes that it
      holds of arrays and outputs; `needed`: the most bytes that it needs at a time, values in between included.
    - `costs`: on a front, each of the costs that are to be small.
    - `saved`: what checkpoints that are `auto` save: names, or `everything`; None if that was not to be chosen.
    """

    layouts: Mapping[str, Spec]
    constraints: Mapping[str, Spec]
    cost: float
    sent: float
    held: float
    needed: float
    costs: Mapping[str, float] = field(default_factory=dict[str, float])
    saved: tuple[str, ...] | str | None = None


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """The runner-up of a layout: the next best spec of its key, by how much it costs more in all, and why.

    `next` is None if no other layout is within the memory limit.
    """

    key: str
    spec: Spec
    next: Spec | None
    more: float | None
    since: str


@dataclass(frozen=True, kw_only=True)
class LayoutPlan:
    """A plan.

    - `cost`: in the unit of `least`: bytes that a device sends, seconds, or bytes that a device holds.
    - `bound`: a lower bound on the cost of the best plan; `proved`: whether this plan is proved to be the best.
    - `solver`, `variables`, `largest`: the method, the number of variables, and the entries of the largest table.
    - `memory`: the limit on the bytes that a device holds; `unlimited`: the cost of the best plan without it.
    - `recomputed`: the flops of products that a device computes again for the backward pass.
    - `others`: the next best candidates, the best first; `front`: plans that no other one beats in all costs.
    - `parallelism`: the kinds of parallelism over each mesh axis, in words.
    - `unknown`: what is taken as free of cost or as whole.
    """

    least: Least
    best: Candidate
    bound: float
    proved: bool
    solver: str
    variables: int
    largest: int
    memory: float | None
    unlimited: float
    alternatives: tuple[Alternative, ...]
    lines: tuple[LineCost, ...]
    axes: tuple[AxesBytes, ...]
    splits: tuple[Split, ...]
    others: tuple[Candidate, ...] = ()
    front: tuple[Candidate, ...] = ()
    parallelism: tuple[str, ...] = ()
    unknown: tuple[str, ...] = field(default=())
    recomputed: float = 0.0

    @property
    def unfinished(self) -> bool:
        """Whether the search ended so early that the plan may cost ten times as much as the best one.

        With a memory limit the bound does not say so.
        """
        return not self.proved and self.memory is None and self.bound < self.best.cost / _FARTHEST

    @property
    def exceeds(self) -> bool:
        """Whether the plan needs more memory than its limit, since no choice was found that does not."""
        return self.memory is not None and self.best.needed > self.memory


_FARTHEST = 10
"""How many times the bound a plan without a memory limit may cost."""


def prices_of(experiment: Experiment, least: Least) -> Prices:
    """The prices for an objective. Raises `NoPlan` if it is time and the experiment names no hardware.

    They are those of the hardware's compiler, or of the target's if no hardware is named.
    """
    if least != "time":
        return Bytes(least, scattering=scattering(_platform(experiment), experiment.hardware))
    if experiment.hardware is None:
        raise NoPlan("plan.least=time needs hardware: choose it, hardware=v5p, or write plan.least=bytes")
    return EstimatedSeconds(experiment.hardware, experiment.mesh, experiment.precision)


def _platform(experiment: Experiment) -> str:
    """The platform whose compiler the model follows."""
    return (experiment.hardware or experiment.target).platform


_SEARCHED = 0.9
"""The share of the time limit after which the search ends; runners-up and the costs of each line take the rest."""

_BUILT = 10
"""How much longer it takes to make an entry of a table than to read it."""

_RESERVED = 0.25
"""The share of the time limit that the search has in any case, also where the tables alone take longer."""


def plan(experiment: Experiment, types: Parts, wanted: Wanted, graph: Layable | None = None) -> LayoutPlan:
    """The best layouts for the keys of `wanted`. Raises `NoPlan` and `NotDerived`.

    `graph`: what `layable` made of the experiment, if it was called already.
    """
    if experiment.regions:
        raise NotDerived(f"the shard_map in {listed(experiment.regions)} has its layouts in in_specs and out_specs")
    until = clock.now() + _SEARCHED * wanted.seconds
    every: dict[Least, Prices] = {
        least: prices_of(experiment, least) for least in dict.fromkeys((wanted.least, *wanted.beside))
    }
    graph = graph or layable(experiment, types, wanted.free)
    contracting = Contracting()
    search = _searched(experiment, graph, every, wanted, until, contracting)
    while more := frozenset(search.tables.contracted(search.solution.choice)) - contracting:
        contracting |= more
        search = _searched(experiment, graph, every, wanted, until, contracting)
    tables, memory, networks, solution = search.tables, search.memory, search.networks, search.solution
    network, others, unlimited = networks[wanted.least], search.others, search.unlimited
    points: list[Candidate] = []
    if wanted.beside:
        in_order = list(networks.values())
        for choice in undominated(in_order, [solution.choice, *front(in_order, search.until)]):
            costs = {least: of_least.cost(choice) for least, of_least in networks.items()}
            points.append(replace(_candidate(tables, memory, choice), costs=costs))
    unknown = [*graph.notes, *tables.notes]
    for each in every.values():
        unknown += each.unknown if isinstance(each, EstimatedSeconds) else ()
    return LayoutPlan(
        least=wanted.least,
        best=_candidate(tables, memory, solution.choice),
        bound=solution.bound,
        proved=solution.proved,
        solver=solution.solver,
        variables=len(network.alone),
        largest=solution.largest,
        memory=wanted.memory,
        unlimited=unlimited,
        alternatives=others.alternatives,
        lines=_lines(tables, solution.choice),
        axes=tuple(_axes(tables, solution.choice)),
        splits=tuple(_splits(tables, solution.choice)),
        others=others.candidates,
        front=tuple(points),
        parallelism=tuple(parallelism(tables, solution.choice)),
        unknown=tuple(dict.fromkeys(unknown)),
        recomputed=tables.recomputed(solution.choice),
    )


@dataclass(frozen=True)
class _Search:
    """The best choice of tables, that of an equal or better runner-up included, the runners-up, and the end of time.

    `unlimited`: the cost of the best choice without a memory limit.
    """

    tables: Tables
    memory: Memory
    networks: Mapping[Least, Network]
    solution: Solution
    others: _Others
    unlimited: float
    until: float


def _searched(
    experiment: Experiment,
    graph: Layable,
    every: Mapping[Least, Prices],
    wanted: Wanted,
    until: float,
    contracting: Contracting,
) -> _Search:
    """The best choice. Products of `contracting` do not lie so that the compiler contracts over further axes."""
    divided = any(each.divided for each in every.values())
    of: dict[Least, Tables] = {
        least: Tables(experiment.mesh, graph, prices, divided=divided, contracting=contracting, typed=wanted.typed)
        for least, prices in every.items()
    }
    networks: dict[Least, Network] = {least: each.network for least, each in of.items()}
    clock.count(_BUILT * sum(network.distinct for network in networks.values()), len(graph.operations))
    tables, network = of[wanted.least], networks[wanted.least]
    memory = Memory(tables, _platform(experiment))
    solver = Solver(network.pairs, [len(costs) for costs in network.alone], graph.free.values())
    now = clock.now()
    until = max(until, now + _RESERVED * wanted.seconds)
    try:
        best = limited(solver, network, memory, wanted.memory, now + (until - now) / len(every))
    except TooLittleMemory as error:
        raise NoPlan(str(error), error.least) from None
    solution = best.solution
    others = _others(tables, memory, solver, best.priced, solution.choice, wanted)
    while others.better is not None and clock.now() < until:
        cost = network.cost(others.better)
        solution = replace(solution, choice=others.better, cost=cost, bound=min(solution.bound, cost))
        others = _others(tables, memory, solver, best.priced, solution.choice, wanted)
    return _Search(tables, memory, networks, solution, others, best.unlimited, until)


# Runners-up.


@dataclass(frozen=True)
class _Others:
    """The next best layout of each key, and the cheapest plans with these, the best first.

    `better`: one of them that costs less than the plan; prices of memory can miss it.
    """

    alternatives: tuple[Alternative, ...]
    candidates: tuple[Candidate, ...]
    better: Choice | None


def _others(tables: Tables, memory: Memory, solver: Solver, priced: Network, chosen: Choice, wanted: Wanted) -> _Others:
    free, lying, network = tables.layable.free, tables.lying, tables.network
    limit = None if wanted.memory is None else max(wanted.memory, memory.needed(chosen))
    beside = solver.beside(priced, chosen)
    seconds: dict[str, tuple[float, int]] = {}
    for key, at in free.items():
        others = np.where(lying[at].own == lying[at].own[chosen[at]], np.inf, beside.least[at])
        if np.isfinite(others).any():
            seconds[key] = float(others.min()), int(others.argmin())
    looked = sorted(seconds, key=lambda key: seconds[key][0])
    base = priced.cost(chosen)
    different = [key for key in looked if _more(seconds[key][0], base)]
    choices = {key: beside.choice(free[key], seconds[key][1]) for key in {*looked[:_LOOKED], *different[:_LOOKED]}}
    alternatives: list[Alternative] = []
    candidates: dict[tuple[Spec, ...], Candidate] = {}
    better, least = None, network.cost(chosen)
    costs = _by_what(tables, chosen)
    for key, at in free.items():
        spec = lying[at].spec(chosen[at])
        if key not in seconds:
            alternatives.append(Alternative(key=key, spec=spec, next=None, more=None, since="there is no other plan"))
            continue
        following = lying[at].spec(seconds[key][1])
        second = choices.get(key)
        if second is None:
            equal = costs_the_same(seconds[key][0], base)
            since = _EQUAL if equal else NOT_EXAMINED
            more = 0.0 if equal else None
        else:
            more = _more(network.cost(second), network.cost(chosen))
            since = _since(tables, costs, second)
            if limit is not None and memory.needed(second) > limit:
                since = "the next best one needs more than the limit"
            else:
                candidate = _candidate(tables, memory, second)
                candidates.setdefault(tuple(candidate.layouts.values()), candidate)
                if _more(least, candidate.cost):
                    better, least = second, candidate.cost
        alternatives.append(Alternative(key=key, spec=spec, next=following, more=more, since=since))
    return _Others(tuple(alternatives), tuple(sorted(candidates.values(), key=lambda each: each.cost)), better)


_LOOKED = 6
"""The number of runners-up overall, and of those that cost more, whose plans are compared."""

_EQUAL = "it costs the same"

NOT_EXAMINED = "next best layouts without a reason were not examined: others are closer"
"""The sentence on next best layouts whose plans are not compared."""


def _more(other: float, cost: float) -> float:
    """By how much the other choice costs more; 0 if the difference only breaks ties."""
    return other - cost if costs_more(other, cost) else 0.0


def _since(tables: Tables, mine: Mapping[tuple[str, str], float], other: Choice) -> str:
    """The line with the largest extra cost in the other choice, as a sentence, or that both cost the same."""
    theirs = _by_what(tables, other)
    more = {what: theirs.get(what, 0.0) - mine.get(what, 0.0) for what in theirs}
    if _more(sum(theirs.values()), sum(mine.values())) == 0.0:
        return _EQUAL
    line, what = max(more, key=lambda key: more[key])
    return f"'{tables.layable.place(line)}' would cost more: {what}"


def _by_what(tables: Tables, choice: Choice) -> dict[tuple[str, str], float]:
    costs: dict[tuple[str, str], float] = {}
    for item in tables.items(choice):
        key = item.line, item.what
        costs[key] = costs.get(key, 0.0) + item.cost
    return costs


# A choice in words and numbers.


def _candidate(tables: Tables, memory: Memory, choice: Choice) -> Candidate:
    lying, layable_ = tables.lying, tables.layable
    constraints = {
        name: lying[at].spec(choice[at])
        for name, at in {**layable_.named, **layable_.inside}.items()
        if layable_.tensors[at].spec is None and layable_.tensors[at].shape
    }
    return Candidate(
        layouts={key: lying[at].spec(choice[at]) for key, at in layable_.free.items()},
        constraints=constraints | dict(_read_as(tables, choice)),
        cost=tables.network.cost(choice),
        sent=sum(sending.sending.sent * sending.times for sending in tables.sendings(choice)),
        held=held(tables, choice),
        needed=memory.needed(choice),
    )


def _read_as(tables: Tables, choice: Choice) -> Iterator[tuple[str, Spec]]:
    """Yield the arrays that every line, and their gradients, are computed with in the same other layout, with this.

    Constrained so, the compiler contracts over the axes of the plan in the gradients of weights, too.
    """
    graph, read = tables.layable, dict[int, set[int | None]]()
    for number, operation in enumerate(graph.operations):
        variable, possible = choice[tables.variable(number)], tables.possible(number)
        inside = operation.line in graph.frames or operation.steps > 1
        for at, result in enumerate(operation.results):
            way = possible[int(tables.result_ways(number, at)[choice[result], variable])]
            for place, (operand, needed) in enumerate(zip(operation.operands, way.needed, strict=True)):
                layouts = read.setdefault(operand.tensor, set())
                layouts.add(None if inside else needed)
                if operation.differentiated and graph.tensors[operand.tensor].differentiated:
                    back = int(tables.gradient_ways(number, place)[choice[operand.tensor], variable])
                    layouts.add(possible[back].needed[place])
    for at in graph.arrays:
        lying, layouts = tables.lying[at], read.get(at, set())
        layout = next(iter(layouts)) if len(layouts) == 1 else None
        if layout is not None and layout != int(lying.own[choice[at]]):
            yield graph.tensors[at].name, lying.space.layouts[layout]


def _lines(tables: Tables, choice: Choice) -> tuple[LineCost, ...]:
    costs = sorted(_by_what(tables, choice).items(), key=lambda item: -item[1])
    written = tables.layable.written
    return tuple(LineCost(line=written(line), what=what, cost=cost) for (line, what), cost in costs)


def _axes(tables: Tables, choice: Choice) -> Iterator[AxesBytes]:
    """Yield the bytes sent, by mesh axes and kind of collective."""
    totals: dict[tuple[tuple[str, ...], str], tuple[float, int]] = {}
    for sending in tables.sendings(choice):
        key = sending.sending.axes, sending.sending.kind
        sent, count = totals.get(key, (0.0, 0))
        totals[key] = sent + sending.sending.sent * sending.times, count + sending.times
    for (axes, kind), (sent, count) in totals.items():
        yield AxesBytes(axes=axes, kind=kind, bytes=sent, count=count)


def _splits(tables: Tables, choice: Choice) -> Iterator[Split]:
    """Yield the split of each operation that is split."""
    for number, operation in enumerate(tables.layable.operations):
        way = tables.ways[number][choice[tables.variable(number)]]
        if not any(way.assignment.values()) or not operation.results:
            continue
        spaces = [tables.lying[operand.tensor].space for operand in operation.operands]
        yield Split(
            line=tables.layable.written(operation.line),
            operation=operation.called,
            operands=tuple(space.layouts[at] for space, at in zip(spaces, way.needed, strict=True)),
            result=tables.lying[operation.results[0]].space.layouts[way.partial[0]],
            reduced=way.over,
        )
