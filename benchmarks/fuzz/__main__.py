"""Draw experiments, run them, shrink failures: `python -m benchmarks.fuzz [--seconds 600] [--seed 0] [--out FOLDER]`

Case I of seed S is always the same under one version of JAX. The folder holds `cases.jsonl`, one line per case, from
which a later call continues, and the findings: `experiment/finding_I.yaml`, to be run with
`python -m runner --config-dir FOLDER +experiment=finding_I`, `finding_I.py`, the program alone against NumPy, and
`finding_I.txt`, the messages of the checks. `--seconds` limits drawing and running, not the shrinking of findings. The
exit status is 1 if there was a finding.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.fuzz.search import COMMAND, Child, Search


def main() -> None:
    """Search, and print the findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--from", dest="first", type=int, help="the first case; else where the folder's last call stopped"
    )
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument("--out", type=Path, default=Path("outputs/fuzz"))
    parser.add_argument("--dtypes", nargs="*", help="the only dtypes that arrays may have, where there is a choice")
    parser.add_argument("--programs", nargs="*", help="the only programs to run")
    parser.add_argument("--limit", type=float, default=120, help="seconds after which a case counts as a hang")
    parser.add_argument("--unoptimized", action="store_true", help="without LLVM's optimizations, a third faster")
    given = parser.parse_args()
    child = Child((*COMMAND, "--unoptimized")) if given.unoptimized else Child()
    search = Search(given.out, given.seed, given.dtypes, given.programs, given.limit, child)
    try:
        findings = search.case(given.case) if given.case is not None else search.run(given.seconds, given.first)
    finally:
        search.close()
    print(search.summary())
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
