"""Requests on standard input, one JSON per line; verdicts on standard output. It may crash: the parent continues.

A request holds `seed` and `number`, or a `config`; `programs` are those to run (all if null), `dtypes` those of a new
case. The answers: `case` (the configuration), `program` at the start of each, `verdict` at the end.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fuzz import cases, judge
from runner.base import dtypes


def main() -> None:
    """Serve until the input ends."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(event: str, **more: Any) -> None:
        channel.write(json.dumps({"event": event, **more}) + "\n")
        channel.flush()

    judge.prepare(optimized="--unoptimized" not in sys.argv)
    for line in sys.stdin:
        tell("verdict", **answer(json.loads(line), tell))
        judge.forget()


def answer(request: dict[str, Any], tell: Callable[..., None]) -> dict[str, Any]:
    """Return the verdict on a request; `tell` receives the case and each program."""
    config = request.get("config")
    try:
        if config is None:
            names = frozenset(request["dtypes"]) if request.get("dtypes") else frozenset(dtypes.NAMES)
            config, operations = cases.case(request["seed"], request["number"], names)
            tell("case", config=config, operations=operations)
        else:
            config = cases.complete(config)
        verdict = judge.judge(config, request.get("programs"), lambda program: tell("program", program=program))
        if request.get("oracle"):
            verdict["oracle"] = judge.oracle(config, Path.cwd())
    except Exception:
        return {"status": "generator", "found": [["generator", "", traceback.format_exc()]]}
    return verdict


if __name__ == "__main__":
    main()
