"""What is drawn for each element of an array: the noise is made whole on each device, which takes its part of it."""

from __future__ import annotations

import ast

from runner.derivation.reductions import best
from runner.derivation.rules import Assignment, Rule, Value
from runner.derivation.site import Site
from runner.derivation.trees import built, constant
from runner.layout import Spec


def _noise(site: Site, distribution: str, shape: tuple[int, ...], dtype: str) -> Value:
    key = site.writer.whole(site.arguments["key"])
    template = "{draw}({key}, {shape})" if dtype == "float32" else "{draw}({key}, {shape}, {dtype})"
    tree = built(template, draw=ast.Name(distribution), key=key, shape=constant(shape), dtype=dtype)
    return Value(tree, shape, Spec().padded(len(shape)), dtype)


def categorical(site: Site) -> Value | None:
    """`categorical`: the largest of the logits with Gumbel's noise."""
    part = site.arguments["logits"]
    typed = site.type_of(part)
    if typed is None or typed.dtype not in ("float32", "float64") or site.given("shape"):
        return None
    noise = _noise(site, "gumbel", typed.shape, typed.dtype)

    def noisy(trees: list[ast.expr]) -> ast.expr:
        site.writer.ours("the part of the noise")
        return built("{noise} + {x}", noise=trees[1], x=trees[0])

    return best(site, "argmax", [site.value(part), noise], site.static("axis", -1), noisy)


def bernoulli(site: Site) -> Value | None:
    """`bernoulli`: where uniform noise is below `p`."""
    part = site.arguments.get("p")
    typed = None if part is None else site.type_of(part)
    if part is None or typed is None or typed.dtype not in ("float32", "float64") or site.given("shape"):
        return None
    noise = _noise(site, "uniform", typed.shape, typed.dtype)

    def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
        if not any(assignment.values()):
            return site.rewritten({id(part): trees[0]})
        site.writer.ours("the part of the noise")
        return built("{noise} < {p}", noise=trees[1], p=trees[0])

    dimensions = tuple((d,) for d in range(len(typed.shape)))
    rule = Rule((dimensions, dimensions), dimensions, dict(enumerate(typed.shape)), write)
    return site.writer.apply(site, [site.value(part), noise], rule)


def permutation(site: Site) -> Value | None:
    """`permutation`: of an array of several dimensions the order is drawn for one."""
    part = site.arguments["x"]
    typed = site.type_of(part)
    if typed is None or len(typed.shape) < 2:
        return None
    axis = site.static("axis", 0) % len(typed.shape)
    dimensions = tuple((d,) if d != axis else () for d in range(len(typed.shape)))
    return site.run([(part, dimensions)], dimensions, dict(enumerate(typed.shape)))
