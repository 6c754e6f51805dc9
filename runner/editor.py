"""`python -m runner.editor`: see `runner/cli/editor.py`."""

import sys

from runner.cli.editor import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
