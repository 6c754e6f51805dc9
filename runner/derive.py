"""`python -m runner.derive`, the older spelling of `python -m runner derive`: it runs for one release more."""

from runner.cli.command import older

if __name__ == "__main__":
    older("derive")
