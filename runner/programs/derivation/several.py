"""Rules for operations with several results (`top_k(x, 2)`, `split(x, 3)`)."""

from __future__ import annotations

from runner.graph.term import Term
from runner.programs.derivation.calls import Call, is_number, itemsize
from runner.programs.derivation.reductions import default_axis
from runner.programs.derivation.registry import Way, rule_for
from runner.programs.derivation.rules import Rule, Sent, every
from runner.programs.derivation.site import Site
from runner.programs.derivation.terms import built


def _axis(call: Call) -> int:
    return call.static("axis", default_axis(call)) % len(call.array.shape)


@rule_for("split", "array_split", "unstack")
def pieces(call: Call) -> Rule | None:
    """Rule: whole along the dimension that is split."""
    shape, axis = call.array.shape, _axis(call)
    dimensions = every(shape, but=[axis])
    keeps = len(call.result.shape) == len(shape)
    result = tuple(factors for d, factors in enumerate(dimensions) if d != axis or keeps)
    return Rule({call.operand.place: dimensions}, result, dict(enumerate(shape)))


def _largest(site: Site) -> Term:
    axis, place = _axis(site.call), site.call.operand.place
    over, d = site.over(axis), axis
    local = site.rewritten()
    if not over:
        return local
    site.ours("the choice among the largest of each block")
    mine = site.define("mine", local)
    values = site.define("values", site.gathered(built("{m}[0]", m=mine), over, axis=d, tiled=True))
    if site.call.alone:
        return site.rewritten({place: values})
    start = site.start(over, site.rule.sizes[axis])
    places = site.gathered(built("{m}[1] + {start}", m=mine, start=start), over, axis=d, tiled=True)
    places = site.define("places", places)
    best = site.define("best", site.rewritten({place: values}))
    return built("({b}[0], take_along_axis({p}, {b}[1], axis={d}))", b=best, p=places, d=d)


@rule_for("top_k", write=_largest, otherwise=[Way(pieces)])
def largest(call: Call) -> Rule | None:
    """Rule: along a sharded dimension, the largest among the largest of each block."""
    shape, k, axis = call.array.shape, call.static("k"), _axis(call)
    if not is_number(call.array, "float", "int"):
        return None
    others = tuple((size, (d,), 0) for d, size in enumerate(shape) if d != axis)
    width = itemsize(call.array.dtype) + (0 if call.alone else 4)
    # The factor of the chosen dimension may be split, but is not in the result, which is whole along it.
    return Rule(
        {call.operand.place: every(shape)},
        every(shape, but=[axis]),
        dict(enumerate(shape)),
        least={axis: k},
        inside=(Sent("all-gather", (axis,), (*others, (k, (), 0)), width),),
    )
