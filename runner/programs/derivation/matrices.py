"""Keeps each matrix whole and shards stacks of them, for operations on matrices."""

from __future__ import annotations

from runner.programs.derivation.calls import Call
from runner.programs.derivation.registry import rule_for
from runner.programs.derivation.rules import Rule, every


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
