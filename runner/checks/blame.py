"""Says which of the programs and oracles is wrong where their results differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from runner.base import dtypes
from runner.base.words import listed
from runner.checks.compare import difference
from runner.checks.context import Context
from runner.checks.kinds import value
from runner.experiment.program import Program
from runner.link.target import ProgramRun
from runner.reports.record.verdicts import OutputVerdict, TwinOutput, ValueOutput, ValueVerdict


def interpreter_is_wrong(context: Context, runs: Sequence[ProgramRun]) -> bool:
    """Whether JAX's programs of `per_device` compute what `graph` says, so that only the SPMD interpreter is wrong."""
    of_per_device = [run for run in runs if run.program.section == "per_device"]
    return context.graph is not None and bool(of_per_device) and all(_is_graph(context, run) for run in of_per_device)


def _is_graph(context: Context, run: ProgramRun) -> bool:
    """Whether a program's results agree with `graph` within the rounding of both sections."""
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
    """The `value` verdicts, made weak where programs agree and differ from the oracle only in undecided elements.

    Not all possible decisions were tried in that case, so no program is shown to be wrong.
    """
    judged = dict(values)
    for run in runs:
        verdict = values.get(run.program)
        peers = [o for o in runs if o is not run and (alike or o.program.section == run.program.section)]
        if verdict is None or verdict.status != "failed" or not peers:
            continue
        outputs = dict(verdict.outputs)
        for name, output in verdict.outputs.items():
            if isinstance(output, ValueOutput) and _only_undecided(output) and _same(context, name, run, peers):
                reason = f"{output.reason}, but {listed([run.program, *(o.program for o in peers)])} agree on them"
                outputs[name] = replace(output, status="weak", reason=reason)
        judged[run.program] = value.revised(verdict, outputs)
    return judged


def _only_undecided(output: ValueOutput) -> bool:
    """Whether an output failed only because of elements that depend on decisions."""
    outside = any(not measure.least <= measure.found <= measure.most for measure in output.whole.values())
    return output.status == "failed" and not output.wrong and output.undecided is not None and not outside


def _same(context: Context, name: str, run: ProgramRun, peers: Sequence[ProgramRun]) -> bool:
    """Whether the programs give the same values, in undecided elements too."""
    output, section = run.outputs[name], context.knows(run.program, name)
    if section is None:
        return False
    allowed = context.tolerance(section, name)
    return all(
        not difference(part, peer.outputs[name].block(ranges), output.dtype, allowed + allowed).wrong
        for peer in peers
        for ranges, part in output.parts.items()
    )


