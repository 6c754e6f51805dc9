"""`python -m runner.measure`: what collectives take on the devices here (`runner/cli/measure.py`)."""

import sys

from runner.cli.measure import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
