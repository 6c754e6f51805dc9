"""`python -m runner.report`: the page of a run, of a sweep, or of several (`runner/cli/report.py`)."""

from runner.cli.command import main

if __name__ == "__main__":
    main("runner.cli.report")
