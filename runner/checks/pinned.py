"""`values`: the numbers that the experiment pins, as a document printed them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runner import dtypes
from runner.checks.compare import Tolerance, difference
from runner.checks.context import Context
from runner.faults import invalid
from runner.link.target import ProgramRun
from runner.record.verdicts import NotRun, PinnedOutput, PinnedVerdict
from runner.reference import magnitude

_PRINTED_EPS = 16
"""Printed numbers come from other machines, whose transcendental functions differ in the last bits."""


_CHANGES_VALUES = ("dims", "arrays", "functions", "both", "graph", "per_device", "seed")
"""The keys whose override makes an experiment compute something else than its file pins."""


def not_pinned(overrides: Sequence[str]) -> str | None:
    """Why the numbers that the file pins do not bind a run with these overrides, if they do not."""
    keys = [override.lstrip("+~").split("=")[0] for override in overrides]
    if any(key.split(".")[0] == "expect" for key in keys):
        return None
    changed = [key for key in keys if key.split(".")[0] in _CHANGES_VALUES]
    return f"the file pins them for its own {changed[0]}, which the command line overrides" if changed else None


def check(context: Context, run: ProgramRun) -> PinnedVerdict | NotRun:
    """Compare the outputs with the pinned numbers; a smaller pinned block is the leading corner of the output."""
    if context.not_pinned is not None:
        return NotRun(reason=context.not_pinned)
    pinned_here = {name: value for name, value in context.experiment.values.items() if name in run.outputs}
    if not pinned_here:
        of = " and ".join(context.experiment.values)
        return NotRun(reason=f"{run.program} computes no {of}: lines of {run.program.section} stand in its place")
    outputs: dict[str, PinnedOutput] = {}
    wrong: list[str] = []
    largest = 0.0
    for name, value in pinned_here.items():
        pinned = np.asarray(value)
        output = run.outputs[name]
        corner = output.whole()[tuple(slice(0, n) for n in pinned.shape)]
        eps = dtypes.dtype(output.dtype).eps
        allowed = Tolerance(_PRINTED_EPS * eps, _PRINTED_EPS * eps * magnitude([pinned]))
        apart = difference(corner, pinned, output.dtype, allowed)
        largest = max(largest, apart.max_abs)
        outputs[name] = PinnedOutput(
            status="failed" if apart.wrong else "passed",
            compared=list(pinned.shape),
            rtol=allowed.rtol,
            atol=allowed.atol,
        )
        if apart.wrong:
            assert apart.first is not None
            at = tuple(apart.first)
            wrong.append(f"{name}{list(at)} is {corner[at]}, but expect.values pins {pinned[at]}")
    status = "failed" if wrong else "passed"
    return PinnedVerdict(status=status, reason="; ".join(wrong) or None, max_abs_error=largest, outputs=outputs)


def fit(context: Context) -> None:
    """Raise `InvalidExperiment` for a pinned block that cannot lie in its output."""
    if context.not_pinned is not None:
        return
    for name, value in context.experiment.values.items():
        pinned, shape = np.shape(value), context.outputs[name][0]
        if len(pinned) != len(shape) or any(p > n for p, n in zip(pinned, shape, strict=True)):
            message = f"the pinned values have shape {list(pinned)}, but '{name}' has shape {list(shape)}"
            raise invalid(("expect", "values", name), message)
