"""Rules for operations that create arrays or only move elements: transposes, reshapes, broadcasts, joins."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from runner.base.layout import Spec
from runner.graph.model import Operand, literal
from runner.graph.term import Group, Term, elements
from runner.programs.derivation.calls import Call
from runner.programs.derivation.matrices import aligned
from runner.programs.derivation.registry import Write, rule_for
from runner.programs.derivation.rules import Dimensions, Rule, every, followed_by
from runner.programs.derivation.site import Site
from runner.programs.derivation.terms import built, constant, divided


def permuted(call: Call, order: Callable[[Call, int], Sequence[int] | None]) -> Rule | None:
    """Rule: the dimensions are permuted.

    `order`: for a call and the number of dimensions the operand's dimension for each of the result's; None if unknown.
    """
    shape = call.array.shape
    dimensions = order(call, len(shape))
    if dimensions is None:
        return None
    operands, result = {call.operand.place: every(shape)}, tuple((d,) for d in dimensions)
    return Rule(operands, result, dict(enumerate(shape)), below=call.operand.below)


def _transposed(call: Call, rank: int) -> list[int]:
    axes = call.static("axes")
    return [*range(rank)][::-1] if axes is None else [axis % rank for axis in axes]


def _swapped(call: Call, rank: int) -> list[int]:
    order, first, second = [*range(rank)], call.static("axis1") % rank, call.static("axis2") % rank
    order[first], order[second] = order[second], order[first]
    return order


def _moved(call: Call, rank: int) -> list[int] | None:
    order, source, destination = [*range(rank)], call.static("source"), call.static("destination")
    if not isinstance(source, int) or not isinstance(destination, int):
        return None
    order.insert(destination % rank, order.pop(source % rank))
    return order


rule_for("transpose")(partial(permuted, order=_transposed))
rule_for("matrix_transpose")(partial(permuted, order=lambda call, rank: (*range(rank - 2), rank - 1, rank - 2)))
rule_for("swapaxes")(partial(permuted, order=_swapped))
rule_for("moveaxis")(partial(permuted, order=_moved))


def common(before: tuple[int, ...], after: tuple[int, ...]) -> tuple[Dimensions, Dimensions, dict[int, int]] | None:
    """The factors that two shapes with the same number of elements share; dimensions that share none stay whole.

    Returns the factors of both shapes' dimensions and the factors' sizes; None for empty arrays.
    """
    first: list[list[int]] = [[] for _ in before]
    second: list[list[int]] = [[] for _ in after]
    sizes: dict[int, int] = {}
    i = j = 0
    left, right = list(before), list(after)
    if 0 in before:
        return None
    while i < len(before) and j < len(after):
        if left[i] == 1:
            i += 1
        elif right[j] == 1:
            j += 1
        else:
            shared = min(left[i], right[j])
            crossing = left[i] % shared or right[j] % shared
            # Dimensions that cross share a factor of their common divisor; the rest of them is whole.
            shared = math.gcd(left[i], right[j]) if crossing else shared
            if shared == 1:
                i, j = _past(left, right, i, j)
                continue
            factor = len(sizes)
            sizes[factor] = shared
            first[i].append(factor)
            second[j].append(factor)
            left[i] //= shared
            right[j] //= shared
            if crossing:
                i, j = _past(left, right, i, j)
    return tuple(map(tuple, first)), tuple(map(tuple, second)), sizes


def _past(left: list[int], right: list[int], i: int, j: int) -> tuple[int, int]:
    """The positions, one in each shape, after the next dimensions that end together."""
    a, b = left[i], right[j]
    while a != b:
        if a < b:
            i += 1
            a *= left[i]
        else:
            j += 1
            b *= right[j]
    return i + 1, j + 1


def _shared(call: Call) -> Rule | None:
    shared = common(call.array.shape, call.result.shape)
    if shared is None:
        return None
    dimensions, result, sizes = shared
    counts = followed_by(dimensions, call.operand.counts, result)
    return Rule({call.operand.place: dimensions}, result, sizes, below=call.operand.below, counts=counts)


def _reshaped(site: Site) -> Term:
    argument = site.argument("shape")
    if argument is None:
        return site.rewritten()
    entries = elements(argument)
    if entries is None or len(entries) != len(site.local):
        return built("reshape({x}, {shape})", x=site.x, shape=constant(site.local))
    cut = map(site.parts, site.rule.result)
    local = Group(tuple(_entry(site, entry, n) for entry, n in zip(entries, cut, strict=True)))
    return built("reshape({x}, {shape})", x=site.x, shape=local)


def _entry(site: Site, entry: Operand, n: int) -> Term:
    static = site.statics.term(entry)
    assert static is not None
    return static if literal(static) == -1 else divided(static, n)


@rule_for("reshape", "ravel", write=_reshaped)
def reshaped(call: Call) -> Rule | None:
    """Rule: dimensions split and merge as far as their slowest factors agree."""
    return _shared(call) if call.static("order", "C") == "C" else None


@rule_for("expand_dims", "squeeze", "atleast_1d", "atleast_2d", "atleast_3d")
def reshaped_by_name(call: Call) -> Rule | None:
    """Rule: dimensions of size 1 are added or removed."""
    return _shared(call)


def _broadcast(site: Site) -> Term:
    return built("broadcast_to({x}, {shape})", x=site.x, shape=constant(site.local))


@rule_for("broadcast_to", write=_broadcast)
def broadcast(call: Call) -> Rule | None:
    """Rule: each device broadcasts to the shape of its own block."""
    shape = call.result.shape
    dimensions, result = aligned(call.array.shape, shape), every(shape)
    counts = followed_by(dimensions, call.operand.counts, result)
    sizes = dict(enumerate(shape))
    return Rule({call.operand.place: dimensions}, result, sizes, below=call.operand.below, counts=counts)


def _broadcast_in(site: Site) -> Term:
    return site.rewritten({"shape": constant(site.local)})


@rule_for("broadcast_in_dim", write=_broadcast_in)
def broadcast_in(call: Call) -> Rule | None:
    """Rule: as `broadcast_to`, with the dimensions of the operand at given places."""
    shape, places = call.result.shape, call.static("broadcast_dimensions")
    dimensions = tuple((at,) if n == shape[at] else () for n, at in zip(call.array.shape, places, strict=True))
    result = every(shape)
    counts = followed_by(dimensions, call.operand.counts, result)
    sizes = dict(enumerate(shape))
    return Rule({call.operand.place: dimensions}, result, sizes, below=call.operand.below, counts=counts)


@rule_for("concatenate", "stack")
def joined(call: Call, axis: int | None = None) -> Rule | None:
    """Rule: whole along the joined dimension: `axis`, or the last one of a result that has fewer, else the call's."""
    parts = call.operand.parts or ()
    axis = call.static("axis", 0) if axis is None else min(axis, len(call.result.shape) - 1)
    ranks, rank = {len(Call.type(part).shape) for part in parts}, len(call.result.shape)
    if len(ranks) != 1 or axis is None:
        return None
    axis %= rank
    if ranks not in ({rank}, {rank - 1}):
        return None
    result = every(call.result.shape, but=[axis])
    dimensions = result if ranks == {rank} else tuple(factors for factors in result if factors)
    return Rule({part.place: dimensions for part in parts}, result, dict(enumerate(call.result.shape)))


