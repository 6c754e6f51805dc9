"""Random graphs with sizes that the mesh does not divide, and layouts left open: does the search or a program raise?

`python -m benchmarks.undivided [--count 300] [--first 0] [--seed 0] [--run 10]`, from the root of the repository.

All arrays, outputs and constraints of a case of `benchmarks.fuzz.cases` have `spec: auto`. The layouts are searched for
each, and each `--run`th is then compiled as `auto`, `constraint` and `derived` with the layouts found, and checked.
Prints what was raised or not passed, and the counts; the exit status is 1 if there was something.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from typing import Any

import jax

from benchmarks.fuzz import judge
from benchmarks.fuzz.cases import case
from runner.base.faults import InvalidExperiment, key_text
from runner.experiment import open_layouts
from runner.experiment.reader import read
from runner.programs.planning.plan import NoPlan, Wanted, plan
from runner.worker.derive import value_types
from tests.harness import configured

SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12)
MESHES = ((2,), (3,), (4,), (8,), (2, 2), (2, 3), (2, 4), (2, 2, 2))
SECONDS = 2.0
"""The time of a search."""


def opened(seed: int, number: int) -> dict[str, Any]:
    """Return the configuration of a case with all layouts left open."""
    config, _ = case(seed, number, meshes=MESHES, whole_only=True, sizes=SIZES)
    arrays = {name: {**array, "spec": "auto"} for name, array in config["arrays"].items()}
    parts = {part: dict.fromkeys(config.get(part) or {}, "auto") for part in ("outputs", "constraints")}
    programs = ["auto", "constraint", "derived"]
    return {**config, **parts, "arrays": arrays, "program": programs, "plan": {"seconds": SECONDS}}


def searched(config: dict[str, Any]) -> tuple[str, str]:
    """Search the layouts of a case; return what came of it, and a traceback if something was raised."""
    free = tuple(key_text(key) for key in open_layouts.keys(config))
    try:
        whole = read(open_layouts.without(config))
        with configured(whole):
            types = value_types(whole.alone("graph"))
        best = plan(whole, types, Wanted(open_layouts.read_plan(config).least, free, None, SECONDS))
    except (NoPlan, InvalidExperiment) as refusal:
        return f"refused: {type(refusal).__name__}", str(refusal)
    except Exception:
        return "raised", traceback.format_exc()
    layouts = {key.split(".")[1]: spec for key, spec in best.best.layouts.items() if key.startswith("arrays.")}
    for name, spec in layouts.items():
        if not whole.mesh.divides(whole.array(name).shape, spec):
            return "raised", f"{name}{list(whole.array(name).shape)} is laid out as {spec}"
    return "found", ""


def main() -> None:
    """Search, and print what was raised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=int, default=10, help="run each case whose number this divides; 0: none")
    given = parser.parse_args()
    judge.prepare(optimized=False)
    counts: Counter[str] = Counter()
    start = time.process_time()
    for number in range(given.first, given.first + given.count):
        config = opened(given.seed, number)
        outcome, words = searched(config)
        counts[outcome] += 1
        if outcome != "found":
            print(number, outcome, config["graph"], words, flush=True)
        if given.run and number % given.run == 0:
            judged = judge.judge(config)
            lacking = judged["found"] and all(kind == "refused" for kind, *_ in judged["found"])
            counts[f"run: {'not implemented' if lacking else judged['status']}"] += 1
            if judged["status"] != "passed":
                print(number, judged["status"], judged.get("error"), judged["found"], flush=True)
            judge.forget()
    print(f"jax {jax.__version__}: {dict(counts)}; {time.process_time() - start:.0f} s of processor time")
    sys.exit(bool(counts["raised"] + counts["run: failed"] + counts["run: error"] + counts["run: bug"]))


if __name__ == "__main__":
    main()
