"""What there is to know of one operation on shards, as data, in; what an assignment of mesh axes asks and costs out.

A dimension is a product of factors, the slowest first, as in Shardy's sharding rules. A factor runs along dimensions of
operands and of the result; split over mesh axes, every device computes with its share. A dimension without factors has
to be whole. Where a factor is `reduced`, the devices' results are partial until a collective completes them.

Nothing here writes a program: what an assignment costs is known without one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from runner.layout import Mesh, Spec
from runner.sharding import moves

Factors = tuple[int, ...]
Dimensions = tuple[Factors, ...]
Assignment = Mapping[int, tuple[str, ...]]
"""For each factor the mesh axes that split it, the first one slowest; a factor that is not there is whole."""

Reduction = Literal["sum", "mean", "max", "min", "any", "all", "prod"]


def every(shape: Iterable[int], *, but: Iterable[int] = ()) -> Dimensions:
    """The dimensions of an array, each a factor of its own; those of `but` whole."""
    return tuple((d,) if d not in but else () for d, _ in enumerate(shape))


def followed_by(dimensions: Dimensions, d: int | None, result: Dimensions) -> int | None:
    """The dimension of the result that runs along the operand's `d`, and along nothing else."""
    return None if d is None or not dimensions[d] or dimensions[d] not in result else result.index(dimensions[d])


@dataclass(frozen=True)
class Sent:
    """What a device sends while it computes, if the factors `over` are split.

    - `kind`: a reduction or a gather over their axes; a block to one other device; of a `shift`, what leaves a block
      of a dimension of `size` elements that is shifted by `shift`.
    - `of`: the dimensions of what is sent, as a whole: how long, of which factors, and how much longer it is on each
      device where one of these is split; `width`: the bytes of an element.
    """

    kind: Literal["all-reduce", "all-gather", "permute", "shift"]
    over: Factors
    of: tuple[tuple[int, Factors, int], ...]
    width: int
    shift: int = 0
    size: int = 0

    def bytes(self, mesh: Mesh, assignment: Assignment) -> float:
        """As many as a device sends on a ring."""
        n = _parts(mesh, self.over, assignment)
        if n == 1:
            return 0.0
        held = float(self.width)
        for size, factors, more in self.of:
            parts = _parts(mesh, factors, assignment)
            held *= size / parts + (more if parts > 1 else 0)
        match self.kind:
            case "all-reduce":
                return 2 * (n - 1) / n * held
            case "all-gather":
                return (n - 1) * held
            case "permute":
                return held
            case "shift":
                block = self.size // n
                blocks, rest = divmod(self.shift, block)
                return ((rest if (blocks + 1) % n else 0) + (block - rest if blocks % n else 0)) * held


@dataclass(frozen=True)
class Rule:
    """One operation on shards.

    - `operands`: for each operand, by its place in the call, the factors of its dimensions; `result`: of the result's;
      `sizes`: of each factor.
    - `reduced`: for the factors that the result lacks, what completes it.
    - `whole`: the factors that no axis may split; `permuted`: those whose blocks are given to other devices, so that
      their axes stand in the mesh's order; `least`: how long a block has to be.
    - `single`: of these factors one at most is split; `within`: a factor that is split only where another one is.
    - `halo`: for a factor, how many elements of the blocks before and after a device needs.
    - `edges`: the dimensions of the result of which, where they are split, a device keeps the neighbours' edges.
    - `inside`: what a device sends while it computes; `below`: a bound that every integer of the result lies under;
      `counts`: the dimension along which the result counts its places, if it does.
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

    def sent(self, mesh: Mesh, assignment: Assignment) -> float:
        """The bytes that a device sends while it computes."""
        return sum(each.bytes(mesh, assignment) for each in self.inside)


def halo_sent(
    shape: tuple[int, ...],
    dimensions: Dimensions,
    halo: Mapping[int, tuple[int, int]],
    width: int,
    *,
    corners: bool = True,
) -> tuple[Sent, ...]:
    """The edges of an array's blocks, one dimension after the other.

    `corners`: whether those of the later dimensions have the edges of the earlier ones already.
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
    """How an array with these dimensions lies; None where no PartitionSpec says it."""
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
    """The axes of the factors of an array that lies so, as far as factors can take them."""
    assignment: dict[int, tuple[str, ...]] = {}
    for factors, axes in zip(dimensions, spec, strict=False):
        left = list(axes)
        for factor in factors:
            size = rule.sizes[factor]
            mine: list[str] = []
            while left and size % mesh.sizes[left[0]] == 0 and size > 1:
                size //= mesh.sizes[left[0]]
                mine.append(left.pop(0))
            if mine and factor not in assignment:
                assignment[factor] = tuple(mine)
            if size > 1:
                break
    return assignment


@dataclass(frozen=True)
class Choice:
    """An assignment, and all that follows from it.

    - `operands`: the layouts that it asks of these; `partial`: that of the result before it is completed, over the
      axes of `over` by reductions and along the dimensions and axes of `scattered`; `spec`: after it is.
    - `cost`: the bytes that a device sends to compute and to complete the result, and to have it as it is wanted.
    - `shards`: into how many parts the operation is split; `exchanged`: along other dimensions than its operands are.
    """

    assignment: Assignment
    operands: tuple[Spec, ...]
    partial: Spec
    over: Mapping[Reduction, tuple[str, ...]]
    scattered: tuple[tuple[int, tuple[str, ...]], ...]
    spec: Spec
    cost: float
    shards: int
    exchanged: bool = False


