"""How one operation's dimensions belong together, and how its operands lie, in; the cheapest way to run it on shards.

A dimension is a product of factors, the slowest first, as in Shardy's sharding rules. A factor runs along dimensions of
operands and of the result; split over mesh axes, every device computes with its share. A dimension without factors has
to be whole. Where a factor is `reduced`, the devices' results are partial until a collective completes them.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.layout import Mesh, Spec
from runner.sharding import moves

Factors = tuple[int, ...]
Dimensions = tuple[Factors, ...]
Assignment = Mapping[int, tuple[str, ...]]
"""For each factor the mesh axes that split it, the first one slowest; a factor that is not there is whole."""

NUMBERS = 4
"""As many bytes as a number has whose dtype is not known."""


@dataclass(frozen=True)
class Value:
    """An array as one device has it: the expression, the whole shape, and how the whole lies.

    - `shape` is None for what is no array: it is the same on every device.
    - `make` writes it under any layout without communication, since no array enters it.
    - `below` is a bound that every integer of it lies under, from 0, where that is known.
    - `halo`: the dimensions of which a device has its block and its neighbours' edges.
    - `elements`: of a tuple of arrays, each of them; `free`: no array entered it.
    """

    tree: ast.expr
    shape: tuple[int, ...] | None
    spec: Spec
    dtype: str = "float32"
    make: Callable[[Spec], ast.expr] | None = None
    static: bool = False
    below: int | None = None
    halo: frozenset[int] = frozenset()
    elements: tuple[Value, ...] = ()
    free: bool = False


@dataclass(frozen=True)
class Rule:
    """One operation on shards.

    - `operands`, `result`: the factors of each dimension; `sizes`: of each factor.
    - `reduced`: for the factors that the result lacks, what completes it: `sum`, `mean`, `max`, `min`.
    - `write`: from the operands' expressions and the assignment, the expression of one device, not completed.
    - `inner`: the bytes that a device sends inside of what `write` writes.
    - `allowed`: whether it can be written for an assignment.
    """

    operands: tuple[Dimensions, ...]
    result: Dimensions
    sizes: Mapping[int, int]
    write: Callable[[list[ast.expr], Assignment], ast.expr]
    reduced: Mapping[int, str] = field(default_factory=dict[int, str])
    inner: Callable[[Assignment], float] = lambda _: 0.0
    allowed: Callable[[Assignment], bool] = lambda _: True


@dataclass(frozen=True)
class Choice:
    """An assignment, the layouts that it asks of operands, that of the result, and what completes the result."""

    assignment: Assignment
    operands: tuple[Spec, ...]
    partial: Spec
    over: Mapping[str, tuple[str, ...]]
    scattered: tuple[tuple[int, tuple[str, ...]], ...]
    spec: Spec
    cost: float


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
            full = full and mesh.axis_size(mine) == rule.sizes[factor]
        spec.append(axes)
    return Spec(spec)


def assigned(mesh: Mesh, rule: Rule, dimensions: Dimensions, spec: Spec) -> dict[int, tuple[str, ...]]:
    """The axes of the factors of an array that lies so, as far as factors can take them."""
    found: dict[int, tuple[str, ...]] = {}
    for factors, axes in zip(dimensions, spec, strict=False):
        left = list(axes)
        for factor in factors:
            size = rule.sizes[factor]
            mine: list[str] = []
            while left and size % mesh.sizes[left[0]] == 0 and size > 1:
                size //= mesh.sizes[left[0]]
                mine.append(left.pop(0))
            if mine and factor not in found:
                found[factor] = tuple(mine)
            if size > 1:
                break
    return found


@dataclass(frozen=True)
class Question:
    """How to run an operation by `rule`.

    `shape` and `itemsize` are those of its result, `wanted` is the layout in which it has to end; `cost_of` says what a
    device sends to have a value in another layout.
    """

    mesh: Mesh
    rule: Rule
    values: Sequence[Value]
    shape: tuple[int, ...]
    itemsize: int
    wanted: Spec | None
    cost_of: Callable[[Value, Spec], float]


def choose(asked: Question) -> Choice:
    """The way to run the operation for which a device sends the fewest bytes, and of these the one with most shards."""
    rule, best = asked.rule, None
    for order, assignment in enumerate(_candidates(asked)):
        choice = _evaluate(asked, assignment)
        if choice is None:
            continue
        work = math.prod(rule.sizes.values()) / math.prod(asked.mesh.axis_size(axes) for axes in assignment.values())
        key = (round(choice.cost, 3), work, order)
        if best is None or key < best[0]:
            best = key, choice
    assert best is not None  # nothing split is always possible
    return best[1]


def _candidates(asked: Question) -> Iterator[dict[int, tuple[str, ...]]]:
    mesh, rule, values, wanted = asked.mesh, asked.rule, asked.values, asked.wanted
    sources = [
        assigned(mesh, rule, dimensions, value.spec)
        for value, dimensions in zip(values, rule.operands, strict=True)
        if any(value.spec)
    ]
    if wanted is not None and any(wanted):
        sources.append(assigned(mesh, rule, rule.result, wanted))
    sources = [each for at, each in enumerate(sources) if each and each not in sources[:at]]
    seen: list[dict[int, tuple[str, ...]]] = []
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
                one = {factor: axes for factor, axes in merged.items() if factor not in left_out}
                if one not in seen:
                    seen.append(one)
                    yield one
    if {} not in seen:
        yield {}


def _evaluate(asked: Question, assignment: dict[int, tuple[str, ...]]) -> Choice | None:
    mesh, rule, values, wanted = asked.mesh, asked.rule, asked.values, asked.wanted
    if not rule.allowed(assignment):
        return None
    operands = [layout(mesh, rule, dimensions, assignment) for dimensions in rule.operands]
    partial = layout(mesh, rule, rule.result, assignment)
    if partial is None:
        return None
    needed = [spec for spec in operands if spec is not None]
    if len(needed) < len(operands):
        return None
    cost = sum(asked.cost_of(value, spec) for value, spec in zip(values, needed, strict=True)) + rule.inner(assignment)
    over: dict[str, tuple[str, ...]] = {}
    for factor, kind in rule.reduced.items():
        if assignment.get(factor):
            over[kind] = over.get(kind, ()) + assignment[factor]
    held = moves.local_bytes(mesh, asked.shape, asked.itemsize, partial)
    spec = partial
    scattered: list[tuple[int, tuple[str, ...]]] = []
    for kind, axes in over.items():
        rest = axes
        if kind in ("sum", "mean") and wanted is not None:
            for dimension, goal in enumerate(wanted):
                more = goal[len(spec[dimension]) :]
                if more and goal[: len(spec[dimension])] == spec[dimension] and set(more) <= set(rest):
                    n = mesh.axis_size(more)
                    cost += (n - 1) / n * held
                    held /= n
                    spec = Spec((*spec[:dimension], goal, *spec[dimension + 1 :]))
                    scattered.append((dimension, more))
                    rest = tuple(axis for axis in rest if axis not in more)
        n = mesh.axis_size(rest)
        cost += 2 * (n - 1) / n * held
        over[kind] = tuple(axis for axis in mesh.axes if axis in rest)
    if wanted is not None:
        cost += moves.sent(mesh, asked.shape, asked.itemsize, spec, wanted)
    return Choice(assignment, tuple(needed), partial, over, tuple(scattered), spec, cost)
