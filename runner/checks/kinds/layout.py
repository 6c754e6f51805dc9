"""`layout`: every device holds the index range that the spec promises, of every operand and output."""

from __future__ import annotations

from dataclasses import dataclass

from runner.checks.context import Context
from runner.checks.kind import CheckKind, Needs
from runner.layout import Layout
from runner.link.target import ProgramRun
from runner.record.verdicts import Judged, NotRun


@dataclass(frozen=True, kw_only=True)
class LayoutVerdict(Judged):
    """`layout`: how many shards of operands and outputs are `wrong`."""

    wrong: int = 0


def check(context: Context, run: ProgramRun) -> LayoutVerdict | NotRun:
    """Compare the ranges that JAX reports with those that follow from mesh and spec alone."""
    if not run.program.on_mesh:
        return NotRun(reason=f"{run.program} runs on one device; it has no layout")
    wrong: list[str] = []
    position_of = {device: position for position, device in enumerate(run.ran.device_ids)}
    for array in context.experiment.arrays:
        held = {position_of[device]: ranges for device, ranges in run.ran.operands[array.name]}
        wrong += _wrong(array.name, array.layout, held, run)
    if run.program.places:
        for name, output in run.outputs.items():
            held = {part.position: part.ranges for part in output.places}
            wrong += _wrong(name, context.layout(name), held, run)
    if wrong:
        return LayoutVerdict(status="failed", reason="; ".join(wrong[:4]), wrong=len(wrong))
    note = None if run.program.places else "only the operands: the compiler chooses the layout of the outputs"
    return LayoutVerdict(status="passed", note=note)


def _wrong(name: str, layout: Layout, held: dict[int, tuple[tuple[int, int], ...]], run: ProgramRun) -> list[str]:
    return [
        f"device {run.ran.device_ids[position]} holds {name}{_text(held.get(position))}, not {name}{_text(promised)}"
        for position in range(layout.mesh.size)
        if held.get(position) != (promised := layout.ranges(position))
    ]


def _text(ranges: tuple[tuple[int, int], ...] | None) -> str:
    return " nothing" if ranges is None else "[" + ", ".join(f"{a}:{b}" for a, b in ranges) + "]"


KINDS = (
    CheckKind(
        "layout", LayoutVerdict | NotRun, Needs.LAYOUTS, lambda case: check(case.context, case.run), order=30,
        says="every device holds the index range that the spec promises",
    ),
)  # fmt: skip
