"""`python -m runner.explanation`: the JSON Schema of a saved explanation, which is `docs/explain.schema.json`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from runner.explanation import files


def main(arguments: Sequence[str]) -> int:
    """Print the schema."""
    sys.stdout.write(files.schema_text())
    return 0


if __name__ == "__main__":
    from runner.cli import command

    command.main("runner.explanation.__main__")
