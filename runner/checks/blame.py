"""The programs' results and the oracles in; who is wrong where they differ, in words, out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from runner import dtypes
from runner.checks import value
from runner.checks.compare import difference
from runner.checks.context import Context
from runner.experiment.program import Program
from runner.link.target import ProgramRun
from runner.record.verdicts import ValueOutput, ValueVerdict
from runner.words import listed


def interpreter_is_wrong(context: Context, runs: Sequence[ProgramRun]) -> bool:
    """Whether JAX's programs of `per_device` compute what `graph` says, and only the SPMD interpreter does not."""
    of_per_device = [run for run in runs if run.program.section == "per_device"]
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


def unblamed(
    context: Context, values: Mapping[Program, ValueVerdict], runs: Sequence[ProgramRun], *, alike: bool
) -> dict[Program, ValueVerdict]:
    """The verdicts, weak where programs agree, and differ from the oracle in nothing but undecided elements.

    Then the flips that were tried are not all that there are, and nobody is seen to be wrong.
    """
    judged = dict(values)
    for run in runs:
        verdict = values.get(run.program)
        others = [o for o in runs if o is not run and (alike or o.program.section == run.program.section)]
        if verdict is None or verdict.status != "failed" or not others:
            continue
        outputs = dict(verdict.outputs)
        for name, output in verdict.outputs.items():
            if isinstance(output, ValueOutput) and _only_undecided(output) and _same(context, name, run, others):
                reason = f"{output.reason}, but {listed([run.program, *(o.program for o in others)])} agree in them"
                outputs[name] = replace(output, status="weak", reason=reason)
        judged[run.program] = value.together(outputs, verdict.diagnosis)
    return judged


def _only_undecided(output: ValueOutput) -> bool:
    """Whether an output failed for no other reason than elements that hang on decisions."""
    outside = any(not measure.least <= measure.found <= measure.most for measure in output.whole.values())
    return output.status == "failed" and not output.wrong and output.undecided is not None and not outside


def _same(context: Context, name: str, run: ProgramRun, others: Sequence[ProgramRun]) -> bool:
    """Whether programs give the same, undecided elements included."""
    mine, section = run.outputs[name], context.knows(run.program, name)
    if section is None:
        return False
    allowed = context.tolerance(section, name)
    return all(
        not difference(part, other.outputs[name].block(ranges), mine.dtype, allowed + allowed).wrong
        for other in others
        for ranges, part in mine.parts.items()
    )


def blame(context: Context, verdicts: Mapping[Program, ValueVerdict], program: Program, *, alike: bool) -> str:
    """Who is wrong where the `value` check of a program failed.

    `verdicts` are those of every program that ran, `alike` is whether the two sections say the same.
    """
    outputs = verdicts[program].outputs
    wrong = [name for name, verdict in outputs.items() if verdict.status == "failed"]
    comparable = [other for other in verdicts if alike or other.section == program.section]
    right = [other for other in comparable if all(_passed(verdicts[other], name) for name in wrong)]
    others = [other for other in comparable if other not in right]
    paths = context.experiment.imports.paths
    of = f" in {listed([paths.get(name, name) for name in wrong])}" if len(outputs) > len(wrong) else ""
    if right:
        agree, alone = f"{listed([*right, 'the oracle'])} agree{of}", others == [program]
        if any(_beyond_rounding(context, other, name, verdicts[other]) for other in others for name in wrong):
            return f"{agree}, {program + ' alone is' if alone else listed(others) + ' are'} wrong: the compiler"
        differ = f"{program} alone differs" if alone else f"{listed(others)} differ"
        return f"{agree}, {differ} by little: its rounding is more than was measured, or the compiler is wrong"
    if context.graph is not None and context.per_device is not None:
        oracle = "both oracles" if alike else "the oracle of its section"
    else:
        oracle = "the SPMD interpreter" if program.section == "per_device" else "the oracle"
    if len(others) > 1:
        return f"all programs differ from {oracle}{of}: JAX is wrong in what they share, or the oracle is"
    return f"{program} differs from {oracle}{of}, and no other program ran: the compiler, JAX or the oracle is wrong"


FAR = 100.0
"""So many times what is allowed no order of operations explains.

What is allowed is made of the largest error of a few orders, and of n operations the worst order's error is about √n
times that of a usual one: this many times, of 10,000 operations.
"""

CLEAR = 4.0
"""So many times what is allowed are no lucky draw; with half of the digits gone, no rounding either."""


def _beyond_rounding(context: Context, program: Program, name: str, verdict: ValueVerdict) -> bool:
    """Whether an output is further off than rounding in another order may carry it.

    Some error is more than `FAR` times what is allowed, or more than `CLEAR` times, and than √eps of the output's root
    mean square: half of its digits.
    """
    output, section = verdict.outputs.get(name), context.knows(program, name)
    if not isinstance(output, ValueOutput) or output.status != "failed" or section is None:
        return False
    kind, error = dtypes.dtype(context.outputs[name][1]), output.max_abs_error
    if output.wrong and (kind.exact or not math.isfinite(error)):
        return True
    expected = np.abs(context.whole(section, name, context.oracle(section).values[name]))
    expected = expected[np.isfinite(expected)]
    root = float(np.sqrt(np.mean(expected**2))) if expected.size else 0.0
    largest = float(np.max(expected, initial=0.0))
    off = [(_times(error, root), _times(error, output.atol + output.rtol * largest))] if output.wrong else []
    for measure in output.whole.values():
        bound = measure.most if measure.found > 0 else measure.least
        off.append((abs(measure.found), _times(measure.found, bound)))
    return any(times > FAR or (times > CLEAR and share > math.sqrt(kind.eps)) for share, times in off)


def _times(error: float, bound: float) -> float:
    return error / bound if bound else math.inf if error else 0.0


def _passed(verdict: ValueVerdict, name: str) -> bool:
    output = verdict.outputs.get(name)
    return output is not None and output.status in ("passed", "weak")
