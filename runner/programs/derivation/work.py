"""Counts the flops of an operation's products, and its traffic to and from memory."""

from __future__ import annotations

import math
from collections.abc import Collection

from runner.base.layout import Typed
from runner.compiled.estimate.prices import Work
from runner.graph.language.operations import row_of
from runner.programs.derivation.calls import Call, NotStatic, itemsize
from runner.programs.derivation.rules import Rule, Traffic


def work_of(call: Call) -> Work:
    """The flops of products, two per multiply-add; none for other operations and where they are not known."""
    row = row_of(call.name)
    if row.multiply_adds is not None:
        shapes = {name: argument.typed.shape for name, argument in call.arguments.items() if argument.typed is not None}
        try:
            many = None if call.typed is None else row.multiply_adds(shapes, call.static, call.typed.shape)
        except NotStatic:
            many = None
        return Work() if many is None or call.typed is None else Work(2.0 * many, call.typed.dtype)
    if call.labels is None:
        return Work()
    labels, result = call.labels
    arrays = [Call.type(array) for argument in call.arguments.values() for array in argument.arrays()]
    if len(labels) != len(arrays) or {letter for letters in labels for letter in letters} <= set(result):
        return Work()
    sizes: dict[str, int] = {}
    for letters, array in zip(labels, arrays, strict=True):
        for letter, size in zip(letters, array.shape, strict=False):
            sizes[letter] = max(size, sizes.get(letter, 1))
    return Work(2.0 * math.prod(sizes.values()), arrays[0].dtype)


_FLOAT32 = 4
"""The bytes of an element."""


def between(call: Call) -> float:
    """The bytes of the value between two products of one operation, as of attention's weights; 0 for other operations.

    Both products have as many multiply-adds; each element of the value takes part in one for each of the result's last
    dimension.
    """
    if not row_of(call.name).in_float32 or call.typed is None:
        return 0.0
    return work_of(call).flops / 4 / call.typed.shape[-1] * _FLOAT32


def traffic_of(call: Call, rule: Rule, in_memory: Collection[str]) -> Traffic:
    """What an operation computes and moves; a product reads and writes memory, others read operands `in_memory`."""
    work = work_of(call)
    types = {array.place: array.typed for argument in call.arguments.values() for array in argument.arrays()}
    moved = (types.get(place) if work.flops or place in in_memory else None for place in rule.operands)
    read = (0.0 if typed is None else _bytes(typed) for typed in moved)
    return Traffic(work, tuple(read), _bytes(call.result) if work.flops else 0.0)


def _bytes(typed: Typed) -> float:
    return float(math.prod(typed.shape) * itemsize(typed.dtype))
