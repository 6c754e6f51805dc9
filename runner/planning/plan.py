"""An experiment, the types of its values, and what is wanted in; the plan out: layouts, what they cost, and why."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from runner.experiment.auto import Least
from runner.experiment.model import Experiment
from runner.layout import Parts, Spec
from runner.planning.front import front, undominated
from runner.planning.network import Choice, Costs, Network
from runner.planning.parallelism import parallelism
from runner.planning.prices import Bytes, Prices, Seconds
from runner.planning.reading import layable
from runner.planning.solving import SECONDS, Solution, Solver
from runner.planning.tables import Tables, by_tensor, held

_ROUNDS = 24
"""How many prices of a byte that is held are tried, as far as there is time."""


@dataclass(frozen=True)
class Wanted:
    """What of a plan is to be least, and the bytes that a device may hold of arrays and outputs.

    - `free`: the keys of the layouts to find; `seconds`: how long they are looked for.
    - `beside`: what else is to be small: a front is found of plans than which no other one is better in all of it.
    """

    least: Least
    free: tuple[str, ...]
    memory: float | None = None
    seconds: float = SECONDS
    beside: tuple[Least, ...] = ()


class NoPlan(Exception):
    """There is none; the message says why. `least`: where the memory is too little, the bytes that would do."""

    def __init__(self, message: str, least: float | None = None) -> None:
        super().__init__(message)
        self.least = least


@dataclass(frozen=True, kw_only=True)
class LineCost:
    """What a line costs, in the plan's unit: `what` of it."""

    line: str
    what: str
    cost: float


@dataclass(frozen=True, kw_only=True)
class AxesBytes:
    """The bytes that a device sends over mesh axes, in all, by one kind of collective; `count` is how often it runs."""

    axes: tuple[str, ...]
    kind: str
    bytes: float
    count: int


@dataclass(frozen=True, kw_only=True)
class Split:
    """How an operation is split: the mesh axes of its factors, and the layouts that it asks of its operands."""

    line: str
    operation: str
    operands: tuple[Spec, ...]
    result: Spec
    reduced: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Layouts by their keys, and what they cost.

    - `constraints`: how the values of lines lie, by their names; `sent`: the bytes that a device sends, `held`: those
      that it holds of arrays and outputs.
    - `costs`: of a front, what it costs of each thing that is to be small.
    """

    layouts: Mapping[str, Spec]
    constraints: Mapping[str, Spec]
    cost: float
    sent: float
    held: float
    costs: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Why a layout was chosen: the next best one of its key, what that costs more in all, and where.

    `next` is None where there is no other one within the memory limit.
    """

    key: str
    spec: Spec
    next: Spec | None
    more: float | None
    since: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan.

    - `cost` is in the unit of what is `least`: bytes that a device sends, seconds, bytes that a device holds.
    - `bound`: what the best plan costs at least; `proved`: that this is the best.
    - `solver`, `variables`, `largest`: how it was found, among how many variables, and the largest table's entries.
    - `memory`: the limit on what a device holds; `unlimited`: what the best plan without it costs.
    - `others`: the next best candidates, the best first; `front`: where several things are to be small, the plans than
      which no other one is better in all.
    - `parallelism`: what the plan does over each mesh axis, in the words that people use.
    - `unknown`: what is taken to cost nothing, or to be whole.
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


def prices_of(experiment: Experiment, least: Least) -> Prices:
    """What costs what on the hardware of an experiment. Raises `NoPlan` where time is wanted and it names none."""
    if least != "time":
        return Bytes(least)
    if experiment.hardware is None:
        raise NoPlan("the least time is that on hardware: name one (hardware=v5p), or ask for the least bytes")
    return Seconds(experiment.hardware, experiment.mesh, experiment.precision)