def blame(
    context: Context,
    verdicts: Mapping[Program, ValueVerdict],
    program: Program,
    *,
    alike: bool,
    unsharded: Callable[[Sequence[str]], bool | None] = lambda _: None,
) -> str:
    """Which side is wrong where the `value` check of a program failed, in words.

    `verdicts` has the `value` verdict of every program that ran; `alike` is whether the two sections compute the same.
    `unsharded` says of some outputs whether the graph in its own dtypes, unsharded on one device, agrees with the
    oracle; None if it did not run.
    """
    outputs = verdicts[program].outputs
    wrong = [name for name, verdict in outputs.items() if verdict.status == "failed"]
    comparable = [peer for peer in verdicts if alike or peer.section == program.section]
    right = [peer for peer in comparable if all(_passed(verdicts[peer], name) for name in wrong)]
    failing = [peer for peer in comparable if peer not in right]
    paths = context.experiment.imports.paths
    of = f" in {listed([paths.get(name, name) for name in wrong])}" if len(outputs) > len(wrong) else ""
    twins = {twin.status for name in wrong if (twin := _twin(outputs[name])) is not None}
    referred, written = context.experiment.imports.referred, context.experiment.imports.written
    if program in context.rounded:
        return f"{program} differs{of}, in its own dtypes alone: its rounding makes values infinite or NaN"
    if (referred or written) and {*right} <= {Program.DERIVED} and program is not Program.DERIVED:
        # What is derived is written from the references.
        differ = f"{listed(failing)} {'differ' if len(failing) > 1 else 'differs'}"
        of_functions = f"the reference{'s' if len(referred) > 1 else ''}"
        of_functions += f" of {listed(referred)}{of}" if referred else of
        which = "one of the functions" if len(referred) > 1 else "the function"
        if twins == {"passed"}:
            return f"{differ} from {of_functions}, in its own dtypes alone: the compiler is wrong there"
        return f"{differ} from {of_functions}: {which} computes something else, or the compiler or JAX is wrong"
    if right:
        agree, alone = f"{listed([*right, 'the oracle'])} agree{of}", failing == [program]
        beyond = any(_beyond_rounding(context, peer, name, verdicts[peer]) for peer in failing for name in wrong)
        if beyond or "failed" in twins:
            return f"{agree}, {program + ' alone is' if alone else listed(failing) + ' are'} wrong: the compiler"
        differ = f"{program} alone differs" if alone else f"{listed(failing)} differ"
        return f"{agree}, {differ} by little: its rounding is more than was measured, or the compiler is wrong"
    if context.graph is not None and context.per_device is not None:
        oracle = "both oracles" if alike else "the oracle of its section"
    else:
        oracle = "the SPMD interpreter" if program.section == "per_device" else "the oracle"
    several = len(failing) > 1
    differ = f"all programs differ from {oracle}{of}" if several else f"{program} differs from {oracle}{of}"
    if twins == {"passed"}:
        return f"{differ}, in {'their' if several else 'its'} own dtypes alone: the compiler is wrong there"
    # Only what is written from a graph has an unsharded program.
    agrees = unsharded(wrong) if context.graph is not None and (alike or program.section == "graph") else None
    differ += ", in float64 too" if "failed" in twins else ""
    if agrees:
        sides = f"{differ}, while the graph unsharded on one device agrees with it"
        beyond = any(_beyond_rounding(context, peer, name, verdicts[peer]) for peer in failing for name in wrong)
        if beyond or "failed" in twins:
            return f"{sides}: the compiler is wrong, or JAX, in what the layouts make of it"
        return f"{sides}: the sharded rounding is more than was measured, or the compiler is wrong"
    differ += ", and so does the graph unsharded on one device" if agrees is False else ""
    if "failed" in twins:
        if several:
            return f"{differ}: JAX is wrong in what they share, or the oracle is"
        alone = "" if agrees is False else ", and no other program ran"
        return f"{differ}{alone}: the compiler, JAX or the oracle is wrong"
    return (
        f"{differ}: nothing shows yet whether that is rounding, or a mistake of the compiler, of JAX or of the oracle"
    )


def agrees(context: Context, unsharded: ProgramRun, names: Sequence[str]) -> bool | None:
    """Whether some outputs of the unsharded graph agree with its oracle; None if that has one of them not."""
    assert context.graph is not None
    if not {*names} <= context.graph.values.keys() & unsharded.outputs.keys():
        return None
    for name in names:
        output = unsharded.outputs[name]
        allowed = context.tolerance("graph", name)
        for ranges, part in output.parts.items():
            beside = context.beside("graph", name, 0, ranges)
            if difference(part, context.expected("graph", name, 0, ranges), output.dtype, allowed, beside).wrong:
                return False
    return True


def _twin(output: ValueOutput | OutputVerdict) -> TwinOutput | None:
    return output.twin if isinstance(output, ValueOutput) else None


FAR = 100.0
"""An error this many times the tolerance is not explained by any order of operations.

The tolerance is made of the largest error of a few orders. For n operations the worst order's error is about √n times a
usual one, so this covers 10,000 operations.
"""

CLEAR = 4.0
"""An error this many times the tolerance, and larger than half of the digits, is not explained by rounding."""


def _beyond_rounding(context: Context, program: Program, name: str, verdict: ValueVerdict) -> bool:
    """Whether an output's error is larger than any rounding can explain.

    That is an error of more than `FAR` times the tolerance, or of more than `CLEAR` times the tolerance and more than
    √eps of the output's root mean square (half of its digits).
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
