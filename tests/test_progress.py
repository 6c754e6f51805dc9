"""The progress of a run on a terminal, here a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import sys
import time

import pytest

from runner.base.invocation import begin
from runner.reports.show import progress
from runner.reports.show.progress import Progress, SweepProgress


def on_terminal(monkeypatch: pytest.MonkeyPatch, seconds: float) -> str:
    """Return the contents of the terminal after some seconds of work."""
    monkeypatch.setattr(progress, "PATIENCE", 0.1)
    monkeypatch.setattr(progress, "_EVERY", 0.05)
    terminal, end = pty.openpty()
    with os.fdopen(end, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress("mine") as shown:
            shown.tell("the reference")
            time.sleep(seconds)
            shown.tell("auto (4 of 6)", 3 / 6)
            time.sleep(seconds)
        stream.write("end")
    contents = b""
    while not contents.endswith(b"end"):
        contents += os.read(terminal, 10_000)
    os.close(terminal)
    return contents.decode()


def test_a_long_activity_is_shown_and_removed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = on_terminal(monkeypatch, 0.4)
    assert "\r\x1b[Kmine: the reference, 0 s" in contents
    assert "\r\x1b[K█████░░░░░ mine: auto (4 of 6), " in contents
    assert contents.endswith("\r\x1b[Kend")


def test_a_short_activity_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_terminal(monkeypatch, 0.0) == "end"


def test_the_seconds_before_a_command_shows_its_progress_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.time, "monotonic", lambda: 100.0)
    begin()
    monkeypatch.setattr(progress.time, "monotonic", lambda: 101.5)
    assert Progress("the first").seconds == 1.5
    assert Progress("the second").seconds == 0


def test_without_a_terminal_each_activity_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("mine", every=0.02) as shown:
        shown.tell("the reference")
        time.sleep(0.2)
        shown.tell("auto (1 of 6)")
        time.sleep(0.2)
    assert capsys.readouterr() == ("", "mine: the reference, 0 s\nmine: auto (1 of 6), 0 s\n")


def test_without_a_terminal_a_short_activity_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("mine") as shown:
        shown.tell("the reference")
    assert capsys.readouterr() == ("", "")


def test_a_sweeps_line_is_not_repeated_while_nothing_happens(capsys: pytest.CaptureFixture[str]) -> None:
    with SweepProgress(3, every=0.02) as shown:
        shown.running = 1
        time.sleep(0.2)
        shown.done, shown.running = 3, 0
        time.sleep(0.2)
    assert capsys.readouterr().err == "0 of 3 points done, 1 running\n3 of 3 points done, 0 running\n"
