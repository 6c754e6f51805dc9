"""Bad input, all of `tests/faults/inputs.jsonl`: one message, the right status, and no files left.

A session tries a sample of it; `make faults` tries all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import faults
from tests.faults import Fault
from tests.faults.__main__ import THEIRS, kind
from tests.server import TIMED

FAULTS = faults.read()
SAMPLE = 50
"""Every session tries one in this many inputs."""

LIMIT = 60.0
"""Seconds after which a command counts as hung."""


def test_there_are_two_thousand_distinct_inputs() -> None:
    assert len(FAULTS) >= 2400
    assert len(set(FAULTS)) == len(FAULTS)


def test_each_input_pins_a_place_or_words_and_a_hundred_kinds_of_words_are_pinned() -> None:
    assert [fault.name for fault in FAULTS if fault.place == faults.NOT_PINNED and not fault.says] == []
    kinds = {kind(fault.says) for fault in FAULTS if fault.says and not fault.says.startswith(THEIRS)}
    assert len(kinds) >= 100


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[pytest.mark.whole] if number % SAMPLE else [], id=f"{number} {fault.name}")
        for number, fault in enumerate(FAULTS)
    ],
)
def test_a_mistake_gets_one_message(
    tmp_path: Path, fault: Fault, record_property: Callable[[str, object], None]
) -> None:
    done = fault.done(tmp_path, LIMIT)
    record_property(TIMED, done.cpu)
    output = done.stdout + done.stderr
    assert done.returncode == fault.status, output
    assert "Traceback" not in output
    assert "bug in shardproof" not in output
    assert fault.says in (done.stderr if fault.status != 1 else output)
    if fault.place != faults.NOT_PINNED:
        assert faults.place(fault, done) == fault.place, output
    assert {path.name for path in tmp_path.iterdir()} <= {"conf", "run"}
