"""Has the rules, with their messages, for operations that need data of other blocks: halos, shifts, scans, windows.

Convolutions and windowed reductions have factors for batch and features, and halos along space.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from runner.base.lazy import dataclass
from runner.base.untyped import is_sequence
from runner.graph.language.counterparts.windows import padded_by
from runner.graph.language.lines import called, computed
from runner.graph.language.operations import COMPUTATIONS, OPERATIONS
from runner.graph.language.operations.row import Scan
from runner.graph.model import literal
from runner.graph.term import NOTHING, Group, Lambda, Slice, Term, bare, children, element_of, elements, mapped
from runner.programs.derivation.calls import Call, NotStatic, is_number, itemsize
from runner.programs.derivation.reductions import ALONG, default_axis
from runner.programs.derivation.registry import Write, rule_for
from runner.programs.derivation.rules import Dimensions, Rule, Sent, every, halo_sent
from runner.programs.derivation.site import Site
from runner.programs.derivation.terms import ALL, built, constant, elements_of, indexed, number, spread


def _part(x: Term, axis: int, lower: int | None, upper: int | None) -> Term:
    """`x[:, -2:]`: a slice along one dimension."""
    return indexed(x, [*[ALL] * axis, Slice(constant(lower), constant(upper), NOTHING)])


def _axis(call: Call, axis: int | None = None) -> int:
    """The single dimension that an operation works along, by default that of `axis`. Raises `NotStatic` if none."""
    shape = call.array.shape
    axis = call.static("axis", default_axis(call)) if axis is None else axis
    axis = 0 if axis is None and len(shape) == 1 else axis
    if not isinstance(axis, int) or not shape or 0 in shape:
        raise NotStatic
    return axis % len(shape)


def _slid(write: Callable[[Site, int, tuple[str, ...]], Term]) -> Write:
    """Write the operation unchanged along a whole dimension, else by `write(site, axis, mesh axes)`."""

    def written(site: Site) -> Term:
        ((axis,),) = (sent.over for sent in site.rule.inside)
        return write(site, axis, site.over(axis)) if site.over(axis) else site.rewritten()

    return written


def _sliding(call: Call, sent: Sent, *, permuted: bool) -> Rule:
    shape = call.array.shape
    whole = every(shape)
    moved = frozenset(sent.over if permuted else ())
    return Rule({call.operand.place: whole}, whole, dict(enumerate(shape)), permuted=moved, inside=(sent,))


def _others(call: Call) -> tuple[tuple[int, tuple[int, ...], int], ...]:
    """The dimensions that the operation does not work along, as in `Sent.of`."""
    return tuple((size, (d,), 0) for d, size in enumerate(call.array.shape) if d != _axis(call))


def scanned(kind: Scan) -> Write:
    """Write a scan of each block, and the total of the blocks before it."""
    return _slid(partial(_scanned, kind))


def _scanned(kind: Scan, site: Site, axis: int, over: tuple[str, ...]) -> Term:
    site.ours("the total of the blocks before")
    n = site.mesh.axis_size(over)
    x = site.named("of", site.x)
    template = "all_gather({f}({x}, axis={d}, keepdims=True), {over}, axis={d}, tiled=True)"
    blocks = site.define("blocks", built(template, f=kind.reduction, x=x, d=axis, over=over))
    order = ">" if site.call.static("reverse", False) else "<"
    before = built("arange({n}) " + order + " axis_index({over})", n=n, over=over)
    before = built(
        "{f}(where({before}, {blocks}, {identity}), axis={d}, keepdims=True)",
        f=kind.reduction,
        before=spread(before, len(site.call.array.shape) - 1 - axis),
        blocks=blocks,
        identity=number(kind.identity),
        d=axis,
    )
    return built(kind.joined, mine=site.rewritten({site.call.operand.place: x}), before=before)


def scan(call: Call, kinds: Sequence[str]) -> Rule | None:
    """Rule: each device scans its block and adds the total of the blocks before it.

    `kinds`: the kinds of dtypes that can represent the identity.
    """
    if call.given("include_initial") and call.static("include_initial"):
        return None
    if call.given("dtype") or call.array.dtype != call.result.dtype or not is_number(call.array, *kinds):
        return None
    call.static("reverse")
    sent = Sent("all-gather", (_axis(call),), _others(call), itemsize(call.array.dtype))
    return _sliding(call, sent, permuted=False)


for _row in OPERATIONS.values():
    if _row.scan is not None:
        _kinds = ("float",) if math.isinf(_row.scan.identity) else ("float", "int", "complex")
        rule_for(_row.name, write=scanned(_row.scan), otherwise=[ALONG])(partial(scan, kinds=_kinds))


@_slid
def _roll(site: Site, axis: int, over: tuple[str, ...]) -> Term:
    site.ours("the shift between blocks")
    n, size, x = site.mesh.axis_size(over), site.call.array.shape[axis], site.x
    blocks, rest = divmod(site.call.static("shift") % size, size // n)

    def from_before(term: Term, count: int) -> Term:
        return built("ppermute({x}, {over}, shift={s})", x=term, over=over, s=count % n) if count % n else term

    if not rest:
        return from_before(x, blocks)
    x = site.named("of", x)
    last, first = _part(x, axis, -rest, None), _part(x, axis, None, -rest)
    template = "concatenate([{last}, {first}], axis={d})"
    return built(template, last=from_before(last, blocks + 1), first=from_before(first, blocks), d=axis)


def _shift(call: Call) -> int:
    """The static shift of a `roll`. Raises `NotStatic` if it has one for each dimension."""
    shift = call.static("shift")
    if not isinstance(shift, int):
        raise NotStatic
    return shift


@rule_for("roll", write=_roll, otherwise=[ALONG])
def roll(call: Call) -> Rule | None:
    """Rule: a shift sends the elements that leave a block to the next ones."""
    axis = _axis(call)
    size = call.array.shape[axis]
    sent = Sent("shift", (axis,), _others(call), itemsize(call.array.dtype), _shift(call) % size, size)
    return _sliding(call, sent, permuted=True)


@_slid
def _flip(site: Site, axis: int, over: tuple[str, ...]) -> Term:
    site.ours("the exchange of blocks")
    n = site.mesh.axis_size(over)
    pairs = constant([[i, n - 1 - i] for i in range(n)])
    return built("ppermute({x}, {over}, perm={pairs})", x=site.rewritten(), over=over, pairs=pairs)


@rule_for("flip", write=_flip, otherwise=[ALONG])
def flip(call: Call, axis: int | None = None) -> Rule | None:
    """Rule: the blocks are sent in reverse order, each flipped along `axis`, by default the call's own."""
    axis, shape = _axis(call, axis), call.array.shape
    blocks = tuple((size, (d,), 0) for d, size in enumerate(shape))
    return _sliding(call, Sent("permute", (axis,), blocks, itemsize(call.array.dtype)), permuted=True)


