"""Checks functions of public libraries as they are, and prints a table of time, verdict and what could not be read.

    python -m benchmarks.public [NAME …] [--sources FOLDER] [--plain]

The libraries are installed by whoever runs it; those that are missing are named. FOLDER has clones of repositories that
are no packages: `jax`, `jax-llm-examples`, `ringattention`, `seqax`. With --plain the functions are called and not
checked. A time is that of the processors: of the check and of its worker, where it is still there at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax

from benchmarks.public import documents, layers, numerics  # noqa: F401
from benchmarks.public.subject import SUBJECTS, Call, Subject
from runner.app.api import Record, checked
from runner.link import copied
from runner.link.workers import Workers

_TIMEOUT = 120
"""Seconds after which a program of a function is ended."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--sources", type=Path, default=Path("sources"))
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    counts = Counter[str]()
    with tempfile.TemporaryDirectory() as temporary:
        for number, subject in enumerate(SUBJECTS):
            if given.names and not {subject.library, f"{subject.library} {subject.name}"} & {*given.names}:
                continue
            counts[_checked(subject, given.sources, Path(temporary) / str(number), plain=given.plain)] += 1
    print(dict(counts))


def _checked(subject: Subject, sources: Path, folder: Path, *, plain: bool) -> str:
    """Check one function, print its row and return the verdict."""
    title = f"{subject.library} {subject.name}"
    try:
        call = subject.call(sources)
    except (ImportError, FileNotFoundError) as missing:
        return _row(title, "missing", 0.0, str(missing))
    except Exception as changed:
        # A library of another version: its functions are called otherwise, and the others are still worth checking.
        return _row(title, "not called", 0.0, f"{type(changed).__name__}: {changed}")
    if plain:
        with call.context():
            jax.block_until_ready(call.function(*call.operands))
        return _row(title, "called", 0.0, "")
    record, seconds = _record(call, folder)
    reasons = record.error or "; ".join(_reasons(record))
    return _row(title, record.status, seconds, re.sub(r"\s+", " ", reasons))


def _record(call: Call, folder: Path) -> tuple[Record, float]:
    """The record of a check, and the processor time that it took."""
    workers = Workers(copied.worker())
    arguments = dict(call.keys)
    if not call.setting:
        arguments["mesh"] = call.mesh or {"data": 2, "model": 2}
    start = time.process_time()
    try:
        with call.context():
            record = checked(
                call.function, call.operands, folder, workers, in_specs=call.specs, out_specs=None,
                reference=call.reference, show="none", timeout=_TIMEOUT, **arguments,
            )  # fmt: skip
        return record, time.process_time() - start + _of_workers()
    finally:
        workers.close()


def _of_workers() -> float:
    """The seconds of processor time of all processes that this one started, and those started, while they run."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = process.read_text("utf-8").rpartition(")")[2].split()
            parents[int(process.parent.name)], used[int(process.parent.name)] = (
                int(fields[1]),
                sum(map(int, fields[11:13])),
            )
    ours = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used[process] for process in ours - {os.getpid()} if process in used) / os.sysconf("SC_CLK_TCK")


def _reasons(record: Record) -> list[str]:
    """What the record says besides its verdict."""
    programs = record.programs.values()
    return [str(text) for program in programs for text in (getattr(program, "reason", None),) if text]


def _row(title: str, verdict: str, seconds: float, reasons: str) -> str:
    print(f"{verdict:10} {seconds:5.1f} s  {title:48} {reasons[:400]}", flush=True)
    return verdict


if __name__ == "__main__":
    started = time.time()
    main()
    sys.stderr.write(f"{time.time() - started:.0f} s\n")
