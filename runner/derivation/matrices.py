"""Matrices: every matrix is whole on the devices that have it, and what is stacked of them stays as it is sharded."""

from __future__ import annotations

from runner.derivation.reductions import operand
from runner.derivation.rules import Dimensions, Value
from runner.derivation.site import Site

LOST = {"inv": 0, "cholesky": 0, "matrix_power": 0, "svdvals": 1, "eigvalsh": 1, "det": 2, "slogdet": 2}
"""How many of a matrix's two dimensions the result lacks."""


def factored(site: Site) -> Value | None:
    """`qr`, `eigh`: of each matrix in a stack; both parts lie as the stack."""
    part = operand(site)
    typed = site.type_of(part)
    if typed is None or len(typed.shape) < 2:
        return None
    batch: Dimensions = tuple((d,) for d in range(len(typed.shape) - 2))
    # Of `eigh` the first part lacks a dimension.
    result = (*batch, *((),) * (len(site.result.shape) - len(batch)))
    return site.run([(part, (*batch, (), ()))], result, dict(enumerate(typed.shape)))


def stacked(site: Site) -> Value | None:
    """`inv`, `det`, …: of each matrix in a stack."""
    part = operand(site)
    typed = site.type_of(part)
    if typed is None or len(typed.shape) < 2:
        return None
    batch: Dimensions = tuple((d,) for d in range(len(typed.shape) - 2))
    result = batch + ((),) * (2 - LOST[site.name])
    return site.run([(part, (*batch, (), ()))], result, dict(enumerate(typed.shape)))


def solved(site: Site) -> Value | None:
    """`solve`, `solve_triangular`: every column of the right-hand side by itself."""
    a, b = site.arguments["a"], site.arguments["b"]
    first, second = site.type_of(a), site.type_of(b)
    if first is None or second is None:
        return None
    rank, shape = len(site.result.shape), site.result.shape
    if len(second.shape) == 1:
        return None if len(first.shape) != 2 else site.run([(a, ((), ())), (b, ((),))], ((),), {})
    sizes = dict(enumerate(shape))

    def batch(mine: tuple[int, ...]) -> Dimensions:
        offset = rank - len(mine)
        return tuple((d + offset,) if size == shape[d + offset] else () for d, size in enumerate(mine[:-2]))

    dimensions = [(a, (*batch(first.shape), (), ())), (b, (*batch(second.shape), (), (rank - 1,)))]
    return site.run(dimensions, (*((d,) for d in range(rank - 2)), (), (rank - 1,)), sizes)


def kronecker(site: Site) -> Value | None:
    """`kron`: each dimension runs along one of `a`, and within each of its elements along one of `b`."""
    a, b = site.arguments["a"], site.arguments["b"]
    first, second = site.type_of(a), site.type_of(b)
    if first is None or second is None or len(first.shape) != len(second.shape):
        return None
    rank = len(first.shape)
    sizes = dict(enumerate((*first.shape, *second.shape)))
    mine, yours = (tuple((at + d,) for d in range(rank)) for at in (0, rank))
    return site.run([(a, mine), (b, yours)], tuple((d, rank + d) for d in range(rank)), sizes)


def diagonals(site: Site) -> Value | None:
    """`trace`, `diagonal`: of each matrix in a stack."""
    part = operand(site)
    typed = site.type_of(part)
    if typed is None:
        return None
    rank = len(typed.shape)
    pair = {site.static("axis1", 0) % rank, site.static("axis2", 1) % rank}
    dimensions = tuple((d,) if d not in pair else () for d in range(rank))
    result = tuple((d,) for d in range(rank) if d not in pair)
    result = result if site.name == "trace" else (*result, ())
    return site.run([(part, dimensions)], result, dict(enumerate(typed.shape)))


def crossed(site: Site) -> Value | None:
    """`cross`: the last dimension is the vectors'."""
    if site.given("axisa", "axisb", "axisc", "axis"):
        return None
    parts = [site.arguments["a"], site.arguments["b"]]
    typed = [site.type_of(part) for part in parts]
    shapes = [each.shape for each in typed if each is not None]
    shape = site.result.shape
    if len(shapes) < 2 or any(len(mine) != len(shape) or mine[-1] != 3 for mine in shapes):
        return None
    batch = range(len(shape) - 1)
    dimensions = [tuple((d,) if mine[d] == shape[d] else () for d in batch) for mine in shapes]
    pairs = [(part, (*each, ())) for part, each in zip(parts, dimensions, strict=True)]
    return site.run(pairs, (*((d,) for d in batch), ()), dict(enumerate(shape)))


def powers(site: Site) -> Value | None:
    """`vander`: each element's powers."""
    part = operand(site)
    typed = site.type_of(part)
    return None if typed is None else site.run([(part, ((0,),))], ((0,), ()), {0: typed.shape[0]})