rule_for("vstack")(partial(joined, axis=0))
rule_for("hstack", "column_stack")(partial(joined, axis=1))
rule_for("dstack")(partial(joined, axis=2))


@rule_for("repeat")
def repeated(call: Call) -> Rule | None:
    """Rule: the copies of an element stay together."""
    shape, times, axis = call.array.shape, call.static("repeats"), call.static("axis")
    if not isinstance(times, int) or call.given("total_repeat_length"):
        return None
    rank = len(shape)
    result: Dimensions = ((*range(rank), rank),)
    if axis is not None:
        result = tuple((d, rank) if d == axis % rank else (d,) for d in range(rank))
    sizes = dict(enumerate((*shape, times)))
    return Rule({call.operand.place: every(shape)}, result, sizes, whole=frozenset({rank}))


def _triangle(site: Site, kept: Literal["<=", ">="]) -> Term:
    """Write a triangle: the elements whose column is `kept` beside their row."""
    shape = site.call.result.shape
    rank = len(shape)
    rows, columns = site.over(rank - 2), site.over(rank - 1)
    if not rows and not columns:
        return site.rewritten()
    template = "arange({n})[:, None]"
    first = site.within(shape[-2], rows, built(template, n=site.local[-2]))
    second = site.indices(shape[-1], columns)
    template = f"where({{c}} {kept} {{r}} + {{k}}, {{x}}, {{nothing}})"
    nothing = False if site.call.result.dtype == "bool" else 0
    return built(template, r=first, c=second, k=site.call.static("k", 0), x=site.x, nothing=nothing)


