"""Says what to change so that a weak check proves something, and why."""

from __future__ import annotations

from runner.reports.record.model import Record
from runner.reports.record.verdicts import ValueVerdict

_MEANS = "weak: it passed, and a wrong program might have passed too"


def advice(record: Record) -> list[str]:
    """Return one line for each way in which a check is weak."""
    outputs = [
        output
        for program in record.programs.values()
        if isinstance(program.checks.value, ValueVerdict)
        for output in program.checks.value.compared.values()
        if output.status == "weak"
    ]
    ways: list[str] = []
    if any(output.undecided for output in outputs) or _of_sections(record):
        ways.append("rounding alone decides some elements: use another seed (seed=1), or values (init) further apart")
    if any(output.overflowing and not output.undecided for output in outputs):
        ways.append(
            "values overflow the dtype: use smaller ones (init), or a dtype that holds them, bfloat16 or float32"
        )
    if any(not output.overflowing and not output.undecided for output in outputs):
        ways.append(
            "rounding hides smaller mistakes: use more elements (dims), over which it averages out; dtype: float32, "
            "which rounds less; larger values (init); or another seed (seed=1)"
        )
    return [f"{_MEANS}, since {way}" for way in ways] + ["expect.weak: NAME accepts it of an output"] * bool(ways)


def _of_sections(record: Record) -> bool:
    sections = record.checks.sections
    return sections is not None and sections.status == "weak"
