"""The layout of one array or output at every point of a sweep, as a Markdown table.

    python experiments/tabulate.py SWEEP_FOLDER ROWS COLUMNS OUTPUT PROGRAM

For example `… outputs/matmul_layouts/2026-… A B C auto`: a row for each spec of the array A, a column for each spec of
the array B, and in the cells the spec of the output C in the program `auto`. Reads the records; needs no devices.
"""

from __future__ import annotations

import sys
from pathlib import Path

from runner.base.layout import Spec
from runner.reports.record import record
from runner.reports.show.table import Table, markdown


def shown(spec: Spec | None) -> str:
    """Return a spec in YAML syntax."""
    return "no PartitionSpec" if spec is None else spec.yaml()


def table(folder: Path, rows: str, columns: str, output: str, program: str) -> str:
    """Return the table of a sweep. A point that did not pass is shown by its status."""
    cells: dict[tuple[str, str], str] = {}
    for run in sorted((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name)):
        run_record = record.read(run)
        result = run_record.compiled.get(program)
        passed = result is not None and result.status == "passed"
        place = shown(run_record.arrays[rows].spec), shown(run_record.arrays[columns].spec)
        cells[place] = shown(result.outputs[output].spec) if result and passed else (result or run_record).status
    down, across = (list(dict.fromkeys(place[i] for place in cells)) for i in (0, 1))
    lines = [[row, *(cells.get((row, column), "–") for column in across)] for row in down]
    return "\n".join(markdown(Table([f"{rows} ↓ {columns} →", *across], lines)))


def cells(page: str) -> dict[tuple[str, str], str]:
    """Return the cells of the tables in a Markdown page, by row and column: `("A [x, null]", "B [y, null]")`."""
    by_place: dict[tuple[str, str], str] = {}
    down, across, head = "", "", [""]
    for line in page.splitlines():
        if not line.strip().startswith("| "):
            continue
        first, *columns = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if " ↓ " in first:
            down, across = first.removesuffix(" →").split(" ↓ ")
            head = columns
        else:
            by_place |= {
                (f"{down} {first}", f"{across} {column}"): cell for column, cell in zip(head, columns, strict=True)
            }
    return by_place


if __name__ == "__main__":
    print(table(Path(sys.argv[1]), *sys.argv[2:6]))
