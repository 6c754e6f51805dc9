"""The shipped circular pipeline equals its layers in sequence, for any number of microbatches."""

from __future__ import annotations

import numpy as np
import pytest

from runner.base.faults import InvalidExperiment
from runner.checks.reference import interpret
from runner.experiment.config.compose import compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.model import Experiment
from runner.experiment.reader import read


def pipeline(microbatches: int) -> Experiment:
    plain = compose("circular_pipeline", conf_folder()).plain
    return read({**plain, "dims": {**plain["dims"], "M": microbatches}})


@pytest.mark.parametrize("microbatches", [4, 6, 8])
def test_each_microbatch_goes_through_every_layer_in_turn(microbatches: int) -> None:
    of = pipeline(microbatches)
    drawn = np.random.default_rng(microbatches)
    x, t = drawn.normal(size=(2, microbatches, 4, 8))
    w = drawn.normal(size=(2, 4, 8, 8)) * 0.4
    expected = x
    for layer in w.reshape(8, 8, 8):
        expected = np.tanh(expected @ layer)
    whole = interpret(of, "graph", {"x": x, "w": w, "t": t}).values["y"][0]
    np.testing.assert_allclose(whole, expected, rtol=1e-12)
    for each in interpret(of, "per_device", {"x": x, "w": w, "t": t}).values["y"]:
        np.testing.assert_allclose(each, expected, rtol=1e-12)


def test_fewer_microbatches_than_stages_are_refused() -> None:
    with pytest.raises(InvalidExperiment) as caught:
        pipeline(3)
    assert caught.value.fault.key == ("require", 0)
    assert caught.value.fault.message == "M >= S does not hold: M is 3 and S is 4"
