"""The edits of a section that put right a number, a position or an operand that people mistake.

A literal, the index of a device, the first part for the last, the order of a concatenation, an operation for another, a
mask that is there or is not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeGuard

from runner.base.lazy import dataclass
from runner.checks.edits.section import Edit, Edits, EditSite, form, gives_several, named_by
from runner.graph.language.lines import at_index, axes_of, called, operator, parts, plus, with_argument
from runner.graph.language.operations import NO_OPERATION
from runner.graph.language.operations.row import AT
from runner.graph.language.operators import COMPARISONS
from runner.graph.term import (
    NOTHING,
    Apply,
    Const,
    Group,
    Name,
    Slice,
    Term,
    calls,
    children,
    elements,
    mapped,
    names,
    operates,
    substituted,
    within,
)

_LITERALS = 20
"""The largest number of different literals of the reference that are tried in the place of others."""

_CONFUSED: Mapping[str, tuple[str, ...]] = {
    "add": ("multiply",), "multiply": ("add", "power"), "subtract": ("multiply",), "power": ("multiply",),
    "bitwise_and": ("bitwise_or",), "bitwise_or": ("bitwise_and",), "remainder": ("floor_divide",),
    "floor_divide": ("remainder",),
}  # fmt: skip
"""The operators that are taken for each other, besides an operator and its inverse."""

_REDUCTIONS = ("sum", "mean", "max", "min")

_ALTERNATIVES = (_REDUCTIONS, ("argmax", "argmin"), ("max", "logsumexp"), ("maximum", "minimum"))
"""The calls that are taken for each other."""

OF_BLOCK = 1.5
"""The rank of the length of a whole dimension in the place of that of a block, which is the likeliest mistake."""

_LARGE = 2**31 - 1
"""What is put for an integer that no minimum takes."""


def overlooking(edits: Edits) -> Iterator[Edit]:
    """The edits for what is overlooked."""
    reference = _Reference.of(edits)
    for site in edits.sites:
        for part in parts(site.term):
            proposal = _Proposal(edits, site, part)
            yield from _numbers(proposal, reference)
            yield from _positions(proposal)
            yield from _windows(proposal)
            yield from _operations(proposal, reference)
            yield from _operands(proposal)
            yield from _exchanges(proposal)
            yield from _orders(proposal)
            yield from _around_sums(proposal)
            yield from _masks(proposal, reference)
            yield from _of_one_device(proposal)
        for part, value in _activated(site.term):
            yield from _other_activations(_Proposal(edits, site, part), value, reference)


@dataclass(frozen=True)
class _Reference:
    """What the graph, which a section should compute, consists of: its literals, and its operations of one array."""

    literals: tuple[Const, ...]
    unary: tuple[str, ...]
    masks: bool = False
    """Whether it compares something."""
    activations: tuple[Term, ...] = ()
    """Its expressions of one value, which is `_VALUE` in them, as that of `gelu` is."""

    @classmethod
    def of(cls, edits: Edits) -> _Reference:
        every = [part for site in Edits(edits.reference, "graph").sites for part in within(site.term)]
        literals = dict.fromkeys(part for part in every if isinstance(part, Const) and _is_number(part))
        unary = dict.fromkeys(part.operation for part in every if is_unary(part))
        computed = dict.fromkeys(Const(value) for part in every if (value := _folded(part)) is not None)
        activations = dict.fromkeys(
            substituted(part, lambda _: _VALUE) for site in Edits(edits.reference, "graph").sites
            for part in _activations(site.term)
        )  # fmt: skip
        masks = any(map(is_mask, every))
        return cls(tuple({**literals, **computed})[:_LITERALS], tuple(unary), masks, tuple(activations))


@dataclass(frozen=True)
class _Proposal:
    """A part of an expression, and edits of it."""

    edits: Edits
    site: EditSite
    term: Term

    def edit(self, old: Term, new: Term, kind: str, what: str, rank: float, also: Callable[[], str] = str) -> Edit:
        """The section with `new` in place of `old`; `what` is said of the whole part, as it reads after, and `also`
        returns what is said at the end.
        """

        def message() -> str:
            shown, after = self.site.text(old), self.site.text(new)
            return f"{self.site.named}: {shown} {what}: with {after} it equals the graph{also()}"

        return self.edits.edit(self.site, old, new, kind, message, rank)

    def given_together(self, first: Term, second: Term) -> str:
        """The line that may as well give two values in the other order, if one line gives them both."""
        before = [self.site.before.get(value.name) for value in (first, second) if isinstance(value, Name)]
        frames = {None if line is None else line.frame for line in before}
        frame = frames.pop() if len(frames) == 1 else None
        several = frame is not None and frame != self.site.frame and gives_several(frame)
        return f"; or {frame} gives them in the other order" if several else ""


_VALUE = Name("_")

_LONGEST = 40
"""The largest number of parts of an expression of one value."""


def _activations(term: Term) -> Iterator[Apply]:
    """The largest parts of a term that compute each element from that of one value, by more than a product."""
    if len(set(names(term))) == 1 and isinstance(term, Apply):
        every = [*within(term)]
        plain = all(isinstance(part, Name | Const) or part.spelled == "operator" or is_unary(part) or _is_clipped(part)
                    or not names(part)
                    for part in every if isinstance(part, Name | Const | Apply))  # fmt: skip
        bent = any(isinstance(part, Apply) and (is_unary(part) or _is_clipped(part)) for part in every)
        if plain and bent and len(every) <= _LONGEST:
            yield term
            return
    for part in children(term):
        yield from _activations(part)


def _divided(x: float, y: float) -> float:
    return x / y


def _rsqrt(x: float) -> float:
    return 1 / math.sqrt(x)


_FOLDED: Mapping[str, Callable[..., Any]] = {
    "add": float.__add__, "subtract": float.__sub__, "multiply": float.__mul__, "divide": _divided, "power": math.pow,
    "sqrt": math.sqrt, "rsqrt": _rsqrt, "negative": float.__neg__,
}  # fmt: skip


def _folded(term: Term) -> float | None:
    """What an expression of numbers alone gives, as `1 - 0.9**3`; None for other parts, and for a number itself."""
    if not isinstance(term, Apply) or term.operation not in _FOLDED or term.named:
        return None
    operands = [_number(operand) for operand in term.operands]
    try:
        value = None if None in operands else _FOLDED[term.operation](*operands)
    except (ArithmeticError, ValueError, TypeError):
        return None
    return float(value) if isinstance(value, int | float) else None


def _number(term: Term) -> float | None:
    if isinstance(term, Const) and _is_number(term):
        return float(term.value) if isinstance(term.value, int | float) else None
    return _folded(term)


def _is_number(term: Const) -> bool:
    return isinstance(term.value, int | float) and not isinstance(term.value, bool)


def is_unary(term: Term) -> TypeGuard[Apply]:
    """Whether a part computes each element from one array: `tanh(x)`."""
    row = called(term)
    plain = isinstance(term, Apply) and len(term.operands) == 1 and not term.named and term.spelled == "call"
    return plain and row.kind == "array" and row.contraction is None


def _numbers(part: _Proposal, reference: _Reference) -> Iterator[Edit]:
    """Other literals for those that scale, and for those of calls."""
    match part.term:
        case Apply(operation=name, operands=(left, right), spelled="operator") if name in ("multiply", "divide"):
            yield from _divided_sum(part, name, left, right)
            for side in map(uncast, (left, right)):
                # Nobody writes a scale of 1: it is that of a derivative.
                if isinstance(side, Const) and _is_number(side) and side.value != 1:
                    for value, rank in _scales(part, side, reference).items():
                        yield part.edit(side, value, "number", "is the wrong number", rank)
        case Apply(operation=name, operands=operands, spelled="operator") if name not in COMPARISONS:
            for side in operands:
                if isinstance(side, Const) and isinstance(side.value, float):
                    for value in reference.literals:
                        if isinstance(value.value, float) and value != side:
                            yield part.edit(side, value, "number", "is the wrong number", 3.5)
        case Apply(operands=(Const() as side,)) if is_unary(part.term) and _is_number(side):
            for value, rank in _scales(part, side, reference).items():
                yield part.edit(side, value, "number", "is the wrong number", rank)
        case Apply(operation=name, operands=operands, spelled="call") if name in ("maximum", "minimum", "power"):
            for side in operands:
                if isinstance(side, Const) and _is_number(side):
                    for value in reference.literals:
                        if value != side:
                            yield part.edit(side, value, "number", "is the wrong number", 4.5)
        case _:
            return


def _divided_sum(part: _Proposal, name: str, left: Term, right: Term) -> Iterator[Edit]:
    """A sum over devices that is divided by their number, as JAX computes a mean."""
    sums = called(left).over.does == "sum"
    right = uncast(right)
    if name == "divide" and sums and isinstance(right, Const) and right.value in part.edits.counts:
        yield part.edit(part.term, left, "kind", "is a mean where a sum is meant", 0.7)


def uncast(term: Term) -> Term:
    """A part without the cast around it: JAX 0.12 casts numbers."""
    return term.operands[0] if isinstance(term, Apply) and term.operation == "astype" else term


def _scales(part: _Proposal, literal: Const, reference: _Reference) -> Mapping[Const, float]:
    """The numbers that may be meant by a literal of a product or a quotient, with their ranks."""
    assert isinstance(literal.value, int | float)
    number, ranks = literal.value, dict[Const, float]()
    exact = isinstance(number, int)
    lengths = {n for shape in part.edits.blocks.values() for n in shape}
    # Nobody divides by a negative number, and those of a derivative are JAX's.
    derivative = part.site.frame is not None and part.site.frame.derivative
    signed = not derivative and not operates(part.term, ("divide",))
    meant: list[tuple[Iterable[float], float]] = [
        ((number * count for count in part.edits.counts if number in lengths), OF_BLOCK),
        ((value.value for value in reference.literals if isinstance(value.value, int | float)), 3.25),
        (part.edits.counts, 3.25),
        ((number + by for by in (1, -1)), 3.5),
        (lengths if exact else (), 3.5),
        ((-number,) if signed else (), 3.5),
        ((1 / number,) if number and not exact else (), 3.75),
        ((1 / value.value for value in reference.literals if isinstance(value.value, float) and value.value), 3.75),
        (_roots([*lengths, *(value.value for value in reference.literals)], number), 3.75),
        ((1 - number,) if not exact and 0 < number < 1 else (), 3.75),
    ]
    for values, rank in meant:
        for value in values:
            made = Const(int(value) if exact and float(value).is_integer() else float(value))
            if made != literal:
                ranks.setdefault(made, rank)
    return ranks


def _roots(numbers: Iterable[Any], now: float) -> Iterator[float]:
    """The square roots, and their inverses, of numbers that a float may be meant to be: attention has such scales."""
    for number in numbers:
        if isinstance(now, float) and isinstance(number, int | float) and number > 1:
            yield from (math.sqrt(number), 1 / math.sqrt(number))


def _positions(part: _Proposal) -> Iterator[Edit]:
    """The index of a device beside the one that is meant."""
    if not isinstance(part.term, Apply) or part.term.spelled != "operator" or len(part.term.operands) != 2:
        return
    for side in part.term.operands:
        if called(named_by(side, part.site)).over.does == "index":
            for by in (1, -1):
                yield part.edit(side, plus(side, by), "number", "is the wrong device", 4.25)


def _windows(part: _Proposal) -> Iterator[Edit]:
    """The last part for the first, and a window that is shifted."""
    for other in _other_windows(part.term):
        yield part.edit(part.term, other, "window", "takes the wrong part", 4.0)


def _other_windows(term: Term) -> Iterator[Term]:
    """Other parts, as large, of what a term takes a part of."""
    match term:
        case Apply(operands=(x, Slice() as window), spelled="index"):
            yield from (at_index(x, shifted) for shifted in _shifted(window))
        case Apply(operands=(x, Group(items=items, kind="tuple")), spelled="index"):
            for number, item in enumerate(items):
                for shifted in _shifted(item) if isinstance(item, Slice) else ():
                    yield at_index(x, Group((*items[:number], shifted, *items[number + 1 :])))
        case _:
            return


def _shifted(window: Slice[Term]) -> Iterator[Slice[Term]]:
    match window.lower, window.upper:
        case Const(value=None | int() as start), Const(value=int() as stop) if 0 < stop - (start or 0) < stop + 1:
            size = stop - (start or 0)
            yield Slice(Const(stop), Const(stop + size), window.step)
            if (start or 0) >= size:
                yield Slice(Const((start or 0) - size), Const(start), window.step)
        case _:
            pass
    match window.lower, window.upper:
        case Const(value=None | 0), Const(value=int() as size) if size > 0:
            # All but the first for all but the last is true of every length.
            yield Slice(Const(1), NOTHING, window.step)
            yield Slice(Const(-size), NOTHING, window.step)
            yield Slice(Const(1), Const(size + 1), window.step)
        case Const(value=int() as start), Const(value=None):
            yield Slice(NOTHING, Const(-start), window.step)
        case Const(value=None | 0), Const(value=int() as stop) if stop < 0:
            yield Slice(Const(-stop), NOTHING, window.step)
        case Const(value=int() as start), Const(value=int() as stop) if 0 < start < stop:
            yield Slice(NOTHING, Const(stop - start), window.step)
            for by in (1, -1):
                yield Slice(Const(start + by), Const(stop + by), window.step)
        case _:
            return


def _orders(part: _Proposal) -> Iterator[Edit]:
    """The dimensions in another order, of what is reshaped or exchanged between devices, and of a transpose."""
    row = called(part.term)
    if not isinstance(part.term, Apply) or row is NO_OPERATION or not part.term.operands:
        return
    operand = part.term.operands[0]
    order = elements(part.term.operands[1]) if calls(part.term, ("transpose",)) and part.term.operands[1:] else None
    if order is not None:
        for others in itertools.permutations(order) if len(order) <= _ORDERED else _with_two_exchanged(order):
            new = with_argument(part.term, 1, Group(others))
            if others != tuple(order):
                yield part.edit(part.term, new, "order", "has the wrong order of dimensions", 5.0)
    sizes = elements(part.term.operands[1]) if calls(part.term, ("reshape", "broadcast_to")) else None
    if sizes is not None and sizes.count(Const(1)) == 1:
        rest = [size for size in sizes if size != Const(1)]
        for at in range(len(sizes)):
            new = Apply("reshape", (operand, Group((*rest[:at], Const(1), *rest[at:]))))
            if elements(new.operands[1]) != sizes:
                yield part.edit(part.term, new, "order", "has its new dimension in the wrong place", 4.5)
    exchanges = row.over.does == "exchange"
    if not (exchanges or calls(part.term, ("reshape",))) or calls(operand, ("transpose", "reshape")):
        return
    for axes in itertools.combinations(map(Const, range(_ORDERED)), 2):
        new = Apply("swapaxes", (operand, *axes))
        also = (
            [(operand, new)] if not exchanges else [(operand, new), (part.term, Apply("swapaxes", (part.term, *axes)))]
        )
        for old, swapped in also:
            yield part.edit(old, swapped, "order", "has the wrong order of dimensions", 4.5)


_ORDERED = 4
"""The largest number of dimensions of which every other order is tried; of more, two are exchanged."""


def _with_two_exchanged(items: Sequence[Term]) -> Iterator[tuple[Term, ...]]:
    for first, second in itertools.combinations(range(len(items)), 2):
        others = [*items]
        others[first], others[second] = items[second], items[first]
        yield tuple(others)


def _operations(part: _Proposal, reference: _Reference) -> Iterator[Edit]:
    """An operation of one array for another, or one too many; a reduction of another kind."""
    term = part.term
    if not isinstance(term, Apply):
        return
    if is_unary(term):
        for name in reference.unary:
            if name != term.operation:
                yield part.edit(term, Apply(name, term.operands), "operation", f"is where {name} is meant", 4.0)
        yield part.edit(term, term.operands[0], "operation", f"is one {term.operation} too many", 4.25)
    for alike in _ALTERNATIVES:
        for name in alike if term.operation in alike and term.spelled == "call" else ():
            if name != term.operation:
                new = Apply(name, term.operands, term.named)
                likely = {name, term.operation} == {"sum", "mean"}
                yield part.edit(term, new, "operation", f"is where a {name} is meant", 3.25 if likely else 4.0)
    takes = term.spelled == "operator" or term.operation in _REDUCTIONS
    taken = [operand for operand in term.operands if takes and isinstance(operand, Name)]
    whole = [term] if part.term is part.site.term or term.spelled == "operator" else []
    for name in reference.unary:
        for bare in (*whole, *taken) if not is_unary(term) else ():
            yield part.edit(bare, Apply(name, (bare,)), "operation", f"is without {name}", 4.75)
    for activation in reference.activations:
        for bare in (*whole, *taken) if form(activation) not in map(form, within(part.site.term)) else ():
            new = substituted(activation, lambda _, value=bare: value)
            yield part.edit(bare, new, "operation", "is without a function that the reference has", 4.75)
    if term.spelled == "operator" and len(term.operands) == 2:
        for name in _CONFUSED.get(term.operation, ()):
            for new in (operator(name, *term.operands), *_binding(name, *term.operands)):
                yield part.edit(term, new, "operation", "is another operation", 4.0)
        yield from _distributed(part, term)
    match term:
        case Apply(operation="subtract", operands=(Const(value=1 | 1.0), side), spelled="operator"):
            yield part.edit(term, side, "operation", "is the other share", 4.0)
        case Apply(operation="multiply" | "add", operands=operands, spelled="operator"):
            for side in operands:
                if isinstance(side, Name) or (term.operation == "add" and not isinstance(side, Const)):
                    new = operator("subtract", Const(1.0), side)
                    yield part.edit(side, new, "operation", "is the other share", 4.25)
        case Apply(operation="squeeze", operands=(Apply(operands=(x, _), spelled="index"), Const() as axis)):
            yield part.edit(term, Apply("sum", (x,), (("axis", axis),)), "operation", "is where a sum is meant", 4.25)
        case _:
            pass
    yield from _normalisations(part, term)
    if term.operation == "flip":
        yield part.edit(term, term.operands[0], "order", "is reversed once too often", 4.0)
    if term.operation == "sort":
        yield part.edit(term, Apply("flip", (term, Const(-1))), "order", "has the wrong order", 4.0)
    scan = called(term).scan
    if scan is not None and scan.reduction == "sum":
        own = operator("subtract", term, term.operands[0])
        yield part.edit(term, own, "order", "counts each element itself too", 4.0)
    if term.operation == "power" and len(term.operands) == 2:
        yield part.edit(term, term.operands[0], "operation", "is one power too many", 4.0)


def _normalisations(part: _Proposal, term: Apply) -> Iterator[Edit]:
    """`x / sum(x)` where `softmax(x)` is meant, and the reverse."""
    match term:
        case Apply(operation="exp", operands=(Apply(operation="subtract", operands=(x, top)),)):
            if any(isinstance(inner, Apply) and inner.operation == "max" for inner in within(top)):
                yield part.edit(term, x, "operation", "is of a softmax where a division by the sum is meant", 3.5)
        case Apply(operation="divide", operands=(x, total)):
            sums = [inner for inner in within(total) if isinstance(inner, Apply) and inner.operation == "sum"]
            if [inner.operands[0] for inner in sums] == [x] and not isinstance(x, Const):
                raised = Apply("exp", (x,))
                new = operator("divide", raised, _swapped(total, x, raised))
                yield part.edit(term, new, "operation", "is divided by its sum where a softmax is meant", 3.5)
        case _:
            return


def _binding(name: str, left: Term, right: Term) -> Iterator[Term]:
    """`x - y * z` for `x - y - z`: an operator that is taken for another is read as Python binds that."""
    if name == "multiply" and isinstance(left, Apply) and left.operation in ("add", "subtract"):
        first, second = left.operands
        yield operator(left.operation, first, operator(name, second, right))


def _activated(term: Term) -> Iterator[tuple[Apply, Term]]:
    """The parts of a term that compute each element from that of one value, with that value."""
    for part in _activations(term):
        yield part, next(each for each in within(part) if isinstance(each, Name))
    for part in parts(term):
        if isinstance(part, Apply) and (is_unary(part) or _is_clipped(part)) and not isinstance(part.operands[0], Name):
            yield part, part.operands[0]


def _other_activations(part: _Proposal, value: Term, reference: _Reference) -> Iterator[Edit]:
    """Another function of one value: a `gelu` for a `relu`, of which JAX makes several operations."""
    term = part.term
    for activation in reference.activations:
        new = substituted(activation, lambda _: value)
        if new != term and form(activation) != form(term):
            yield part.edit(term, new, "operation", "is another function than the reference has", 4.25)


def _distributed(part: _Proposal, term: Apply) -> Iterator[Edit]:
    """`a * (b + c)` where `a * b + c` is meant, and the reverse; so for quotients."""
    a, b = term.operands
    if term.operation == "divide":
        yield from _scaling_less(part, term, a, lambda value: operator("divide", value, b))
    if term.operation == "multiply":
        yield from _scaling_less(part, term, b, lambda value: operator("multiply", a, value))
        yield from _scaling_less(part, term, a, lambda value: operator("multiply", b, value))
    for at, side in enumerate(term.operands if term.operation in ("add", "subtract") else ()):
        if isinstance(side, Apply) and side.operation == "divide":
            inside = [side.operands[0] if number == at else each for number, each in enumerate(term.operands)]
            new = operator("divide", operator(term.operation, *inside), side.operands[1])
            yield part.edit(term, new, "order", "scales too little", 4.25)
    addends = [*_addends(term)] if term.operation in ("add", "subtract") else []
    for (at, (sign, total)), (other, (added, value)) in itertools.permutations(enumerate(addends[:_ADDED]), 2):
        if isinstance(total, Apply) and total.operation == "multiply":
            scale, scaled = total.operands
            pair = ((sign, scaled), (added, value))
            # As parentheses would: the sign before the first is that of the whole.
            (outer, first), (inner, second) = pair if at < other else pair[::-1]
            grouped = operator("multiply", scale, operator("add" if inner > 0 else "subtract", first, second))
            rest = [each for number, each in enumerate(addends) if number not in (at, other)]
            rest.insert(min(at, other), (outer, grouped))
            yield part.edit(term, _added_up(rest), "order", "scales too little", 4.25)


_ADDED = 4
"""The largest number of terms of a sum of which one is scaled with another."""


def _addends(term: Term, sign: int = 1) -> Iterator[tuple[int, Term]]:
    """The terms of a sum, each with its sign: `a`, `-b` and `c` of `a - b + c`."""
    if isinstance(term, Apply) and term.operation in ("add", "subtract") and term.spelled == "operator":
        left, right = term.operands
        yield from _addends(left, sign)
        yield from _addends(right, sign if term.operation == "add" else -sign)
    else:
        yield sign, term


def _added_up(addends: Sequence[tuple[int, Term]]) -> Term:
    (sign, total), *others = addends
    total = total if sign > 0 else Apply("negative", (total,))
    for sign, addend in others:
        total = operator("add" if sign > 0 else "subtract", total, addend)
    return total


def _scaling_less(part: _Proposal, term: Apply, total: Term, scale: Callable[[Term], Term]) -> Iterator[Edit]:
    """A scaled sum or difference, of which one term alone is scaled."""
    if isinstance(total, Apply) and total.operation in ("add", "subtract"):
        left, right = total.operands
        for new in (operator(total.operation, scale(left), right), operator(total.operation, left, scale(right))):
            yield part.edit(term, new, "order", "scales too much", 4.0)


def _operands(part: _Proposal) -> Iterator[Edit]:
    """A concatenation in another order; a product with an operand that is transposed, or squared."""
    term = part.term
    match term:
        case Apply(operation="concatenate" | "stack" as name, operands=(Group(items=items) as group, *rest)):
            if len(items) > 1:
                turned = Apply(name, (Group(items[::-1], group.kind), *rest), term.named)
                yield part.edit(term, turned, "order", f"{name}s in the wrong order", 3.5)
            for item in items if len(items) == _SHIFTED else ():
                for other in _other_windows(item):
                    pair = [other if item is each else each for each in items][::-1]
                    new = Apply(name, (Group(tuple(pair), group.kind), *rest), term.named)
                    yield part.edit(term, new, "window", "shifts the wrong way", 4.0)
        case Apply(operation="einsum", operands=(Const(value=str() as labels), *_)):
            for other in _exchanged(labels):
                yield part.edit(term, with_argument(term, 0, Const(other)), "dimension", "has wrong labels", 4.5)
        case Apply(operation="pad", operands=(_, Group(items=items) as group, *_)):
            for number, item in enumerate(items):
                if isinstance(item, Group):
                    for pads in _other_pads(item):
                        turned = Group((*items[:number], pads, *items[number + 1 :]), group.kind)
                        yield part.edit(term, with_argument(term, 1, turned), "order", "pads the wrong side", 3.5)
        case Apply(operation="multiply" | "divide" | "add" | "subtract", operands=(x, y), spelled="operator"):
            for side in (x, y):
                if isinstance(side, Name):
                    yield part.edit(side, operator("multiply", side, side), "operation", "is not squared", 5.0)
                    if term.operation == "multiply":
                        positive = operator("greater", side, Const(0))
                        yield part.edit(side, positive, "mask", "is no mask of where it is positive", 4.5)
        case Apply(operation="minimum" | "maximum", operands=operands):
            for side in operands:
                if not isinstance(side, Const):
                    new = operator("divide", Const(1.0), side)
                    yield part.edit(side, new, "operation", "is not inverted", 5.5)
        case _:
            return


_SHIFTED = 2
"""The number of values that are concatenated where one is shifted: a part of it, and what comes in at the end."""


def _other_pads(pads: Group[Term]) -> Iterator[Group[Term]]:
    """The same padding at the other side, at one side alone, and moved by one."""
    match pads.items:
        case (Const(value=int() as before), Const(value=int() as after)):
            total = before + after
            for new in dict.fromkeys(((after, before), (total, 0), (0, total), (before + 1, after - 1),
                                      (before - 1, after + 1))):  # fmt: skip
                if new != (before, after) and min(new) >= 0:
                    yield Group((Const(new[0]), Const(new[1])), pads.kind)
        case items:
            yield Group(items[::-1], pads.kind)


def _exchanges(part: _Proposal) -> Iterator[Edit]:
    """Two values, or two numbers, of one line that stand in each other's place: `0.2 * left + 0.3 * right`."""
    if part.term is not part.site.term:
        return
    every = [*dict.fromkeys(within(part.term))]
    for is_kind, rank in ((_is_name, 3.5), (_is_float, 3.5), (_is_part, 3.5)):
        for first, second in itertools.combinations([*filter(is_kind, every)][:_EXCHANGED], 2):
            if _shape(part, first) == _shape(part, second):
                new = _swapped(part.term, first, second)
                also = partial(part.given_together, first, second)
                yield part.edit(part.term, new, "exchange", "has two values in each other's place", rank, also)
    for rest in every:
        match rest:
            case Apply(operation="subtract", operands=(Const(value=1 | 1.0), Name() as share)):
                new = _swapped(part.term, rest, share)
                yield part.edit(part.term, new, "exchange", "has a share and its rest in each other's place", 3.5)
            case _:
                pass


