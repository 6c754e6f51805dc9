"""Finds the layout of what each line computes, in Shardy's plan of the lowered module."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from runner.compiled.explanation.model import PlannedLayout
from runner.graph.sharding.propagation import PlannedOperation


def layouts(
    operations: Iterable[PlannedOperation], name: Callable[[str], str | None] = lambda line: line
) -> dict[str, PlannedLayout]:
    """For each line the layout of the last array that it computes in the forward pass.

    - `name`: the line of an explanation for one of the plan's; None if there is none.
    """
    last: dict[str, PlannedLayout] = {}
    for operation in operations:
        if operation.line is None or operation.gradient or not operation.results:
            continue
        line = name(operation.line)
        result = operation.results[0]
        if line is not None and result.shape:
            last[line] = PlannedLayout(shape=result.shape, spec=result.spec.padded(len(result.shape)))
    return last
