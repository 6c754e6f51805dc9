"""The time of a run as a whole process, against a script written by hand.

    python benchmarks/overhead.py [--rounds 7] [--only "runner.check"]

Runs `case3_by_hand.py`, the runner with `program=shard_map` and with `program=all`; `case3_jit_by_hand.py` and
`case3_check.py`, the same by `jit` and by `runner.check`; then `hydra_by_hand.py`, which composes the same experiment
and does nothing, and the runner with an invalid spec. All run in turn, so that a slow moment of the machine affects all
alike. Prints medians, minima, and the ratio of either to the script's; then the least CPU time of a process with those
that it started, and its ratio, which other load on the machine does not change.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUNNER = ("-m", "runner", "+experiment=case3_allreduce")

_PR_SET_CHILD_SUBREAPER = 36
"""The `prctl(2)` option by which a process becomes the parent of its descendants whose own parents have ended."""


@dataclass(frozen=True)
class Command:
    """A timed process: Python's arguments, and the expected exit status.

    - `yardstick`: the command that it is compared with, and `limit`: the largest allowed ratio.
    - `folder`: the argument that names its run folder; None if it has none.
    """

    arguments: tuple[str, ...]
    status: int = 0
    yardstick: str = ""
    limit: float = 0.0
    folder: str | None = "hydra.run.dir={}"


COMMANDS = {
    "by hand": Command(("benchmarks/case3_by_hand.py",), folder=None),
    "jit by hand": Command(("benchmarks/case3_jit_by_hand.py",), folder=None),
    "runner.check": Command(("benchmarks/case3_check.py",), yardstick="jit by hand", limit=1.3, folder="{}"),
    "program=shard_map": Command((*RUNNER, "program=shard_map"), yardstick="by hand", limit=1.25),
    "program=all": Command((*RUNNER, "program=all"), yardstick="by hand", limit=1.6),
    "Hydra alone": Command(("benchmarks/hydra_by_hand.py", RUNNER[-1])),
    "a wrong key": Command((*RUNNER, "rows=4"), status=2, yardstick="Hydra alone", limit=1.3),
    "a wrong spec": Command((*RUNNER, "arrays.A.spec=[null,w]"), status=2, yardstick="Hydra alone", limit=1.3),
}


def seconds(command: Command, folder: Path, bytecode: Path) -> tuple[float, float]:
    """Return the wall and CPU seconds of one process, the latter with its children; earlier rounds left byte code."""
    # As in an installed package, which pip compiles; the script by hand only imports installed modules.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(bytecode)
    line = [sys.executable, *command.arguments, *([command.folder.format(folder)] if command.folder else [])]
    start, used = time.perf_counter(), _used()
    done = subprocess.run(line, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    taken = time.perf_counter() - start
    with contextlib.suppress(ChildProcessError):
        # What outlives the process that started it, as a worker that is no longer needed does, is a child of this one.
        while True:
            os.wait()
    if done.returncode != command.status:
        raise SystemExit(f"{line} ended with status {done.returncode}:\n{done.stderr.decode()}")
    return taken, _used() - used


def _used() -> float:
    """Return the CPU seconds of all processes that have ended, started here or by one of these."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=COMMANDS, help="one of them, and what it is held to")
    given = parser.parse_args()
    rounds, only = given.rounds, given.only
    commands = {name: each for name, each in COMMANDS.items() if not only or name in (only, COMMANDS[only].yardstick)}
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    times: dict[str, list[float]] = {name: [] for name in commands}
    cpu: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as scratch:
        for turn in range(rounds + 1):
            for number, (name, command) in enumerate(commands.items()):
                measured, used = seconds(command, Path(scratch) / f"{turn}-{number}", Path(scratch) / "bytecode")
                # The first round compiled the modules.
                if turn:
                    times[name].append(measured)
                    cpu[name].append(used)
    header = f"{'whole process':<18} {'median':>8} {'min':>8} {'max':>8} {'ratio':>7} {'of min':>7}"
    print(f"{header} {'CPU':>8} {'of CPU':>7}  at most")
    for name, command in commands.items():
        measured, yardstick = times[name], times[command.yardstick or name]
        ratio = statistics.median(measured) / statistics.median(yardstick)
        least = min(measured) / min(yardstick)
        used = min(cpu[name])
        limit = f"{command.limit:.2f}" if command.yardstick else ""
        print(
            f"{name:<18} {statistics.median(measured):>7.2f}s {min(measured):>7.2f}s {max(measured):>7.2f}s "
            f"{ratio:>7.2f} {least:>7.2f} {used:>7.2f}s {used / min(cpu[command.yardstick or name]):>7.2f}  {limit}"
        )


if __name__ == "__main__":
    main()