_EXCHANGED = 5
"""The largest number of values of a line of which two are exchanged."""


def _is_name(term: Term) -> bool:
    return isinstance(term, Name)


def _is_float(term: Term) -> bool:
    return isinstance(term, Const) and isinstance(term.value, float)


def _is_part(term: Term) -> bool:
    """Whether a term is a part of a value: `padded[1:-1]`."""
    return isinstance(term, Apply) and term.spelled == "index" and isinstance(term.operands[0], Name)


def _shape(part: _Proposal, term: Term) -> tuple[int, ...] | None:
    """The shape of an array; None for other values."""
    return part.edits.blocks.get(term.name) if isinstance(term, Name) else None


def _swapped(term: Term, first: Term, second: Term) -> Term:
    if term == first:
        return second
    return first if term == second else mapped(term, lambda each: _swapped(each, first, second))


def _around_sums(part: _Proposal) -> Iterator[Edit]:
    """`f(x) + b` where `f(x + b)` is meant, and the reverse; `f(x)` where `x * f(x)` is meant."""
    term = part.term
    if not isinstance(term, Apply):
        return
    if term.operation in ("add", "subtract") and term.spelled == "operator" and len(term.operands) == 2:
        for at, side in enumerate(term.operands):
            line = named_by(side, part.site)
            if isinstance(line, Apply) and (is_unary(line) or _is_clipped(line)):
                operands = [line.operands[0] if number == at else each for number, each in enumerate(term.operands)]
                new = replace(line, operands=(operator(term.operation, *operands), *line.operands[1:]))
                yield part.edit(term, new, "order", f"is outside of {line.operation}", 3.5)
    if is_unary(term):
        inner = named_by(term.operands[0], part.site)
        if isinstance(inner, Apply) and inner.operation in ("add", "subtract") and inner.spelled == "operator":
            for at, side in enumerate(inner.operands):
                operands = [replace(term, operands=(side,)) if number == at else each
                            for number, each in enumerate(inner.operands)]  # fmt: skip
                new = operator(inner.operation, *operands)
                yield part.edit(term, new, "order", f"has a term inside of {term.operation}", 3.75)
        yield part.edit(term, operator("multiply", term.operands[0], term), "operation", "is without its factor", 4.25)


