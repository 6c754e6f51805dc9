"""Arrays that no other enters: each device makes its own block of them."""

from __future__ import annotations

import ast
from collections.abc import Callable

from runner.derivation import pointwise
from runner.derivation.rules import Assignment, Rule, Value
from runner.derivation.shaping import within
from runner.derivation.site import NotStatic, Site
from runner.derivation.trees import built, constant

Cut = tuple[tuple[str, ...], ...]
"""For each dimension the mesh axes that shard it."""

Maker = Callable[[Cut], ast.expr]
"""One device's block of an array that is sharded so."""


def created(site: Site) -> Value | None:
    """`arange`, `zeros`, `tri`, …"""
    shape, writer = site.result.shape, site.writer
    made = _MAKERS[site.name](site)
    if made is None:
        return None
    whole = site.rewritten({})

    def write(_: list[ast.expr], assignment: Assignment) -> ast.expr:
        cut = tuple(assignment.get(d, ()) for d in range(len(shape)))
        return made(cut) if any(cut) else whole

    dimensions = tuple((d,) for d in range(len(shape)))
    return writer.apply(site, [], Rule((), dimensions, dict(enumerate(shape)), write))


def _local(site: Site, cut: Cut) -> tuple[int, ...]:
    mesh = site.writer.mesh
    return tuple(size // mesh.axis_size(axes) for size, axes in zip(site.result.shape, cut, strict=True))


def _arange(site: Site):
    start, stop, step = site.static("start"), site.static("stop"), site.static("step", 1)
    start, step = (0, 1) if stop is None and step == 1 else (start, step)
    if not all(isinstance(each, int) for each in (start, step)) or site.result.dtype not in ("int32", "float32"):
        raise NotStatic
    dtype = {"float32": ", dtype='float32'"}.get(site.result.dtype, "")

    def made(cut: Cut) -> ast.expr:
        (n,) = _local(site, cut)
        index = within(site, site.result.shape[0], cut[0], built("arange({n}" + dtype + ")", n=n))
        index = index if step == 1 else built("{i} * {step}", i=index, step=step)
        return index if start == 0 else built("{start} + {i}", start=start, i=index)

    return made


def _filled(site: Site):
    if site.name == "full" and (typed := site.type_of(site.arguments["fill_value"])) is not None and typed.shape:
        return None
    given = site.arguments["shape"]

    def made(cut: Cut) -> ast.expr:
        return site.rewritten({id(given): constant(_local(site, cut))})

    return made


def _diagonal(site: Site):
    k, dtype = site.static("k", 0), site.static("dtype", None) or "float32"
    rows, columns = site.result.shape

    def made(cut: Cut) -> ast.expr:
        n, m = _local(site, cut)
        first = built("{i}[:, None]", i=within(site, rows, cut[0], built("arange({n})", n=n)))
        second = within(site, columns, cut[1], built("arange({m})", m=m))
        first = built("{i} + {k}", i=first, k=k) if k else first
        tree = built("{i} >= {j}" if site.name == "tri" else "{i} == {j}", i=first, j=second)
        return tree if dtype == "bool" else built("astype({x}, {dtype})", x=tree, dtype=dtype)

    return made


def _iota(site: Site):
    dtype = site.static("dtype")

    def made(cut: Cut) -> ast.expr:
        (n,) = _local(site, cut)
        return within(site, site.result.shape[0], cut[0], built("iota({dtype}, {n})", dtype=dtype, n=n))

    return made if dtype in ("int32", "float32") else None


def _broadcasted(site: Site):
    dtype = site.static("dtype")
    dimension: int = site.static("dimension")

    def made(cut: Cut) -> ast.expr:
        shape = constant(_local(site, cut))
        tree = built("broadcasted_iota({dtype}, {shape}, {d})", dtype=dtype, shape=shape, d=dimension)
        return within(site, site.result.shape[dimension], cut[dimension], tree)

    return made if dtype in ("int32", "float32") else None


_MAKERS = {
    "arange": _arange, "zeros": _filled, "ones": _filled, "full": _filled, "tri": _diagonal, "eye": _diagonal,
    "identity": _diagonal, "iota": _iota, "broadcasted_iota": _broadcasted,
}  # fmt: skip


def like(site: Site) -> Value | None:
    """`zeros_like`: as long as the array is on each device."""
    return None if site.given("shape") else pointwise.called(site)


def one_hot(site: Site) -> Value | None:
    """The classes of a block: labels outside of it give zeros."""
    part, classes = site.arguments["x"], site.static("num_classes")
    typed = site.type_of(part)
    axis = site.static("axis", -1)
    if typed is None or not isinstance(axis, int):
        return None
    rank, writer = len(typed.shape) + 1, site.writer
    axis %= rank
    given = site.arguments["num_classes"]

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        over = assignment.get(axis, ())
        if not over:
            return site.rewritten({id(part): trees[0]})
        size = classes // writer.mesh.axis_size(over)
        labels = built("{x} - {start}", x=trees[0], start=writer.offset(over, ast.Constant(size)))
        return site.rewritten({id(part): labels, id(given): ast.Constant(size)})

    dimensions = tuple((d,) for d in range(rank) if d != axis)
    rule = Rule((dimensions,), tuple((d,) for d in range(rank)), dict(enumerate(site.result.shape)), write)
    return writer.apply(site, [site.value(part)], rule)
