"""`expect.wrong`: the verdicts on one program in; out the same, with what is known to be wrong told from what is not.

It is as strict as pytest's `xfail(strict=True)`: what is known to be wrong, and is right, fails.
"""

from __future__ import annotations

from collections.abc import Mapping

from runner.checks import value
from runner.checks.context import Check, Context
from runner.experiment.program import Program


def judge(context: Context, program: Program, checks: Mapping[str, Check]) -> dict[str, Check]:
    """The checks of a program: `known` where only outputs failed that are known to be wrong.

    Whether an output is right after all its `value` says: copies may agree, and pinned corners be right, by chance.
    """
    wrong = context.known_wrong(program)
    judged = dict(checks)
    if not wrong:
        return judged
    for name in ("replicas", "values"):
        if judged.get(name, {}).get("status") == "failed":
            failed = {output for output, verdict in judged[name]["outputs"].items() if verdict["status"] == "failed"}
            if failed <= wrong:
                judged[name] = {**judged[name], "status": "known"}
    found = judged["value"]
    outputs = {name: _of_output(context, name, verdict, wrong) for name, verdict in found["outputs"].items()}
    told = {"diagnosis": found["diagnosis"]} if "diagnosis" in found else {}
    judged["value"] = {**value.together(outputs), **told}
    return judged


def _of_output(context: Context, name: str, verdict: Check, wrong: frozenset[str]) -> Check:
    if name not in wrong or verdict["status"] == "not_run":
        return verdict
    if verdict["status"] == "failed":
        return {**verdict, "status": "known"}
    reason = (
        f"it is right with jax {context.jax}, but expect.wrong knows it to be wrong: if that is mended, take it out, "
        f"or name the versions that are wrong ({name}: '<{context.jax}')"
    )
    return {**verdict, "status": "failed", "reason": reason}
