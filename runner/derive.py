"""`python -m runner.derive`: the per-device lines that a graph and its specs determine (`runner/cli/derive.py`)."""

from runner.cli.command import main

if __name__ == "__main__":
    main("runner.cli.derive")
