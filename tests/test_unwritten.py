"""What the runner itself raises while one program is written costs that program alone: the others run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from runner.app.flow import run
from runner.experiment.config.sources import Sources
from runner.experiment.program import Program
from runner.link.workers import Workers
from runner.programs.writers import WRITERS
from runner.reports.record.model import Record
from runner.worker import derive, explicit
from runner.worker import job as jobs
from tests import harness
from tests.here import Here

PRODUCT = """
name: product
mesh: {axes: [x], shape: [2]}
arrays:
  A: {shape: [4, 6], spec: [null, x]}
  B: {shape: [6, 4], spec: [x]}
graph: {C: A @ B}
per_device: {C: "psum(A @ B, 'x')"}
outputs: {C: []}
"""
OTHERS = ("auto", "constraint", "explicit", "derived", "shard_map", "vmap")


def _raise(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("no way from here to there")


def _bug(doing: str) -> str:
    return (
        f"this is a bug in shardproof, please report it: {doing} raised AssertionError: no way from here to there; "
        "worker.log has the traceback"
    )


def _judged(folder: Path, **changes: Any) -> Record:
    return run.run(harness.config(PRODUCT, **changes), folder, Sources(), workers=Workers(Here()))


def _assert_costs(record: Record, program: str, doing: str) -> None:
    assert record.status == "error"
    assert record.programs[program].error == _bug(doing)
    statuses = {name: each.status for name, each in record.programs.items()}
    assert statuses == {name: "error" if name == program else "passed" for name in OTHERS}


def test_an_error_of_a_writer_fails_its_program_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WRITERS, Program.CONSTRAINT, _raise)
    _assert_costs(_judged(tmp_path), "constraint", "writing constraint")


def test_an_error_of_the_derivation_fails_derived_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derive, "derived", _raise)
    _assert_costs(_judged(tmp_path), "derived", "deriving the lines of one device")


def test_a_raise_in_the_repairs_of_explicit_sharding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explicit, "repairs", _raise)
    _assert_costs(_judged(tmp_path), "explicit", "repairing the types of explicit sharding")


def test_a_raise_in_the_tracing_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_prepare_trace", _raise)
    record = _judged(tmp_path, trace=True)
    assert {each.status for each in record.programs.values()} == {"passed"}
    assert record.trace is not None
    assert record.trace.reason == _bug("writing trace")


CONVOLUTIONS = """
mesh: {axes: [rows], shape: [4]}
arrays:
  x: {shape: [2, 8, 4, 2], spec: [null, rows]}
  w: {shape: [3, 3, 2, 2]}
functions:
  conv3:
    of: [x, w]
    tall: pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    result: conv_general_dilated(tall, w, (1, 1), ((0, 0), (1, 1)), dimension_numbers=('NHWC', 'HWIO', 'NHWC'))
graph:
  h: conv3(x, w)
  y: x + conv3(silu(h), w)
outputs: {y: [null, rows]}
"""


def test_a_convolution_is_derived_both_with_its_padding_and_after_it() -> None:
    # Where `tall` is whole the convolution reads its ten rows; where it is sharded, the eight of `x` with a halo.
    types = harness.types(CONVOLUTIONS)
    assert types.derivation is not None
    assert types.derivation.sent_bytes > 0
