"""Signals: an orderly exit if time allows, and an exit in any case."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.command import ROOT
from tests.test_machine import started

SCRIPT = """
import signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
{before}
from runner.app.cli import signals

try:
    with signals.handled():
        print("up", flush=True)
        {body}
except signals.Ended as ended:
    print("in order", flush=True)
    sys.exit(signals.status(ended.number))
except KeyboardInterrupt:
    print("interrupted", flush=True)
    {after}
    sys.exit(130)
"""

BUSY = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"
"""C code that lets other threads run, but not Python's signal handlers."""


def ended(body: str, *numbers: int, before: str = "", after: str = "pass") -> tuple[int, str]:
    """Return the output and the status of the script after the signals, sent one after the other."""
    command = [sys.executable, "-c", SCRIPT.format(body=body, before=before, after=after)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        for number in numbers:
            time.sleep(0.2)
            process.send_signal(number)
        return process.wait(timeout=50), process.stdout.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_process_in_order(number: signal.Signals) -> None:
    assert ended("time.sleep(60)", number) == (128 + number, "in order\n")


@pytest.mark.in_turn
def test_a_signal_during_c_code_ends_the_process() -> None:
    assert ended(BUSY, signal.SIGTERM) == (128 + signal.SIGTERM, "")


def test_a_second_interrupt_ends_the_process_at_once() -> None:
    assert ended("time.sleep(60)", signal.SIGINT) == (130, "interrupted\n")
    assert ended(BUSY, signal.SIGINT, signal.SIGINT) == (130, "")


def test_ignored_signals_stay_ignored_and_handlers_are_restored() -> None:
    before = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    assert ended("signal.raise_signal(signal.SIGHUP); print('on')", before=before) == (0, "on\n")
    after = "print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, signal.set_wakeup_fd(-1))"
    assert ended("raise KeyboardInterrupt", after=after) == (130, "interrupted\nTrue -1\n")


@pytest.mark.in_turn
def test_an_interrupted_sweep_says_how_to_resume(tmp_path: Path) -> None:
    sweep = ("-m", "case3_allreduce", "program=auto", "seed=range(0,40)", "hydra.sweep.dir=swept")
    process = started(*sweep, folder=tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "swept" / "1" / "result.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    *_, how, last = err.splitlines()
    assert re.fullmatch(r"\d+ of 40 points are done; to go on: python -m runner resume=swept", how)
    assert last == "interrupted"
