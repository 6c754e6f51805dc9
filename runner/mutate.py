"""`python -m runner.mutate`, the older spelling of `python -m runner mutate`: it runs for one release more."""

from runner.cli.command import older

if __name__ == "__main__":
    older("mutate")
