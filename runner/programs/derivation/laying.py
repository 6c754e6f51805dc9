"""Lays a value out anew, counts the bytes that a device sends for it, and completes the partial results of reductions.

What is linear in sums over devices can be computed from the parts, and summed over devices once: a sum of two results
needs one collective.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Literal, TypeAlias

from runner.base.layout import Spec, Typed
from runner.base.lazy import dataclass
from runner.compiled.estimate.prices import Prices, Sending, collective
from runner.experiment.traced import TracedTerm
from runner.graph.language.lines import called
from runner.graph.language.operations import OPERATIONS
from runner.graph.language.operations.row import Reduction
from runner.graph.model import literal
from runner.graph.sharding import moves
from runner.graph.term import Apply, Const, Group, Name, Term, bare, calls, children, operates, remade
from runner.programs.derivation.calls import DeviceValue, Unmade, itemsize
from runner.programs.derivation.rules import PricedAssignment
from runner.programs.derivation.scopes import Binding, Names, Scope
from runner.programs.derivation.terms import built, constant, gathered

_MOVED = {"all-gather": "gathered", "all-to-all": "exchanged", "collective-permute": "permuted"}

LayoutsState: TypeAlias = tuple[float, float, float, set[str], dict[int, Spec], dict[tuple[str, tuple[str, ...]], str]]


class Layouts:
    """The layouts in which each named value is available.

    - `prices`: what is to be small.
    - `sent`: the total bytes that a device sends; `computing`: the cost of its computation; `cost`: the cost of both,
      in the unit of the prices.
    """

    def __init__(self, names: Names, prices: Prices, *, invarying: bool) -> None:
        self.names, self.mesh, self.prices = names, names.mesh, prices
        self.sent: float = 0.0
        self.computing: float = 0.0
        self.cost: float = 0.0
        self.asked: dict[int, Spec] = {}
        """The first layout that each resharded result, by its number, is wanted in."""
        self.moved: set[str] = set()
        """The lines that only reshard another line."""
        self.spread: dict[tuple[str, tuple[str, ...]], str] = {}
        """The names of arrays that are cast to varying, by array and mesh axes."""
        self.invarying: Mapping[str, str] = {"to": "invarying"} if invarying else {}
        """The keyword that marks the result of an all-gather as the same on all devices."""

    def copied(self) -> LayoutsState:
        """A snapshot of the cost and of the reshards, for `restore`."""
        return self.sent, self.computing, self.cost, set(self.moved), dict(self.asked), dict(self.spread)

    def restore(self, copied: LayoutsState) -> None:
        """Go back to a snapshot."""
        self.sent, self.computing, self.cost, self.moved, self.asked, self.spread = copied

    def compute(self, cost: float, scope: Scope) -> None:
        """Count the cost of a computation in each step of a scope."""
        self.computing += cost * scope.steps
        self.cost += cost * scope.steps

    def spend(self, sendings: Iterable[Sending], scope: Scope) -> None:
        """Count collectives in each step of a scope."""
        for sending in sendings:
            self.sent += sending.sent * scope.steps
            self.cost += sending.cost * scope.steps

    def unspend(self, sent: Sending, scope: Scope) -> None:
        """Take back a collective that was counted in each step of a scope."""
        self.sent -= sent.sent * scope.steps
        self.cost -= sent.cost * scope.steps

    def spend_once(self, term: Term, sendings: Sequence[Sending]) -> None:
        """Count the collectives of a term, unless its scope already has the same one."""
        scope = self.names.home(term)
        if term not in scope.collectives:
            scope.collectives.add(term)
            scope.sent[term] = tuple(sendings)
            self.spend(sendings, scope)
        else:
            scope.again.add(term)

    def unspend_only(self, terms: Sequence[Term]) -> tuple[Sending, ...] | None:
        """Take back collectives of one scope, which nothing else uses; returns what the first sends.

        Returns None, and takes nothing back, where something else uses one of them.
        """
        scopes = [self.names.home(term) for term in terms]
        scope = scopes[0]
        if any(other is not scope for other in scopes) or scope.again & {*terms}:
            return None
        if len({*terms}) < len(terms) or not scope.collectives >= {*terms}:
            return None
        sendings = [scope.sent.pop(term) for term in terms]
        scope.collectives -= {*terms}
        for group in sendings:
            for sending in group:
                self.unspend(sending, scope)
        return sendings[0]

    def cost_of(
        self, value: DeviceValue, spec: Spec, scope: Scope | None = None, prices: Prices | None = None
    ) -> float:
        """The cost, per step of `scope`, of resharding a value; infinite for one with a halo.

        `prices`: by default those of the derivation.
        """
        if value.shape is None or value.make is not None or value.spec == spec:
            return 0.0
        if value.halo:
            return math.inf
        binding = self.names.bound_to(value)
        if binding is None and value.turned is not None:
            return self.cost_of(value.turned, Spec(spec[::-1]), scope, prices)
        if binding is not None and spec in binding[1].held:
            return 0.0
        weights = self.prices if prices is None else prices
        sent = moves.sent(self.mesh, value.shape, itemsize(value.dtype), value.spec, spec, weights)
        if binding is None and scope is None:
            return sent
        return sent * self.names.home(value.term).steps / (scope or self.names.scopes[-1]).steps

    def reshard(self, value: DeviceValue, spec: Spec) -> DeviceValue:
        """The value in another layout; a reshard of a named value becomes a line, which later readers share."""
        if value.shape is None or value.spec == spec:
            return value
        if value.make is not None:
            try:
                return replace(value, term=value.make(spec), spec=spec)
            except Unmade:
                pass  # the whole array is sliced instead
        binding = self.names.bound_to(value)
        if value.made is not None:
            self.asked.setdefault(value.made, spec)
        if binding is None and value.turned is not None and value.name is None:
            turned = self.reshard(value.turned, Spec(spec[::-1]))
            return replace(value, term=remade(value.term, (turned.term,)), spec=spec, turned=turned, made=None)
        if binding is not None and spec in binding[1].held:
            return binding[1].held[spec]
        steps = self.moves(value.shape, value.dtype, value.spec, spec)
        moved = replace(value, term=self._moved(value, steps), spec=spec, make=None, made=None)
        communicates = any(step.kind != "slice" for step in steps)
        scope = self.names.scopes[-1] if binding is None else binding[0]
        if communicates:
            self.spend_once(moved.term, [Sending(s.kind, s.axes, s.sent, self._weight(s)) for s in steps])
        if binding is None or not communicates:
            return moved
        kind = next(step.kind for step in steps if step.kind != "slice")
        assert value.name is not None
        name = self.names.fresh(f"{value.name.replace('.', '_')}_{_MOVED[kind]}")
        self.names.put(name, moved.term, scope)
        self.moved.add(name)
        named = replace(moved, term=Name(name))
        binding[1].held[spec] = named
        scope.names[name] = Binding(named)
        return named

    def moves(self, shape: tuple[int, ...], dtype: str, before: Spec, after: Spec) -> tuple[moves.Move, ...]:
        """The cheapest steps from one layout of an array to another."""
        return moves.moves(self.mesh, shape, itemsize(dtype), before, after, self.prices)

    def _weight(self, step: moves.Move) -> float:
        return self.prices.weight(self.mesh, step)

    def _moved(self, value: DeviceValue, steps: Sequence[moves.Move]) -> Term:
        term = value.term
        assert value.shape is not None
        for group in _together(steps):
            step, axes = group[-1], tuple(axis for move in group for axis in move.axes)
            match step.kind:
                case "all-gather":
                    term = gathered(term, axes, axis=step.dimension, tiled=True, **self.invarying)
                case "slice":
                    size = value.shape[step.dimension] // self.mesh.axis_size(step.after[step.dimension])
                    start = self.offset(axes, constant(size))
                    template = "dynamic_slice_in_dim({x}, {start}, {size}, axis={d})"
                    term = built(template, x=term, start=start, size=size, d=step.dimension)
                case "all-to-all":
                    template = "all_to_all({x}, {over}, {split}, {join}, tiled=True)"
                    term = built(template, x=term, over=axes, split=step.split, join=step.dimension)
                case "collective-permute":
                    pairs = constant([list(pair) for pair in step.permutation])
                    term = built("ppermute({x}, {over}, perm={pairs})", x=term, over=axes, pairs=pairs)
        return term

    def whole(self, value: DeviceValue) -> Term:
        """The term of the whole array on every device; of a tuple, that of each of its arrays."""
        if any(any(element.spec) for element in value.elements):
            return Group(tuple(map(self.whole, value.elements)))
        return value.term if value.shape is None else self.reshard(value, Spec().padded(len(value.shape))).term

    def offset(self, axes: tuple[str, ...], size: Term) -> Term:
        """The start of this device's block: `axis_index('x') * 16`."""
        if size == Const(1):
            return built("axis_index({over})", over=axes)
        return built("axis_index({over}) * {size}", over=axes, size=size)


