"""The lines that a function was read as in; an experiment that calls it, or the lines as text, out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runner.base import codec
from runner.experiment.imported import KEY, Imported, Imports
from runner.experiment.model import Experiment
from runner.experiment.reader import read
from runner.experiment.traced import TracedLine, TracedLines, TracedLoop
from runner.graph.language.printing import text
from runner.graph.source import Section
from runner.graph.term import Term
from tests import harness


def experiment(
    lines: TracedLines, section: Section, arrays: Mapping[str, Any], specs: Iterable[Any] | None = None, **more: Any
) -> tuple[Experiment, list[str]]:
    """Return an experiment whose section calls a function with these lines, and the names of its outputs.

    `arrays`: the experiment's, among them the function's parameters; `specs`: those of the outputs.
    """
    outputs = [f"result_{position}" for position in range(len(lines.results))]
    called = f"called({', '.join(lines.parameters)})"
    config = {
        "arrays": arrays,
        section: {", ".join(outputs): called},
        "outputs": dict(zip(outputs, specs or ([] for _ in outputs), strict=True)),
        **more,
    }
    imports = Imports({"called": Imported("called", "", lines)})
    return read({**harness.config(config), KEY: codec.plain(imports)}), outputs


def texts(lines: Mapping[str, TracedLine]) -> dict[str, Any]:
    """Return the text of each expression; of a loop, those of its `body`, `carry` and `over`."""
    return {
        name: _texts_of_loop(line) if isinstance(line, TracedLoop) else text(line.term) for name, line in lines.items()
    }


def loop(lines: Mapping[str, TracedLine]) -> TracedLoop:
    """Return the only loop among some lines."""
    (only,) = (line for line in lines.values() if isinstance(line, TracedLoop))
    return only


def body(loop: TracedLoop) -> dict[str, TracedLine]:
    """Return the lines of a step, by name."""
    return {line.name: line for line in loop.body}


def _texts_of_loop(loop: TracedLoop) -> dict[str, Any]:
    begins: dict[str, Mapping[str, Term]] = {"carry": loop.carry, "over": loop.over}
    parts = {part: {name: text(term) for name, term in terms.items()} for part, terms in begins.items()}
    return {"body": texts(body(loop)), **parts}
