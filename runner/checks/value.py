"""`value`: what every device holds, against the oracles, shard by shard."""

from __future__ import annotations

from runner.checks.compare import SAME, Difference, difference
from runner.checks.context import Check, Context
from runner.experiment import program_section
from runner.target import Held, Output, ProgramRun


def check(context: Context, run: ProgramRun) -> Check:
    """Compare every output on every device with each oracle; the worst difference is the check's."""
    found: Check = {"status": "passed", "max_abs_error": 0.0, "max_rel_error": 0.0, "rtol": 0.0, "atol": 0.0}
    per_output = {}
    for name, output in run.outputs.items():
        against = _against(context, name, output, run.program)
        if _failed(against) and context.reconsider(name):
            against = _against(context, name, output, run.program)
        allowed = context.tolerance(name)
        for verdict in against.values():
            found["max_abs_error"] = max(found["max_abs_error"], verdict["max_abs_error"])
            found["max_rel_error"] = max(found["max_rel_error"], verdict["max_rel_error"])
        if _failed(against):
            found["status"] = "failed"
        found["rtol"], found["atol"] = max(found["rtol"], allowed.rtol), max(found["atol"], allowed.atol)
        per_output[name] = {"rtol": allowed.rtol, "atol": allowed.atol, "against": against}
    found["outputs"] = per_output
    nans = sum(a.get("nan", 0) for o in per_output.values() for a in o["against"].values())
    if nans:
        found["note"] = f"the reference has NaN: {nans} comparisons of NaN with NaN count as equal"
    return found


def _failed(against: dict[str, Check]) -> bool:
    return any(verdict["status"] == "failed" for verdict in against.values())


def _against(context: Context, name: str, output: Output, program: str) -> dict[str, Check]:
    """The verdict of each oracle on one output."""
    against = {}
    for oracle in context.oracles(program_section(program), name):
        total, devices = SAME, []
        for held, apart in _differences(context, name, output, oracle):
            total = total.joined(apart)
            if apart.wrong:
                devices.append(held.device)
        against[oracle] = {
            "status": "failed" if total.wrong else "passed",
            "max_abs_error": total.max_abs,
            "max_rel_error": total.max_rel,
            "wrong": total.wrong,
            "of": total.size,
            "devices": devices,
            **({"nan": total.nans} if total.nans else {}),
        }
    return against


def _differences(context: Context, name: str, output: Output, oracle: str) -> list[tuple[Held, Difference]]:
    done: dict[tuple[int, int], Difference] = {}
    differences = []
    for held in output.held:
        expected = context.expected(name, held.position, held.ranges, oracle)
        # Slices of the graph's whole array are new objects: there the range, not the object, is the same.
        key = (held.copy, id(expected) if oracle == "per_device" else hash(held.ranges))
        if key not in done:
            done[key] = difference(held.value, expected, output.dtype, context.tolerance(name))
        differences.append((held, done[key]))
    return differences


def interpreter_agrees(context: Context) -> bool:
    """Whether the two oracles agree on every output on every device."""
    if context.graph is None or context.per_device is None:
        return True
    for name, (_, dtype) in context.outputs.items():
        layout = context.layout(name)
        if len(context.oracles("per_device", name)) < 2:
            continue
        for position in range(context.experiment.mesh.size):
            whole = context.expected(name, position, layout.ranges(position), "graph")
            shard = context.expected(name, position, layout.ranges(position), "per_device")
            if difference(shard, whole, dtype, context.tolerance(name)).wrong:
                return False
    return True
