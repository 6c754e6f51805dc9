"""The cost of a point of a sweep, against a loop written by hand; and all experiments in one sweep.

    python benchmarks/sweep.py [--rounds 3] [--all]

Runs the 200 points of case 3 (10 meshes of 8 devices, 5 layouts of the rows, 2 sizes, `auto` and `shard_map`) by
`sweep_by_hand.py` and by the runner, each as a whole process, in turn. Prints the medians, their ratio, the memory of
the worker after each quarter of its points, and the processor time of the loop, the worker and the parent process,
which is more reliable than wall time on a shared machine. `--all` runs `+experiment=glob(*)` once.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
POINTS = 200
LIMIT = 1.5
ALL_LIMIT = 75.0

SWEEP = (
    "+experiment=case3_allreduce", "mesh.axes=[x,y,z]", "dims.I=8", "dims.K=8",
    "mesh.shape=[8,1,1],[4,2,1],[4,1,2],[2,4,1],[2,2,2],[2,1,4],[1,8,1],[1,4,2],[1,2,4],[1,1,8]",
    "arrays.A.spec=[null,x],[y,x],[z,x],[[y,z],x],[[z,y],x]", "outputs.C=['${arrays.A.spec.0}',null]",
    "dims.J=16,32", "program=auto,shard_map", "expect.collectives=null", "expect.values=null",
)  # fmt: skip


TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Told:
    """A sweep by the runner.

    - `seconds`: wall time; `busy`, `worker`: processor seconds of all its processes, and of its worker until its last
      sample.
    - `held`: the bytes that the worker held each half second; `text`: the output.
    """

    seconds: float
    busy: float
    worker: float
    held: list[int]
    text: str


def look(process: int) -> tuple[int, float] | None:
    """Return the bytes that the worker of a process holds in memory, and its processor seconds so far."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
            if int(fields[1]) == process and b"runner.worker" in (status.parent / "cmdline").read_bytes():
                return int(fields[21]) * 4096, (int(fields[11]) + int(fields[12])) / TICK
        except (FileNotFoundError, ProcessLookupError):
            # The process has ended meanwhile.
            continue
    return None


def of_children() -> float:
    """Return the processor seconds of the processes that this one has waited for, with their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def by_hand() -> tuple[float, float]:
    """Return the seconds of the loop by hand: wall time, and processor time."""
    start, busy = time.perf_counter(), of_children()
    script = str(ROOT / "benchmarks" / "sweep_by_hand.py")
    told = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)
    assert len(json.loads(told.stdout)) == POINTS
    return time.perf_counter() - start, of_children() - busy


def by_runner(folder: Path, overrides: tuple[str, ...]) -> Told:
    """Run a sweep by the runner."""
    start, busy = time.perf_counter(), of_children()
    command = [sys.executable, "-m", "runner", "-m", *overrides, f"hydra.sweep.dir={folder}"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    seen: list[tuple[int, float]] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(0.5):
            found = look(process.pid)
            if found is not None:
                seen.append(found)

    sampling = threading.Thread(target=sample)
    sampling.start()
    told, _ = process.communicate()
    over.set()
    sampling.join()
    assert process.returncode in (0, 1), told
    held = [bytes_ for bytes_, _ in seen]
    return Told(time.perf_counter() - start, of_children() - busy, seen[-1][1], held, told)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--all", action="store_true", help="run all experiments in one sweep, and nothing else")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if asked.all:
            told = by_runner(Path(scratch) / "all", ("+experiment=glob(*)",))
            print(told.text.splitlines()[-1])
            print(f"all experiments: {told.seconds:.0f} s, at most {ALL_LIMIT:.0f}; {told.busy:.0f} s of the processor")
            print(f"memory {max(told.held) / 1e6:.0f} MB")
            return
        hand: list[float] = []
        runner: list[float] = []
        for turn in range(asked.rounds):
            seconds, busy = by_hand()
            told = by_runner(Path(scratch) / str(turn), SWEEP)
            hand.append(seconds)
            runner.append(told.seconds)
            assert f"{POINTS} points: {POINTS} passed" in told.text, told.text[-2000:]
            quarters = [told.held[len(told.held) * part // 4 - 1] / 1e6 for part in (1, 2, 3, 4)]
            print(
                f"by hand {seconds:.1f} s, runner {told.seconds:.1f} s; worker's MB by quarter", *map(round, quarters)
            )
            beside = told.busy - told.worker
            print(f"  of the processor: by hand {busy:.1f} s, worker {told.worker:.1f} s, beside it {beside:.1f} s")
    ratio = statistics.median(runner) / statistics.median(hand)
    print(f"{'per point':<10} {'median':>9}")
    for name, times in (("by hand", hand), ("runner", runner)):
        print(f"{name:<10} {statistics.median(times) / POINTS * 1e3:>6.1f} ms")
    print(f"ratio {ratio:.2f}, at most {LIMIT}")


if __name__ == "__main__":
    main()
