"""Rules for elementwise operations: operands share the result's dimensions, as they broadcast; and for contractions."""

from __future__ import annotations

from runner.graph.language.operations import OPERATIONS
from runner.programs.derivation.calls import Call
from runner.programs.derivation.registry import rule_for
from runner.programs.derivation.rules import Dimensions, Rule

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
