"""`python -m runner.runs`: the runs that there are, and those of them that may go (`runner/cli/runs.py`)."""

from runner.cli.command import main

if __name__ == "__main__":
    main("runner.cli.runs")
