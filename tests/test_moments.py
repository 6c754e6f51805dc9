"""A signal at each line of the code that makes and removes temporary folders and workers leaves nothing of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import ROOT

SCRIPT = """
import contextlib, os, signal, sys, tempfile, threading, time, types
from runner.app.cli import command, signals
from runner.link import process, scratch

at_once, step = sys.argv[1] == "at_once", int(sys.argv[2])
FILES = {module.__file__ for module in (command, signals, process, scratch, contextlib)}
TMP = tempfile.gettempdir()


def main(arguments):
    worker = process.Worker(("sleep", "60"))
    with scratch.Folder("job") as job:
        (job.path / "value.bin").touch()
    (scratch.Folder("sweep").path / "experiment").mkdir()
    worker.close()
    process.Worker(("sleep", "60"))
    return 0


sys.modules["work"] = types.SimpleNamespace(main=main)


def interrupted(moment):
    # The lines at which this process has been until the signal; None if it was not interrupted.
    lines, exiting = 0, threading.Event()
    main = threading.main_thread()

    def each(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_filename not in FILES or threading.current_thread() is not main:
            return None
        if event == "line":
            lines += 1
            if lines == moment:
                signal.raise_signal(signal.SIGTERM)
                if at_once:
                    exiting.wait(0.1)
        return each

    def last(code):
        # The main thread goes on until the very end of the process.
        exiting.set()
        time.sleep(0.05)
        end(code)

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end = os._exit
    if at_once:
        os._exit, signals._exit.__globals__["GRACE"] = last, 0.0
        signals._importing = lambda frame: True
        signals._SOON = 60.0
    try:
        sys.settrace(each)
        command._run("work")
    finally:
        sys.settrace(None)
        end(0 if lines < moment else 1)


moment = 1
while True:
    child = os.fork()
    if child == 0:
        interrupted(moment)
    _, status = os.waitpid(child, 0)
    if status == 0:
        break
    left = os.listdir(TMP)
    if left:
        print(f"a signal at line {moment} leaves {left}, status {os.waitstatus_to_exitcode(status)}", flush=True)
        for name in left:
            os.system(f"rm -r {TMP}/{name}")
    moment += step
print(moment, file=sys.stderr)
"""

STEP = {"in_order": 37, "at_once": 79}
"""A session tries one in this many lines."""


@pytest.mark.in_turn
@pytest.mark.parametrize("how", ["in_order", "at_once"])
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.whole)])
def test_a_signal_at_any_line_leaves_no_temporary_folder(how: str, whole: bool, tmp_path: Path) -> None:
    step = 1 if whole else STEP[how]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how, str(step)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert done.stdout == ""
    assert int(done.stderr) > 100
