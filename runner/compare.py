"""`python -m runner.compare`: what differs between two records, sweeps or goldens (`runner/cli/compare.py`)."""

from runner.cli.command import main

if __name__ == "__main__":
    main("runner.cli.compare")
