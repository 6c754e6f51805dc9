"""`python -m runner.derive`: the per-device lines that a graph and its specs determine (`runner/cli/derive.py`)."""

import sys

from runner.cli.derive import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
