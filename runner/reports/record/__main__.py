"""`python -m runner.reports.record`: the JSON Schema of `result.json`, which is `docs/result.schema.json`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from runner.reports.record import record


def main(arguments: Sequence[str]) -> int:
    """Print the schema."""
    sys.stdout.write(record.schema_text())
    return 0


if __name__ == "__main__":
    from runner.app.cli import command

    command.main("runner.reports.record.__main__")
