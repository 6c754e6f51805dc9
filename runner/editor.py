"""`python -m runner.editor`, the older spelling of `python -m runner editor`: it runs for one release more."""

from runner.cli.command import older

if __name__ == "__main__":
    older("editor")
