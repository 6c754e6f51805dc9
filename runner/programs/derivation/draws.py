"""Draws noise whole and takes each device's slice, for a draw of categories."""

from __future__ import annotations

from runner.base.layout import Spec
from runner.graph.term import Term
from runner.programs.derivation.calls import Call
from runner.programs.derivation.reductions import choosing, first_best
from runner.programs.derivation.registry import rule_for
from runner.programs.derivation.rules import Rule
from runner.programs.derivation.site import Site
from runner.programs.derivation.terms import built, constant
from runner.programs.derivation.values import DeviceValue


def _noise(site: Site) -> Term:
    """The Gumbel noise of one device's block, in the layout of the logits."""
    site.ours("the part of the noise")
    typed, key = site.call.type_of("logits"), site.whole("key")
    template = "gumbel({key}, {shape})" if typed.dtype == "float32" else "gumbel({key}, {shape}, {dtype})"
    shape = typed.shape
    noise = DeviceValue(
        built(template, key=key, shape=constant(shape), dtype=typed.dtype),
        shape,
        Spec().padded(len(shape)),
        typed.dtype,
    )
    return site.layouts.reshard(noise, Spec(site.over(d) for d in range(len(shape)))).term


def _categorical(site: Site) -> Term:
    if not any(site.assignment.values()):
        return site.rewritten()
    shape = site.call.type_of("logits").shape
    axis: int = site.call.static("axis", -1) % len(shape)
    x = built("{noise} + {x}", noise=_noise(site), x=site.x)
    if not site.over(axis):
        return built("argmax({x}, axis={d})", x=x, d=axis)
    site.ours("the choice among the blocks")
    return first_best(site, "max", x, axis, shape[axis], may_be_nan=True)


@rule_for("categorical", write=_categorical)
def categorical(call: Call) -> Rule | None:
    """Rule: the argmax of the logits plus Gumbel noise."""
    typed = call.type_of("logits")
    if typed.dtype not in ("float32", "float64") or call.given("shape"):
        return None
    return choosing(call, call.arguments["logits"], [call.static("axis", -1) % len(typed.shape)])