def _together(steps: Sequence[moves.Move]) -> Iterator[list[moves.Move]]:
    """Group the steps, consecutive slices of one dimension together."""
    for kind, group in itertools.groupby(steps, key=lambda step: (step.kind, step.dimension)):
        if kind[0] == "slice":
            yield list(group)
        else:
            for step in group:
                yield [step]


Derivative = Literal["none", "stopped", "taken"]
"""How a reduction is differentiated: not at all, up to a `stop_gradient` behind it, or through it."""


def completed(layouts: Layouts, term: Term, choice: PricedAssignment, typed: Typed, derivative: Derivative) -> Term:
    """Append the collectives of a choice to a partial result, and count the bytes that they send."""
    mesh = layouts.mesh
    size = moves.local_bytes(mesh, typed.shape, itemsize(typed.dtype), choice.partial) if choice.over else 0.0
    scattered = choice.scattered
    for kind, axes in choice.over.items():
        for dimension, over in scattered:
            n = mesh.axis_size(over)
            term = built("psum_scatter({x}, {over}, scatter_dimension={d}, tiled=True)", x=term, over=over, d=dimension)
            layouts.spend_once(term, [collective(layouts.prices, mesh, "reduce-scatter", over, size)])
            term = built("{x} / {n}", x=term, n=n) if kind == "mean" else term
            size /= n
        scattered = ()
        if axes:
            term, by = reduced(term, kind, axes, derivative)
            layouts.spend_once(term, [collective(layouts.prices, mesh, by, axes, size)])
    return term


