"""The worker in this process: it sends the same events as one in its own process, and leaves JAX unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

from runner.app.flow import run as flow
from runner.base import codec
from runner.experiment.config.sources import Sources
from runner.link.events import Finished
from runner.link.workers import Workers
from runner.worker import job
from tests import harness, here, quick
from tests.here import Here, loaded

TEXT = """
precision: float32
arrays: {A: {shape: [4, 8], dtype: float64, spec: [x, y]}}
graph: {C: "A @ A.T", loss: sum(C * C)}
per_device: {C: "psum(A @ all_gather(A, 'x', tiled=True).T, 'y')", loss: "psum(sum(C * C), 'x')"}
outputs: {C: [x], loss: []}
grad: {of: loss, wrt: [A]}
"""


def configuration() -> list[Any]:
    names = ("jax_enable_x64", "jax_default_matmul_precision", "jax_platforms", "jax_num_cpu_devices")
    return [getattr(jax.config, name) for name in names]


@pytest.mark.in_turn
def test_the_record_equals_that_of_a_separate_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not here.OPTIMIZED:
        monkeypatch.setenv("XLA_FLAGS", quick.FLAGS)
    given, records = harness.config(TEXT), []
    for name, worker in (("here", Here()), ("there", None)):
        (tmp_path / name).mkdir()
        fields = codec.plain(flow.run(given, tmp_path / name, Sources(), workers=worker and Workers(worker)))
        del fields["time"]
        fields["environment"].pop("worker", None)
        fields["environment"].pop("worker_reason", None)
        for program in fields["programs"].values():
            del program["timing"]
        records.append(fields)
    assert records[0] == records[1]


@pytest.mark.in_turn
def test_a_header_configures_jax_until_its_program_is_done(tmp_path: Path) -> None:
    before = configuration()
    harness.run(TEXT, tmp_path)
    assert configuration() == before
    with loaded(tmp_path / "program_auto.py") as module:
        assert configuration() == [True, "float32", *before[2:]]
        assert {array.dtype for array in module.inputs()} == {jax.numpy.dtype("float64")}
    assert configuration() == before


def test_an_exception_of_a_program_fails_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "execute", lambda *_: 1 / 0)
    with pytest.raises(AssertionError, match=r"auto: .*ZeroDivisionError: division by zero"):
        harness.run(TEXT, tmp_path, program="auto")


def test_an_exception_of_the_worker_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = configuration()
    monkeypatch.setattr(job, "infer", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        harness.run(TEXT, tmp_path)
    assert configuration() == before


def test_an_event_must_be_json() -> None:
    with pytest.raises(TypeError):
        Here().emit(Finished(step={1, 2}))  # type: ignore[arg-type]
