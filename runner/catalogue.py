"""`python -m runner.catalogue`: the page of the experiments that come with the runner (`runner/cli/catalogue.py`)."""

from runner.cli.command import main

if __name__ == "__main__":
    main("runner.cli.catalogue")
