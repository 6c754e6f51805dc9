"""Other layouts of a graph's results, tried from where they matter, give what writing all lines again gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.base.layout import Spec
from runner.compiled.estimate.prices import BYTES
from runner.experiment.config.compose import compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.reader import read
from runner.graph.sharding.propagation import whole_axes
from runner.programs.derivation.expressions import Hints
from runner.programs.derivation.ruling import Rulings
from runner.programs.derivation.writer import Typing, Writer
from runner.worker.derive import planned
from tests import harness


@pytest.mark.parametrize("name", ["mamba_sequence_parallel", "skipped_step"])
def test_an_attempt_goes_on_from_another_as_if_written_whole(name: str) -> None:
    experiment = read(compose(name, conf_folder()).plain).alone("graph")
    with harness.configured(experiment):
        shardy, types = planned(experiment)
    hints = Hints({number: whole_axes(spec) for number, spec in shardy.values.items()})

    def writer(hints: Hints) -> Writer:
        return Writer(experiment, types, hints, Rulings(), BYTES, Typing())

    own = writer(hints)
    before = own.first()
    assert len(before.states) > 1
    numbers = [number for number in before.asked_at if number in hints.layouts][::3]
    assert len(numbers) > 3
    for number in numbers:
        replicated = Spec().padded(len(hints.layouts[number]))
        other = replace(hints, layouts={**hints.layouts, number: replicated})
        attempt, whole = own.other(other, before, number), writer(other).first()
        assert (attempt.cost, attempt.asked, attempt.asked_at) == (whole.cost, whole.asked, whole.asked_at)
        assert attempt.states[0] is before.states[0]
    assert own.other(hints, before, -1) is before
