"""`python -m runner.mutate`: which mistakes in an experiment its checks notice (`runner/cli/mutate.py`)."""

import sys

from runner.cli.mutate import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
