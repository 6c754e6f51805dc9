"""Synthetic records of sweeps: any number of points, each identified by its overrides."""

from __future__ import annotations

import itertools
from pathlib import Path

from runner.link.events import Cost
from runner.reports.record import manifest, record
from runner.reports.record.model import Record
from tests import evidence

SPECS = ("[null,null]", "[x,null]", "[y,null]", "[null,x]", "[x,y]")


def point(number: int, a: str, b: str, size: int, program: str) -> Record:
    """Return one point of a sweep of two specs, a size and the program; every eleventh is invalid."""
    overrides = [
        "+experiment=case", f"arrays.A.spec={a}", f"arrays.B.spec={b}", f"dims.I={size}", f"program={program}",
    ]  # fmt: skip
    if number % 11 == 10:
        error = f"command line: dims.I={size}\n  dimension 0 (I) of 'A' has size {size}, which x=3 does not divide"
        return evidence.record({}, overrides=overrides, status="invalid", error=error)
    bytes_in = 64 * size * (1 + SPECS.index(a)) // (1 + SPECS.index(b))
    made = evidence.program(
        *(evidence.collective(bytes_in=bytes_in) for _ in range(SPECS.index(b))),
        cost=Cost(flops=2.0 * size**2),
        memory=evidence.memory(4 * size * (6 - SPECS.index(a)), 0, 0),
        timing=evidence.timing(0.05, 1e-5 * (1 + number % 7) + 1e-9 * size),
    )
    return evidence.record({program: made}, overrides=overrides)


def write(folder: Path, count: int) -> list[Path]:
    """Write `count` distinct points in `folder/0`, `folder/1`, …"""
    base = list(itertools.product(SPECS, SPECS, (64, 256, 1024, 4096, 16384), ("auto", "shard_map")))
    made: list[Path] = []
    for number in range(count):
        a, b, size, program = base[number % len(base)]
        path = folder / str(number)
        path.mkdir(parents=True)
        manifest.mark(path, "point")
        record.write(point(number, a, b, size + number // len(base), program), path)
        manifest.end(path)
        made.append(path)
    manifest.mark(folder, "sweep")
    manifest.end(folder)
    return made
