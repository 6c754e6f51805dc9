"""Labels the operands of a contraction as einsum does: which dimensions are summed over, which are kept.

The operands are those of a call, in order, with tuples flattened; arrays have a `shape`. Each function returns None for
operands whose labels it cannot tell.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from runner.base.untyped import is_sequence

Labels = tuple[Sequence[str], str]
"""The labels of each operand, one character per dimension, and those of the result."""

_BATCH, _ROWS, _COLUMNS, _SUMMED = "ZYXWVUTS", "abcdefgh", "stuvwxyz", "klmnopq"


def _ranks(operands: Sequence[Any]) -> list[int]:
    return [len(operand.shape) for operand in operands if hasattr(operand, "shape")]


def _two(operands: Sequence[Any]) -> tuple[int, int] | None:
    """The ranks of the two array operands; None unless there are two, of rank 1 or more."""
    match _ranks(operands):
        case [first, second] if first and second:
            return first, second
        case _:
            return None


def parsed(subscripts: str, ranks: Sequence[int] | None = None) -> Labels:
    """Parse subscripts, `'...ij,jk'`, and write out an ellipsis and an implicit result.

    `ranks`: those of the operands; needed for an ellipsis only. Raises `ValueError` for another number of operands.
    """
    left, arrow, result = subscripts.replace(" ", "").partition("->")
    inputs = left.split(",")
    if not arrow:
        once = sorted(c for c in set(left) - {",", "."} if left.count(c) == 1)
        result = ("..." if "..." in left else "") + "".join(once)
    if ranks is None:
        return inputs, result
    extra = [rank - len(labels) + 3 if "..." in labels else 0 for labels, rank in zip(inputs, ranks, strict=True)]
    batch = "".join(c for c in _BATCH + string.ascii_letters if c not in left)[: max(extra)]
    inputs = [labels.replace("...", batch[len(batch) - n :]) for labels, n in zip(inputs, extra, strict=True)]
    return inputs, result.replace("...", batch)


def spelled(labels: Labels) -> str:
    """The subscripts of labels: `'ij,jk->ik'`."""
    inputs, result = labels
    return f"{','.join(inputs)}->{result}"


def einsum(operands: Sequence[Any]) -> Labels | None:
    """`einsum('...ij,jk', x, y)`: writes out the ellipsis and an implicit result."""
    return parsed(operands[0], _ranks(operands)) if isinstance(operands[0], str) else None


def tensordot(operands: Sequence[Any]) -> Labels | None:
    """`tensordot(x, y, axes=2)`: sums over the last dimensions of `x` and first of `y`, or those that `axes` pairs."""
    ranks = _two(operands)
    axes: Sequence[Any] = [each for each in operands[2:] if isinstance(each, int) or is_sequence(each)] or [2]
    if ranks is None or len(axes) > 2:
        return None
    if len(axes) == 1:
        axes = range(ranks[0] - axes[0], ranks[0]), range(axes[0])
    of_both = [[axis] if isinstance(axis, int) else list(axis) for axis in axes]
    summed = [dict(zip((d % rank for d in of), _SUMMED, strict=False)) for rank, of in zip(ranks, of_both, strict=True)]
    inputs = [
        "".join(paired.get(d) or letters[d] for d in range(rank))
        for rank, paired, letters in zip(ranks, summed, (_ROWS, _COLUMNS), strict=True)
    ]
    return inputs, "".join(c for labels in inputs for c in labels if c not in _SUMMED)


def dot_general(operands: Sequence[Any]) -> Labels | None:
    """`dot_general(x, y, (contracting, batch))`, each a pair for `x` and `y`; the result begins with the batch."""
    ranks = _two(operands)
    pairs = [operand for operand in operands if is_sequence(operand) and not hasattr(operand, "shape")]
    if ranks is None or len(pairs) != 2:
        return None
    summed, batch = (
        [dict(zip(map(int, of), letters, strict=False)) for of in pair]
        for pair, letters in zip(pairs, (_SUMMED, _BATCH), strict=True)
    )
    inputs = [
        "".join(summed[i].get(d) or batch[i].get(d) or letters[d] for d in range(rank))
        for i, (rank, letters) in enumerate(zip(ranks, (_ROWS, _COLUMNS), strict=True))
    ]
    kept = ["".join(c for c in labels if c not in _SUMMED and c not in _BATCH) for labels in inputs]
    return inputs, "".join([*batch[0].values(), *kept])


def dot(operands: Sequence[Any]) -> Labels | None:
    """`dot(x, y)`: sums over the last dimension of `x` and the last but one of `y`."""
    ranks = _two(operands)
    if ranks is None:
        return None
    rows, columns = _ROWS[: ranks[0] - 1], _COLUMNS[: ranks[1] - 1]
    return [f"{rows}k", f"{columns[:-1]}k{columns[-1:]}"], f"{rows}{columns}"


def inner(operands: Sequence[Any]) -> Labels | None:
    """`inner(x, y)`: sums over the last dimensions."""
    ranks = _two(operands)
    if ranks is None:
        return None
    rows, columns = _ROWS[: ranks[0] - 1], _COLUMNS[: ranks[1] - 1]
    return [f"{rows}k", f"{columns}k"], f"{rows}{columns}"


def vdot(operands: Sequence[Any]) -> Labels | None:
    """`vdot(x, y)` of two arrays of one shape: sums over all dimensions; None for others, which it flattens."""
    shapes = [tuple(operand.shape) for operand in operands if hasattr(operand, "shape")]
    if len(shapes) != 2 or shapes[0] != shapes[1] or not 0 < len(shapes[0]) <= len(_SUMMED):
        return None
    return ([_SUMMED[: len(shapes[0])]] * 2, "")


def vecdot(operands: Sequence[Any]) -> Labels | None:
    """`vecdot(x, y)`: sums over the last dimensions, and broadcasts the others."""
    return _broadcast(operands, "k", "k") if len(operands) < 3 or operands[2] == -1 else None


def matvec(operands: Sequence[Any]) -> Labels | None:
    """`matvec(x, y)`: multiplies matrices by vectors, and broadcasts the other dimensions."""
    return _broadcast(operands, "rk", "k")


def vecmat(operands: Sequence[Any]) -> Labels | None:
    """`vecmat(x, y)`: multiplies vectors by matrices, and broadcasts the other dimensions."""
    return _broadcast(operands, "k", "kc")


def _broadcast(operands: Sequence[Any], left: str, other: str) -> Labels | None:
    """Label the last dimensions as given, and broadcast those before them against each other."""
    ranks = _two(operands)
    if ranks is None:
        return None
    first, second = (rank - len(own) for rank, own in zip(ranks, (left, other), strict=True))
    batch = _BATCH[: max(first, second)]
    inputs = [batch[len(batch) - first :] + left, batch[len(batch) - second :] + other]
    return inputs, batch + "".join(c for c in left + other if c != "k")


def matmul(operands: Sequence[Any]) -> Labels | None:
    """`x @ y`: broadcasts the leading dimensions against each other."""
    ranks = _two(operands)
    if ranks is None or max(ranks) <= 2:
        return dot(operands)
    return _broadcast(operands, "rk" if ranks[0] > 1 else "k", "kc" if ranks[1] > 1 else "k")


def in_ascii(subscripts: str) -> str:
    """Replace the labels by ASCII letters, which NumPy requires, in the same sorting order."""
    if subscripts.isascii():
        return subscripts
    names = sorted({name for name in subscripts if name not in " ,.->"})
    return subscripts.translate(dict(zip(map(ord, names), sorted(string.ascii_letters), strict=False)))
