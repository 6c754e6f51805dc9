"""`python -m runner.measure`, the older spelling of `python -m runner measure`: it runs for one release more."""

from runner.cli.command import older

if __name__ == "__main__":
    older("measure")
