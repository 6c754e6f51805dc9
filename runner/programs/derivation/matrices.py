"""Has the rules for elementwise operations, contractions, and operations on matrices, which are mostly factors.

Elementwise operations share the result's dimensions, as they broadcast. Matrices stay whole, and stacks of them are
sharded.
"""

from __future__ import annotations

from functools import partial

from runner.base.lazy import dataclass
from runner.graph.language.operations import OPERATIONS
from runner.graph.term import NOTHING, Slice, Term
from runner.programs.derivation.calls import Call, NotStatic, is_number
from runner.programs.derivation.registry import Way, rule_for
from runner.programs.derivation.rules import Dimensions, Rule, every
from runner.programs.derivation.site import Site
from runner.programs.derivation.terms import ALL, built, constant, indexed, spread


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


@dataclass(frozen=True)
class _Diagonal:
    """A diagonal of matrices.

    - `rows`, `columns`: their dimensions; `offset`: that of the diagonal.
    - `kept`: the one that an element of the diagonal is counted along, the other one being summed over.
    - `taken`: the positions along `kept` that have an element of it.
    """

    rows: int
    columns: int
    offset: int
    kept: int
    taken: range

    @property
    def other(self) -> int:
        """The dimension that is summed over."""
        return self.columns if self.kept == self.rows else self.rows

    def batch(self, dimensions: Dimensions) -> Dimensions:
        """The dimensions of the stack."""
        return tuple(factors for d, factors in enumerate(dimensions) if d not in (self.rows, self.columns))

    @classmethod
    def of(cls, call: Call, place: str) -> _Diagonal:
        """The diagonal that a call takes; its offset is the argument `place`. Raises `NotStatic` if it is unknown."""
        shape, offset = call.array.shape, call.static(place, 0)
        if not isinstance(offset, int):
            raise NotStatic
        rows: int = call.static("axis1", 0) % len(shape)
        columns: int = call.static("axis2", 1) % len(shape)
        low, left = max(-offset, 0), max(offset, 0)
        count = max(min(shape[rows] - low, shape[columns] - left), 0)
        by_columns = count == shape[columns] and count != shape[rows]
        kept, first = (columns, left) if by_columns else (rows, low)
        return cls(rows, columns, offset, kept, range(first, first + count))


def _diagonal(site: Site, offset: str = "offset", *, summed: bool = False) -> Term:
    """Write a diagonal, whose offset is the argument `offset`, or the sum of its elements."""
    diagonal, shape = _Diagonal.of(site.call, offset), site.call.array.shape
    rows, columns, rank = diagonal.rows, diagonal.columns, len(shape)
    over, across = site.over(rows), site.over(columns)
    if not over and not across:
        return site.rewritten()
    site.ours("the diagonal of a block")
    if not across and not diagonal.offset and diagonal.kept == rows and len(diagonal.taken) == shape[rows]:
        n, template = shape[rows] // site.mesh.axis_size(over), "dynamic_slice_in_dim({x}, {start}, {n}, axis={d})"
        square = built(template, x=site.x, start=site.start(over, shape[rows]), n=n, d=columns)
        return site.rewritten({site.call.operand.place: square})
    first = spread(site.indices(shape[rows], over), rank - 1 - rows)
    first = built("{i} + {k}", i=first, k=diagonal.offset) if diagonal.offset else first
    second = spread(site.indices(shape[columns], across), rank - 1 - columns)
    alone = built("where({i} == {j}, {x}, 0)", i=first, j=second, x=site.x)
    if summed:
        return built("sum({x}, axis={axes})", x=alone, axes=(rows, columns))
    term = built("sum({x}, axis={d})", x=alone, d=diagonal.other)
    at = diagonal.kept - (diagonal.other < diagonal.kept)
    term = term if at == rank - 2 else built("moveaxis({x}, {at}, -1)", x=term, at=at)
    if diagonal.taken == range(shape[diagonal.kept]):
        return term
    between = Slice(constant(diagonal.taken.start), constant(diagonal.taken.stop), NOTHING)
    return indexed(term, [*[ALL] * (rank - 2), between])


