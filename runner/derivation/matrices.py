"""Operations on matrices in; rules that keep each matrix whole and shard stacks of them out."""

from __future__ import annotations

from runner.derivation.calls import Call, is_number
from runner.derivation.registry import rule_for, whole
from runner.derivation.rules import Rule, every
from runner.derivation.site import Site
from runner.derivation.terms import built
from runner.graph.term import Term


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

    def batch(mine: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        offset = rank - len(mine)
        return tuple((d + offset,) if size == shape[d + offset] else () for d, size in enumerate(mine[:-2]))

    operands = {"a": (*batch(first), (), ()), "b": (*batch(second), (), (rank - 1,))}
    return Rule(operands, every(shape, but=[rank - 2]), dict(enumerate(shape)))


@rule_for("kron")
def kronecker(call: Call) -> Rule | None:
    """Rule: each dimension of the result has a factor of `a` and, within it, one of `b`."""
    first, second = call.type_of("a").shape, call.type_of("b").shape
    rank = len(first)
    if len(second) != rank:
        return None
    mine, yours = (tuple((at + d,) for d in range(rank)) for at in (0, rank))
    result = tuple((d, rank + d) for d in range(rank))
    return Rule({"a": mine, "b": yours}, result, dict(enumerate((*first, *second))))


def _pair(call: Call) -> tuple[int, int]:
    rank = len(call.array.shape)
    return call.static("axis1", 0) % rank, call.static("axis2", 1) % rank


def _diagonal(site: Site) -> Term:
    rows, columns = _pair(site.call)
    over, size = site.over(rows), site.call.array.shape[rows]
    if not over:
        return site.rewritten()
    site.ours("the diagonal of a block")
    template = "dynamic_slice_in_dim({x}, {start}, {n}, axis={d})"
    n = size // site.mesh.axis_size(over)
    square = built(template, x=site.x, start=site.start(over, size), n=n, d=columns)
    return site.rewritten({site.call.operand.place: square})


@rule_for("trace", "diagonal", write=_diagonal)
def diagonals(call: Call) -> Rule | None:
    """Rule: one diagonal for each matrix in a stack; if the rows are sharded, each device slices their columns."""
    shape, (rows, columns) = call.array.shape, _pair(call)
    square = shape[rows] == shape[columns] and call.static("offset", 0) == 0
    dimensions = every(shape, but=[columns] if square else [rows, columns])
    batch = tuple(each for d, each in enumerate(dimensions) if d not in (rows, columns))
    sizes, place = dict(enumerate(shape)), call.operand.place
    if call.name == "diagonal":
        return Rule({place: dimensions}, (*batch, dimensions[rows]), sizes)
    number = is_number(call.array) and not call.given("dtype")
    return Rule(
        {place: dimensions}, batch, sizes, {rows: "sum"} if square else {}, whole=frozenset(() if number else [rows])
    )


@rule_for("cross")
def crossed(call: Call) -> Rule | None:
    """Rule: the last dimension, of the vectors' components, is whole."""
    shape = call.result.shape
    given = {name: call.type_of(name).shape for name in ("a", "b")}
    if call.given("axisa", "axisb", "axisc", "axis"):
        return None
    if any(len(mine) != len(shape) or mine[-1] != 3 for mine in given.values()):
        return None
    operands = {
        name: (*((d,) if mine[d] == shape[d] else () for d in range(len(shape) - 1)), ())
        for name, mine in given.items()
    }
    return Rule(operands, every(shape, but=[len(shape) - 1]), dict(enumerate(shape)))


@rule_for("vander")
def powers(call: Call) -> Rule | None:
    """Rule: the powers of each element."""
    return Rule({call.operand.place: ((0,),)}, ((0,), ()), {0: call.array.shape[0]})


whole("svd", "lu", "lu_pivots_to_permutation", because="the results have other shapes than the matrices")
whole(
    "fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn",
    because="a transform along several dimensions",
)  # fmt: skip
