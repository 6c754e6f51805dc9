"""`derivation`: compares the lines of `derived`, interpreted device by device, with the graph, in float64."""

from __future__ import annotations

from dataclasses import replace

from runner.checks import oracles
from runner.checks.context import Context
from runner.checks.kind import CheckKind, Needs
from runner.checks.kinds import sections
from runner.checks.reference import interpret
from runner.checks.reference.arithmetic import Arithmetic, Floats
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.reports.record.verdicts import Judged, NotRun


def check(context: Context, derived: Experiment, floats: Floats) -> Judged | NotRun:
    """Whether the derived lines compute what the graph says, independent of what JAX makes of either.

    `floats` are the dtypes of their expressions.
    """
    absent = context.experiment.target.topology
    if absent is not None:
        return NotRun(reason=absent.not_here)
    if not context.experiment.reads_gradients:
        # Without an oracle of the gradients, the lines that read them have no reference.
        derived = derived.forward
    # The derived lines are manual over all axes.
    context = replace(context, experiment=derived)
    graph = oracles.uncast(context, "graph")
    arithmetic = Arithmetic(floats, casts=False)
    lines = interpret(derived, "per_device", context.arrays, keep=derived.results, arithmetic=arithmetic).values
    wrong = [name for name in derived.results if not sections.agree(context, name, graph[name], lines[name])]
    if wrong and context.graph is not None:
        # Where terms cancel only rounding is left, which bounds the difference, and near a tie it decides.
        lost = oracles.in_float64(context, "graph", casts=False)
        wrong = [
            name for name in wrong
            if not sections.agree(context, name, graph[name], lines[name], lost=lost[name])
        ]  # fmt: skip
    if wrong:
        paths = context.experiment.imports.paths
        named = " and ".join(paths.get(name, name) for name in wrong)
        return Judged(status="failed", reason=f"derived computes something else than graph in {named}")
    return Judged(status="passed")


KINDS = (
    CheckKind(
        "derivation", Judged | NotRun, Needs.LINES, lambda case: check(case.context, *case.derived),
        order=80, applies=lambda _, program: program is Program.DERIVED,
        says="for `derived`: its lines, interpreted, equal `graph` in float64",
    ),
)  # fmt: skip
