"""Every experiment with every mutation: what notices it, and is it located? `python benchmarks/mutants.py [NAME …]`

Prints for each experiment how many mutants were noticed, refused and equivalent and which survived; and for a sample of
those with wrong values, how many the diagnosis located at the right line, at another one, or not at all. `--dtypes`
gives the floats of every array another dtype, or integers in their place; what JAX or NumPy refuses then is left out.
`--compiled N` makes only a few mutants of each experiment, compiles N of them, each once, and prints what becomes of
them with each value of `verify`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.fuzz import judge
from benchmarks.right_programs import compiled_once, typed_once
from runner.base import dtypes
from runner.base.faults import InvalidExperiment
from runner.checks import oracles
from runner.checks.context import Context
from runner.checks.diagnosis import mutants as made
from runner.checks.diagnosis import search
from runner.checks.diagnosis.mutants import Mutant, broken, mutants
from runner.checks.edits import changed_parts
from runner.checks.edits.applied import ChangedGraphs
from runner.checks.edits.section import Edit, Edits
from runner.checks.reference import interpret
from runner.checks.reference.arithmetic import Arithmetic
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.worker import job
from tests.command import REFUSED
from tests.harness import consulted, shipped

DEVICES = 16
VERIFY = ("rounding", "auto", "twin")


def main() -> None:
    """Mutate the named experiments, or all, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--diagnosed", type=int, default=10, help="how many mutants of each experiment are diagnosed")
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parents[1] / "conf")
    parser.add_argument("--verbose", action="store_true", help="say what was not named at the right line")
    parser.add_argument("--dtypes", nargs="*", default=[""], help="dtypes of the arrays in place of the file's")
    parser.add_argument(
        "--compiled", type=int, help="how many of each are compiled in place of shard_map, and verified"
    )
    given = parser.parse_args()
    judge.prepare(optimized=False, devices=DEVICES)
    files = (given.folder / "experiment").glob("*.yaml")
    names = given.names or sorted(file.stem for file in files if file.stem not in REFUSED)
    outcomes: Counter[str] = Counter()
    named: Counter[str] = Counter()
    verified: Counter[tuple[str, ...]] = Counter()
    for name, dtype in itertools.product(names, given.dtypes):
        start = time.perf_counter()
        experiment, released = shipped(name, given.folder)
        try:
            experiment, released = (experiment, released) if not dtype else in_dtype(experiment, dtype)
            with tempfile.TemporaryDirectory() as scratch:
                context = consulted(experiment, Path(scratch), released)
        except InvalidExperiment as refusal:
            print(f"{name:40} {dtype:15} left out: {str(refusal).splitlines()[0]}", flush=True)
            continue
        if given.compiled and broken(experiment) != "per_device":
            continue
        with sampled(name + dtype, given.compiled):
            mutated = mutants(context)
        here = Counter(mutant.outcome for mutant in mutated)
        outcomes += here
        print(f"{name:40} {dtype:15} {dict(here)}  {time.perf_counter() - start:.1f} s", flush=True)
        for mutant in mutated:
            if mutant.outcome == "survived":
                print(f"    survived: {mutant.edit.line}: {mutant.edit.before} → {mutant.edit.after}")
        if given.compiled:
            judged = [mutant for mutant in mutated if mutant.outcome in ("noticed", "equivalent")]
            for mutant in random.Random(name).sample(judged, min(given.compiled, len(judged))):
                with compiled_once(), typed_once():
                    statuses = (mutant.outcome, *(compiled(experiment, mutant, verify) for verify in VERIFY))
                verified[statuses] += 1
                print(f"    {mutant.edit.line}: {mutant.edit.before} → {mutant.edit.after}: {statuses}", flush=True)
            judge.forget()
            continue
        wrong = [mutant for mutant in mutated if "sections" in mutant.noticed]
        for mutant in random.Random(name).sample(wrong, min(given.diagnosed, len(wrong))):
            start = time.perf_counter()
            verdict, sentence = diagnosed(context, mutant)
            named[verdict] += 1
            if given.verbose and verdict != "right":
                took = time.perf_counter() - start
                print(f"    {verdict} ({took:.1f} s): {mutant.edit.line}: {mutant.edit.before} → {mutant.edit.after}")
                print(f"        {sentence}", flush=True)
    print(f"{sum(outcomes.values())} mutants: {dict(outcomes)}")
    print(f"{sum(named.values())} diagnosed: {dict(named)}")
    for statuses, count in sorted(verified.items()):
        print(f"{count} {statuses[0]} ones, compiled: {dict(zip(VERIFY, statuses[1:], strict=True))}")
    sys.exit(bool(outcomes["survived"]))


