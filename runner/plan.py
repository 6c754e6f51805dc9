"""`python -m runner.plan`, the older spelling of `python -m runner plan`: it runs for one release more."""

from runner.cli.command import older

if __name__ == "__main__":
    older("plan")
