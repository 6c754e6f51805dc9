"""Takes an experiment and its sources; returns the record's entries for specs with logical names."""

from __future__ import annotations

from runner.base.faults import key_text
from runner.experiment.config.sources import Sources
from runner.experiment.model import Experiment
from runner.experiment.rules import LogicalAxisRule
from runner.reports.record.model import AppliedRule, LogicalSpec


def logical(experiment: Experiment, sources: Sources) -> dict[str, LogicalSpec]:
    """For each key of a spec with logical names, the mesh axes that it resolves to, and the rules that were applied."""
    specs = experiment.logical.values()
    used = {rule for spec in specs for rule in (*spec.rules, *spec.dropped) if rule is not None}
    places = sources.places({key_text(rule.key): rule.key for rule in used})

    def applied(rule: LogicalAxisRule) -> AppliedRule:
        key = key_text(rule.key)
        return AppliedRule(name=rule.name, axes=list(rule.axes), key=key, place=places.get(key))

    return {
        key_text(key): LogicalSpec(
            written=spec.written,
            spec=spec.spec,
            rules=[None if rule is None else applied(rule) for rule in spec.rules],
            dropped=[applied(rule) for rule in spec.dropped],
        )
        for key, spec in experiment.logical.items()
    }
