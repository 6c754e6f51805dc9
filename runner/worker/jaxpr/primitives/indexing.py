"""Writes slices, gathers, scatters and sorts in the language."""

from __future__ import annotations

import functools

import numpy as np

from runner.base.lazy import dataclass
from runner.graph import model
from runner.graph.language.lines import operator
from runner.graph.term import Apply, Const, Group, Term, calls
from runner.programs.derivation.terms import ALL, constant, indexed
from runner.worker.jaxpr.primitives.registry import Application, Unread, filled, literal, numpy_dtype, reads


@reads("dynamic_slice", places=True)
def _dynamic(application: Application) -> Term:
    x, *starts = application.operands
    return filled("dynamic_slice({x}, {s}, {n})", x=x, s=tuple(starts), n=tuple(application.params["slice_sizes"]))


@reads("dynamic_update_slice", places=True)
def _updated(application: Application) -> Term:
    x, update, *starts = application.operands
    return filled("dynamic_update_slice({x}, {u}, {s})", x=x, u=update, s=tuple(starts))


def _mode(application: Application) -> str:
    text = str(application.params["mode"]).upper()
    if "CLIP" in text or text == "0":
        return "clip"
    return "promise_in_bounds" if "PROMISE" in text else "fill"


@dataclass(frozen=True)
class _Indexing:
    """The elements that a gather reads or a scatter writes.

    - `shape`: of the operand; `sizes`: of a slice of it, 1 in dimensions that are `dropped`.
    - `mapped`: the operand dimensions that the last dimension of the indices addresses.
    - `batching`: the operand dimensions batched with dimensions of the indices, which are in `beside`.
    - `windows`: the dimensions of a slice within the result of a gather or the updates of a scatter, of rank `rank`.
    """

    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    mapped: tuple[int, ...]
    batching: tuple[int, ...]
    beside: tuple[int, ...]
    dropped: tuple[int, ...]
    windows: tuple[int, ...]
    rank: int

    def index(self, application: Application, mode: str) -> list[Term]:
        """The index of each operand dimension, with the rank of the result."""
        given = tuple(application.inputs[1].shape[:-1])
        batch = [d for d in range(self.rank) if d not in self.windows]
        indices = application.named(application.operands[1], "indices")
        sizes = dict(zip(batch, given, strict=True))
        spread = tuple(sizes.get(d, 1) for d in range(self.rank))
        kept = [d for d in range(len(self.shape)) if d not in self.dropped]
        index: list[Term] = []
        for d, size in enumerate(self.shape):
            parts: list[Term] = []
            if d in self.mapped:
                component = indexed(indices, [*[ALL] * len(given), Const(self.mapped.index(d))])
                if mode == "clip":
                    component = filled("clip({c}, 0, {m})", c=component, m=size - self.sizes[d])
                parts.append(filled("reshape({c}, {s})", c=component, s=spread) if spread else component)
            if d in self.batching:
                parts.append(counting(size, batch[self.beside[self.batching.index(d)]], self.rank))
            if d in kept and (self.sizes[d] > 1 or not parts):
                parts.append(counting(self.sizes[d], self.windows[kept.index(d)], self.rank))
            index.append(functools.reduce(functools.partial(operator, "add"), parts or [Const(0)]))
        return index


@reads("gather", places=True)
def _gathered(application: Application) -> Term:
    """`take` if that expresses the gather, else an index for each dimension."""
    numbers, sizes = application.params["dimension_numbers"], tuple(map(int, application.params["slice_sizes"]))
    mode, (x, indices), shape = _mode(application), application.operands, application.shape
    given, rank = tuple(application.inputs[1].shape[:-1]), len(application.outputs[0].shape)
    indexing = _Indexing(
        shape,
        sizes,
        tuple(numbers.start_index_map),
        tuple(numbers.operand_batching_dims),
        tuple(numbers.start_indices_batching_dims),
        (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims),
        tuple(numbers.offset_dims),
        rank,
    )
    axis = indexing.mapped[0] if len(indexing.mapped) == 1 else 0
    others = tuple(d for d in range(rank) if not axis <= d < axis + len(given))
    whole = tuple(1 if d == axis else size for d, size in enumerate(shape))
    if indexing.mapped == indexing.dropped == (axis,) and sizes == whole and indexing.windows == others:
        at = filled("reshape({i}, {s})", i=indices, s=given) if given else filled("{i}[0]", i=indices)
        if mode == "fill":
            template = "take({x}, {i}, axis={a}, mode='fill', fill_value={v})"
            return filled(template, x=x, i=at, a=axis, v=_filling(application))
        # Indices that are promised to be in bounds are, so clipping does not change them.
        return filled("take({x}, {i}, axis={a}, mode='clip')", x=x, i=at, a=axis)
    index = indexing.index(application, mode)
    if mode == "fill":
        how = (("mode", Const("fill")), ("fill_value", _filling(application)))
        return Apply("at[].get", (x, Group(tuple(index))), how)
    return indexed(x, index)