def plan(experiment: Experiment, types: Parts, wanted: Wanted) -> Plan:
    """The best layouts for the keys of `wanted`. Raises `NoPlan` and `NotDerived`."""
    began = time.perf_counter()
    every = {least: prices_of(experiment, least) for least in dict.fromkeys((wanted.least, *wanted.beside))}
    prices = every[wanted.least]
    found = layable(experiment, types, wanted.free)
    divided = any(each.divided for each in every.values())
    tables = Tables(experiment.mesh, found, prices, divided=divided)
    network = tables.network
    solver = Solver(network.pairs, [len(costs) for costs in network.alone])
    # However long the tables took, some of the time is left to choose.
    until = max(began + wanted.seconds, time.perf_counter() + wanted.seconds / 3)
    solution, priced, unlimited = _within(solver, network, by_tensor(tables), wanted.memory, until)
    alternatives, others = _others(tables, network, solver, priced, solution.choice, wanted)
    points: list[Candidate] = []
    if wanted.beside:
        beside = {
            least: network if least == wanted.least else Tables(experiment.mesh, found, each, divided=divided).network
            for least, each in every.items()
        }
        choices = undominated(list(beside.values()), [solution.choice, *front(list(beside.values()), wanted.seconds)])
        for choice in choices:
            costs = {least: one.cost(choice) for least, one in beside.items()}
            points.append(replace(_candidate(tables, choice), costs=costs))
    unknown = [*found.notes, *tables.notes]
    for each in every.values():
        unknown += each.unknown if isinstance(each, Seconds) else ()
    return Plan(
        least=wanted.least,
        best=_candidate(tables, solution.choice),
        bound=solution.bound,
        proved=solution.proved,
        solver=solution.solver,
        variables=len(network.alone),
        largest=solution.largest,
        memory=wanted.memory,
        unlimited=unlimited,
        alternatives=tuple(alternatives),
        lines=_lines(tables, solution.choice),
        axes=tuple(_axes(tables, solution.choice)),
        splits=tuple(_splits(tables, solution.choice)),
        others=tuple(others),
        front=tuple(points),
        parallelism=tuple(parallelism(tables, solution.choice)),
        unknown=tuple(dict.fromkeys(unknown)),
    )


# Memory.


def _within(
    solver: Solver, network: Network, held_bytes: Mapping[int, Costs], limit: float | None, until: float
) -> tuple[Solution, Network, float]:
    """The best choice that holds no more than the limit, the network in which that is priced, the cost without limit.

    A byte that is held has a price, which is found by bisection: the cheapest choice at a price is the best one of
    those that hold no more than it does, and the least cost at a price, less what the limit costs at it, is a bound.
    """

    def solved(priced: Network, share: float) -> Solution:
        """Solve in a share of the time that is left."""
        now = time.perf_counter()
        return solver.solved(priced, now + max(1.0, share * (until - now)))

    solution = solved(network, 1.0 if limit is None else 0.5)
    unlimited = solution.cost

    def holds(choice: Choice) -> float:
        return sum(float(costs[choice[at]]) for at, costs in held_bytes.items())

    if limit is None or holds(solution.choice) <= limit:
        return solution, network, unlimited
    least = sum(float(costs[np.isfinite(network.alone[at])].min(initial=np.inf)) for at, costs in held_bytes.items())
    if least > limit:
        message = f"no layouts hold so little: arrays and outputs take {round(least)} bytes of a device at least"
        raise NoPlan(message, least)
    low, high, price = 0.0, None, max(abs(solution.cost), 1e-12) / limit
    best: tuple[Solution, Network] | None = None
    bound = solution.bound
    for _ in range(_ROUNDS):
        priced = network.plus({at: price * costs for at, costs in held_bytes.items()})
        cheapest = solved(priced, 0.25)
        bound = max(bound, cheapest.bound - price * limit)
        if holds(cheapest.choice) <= limit:
            high, cost = price, network.cost(cheapest.choice)
            if best is None or cost < best[0].cost:
                best = replace(cheapest, cost=cost), priced
            if _more(best[0].cost, bound) == 0.0:
                break
        else:
            low = price
        if best is not None and time.perf_counter() > until:
            break
        price = price * 16 if high is None else (low + high) / 2
    if best is None:
        # What holds least does not cost least at any of the prices: take what holds least, and of that the cheapest.
        smallest = network.plus({at: np.where(costs > costs.min(), np.inf, 0.0) for at, costs in held_bytes.items()})
        best = solved(smallest, 1.0), smallest
    return replace(best[0], bound=min(bound, best[0].cost)), best[1], unlimited


# What was second, and why.


