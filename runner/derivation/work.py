"""An operation's call in; the flops of its products, and its traffic to and from memory, out."""

from __future__ import annotations

import math
from collections.abc import Collection

from runner.derivation.calls import Call, itemsize
from runner.derivation.rules import Rule, Traffic
from runner.estimate.prices import Work
from runner.programs.types import Typed


def work_of(call: Call) -> Work:
    """The flops of a product, two per multiply-add; none for other operations."""
    if call.name == "dot_product_attention":
        query, key = call.arguments["query"].typed, call.arguments["key"].typed
        if query is None or key is None or len(key.shape) < 3:
            return Work()
        # A single sequence has no dimension for the batch: the keys are the third dimension from the last.
        return Work(4.0 * math.prod(query.shape) * key.shape[-3], query.dtype)
    if call.labels is None:
        return Work()
    labels, result = call.labels
    arrays = [Call.type(array) for argument in call.arguments.values() for array in argument.arrays()]
    if len(labels) != len(arrays) or {letter for mine in labels for letter in mine} <= set(result):
        return Work()
    sizes: dict[str, int] = {}
    for mine, array in zip(labels, arrays, strict=True):
        for letter, size in zip(mine, array.shape, strict=False):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return Work(2.0 * math.prod(sizes.values()), arrays[0].dtype)


def traffic_of(call: Call, rule: Rule, in_memory: Collection[str]) -> Traffic:
    """What an operation computes and moves; a product reads and writes memory, others read operands `in_memory`."""
    work = work_of(call)
    types = {each.place: each.typed for argument in call.arguments.values() for each in argument.arrays()}
    moved = (types.get(place) if work.flops or place in in_memory else None for place in rule.operands)
    read = (0.0 if typed is None else _bytes(typed) for typed in moved)
    return Traffic(work, tuple(read), _bytes(call.result) if work.flops else 0.0)


def _bytes(typed: Typed) -> float:
    return float(math.prod(typed.shape) * itemsize(typed.dtype))