def together(layouts: Layouts, term: Term, typed: Typed, operands: Sequence[DeviceValue]) -> Term:
    """`psum(a) + psum(b)` as `psum(a + b)`, which sends half; other terms unchanged.

    The sums may be scaled, and lines that only this term reads: such a line then gives each device's own part. The
    operands have the type of the result: what is summed is neither broadcast nor of another dtype.
    """
    row, names = called(term), layouts.names
    if not row.adds or any((x.shape, x.dtype) != (typed.shape, typed.dtype) for x in operands):
        return term
    stripping = Stripping(names.read_once, partial(is_scalar, numbers=names.experiment.dims))
    inner = stripping.strip(term)
    sums = stripping.sums
    if inner is None or any(around(total, term) != around(sums[0], term) for total in sums):
        return term
    sendings = layouts.unspend_only(sums)
    if sendings is None:
        return term
    names.rewrite(stripping.stripped)
    both = around(sums[0], inner)
    layouts.spend_once(both, sendings)
    return both


def reduced(term: Term, kind: Reduction, axes: tuple[str, ...], derivative: Derivative) -> tuple[Term, str]:
    """The term that reduces over mesh axes, and the kind of its collective."""
    gathered = "{f}(all_gather({x}, {over}, axis=0, to='invarying'), axis=0)"
    match kind:
        case "sum":
            return built("psum({x}, {over})", x=term, over=axes), "all-reduce"
        case "mean":
            return built("pmean({x}, {over})", x=term, over=axes), "all-reduce"
        case "any":
            return built("pmax(astype({x}, 'int8'), {over}) > 0", x=term, over=axes), "all-reduce"
        case "all":
            return built("pmin(astype({x}, 'int8'), {over}) > 0", x=term, over=axes), "all-reduce"
        case "max" | "min" if derivative == "none":
            return built(f"p{kind}({{x}}, {{over}})", x=term, over=axes), "all-reduce"
        case "max" | "min" if derivative == "stopped":
            return built(f"p{kind}(stop_gradient({{x}}), {{over}})", x=term, over=axes), "all-reduce"
        case _:
            # JAX has no derivative of pmax, and no collective for products.
            return built(gathered, f=kind, x=term, over=axes), "all-gather"


_SUMS = frozenset(name for name, row in OPERATIONS.items() if row.over.linear)
"""The collectives that add up the devices' values."""


@dataclass
class Stripping:
    """Takes the sums over devices out of terms that are linear in them.

    - `read_once`: the only line that defines a name, if the name is read once; else None.
    - `is_scalar`: whether a term is a number that is the same on all devices.
    - `sums`: the collectives taken out; `stripped`: the rewritten terms of other lines.
    """

    read_once: Callable[[str], TracedTerm | None]
    is_scalar: Callable[[Term], bool]
    sums: list[Apply] = field(default_factory=list[Apply])
    stripped: dict[str, Term] = field(default_factory=dict[str, Term])

    def strip(self, term: Term) -> Term | None:
        """A term linear in sums over devices, without these sums; None if it is not linear."""
        if calls(term, _SUMS):
            self.sums.append(term)
            return term.operands[0]
        name, row, parts = bare(term), called(term), children(term)
        if name is not None:
            line = self.read_once(name)
            stripped = None if line is None else self.strip(line.term)
            if stripped is None:
                return None
            self.stripped[name] = stripped
            return term
        if row.linear is None:
            return None
        if row.linear == "together":
            kept = tuple(part for part in map(self.strip, parts) if part is not None)
            return remade(term, kept) if len(kept) == len(parts) else None
        left, right = parts
        if self.is_scalar(right):
            stripped = self.strip(left)
            return None if stripped is None else remade(term, (stripped, right))
        stripped = self.strip(right) if row.linear == "each" and self.is_scalar(left) else None
        return None if stripped is None else remade(term, (left, stripped))


def around(collective: Apply, x: Term) -> Apply:
    """The collective of another term."""
    return replace(collective, operands=(x, *collective.operands[1:]))


def is_scalar(term: Term, numbers: Container[str | None]) -> bool:
    """Whether a term is a number, the same on all devices; `numbers` are the names that stand for one."""
    if operates(term):
        return all(is_scalar(operand, numbers) for operand in term.operands)
    return isinstance(literal(term), int | float) or bare(term) in numbers
