"""Finds the layouts that a rule requires under an assignment of mesh axes, and what they cost.

A dimension is a product of factors, the slowest first, as in Shardy's sharding rules. A factor may occur in operands
and in the result; where it is split over mesh axes, each device computes its own part. A dimension without factors must
be whole. Where a factor is `reduced`, each device holds a partial result until a collective completes it.

Nothing here writes a program: costs are known without one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Literal, TypeAlias

from runner.base.layout import Mesh, Spec
from runner.base.lazy import dataclass
from runner.compiled.estimate.prices import BYTES, Prices, Sending, Work, collective, sending
from runner.graph.language.operations.row import Reduction
from runner.graph.sharding import moves, ring

Factors = tuple[int, ...]
Dimensions = tuple[Factors, ...]
Assignment = Mapping[int, tuple[str, ...]]
"""For each factor the mesh axes that split it, the slowest first; a factor without an entry is whole."""

SCATTERED: tuple[Reduction, ...] = ("sum", "mean")
"""The reductions that a reduce-scatter can complete."""


def every(shape: Iterable[int], *, but: Iterable[int] = ()) -> Dimensions:
    """Give each dimension of an array a factor of its own, except those in `but`, which stay whole."""
    return tuple((d,) if d not in but else () for d, _ in enumerate(shape))


def followed_by(dimensions: Dimensions, d: int | None, result: Dimensions) -> int | None:
    """The result dimension with exactly the factors of operand dimension `d`; None if there is none."""
    return None if d is None or not dimensions[d] or dimensions[d] not in result else result.index(dimensions[d])


@dataclass(frozen=True)
class Sent:
    """The data that a device sends during the computation if the factors `over` are split.

    - `kind`: a collective over the axes of these factors; `permute` sends one block to one other device; `shift` sends
      the elements that leave their block when a dimension of `size` elements is shifted by `shift`.
    - `of`: for each dimension of the unsharded data its length, its factors, and by how much a device's block is longer
      where these are split.
    - `width`: bytes per element.
    - `again`: whether the backward pass sends as much.
    """

    kind: Literal["all-reduce", "all-gather", "permute", "shift"]
    over: Factors
    of: tuple[tuple[int, Factors, int], ...]
    width: int
    shift: int = 0
    size: int = 0
    again: bool = True

    def bytes(self, mesh: Mesh, assignment: Assignment) -> float:
        """The bytes that a device sends on a ring."""
        n = _parts(mesh, self.over, assignment)
        if n == 1:
            return 0.0
        held = float(self.width)
        for size, factors, more in self.of:
            parts = _parts(mesh, factors, assignment)
            held *= size / parts + (more if parts > 1 else 0)
        match self.kind:
            case "all-reduce" | "all-gather":
                return ring.of_block(self.kind, n, held)
            case "permute":
                return held
            case "shift":
                block = self.size // n
                blocks, rest = divmod(self.shift, block)
                return ((rest if (blocks + 1) % n else 0) + (block - rest if blocks % n else 0)) * held


@dataclass(frozen=True)
class Rule:
    """The sharding rule of one operation.

    - `operands`: the factors of each operand's dimensions, by the operand's place in the call.
    - `result`: the factors of the result's dimensions; `sizes`: the size of each factor.
    - `reduced`: the reduction that completes the result over each factor that it lacks.
    - `whole`: the factors that no axis may split.
    - `permuted`: the factors whose blocks are sent to other devices, so their axes must be in mesh order.
    - `least`: the smallest allowed block of a factor.
    - `single`: factors of which at most one may be split; `within`: a factor that may be split only if another one is.
    - `halo`: for a factor, the numbers of elements needed from the previous and from the next block.
    - `edges`: the result dimensions along which, if split, a device keeps its neighbours' edges.
    - `inside`: the data that a device sends during the computation.
    - `below`: an exclusive bound on the result's integers.
    - `counts`: the result dimension along which its elements are 0, 1, 2, ….
    - `looked_up`: the factors along which an array of indices picks elements.
    - `exponentials`: the factors along which exponentials are summed, as by a softmax.
    """

    operands: Mapping[str, Dimensions]
    result: Dimensions
    sizes: Mapping[int, int]
    reduced: Mapping[int, Reduction] = field(default_factory=dict[int, Reduction])
    whole: frozenset[int] = frozenset()
    permuted: frozenset[int] = frozenset()
    least: Mapping[int, int] = field(default_factory=dict[int, int])
    single: frozenset[int] = frozenset()
    within: Mapping[int, int] = field(default_factory=dict[int, int])
    halo: Mapping[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    edges: frozenset[int] = frozenset()
    inside: tuple[Sent, ...] = ()
    below: int | None = None
    counts: int | None = None
    looked_up: frozenset[int] = frozenset()
    exponentials: frozenset[int] = frozenset()

    def possible(self, mesh: Mesh, assignment: Assignment) -> bool:
        """Whether the operation can be written for an assignment."""
        for factor, axes in assignment.items():
            if axes and (
                factor in self.whole
                or (factor in self.permuted and list(axes) != sorted(axes, key=mesh.axes.index))
                or self.sizes[factor] // mesh.axis_size(axes) < self.least.get(factor, 0)
                or (factor in self.within and not assignment.get(self.within[factor]))
            ):
                return False
        return len(self.single) < 2 or sum(bool(assignment.get(factor)) for factor in self.single) < 2

    def sendings(
        self, mesh: Mesh, assignment: Assignment, prices: Prices, *, backward: bool = False
    ) -> Iterator[Sending]:
        """Yield the collectives during the computation, or during that of the gradients of its operands."""
        for message in self.inside:
            if backward and not message.again:
                continue
            axes = tuple(axis for factor in message.over for axis in assignment.get(factor, ()))
            if sent := message.bytes(mesh, assignment):
                yield sending(prices, message.kind, axes, sent)


def halo_sent(
    shape: tuple[int, ...],
    dimensions: Dimensions,
    halo: Mapping[int, tuple[int, int]],
    width: int,
    *,
    corners: bool = True,
) -> tuple[Sent, ...]:
    """The block edges of an array that are sent, one dimension after the other.

    `corners`: whether the edges sent for a later dimension include the edges received for the earlier ones.
    """
    of = [(size, factors, 0) for size, factors in zip(shape, dimensions, strict=True)]
    edged: list[Sent] = []
    for d, factors in enumerate(dimensions):
        edges = sum(map(sum, (halo[factor] for factor in factors if factor in halo)))
        if edges:
            edged.append(Sent("permute", factors, (*of[:d], (edges, (), 0), *of[d + 1 :]), width))
            of[d] = (shape[d], factors, edges if corners else 0)
    return tuple(edged)


def _parts(mesh: Mesh, factors: Factors, assignment: Assignment) -> int:
    n = 1
    for factor in factors:
        n *= mesh.axis_size(assignment.get(factor, ()))
    return n


def layout(mesh: Mesh, rule: Rule, dimensions: Dimensions, assignment: Assignment) -> Spec | None:
    """The layout of an array with these dimensions, or None if no PartitionSpec expresses it."""
    spec: list[tuple[str, ...]] = []
    for factors in dimensions:
        axes: tuple[str, ...] = ()
        full = True
        for factor in factors:
            mine = assignment.get(factor, ())
            if mine and not full:
                return None
            axes += mine
            full = full and (mesh.axis_size(mine) if mine else 1) == rule.sizes[factor]
        spec.append(axes)
    return Spec(spec)


def assigned(mesh: Mesh, rule: Rule, dimensions: Dimensions, spec: Spec) -> dict[int, tuple[str, ...]]:
    """Assign the axes of an array's layout to its factors, as far as these can take them."""
    assignment: dict[int, tuple[str, ...]] = {}
    for factors, axes in zip(dimensions, spec, strict=False):
        left = list(axes)
        for factor in factors:
            size = rule.sizes[factor]
            split: list[str] = []
            while left and size % mesh.sizes[left[0]] == 0 and size > 1:
                size //= mesh.sizes[left[0]]
                split.append(left.pop(0))
            if split and factor not in assignment:
                assignment[factor] = tuple(split)
            if size > 1:
                break
    return assignment


