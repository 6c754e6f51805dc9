"""Every experiment with every mutation: what notices it, and is it located? `python benchmarks/mutants.py [NAME …]`

Prints for each experiment how many mutants were noticed, refused and equivalent and which survived; and for a sample of
those with wrong values, how many the diagnosis located at the right line, at another one, or not at all.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax

from runner.checks import diagnosis, oracles
from runner.checks.context import Context
from runner.checks.mutants import Mutant, mutants
from runner.reference import interpret
from runner.reference.arithmetic import Arithmetic
from tests.command import REFUSED
from tests.harness import consulted, shipped


def main() -> None:
    """Mutate the named experiments, or all, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--diagnosed", type=int, default=10, help="how many mutants of each experiment are diagnosed")
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parents[1] / "conf")
    parser.add_argument("--verbose", action="store_true", help="say what was not named at the right line")
    given = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    files = (given.folder / "experiment").glob("*.yaml")
    names = given.names or sorted(file.stem for file in files if file.stem not in REFUSED)
    outcomes: Counter[str] = Counter()
    named: Counter[str] = Counter()
    for name in names:
        start = time.perf_counter()
        experiment, released = shipped(name, given.folder)
        with tempfile.TemporaryDirectory() as scratch:
            context = consulted(experiment, Path(scratch), released)
        mutated = mutants(context)
        here = Counter(mutant.outcome for mutant in mutated)
        outcomes += here
        print(f"{name:48} {dict(here)}  {time.perf_counter() - start:.1f} s", flush=True)
        for mutant in mutated:
            if mutant.outcome == "survived":
                print(f"    survived: {mutant.edit.line}: {mutant.edit.before} → {mutant.edit.after}")
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
    sys.exit(bool(outcomes["survived"]))


def diagnosed(context: Context, mutant: Mutant) -> tuple[str, str]:
    """Return whether the diagnosis locates a mutant's line (`right`, `elsewhere`, `not found`), and its sentence."""
    assert context.per_device is not None
    experiment = replace(context.experiment, per_device=mutant.edit.statements)
    exact = Arithmetic(context.floats.get("per_device", {}))
    values = interpret(experiment, "per_device", context.arrays, keep=experiment.results, arithmetic=exact).values
    changed = replace(context, experiment=experiment, per_device=replace(context.per_device, values=values))
    if context.uncast:
        changed.uncast = {**context.uncast, "per_device": oracles.uncast(changed, "per_device")}
    sentences = diagnosis.diagnose(changed)
    sentence = sentences[0] if sentences else "nothing"
    if not sentences or sentence.startswith("no single edit"):
        return "not found", sentence
    lines = re.findall(r"per_device\.([\w.]+):", sentence)
    return "right" if mutant.edit.line in lines else "elsewhere", sentence


if __name__ == "__main__":
    main()
