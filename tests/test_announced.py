"""The imports of a worker, to which experiments are announced, and of the command, before the input is known to be
valid.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.experiment.config.compose import compose
from runner.experiment.config.folders import conf_folder
from runner.link.process import ANNOUNCED, Worker
from runner.link.workers import Workers
from runner.worker import announced
from tests.command import ROOT

CASE3 = "case3_allreduce"


def definition(*overrides: str) -> dict[str, Any]:
    return compose(CASE3, conf_folder(), overrides).plain


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), True),
        (("program=shard_map",), True),
        # Each of these is refused by another part of reading.
        (("arrays.A.spec=[null,w]",), False),
        (('per_device.C="partial @ D"',), False),
        (('arrays.A.init="arange(5)"',), False),
        (('arrays.A.init="nothing()"',), False),
        (("mesh.shape=[2,0]",), False),
        # These are not examined, and may be valid.
        (("target.processes=2",), False),
        (("target.topology=v5e:2x2",), False),
        (("dims.I=1048576",), False),
    ],
)
def test_an_experiment_that_is_refused_or_slow_to_validate_imports_no_jax(
    overrides: tuple[str, ...], expected: bool
) -> None:
    assert announced.is_valid(definition(*overrides)) is expected


def test_an_invalid_announcement_imports_no_jax() -> None:
    assert not announced.is_valid({"mesh": None})


def modules(*command: str, lines: Sequence[str] = (), status: int = 0) -> set[str]:
    """Return the modules that a Python process imports which reads these lines and then no more."""
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", *command],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert process.returncode == status, process.stderr
    return {line.rpartition("|")[2].strip() for line in process.stderr.splitlines() if line.startswith("import time:")}


def imported(*lines: str) -> set[str]:
    """Return the modules that a worker imports which reads these lines."""
    return modules("runner.worker", str(os.getpid()), lines=lines)


@pytest.mark.in_turn
def test_a_worker_imports_jax_only_for_a_valid_announcement() -> None:
    invalid = json.dumps({ANNOUNCED: definition("arrays.A.spec=[null,w]")})
    valid = json.dumps({ANNOUNCED: definition("program=shard_map")})
    refused = imported(invalid)
    assert "jax" not in refused
    assert "runner.experiment.reader" in refused
    assert "jax" in imported(invalid, valid)


ELSEWHERE = {"checks", "derivation", "planning", "programs", "reference", "testing", "track", "worker"}
"""The rooms that invalid input does not need."""

REPORTING = {"console", "progress", "refused", "report", "status", "summary", "table", "values"}
"""The modules of `show` that report invalid input."""


@pytest.mark.in_turn
def test_an_invalid_experiment_imports_only_readers_and_reports(tmp_path: Path) -> None:
    overrides = (f"+experiment={CASE3}", "arrays.A.spec=[null,w]", f"hydra.run.dir={tmp_path / 'run'}")
    names = modules("runner", *overrides, status=2)
    assert not {"jax", "jaxlib", "numpy", "ml_dtypes", "scipy", "rich", "pygments", "hydra", "omegaconf"} & names
    ours = [name.split(".") for name in names if name.startswith("runner.")]
    assert not ELSEWHERE & {room for _, room, *_ in ours}
    assert {parts[2] for parts in ours if parts[1:2] == ["show"] and len(parts) > 2} <= REPORTING
    assert "runner.experiment.reader" in names


def test_a_dismissed_process_ends_and_does_no_further_job() -> None:
    first, second = (Worker((sys.executable, "-c", "import sys; sys.stdin.read()")) for _ in range(2))
    workers = Workers(first, start=lambda: second)
    workers.dismiss()
    assert "SIGKILL" in first.ended()
    workers.dismiss()
    workers.submit({"steps": []}, "cpu", 1.0)
    assert workers.started == 2
    workers.close()


class Listener(Worker):
    """A worker that keeps the announced modules."""

    def __init__(self) -> None:
        super().__init__((sys.executable, "-c", "import sys; sys.stdin.read()"))
        self.announced: list[str] = []

    def announce(self, announcement: str) -> None:
        self.announced.append(announcement)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"name": "a"}, True),
        # JSON has no YAML bytes; a large definition would not fit into a pipe.
        ({"name": b"a"}, False),
        ({"name": "a" * 20_000}, False),
    ],
)
def test_an_announcement_is_json_that_fits_into_a_pipe(given: dict[str, Any], sent: bool) -> None:
    listener = Listener()
    workers = Workers(listener)
    try:
        workers.announce(given)
        assert listener.announced == ([json.dumps({ANNOUNCED: given})] if sent else [])
    finally:
        workers.close()


def test_a_worker_that_had_a_job_gets_no_announcement(tmp_path: Path) -> None:
    listener = Listener()
    workers = Workers(listener)
    try:
        workers.submit({"steps": []}, "cpu", 1.0)
        workers.announce({"name": "a"})
        assert listener.announced == []
    finally:
        workers.close()
