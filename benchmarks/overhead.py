"""How long a run takes as a whole process, against the script that somebody would write by hand.

    python benchmarks/overhead.py [--rounds 7]

Runs `case3_by_hand.py`, then the runner with `program=shard_map`, then with `program=all`, in turn, so that a slow
moment of the machine falls on all three alike; prints the medians and their ratios to the script by hand.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIMITS = {"program=shard_map": 1.5, "program=all": 2.5}


def seconds(command: list[str], bytecode: Path) -> float:
    """The wall time of one process, which must succeed, with the modules compiled that an earlier one left compiled."""
    # As an installed package is: pip compiles it, and by hand nothing is imported that was not installed.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    start = time.perf_counter()
    subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        runner = [sys.executable, "-m", "runner", "+experiment=case3_allreduce"]
        commands = {
            "by hand": [sys.executable, "benchmarks/case3_by_hand.py"],
            **{program: [*runner, program] for program in LIMITS},
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(rounds + 1):
            for name, command in commands.items():
                # A run folder is of one run.
                fresh = [f"hydra.run.dir={folder}/{turn}-{len(name)}"] if name in LIMITS else []
                measured = seconds([*command, *fresh], Path(folder) / "bytecode")
                if turn:
                    times[name].append(measured)
    by_hand = statistics.median(times["by hand"])
    print(f"{'whole process':<18} {'median':>8} {'min':>8} {'max':>8} {'ratio':>7}  at most")
    for name, measured in times.items():
        median = statistics.median(measured)
        limit = f"{LIMITS[name]:.1f}" if name in LIMITS else ""
        ratio = median / by_hand
        print(f"{name:<18} {median:>7.2f}s {min(measured):>7.2f}s {max(measured):>7.2f}s {ratio:>7.2f}  {limit}")


if __name__ == "__main__":
    main()