@dataclass(frozen=True)
class PricedAssignment:
    """An assignment and its consequences.

    - `operands`: the layouts that it requires of the operands.
    - `partial`: the layout of the result before it is completed by reductions over the axes in `over` and
      reduce-scatters along the dimensions and axes in `scattered`; `spec`: its layout after that.
    - `sent`: the bytes that a device sends to compute the result, to complete it and to reshard it to the wanted
      layout; `computing`: the cost of the computation itself; `cost`: that of both, in the unit of the prices.
    - `shards`: the number of parts that the operation is split into.
    - `exchanged`: whether an operand is moved by an all-to-all first.
    """

    assignment: Assignment
    operands: tuple[Spec, ...]
    partial: Spec
    over: Mapping[Reduction, tuple[str, ...]]
    scattered: tuple[tuple[int, tuple[str, ...]], ...]
    spec: Spec
    sent: float
    computing: float
    cost: float
    shards: int
    exchanged: bool = False


@dataclass(frozen=True)
class Traffic:
    """What one device computes and moves through its memory if the operation is not split.

    - `read`: the bytes of each operand that is read from memory, 0 for one that is fused with what computes it.
    - `written`: the bytes of the result, 0 if it is fused with what reads it.
    """

    work: Work = field(default_factory=Work)
    read: tuple[float, ...] = ()
    written: float = 0.0

    def cost(self, mesh: Mesh, prices: Prices, operands: Iterable[Spec], result: Spec, shards: int) -> float:
        """The cost of the computation, split into `shards`, with operands and result in these layouts."""
        moved = self.written / mesh.axis_size(result.axes)
        moved += sum(size / mesh.axis_size(spec.axes) for size, spec in zip(self.read, operands, strict=False))
        return prices.computing(self.work, shards, moved)