rule_for("flipud", write=_flip, otherwise=[ALONG])(partial(flip, axis=0))
rule_for("fliplr", write=_flip, otherwise=[ALONG])(partial(flip, axis=1))


def edges(
    site: Site,
    term: Term,
    d: int,
    over: tuple[str, ...],
    widths: tuple[int, int],
    fill: str = "0",
    *,
    around: Sequence[tuple[int, int]] = (),
) -> Term:
    """A block between the last elements of the previous and the first of the next block; `fill` at the array's ends.

    - `widths`: the numbers of elements from the previous and from the next block.
    - `around`: the padding of the block beyond the operand's, from which the edges are taken.
    """
    n = site.mesh.axis_size(over)
    x = site.named("of", term)
    source = site.x if any(pair != (0, 0) for pair in around) else x
    parts = [x]
    for width, by, part in ((widths[0], 1, (-widths[0], None)), (widths[1], -1, (None, widths[1]))):
        if not width:
            continue
        # The first and the last device receive zeros, since no device sends to them.
        perm = constant([[i, i + by] for i in range(n) if 0 <= i + by < n])
        edge = built("ppermute({edge}, {over}, perm={perm})", edge=_part(source, d, *part), over=over, perm=perm)
        if fill != "0":
            end = built("axis_index({over}) == {last}", over=over, last=0 if by > 0 else n - 1)
            edge = built("where({end}, " + fill + ", {edge})", end=end, edge=edge)
        if source is not x:
            edge = built("pad({edge}, {around})", edge=edge, around=constant(tuple(around)))
        edge = site.define("before" if by > 0 else "after", edge)
        parts = [edge, *parts] if by > 0 else [*parts, edge]
    return built("concatenate({parts}, axis={d})", parts=Group(tuple(parts), "list"), d=d)


