"""`python -m runner.editor`: see `runner/cli/editor.py`."""

from runner.cli.command import main

if __name__ == "__main__":
    main("runner.cli.editor")
