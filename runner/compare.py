"""`python -m runner.compare`: what differs between two records, sweeps or goldens (`runner/cli/compare.py`)."""

import sys

from runner.cli.compare import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
