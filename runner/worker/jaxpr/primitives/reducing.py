"""Writes reductions, cumulative operations and windows in the language."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from runner.base.lazy import dataclass
from runner.graph.language.lines import operator
from runner.graph.term import Apply, Const, Group, Term
from runner.programs.derivation.terms import constant, indexed
from runner.worker.jaxpr.primitives.indexing import counting
from runner.worker.jaxpr.primitives.registry import (
    REFERENCE,
    Application,
    Unread,
    axes_part,
    filled,
    numpy_dtype,
    reads,
)
from runner.worker.jaxpr.primitives.shaping import slice_of, without_trailing


def _over(application: Application) -> tuple[int, ...]:
    return tuple(int(axis) for axis in application.params["axes"])


@reads("reduce_sum", "reduce_prod")
def _summed(application: Application) -> Term:
    axes, name = _over(application), application.name.removeprefix("reduce_")
    if not axes:
        return application.x
    small = np.issubdtype(numpy_dtype(application.dtype), np.integer) and numpy_dtype(application.dtype).itemsize < 4
    if small:
        return filled(
            f"{name}({{x}}, axis={{a}}, dtype={{t}})", x=application.x, a=axes_part(axes), t=application.result
        )
    return filled(f"{name}({{x}}, axis={{a}})", x=application.x, a=axes_part(axes))


@reads("reduce_max", "reduce_min", "reduce_and", "reduce_or", "argmax", "argmin")
def _reduced(application: Application) -> Term:
    axes, name = _over(application), application.name.removeprefix("reduce_")
    name = {"and": "all", "or": "any"}.get(name, name)
    if not axes:
        return application.x
    if name in ("all", "any") and application.dtype != "bool":
        raise Unread(f"'{application.name}' of integers: {REFERENCE}")
    reduced = filled(f"{name}({{x}}, axis={{a}})", x=application.x, a=axes_part(axes))
    index = str(application.params.get("index_dtype", "int32"))
    return reduced if index == "int32" else filled("astype({x}, {t})", x=reduced, t=index)


@reads("reduce_xor")
def _odd(application: Application) -> Term:
    if application.dtype != "bool":
        raise Unread(f"'reduce_xor' of integers: {REFERENCE}")
    return filled("sum({x}, axis={a}) % 2 == 1", x=application.x, a=axes_part(_over(application)))


@reads("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulated(application: Application) -> Term:
    axis, reverse, name = application.params["axis"], application.params["reverse"], application.name
    if name not in ("cumsum", "cumprod"):
        return filled(f"{name}({{x}}, axis={{a}}, reverse={{r}})", x=application.x, a=axis, r=reverse)
    inner = filled("flip({x}, {a})", x=application.x, a=axis) if reverse else application.x
    summed = filled(f"{name}({{x}}, axis={{a}})", x=inner, a=axis)
    return filled("flip({x}, {a})", x=summed, a=axis) if reverse else summed


@reads("reduce_window")
def _windowed_by(application: Application) -> Term:
    """A window reduced by a single binary operation."""
    params, (x, first) = application.params, application.operands
    names = [eqn.primitive.name for eqn in params["jaxpr"].eqns]
    if names not in (["add"], ["mul"], ["max"], ["min"]) or len(application.outputs) != 1:
        raise Unread(f"'reduce_window' with a function other than add, mul, max and min: {REFERENCE}")
    return filled(
        "reduce_window({x}, {first}, {kind}, {window}, {strides}, {padding}, {base}, {dilation})",
        x=x,
        first=first,
        kind=names[0],
        window=tuple(params["window_dimensions"]),
        strides=tuple(params["window_strides"]),
        padding=[tuple(map(int, each)) for each in params["padding"]],
        base=tuple(params["base_dilation"]),
        dilation=tuple(params["window_dilation"]),
    )


@reads("reduce_window_max", "reduce_window_min", "reduce_window_sum")
def _windowed(application: Application) -> Term:
    params, kind = application.params, application.name.rpartition("_")[2]
    floats = not np.issubdtype(numpy_dtype(application.dtype), np.integer)
    bounds = np.iinfo(numpy_dtype(application.dtype)) if not floats else None
    first: Term = Const(0.0 if floats else 0)
    if kind != "sum":
        least = filled("-inf") if bounds is None else constant(int(bounds.min))
        most = filled("inf") if bounds is None else constant(int(bounds.max))
        first = least if kind == "max" else most
    return filled(
        "reduce_window({x}, {first}, {kind}, {window}, {strides}, {padding}, {base}, {dilation})",
        x=application.x,
        first=first,
        kind={"sum": "add"}.get(kind, kind),
        window=tuple(params["window_dimensions"]),
        strides=tuple(params["window_strides"]),
        padding=[tuple(map(int, each)) for each in params["padding"]],
        base=tuple(params["base_dilation"]),
        dilation=tuple(params["window_dilation"]),
    )


@dataclass(frozen=True)
class _Windows:
    """The windows of a pooling: sizes, strides and padding per dimension.

    - `out`: the number of windows along each dimension; `whole`: the shape of the padded operand.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    out: tuple[int, ...]
    whole: tuple[int, ...]

    @classmethod
    def of(cls, application: Application, operand: Any, out: Any) -> _Windows:
        """The windows of a pooling primitive, from the types of its operand and of its result."""
        params = application.params
        padding = tuple((int(low), int(high)) for low, high in params["padding"])
        whole = tuple(low + n + high for n, (low, high) in zip(operand.shape, padding, strict=True))
        sizes, strides = tuple(map(int, params["window_dimensions"])), tuple(map(int, params["window_strides"]))
        return cls(sizes, strides, padding, tuple(out.shape), whole)

    def padded(self, x: Term, value: Term) -> Term:
        """The operand padded with `value`."""
        padding = self.padding
        return filled("pad({x}, {p}, constant_values={v})", x=x, p=padding, v=value) if any(map(any, padding)) else x

    def parts(self, padded: Term) -> Term:
        """The elements at each position of the windows, stacked."""
        parts: list[Term] = []
        for offsets in itertools.product(*map(range, self.sizes)):
            along = zip(offsets, self.out, self.strides, self.whole, strict=True)
            items = without_trailing(
                [slice_of(at, min(at + (n - 1) * step + 1, wide), step, wide) for at, n, step, wide in along]
            )
            parts.append(indexed(padded, items) if items else padded)
        return filled("stack({p})", p=parts)

    def index(self, chosen: Term) -> list[Term]:
        """The index along each dimension of one element per window, at the row-major position `chosen` in it."""
        left, index = math.prod(self.sizes), list[Term]()
        for d, (n, step, count) in enumerate(zip(self.out, self.strides, self.sizes, strict=True)):
            left //= count
            place = counting(n, d, len(self.out))
            place = place if step == 1 else filled("{s} * {p}", s=step, p=place)
            if count > 1:
                part = chosen if left == 1 else filled("{c} // {l}", c=chosen, l=left)
                part = part if math.prod(self.sizes[:d]) == 1 else filled("{c} % {n}", c=part, n=count)
                place = operator("add", place, part)
            index.append(place)
        return index