def _pad(site: Site) -> Term:
    widths, x = _pairs(site.call), site.x
    cut = [d for d in site.rule.edges if site.over(d)]
    if not cut:
        return site.rewritten()
    around = [(0, 0)] * len(widths)
    if not _corners(site.call, site.rule.edges):
        site = replace(site, terms=dict.fromkeys(site.terms, site.named("of", x)))
        x = site.x
    for d in (d for d in cut if any(site.rule.halo[d])):
        x = edges(site, x, d, site.over(d), site.rule.halo[d], around=around)
        if not _corners(site.call, site.rule.edges):
            around[d] = site.rule.halo[d]
    site.ours("the exchange of edges")
    edged = [site.rule.halo[d] if d in cut else (0, 0) for d in range(len(widths))]
    rest = tuple((low - a, high - b) for (low, high), (a, b) in zip(widths, edged, strict=True))
    return built("pad({x}, {rest})", x=x, rest=constant(rest)) if any(pair != (0, 0) for pair in rest) else x


@rule_for("pad", write=_pad)
def pad(call: Call) -> Rule | None:
    """Rule: along a sharded dimension a device pads with its neighbours' edges, if all readers slice them off again."""
    shape, widths = call.array.shape, _pairs(call)
    if call.static("mode", "constant") != "constant":
        return None
    padded = {d for d, pair in enumerate(widths) if pair != (0, 0)}
    kept = frozenset(d for d in padded & call.trimmed if min(widths[d]) >= 0)
    kept = kept if call.static("constant_values", 0) == 0 else frozenset[int]()
    dimensions, halo = every(shape, but=padded - kept), {d: _read(call, d) for d in kept}
    return Rule(
        {call.operand.place: dimensions},
        dimensions,
        dict(enumerate(shape)),
        permuted=kept,
        least={d: max(halo[d]) for d in kept},
        halo=halo,
        edges=kept,
        inside=halo_sent(shape, dimensions, halo, itemsize(call.array.dtype), corners=_corners(call, kept)),
    )


def _read(call: Call, d: int) -> tuple[int, int]:
    """The numbers of padded elements before and after dimension `d` that readers, all slices of its length, use."""
    low, _ = _pairs(call)[d]
    starts = [start[d] if d < len(start) else 0 for start in call.starts]
    return max(0, *(low - start for start in starts)), max(0, *(start - low for start in starts))


def _corners(call: Call, kept: Collection[int]) -> bool:
    """Whether a reader takes padded elements along two dimensions at once."""
    widths = _pairs(call)
    return any(sum(start[d] != widths[d][0] for d in kept if d < len(start)) > 1 for start in call.starts)


def _pairs(call: Call) -> list[tuple[int, int]]:
    """The padding before and after each dimension. Raises `NotStatic` if `pad_width` does not fit the rank."""
    rank, listed = len(call.array.shape), pairs(call.static("pad_width"))
    listed = listed * rank if len(listed) == 1 else listed
    if len(listed) != rank:
        raise NotStatic
    return listed


def pairs(widths: Any) -> list[tuple[int, int]]:
    """The pairs in `pad_width`, one for each dimension or one for all. Raises `NotStatic` if it is invalid."""
    if isinstance(widths, int):
        return [(widths, widths)]
    if not is_sequence(widths) or len(widths) == 0:
        raise NotStatic
    if all(isinstance(width, int) for width in widths):
        if len(widths) > 2:
            raise NotStatic
        return [(widths[0], widths[-1])]
    listed: list[tuple[Any, ...]] = [tuple(width) for width in widths]
    if any(len(pair) != 2 for pair in listed):
        raise NotStatic
    return [(int(low), int(high)) for low, high in listed]


