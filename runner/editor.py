"""`python -m runner.editor`: see `runner/cli/editor.py`."""

from runner.__main__ import main

if __name__ == "__main__":
    main("runner.cli.editor")