def _others(
    tables: Tables, network: Network, solver: Solver, priced: Network, chosen: Choice, wanted: Wanted
) -> tuple[list[Alternative], list[Candidate]]:
    """For each key what the next best layout costs, and the cheapest of these as candidates, the best first."""
    free, lying = tables.layable.free, tables.lying
    beside = solver.beside(priced, chosen, set(free.values()))
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
    for key, at in free.items():
        spec = lying[at].spec(chosen[at])
        if key not in seconds:
            alternatives.append(Alternative(key=key, spec=spec, next=None, more=None, since="there is no other one"))
            continue
        following = lying[at].spec(seconds[key][1])
        second = choices.get(key)
        if second is None:
            equal = not _more(seconds[key][0], base)
            since = _EQUAL if equal else "not looked into: others are closer"
            more = 0.0 if equal else None
        else:
            more = _more(network.cost(second), network.cost(chosen))
            since = _since(tables, chosen, second)
            if wanted.memory is not None and held(tables, second) > wanted.memory:
                since = "the next best one holds more than the limit"
            else:
                candidate = _candidate(tables, second)
                candidates.setdefault(tuple(candidate.layouts.values()), candidate)
        alternatives.append(Alternative(key=key, spec=spec, next=following, more=more, since=since))
    return alternatives, sorted(candidates.values(), key=lambda one: one.cost)


_LOOKED = 6
"""Of how many layouts that cost as much, and of how many that cost more, the plan is found and compared."""

_EQUAL = "it costs as much"


def _more(other: float, cost: float) -> float:
    """What the other costs more; what only breaks ties is nothing."""
    return 0.0 if other - cost <= 1e-6 * abs(cost) else other - cost


def _since(tables: Tables, chosen: Choice, other: Choice) -> str:
    """What costs more in the other choice, the most first."""
    mine, theirs = (_by_what(tables, choice) for choice in (chosen, other))
    more = {what: theirs.get(what, 0.0) - mine.get(what, 0.0) for what in theirs}
    if _more(sum(theirs.values()), sum(mine.values())) == 0.0:
        return _EQUAL
    line, what = max(more, key=lambda key: more[key])
    return f"'{line}' would cost more: {what}"


def _by_what(tables: Tables, choice: Choice) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for item in tables.items(choice):
        found[item.line, item.what] = found.get((item.line, item.what), 0.0) + item.cost
    return found


# A choice in words and numbers.


def _candidate(tables: Tables, choice: Choice) -> Candidate:
    lying, layable_ = tables.lying, tables.layable
    constraints = {
        name: lying[at].spec(choice[at])
        for name, at in layable_.named.items()
        if layable_.tensors[at].spec is None and layable_.tensors[at].shape and "." not in name
    }
    return Candidate(
        layouts={key: lying[at].spec(choice[at]) for key, at in layable_.free.items()},
        constraints=constraints,
        cost=tables.network.cost(choice),
        sent=sum(each.sent * times for _, _, times, each in tables.sendings(choice)),
        held=held(tables, choice),
    )


def _lines(tables: Tables, choice: Choice) -> tuple[LineCost, ...]:
    found = sorted(_by_what(tables, choice).items(), key=lambda item: -item[1])
    return tuple(LineCost(line=line, what=what, cost=cost) for (line, what), cost in found)


def _axes(tables: Tables, choice: Choice) -> Iterator[AxesBytes]:
    """What is sent, by mesh axes and kinds."""
    totals: dict[tuple[tuple[str, ...], str], tuple[float, int]] = {}
    for _, _, times, each in tables.sendings(choice):
        sent, count = totals.get((each.axes, each.kind), (0.0, 0))
        totals[each.axes, each.kind] = sent + each.sent * times, count + times
    for (axes, kind), (sent, count) in totals.items():
        yield AxesBytes(axes=axes, kind=kind, bytes=sent, count=count)


def _splits(tables: Tables, choice: Choice) -> Iterator[Split]:
    """How each operation is split, where it is."""
    for number, operation in enumerate(tables.layable.operations):
        way = tables.ways[number][choice[tables.variable(number)]]
        if not any(way.assignment.values()) or not operation.results:
            continue
        spaces = [tables.lying[operand.tensor].space for operand in operation.operands]
        yield Split(
            line=operation.line,
            operation=operation.called,
            operands=tuple(space.layouts[at] for space, at in zip(spaces, way.needed, strict=True)),
            result=tables.lying[operation.results[0]].space.layouts[way.partial[0]],
            reduced=way.over,
        )
