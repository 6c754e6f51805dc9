"""`values`: compares the outputs with the numbers that the experiment pins, as a document printed them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from runner.base import dtypes
from runner.base.faults import invalid
from runner.base.lazy import dataclass
from runner.checks.compare import Tolerance, difference
from runner.checks.context import Context
from runner.checks.kind import CheckKind, Needs, excused_by_outputs
from runner.checks.reference import magnitude
from runner.link.target import ProgramRun
from runner.reports.record.verdicts import Judged, NotRun, OutputVerdict


@dataclass(frozen=True, kw_only=True)
class PinnedOutput(OutputVerdict):
    """The verdict of `values` on one output; `compared` is the shape of the pinned corner."""

    compared: list[int]
    rtol: float
    atol: float


@dataclass(frozen=True, kw_only=True)
class PinnedVerdict(Judged):
    """`values`: the numbers that the file pins."""

    max_abs_error: float
    outputs: dict[str, PinnedOutput]


_PRINTED_EPS = 16
"""The precision of printed numbers: other machines' transcendental functions differ in the last bits."""


_CHANGES_VALUES = ("dims", "arrays", "functions", "both", "graph", "per_device", "seed")
"""The keys whose override changes what an experiment computes, so that its pinned numbers no longer apply."""


def released(outputs: Iterable[str], overrides: Sequence[str]) -> dict[str, str]:
    """The outputs whose pinned numbers do not apply to a run with these overrides, and why.

    Numbers that the overrides pin themselves do apply.
    """
    keys = [key for override in overrides for key in _keys(*override.lstrip("+~").partition("=")[::2])]
    changed = [key for key in keys if key[0] in _CHANGES_VALUES]
    if not changed:
        return {}
    reason = f"the file pins them for its own {'.'.join(changed[0])}, which the command line overrides"
    named = {key[2] for key in keys if key[:2] == ("expect", "values") and len(key) > 2}
    return {name: reason for name in outputs if name not in named}


def _keys(key: str, value: str) -> Iterator[tuple[str, ...]]:
    """The keys that an override sets: `expect={values:{C:[1]}}` sets `expect.values.C`."""
    parts, text = tuple(key.split(".")), value.strip()
    # Only pinned values may be given as a mapping; other keys are looked at as a whole.
    if parts[0] != "expect" or len(parts) > 2 or not text.startswith("{"):
        yield parts
        return
    for item in _items(text[1:-1]):
        name, _, inner = item.partition(":")
        yield from _keys(".".join((*parts, name.strip().strip("'\""))), inner)


def _items(text: str) -> Iterator[str]:
    """The items of a list: its text, split at commas outside of brackets and quotes."""
    part, depth, quote = "", 0, ""
    for character in text:
        quote = "" if character == quote else quote or (character if character in "'\"" else "")
        depth += 0 if quote else (character in "[{(") - (character in "]})")
        if character == "," and not depth and not quote:
            yield part
            part = ""
        else:
            part += character
    if part.strip():
        yield part


def check(context: Context, run: ProgramRun) -> PinnedVerdict | NotRun:
    """Compare the outputs with the pinned numbers; a smaller pinned block is the leading corner of the output."""
    free = {name: reason for name, reason in context.released.items() if name in context.experiment.values}
    if len(free) == len(context.experiment.values) > 0:
        return NotRun(reason=next(iter(free.values())))
    computed = {name: value for name, value in _bound(context).items() if name in run.outputs}
    if not computed:
        of = " and ".join(_bound(context))
        return NotRun(reason=f"{run.program} does not compute {of}: lines of {run.program.section} replace it")
    outputs: dict[str, PinnedOutput] = {}
    wrong: list[str] = []
    largest = 0.0
    for name, value in computed.items():
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
            shown = context.experiment.imports.paths.get(name, name)
            wrong.append(f"{shown}{list(at)} is {corner[at]}, but expect.values pins {pinned[at]}")
    status = "failed" if wrong else "passed"
    note = "; ".join(f"{name} was not compared: {reason}" for name, reason in free.items()) or None
    reason = "; ".join(wrong) or None
    return PinnedVerdict(status=status, reason=reason, note=note, max_abs_error=largest, outputs=outputs)


def _bound(context: Context) -> dict[str, Any]:
    """The pinned numbers that apply to the run."""
    return {name: value for name, value in context.experiment.values.items() if name not in context.released}


def fit(context: Context) -> None:
    """Raise `InvalidExperiment` for a pinned block that is larger than its output."""
    for name, value in _bound(context).items():
        pinned, shape = np.shape(value), context.outputs[name][0]
        if len(pinned) != len(shape) or any(p > n for p, n in zip(pinned, shape, strict=True)):
            message = f"the pinned values have shape {list(pinned)}, but '{name}' has shape {list(shape)}"
            raise invalid(("expect", "values", name), message)


KINDS = (
    CheckKind(
        "values", PinnedVerdict | NotRun, Needs.VALUES, lambda case: check(case.context, case.run),
        order=70, applies=lambda experiment, _: bool(experiment.values), excused=excused_by_outputs, of_mutants=True,
        says="the outputs are the pinned numbers",
        own_dims="the file pins them for its own dims",
    ),
)  # fmt: skip
