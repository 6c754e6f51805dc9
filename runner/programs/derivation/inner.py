"""Decomposes operations with reductions inside, such as softmax, along sharded dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from runner.graph.language.operations.row import Reduction
from runner.graph.term import Name, Term
from runner.programs.derivation.calls import Call, is_number, itemsize
from runner.programs.derivation.completing import reduced
from runner.programs.derivation.reductions import ALONG, default_axis
from runner.programs.derivation.registry import Write, rule_for
from runner.programs.derivation.rules import Rule, Sent, every
from runner.programs.derivation.site import Site
from runner.programs.derivation.terms import built, constant


def _axes(call: Call) -> tuple[int, ...]:
    return call.axes(rank=len(call.array.shape), default=default_axis(call))


def _reducing(
    call: Call, rounds: int, *, back: int = 0, keeps: bool = False, kinds: Sequence[str] = ("float",)
) -> Rule | None:
    """The rule of an operation with `rounds` all-reduces inside, for dtypes of some kinds.

    - `back`: the number of all-reduces of the backward pass: one for each sum that a device combines with its block.
    - `keeps`: whether the result keeps the dimensions.
    """
    if call.given("where", "b", "mean", "variance", "ddof", "correction", "dtype") or not is_number(call.array, *kinds):
        return None
    shape, axes = call.array.shape, _axes(call)
    kept = keeps or bool(call.static("keepdims", False))
    others = tuple((size, (d,), 0) for d, size in enumerate(shape) if d not in axes)
    return Rule(
        {call.operand.place: every(shape)},
        tuple((d,) if keeps or d not in axes else () for d in range(len(shape)) if kept or d not in axes),
        dict(enumerate(shape)),
        inside=tuple(
            Sent("all-reduce", axes, others, itemsize(call.array.dtype), again=at < back) for at in range(rounds)
        ),
    )


def _in_parts(parts: Callable[[Site, Term, Term, tuple[str, ...]], Term]) -> Write:
    """Write the operation unchanged on whole dimensions, else by `parts(site, operand, axis, mesh axes)`."""

    def write(site: Site) -> Term:
        over = site.over(*_axes(site.call))
        if not over:
            return site.rewritten()
        return parts(site, site.named("of", site.x), _axis(site), tuple(a for a in site.mesh.axes if a in over))

    return write


def _axis(site: Site) -> Term:
    """The argument `axis` as the call has it, or its default."""
    written, axes = site.argument("axis"), _axes(site.call)
    if written is not None and isinstance(site.call.static("axis"), int):
        return site.part("axis", written)
    if written is None and isinstance(default := default_axis(site.call), int):
        return constant(default)
    return constant(axes[0] if len(axes) == 1 else axes)


def _keepdims(site: Site) -> bool:
    return bool(site.call.static("keepdims", False))


def _largest(site: Site, x: Term, axis: Term, over: tuple[str, ...]) -> Term:
    """The maximum over devices, without a derivative."""
    template = "pmax(stop_gradient(max({x}, axis={axis}, keepdims=True)), {over})"
    return site.define("max", built(template, x=x, axis=axis, over=over))


def _summing_exponentials(call: Call, *, back: int = 0, keeps: bool) -> Rule | None:
    rule = _reducing(call, 2, back=back, keeps=keeps)
    return rule and replace(rule, exponentials=frozenset(_axes(call)))


@_in_parts
def _softmax(site: Site, x: Term, axis: Term, over: tuple[str, ...]) -> Term:
    each = site.define("exp", built("exp({x} - {m})", x=x, m=_largest(site, x, axis, over)))
    return built("{e} / psum(sum({e}, axis={axis}, keepdims=True), {over})", e=each, axis=axis, over=over)


@_in_parts
def _log_softmax(site: Site, x: Term, axis: Term, over: tuple[str, ...]) -> Term:
    shifted = site.define("shifted", built("{x} - {m}", x=x, m=_largest(site, x, axis, over)))
    template = "{s} - log(psum(sum(exp({s}), axis={axis}, keepdims=True), {over}))"
    return built(template, s=shifted, axis=axis, over=over)


@rule_for("softmax", write=_softmax, otherwise=[ALONG])
@rule_for("log_softmax", write=_log_softmax, otherwise=[ALONG])
def softmax(call: Call) -> Rule | None:
    """Rule: `exp(x - m) / sum(exp(x - m))`, and its logarithm."""
    return _summing_exponentials(call, back=1, keeps=True)


def _logsumexp(site: Site, x: Term, axis: Term, over: tuple[str, ...], *, kind: Literal["sum", "mean"]) -> Term:
    largest = _largest(site, x, axis, over)
    # An infinite maximum is not subtracted.
    largest = site.define("shift", built("where(isfinite({m}), {m}, 0.0)", m=largest))
    template = f"log(p{kind}({kind}(exp({{x}} - {{m}}), axis={{axis}}, keepdims=True), {{over}})) + {{m}}"
    term = built(template, x=x, m=largest, axis=axis, over=over)
    return term if _keepdims(site) else built("squeeze({x}, axis={axis})", x=term, axis=axis)


@rule_for("logsumexp", write=_in_parts(partial(_logsumexp, kind="sum")), otherwise=[ALONG])
@rule_for("logmeanexp", write=_in_parts(partial(_logsumexp, kind="mean")), otherwise=[ALONG])
def logsumexp(call: Call) -> Rule | None:
    """Rule: `m + log(sum(exp(x - m)))`, and with the mean."""
    return _summing_exponentials(call, keeps=False)


def _moments(
    site: Site, x: Term, axis: Term, over: tuple[str, ...], *, keep: bool, named: bool = False
) -> tuple[Term, Term]:
    """The deviations from the mean, and the mean of their squares.

    `named`: whether the deviations are read again, so that they are a line: its gradient is then summed over devices
    once.
    """
    mean = built("pmean(mean({x}, axis={axis}, keepdims=True), {over})", x=x, axis=axis, over=over)
    squeezed = built("pmean(mean({x}, axis={axis}), {over})", x=x, axis=axis, over=over)
    names = site.layouts.names
    known, narrow = names.written(mean), names.written(squeezed)
    if known is None and narrow is None:
        mean = site.define("mean", mean)
    else:
        # An earlier line has the mean already.
        first = next(site.rule.sendings(site.mesh, site.assignment, site.layouts.prices))
        site.layouts.unspend(first, names.home(mean))
        mean = Name(known) if known else built("expand_dims({x}, {axis})", x=Name(str(narrow)), axis=axis)
    centered = built("{x} - {m}", x=x, m=mean)
    centered = site.define("centered", centered) if named else centered
    template = "pmean(mean({c} ** 2, axis={axis}, keepdims={keep}), {over})"
    return centered, built(template, c=centered, axis=axis, keep=keep, over=over)


@_in_parts
def _var(site: Site, x: Term, axis: Term, over: tuple[str, ...]) -> Term:
    _, variance = _moments(site, x, axis, over, keep=_keepdims(site))
    return variance


@_in_parts
def _std(site: Site, x: Term, axis: Term, over: tuple[str, ...]) -> Term:
    _, variance = _moments(site, x, axis, over, keep=_keepdims(site))
    return built("sqrt({x})", x=variance)


@rule_for("var", write=_var, otherwise=[ALONG])
@rule_for("std", write=_std, otherwise=[ALONG])
def moment(call: Call) -> Rule | None:
    """Rule: the mean first, then the mean of the squared deviations."""
    return _reducing(call, 2, back=1)


@_in_parts
def _standardize(site: Site, x: Term, axis: Term, over: tuple[str, ...]) -> Term:
    centered, variance = _moments(site, x, axis, over, keep=True, named=True)
    epsilon = site.call.static("epsilon", 1e-5)
    return built("{c} * rsqrt({v} + {epsilon})", c=centered, v=variance, epsilon=epsilon)


@rule_for("standardize", write=_standardize, otherwise=[ALONG])
def standardize(call: Call) -> Rule | None:
    """Rule: `(x - mean) * rsqrt(var + epsilon)`."""
    return _reducing(call, 2, back=2, keeps=True) if call.static("epsilon", 0.0) is not None else None


@_in_parts
def _norm(site: Site, x: Term, axis: Term, over: tuple[str, ...]) -> Term:
    template = "sqrt(psum(sum({x} ** 2, axis={axis}, keepdims={keep}), {over}))"
    return built(template, x=x, axis=axis, keep=_keepdims(site), over=over)


@rule_for("norm", "vector_norm", write=_norm, otherwise=[ALONG])
def norm(call: Call) -> Rule | None:
    """Rule: the square root of the sum of squares."""
    order, axis = call.static("ord", call.signature.parameters["ord"].default), call.static("axis")
    of_vectors = isinstance(axis, int) or len(call.array.shape) == 1
    if not (order is None or (order == 2 and of_vectors)) or (order is None and isinstance(axis, tuple)):
        return None
    return _reducing(call, 1)


@_in_parts
def _range(site: Site, x: Term, axis: Term, over: tuple[str, ...]) -> Term:
    template, ends = "{f}({x}, axis={axis}, keepdims={keep})", list[Term]()
    for kind in _ENDS:
        mine = built(template, f=kind, x=x, axis=axis, keep=_keepdims(site))
        ends.append(reduced(mine, kind, over, site.derivative)[0])
    return built("{high} - {low}", high=ends[0], low=ends[1])


_ENDS: tuple[Reduction, Reduction] = ("max", "min")


@rule_for("ptp", write=_range, otherwise=[ALONG])
def extent(call: Call) -> Rule | None:
    """Rule: the largest less the smallest element."""
    return _reducing(call, 2, back=2, kinds=("float", "int"))


@_in_parts
def _mean_of_numbers(site: Site, x: Term, axis: Term, over: tuple[str, ...]) -> Term:
    total = "psum(nansum({x}, axis={axis}, keepdims={keep}), {over})"
    count = "psum(sum(~isnan({x}), axis={axis}, keepdims={keep}), {over})"
    return built(f"{total} / {count}", x=x, axis=axis, keep=_keepdims(site), over=over)


@rule_for("nanmean", write=_mean_of_numbers, otherwise=[ALONG])
def mean_of_numbers(call: Call) -> Rule | None:
    """Rule: the sum of the elements that are not NaN, divided by their count."""
    return _reducing(call, 2)
