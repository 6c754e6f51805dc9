"""Keeps each matrix whole and shards stacks of them, for operations on matrices."""

from __future__ import annotations

from runner.graph.term import Term
from runner.programs.derivation.calls import Call
from runner.programs.derivation.registry import rule_for
from runner.programs.derivation.rules import Rule, every
from runner.programs.derivation.site import Site
from runner.programs.derivation.terms import built


@rule_for("inv", "cholesky", "matrix_power", "svdvals", "eigvalsh", "det", "slogdet", "qr", "eigh")
def stacked(call: Call) -> Rule | None:
    """Rule: one operation for each matrix in a stack; the result may lack dimensions of the matrix."""
    shape = call.array.shape
    kept = len(call.result.shape) - len(shape) + 2
    if len(shape) < 2:
        return None
    batch = every(shape[:-2])
    return Rule({call.operand.place: (*batch, (), ())}, (*batch, *((),) * kept), dict(enumerate(shape)))


@rule_for("solve", "solve_triangular")
def solved(call: Call) -> Rule | None:
    """Rule: the columns of the right-hand side are independent."""
    first, second, shape = call.type_of("a").shape, call.type_of("b").shape, call.result.shape
    if len(second) == 1:
        return Rule({"a": ((), ()), "b": ((),)}, ((),), {}) if len(first) == 2 else None
    rank = len(shape)

    def batch(factors: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        offset = rank - len(factors)
        return tuple((d + offset,) if size == shape[d + offset] else () for d, size in enumerate(factors[:-2]))

    operands = {"a": (*batch(first), (), ()), "b": (*batch(second), (), (rank - 1,))}
    return Rule(operands, every(shape, but=[rank - 2]), dict(enumerate(shape)))


def _diagonal(site: Site) -> Term:
    """Write a diagonal, of rows that devices share: of the square in which it meets a block of them."""
    rows, columns = _ends(site.call)
    size, over = site.call.array.shape[rows], site.over(rows)
    if not over:
        return site.rewritten()
    site.ours("the diagonal of a block")
    n, template = size // site.mesh.axis_size(over), "dynamic_slice_in_dim({x}, {start}, {n}, axis={d})"
    square = built(template, x=site.x, start=site.start(over, size), n=n, d=columns)
    return site.rewritten({site.call.operand.place: square})


def _ends(call: Call) -> tuple[int, int]:
    """The dimensions of the rows and of the columns."""
    rank = len(call.array.shape)
    return call.static("axis1", 0) % rank, call.static("axis2", 1) % rank


@rule_for("diag", "diagonal", "trace", write=_diagonal)
def diagonal(call: Call) -> Rule | None:
    """Rule: the diagonal of each matrix in a stack, or its sum; along the main one of a square rows are independent."""
    shape = call.array.shape
    if len(shape) < 2:
        return None
    rows, columns = _ends(call)
    main = call.static("k" if call.name == "diag" else "offset", 0) == 0 and shape[rows] == shape[columns]
    dimensions = every(shape, but={columns} if main and call.name != "trace" else {rows, columns})
    batch = tuple(factors for d, factors in enumerate(dimensions) if d not in (rows, columns))
    result = batch if call.name == "trace" else (*batch, dimensions[rows])
    return Rule({call.operand.place: dimensions}, result, dict(enumerate(shape)))