def _is_clipped(term: Apply) -> bool:
    """Whether a part is one array clipped by a number: `relu(x)`."""
    return term.operation in ("maximum", "minimum") and not names(term.operands[1])


def _exchanged(labels: str) -> Iterator[str]:
    """The labels of an einsum with two of one operand, or of the result, exchanged."""
    given, arrow, result = labels.partition("->")
    terms = [*given.split(","), result]
    for number, term in enumerate(terms):
        for at in range(len(term) - 1):
            turned = term[:at] + term[at + 1] + term[at] + term[at + 2 :]
            *operands, last = (*terms[:number], turned, *terms[number + 1 :])
            yield f"{','.join(operands)}{arrow}{last}"


def _masks(part: _Proposal, reference: _Reference) -> Iterator[Edit]:
    """A mask that is too much, or that is missing from what is summed; one without its lower bound."""
    term = part.term
    if isinstance(term, Apply) and term.operation == "less" and not isinstance(term.operands[0], Const):
        both = operator("bitwise_and", operator("greater_equal", term.operands[0], Const(0)), term)
        yield part.edit(term, both, "edge", "has no lower bound", 3.25)
    row = called(term)
    if reference.masks and isinstance(term, Apply) and row.contraction is not None:
        for side in term.operands if row.name != "einsum" else ():
            yield part.edit(side, Apply("tril", (side,)), "mask", "is not masked", 4.75)
    match term:
        case Apply(operation="where", operands=(condition, x, y)):
            if is_mask(condition) and isinstance(condition, Apply):
                left, right = condition.operands[:2]
                for by in (1, 0, -1):
                    turned = replace(condition, operands=(plus(left, by) if by else left, right))
                    new = Apply("where", (turned, y, x))
                    yield part.edit(term, new, "mask", "keeps the other half", 3.5)
            for at, fill in enumerate((x, y), 1):
                if isinstance(fill, Const) and _is_number(fill):
                    most = _LARGE if isinstance(fill.value, int) else math.inf
                    for value in (most, -most):
                        filled = with_argument(term, at, Const(value))
                        yield part.edit(term, filled, "mask", "puts in what a maximum or minimum takes", 3.5)
            yield part.edit(term, x, "mask", "masks what should be whole", 4.5)
            yield part.edit(term, y, "mask", "keeps what should be masked", 5.0)
        case Apply(operands=(x, *_), spelled="call") if _sums(term):
            for name, before in reversed(part.site.before.items()):
                if is_mask(before.term):
                    for mask in (Name(name), Apply("expand_dims", (Name(name), Const(-1)))):
                        new = Apply("where", (mask, x, Const(0.0)))
                        yield part.edit(x, new, "mask", "is not masked", 4.5)
        case _:
            return


def _of_one_device(part: _Proposal) -> Iterator[Edit]:
    """What one device alone should give a sum over devices, or store: the last stage of a pipeline."""
    term, sums = part.term, called(part.term).over.does == "sum"
    if not isinstance(term, Apply) or not (sums or term.operation.startswith(AT)):
        return
    value = term.operands[0 if sums else -1]
    for axes in part.edits.combinations if isinstance(value, Name) else ():
        for device in (0, part.edits.experiment.mesh.axis_size(axes) - 1):
            there = operator("equal", Apply("axis_index", (axes_of(axes),)), Const(device))
            masked = Apply("where", (there, value, Const(0)))
            yield part.edit(value, masked, "mask", "is not that of one device alone", 4.0)


def _sums(term: Term) -> bool:
    row = called(term)
    return row.over.does == "sum" or row.name == "sum"


def is_mask(term: Term) -> bool:
    """Whether a line compares, or combines what does."""
    match term:
        case Apply(operation=name, spelled="operator"):
            return name in COMPARISONS or name in ("bitwise_and", "bitwise_or", "invert")
        case Apply(operation=name):
            return name.startswith("logical_") or name in COMPARISONS
        case _:
            return False
