"""`replicas`: checks that the copies of a shard on different devices are bitwise equal."""

from __future__ import annotations

from dataclasses import field

from runner.base import dtypes
from runner.base.lazy import dataclass
from runner.base.words import on_devices
from runner.checks.compare import difference
from runner.checks.context import Context
from runner.checks.kind import CheckKind, Needs, excused_by_outputs
from runner.link.target import DeviceShard, ProgramRun
from runner.reports.record.verdicts import Judged, NotRun, OutputVerdict


@dataclass(frozen=True, kw_only=True)
class ReplicasVerdict(Judged):
    """`replicas`: how many copies were compared, how many are `wrong`, and then of which outputs."""

    copies: int
    wrong: int = 0
    outputs: dict[str, OutputVerdict] = field(default_factory=dict[str, OutputVerdict])


def check(context: Context, run: ProgramRun) -> ReplicasVerdict:
    """Compare the copies of every shard of every output."""
    copies = 0
    wrong: list[str] = []
    by_rounding = True
    outputs: dict[str, OutputVerdict] = {}
    for name, output in run.outputs.items():
        before = len(wrong)
        groups: dict[tuple[tuple[int, int], ...], list[DeviceShard]] = {}
        for held in output.held:
            groups.setdefault(held.ranges, []).append(held)
        for ranges, members in groups.items():
            copies += len(members) - 1
            differing = [held.device for held in members if held.copy != members[0].copy]
            if differing:
                by_rounding = by_rounding and all(_near(context, run, name, members[0], held) for held in members)
                where = ", ".join(f"{a}:{b}" for a, b in ranges)
                wrong.append(
                    f"{name}[{where}] on {on_devices(sorted(differing))} differs from device {members[0].device}"
                )
        outputs[name] = OutputVerdict(status="failed" if len(wrong) > before else "passed")
    if wrong:
        reason = "; ".join(wrong[:4]) + (_BY_ROUNDING if by_rounding else "")
        return ReplicasVerdict(status="failed", reason=reason, copies=copies, wrong=len(wrong), outputs=outputs)
    return ReplicasVerdict(status="passed", copies=copies)


_BY_ROUNDING = (
    ": by rounding alone, as where each device adds in an order of its own. JAX takes the copies for one value; let "
    "one device's be everyone's (psum, all_gather), or give the output the axis"
)


def _near(context: Context, run: ProgramRun, name: str, first: DeviceShard, copy: DeviceShard) -> bool:
    """Whether two copies are as near to each other as results that are right."""
    section, dtype = context.knows(run.program, name), run.outputs[name].dtype
    if section is None or dtypes.dtype(dtype).exact:
        return False
    allowed = context.tolerance(section, name)
    return not difference(copy.value, first.value, dtype, allowed + allowed).wrong


KINDS = (
    CheckKind(
        "replicas", ReplicasVerdict | NotRun, Needs.VALUES, lambda case: check(case.context, case.run),
        order=40, excused=excused_by_outputs, of_mutants=True,
        says="the copies of a shard on several devices are bitwise equal",
    ),
)  # fmt: skip
