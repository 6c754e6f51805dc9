"""Converts derived lines to the section of the YAML that they are, and to the experiment that has them.

Imports nothing that derives: the process that writes the record does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runner.base.faults import Key
from runner.experiment.model import Experiment
from runner.experiment.traced import TracedLine, TracedLoop
from runner.experiment.traced_graphs import section_graph
from runner.graph.language.printing import text
from runner.graph.term import Term


def section(lines: Mapping[str, TracedLine]) -> dict[str, Any]:
    """Convert lines to a section of the YAML."""
    return {name: _loop(line) if isinstance(line, TracedLoop) else text(line) for name, line in lines.items()}


def _loop(loop: TracedLoop) -> dict[str, Any]:
    form = loop.form
    counts = {"repeat": form.steps, "index": form.index, "unroll": form.unroll}
    return {
        **({"while": form.going} if form.going else counts),
        **({"over": _texts(loop.over)} if loop.over else {}),
        **({"carry": _texts(loop.carry)} if loop.carry else {}),
        "body": section(loop.body),
        **({"stack": dict(form.stack)} if form.stack else {}),
        **({"checkpoint": form.checkpoint.written} if form.checkpoint else {}),
    }


def _texts(terms: Mapping[str, Term]) -> dict[str, str]:
    return {name: text(term) for name, term in terms.items()}


def with_lines(
    experiment: Experiment, lines: Mapping[str, TracedLine], *, check_vma: bool, key: Key = ("derived",)
) -> Experiment:
    """The experiment with derived lines as its `per_device`; `check_vma`: that of their `shard_map`.

    Messages have the lines at `key`.
    """
    graph = section_graph(lines, key, (array.name for array in experiment.given))
    return replace(experiment, per_device=graph, check_vma=check_vma, automatic=())