@dataclass(frozen=True)
class Question:
    """How to run an operation by `rule`.

    - `lying`: how the operands lie.
    - `shape` and `itemsize`: those of the result; `wanted`: the layout in which it has to end.
    - `rounds`: in how many steps it is computed for each in which it is completed.
    """

    mesh: Mesh
    rule: Rule
    lying: tuple[Spec, ...]
    shape: tuple[int, ...]
    itemsize: int
    wanted: Spec | None
    rounds: int = 1


def choices(asked: Question) -> tuple[Choice, ...]:
    """The ways to run the operation, those that keep more of the layouts as they are first."""
    mesh, rule, wanted = asked.mesh, asked.rule, asked.wanted
    ways: list[Choice] = []
    for assignment, exchanged in _candidates(asked):
        way = followed(mesh, rule, assignment, asked.shape, asked.itemsize, wanted, asked.rounds)
        if way is not None:
            ways.append(replace(way, exchanged=exchanged) if exchanged else way)
    return tuple(ways)


def cheapest(ways: Sequence[Choice], moving: Callable[[int, Spec], float]) -> Choice:
    """The way for which a device sends the fewest bytes; of these one without an exchange, and with most shards.

    `moving`: what a device sends to have an operand, by its number, in a layout.
    """

    def key(way: Choice) -> tuple[float, bool, int]:
        sent = round(way.cost + sum(itertools.starmap(moving, enumerate(way.operands))), 3)
        return sent, way.exchanged, -way.shards

    # There is one at least: nothing split is always possible.
    return min(ways, key=key)


def _candidates(asked: Question) -> Iterator[tuple[dict[int, tuple[str, ...]], bool]]:
    """The assignments that operands and the wanted result have, parts of these, and what an exchange makes of them."""
    seen: list[dict[int, tuple[str, ...]]] = []
    present = ((each, False) for each in itertools.chain(_present(asked), ({},)))
    for each, exchanged in itertools.chain(present, ((each, True) for each in _exchanged(asked))):
        if each not in seen:
            seen.append(each)
            yield each, exchanged


def _present(asked: Question) -> Iterator[dict[int, tuple[str, ...]]]:
    """The assignments that operands and the wanted result have, merged in any order, and parts of these."""
    mesh, rule, wanted = asked.mesh, asked.rule, asked.wanted
    sources = [
        assigned(mesh, rule, dimensions, spec)
        for spec, dimensions in zip(asked.lying, rule.operands.values(), strict=True)
        if any(spec)
    ]
    if wanted is not None and any(wanted):
        sources.append(assigned(mesh, rule, rule.result, wanted))
    sources = [each for at, each in enumerate(sources) if each and each not in sources[:at]]
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
    """With what splits a dimension that has to be whole, or along which devices send, on a free one instead.

    The operand gets there by an all-to-all, which sends less than a gather.
    """
    mesh, rule = asked.mesh, asked.rule
    sending = {factor for each in rule.inside for factor in each.over}
    for spec, dimensions in zip(asked.lying, rule.operands.values(), strict=True):
        split = [(factors, axes) for factors, axes in zip(dimensions, spec, strict=False) if axes]
        bound = [(factors, axes) for factors, axes in split if rule.whole | sending >= {*factors}]
        stays = {factors[0]: axes for factors, axes in split if len(factors) == 1 and (factors, axes) not in bound}
        free = [factors[0] for factors in dimensions if len(factors) == 1 and rule.whole.isdisjoint(factors)]
        for (_, axes), factor in itertools.product(bound, free):
            joined = stays.get(factor, ()) + axes
            if rule.sizes[factor] % mesh.axis_size(joined) == 0:
                yield {**stays, factor: joined}


def followed(
    mesh: Mesh,
    rule: Rule,
    assignment: Assignment,
    shape: tuple[int, ...],
    itemsize: int,
    wanted: Spec | None,
    rounds: int = 1,
) -> Choice | None:
    """What an assignment asks of the operands, gives as the result and costs; None where it cannot be written.

    `rounds`: in how many steps it is computed for each in which it is completed.
    """
    if not rule.possible(mesh, assignment):
        return None
    partial = layout(mesh, rule, rule.result, assignment)
    operands = [layout(mesh, rule, dimensions, assignment) for dimensions in rule.operands.values()]
    needed = tuple(spec for spec in operands if spec is not None)
    if partial is None or len(needed) < len(operands):
        return None
    cost = rule.sent(mesh, assignment)
    over: dict[Reduction, tuple[str, ...]] = {}
    for factor, kind in rule.reduced.items():
        if assignment.get(factor):
            over[kind] = over.get(kind, ()) + assignment[factor]
    held = moves.local_bytes(mesh, shape, itemsize, partial) if over else 0.0
    spec = partial
    scattered: list[tuple[int, tuple[str, ...]]] = []
    for kind, axes in over.items():
        rest = axes
        if kind in ("sum", "mean") and wanted is not None:
            for dimension, goal in enumerate(wanted):
                more = goal[len(spec[dimension]) :]
                if more and goal[: len(spec[dimension])] == spec[dimension] and set(more) <= set(rest):
                    n = mesh.axis_size(more)
                    cost += (n - 1) / n * held / rounds
                    held /= n
                    spec = Spec((*spec[:dimension], goal, *spec[dimension + 1 :]))
                    scattered.append((dimension, more))
                    rest = tuple(axis for axis in rest if axis not in more)
        n = mesh.axis_size(rest)
        cost += 2 * (n - 1) / n * held / rounds
        over[kind] = tuple(axis for axis in mesh.axes if axis in rest)
    if wanted is not None:
        cost += moves.sent(mesh, shape, itemsize, spec, wanted)
    shards = math.prod(mesh.axis_size(axes) for axes in assignment.values())
    return Choice(assignment, needed, partial, over, tuple(scattered), spec, cost, shards)
