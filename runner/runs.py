"""`python -m runner.runs`, the older spelling of `python -m runner runs`: it runs for one release more."""

from runner.cli.command import older

if __name__ == "__main__":
    older("runs")