FUSED = Traffic()
"""The traffic of an operation without products whose operands and result are fused with their neighbours."""


@dataclass(frozen=True)
class Around:
    """What surrounds an operation in a graph.

    - `lying`: the current layouts of its operands; `wanted`: the layout that its result must have, None if any will do.
    - `rounds`: the number of times it is computed for each time it is completed.
    - `prices`: those of what is minimised.
    - `in_memory`: the places of the operands that are arrays of the experiment.
    - `planned`: the assignment that a plan of the whole graph has for it, if there is one; `binding`: whether it is
      taken although another one costs less here.

    All but the layouts and the assignment are the same whenever it is written.
    """

    mesh: Mesh
    lying: tuple[Spec, ...] = ()
    wanted: Spec | None = None
    rounds: int = 1
    prices: Prices = BYTES
    in_memory: frozenset[str] = frozenset()
    planned: Assignment | None = None
    binding: bool = False


@dataclass(frozen=True)
class Question:
    """An operation's rule, what surrounds it, the shape and item size of its result, and its `traffic`."""

    around: Around
    rule: Rule
    shape: tuple[int, ...]
    itemsize: int
    traffic: Traffic = FUSED


def choices(asked: Question) -> tuple[PricedAssignment, ...]:
    """All ways to run the operation, those that keep more of the present layouts first."""
    ways = ((followed(asked, assignment), exchanged) for assignment, exchanged in _candidates(asked))
    return tuple(replace(way, exchanged=exchanged) for way, exchanged in ways if way is not None)


def cheapest(
    ways: Sequence[PricedAssignment], moving: Callable[[int, Spec], float], prices: Prices = BYTES
) -> PricedAssignment:
    """The choice that costs the least; of equals, one without an exchange, then one with the most shards.

    `moving`: the cost of a reshard of an operand, given by number, to a layout.
    """

    def key(way: PricedAssignment) -> tuple[float, bool, int]:
        inside = way.sent if prices is BYTES else way.cost
        cost = round(inside + sum(itertools.starmap(moving, enumerate(way.operands))), prices.digits)
        return cost, way.exchanged, -way.shards

    # Never empty: the unsharded assignment is always possible.
    return min(ways, key=key)


