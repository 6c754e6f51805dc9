"""Converts derived lines to the section of the YAML that they are, and to the experiment that has them.

Imports nothing that derives: the process that writes the record does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from runner.base.faults import Key
from runner.experiment.model import Experiment
from runner.experiment.traced import TracedLine
from runner.experiment.traced_graphs import section_graph
from runner.graph.language.lines import RepeatLines, line_of, lines, repeat
from runner.graph.language.printing import text
from runner.graph.model import Graph
from runner.graph.spelling import Spelling


def section(graph: Graph, spelling: Spelling | None = None) -> dict[str, Any]:
    """The section of the YAML that a graph without calls is, or the lines of a body in one with this spelling."""
    spelling = spelling or Spelling.of(graph)
    loops = ((equation, repeat(equation)) for equation in lines(graph))
    return {
        line_of(equation).name: text(spelling.equation(equation)) if loop is None else _loop(loop, spelling)
        for equation, loop in loops
    }


def _loop(loop: RepeatLines, spelling: Spelling) -> dict[str, Any]:
    form, firsts = loop.by_name, {line.name: text(first.term) for line, first in loop.firsts(spelling)}
    carry, over = ({name: firsts[name] for name in names} for names in (loop.carry, loop.over))
    counts = {"repeat": form.steps, "index": form.index, "unroll": form.unroll}
    return {
        **({"while": form.going} if form.going else counts),
        **({"over": over} if over else {}),
        **({"carry": carry} if carry else {}),
        "body": section(loop.body, spelling),
        **({"stack": dict(form.stack)} if form.stack else {}),
        **({"checkpoint": form.checkpoint.written} if form.checkpoint else {}),
    }


def with_lines(
    experiment: Experiment, lines: Iterable[TracedLine], *, check_vma: bool, key: Key = ("derived",)
) -> Experiment:
    """The experiment with derived lines as its `per_device`; `check_vma`: that of their `shard_map`.

    Messages have the lines at `key`.
    """
    graph = section_graph(lines, key, (array.name for array in experiment.given))
    return replace(experiment, per_device=graph, check_vma=check_vma, automatic=())
