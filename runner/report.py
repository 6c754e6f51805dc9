"""`python -m runner.report`: the page of a run, of a sweep, or of several (`runner/cli/report.py`)."""

import sys

from runner.cli.report import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
