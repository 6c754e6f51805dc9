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
class Swept:
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
    completed = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)
    assert len(json.loads(completed.stdout)) == POINTS
    return time.perf_counter() - start, of_children() - busy


def by_runner(folder: Path, overrides: tuple[str, ...]) -> Swept:
    """Run a sweep by the runner."""
    start, busy = time.perf_counter(), of_children()
    command = [sys.executable, "-m", "runner", "-m", *overrides, f"hydra.sweep.dir={folder}"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    samples: list[tuple[int, float]] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(0.5):
            usage = look(process.pid)
            if usage is not None:
                samples.append(usage)

    sampling = threading.Thread(target=sample)
    sampling.start()
    output, _ = process.communicate()
    over.set()
    sampling.join()
    assert process.returncode in (0, 1), output
    held = [bytes_ for bytes_, _ in samples]
    return Swept(time.perf_counter() - start, of_children() - busy, samples[-1][1], held, output)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--all", action="store_true", help="run all experiments in one sweep, and nothing else")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if asked.all:
            swept = by_runner(Path(scratch) / "all", ("+experiment=glob(*)",))
            print(swept.text.splitlines()[-1])
            print(
                f"all experiments: {swept.seconds:.0f} s, at most {ALL_LIMIT:.0f}; {swept.busy:.0f} s of the processor"
            )
            print(f"memory {max(swept.held) / 1e6:.0f} MB")
            return
        hand: list[float] = []
        runner: list[float] = []
        for turn in range(asked.rounds):
            seconds, busy = by_hand()
            swept = by_runner(Path(scratch) / str(turn), SWEEP)
            hand.append(seconds)
            runner.append(swept.seconds)
            assert f"{POINTS} points: {POINTS} passed" in swept.text, swept.text[-2000:]
            quarters = [swept.held[len(swept.held) * part // 4 - 1] / 1e6 for part in (1, 2, 3, 4)]
            print(
                f"by hand {seconds:.1f} s, runner {swept.seconds:.1f} s; worker's MB by quarter", *map(round, quarters)
            )
            beside = swept.busy - swept.worker
            print(f"  of the processor: by hand {busy:.1f} s, worker {swept.worker:.1f} s, beside it {beside:.1f} s")
    ratio = statistics.median(runner) / statistics.median(hand)
    print(f"{'per point':<10} {'median':>9}")
    for name, times in (("by hand", hand), ("runner", runner)):
        print(f"{name:<10} {statistics.median(times) / POINTS * 1e3:>6.1f} ms")
    print(f"ratio {ratio:.2f}, at most {LIMIT}")


if __name__ == "__main__":
    main()
