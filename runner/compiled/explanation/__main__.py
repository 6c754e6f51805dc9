"""Prints the JSON Schema of a saved explanation, which is `docs/explain.schema.json`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from runner.compiled.explanation import files


def main(arguments: Sequence[str]) -> int:
    """Print the schema."""
    sys.stdout.write(files.schema_text())
    return 0


if __name__ == "__main__":
    from runner.app.cli import command

    command.main("runner.compiled.explanation.__main__")
