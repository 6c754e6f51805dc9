"""Time and memory by process to run and verify the notebook's matmuls at 16384×1024×2048.

    python benchmarks/large.py [NAME …]

Each in all its programs, as whole processes. `wall` and `cpu` (user and system, of all processes) are seconds; `parent`
and `worker` are the peaks of the two processes' resident memory, `together` the peak of their sum, sampled every 20 ms
from Linux's /proc. The goal is at most 60 seconds on two cores and 4 GiB together.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXPERIMENTS = sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("collective_*matmul*.yaml"))
SAMPLED = 0.02
"""Seconds between two samples of the processes' memory."""


@dataclass
class Taken:
    """The seconds and GiB of one run."""

    wall: float
    cpu: float
    parent: float = 0.0
    worker: float = 0.0
    together: float = 0.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", default=EXPERIMENTS, metavar="NAME")
    columns = ("wall", "cpu", "parent", "worker", "together")
    print(f"{'experiment':<44}" + "".join(f"{name:>11}" for name in columns))
    for name in parser.parse_args().names:
        taken = measure(name)
        seconds = f"{taken.wall:>9.1f} s{taken.cpu:>9.1f} s"
        print(
            f"{name:<44}{seconds}{taken.parent:>7.2f} GiB{taken.worker:>7.2f} GiB{taken.together:>7.2f} GiB", flush=True
        )


def measure(name: str) -> Taken:
    """Run one experiment, which must pass, and sample its processes."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "runner", f"+experiment={name}", f"hydra.run.dir={folder}"]
        before, start = _cpu(), time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        taken = Taken(0.0, 0.0)
        while process.poll() is None:
            parent, children = _resident(process.pid), [_resident(child) for child in _children(process.pid)]
            taken.parent, taken.worker = max(taken.parent, parent), max([taken.worker, *children])
            taken.together = max(taken.together, parent + sum(children))
            time.sleep(SAMPLED)
        taken.wall, taken.cpu = time.perf_counter() - start, _cpu() - before
    if process.returncode:
        raise SystemExit(f"{name} ended with status {process.returncode}")
    return taken


def _cpu() -> float:
    """Return the processor seconds of all ended processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _resident(pid: int) -> float:
    """Return the resident memory of a process in GiB; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30


if __name__ == "__main__":
    main()
