"""Scans each block of an `associative_scan`, combined with the total of the blocks before it."""

from __future__ import annotations

from runner.graph.language.operations import COMPUTATIONS, OPERATIONS
from runner.graph.language.parts import computed
from runner.graph.term import Apply, Const, Group, Lambda, Name, Term, children, mapped
from runner.programs.derivation.calls import Call, itemsize
from runner.programs.derivation.registry import rule_for
from runner.programs.derivation.rules import Rule, Sent, every
from runner.programs.derivation.site import Site
from runner.programs.derivation.terms import built, elements_of


def _axis(call: Call) -> int:
    return call.static("axis", 0) % len(call.result.shape)


def _scan(site: Site) -> Term:
    call, axis = site.call, _axis(site.call)
    over, several, reverse = site.over(axis), call.arguments["elems"].parts is not None, call.static("reverse", False)
    mine = site.rewritten()
    if not over:
        return mine
    site.ours("the scan over blocks")
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
def scan(call: Call) -> Rule | None:
    """Rule: arrays of one shape, combined by an elementwise function."""
    elems = call.arguments["elems"]
    typed = [Call.type(part) for part in (elems.parts if elems.parts is not None else [elems])]
    shape, axis = call.result.shape, _axis(call)
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
        match part:
            case Apply(operands=(Name(name=name), Const(value=int(at))), spelled="index"):
                return arguments[name][at]
            case Name(name=name):
                return arguments[name][0] if name in arguments else part
            case _:
                return mapped(part, applied)

    body = applied(fn.body)
    return list(children(body)) if several else [body]


def _by_element(fn: str | Lambda, *, several: bool) -> bool:
    """Whether the function combines its two operands elementwise."""
    if not isinstance(fn, Lambda):
        return OPERATIONS[COMPUTATIONS[fn].operation].elementwise

    def check(term: Term) -> bool:
        match term:
            case Const():
                return True
            case Name(name=name):
                return not several or name not in fn.parameters
            case Apply(operands=(Name(name=name), Const(value=int())), spelled="index"):
                return several and name in fn.parameters
            case Apply(operation=operation, operands=operands, named=(), spelled="call" | "operator"):
                return OPERATIONS[operation].elementwise and all(map(check, operands))
            case _:
                return False

    if several:
        return isinstance(fn.body, Group) and all(map(check, fn.body.items))
    return check(fn.body)
