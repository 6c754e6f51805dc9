"""`python -m runner.plan`: the layouts for which a program sends, takes or holds the least (`runner/cli/plan.py`)."""

from runner.cli.command import main

if __name__ == "__main__":
    main("runner.cli.plan")
