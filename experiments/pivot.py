"""A measure at every point of a sweep, by two of the keys that vary, as a Markdown table.

    python experiments/pivot.py SWEEP_FOLDER ROWS COLUMNS MEASURE

For example `… outputs/mine/2026-… dims.B rules estimate_s`: a row for each size B, a column for each set of rules, in
the cells the estimate to two digits, and in the last column the rules with the least. Reads `results.csv`; needs no
devices.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path


def table(folder: Path, rows: str, columns: str, measure: str) -> str:
    """Return the table of a sweep. A point that did not pass is shown by its status."""
    measured: dict[tuple[str, str], float] = {}
    cells: dict[tuple[str, str], str] = {}
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            place = row[rows], row[columns]
            passed = row["status"] == "passed" and row[measure] != ""
            if passed:
                measured[place] = float(row[measure])
            cells[place] = f"{float(row[measure]):.2g}" if passed else row["status"]
    down, across = (list(dict.fromkeys(place[i] for place in cells)) for i in (0, 1))
    lines = [f"| {rows} ↓ {measure} → | {' | '.join(across)} | least |", "|---" * (len(across) + 2) + "|"]
    for name in down:
        known = {column: measured[name, column] for column in across if (name, column) in measured}
        best = [column for column in known if known[column] == min(known.values())]
        least = "alike" if len(best) == len(across) > 1 else ", ".join(best) or "–"
        lines.append(f"| {name} | {' | '.join(cells.get((name, column), '–') for column in across)} | {least} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(Path(sys.argv[1]), *sys.argv[2:5]))