def _filling(application: Application) -> Term:
    """The value that a gather gives out of bounds."""
    value, kind = application.params.get("fill_value"), numpy_dtype(application.result)
    if value is not None:
        return literal(value, application.result)
    if np.issubdtype(kind, np.integer):
        bounds = np.iinfo(kind)
        return constant(int(bounds.min if bounds.min < 0 else bounds.max))
    return Const(True) if kind == np.dtype(bool) else filled("inf - inf")


def counting(size: int, dimension: int, rank: int) -> Term:
    """`arange(size)` along one dimension of an array of this rank."""
    count = filled("arange({n})", n=size)
    if rank == 1:
        return count
    return filled("reshape({c}, {s})", c=count, s=tuple(size if d == dimension else 1 for d in range(rank)))


@reads("scatter", places=True)
@reads(*(f"scatter{sign}{kind}" for sign in "-_" for kind in ("add", "sub", "mul", "min", "max")))
def _scattered(application: Application) -> Term:
    """`x.at[i].add(values)`, with an index for each dimension."""
    method = {"": "set", "sub": "subtract"}.get(method := application.name[len("scatter") + 1 :], method)
    computed = application.params.get("update_jaxpr")
    if method == "set" and computed is not None and computed.eqns:
        raise Unread("'scatter' with a function, as in x.at[index].apply: set its results, x.at[i].set(f(x[i]))")
    numbers, mode = application.params["dimension_numbers"], _mode(application)
    shape, values = application.shape, tuple(application.inputs[2].shape)
    dropped = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    windows = tuple(numbers.update_window_dims)
    left = iter(windows)
    sizes = tuple(1 if d in dropped else values[next(left)] for d in range(len(shape)))
    indexing = _Indexing(
        shape,
        sizes,
        tuple(numbers.scatter_dims_to_operand_dims),
        tuple(numbers.operand_batching_dims),
        tuple(numbers.scatter_indices_batching_dims),
        dropped,
        windows,
        len(values),
    )
    x, _, updates = application.operands
    unique = (("unique_indices", Const(True)),) if application.params["unique_indices"] else ()
    # If indices are promised to be in bounds, nothing is dropped.
    how = (*unique, ("mode", Const("clip" if mode == "clip" else "drop")))
    return Apply(f"at[].{method}", (x, Group(tuple(indexing.index(application, mode))), updates), how)


@reads("sort")
def _sorted(application: Application) -> Term:
    axis, keys = application.params["dimension"], application.params["num_keys"]
    if len(application.operands) == 1:
        return application.made("sort({x}, axis={a})", a=axis)
    places = [_counts_along(application.meant(x), axis) for x in application.operands]
    operands = [
        operand if at >= keys and places[at] else application.named(operand, "sorted")
        for at, operand in enumerate(application.operands)
    ]
    order: Term | None = None
    for key in reversed(operands[:keys]):
        if order is None:
            order = application.named(filled("argsort({x}, axis={a})", x=key, a=axis), "order")
        else:
            along = filled("take_along_axis({x}, {o}, axis={a})", x=key, o=order, a=axis)
            again = application.named(filled("argsort({x}, axis={a})", x=along, a=axis), "order")
            order = application.named(filled("take_along_axis({o}, {p}, axis={a})", o=order, p=again, a=axis), "order")
    assert order is not None
    # Sorted positions are the order itself.
    return Group(
        tuple(
            order
            if place and str(aval.dtype) == "int32"
            else filled("take_along_axis({x}, {o}, axis={a})", x=x, o=order, a=axis)
            for x, place, aval in zip(operands, places, application.outputs, strict=True)
        )
    )


def _counts_along(term: Term, axis: int) -> bool:
    """Whether a term is 0, 1, 2, … along a dimension."""
    if calls(term, ("broadcasted_iota",)):
        return model.literal(term.operands[2]) == axis
    return axis == 0 and calls(term, ("iota",))


@reads("approx_top_k")
def _nearly_top(application: Application) -> Term:
    """The exact result, which is the approximate one of CPUs and GPUs."""
    params = application.params
    axis = int(params["reduction_dimension"]) % application.rank
    x = application.x if params["is_max_k"] else operator("negative", application.x)
    top = application.named(filled("top_k({x}, {k}, axis={a})", x=x, k=params["k"], a=axis), "top")
    values = filled("{t}[0]", t=top)
    return Group((values if params["is_max_k"] else operator("negative", values), filled("{t}[1]", t=top)))


@reads("top_k")
def _top(application: Application) -> Term:
    axis = application.params.get("axis", -1)
    if axis in (-1, application.rank - 1):
        return application.made("top_k({x}, {k})", k=application.params["k"])
    return application.made("top_k({x}, {k}, axis={a})", k=application.params["k"], a=axis)
