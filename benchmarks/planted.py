"""Small mistakes in what is compiled: by size, dtype and what decides, how many are noticed?

`python -m benchmarks.planted [--count 40] [--first 0] [--verify rounding auto twin]`, from the root of the repository.

A program of `benchmarks.right_programs`, or a shorter one, gets one mistake of a relative size of 1e-3 to 1e-7 in the
file that is compiled; the experiment, and so the oracle, is right. Where a dtype rounds the mistake away, the program
is not wrong in its own dtypes, only its twin is. Prints each, and the counts.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax

from benchmarks.fuzz import judge
from benchmarks.fuzz.cases import complete
from benchmarks.right_programs import compiled_once, program
from runner.worker import job

MISTAKES: dict[str, str] = {
    "scale": "({value}) * (1 + {size})",
    "offset": "({value}) + {size}",
    "one row": "({value}).at[0].multiply(1 + {size})",
    "one element": "({value}).at[0, 0].add({size})",
}
"""What becomes of the value of a line."""

SIZES = (1e-3, 1e-4, 1e-5, 1e-6, 3e-7, 1e-7)
SHORT: tuple[dict[str, str], ...] = (
    {"o": "x * 3 + 0.25 * x ** 2"},
    {"o": "tanh(x)"},
    {"y": "x @ w1", "o": "y"},
    {"o": "transpose(x)"},
)
"""Graphs of a few operations, whose tolerance is narrow."""


def planted(number: int) -> tuple[dict[str, Any], str, str, float]:
    """Return the configuration of a right program; the line, the kind and the size of the mistake in its file."""
    plain = program(number)
    line = "y"
    if number % 2:
        plain["graph"] = dict(SHORT[number // 2 % len(SHORT)])
        plain.pop("grad", None)
        plain["arrays"] = {name: plain["arrays"][name] for name in ("x", "w1") if name in str(plain["graph"])}
        plain["outputs"] = {"o": [None, None]}
        line = "o"
    kinds = list(MISTAKES)
    return plain, line, kinds[number // 3 % len(kinds)], SIZES[number % len(SIZES)]


def wrong(write: Callable[..., str], line: str, kind: str, size: float) -> Callable[..., str]:
    """Return a writer of programs with the mistake in a line."""

    def written(*given: Any) -> str:
        text, count = re.subn(
            rf"(?m)^(\s+{line} = )(.*)$",
            lambda match: match[1] + MISTAKES[kind].format(value=match[2], size=size),
            write(*given),
            count=1,
        )
        assert count == 1, f"no line computes {line}"
        return text

    return written


def main() -> None:
    """Plant the mistakes, and print how many were noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--verify", nargs="*", default=["rounding", "auto", "twin"])
    given = parser.parse_args()
    judge.prepare(optimized=True)
    counts: Counter[tuple[str, str, str, str]] = Counter()
    with compiled_once():
        for number in range(given.first, given.first + given.count):
            plain, line, kind, size = planted(number)
            dtype = plain["arrays"]["x"]["dtype"]
            statuses: dict[str, str] = {}
            for verify in given.verify:
                broken = {name: wrong(write, line, kind, size) for name, write in job.WRITERS.items()}
                with mock.patch.object(job, "WRITERS", broken):
                    judged = judge.judge(complete({**plain, "verify": verify}))
                statuses[verify] = judged["status"]
                counts[verify, dtype, f"{size:g}", judged["status"]] += 1
                if judged["status"] == "error":
                    print(number, judged["error"], judged["found"], flush=True)
            print(number, dtype, plain["graph"], kind, size, statuses, flush=True)
    print(f"jax {jax.__version__}")
    for (verify, dtype, size, status), count in sorted(counts.items()):
        print(f"{verify:9} {dtype:9} {size:6} {status:7} {count}")


if __name__ == "__main__":
    main()
