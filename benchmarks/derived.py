"""Random graphs, derived, interpreted and compared with the graph: `python -m benchmarks.derived [--count 2000]`

Three to eight lines of the whole language on meshes of one to three axes of sizes 1 to 4, under random specs. Nothing
is compiled or run: JAX only evaluates abstractly and lowers for Shardy's plan. The folder (`--out`) holds
`cases.jsonl`, one line per case, from which a later call continues, and the shrunk YAML of each wrong case:
`python -m runner derive --config-dir FOLDER +experiment=wrong_I`. Case I of seed S is always the same under one version
of JAX. The exit status is 1 if a case was wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import yaml

from benchmarks.fuzz import cases
from benchmarks.fuzz.search import template
from benchmarks.fuzz.shrink import Config, Types, pruned, shrink
from runner.base.faults import InvalidExperiment
from runner.checks import oracles
from runner.checks.context import Context
from runner.checks.kinds import derivation
from runner.checks.reference import CannotInterpret
from runner.experiment import data
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.worker.types import infer
from tests import harness

MESHES = tuple(shape for axes in (1, 2, 3) for shape in itertools.product((1, 2, 3, 4), repeat=axes))
LENGTHS = (3, 4, 5, 6, 7, 8)
PATIENCE = 60.0
"""Seconds for shrinking one case."""

DEVICES = 64
"""The size of the largest mesh."""

FORGET = 25
"""The number of cases after which JAX's caches are cleared."""

Judgement = dict[str, Any]


def drawn(seed: int, number: int) -> Config:
    """Draw one case: a graph, its specs and its mesh."""
    return cases.case(seed, number, meshes=MESHES, lengths=LENGTHS, whole_only=True)[0]


def judged(config: Config) -> Judgement:
    """Judge a case: return `right`, `wrong`, `left out`, `invalid`, or `bug`; and the reason.

    `notes` counts the written collectives that are not in Shardy's plan; `types` are the types of the values; `sent` is
    the number of bytes that a device sends.
    """
    try:
        return _judged(config)
    except InvalidExperiment as fault:
        return {"status": "invalid", "why": fault.fault.message}
    except CannotInterpret as error:
        return {"status": "invalid", "why": str(error)}
    except Exception:
        return {"status": "bug", "why": traceback.format_exc()}


def _judged(config: Config) -> Judgement:
    experiment = replace(read(config), programs=(Program.DERIVED,))
    with harness.configured(experiment), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        types = infer(experiment)
    nodes = {
        section: {n: {"shape": list(t.shape), "dtype": t.dtype} for n, t in values.items()}
        for section, values in types.nodes.items()
    }
    if types.derivation is None or types.derived is None:
        return {"status": "left out", "why": types.unsupported[Program.DERIVED], "types": nodes}
    context = Context(experiment, data.make(experiment, Path.cwd()), types.outputs, types.floats, None, None)
    verdict = derivation.check(context, types.derived, types.floats[Program.DERIVED])
    if verdict.status != "passed":
        # What rounding does to the graph, which takes long to measure, may explain the difference.
        context = oracles.consult(experiment, context.arrays, types.outputs, types.floats, {})
        verdict = derivation.check(context, types.derived, types.floats[Program.DERIVED])
    lines = types.derivation
    measures = {"notes": len(lines.notes), "check_vma": lines.check_vma, "sent": lines.sent_bytes, "types": nodes}
    if verdict.status != "passed":
        return {"status": "wrong", "why": verdict.reason, **measures}
    return {"status": "right", "why": None, **measures}


def smallest(config: Config, verdict: Judgement) -> Config:
    """Shrink a case while it fails in the same way."""
    end = time.monotonic() + PATIENCE
    mark = _mark(verdict)

    def test(smaller: Config) -> Types | None:
        if time.monotonic() > end:
            return None
        try:
            result = judged(cases.complete(smaller))
        except InvalidExperiment:
            return None
        return result.get("types", {}) if _mark(result) == mark else None

    return shrink(pruned(config), verdict.get("types", {}), test)


def _mark(verdict: Judgement) -> tuple[str, str]:
    last = verdict["why"].strip().splitlines()[-1] if verdict["status"] == "bug" else ""
    why = template(verdict["why"]) if verdict["status"] == "left out" else template(last)
    return verdict["status"], why


class Folder:
    """A folder of cases."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path, self._seed, self._log = path, seed, path / "cases.jsonl"
        (path / "experiment").mkdir(parents=True, exist_ok=True)

    def records(self) -> list[dict[str, Any]]:
        """Return the results of the cases so far."""
        if not self._log.is_file():
            return []
        lines = [json.loads(line) for line in self._log.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
        return [line for line in lines if line["seed"] == self._seed]

    def run(self, numbers: range) -> None:
        """Judge the remaining cases."""
        done = {record["case"] for record in self.records()}
        for number in numbers:
            if number not in done:
                self.take(number)
            if number % FORGET == 0:
                jax.clear_caches()

    def take(self, number: int) -> None:
        """Judge one case, shrink it if it is wrong, and record the result."""
        start = time.monotonic()
        config = drawn(self._seed, number)
        verdict = judged(config)
        seconds = round(time.monotonic() - start, 2)
        record = {"seed": self._seed, "case": number, "seconds": seconds, "lines": len(config["graph"]), **verdict}
        record.pop("types", None)
        if verdict["status"] in ("wrong", "bug"):
            print(f"case {number}: {verdict['status']}: {verdict['why'].strip().splitlines()[-1]}", flush=True)
            small = smallest(config, verdict) | {"name": f"wrong_{number}"}
            text = yaml.safe_dump(small, sort_keys=False, default_flow_style=None, width=120)
            (self._path / "experiment" / f"wrong_{number}.yaml").write_text(f"# @package _global_\n{text}", "utf-8")
            print(text, flush=True)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(record) + "\n")

    def summary(self) -> str:
        """Return the number of cases with each result."""
        records = self.records()
        seconds = sum(record["seconds"] for record in records)
        lines = [
            f"{len(records)} graphs of {sum(r['lines'] for r in records)} lines in {seconds:.0f} s: "
            f"{dict(Counter(record['status'] for record in records))}",
            f"unchecked by JAX's types: {sum(r.get('check_vma') is False for r in records)}; "
            f"with lines of our own: {sum(bool(r.get('notes')) for r in records)}",
        ]
        for status in ("left out", "invalid"):
            why = Counter(template(record["why"]) for record in records if record["status"] == status)
            lines += [f"{status}:", *(f"  {count:5} {reason}" for reason, count in why.most_common(25))] if why else []
        return "\n".join(lines)


def main() -> None:
    """Judge the cases, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="this one alone, anew")
    parser.add_argument("--out", type=Path, default=Path("outputs/derived"))
    given = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    folder = Folder(given.out, given.seed)
    if given.case is not None:
        folder.take(given.case)
    else:
        folder.run(range(given.count))
    print(folder.summary())
    sys.exit(any(record["status"] in ("wrong", "bug") for record in folder.records()))


if __name__ == "__main__":
    main()
