"""Completes the partial results of a reduction by collectives, one for a sum of two results.

What is linear in sums over devices can be computed from the parts, and summed over devices once.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Literal

from runner.base.layout import Typed
from runner.base.lazy import dataclass
from runner.compiled.estimate.prices import collective
from runner.experiment.traced import TracedTerm
from runner.graph.language.operations import OPERATIONS
from runner.graph.language.operations.row import Reduction
from runner.graph.language.parts import called
from runner.graph.model import literal
from runner.graph.sharding import moves
from runner.graph.term import Apply, Term, bare, calls, children, operates, remade
from runner.programs.derivation.calls import itemsize
from runner.programs.derivation.laying import Layouts
from runner.programs.derivation.rules import PricedAssignment
from runner.programs.derivation.terms import built
from runner.programs.derivation.values import DeviceValue

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
    if row is None or not row.adds or any((x.shape, x.dtype) != (typed.shape, typed.dtype) for x in operands):
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


_SUMS = frozenset(name for name, row in OPERATIONS.items() if row.over is not None and row.over.linear)
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
        if row is None or row.linear is None:
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
