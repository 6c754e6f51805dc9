"""`python -m runner.report`, the older spelling of `python -m runner report`: it runs for one release more."""

from runner.cli.command import older

if __name__ == "__main__":
    older("report")
