"""`layout`: every device holds the index range that the spec promises, of every operand and output."""

from __future__ import annotations

from runner.base.layout import Layout
from runner.base.lazy import dataclass
from runner.checks.context import Context
from runner.checks.kind import CheckKind, Needs
from runner.link.target import ProgramRun
from runner.reports.record.verdicts import Judged, NotRun


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
    promised = [name for name in run.outputs if context.experiment.promises(run.program, name)]
    for name in promised:
        held = {part.position: part.ranges for part in run.outputs[name].places}
        wrong += _wrong(name, context.layout(name), held, run)
    if wrong:
        return LayoutVerdict(status="failed", reason="; ".join(wrong[:4]), wrong=len(wrong))
    return LayoutVerdict(status="passed", note=_note(run, promised))


def _note(run: ProgramRun, promised: list[str]) -> str | None:
    chosen = [name for name in run.outputs if name not in promised]
    if not chosen:
        return None
    by = "the types choose" if run.program.typed else "the compiler chooses"
    if not promised:
        return f"of the operands only; {by} the layout of the outputs"
    return f"not of {', '.join(chosen[:3])}{'…' if len(chosen) > 3 else ''}, whose layout {by}"


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
        says="every device holds the index range that the spec gives it",
    ),
)  # fmt: skip
