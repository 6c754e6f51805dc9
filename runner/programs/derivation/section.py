"""Converts derived lines: to the section of the YAML that they are, and to data for another process and back.

Imports nothing that derives: the process that writes the record does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from runner.experiment.model import Experiment, Flat, Loop
from runner.experiment.traced import TracedLine, TracedLines, TracedLoop
from runner.experiment.traced_calls import section_lines


def section(statements: Iterable[Flat]) -> dict[str, Any]:
    """Convert statements to a section of the YAML."""
    lines: dict[str, Any] = {}
    for statement in statements:
        if isinstance(statement, Loop):
            counts = {"repeat": statement.steps, "index": statement.index, "unroll": statement.unroll}
            lines[statement.name] = {
                **({"while": statement.going} if statement.going else counts),
                **({"over": {name: whole.text for name, whole in statement.over}} if statement.over else {}),
                **({"carry": {name: first.text for name, first in statement.carry}} if statement.carry else {}),
                "body": section(statement.body),
                **({"stack": dict(statement.stack)} if statement.stack else {}),
                **({"checkpoint": statement.checkpoint.written} if statement.checkpoint else {}),
            }
        else:
            lines[statement.name] = statement.expression.text
    return lines


def as_data(statements: Iterable[Flat]) -> TracedLines:
    """Convert statements to data that crosses to another process."""
    return TracedLines((), _lines(statements), ())


def _lines(statements: Iterable[Flat]) -> dict[str, TracedLine]:
    return {
        statement.name: _loop(statement) if isinstance(statement, Loop) else statement.expression.term
        for statement in statements
    }


def _loop(loop: Loop[Flat]) -> TracedLoop:
    carry, over = ({name: first.term for name, first in part} for part in (loop.carry, loop.over))
    return TracedLoop(
        loop.steps, _lines(loop.body), loop.index, carry, over, dict(loop.stack), loop.going,
        unroll=loop.unroll, checkpoint=loop.checkpoint,
    )  # fmt: skip


def with_lines(experiment: Experiment, lines: TracedLines, *, check_vma: bool) -> Experiment:
    """The experiment with lines that another process derived; `check_vma`: that of their `shard_map`."""
    return replace(experiment, per_device=section_lines(lines, ("derived",)), check_vma=check_vma, automatic=())
