"""`python -m runner.runs`: the runs that there are, and those of them that may go (`runner/cli/runs.py`)."""

import sys

from runner.cli.runs import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
