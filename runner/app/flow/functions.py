"""Takes a configuration that imports Python functions; returns it with the lines that a worker read from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.faults import invalid
from runner.base.untyped import is_mapping
from runner.experiment.config import schema
from runner.experiment.forms import check
from runner.experiment.imported import imports, skeleton
from runner.experiment.reader import read
from runner.link.jobs import job, kind
from runner.link.workers import Workers

if TYPE_CHECKING:
    from runner.experiment.config.sources import Sources


def beside(config: Mapping[str, Any], sources: Sources) -> Path | None:
    """The folder that a configuration's imported files are relative to; None if it imports none."""
    imported = config.get("imports")
    if not imported or not is_mapping(imported):
        return None
    return sources.folder(("imports", next(iter(imported))))


def traced(
    config: Mapping[str, Any],
    into: Path,
    sources: Sources,
    workers: Workers,
    meanwhile: Callable[[], object] = lambda: None,
    *,
    values: bool = True,
    apart: Collection[str] | None = None,
    tell: Callable[[str], None] = lambda shown: None,
) -> Mapping[str, Any]:
    """The configuration with the lines of the functions that it imports, if it does; files are left in `into`.

    The other keys are validated before any of the user's code runs; `meanwhile` is called while it runs. `values`:
    whether the values of trees are needed, or only their shapes, which take no memory. `apart`: of a plan, the patterns
    of `constraints` for which each value inside a call gets a key of its own. `tell` receives what takes time. Raises
    `InvalidExperiment` for what cannot be imported or read, and `WorkerEnded`.
    """
    if not imports(config):
        return config
    whole = schema.whole(config)
    for section in ("imports", "references"):
        check(whole[section] or {}, (section,))
    target = {**whole["target"], "processes": 1, "cluster": False}
    experiment = read({**skeleton(whole), "target": target})
    if workers.distrust is not None:
        raise invalid(("imports", next(iter(whole["imports"]))), workers.distrust)
    folder = beside(whole, sources)
    assert folder is not None
    task = {**job(experiment, into, folder, str(into)), "definition": whole}
    task |= {"trace": "values" if values else "shapes", "apart": None if apart is None else sorted(apart)}
    events = workers.aside(kind(experiment)).submit(task, kind(experiment), experiment.timeout, tell=tell)
    meanwhile()
    # Most experiments import nothing.
    from runner.link.events import FunctionsRead
    from runner.link.target import awaited

    return awaited(events, FunctionsRead, "the functions").definition
