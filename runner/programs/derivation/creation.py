"""Writes the term by which each device creates its own block of an array."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from runner.base.layout import Spec
from runner.graph.term import Term
from runner.programs.derivation.calls import Call
from runner.programs.derivation.registry import Write, rule_for
from runner.programs.derivation.rules import Rule, every
from runner.programs.derivation.site import Site
from runner.programs.derivation.terms import built, constant


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
