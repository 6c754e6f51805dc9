"""Whether a measure orders the points of a sweep as measured time does, as a Markdown table.

    python experiments/rank.py SWEEP_FOLDER [THE_SAME_SWEEP_AGAIN]

For the estimate, and for simpler measures (bytes sent, flops, memory): Kendall's τ-b with the run time (1: the same
order, 0: none, -1: the opposite); and the regret, by how much longer the point that the measure picks runs than the
fastest point; the mean if the measure ranks several first. For a random pick, the regret is the mean of all points.
Reads `results.csv`; needs no devices.

Source: Kendall, "The Treatment of Ties in Ranking Problems", Biometrika 33, 1945.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

CLOCK = "run_s"
MEASURES = {"estimate_s": "the estimate", "bytes_sent": "bytes sent", "flops": "flops", "memory_bytes": "memory"}


@dataclass(frozen=True)
class Ranked:
    """How a measure orders points: `tau` with the run time, and the `regret` of its pick as a share of the least."""

    tau: float
    regret: float


def ranked(measured: Sequence[float], seconds: Sequence[float]) -> Ranked:
    """Compare a measure's order of points with their run times in `seconds`."""
    least = min(measured)
    picked = [time for value, time in zip(measured, seconds, strict=True) if value == least]
    correlation: Any = stats.kendalltau(measured, seconds)
    return Ranked(float(correlation.statistic), sum(picked) / len(picked) / min(seconds) - 1)


def rows(folder: Path) -> list[dict[str, str]]:
    """Return the passed and timed points of a sweep. Raises `ValueError` if one did not pass."""
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        points = list(csv.DictReader(file))
    failed = [row["point"] for row in points if row["status"] != "passed"]
    if failed:
        raise ValueError(f"of {folder} did not pass: point {', '.join(failed)}")
    return [row for row in points if row[CLOCK]]


def answers(folder: Path, again: Path | None = None) -> dict[str, Ranked]:
    """Compare each measure's order of the points with the run times of the sweep, or of the sweep run `again`.

    Raises `ValueError` if the two sweeps have different points.
    """
    points, timed = rows(folder), rows(again or folder)
    if [row["point"] for row in points] != [row["point"] for row in timed]:
        raise ValueError(f"{folder} and {again} have not the same points")
    first, seconds = ([float(row[CLOCK]) for row in each] for each in (points, timed))
    ranking = {} if again is None else {"the clock itself": ranked(first, seconds)}
    ranking |= {name: ranked([float(row[key]) for row in points], seconds) for key, name in MEASURES.items()}
    return {**ranking, "a lot": Ranked(0.0, sum(seconds) / len(seconds) / min(seconds) - 1)}


def table(ranking: dict[str, Ranked]) -> str:
    """Return the answers as Markdown."""
    lines = ["| by | τ | regret |", "|---|---|---|"]
    lines += [f"| {name} | {answer.tau:.2f} | {answer.regret:.0%} |" for name, answer in ranking.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(answers(*map(Path, sys.argv[1:]))))
