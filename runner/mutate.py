"""`python -m runner.mutate`: which mistakes in an experiment its checks notice (`runner/cli/mutate.py`)."""

from runner.cli.command import main

if __name__ == "__main__":
    main("runner.cli.mutate")
