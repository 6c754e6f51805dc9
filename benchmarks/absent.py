"""The time of case 3 as a whole process, compiled for absent hardware. Needs libtpu.

    python benchmarks/absent.py [--size 1024]

Runs every program of case 3 with square arrays of that size for 256 and 4,096 chips; leaves with 1 where one run takes
more than 15 seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
TARGETS = {"v5e_16x16": "x16_y16", "v6e_16x16": "x16_y16", "v5p_16x16x16": "x16_y16_z16"}
LIMIT = 15.0


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", type=int, default=1024)
    size = parser.parse_args().size
    slow = False
    for target, mesh in TARGETS.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable,
                "-m",
                "runner",
                "+experiment=case3_allreduce",
                f"target={target}",
                f"mesh={mesh}",
                # That of four devices: on so many, derived sends less with other collectives.
                "expect.collectives=null",
            ]
            command += [f"++dims.{dim}={size}" for dim in "IJK"] + [f"hydra.run.dir={folder}"]
            start = time.perf_counter()
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - start
            record = json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))
        compiling = sum(program["timing"]["compile_s"] for program in record["programs"].values())
        print(f"{target:<14} {len(record['programs'])} programs {seconds:>6.2f}s, compiling {compiling:>6.2f}s")
        slow = slow or seconds > LIMIT
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
