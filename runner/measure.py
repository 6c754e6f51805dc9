"""`python -m runner.measure`: what collectives take on the devices here (`runner/cli/measure.py`)."""

from runner.cli.command import main

if __name__ == "__main__":
    main("runner.cli.measure")