@rule_for("tril", write=partial(_triangle, kept="<="))
@rule_for("triu", write=partial(_triangle, kept=">="))
def triangle(call: Call) -> Rule | None:
    """Rule: the diagonal starts elsewhere in each block of rows and columns."""
    shape = call.array.shape
    if len(shape) < 2 or not isinstance(call.static("k", 0), int):
        return None
    return Rule({call.operand.place: every(shape)}, every(shape), dict(enumerate(shape)))


@rule_for("tile")
def tiled(call: Call) -> Rule | None:
    """Rule: repeated dimensions must be whole."""
    shape, reps = call.array.shape, call.static("reps")
    reps = (reps,) if isinstance(reps, int) else tuple(reps)
    rank = max(len(reps), len(shape))
    reps, offset = (1,) * (rank - len(reps)) + reps, rank - len(shape)
    result = tuple((d,) if d >= offset and reps[d] == 1 else () for d in range(rank))
    return Rule({call.operand.place: result[offset:]}, result, {d + offset: size for d, size in enumerate(shape)})


def _made(write: Write) -> Write:
    """Write the operation unchanged where its result is whole."""
    return lambda site: write(site) if any(site.assignment.values()) else site.rewritten()


def _own(call: Call) -> Rule:
    shape = call.result.shape
    return Rule({}, every(shape), dict(enumerate(shape)))


_COUNTED = ("int32", "float32")
"""The dtypes in which positions are counted."""


def _from(call: Call) -> tuple[Any, Any]:
    start, stop, step = call.static("start"), call.static("stop"), call.static("step", 1)
    return (0, 1) if stop is None and step == 1 else (start, step)


@_made
def _arange(site: Site) -> Term:
    start, step = _from(site.call)
    dtype = {"float32": ", dtype='float32'"}.get(site.call.result.dtype, "")
    (n,), (size,) = site.local, site.call.result.shape
    index = site.within(size, site.over(0), built("arange({n}" + dtype + ")", n=n))
    index = index if step == 1 else built("{i} * {step}", i=index, step=step)
    return index if start == 0 else built("{start} + {i}", start=start, i=index)


@rule_for("arange", write=_arange)
def arange(call: Call) -> Rule | None:
    """Rule: an `arange` with integer start and step."""
    counted = all(isinstance(number, int) for number in _from(call)) and call.result.dtype in _COUNTED
    return replace(_own(call), counts=0 if _from(call) == (0, 1) else None) if counted else None


@_made
def _filled(site: Site) -> Term:
    return site.rewritten({"shape": constant(site.local)})


@rule_for("zeros", "ones", "full", write=_filled)
def filled(call: Call) -> Rule | None:
    """Rule: an array filled with one number."""
    fill = call.arguments.get("fill_value")
    return None if fill is not None and fill.typed is not None and fill.typed.shape else _own(call)