def _candidates(asked: Question) -> Iterator[tuple[dict[int, tuple[str, ...]], bool]]:
    """Yield each candidate assignment once, and whether it needs an all-to-all."""
    yielded: list[dict[int, tuple[str, ...]]] = []
    # The plan may have been made with another of the operation's rules, whose factors are others.
    plan = asked.around.planned
    planned = (dict(plan),) if plan is not None and plan.keys() <= asked.rule.sizes.keys() else ()
    present = ((assignment, False) for assignment in itertools.chain(_present(asked), ({},), planned))
    for assignment, exchanged in itertools.chain(present, ((assignment, True) for assignment in _exchanged(asked))):
        if assignment not in yielded:
            yielded.append(assignment)
            yield assignment, exchanged


def _present(asked: Question) -> Iterator[dict[int, tuple[str, ...]]]:
    """Yield the assignments of the operands and of the wanted result, merged in any order, and subsets of these."""
    mesh, rule, wanted = asked.around.mesh, asked.rule, asked.around.wanted
    sources = [
        assigned(mesh, rule, dimensions, spec)
        for spec, dimensions in zip(asked.around.lying, rule.operands.values(), strict=True)
        if any(spec)
    ]
    if wanted is not None and any(wanted):
        sources.append(assigned(mesh, rule, rule.result, wanted))
    sources = [source for at, source in enumerate(sources) if source and source not in sources[:at]]
    for order in itertools.islice(itertools.permutations(sources), 24):
        merged: dict[int, tuple[str, ...]] = {}
        used: set[str] = set()
        for source in order:
            for factor, axes in source.items():
                mine = tuple(axis for axis in axes if axis not in used)
                if mine and factor not in merged and rule.sizes[factor] % mesh.axis_size(mine) == 0:
                    merged[factor] = mine
                    used |= set(mine)
        for count in range(len(merged) + 1):
            for left_out in itertools.combinations(merged, count):
                yield {factor: axes for factor, axes in merged.items() if factor not in left_out}


def _exchanged(asked: Question) -> Iterator[dict[int, tuple[str, ...]]]:
    """Yield assignments that move the axes of a dimension that must be whole, or sends, to a free dimension.

    An all-to-all reshards the operand to these, which sends less than an all-gather.
    """
    mesh, rule = asked.around.mesh, asked.rule
    sending = {factor for message in rule.inside for factor in message.over}
    for spec, dimensions in zip(asked.around.lying, rule.operands.values(), strict=True):
        split = [(factors, axes) for factors, axes in zip(dimensions, spec, strict=False) if axes]
        bound = [(factors, axes) for factors, axes in split if rule.whole | sending >= {*factors}]
        stays = {factors[0]: axes for factors, axes in split if len(factors) == 1 and (factors, axes) not in bound}
        free = [factors[0] for factors in dimensions if len(factors) == 1 and rule.whole.isdisjoint(factors)]
        for (_, axes), factor in itertools.product(bound, free):
            joined = stays.get(factor, ()) + axes
            if rule.sizes[factor] % mesh.axis_size(joined) == 0:
                yield {**stays, factor: joined}


def followed(asked: Question, assignment: Assignment) -> PricedAssignment | None:
    """The layouts and the cost that follow from an assignment; None if it cannot be written."""
    mesh, prices, rule = asked.around.mesh, asked.around.prices, asked.rule
    if not rule.possible(mesh, assignment):
        return None
    partial = layout(mesh, rule, rule.result, assignment)
    operands = [layout(mesh, rule, dimensions, assignment) for dimensions in rule.operands.values()]
    needed = tuple(spec for spec in operands if spec is not None)
    if partial is None or len(needed) < len(operands):
        return None
    sendings = list(rule.sendings(mesh, assignment, prices))
    over: dict[Reduction, tuple[str, ...]] = {}
    for factor, kind in rule.reduced.items():
        if assignment.get(factor):
            over[kind] = over.get(kind, ()) + assignment[factor]
    completions = (_completed(asked, partial, over, scattered) for scattered in _scatterings(asked, partial, over))
    # Of equals the first, which has the fewest steps after it.
    best = min(completions, key=lambda way: round(way.sent if prices is BYTES else way.cost, prices.digits))
    sent, cost = (sum(getattr(message, of) for message in sendings) for of in ("sent", "cost"))
    shards = math.prod(mesh.axis_size(axes) for axes in assignment.values())
    computing = asked.traffic.cost(mesh, prices, needed, partial, shards)
    return PricedAssignment(
        assignment, needed, partial, best.over, best.scattered, best.spec,
        sent + best.sent, computing, cost + best.cost + computing, shards,
    )  # fmt: skip