@contextlib.contextmanager
def sampled(seed: str, count: int | None) -> Iterator[None]:
    """Let few mutants be made: about three for each of `count`, since some are refused; all if that is None."""

    def few(edits: Edits) -> list[Edit]:
        every = list(changed_parts.changing(edits))
        return every if count is None else random.Random(seed).sample(every, min(3 * count, len(every)))

    with mock.patch.object(made, "changing", few):
        yield


def compiled(experiment: Experiment, mutant: Mutant, verify: str) -> str:
    """Return the status of `shard_map` with the mutant's lines, compiled, beside the oracle of the file as it is.

    The outcome is that of its checks; the words of JAX's refusal if there is one.
    """
    write = job.WRITERS[Program.SHARD_MAP]
    lines = ChangedGraphs(experiment, "per_device").of(mutant.edit)

    def mutated(own: Experiment, *given: Any) -> str:
        return write(replace(own, per_device=lines), *given)

    config = {**experiment.definition, "verify": verify, "program": ["shard_map"], "check_vma": False}
    config["expect"] = {}
    with mock.patch.dict(job.WRITERS, {Program.SHARD_MAP: mutated}):
        judged = judge.judge(config)
    return judged["status"]


def in_dtype(experiment: Experiment, dtype: str) -> tuple[Experiment, Mapping[str, str]]:
    """Return an experiment with the floats of its arrays in another dtype, and why its pinned values do not apply."""
    definition = experiment.definition
    arrays = {
        array.name: {
            **definition["arrays"][array.name],
            "dtype": dtype,
            **({"init": "integers(-8, 8)"} if dtypes.dtype(dtype).exact else {}),
        }
        for array in experiment.arrays
        if array.name in definition["arrays"] and not dtypes.dtype(array.dtype).exact
    }
    pinned = {**(definition.get("expect") or {}), "values": {}}
    changed = experiment.at(arrays={**definition["arrays"], **arrays}, expect=pinned)
    return changed, {}


def diagnosed(context: Context, mutant: Mutant) -> tuple[str, str]:
    """Return whether the diagnosis locates a mutant's line (`right`, `elsewhere`, `not found`), and its sentence."""
    assert context.per_device is not None
    lines = ChangedGraphs(context.experiment, "per_device").of(mutant.edit)
    experiment = replace(context.experiment, per_device=lines)
    exact = Arithmetic(context.floats.get("per_device", {}))
    values = interpret(experiment, "per_device", context.arrays, keep=experiment.results, arithmetic=exact).values
    changed = replace(context, experiment=experiment, per_device=replace(context.per_device, values=values))
    if context.uncast:
        changed.uncast = {**context.uncast, "per_device": oracles.uncast(changed, "per_device")}
    sentences = search.diagnose(changed)
    sentence = sentences[0] if sentences else "nothing"
    if not sentences or sentence.startswith("no single edit"):
        return "not found", sentence
    lines = re.findall(r"per_device\.([\w.]+):", sentence)
    return "right" if mutant.edit.line in lines else "elsewhere", sentence


if __name__ == "__main__":
    main()
