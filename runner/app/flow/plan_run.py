"""Plans a configuration and compiles the candidates; leaves the plan and an experiment with its layouts in a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.app.flow import filled_layouts
from runner.app.flow import planning as flow
from runner.app.flow.filled_layouts import Planning
from runner.app.flow.planning import Compiled, Ranked, Tried
from runner.base import codec
from runner.base.lazy import dataclass
from runner.base.untyped import is_mapping
from runner.base.words import bytes_text
from runner.experiment.config import schema
from runner.link.workers import Workers
from runner.programs.planning.plan import Candidate
from runner.reports.record import manifest, writing
from runner.reports.record.folders import PAGE, PLAN, PLANNED
from runner.reports.show.plan_table import optimality
from runner.reports.show.progress import Progress

if TYPE_CHECKING:
    from runner.experiment.config.sources import Sources
    from runner.reports.record.model import Status


@dataclass(frozen=True)
class FinishedPlan:
    """A plan whose candidates are compiled.

    - `planning`: the plan that is best as compiled, if any candidate was; `first`: the one that the model had first.
    - `unverified`: why candidates were not run, or not compiled; None if they were, or the file says so.
    """

    planning: Planning
    first: Planning
    ranked: Ranked
    unverified: str | None

    @property
    def own(self) -> list[Tried]:
        """The compiled candidates that are not written by hand, the best first."""
        return [candidate for candidate in self.ranked.tried if candidate.by_hand is None]

    @property
    def best(self) -> Candidate:
        """The layouts to take: a handwritten one is in a file already, and may not divide the work at all."""
        return self.own[0].candidate if self.own else self.planning.plan.best

    @property
    def status(self) -> Status:
        """`passed`; `failed` if the plan exceeds its limit, or is unfinished; else that of the best candidate's run."""
        plan = self.planning.plan
        if plan.unfinished or (not self.own and plan.exceeds):
            return "failed"
        if not self.own:
            return "passed"
        status = self.own[0].programs[0].status
        return "failed" if status == "passed" and self.ranked.smallest is not None else status


def finished(
    config: Mapping[str, Any],
    folder: Path,
    sources: Sources,
    workers: Workers,
    tell: Callable[[Planning, str | None], None] = lambda _planning, _unverified: None,
) -> FinishedPlan:
    """Plan a configuration and compile the candidates; `plan.json` and the experiment are left in the folder.

    `tell` is called with the plan before candidates are compiled, and with the reason if they are not run. With
    `report` the folder has a page. Raises `InvalidExperiment`.
    """
    with Progress(str(config.get("name"))) as progress:
        progress.tell("planning the layouts")
        planning = filled_layouts.planned(config, folder, sources, workers)
    planning, unverified = flow.affordable(planning)
    tell(planning, unverified)
    ranked = flow.ranked(planning, folder, sources, workers)
    plan = FinishedPlan(ranked.planning, planning, ranked, unverified)
    more = {"caveat": ranked.caveat} if ranked.caveat else {}
    tried, rounds = codec.plain(ranked.tried), codec.plain(ranked.rounds)
    filled_layouts.leave(folder, plan.planning, tried=tried, rounds=rounds, **more)
    (folder / PLANNED).parent.mkdir(parents=True, exist_ok=True)
    definition = filled_layouts.expecting(plan.planning, filled_layouts.filled(plan.planning, plan.best))
    if plan.own and plan.own[0].written is not None:
        definition = {**definition, "program": [plan.own[0].programs[0].program]}
    written = filled_layouts.anywhere(definition, sources)
    writing.write_text(folder / PLANNED, text(written, plan.planning, plan.own[0].programs[0] if plan.own else None))
    if config.get("report") is True:
        # Few plans have a page.
        from runner.reports.show.page import plan_section

        writing.write_text(folder / PAGE, plan_section.page(folder))
        manifest.add([folder / PAGE])
    return plan


def text(definition: Mapping[str, Any], planning: Planning, compiled: Compiled | None = None) -> str:
    """Return the file of an experiment: every key that was given a value.

    `compiled`: its program, whose memory the head of the file has if there is a limit.
    """
    import yaml

    defaults = schema.whole({})
    given = {
        key: value
        for key, value in definition.items()
        if value != defaults.get(key) and not (key in _NESTED and not _changed(value, defaults[key]))
    }
    nested: dict[str, Mapping[str, Any]] = {key: given[key] for key in _NESTED if key in given}
    given |= {key: _changed(value, defaults[key]) for key, value in nested.items()}
    given["arrays"] = {name: schema.given(array) for name, array in given.get("arrays", {}).items()}
    plan = planning.plan
    head = [
        "# @package _global_",
        f"# The layouts were found by python -m runner plan, for the least {plan.least}: {optimality(plan)}.",
    ]
    memory = planning.request.memory
    if memory is not None and compiled is not None and compiled.memory_bytes is not None:
        needed, limit = bytes_text(compiled.memory_bytes), bytes_text(round(memory))
        head.append(f"# As compiled ({compiled.program}) a device needs {needed}; the limit is {limit}.")
    body = yaml.dump(given, Dumper=_dumper(), sort_keys=False, width=120, allow_unicode=True)
    return "\n".join(head) + "\n" + body


_NESTED = ("mesh", "target", "hardware", "expect", "test", "grad", "sweep")
"""The keys whose subkeys have defaults."""


def _changed(value: Mapping[str, Any] | None, defaults: Any) -> dict[str, Any]:
    """Return the part of a mapping that differs from the defaults."""
    changes: dict[str, Any] = {}
    for name, part in (value or {}).items():
        default = defaults.get(name)
        if is_mapping(part) and is_mapping(default):
            if inner := _changed(part, default):
                changes[name] = inner
        elif part != default:
            changes[name] = part
    return changes


def _dumper() -> type[Any]:
    """Return a YAML dumper that writes lists on one line, as people write specs."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes lists on one line."""

    def sequence(dumper: Any, data: Any) -> Any:
        return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    Dumper.add_representer(list, sequence)
    Dumper.add_representer(tuple, sequence)
    return Dumper


__all__ = ["PLAN", "FinishedPlan", "finished", "text"]
