"""`python -m runner.catalogue`, the older spelling of `python -m runner catalogue`: it runs for one release more."""

from runner.cli.command import older

if __name__ == "__main__":
    older("catalogue")
