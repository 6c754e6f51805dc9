"""Mistakes planted in a user's device code: each is noticed, and most are reported with their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.app.cli import mutate
from runner.app.flow import run as flow
from runner.app.flow import untyped_output
from runner.base.faults import InvalidExperiment
from runner.checks.diagnosis import search
from runner.checks.diagnosis.mutants import mutants
from runner.checks.kinds import sections
from runner.experiment import data
from runner.experiment.config.sources import Sources
from runner.experiment.model import Experiment
from runner.experiment.reader import read
from runner.link.workers import Workers
from runner.reports.show import report
from runner.worker.functions import tracing
from runner.worker.types import infer
from tests import harness
from tests.seeded import SEEDS, Seed

ELSEWHERE = {
    # A mean of sums over devices fixes it too.
    "loss_by_rows": "seeded.py:101 ",
    # The maximum may be subtracted from the label's logit as well.
    "xent_top": "seeded.py:491 ",
    # A shift back by one in the line before mends it too.
    "pipeline_perm": "seeded.py:517 ",
}
"""The mistakes that are reported at another line than the one in which they were planted."""


NAMELESS = {
    # JAX does not trace the value that should have been read, since nothing reads it.
    "stale_value", "momentum_stale",
    # No single edit mends these: a mask of several lines, a sum of what other devices have, two values not gathered.
    "embedding_unmasked", "cumulative", "keys_not_gathered",
}  # fmt: skip
"""The mistakes of which no line is named, since no edit that was tried mends them."""


def read_seed(seed: Seed, folder: Path) -> Experiment:
    return read(tracing.traced(harness.config(seed.definition), folder, folder))


def refused(revised: Experiment) -> str | None:
    """Return the error of JAX's types for an edited experiment."""
    try:
        with harness.configured(revised):
            infer(revised)
    except InvalidExperiment as error:
        return error.fault.message
    return None


def message(experiment: Experiment, folder: Path) -> str:
    """Return the message for a wrong experiment."""
    try:
        context = harness.consulted(experiment, folder)
    except InvalidExperiment as error:
        arrays = data.make(experiment, folder)
        return untyped_output.explained(experiment, arrays, error.fault, refused).message
    assert sections.check(context).status == "failed"
    return "\n".join(search.diagnose(context, refused))


@pytest.mark.sample(5)
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_a_mistake_is_noticed_and_reported_with_its_line(seed: Seed, tmp_path: Path) -> None:
    text = message(read_seed(seed, tmp_path), tmp_path)
    if seed.name in NAMELESS:
        assert text.startswith("no single edit of per_device was found that makes it equal the graph")
        assert "seeded.py" not in text
    else:
        assert ELSEWHERE.get(seed.name, seed.place) in text


def test_most_mistakes_are_reported_with_their_line() -> None:
    assert len(SEEDS) >= 30
    assert {*ELSEWHERE, *NAMELESS} < {seed.name for seed in SEEDS}
    assert len(ELSEWHERE) + len(NAMELESS) <= 0.2 * len(SEEDS)


def seed(name: str) -> Seed:
    (named,) = (each for each in SEEDS if each.name == name)
    return named


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "stale_weight",
            "PLACE: w1 is used where w2 is meant: with tanh(h @ w2) it equals the graph",
        ),
        (
            "causal_by_local_position",
            "the term axis_index('data') * 4 is left out in PLACE: with axis_index('data') * 4 + "
            "jnp.arange(q.shape[0]) it equals the graph",
        ),
        (
            "noise",
            "the fold_in of axis_index('data') into a key is left out in PLACE: "
            "with fold_in(jax.random.key(seed[0]), axis_index('data')) it equals the graph",
        ),
        (
            "cumulative",
            "no single edit of per_device was found that makes it equal the graph\nresult begins to differ from the "
            "reference on devices 2,3, in [4:8, 0:8] of [8, 8]; the other devices agree with it",
        ),
    ],
)
def test_a_diagnosis_names_the_users_line(name: str, sentence: str, tmp_path: Path) -> None:
    wrong = seed(name)
    experiment = read_seed(wrong, tmp_path)
    (frame,) = {frame for frame in experiment.frames["per_device"].values() if str(frame).startswith(wrong.place)}
    assert message(experiment, tmp_path) == sentence.replace("PLACE", str(frame))


def test_a_run_reports_the_users_line(tmp_path: Path) -> None:
    wrong = seed("mean_of_devices")
    record = flow.run(harness.config(wrong.definition), tmp_path, Sources(), workers=Workers(harness.Telling()))
    assert record.status == "failed"
    text = report.story(record, tmp_path)
    assert f'{wrong.place}return lax.pmean(y, "model")' in text
    assert 'lax.pmean(y, "model") is a mean where a sum is meant' in text
    assert "functions." not in text
    assert "div_2" not in text


def test_mutants_name_the_users_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    context = harness.consulted(read_seed(seed("differences"), tmp_path), tmp_path)
    tried = mutants(context)
    assert {mutant.edit.place[:11] for mutant in tried} == {"seeded.py:3"}
    mutate._report(tried, "per_device", "test")
    shown = capsys.readouterr().out
    assert "return x - jnp.concatenate([last, x[:-1]])" in " ".join(shown.split())
    assert "result_" not in shown