def _scanned_axis(call: Call) -> int:
    return call.static("axis", 0) % len(call.result.shape)


def _scan(site: Site) -> Term:
    call, axis = site.call, _scanned_axis(site.call)
    over, several, reverse = site.over(axis), call.arguments["elems"].parts is not None, call.static("reverse", False)
    mine = site.rewritten()
    if not over:
        return mine
    site.ours("the combined over blocks")
    n, count, fn = site.mesh.axis_size(over), len(site.terms), call.static("fn")
    mine = site.define("mine", mine)
    blocks = elements_of(mine, count) if several else [mine]
    edge = "slice_in_dim({x}, 0, 1, axis={d})" if reverse else "slice_in_dim({x}, -1, None, axis={d})"
    ends = [site.gathered(built(edge, x=block, d=axis), over, axis=axis, tiled=True) for block in blocks]
    totals = site.define("totals", site.rewritten(dict(zip(site.terms, ends, strict=True))))
    at = built("axis_index({over})", over=over)
    place = built("minimum({at} + 1, {last})" if reverse else "maximum({at} - 1, 0)", at=at, last=n - 1)
    template = "dynamic_slice_in_dim({x}, {p}, 1, axis={d})"
    before = [built(template, x=x, p=place, d=axis) for x in (elements_of(totals, count) if several else [totals])]
    first = built("{at} == {n}", at=at, n=n - 1 if reverse else 0)
    both = _combined(fn, before, blocks, several=several)
    chosen = [built("where({f}, {a}, {b})", f=first, a=a, b=b) for a, b in zip(blocks, both, strict=True)]
    return Group(tuple(chosen)) if several else chosen[0]


@rule_for("associative_scan", write=_scan)
def combined(call: Call) -> Rule | None:
    """Rule: arrays of one shape, combined by an elementwise function."""
    elems = call.arguments["elems"]
    typed = [Call.type(part) for part in (elems.parts if elems.parts is not None else [elems])]
    shape, axis = call.result.shape, _scanned_axis(call)
    if {array.shape for array in typed} != {shape} or not _by_element(
        call.static("fn"), several=elems.parts is not None
    ):
        return None
    others = tuple((size, (d,), 0) for d, size in enumerate(shape) if d != axis)
    return Rule(
        {array.place: every(shape) for array in elems.arrays()},
        every(shape),
        dict(enumerate(shape)),
        inside=(Sent("all-gather", (axis,), others, sum(itemsize(array.dtype) for array in typed)),),
    )


def _combined(fn: str | Lambda, left: list[Term], right: list[Term], *, several: bool) -> list[Term]:
    """Apply the function to two operands; returns one term for each array."""
    if isinstance(fn, str):
        return [computed(COMPUTATIONS[fn].operation, a, b) for a, b in zip(left, right, strict=True)]
    arguments = dict(zip(fn.parameters, (left, right), strict=True))

    def applied(part: Term) -> Term:
        name, at = element_of(part) or (bare(part), 0)
        return mapped(part, applied) if name is None else arguments[name][at] if name in arguments else part

    body = applied(fn.body)
    return list(children(body)) if several else [body]


def _by_element(fn: str | Lambda, *, several: bool) -> bool:
    """Whether the function combines its two operands elementwise."""
    if isinstance(fn, str):
        return OPERATIONS[COMPUTATIONS[fn].operation].elementwise

    def check(term: Term) -> bool:
        name, row, element = bare(term), called(term), element_of(term)
        if name is not None:
            return not several or name not in fn.parameters
        if element is not None:
            return several and element[0] in fn.parameters
        return literal(term) is not None or (row.elementwise and all(map(check, children(term))))

    if several:
        combined = elements(fn.body)
        return combined is not None and all(map(check, combined))
    return check(fn.body)


