"""`python -m runner` and the console script `shardproof`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit status."""
    from runner.app import main as run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