def diagonals(call: Call, offset: str = "offset") -> Rule | None:
    """Rule: one diagonal for each matrix in a stack, of which a device has the elements in its block.

    A device that has rows slices their columns; otherwise the elements, with zeros beside them, are summed.
    `offset`: the argument that says which diagonal.
    """
    diagonal, shape, place = _Diagonal.of(call, offset), call.array.shape, call.operand.place
    if not diagonal.taken:
        return None
    dimensions, sizes, kept = every(shape), dict(enumerate(shape)), diagonal.kept
    batch, number = diagonal.batch(dimensions), _adds_in_its_dtype(call)
    complete = diagonal.taken == range(shape[kept])
    # Rows on the main diagonal need no sum.
    along = {diagonal.other} if kept == diagonal.rows and not diagonal.offset else {kept, diagonal.other}
    summed = set[int]() if number else along
    whole = summed if complete else {kept, *summed}
    return Rule(
        {place: dimensions},
        (*batch, (kept,) if complete else ()),
        sizes,
        {diagonal.other: "sum"},
        whole=frozenset(whole),
    )


def _from_vector(site: Site) -> Term:
    (n, _), over, across = site.call.result.shape, site.over(0), site.over(1)
    if not over and not across:
        return site.rewritten()
    template = "where({i}[:, None] == {j}, {x}[:, None], 0)"
    return built(template, i=site.indices(n, over), j=site.indices(n, across), x=site.x)


def from_vector(call: Call) -> Rule | None:
    """Rule: the matrix with a vector on its main diagonal."""
    n = call.result.shape[0]
    if len(call.array.shape) != 1 or call.static("k", 0) != 0 or call.array.dtype == "bool":
        return None
    return Rule({call.operand.place: ((0,),)}, ((0,), (1,)), {0: n, 1: n})


rule_for("diagonal", write=_diagonal)(diagonals)


@rule_for("diag", write=partial(_diagonal, offset="k"), otherwise=[Way(from_vector, _from_vector)])
def of_matrix(call: Call) -> Rule | None:
    """Rule: the diagonal of a matrix."""
    return diagonals(call, "k") if len(call.array.shape) == 2 else None


@rule_for("trace", write=partial(_diagonal, summed=True))
def traces(call: Call) -> Rule | None:
    """Rule: the sum of one diagonal for each matrix in a stack; a device adds up the elements in its block."""
    diagonal, shape = _Diagonal.of(call, "offset"), call.array.shape
    if not diagonal.taken:
        return None
    dimensions, ends = every(shape), (diagonal.rows, diagonal.columns)
    whole = frozenset(() if _adds_in_its_dtype(call) and not call.given("dtype") else ends)
    sizes = dict(enumerate(shape))
    return Rule(
        {call.operand.place: dimensions}, diagonal.batch(dimensions), sizes, dict.fromkeys(ends, "sum"), whole=whole
    )


def _adds_in_its_dtype(call: Call) -> bool:
    """Whether sums have the operand's dtype; a sum of small integers may have another."""
    return is_number(call.array, "float", "complex") or call.array.dtype == "int32"


BITCAST = "bitcast_convert_type"
NAMES = tuple(dict.fromkeys(row.key for row in OPERATIONS.values() if row.elementwise and row.key != BITCAST))


@rule_for(*NAMES)
def pointwise(call: Call) -> Rule | None:
    """Rule: each dimension of the result is a factor; a broadcast dimension of an operand has none."""
    listed = any(argument.parts is not None and not argument.static for argument in call.arguments.values())
    return None if listed else broadcasting(call)


@rule_for("select")
def selected(call: Call) -> Rule | None:
    """Rule: as of an elementwise operation, whose operands are in two lists."""
    unlisted = any(call.arguments[name].parts is None for name in ("condlist", "choicelist"))
    return None if unlisted else broadcasting(call)


@rule_for(BITCAST)
def bitcast(call: Call) -> Rule:
    """Rule: each dimension that operand and result share; between widths, one has another dimension at its end."""
    shape = call.result.shape
    (array,) = [array for argument in call.arguments.values() for array in argument.arrays()]
    operand_shape = Call.type(array).shape
    shared = min(len(operand_shape), len(shape))
    operand, result = (tuple((d,) if d < shared else () for d in range(len(dims))) for dims in (operand_shape, shape))
    return Rule({array.place: operand}, result, dict(enumerate(shape[:shared])))


def broadcasting(call: Call) -> Rule:
    """The rule of operands that are broadcast against each other."""
    shape = call.result.shape
    arrays = [array for argument in call.arguments.values() for array in argument.arrays()]
    operands = {array.place: aligned(Call.type(array).shape, shape) for array in arrays}
    run = {factor for dimensions in operands.values() for factors in dimensions for factor in factors}
    return Rule(operands, tuple((d,) if d in run else () for d in range(len(shape))), dict(enumerate(shape)))


@rule_for("array", "asarray")
def made(call: Call) -> Rule | None:
    """Rule: the conversion of an array."""
    return pointwise(call) if call.arguments.keys() <= {"a", "object", "dtype"} else None


