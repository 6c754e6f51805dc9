"""Rules for convolutions and windowed reductions: factors for batch and features, halos along space."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from runner.base.lazy import dataclass
from runner.graph.language.counterparts.windows import padded_by
from runner.graph.language.operations import COMPUTATIONS
from runner.graph.term import Term
from runner.programs.derivation.calls import Call, NotStatic, is_number, itemsize
from runner.programs.derivation.registry import rule_for
from runner.programs.derivation.rules import Dimensions, Rule, every, halo_sent
from runner.programs.derivation.site import Site
from runner.programs.derivation.sliding import edges
from runner.programs.derivation.terms import constant


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
