"""`replicas`: copies of one shard on different devices are bitwise equal."""

from __future__ import annotations

from runner.checks.context import Check, Context
from runner.evidence.words import on_devices
from runner.link.target import Held, ProgramRun


def check(context: Context, run: ProgramRun) -> Check:
    """Compare the copies of every shard of every output."""
    copies = 0
    wrong, outputs = [], {}
    for name, output in run.outputs.items():
        before = len(wrong)
        groups: dict[tuple[tuple[int, int], ...], list[Held]] = {}
        for held in output.held:
            groups.setdefault(held.ranges, []).append(held)
        for ranges, members in groups.items():
            copies += len(members) - 1
            differing = [held.device for held in members if held.copy != members[0].copy]
            if differing:
                where = ", ".join(f"{a}:{b}" for a, b in ranges)
                wrong.append(
                    f"{name}[{where}] on {on_devices(sorted(differing))} differs from device {members[0].device}"
                )
        outputs[name] = {"status": "failed" if len(wrong) > before else "passed"}
    if wrong:
        reason = "; ".join(wrong[:4])
        return {"status": "failed", "reason": reason, "wrong": len(wrong), "copies": copies, "outputs": outputs}
    return {"status": "passed", "copies": copies}