def _filled_like(site: Site, makes: str) -> Term:
    """`makes`: the operation that makes the same from a shape."""
    place, typed, fill = site.call.operand.place, site.call.result, "fill_value"
    value = site.values.get(place)
    if value is not None and value.shape == typed.shape and value.spec == Spec(map(site.over, range(len(typed.shape)))):
        return site.rewritten({place: value.term})
    template = "{f}({shape}, {fill}, {dtype})" if fill in site.call.arguments else "{f}({shape}, {dtype})"
    others: dict[str, Term] = {"fill": site.whole(fill)} if fill in site.call.arguments else {}
    return built(template, f=makes, shape=constant(site.local), dtype=typed.dtype, **others)


rule_for("zeros_like", "empty_like", write=partial(_filled_like, makes="zeros"))(filled)
rule_for("ones_like", write=partial(_filled_like, makes="ones"))(filled)
rule_for("full_like", write=partial(_filled_like, makes="full"))(filled)


def _diagonal(site: Site, ones: Literal["==", ">="]) -> Term:
    """Write the matrix whose elements are 1 where the row is `ones` beside the column, else 0."""
    k, dtype = site.call.static("k", 0), site.call.static("dtype", None) or "float32"
    rows, columns = site.call.result.shape
    first = built("{i}[:, None]", i=site.indices(rows, site.over(0)))
    first = built("{i} + {k}", i=first, k=k) if k else first
    term = built(f"{{i}} {ones} {{j}}", i=first, j=site.indices(columns, site.over(1)))
    return term if dtype == "bool" else built("astype({x}, {dtype})", x=term, dtype=dtype)


@rule_for("eye", "identity", write=_made(partial(_diagonal, ones="==")))
@rule_for("tri", write=_made(partial(_diagonal, ones=">=")))
def diagonal(call: Call) -> Rule | None:
    """Rule: a diagonal, or the triangle below it."""
    return _own(call) if isinstance(call.static("k", 0), int) and call.static("dtype", "float32") else None


@_made
def _iota(site: Site) -> Term:
    dtype, (n,), (size,) = site.call.static("dtype"), site.local, site.call.result.shape
    return site.within(size, site.over(0), built("iota({dtype}, {n})", dtype=dtype, n=n))


@_made
def _broadcasted(site: Site) -> Term:
    d: int = site.call.static("dimension")
    dtype = site.call.static("dtype")
    term = built("broadcasted_iota({dtype}, {shape}, {d})", dtype=dtype, shape=constant(site.local), d=d)
    return site.within(site.call.result.shape[d], site.over(d), term)


def counted(call: Call) -> Rule | None:
    """Rule: positions along a dimension."""
    along = call.static("dimension", 0)
    if call.static("dtype") not in _COUNTED or not isinstance(along, int):
        return None
    return replace(_own(call), counts=along)


rule_for("iota", write=_iota)(counted)
rule_for("broadcasted_iota", write=_broadcasted)(counted)


def _one_hot(site: Site) -> Term:
    axis, classes = _axis(site.call), site.call.static("num_classes")
    over = site.over(axis)
    if not over:
        return site.rewritten()
    labels = built("{x} - {start}", x=site.x, start=site.start(over, classes))
    return site.rewritten({"x": labels, "num_classes": constant(site.local[axis])})


def _axis(call: Call) -> int:
    return call.static("axis", -1) % len(call.result.shape)


@rule_for("one_hot", write=_one_hot)
def one_hot(call: Call) -> Rule | None:
    """Rule: shard the classes; labels outside of a device's block give zeros."""
    shape, whole_numbers = call.result.shape, (call.static("axis", -1), call.static("num_classes"))
    if len(call.type_of("x").shape) != len(shape) - 1 or not all(isinstance(number, int) for number in whole_numbers):
        return None
    labels = tuple(factors for factors in every(shape, but=[_axis(call)]) if factors)
    return Rule({"x": labels}, every(shape), dict(enumerate(shape)))
