"""Convolutions and windows: batch and features as products have them, and the neighbours' edges along space."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runner.derivation.rules import Assignment, Dimensions, Rule, Value
from runner.derivation.site import NotStatic, Site
from runner.derivation.sliding import edges, ordered
from runner.derivation.trees import constant
from runner.dtypes import NAMES, dtype


@dataclass(frozen=True)
class Window:
    """One dimension over which a window goes: sizes before and after, and what the window reaches and skips."""

    size: int
    result: int
    reach: int
    stride: int
    low: int
    high: int
    dilated: bool

    @property
    def passes(self) -> bool:
        """Whether each element is a window of its own."""
        return self.reach == self.stride == 1 and not self.low and not self.high and not self.dilated

    @property
    def after(self) -> int:
        """How many elements of the next block the last window of a block reaches."""
        return max(self.reach - self.stride - self.low, 0)

    def cuts(self, n: int) -> bool:
        """Whether n blocks, with their neighbours' edges, give the n blocks of the result."""
        if self.dilated or self.low < 0 or self.size != self.stride * self.result or self.result % n:
            return False
        size = self.size // n
        count = (size + self.low + self.after - self.reach) // self.stride + 1
        return max(self.low, self.after) <= size and count == self.result // n


def _pads(padding: Any, windows: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """What is put before and after each dimension, whose size, reach and stride are given."""
    if not isinstance(padding, str):
        pairs = [tuple(pair) for pair in padding]
        if len(pairs) != len(windows) or any(len(pair) != 2 for pair in pairs):
            raise NotStatic
        return [(int(low), int(high)) for low, high in pairs]
    if padding.upper() == "VALID":
        return [(0, 0)] * len(windows)
    pads: list[tuple[int, int]] = []
    for size, reach, stride in windows:
        total = max((math.ceil(size / stride) - 1) * stride + reach - size, 0)
        less, more = total // 2, total - total // 2
        pads.append((more, less) if padding.upper() == "SAME_LOWER" else (less, more))
    return pads


def _edged(
    site: Site, tree: ast.expr, windows: dict[int, Window], assignment: Assignment, factors: dict[int, int], fill: str
) -> ast.expr:
    """The block with what its windows reach of its neighbours; `factors` are those of the dimensions."""
    for d, window in windows.items():
        over = assignment.get(factors[d], ())
        if over and (window.low or window.after):
            site.writer.ours("the exchange of edges")
            tree = edges(site.writer, tree, len(site.result.shape), d, over, (window.low, window.after), fill)
    return tree


def _sent(
    site: Site, typed_shape: tuple[int, ...], dimensions: Dimensions, windows: dict[int, Window], assignment: Assignment
) -> float:
    """The elements of the edges that a device sends."""
    mesh = site.writer.mesh
    held = [
        size // mesh.axis_size([axis for f in factors for axis in assignment.get(f, ())])
        for size, factors in zip(typed_shape, dimensions, strict=True)
    ]
    found = 0.0
    for d, window in windows.items():
        if any(assignment.get(f) for f in dimensions[d]):
            found += math.prod(held) / held[d] * (window.low + window.after)
            held[d] += window.low + window.after
    return found


def convolved(site: Site) -> Value | None:
    """`conv_general_dilated`, `conv`: the input features are summed over; groups of features stay together."""
    lhs, rhs = site.arguments["lhs"], site.arguments["rhs"]
    one, other = site.type_of(lhs), site.type_of(rhs)
    if one is None or other is None:
        return None
    rank = len(one.shape)
    numbers = site.static("dimension_numbers")
    letters = "".join("0123456789"[: rank - 2])
    left, right, out = numbers or (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    space = [letter for letter in right if letter not in "OI"]
    groups, batches = site.static("feature_group_count", 1), site.static("batch_group_count", 1)
    strides = site.static("window_strides")
    stretches, holes = (site.static(name) or (1,) * len(space) for name in ("rhs_dilation", "lhs_dilation"))
    reaches = [(other.shape[right.index(s)] - 1) * by + 1 for s, by in zip(space, stretches, strict=True)]
    sizes = [one.shape[left.index(s)] for s in space]
    pads = _pads(site.static("padding"), list(zip(sizes, reaches, strides, strict=True)))
    windows: dict[int, Window] = {}
    for at, s in enumerate(space):
        result = site.result.shape[out.index(s)]
        windows[left.index(s)] = Window(sizes[at], result, reaches[at], strides[at], *pads[at], holes[at] != 1)
    # Factors: 0 the batch, 1 output features, 2 input features or groups, 3 + i space.
    grouped = groups > 1 or batches > 1
    named = {"N": 0, **{s: 3 + i for i, s in enumerate(space)}}
    of_left: dict[str, tuple[int, ...]] = {**{c: (f,) for c, f in named.items()}, "C": (2,)}
    of_out: dict[str, tuple[int, ...]] = {**{c: (f,) for c, f in named.items()}, "C": (2, 1) if grouped else (1,)}
    of_right: dict[str, tuple[int, ...]] = {"O": (2, 1) if grouped else (1,), "I": () if grouped else (2,)}
    if batches > 1:
        of_left |= {"N": (2,), "C": ()}
        of_out |= {"N": ()}
    factor_sizes = {0: one.shape[left.index("N")], 1: other.shape[right.index("O")], 2: one.shape[left.index("C")]}
    if grouped:
        factor_sizes |= {2: groups * batches, 1: factor_sizes[1] // (groups * batches)}
    factor_sizes |= {3 + i: site.result.shape[out.index(s)] for i, s in enumerate(space)}
    dimensions: Dimensions = tuple(of_left[c] for c in left)
    factors = {left.index(s): 3 + at for at, s in enumerate(space)}

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        replaced = {id(lhs): _edged(site, trees[0], windows, assignment, factors, "0"), id(rhs): trees[1]}
        if any(assignment.get(f) for f in factors.values()):
            left_over = [(0, 0) if assignment.get(3 + at) else pad for at, pad in enumerate(pads)]
            replaced[id(site.arguments["padding"])] = constant(left_over)
        n = site.writer.mesh.axis_size(assignment.get(2, ()))
        if grouped and n > 1:
            name = "feature_group_count" if groups > 1 else "batch_group_count"
            replaced[id(site.arguments[name])] = constant(groups * batches // n)
        return site.rewritten(replaced)

    def inner(assignment: Assignment) -> float:
        width = dtype(one.dtype).itemsize
        return width * _sent(site, one.shape, dimensions, windows, assignment)

    rule = Rule(
        (dimensions, tuple(of_right.get(c, ()) for c in right)),
        tuple(of_out[c] for c in out),
        factor_sizes,
        write,
        {} if grouped else {2: "sum"},
        inner,
        lambda assignment: _possible(site, windows, factors, assignment),
    )
    return site.writer.apply(site, [site.value(lhs), site.value(rhs)], rule)


def _possible(site: Site, windows: dict[int, Window], factors: dict[int, int], assignment: Assignment) -> bool:
    cut = {d: assignment.get(factors[d], ()) for d in windows}
    return all(
        ordered(site.writer.mesh, over) and windows[d].cuts(site.writer.mesh.axis_size(over))
        for d, over in cut.items()
        if over
    )


def transposed(site: Site) -> Value | None:
    """`conv_transpose`: the batch and the features; space is whole."""
    lhs, rhs = site.arguments["lhs"], site.arguments["rhs"]
    one, other = site.type_of(lhs), site.type_of(rhs)
    if one is None or other is None or site.given("transpose_kernel") or site.static("dimension_numbers") is not None:
        return None
    between = ((),) * (len(one.shape) - 2)
    sizes = {0: one.shape[0], 1: other.shape[-1], 2: one.shape[-1]}
    dimensions = [(lhs, ((0,), *between, (2,))), (rhs, (*between, (2,), (1,)))]
    return site.run(dimensions, ((0,), *between, (1,)), sizes, {2: "sum"})


_IDENTITY = {"add": "0", "mul": "1", "max": "-inf", "min": "inf"}


def reduced(site: Site) -> Value | None:
    """`reduce_window`: what no window crosses stays, along the rest the neighbours' edges."""
    part = site.arguments["operand"]
    typed = site.type_of(part)
    if typed is None or typed.dtype not in NAMES or dtype(typed.dtype).kind != "float":
        return None
    ones = (1,) * len(typed.shape)
    given = [site.static(name) or ones for name in ("window_strides", "base_dilation", "window_dilation")]
    strides, holes, stretches = (tuple(each) for each in given)
    shape, computation = site.static("window_dimensions"), site.static("computation")
    reaches = [(size - 1) * by + 1 for size, by in zip(shape, stretches, strict=True)]
    pads = _pads(site.static("padding", "VALID"), list(zip(typed.shape, reaches, strides, strict=True)))
    every = zip(typed.shape, site.result.shape, reaches, strides, pads, holes, strict=True)
    windows = {d: Window(n, end, r, s, p[0], p[1], hole != 1) for d, (n, end, r, s, p, hole) in enumerate(every)}
    windows = {d: window for d, window in windows.items() if not window.passes}
    dimensions = tuple((d,) for d in range(len(ones)))
    factors = {d: d for d in windows}

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        replaced = {id(part): _edged(site, trees[0], windows, assignment, factors, _IDENTITY[computation])}
        if "padding" in site.arguments and any(assignment.get(d) for d in windows):
            left_over = [(0, 0) if assignment.get(d) and d in windows else pad for d, pad in enumerate(pads)]
            replaced[id(site.arguments["padding"])] = constant(left_over)
        return site.rewritten(replaced)

    def inner(assignment: Assignment) -> float:
        return dtype(typed.dtype).itemsize * _sent(site, typed.shape, dimensions, windows, assignment)

    rule = Rule(
        (dimensions,),
        dimensions,
        dict(enumerate(site.result.shape)),
        write,
        inner=inner,
        allowed=lambda assignment: _possible(site, windows, factors, assignment),
    )
    return site.writer.apply(site, [site.value(part)], rule)
