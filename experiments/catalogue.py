"""`python -m experiments.catalogue`: the table of experiments as Markdown, which is `docs/experiments.md`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.base import executions
from runner.base.executions import Count, Range
from runner.base.layout import Mesh
from runner.experiment import expect
from runner.experiment.config.compose import compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.config.sources import listing
from runner.experiment.imported import outline
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.graph.language.operations import OPERATIONS
from runner.graph.model import Graph, Repeat
from runner.reports.show import table

_GROUPS = (
    ("Introduction to sharded computation", "Introduction to sharded computation"),
    ("learn_jax, intro_to_distributed.py", "learn_jax, intro_to_distributed.py"),
    ("Collective matmul notebook", "The collective-matmul notebook"),
    ("MinText, Tutorial 1", "MinText, Tutorial 1"),
    ("", "Layouts in use"),
)
"""The prefix of a `source`, and the title of its group; the first match counts."""


def markdown(folder: Path) -> str:
    """Return one table per group of experiments in `folder`/experiment, with links from a folder beside `folder`."""
    groups: dict[str, list[tuple[str, ...]]] = {title: [] for _, title in _GROUPS}
    experiments = listing([folder])
    for name, _, file in experiments:
        config = compose(name, folder).plain
        document, title = next(group for group in _GROUPS if config["source"].startswith(group[0]))
        link = f"../{folder.name}/{file.relative_to(folder).as_posix()}"
        groups[title].append(_row(f"[{name}]({link})", config, document))
    lines = [
        "# The experiments",
        "",
        f"There are {len(experiments)}. `python -m runner NAME` runs one. `python -m experiments.catalogue` prints",
        "this page.",
        "",
        "The collectives are those that the file expects (`expect:`), else those that `per_device` calls, each with",
        "how often it runs; – means that there are none. The six programs are `auto`, `constraint`,",
        "`explicit`, `derived`, `shard_map`, `vmap`; `refused` means that the experiment must be refused.",
        "[The source documents](sources.md) list the examples on which the experiments are based.",
    ]
    for title, rows in groups.items():
        if rows:
            lines += ["", f"## {title}", "", *table.markdown(table.Table(_HEAD, rows))]
    return "\n".join(lines) + "\n"


_HEAD = ("experiment", "summary", "mesh", "programs", "collectives", "source")


def _row(link: str, config: Mapping[str, Any], document: str) -> tuple[str, ...]:
    return (
        link,
        " ".join(config["summary"].split()),
        str(Mesh(tuple(config["mesh"]["axes"]), tuple(config["mesh"]["shape"]))),
        *(("refused", "–") if expect.refusal(config) else _programs(read(outline(config)))),
        config["source"].removeprefix(document).lstrip(", ") or "–",
    )


def _programs(experiment: Experiment) -> tuple[str, str]:
    """Return the programs of an experiment, and their collectives."""
    programs = "all six" if len(experiment.programs) == len(Program) else ", ".join(experiment.programs)
    return programs, _expected(experiment) or _counted(_called(experiment.computed("per_device")))


def _expected(experiment: Experiment) -> str | None:
    """Return the expected shardings, with one entry for programs that share one; None if none is expected."""
    programs: dict[str, list[str]] = {}
    for program in experiment.programs:
        expected = experiment.expected[program]
        collectives: Mapping[str, int | Range] | None = {} if expected.no_collectives else expected.collectives
        if collectives is not None and program.on_mesh:
            programs.setdefault(_counted(collectives, nothing="none"), []).append(program)
    if len(programs) == 1:
        return next(iter(programs))
    return "; ".join(f"{', '.join(names)}: {counts}" for counts, names in programs.items()) or None


def _counted(counts: Mapping[str, Count], nothing: str = "–") -> str:
    there = {kind: count for kind, count in counts.items() if count != 0}
    parts = [kind if count == 1 else f"{kind} × {executions.short(count)}" for kind, count in there.items()]
    return ", ".join(parts) or nothing


def _called(graph: Graph) -> dict[str, Count]:
    """Count how often each collective runs on a device."""
    runs: dict[str, list[int | None]] = {}

    def count(graph: Graph, times: int | None) -> None:
        for equation in graph.equations:
            row = OPERATIONS.get(equation.operation)
            if row is not None and row.communicates:
                runs.setdefault(row.name, []).append(times)
            steps = equation.form.steps if isinstance(equation.form, Repeat) else 1
            for body in equation.bodies:
                count(body, None if times is None or steps is None else times * steps)

    count(graph, 1)
    return {name: None if None in each else sum(filter(None, each)) for name, each in runs.items()}


if __name__ == "__main__":
    print(markdown(conf_folder()), end="")
