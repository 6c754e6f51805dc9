"""Draws noise whole and takes each device's slice, for random operations with one draw per element."""

from __future__ import annotations

from runner.base.layout import Spec, Typed
from runner.graph.term import Term
from runner.programs.derivation.calls import Call
from runner.programs.derivation.reductions import best, written_best
from runner.programs.derivation.registry import rule_for
from runner.programs.derivation.rules import Rule, every
from runner.programs.derivation.site import Site
from runner.programs.derivation.terms import built, constant
from runner.programs.derivation.values import DeviceValue


def _noise(site: Site, distribution: str, typed: Typed) -> Term:
    """The noise of one device's block, in the layout of the first operand."""
    site.ours("the part of the noise")
    template = "{draw}({key}, {shape})" if typed.dtype == "float32" else "{draw}({key}, {shape}, {dtype})"
    shape, key = typed.shape, site.whole("key")
    term = built(template, draw=distribution, key=key, shape=constant(shape), dtype=typed.dtype)
    spec = Spec(site.over(d) for d in range(len(shape)))
    return site.layouts.reshard(DeviceValue(term, shape, Spec().padded(len(shape)), typed.dtype), spec).term


def _is_float(call: Call, name: str) -> bool:
    return call.type_of(name).dtype in ("float32", "float64") and not call.given("shape")


def _categorical(site: Site) -> Term:
    def noisy() -> Term:
        return built("{noise} + {x}", noise=_noise(site, "gumbel", site.call.type_of("logits")), x=site.x)

    return written_best(site, "max", site.call.static("axis", -1), noisy)


@rule_for("categorical", write=_categorical)
def categorical(call: Call) -> Rule | None:
    """Rule: the argmax of the logits plus Gumbel noise."""
    return best(call, "logits", call.static("axis", -1)) if _is_float(call, "logits") else None


def _bernoulli(site: Site) -> Term:
    if not any(site.assignment.values()):
        return site.rewritten()
    return built("{noise} < {p}", noise=_noise(site, "uniform", site.call.type_of("p")), p=site.x)


@rule_for("bernoulli", write=_bernoulli)
def bernoulli(call: Call) -> Rule | None:
    """Rule: whether uniform noise is below `p`."""
    shape = call.type_of("p").shape
    return Rule({"p": every(shape)}, every(shape), dict(enumerate(shape))) if _is_float(call, "p") else None


@rule_for("permutation")
def permutation(call: Call) -> Rule | None:
    """Rule: of an array of at least two dimensions, only the permuted one must be whole."""
    shape = call.type_of("x").shape
    if len(shape) < 2:
        return None
    dimensions = every(shape, but=[call.static("axis", 0) % len(shape)])
    return Rule({"x": dimensions}, dimensions, dict(enumerate(shape)))