@rule_for("broadcast_arrays")
def broadcast(call: Call) -> Rule | None:
    """Rule: each result is an operand in the common shape."""
    return broadcasting(call)


def aligned(operand_shape: tuple[int, ...], shape: tuple[int, ...]) -> Dimensions:
    """The factors of an operand that is broadcast to `shape`, whose dimensions are the factors 0, 1, …"""
    offset = len(shape) - len(operand_shape)
    return tuple((d + offset,) if size == shape[d + offset] else () for d, size in enumerate(operand_shape))


@rule_for("matmul", "dot", "dot_general", "einsum", "inner", "tensordot", "vecdot", "matvec", "vecmat", "vdot")
def product(call: Call) -> Rule | None:
    """Rule: a product of two arrays, or an einsum of any number of them, with the labels in its row; a scaled array."""
    arrays = [array for argument in call.arguments.values() for array in argument.arrays()]
    shapes = [Call.type(array).shape for array in arrays]
    if call.labels is None:
        return broadcasting(call) if [shape for shape in shapes if shape] == [call.result.shape] else None
    labels, result = call.labels
    if len(labels) != len(shapes) or any(len(a) != len(b) for a, b in zip(labels, shapes, strict=True)):
        return None
    sizes: dict[str, int] = {}
    for shape, letters in zip(shapes, labels, strict=True):
        for size, letter in zip(shape, letters, strict=True):
            sizes[letter] = max(sizes.get(letter, 1), size)
    # A letter that occurs twice in an operand is a diagonal, and one of size 1 is broadcast: both stay whole.
    twice = {letter for letters in labels for letter in letters if letters.count(letter) > 1}
    number = {letter: at for at, letter in enumerate(sizes) if letter not in twice and sizes[letter] > 1}

    def factors(letters: str, shape: tuple[int, ...]) -> Dimensions:
        named = zip(letters, shape, strict=True)
        return tuple((number[c],) if c in number and size == sizes[c] else () for c, size in named)

    owners = zip(arrays, labels, shapes, strict=True)
    return Rule(
        {array.place: factors(letters, shape) for array, letters, shape in owners},
        factors(result, call.result.shape),
        {number[letter]: size for letter, size in sizes.items() if letter in number},
        {number[letter]: "sum" for letter in number if letter not in result},
    )


@rule_for("outer")
def outer(call: Call) -> Rule | None:
    """Rule: the outer product of two vectors; arrays of more dimensions, which it flattens, are not covered."""
    shapes = [call.type_of(name).shape for name in ("a", "b")]
    if any(len(shape) != 1 for shape in shapes):
        return None
    return Rule({"a": ((0,),), "b": ((1,),)}, ((0,), (1,)), {0: shapes[0][0], 1: shapes[1][0]})


@rule_for("ragged_dot")
def ragged(call: Call) -> Rule | None:
    """Rule: rows are whole, columns independent; the contracting dimension may be sharded."""
    operands: dict[str, Dimensions] = {"lhs": ((), (0,)), "rhs": ((), (0,), (1,)), "group_sizes": ((),)}
    _, rows, columns = [call.type_of(name).shape for name in operands][1]
    return Rule(operands, ((), (1,)), {0: rows, 1: columns}, {0: "sum"})


@rule_for("dot_product_attention")
def attention(call: Call) -> Rule | None:
    """Rule: batch, heads and queries are independent; each query needs all keys and values."""
    shapes = [call.type_of(name).shape for name in ("query", "key", "value")]
    if any(len(shape) != 4 for shape in shapes) or len({shape[0] for shape in shapes}) > 1:
        return None
    batch, length, heads, _ = shapes[0]
    shared = shapes[1][2]
    # Factors: 0 batch, 1 queries, 2 heads of the keys, 3 heads of the queries per head of the keys.
    queries: Dimensions = ((0,), (1,), (2, 3), ())
    keys: Dimensions = ((0,), (), (2,), ())
    operands: dict[str, Dimensions] = {"query": queries, "key": keys, "value": keys}
    full = [((0,), batch), ((2, 3), heads), ((1,), length), ((), shapes[1][1])]
    for name in ("bias", "mask"):
        if name in call.arguments and (extra := call.arguments[name].typed) is not None:
            if len(extra.shape) != 4:
                return None
            pairs = zip(full, extra.shape, strict=True)
            operands[name] = tuple(factors if n == size else () for (factors, size), n in pairs)
    # Query heads that share a key head stay together; a causal mask counts from the first query.
    together = {3, 1} if call.static("is_causal", False) else {3}
    return Rule(operands, queries, {0: batch, 1: length, 2: shared, 3: heads // shared}, whole=frozenset(together))
