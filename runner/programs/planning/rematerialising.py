"""Finds the operations that the backward pass computes again, since a `checkpoint` does not save what it reads of them.

JAX saves the inputs of a checkpoint and what its policy names; from these the backward pass computes what it reads
besides, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from runner.graph.language.operations import row_of
from runner.graph.model import Branches, CalledFunction, Graph, Repeat
from runner.graph.source import Checkpoint
from runner.programs.planning.model import Layable, RuledOperation


def regions(graph: Graph) -> tuple[Mapping[str, int], tuple[Checkpoint, ...]]:
    """For the path of each line under a checkpoint the number of this, and the checkpoints: outer ones decide."""
    of, checkpoints = dict[str, int](), list[Checkpoint]()

    def under(checkpoint: Checkpoint | None, around: int | None) -> int | None:
        if around is not None or checkpoint is None or checkpoint.policy == "everything_saveable":
            return around
        checkpoints.append(checkpoint)
        return len(checkpoints) - 1

    def inside(graph: Graph, around: int | None) -> None:
        for equation in graph.equations:
            match equation.form:
                case Repeat(checkpoint=checkpoint):
                    inside(equation.bodies[0], under(checkpoint, around))
                case CalledFunction(call=call):
                    inside(equation.bodies[0], under(call.checkpoint, around))
                case Branches(calls=calls, selecting=selecting):
                    for call, body in zip(calls, equation.bodies, strict=True):
                        inside(body, under(call.checkpoint, around))
                    inside(selecting, around)
                case None:
                    if around is not None and equation.source.whole and equation.source.line.first is None:
                        of[equation.source.line.path] = around

    inside(graph, None)
    return of, tuple(checkpoints)


def rematerialise(layable: Layable) -> None:
    """Mark the operations that are computed again with the last operation of their checkpoint."""
    made = {at: number for number, operation in enumerate(layable.operations) for at in operation.results}
    for region, checkpoint in enumerate(layable.checkpoints):
        numbers = [number for number, each in enumerate(layable.operations) if each.region == region]
        if not numbers:
            continue
        own = frozenset(numbers)
        saves = _SAVES[checkpoint.policy]
        needed = list(_read_backwards(layable, numbers))
        again = set[int]()
        while needed:
            number = made.get(needed.pop())
            if number is None or number not in own or number in again:
                continue
            operation = layable.operations[number]
            if not saves(operation, checkpoint.names):
                again.add(number)
                needed += [operand.tensor for operand in operation.operands]
        # What is inside of an operation is computed again with it.
        again |= {n for n in numbers if layable.operations[n].inside and layable.operations[n].differentiated}
        for number in again:
            layable.operations[number].recomputed = max(numbers)


def _read_backwards(layable: Layable, numbers: Sequence[int]) -> Iterator[int]:
    """Yield the tensors that the backward pass of some operations reads."""
    for number in numbers:
        operation = layable.operations[number]
        if not operation.differentiated:
            continue
        if not is_linear(operation):
            yield from (operand.tensor for operand in operation.operands)
        if row_of(operation.called).exponential:
            yield from operation.results


def is_linear(operation: RuledOperation) -> bool:
    """Whether the backward pass of an operation reads none of its operands."""
    row = row_of(operation.called)
    return row.moves in ("shape", "order", "added") or row.linear == "together" or row.over.linear


def _is_product(operation: RuledOperation) -> bool:
    return bool(operation.work.flops) and not operation.inside


def _has_no_batch(operation: RuledOperation) -> bool:
    """Whether no dimension is in all operands of a product and in its result."""
    of_operands = [{f for d in operation.rule.operands[operand.place] for f in d} if operand.place else set[int]()
                   for operand in operation.operands]  # fmt: skip
    shared = set[int].intersection(*of_operands) if of_operands else set[int]()
    return not shared & {factor for dimension in operation.rule.result for factor in dimension}


_Saves = Callable[[RuledOperation, Sequence[str]], bool]


def _dots(operation: RuledOperation, _: Sequence[str]) -> bool:
    return _is_product(operation)


def _dots_without_batch(operation: RuledOperation, _: Sequence[str]) -> bool:
    return _is_product(operation) and _has_no_batch(operation)


_SAVES: Mapping[str | None, _Saves] = {
    None: lambda _operation, _names: False,
    "nothing_saveable": lambda _operation, _names: False,
    "dots_saveable": _dots,
    "checkpoint_dots": _dots,
    "dots_with_no_batch_dims_saveable": _dots_without_batch,
    "checkpoint_dots_with_no_batch_dims": _dots_without_batch,
    "save_only_these_names": lambda operation, names: operation.names_result in names,
    "save_any_names_but_these": lambda operation, names: (
        bool(operation.names_result) and operation.names_result not in names
    ),
    "save_anything_except_these_names": lambda operation, names: operation.names_result not in names,
}
"""Whether a policy of `jax.checkpoint_policies` saves the result of an operation."""
