"""The programs' results and the oracles in; who is wrong where they differ, in words, out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.checks.compare import difference
from runner.checks.context import Check, Context
from runner.evidence.words import listed
from runner.experiment.model import program_section
from runner.link.target import ProgramRun


def interpreter_is_wrong(context: Context, runs: Sequence[ProgramRun]) -> bool:
    """Whether JAX's programs of `per_device` compute what `graph` says, and only the SPMD interpreter does not."""
    of_per_device = [run for run in runs if program_section(run.program) == "per_device"]
    return context.graph is not None and bool(of_per_device) and all(_is_graph(context, run) for run in of_per_device)


def _is_graph(context: Context, run: ProgramRun) -> bool:
    """Whether a program's results are those of `graph`, within what rounding does to either section."""
    for name in context.experiment.results:
        output = run.outputs[name]
        allowed = context.tolerance("graph", name) + context.tolerance("per_device", name)
        for held in output.held:
            expected = context.expected("graph", name, held.position, held.ranges)
            if difference(held.value, expected, output.dtype, allowed).wrong:
                return False
    return True


INTERPRETER = "JAX computes what graph says; only the SPMD interpreter differs: the interpreter is wrong"


def blame(context: Context, verdicts: Mapping[str, Check], program: str, *, alike: bool) -> str:
    """Who is wrong where the `value` check of a program failed.

    `verdicts` are those of every program that ran, `alike` is whether the two sections say the same.
    """
    outputs = verdicts[program]["outputs"]
    wrong = [name for name, verdict in outputs.items() if verdict["status"] == "failed"]
    comparable = [other for other in verdicts if alike or program_section(other) == program_section(program)]
    right = [other for other in comparable if all(_passed(verdicts[other], name) for name in wrong)]
    others = [other for other in comparable if other not in right]
    of = f" in {listed(wrong)}" if len(outputs) > len(wrong) else ""
    if right:
        alone = f"{program} alone is" if others == [program] else f"{listed(others)} are"
        return f"{listed([*right, 'the oracle'])} agree{of}, {alone} wrong: the compiler"
    if context.graph is not None and context.per_device is not None:
        oracle = "both oracles" if alike else "the oracle of its section"
    else:
        oracle = "the SPMD interpreter" if program_section(program) == "per_device" else "the oracle"
    if len(others) > 1:
        return f"all programs differ from {oracle}{of}: JAX is wrong in what they share, or the oracle is"
    return f"{program} differs from {oracle}{of}, and no other program ran: the compiler, JAX or the oracle is wrong"


def _passed(verdict: Check, name: str) -> bool:
    return verdict["outputs"].get(name, {}).get("status") in ("passed", "weak")