@dataclass(frozen=True)
class Window:
    """A window along one dimension.

    - `size`, `result`: the lengths of operand and result.
    - `reach`: the length of the dilated window; `stride`: its step.
    - `low`, `high`: the padding before and after; `dilated`: whether the operand is dilated.
    """

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
        """The number of elements of the next block that the last window of a block needs."""
        return max(self.reach - self.stride - self.low, 0)

    @property
    def shardable(self) -> bool:
        """Whether blocks of the operand with their neighbours' edges give blocks of the result."""
        if self.dilated or self.low < 0 or self.size != self.stride * self.result:
            return False
        return -self.stride <= self.low + self.after - self.reach < 0

    @property
    def least(self) -> int:
        """The smallest block of the result for which the edges come from adjacent blocks alone."""
        return -(-max(self.low, self.after) // self.stride)


def _pads(padding: Any, windows: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """The padding before and after each dimension; `windows` are its (size, reach, stride)."""
    if not isinstance(padding, str):
        pairs = [tuple(pair) for pair in padding]
        if len(pairs) != len(windows) or any(len(pair) != 2 for pair in pairs):
            raise NotStatic
        return [(int(low), int(high)) for low, high in pairs]
    return [*padded_by(padding, *zip(*windows, strict=True))] if windows else []


def _edged(site: Site, dimensions: Dimensions, fill: str) -> Term:
    """The first operand's block with the halo that its windows need."""
    term = site.x
    for d, factors in enumerate(dimensions):
        over = site.over(*factors)
        halo = site.rule.halo.get(factors[0], (0, 0)) if factors else (0, 0)
        if over and any(halo):
            site.ours("the exchange of edges")
            term = edges(site, term, d, over, halo, fill)
    return term


def _windowed(
    call: Call,
    operands: dict[str, Dimensions],
    result: Dimensions,
    sizes: dict[int, int],
    reduced: Iterable[int],
    windows: dict[int, Window],
) -> Rule:
    """A rule with windows along some factors."""
    halo = {factor: (window.low, window.after) for factor, window in windows.items()}
    first = next(iter(operands.values()))
    return Rule(
        operands,
        result,
        sizes,
        dict.fromkeys(reduced, "sum"),
        whole=frozenset(factor for factor, window in windows.items() if not window.shardable),
        permuted=frozenset(windows),
        least={factor: window.least for factor, window in windows.items()},
        halo=halo,
        inside=halo_sent(call.array.shape, first, halo, itemsize(call.array.dtype)),
    )


# Convolutions. Factors: 0 the batch, 1 output features, 2 input features or groups, 3 + i space.


@dataclass(frozen=True)
class _Convolution:
    """The letters of a convolution's dimensions, the padding and the windows along space, and the groups."""

    left: Sequence[str]
    right: Sequence[str]
    out: Sequence[str]
    pads: list[tuple[int, int]]
    windows: dict[int, Window]
    groups: int
    batches: int


def _convolution(call: Call) -> _Convolution:
    lhs, rhs = call.type_of("lhs").shape, call.type_of("rhs").shape
    letters = "".join("0123456789"[: len(lhs) - 2])
    left, right, out = call.static("dimension_numbers") or (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    space = [letter for letter in right if letter not in "OI"]
    strides = call.static("window_strides")
    stretches, holes = (call.static(name) or (1,) * len(space) for name in ("rhs_dilation", "lhs_dilation"))
    reaches = [(rhs[right.index(s)] - 1) * by + 1 for s, by in zip(space, stretches, strict=True)]
    sizes = [lhs[left.index(s)] for s in space]
    pads = _pads(call.static("padding"), list(zip(sizes, reaches, strides, strict=True)))
    results = [call.result.shape[out.index(s)] for s in space]
    every = zip(sizes, results, reaches, strides, pads, holes, strict=True)
    windows = {3 + i: Window(n, end, r, s, p[0], p[1], hole != 1) for i, (n, end, r, s, p, hole) in enumerate(every)}
    groups, batches = call.static("feature_group_count", 1), call.static("batch_group_count", 1)
    return _Convolution(left, right, out, pads, windows, groups, batches)


def _convolved(site: Site) -> Term:
    convolution = _convolution(site.call)
    replaced = {"lhs": _edged(site, site.rule.operands["lhs"], "0")}
    if any(site.over(factor) for factor in convolution.windows):
        replaced["padding"] = constant([(0, 0) if site.over(3 + i) else pad for i, pad in enumerate(convolution.pads)])
    if convolution.groups * convolution.batches > 1 and site.over(2):
        name = "feature_group_count" if convolution.groups > 1 else "batch_group_count"
        replaced[name] = constant(convolution.groups * convolution.batches // site.parts((2,)))
    return site.rewritten(replaced)


@rule_for("conv_general_dilated", "conv", write=_convolved)
def convolved(call: Call) -> Rule | None:
    """Rule: input features are reduced; groups of features stay together."""
    convolution, lhs, rhs = _convolution(call), call.type_of("lhs").shape, call.type_of("rhs").shape
    left, right, out, windows = convolution.left, convolution.right, convolution.out, convolution.windows
    grouped = convolution.groups > 1 or convolution.batches > 1
    space = [letter for letter in right if letter not in "OI"]
    named = {"N": (0,), **{s: (3 + i,) for i, s in enumerate(space)}}
    of_left: dict[str, tuple[int, ...]] = {**named, "C": (2,)}
    of_out: dict[str, tuple[int, ...]] = {**named, "C": (2, 1) if grouped else (1,)}
    of_right: dict[str, tuple[int, ...]] = {"O": of_out["C"], "I": () if grouped else (2,)}
    if convolution.batches > 1:
        of_left |= {"N": (2,), "C": ()}
        of_out |= {"N": ()}
    sizes = {0: lhs[left.index("N")], 1: rhs[right.index("O")], 2: lhs[left.index("C")]}
    if grouped:
        groups = convolution.groups * convolution.batches
        sizes |= {2: groups, 1: sizes[1] // groups}
    sizes |= {factor: window.result for factor, window in windows.items()}
    operands = {"lhs": tuple(of_left[c] for c in left), "rhs": tuple(of_right.get(c, ()) for c in right)}
    return _windowed(call, operands, tuple(of_out[c] for c in out), sizes, () if grouped else (2,), windows)


@rule_for("conv_transpose")
def transposed(call: Call) -> Rule | None:
    """Rule: batch and features; space is whole."""
    lhs, rhs = call.type_of("lhs").shape, call.type_of("rhs").shape
    if call.given("transpose_kernel") or call.static("dimension_numbers") is not None:
        return None
    between = ((),) * (len(lhs) - 2)
    operands: dict[str, Dimensions] = {"lhs": ((0,), *between, (2,)), "rhs": (*between, (2,), (1,))}
    return Rule(operands, ((0,), *between, (1,)), {0: lhs[0], 1: rhs[-1], 2: lhs[-1]}, {2: "sum"})


def _window(call: Call) -> tuple[dict[int, Window], list[tuple[int, int]]]:
    """The windows along each dimension where they are not single elements, and the padding of all dimensions."""
    shape = call.array.shape
    options = [
        call.static(name) or (1,) * len(shape) for name in ("window_strides", "base_dilation", "window_dilation")
    ]
    strides, holes, stretches = options
    reaches = [(n - 1) * by + 1 for n, by in zip(call.static("window_dimensions"), stretches, strict=True)]
    pads = _pads(call.static("padding", "VALID"), list(zip(shape, reaches, strides, strict=True)))
    every = zip(shape, call.result.shape, reaches, strides, pads, holes, strict=True)
    windows = {d: Window(n, end, r, s, p[0], p[1], hole != 1) for d, (n, end, r, s, p, hole) in enumerate(every)}
    return {d: window for d, window in windows.items() if not window.passes}, pads


def _reduced(site: Site) -> Term:
    windows, pads = _window(site.call)
    (dimensions,) = site.rule.operands.values()
    computation = COMPUTATIONS[site.call.static("computation")]
    replaced = {"operand": _edged(site, dimensions, str(computation.identity))}
    if "padding" in site.call.arguments and any(site.over(d) for d in windows):
        replaced["padding"] = constant([(0, 0) if site.over(d) and d in windows else p for d, p in enumerate(pads)])
    return site.rewritten(replaced)


@rule_for("reduce_window", write=_reduced)
def reduced(call: Call) -> Rule | None:
    """Rule: halos along the dimensions with windows, the others independent."""
    if not is_number(call.array, "float"):
        return None
    shape = call.result.shape
    return _windowed(call, {"operand": every(shape)}, every(shape), dict(enumerate(shape)), (), _window(call)[0])