Scattering: TypeAlias = tuple[tuple[int, tuple[str, ...]], ...]
"""The dimensions along which a sum is reduce-scattered, each with the mesh axes, in order."""


@dataclass(frozen=True)
class _Completed:
    """A way to complete a result: by reduce-scatters, by all-reduces over the axes in `over`, and by moves after these.

    - `spec`: the layout before the moves; `sent`: the bytes that a device sends in all; `cost`: their cost.
    """

    over: dict[Reduction, tuple[str, ...]]
    scattered: Scattering
    spec: Spec
    sent: float
    cost: float


def _completed(
    asked: Question, partial: Spec, over: Mapping[Reduction, tuple[str, ...]], scattered: Scattering
) -> _Completed:
    mesh, prices, rounds, wanted = asked.around.mesh, asked.around.prices, asked.around.rounds, asked.around.wanted
    size = moves.local_bytes(mesh, asked.shape, asked.itemsize, partial) if over else 0.0
    sendings: list[Sending] = []
    entries = list(partial)
    for dimension, axes in scattered:
        n = mesh.axis_size(axes)
        sendings.append(collective(prices, mesh, "reduce-scatter", axes, size / rounds))
        size, entries[dimension] = size / n, (*entries[dimension], *axes)
    gone = {axis for _, axes in scattered for axis in axes}
    rest: dict[Reduction, tuple[str, ...]] = {
        kind: tuple(a for a in mesh.axes if a in axes and a not in gone) for kind, axes in over.items()
    }
    for axes in rest.values():
        if mesh.axis_size(axes) > 1:
            sendings.append(collective(prices, mesh, "all-reduce", axes, size / rounds))
    spec = Spec(entries)
    sent, cost = sum(message.sent for message in sendings), sum(message.cost for message in sendings)
    if wanted is not None:
        steps = moves.moves(mesh, asked.shape, asked.itemsize, spec, wanted, prices)
        sent += sum(step.sent for step in steps)
        cost += sum(prices.weight(mesh, step) for step in steps)
    return _Completed(rest, scattered, spec, sent, cost)


def _scatterings(asked: Question, partial: Spec, over: Mapping[Reduction, tuple[str, ...]]) -> Iterator[Scattering]:
    """Yield the ways to reduce-scatter a sum: towards the wanted layout, then those that need moves after them."""
    mesh, shape, wanted = asked.around.mesh, asked.shape, asked.around.wanted
    summed = [axis for kind, axes in over.items() if kind in SCATTERED for axis in axes]
    if wanted is None or not summed:
        yield ()
        return
    towards: list[tuple[int, tuple[str, ...]]] = []
    rest = set(summed)
    for dimension, (mine, goal) in enumerate(zip(partial, wanted, strict=True)):
        more = goal[len(mine) :]
        if more and goal[: len(mine)] == mine and set(more) <= rest:
            towards.append((dimension, more))
            rest -= set(more)
    yield tuple(towards)
    if len(over) > 1 or not rest & set(wanted.axes):
        return
    # An axis that cannot be scattered where it is wanted may be scattered elsewhere, and moved afterwards.
    for places in itertools.product((None, *range(len(partial))), repeat=len(summed)):
        scattered = tuple(
            (d, axes)
            for d in range(len(partial))
            if (axes := tuple(axis for axis, place in zip(summed, places, strict=True) if place == d))
        )
        if all(shape[d] % mesh.axis_size((*partial[d], *axes)) == 0 for d, axes in scattered):
            yield scattered
