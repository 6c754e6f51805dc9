"""Writes primitives that make, join, reshape or reorder arrays in the language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from runner.graph.language import notation
from runner.graph.language.lines import operator
from runner.graph.language.lines import transposed as turned
from runner.graph.term import NOTHING, Apply, Const, Group, Slice, Term
from runner.programs.derivation.terms import ALL, indexed
from runner.worker.jaxpr.primitives.registry import Application, axes_part, filled, of_its_dtype, reads


@reads("broadcast_in_dim", places=True)
def _broadcast(application: Application) -> Term:
    shape, dimensions = tuple(application.params["shape"]), tuple(application.params["broadcast_dimensions"])
    if not application.inputs[0].shape:
        if isinstance(application.x, Const):
            return filled("full({s}, {x}, {t})", s=shape, x=application.x, t=application.result)
        return filled("broadcast_to({x}, {s})", x=of_its_dtype(application.x, application.outputs[0]), s=shape)
    if dimensions == tuple(range(len(shape) - len(dimensions), len(shape))):
        return filled("broadcast_to({x}, {s})", x=application.x, s=shape)
    if tuple(size for size in shape if size != 1) == tuple(size for size in application.shape if size != 1):
        return filled("reshape({x}, {s})", x=application.x, s=shape)
    return filled("broadcast_in_dim({x}, {s}, {d})", x=application.x, s=shape, d=dimensions)


@reads("empty", "empty2")
def _empty(application: Application) -> Term:
    """Zeros: the contents are overwritten before they are read."""
    return filled("zeros({s}, {t})", s=tuple(application.outputs[0].shape), t=application.result)


@reads("reshape", places=True)
def _reshaped(application: Application) -> Term:
    order, sizes = application.params.get("dimensions"), tuple(application.params["new_sizes"])
    if order is None:
        return application.made("reshape({x}, {s})", s=sizes)
    return application.made("reshape(transpose({x}, {o}), {s})", o=tuple(order), s=sizes)


@reads("squeeze")
def _squeezed(application: Application) -> Term:
    return application.made("squeeze({x}, {a})", a=axes_part(application.params["dimensions"]))


@reads("expand_dims")
def _expanded(application: Application) -> Term:
    return application.made("expand_dims({x}, {a})", a=axes_part(application.params["dimensions"]))


@reads("transpose", places=True)
def _transposed(application: Application) -> Term:
    return transposed(application.x, tuple(int(axis) for axis in application.params["permutation"]))


def transposed(x: Term, order: tuple[int, ...]) -> Term:
    """Transpose an array; transposes of transposes, einsums and matmuls are merged."""
    if order == tuple(range(len(order))):
        return x
    match x:
        case Apply(operation="transpose", operands=(inner, Group(items=items))):
            before = [item.value for item in items if isinstance(item, Const)]
            return transposed(inner, tuple(cast("int", before[at]) for at in order))
        case Apply(operation="einsum", operands=(Const(value=str(subscripts)), *operands)):
            inputs, result = notation.parsed(subscripts)
            subscripts = notation.spelled((inputs, "".join(result[at] for at in order)))
            return replace(x, operands=(Const(subscripts), *operands))
        case Apply(operation="matmul", operands=(left, right)) if len(order) == 2:
            return operator("matmul", turned(right), turned(left))
        case _:
            return turned(x) if len(order) == 2 else filled("transpose({x}, {o})", x=x, o=order)


@reads("rev")
def _reversed(application: Application) -> Term:
    return application.made("flip({x}, {a})", a=axes_part(application.params["dimensions"]))


@reads("concatenate")
def _concatenated(application: Application) -> Term:
    return filled("concatenate({x}, axis={a})", x=list(application.operands), a=application.params["dimension"])


@reads("stack")
def _stacked(application: Application) -> Term:
    return filled("stack({x}, axis={a})", x=list(application.operands), a=application.params["axis"])


@reads("tile", places=True)
def _tiled(application: Application) -> Term:
    return application.made("tile({x}, {r})", r=tuple(application.params["reps"]))


@reads("pad")
def _padded(application: Application) -> Term:
    config = [(int(low), int(high), int(inside)) for low, high, inside in application.params["padding_config"]]
    x, value = application.operands
    if any(low < 0 or high < 0 or inside for low, high, inside in config):
        return _dilated(application, config)
    widths = tuple((low, high) for low, high, _ in config)
    return filled("pad({x}, {w}, constant_values={v})", x=x, w=widths, v=value)


def _dilated(application: Application, config: Sequence[tuple[int, int, int]]) -> Term:
    """A pad with interior or negative padding: the remaining elements, set into a new array."""
    x, value = application.operands
    if not any(inside for _, _, inside in config):
        cut = [
            slice_of(max(-low, 0), size - max(-high, 0), 1, size)
            for (low, high, _), size in zip(config, application.shape, strict=True)
        ]
        widths = tuple((max(low, 0), max(high, 0)) for low, high, _ in config)
        left = indexed(x, without_trailing(cut)) if without_trailing(cut) else x
        return (
            filled("pad({x}, {w}, constant_values={v})", x=left, w=widths, v=value) if any(map(any, widths)) else left
        )
    taken: list[Term] = []
    places: list[Term] = []
    for (low, _, inside), size, wide in zip(config, application.shape, application.outputs[0].shape, strict=True):
        step = inside + 1
        first = max(-(low // step), 0) if low < 0 else 0
        last = min(size, (wide - 1 - low) // step + 1)
        if last <= first:
            return filled("full({s}, {v}, {t})", s=tuple(application.outputs[0].shape), v=value, t=application.result)
        taken.append(slice_of(first, last, 1, size))
        places.append(slice_of(low + first * step, min(low + (last - 1) * step + 1, wide), step, wide))
    whole = filled("full({s}, {v}, {t})", s=tuple(application.outputs[0].shape), v=value, t=application.result)
    left = indexed(x, without_trailing(taken)) if without_trailing(taken) else x
    return Apply("at[].set", (whole, Group(tuple(places)), left))


def without_trailing(items: Sequence[Term]) -> list[Term]:
    """The entries of an index without trailing `:`."""
    kept = list(items)
    while kept and kept[-1] == ALL:
        kept.pop()
    return kept


@reads("iota")
def _counted(application: Application) -> Term:
    shape, dimension = tuple(application.params["shape"]), application.params["dimension"]
    if len(shape) == 1:
        return filled("iota({t}, {n})", t=application.result, n=shape[0])
    return filled("broadcasted_iota({t}, {s}, {d})", t=application.result, s=shape, d=dimension)


@reads("split")
def _split(application: Application) -> Term:
    sizes = list(map(int, application.params["sizes"]))
    if len(sizes) == 1:
        return Group((application.x,))
    ends = [sum(sizes[: at + 1]) for at in range(len(sizes) - 1)]
    return application.made("split({x}, {e}, axis={a})", e=ends, a=application.params["axis"])


@reads("unstack")
def _unstacked(application: Application) -> Term:
    axis = int(application.params["axis"])
    x = application.named(application.x, "unstacked")
    return Group(tuple(indexed(x, [*[ALL] * axis, Const(at)]) for at in range(application.shape[axis])))


@reads("slice")
def _sliced(application: Application) -> Term:
    params = application.params
    bounds = zip(
        params["start_indices"], params["limit_indices"], params["strides"] or (1,) * application.rank, strict=True
    )
    items = [
        slice_of(int(start), int(stop), int(step), size)
        for (start, stop, step), size in zip(bounds, application.shape, strict=True)
    ]
    return indexed(application.x, without_trailing(items)) if without_trailing(items) else application.x


def slice_of(start: int, stop: int, step: int, size: int) -> Term:
    """The slice of a dimension of this size, without bounds that it has anyway."""
    lower = NOTHING if start == 0 else Const(start)
    upper = NOTHING if stop == size else Const(stop)
    return Slice(lower, upper, NOTHING if step == 1 else Const(step))