def _chosen(application: Application, windows: _Windows, operand: Term) -> Term:
    """The position of the largest (or smallest) element in each window, the first of several."""
    low = str(application.params["select_prim"]) in ("le", "lt")
    padded = application.named(windows.padded(operand, filled("inf" if low else "-inf")), "padded")
    choice = filled("{f}({p}, axis=0)", f="argmin" if low else "argmax", p=windows.parts(padded))
    return application.named(choice, "chosen")


@reads("select_and_scatter_add")
def _scattered_to_largest(application: Application) -> Term:
    """The transpose of a pooling: add each number at the largest element of its window."""
    source, operand = application.operands
    windows = _Windows.of(application, application.inputs[1], application.inputs[0])
    places = tuple(windows.index(_chosen(application, windows, operand)))
    empty = filled("zeros({s}, {t})", s=windows.whole, t=application.result)
    scattered: Term = Apply("at[].add", (empty, Group(places), source))
    given = zip(windows.padding, application.inputs[1].shape, windows.whole, strict=True)
    cut = [slice_of(before, before + n, 1, wide) for (before, _), n, wide in given]
    return indexed(scattered, without_trailing(cut)) if without_trailing(cut) else scattered


@reads("select_and_gather_add")
def _gathered_at_largest(application: Application) -> Term:
    """The derivative of a pooling: the tangent at the largest element of each window."""
    tangents, operand = application.operands
    windows = _Windows.of(application, application.inputs[1], application.outputs[0])
    places = tuple(windows.index(_chosen(application, windows, operand)))
    return indexed(application.named(windows.padded(tangents, Const(0.0)), "padded"), places)
