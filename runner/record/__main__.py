"""`python -m runner.record`: the JSON Schema of `result.json`, which is `docs/result.schema.json`."""

from __future__ import annotations

import sys

from runner.record import record

if __name__ == "__main__":
    sys.stdout.write(record.schema_text())
