"""`python -m runner.compare`, the older spelling of `python -m runner compare`: it runs for one release more."""

from runner.cli.command import older

if __name__ == "__main__":
    older("compare")
