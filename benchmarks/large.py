"""How long the notebook's matmuls at 16384×1024×2048 take to run and verify, and how much memory.

    python benchmarks/large.py

Each in all its programs, as whole processes. At most 60 seconds and 4 GiB each on two cores is the aim.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent


def main() -> None:
    """Measure and print."""
    print(f"{'experiment':<44} {'seconds':>8} {'largest process':>16}")
    for path in sorted((ROOT / "conf" / "experiment").glob("collective_*matmul*.yaml")):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            command = [sys.executable, "-m", "runner", f"+experiment={path.stem}", f"hydra.run.dir={folder}"]
            subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - start
        # The largest of all children so far, the workers included.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        print(f"{path.stem:<44} {seconds:>7.1f}s {peak:>11.2f} GiB")


if __name__ == "__main__":
    main()
