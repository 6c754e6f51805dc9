"""Right programs, drawn at random: how many of them fail, are weak, or end in an error, and what decides?

`python -m benchmarks.right_programs [--count 400] [--seeds 5] [--first 0] [--verify rounding] [--out FILE]`, from the
root of the repository.

Each has two products of 8 to 512 terms, two elementary functions, layouts of one or two mesh axes, float32, bfloat16 or
float16, and mostly gradients. A program is compiled once for all of its seeds. With `--verify rounding` no twin
decides.
Prints each that did not pass, the counts, how many outputs a twin decided and what twins cost in processor time. `FILE`
gets one line of JSON for each run, with the verdicts of the outputs that twins decided.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from benchmarks.fuzz import judge
from benchmarks.fuzz.cases import complete
from runner.experiment.model import Experiment
from runner.programs.types import InferredTypes
from runner.worker import job, shared

FUNCTIONS = (
    "tanh({x})", "exp(0.3 * {x})", "expm1(0.3 * {x})", "log1p({x} ** 2)", "logistic({x})", "erf({x})", "sin({x})",
    "cos({x})", "gelu({x})", "silu({x})", "softplus({x})", "mish({x})", "erfc(0.5 * {x})", "arctan({x})",
    "sinh(0.3 * {x})", "cosh(0.3 * {x})", "exp2(0.3 * {x})", "rsqrt({x} ** 2 + 0.1)", "sqrt({x} ** 2 + 0.1)",
    "softmax({x}, axis=-1)", "log_softmax({x}, axis=-1)", "{x} - logsumexp({x}, axis=-1, keepdims=True)",
    "({x} - mean({x}, axis=-1, keepdims=True)) * rsqrt(var({x}, axis=-1, keepdims=True) + 1e-3)",
)  # fmt: skip
TERMS = (8, 16, 32, 64, 128, 256, 512)
MESHES = ({"model": 2}, {"model": 4}, {"model": 8}, {"data": 2, "model": 2}, {"data": 2, "model": 4})
DTYPES = ("float32", "float32", "bfloat16", "float16")


def program(number: int) -> dict[str, Any]:
    """Return the configuration of one right program, always the same one."""
    rng = random.Random(f"right {number}")
    mesh, dtype, terms = rng.choice(MESHES), rng.choice(DTYPES), rng.choice(TERMS)
    rows, inner, columns = rng.choice((8, 16, 32)), rng.choice((8, 16, 32, 64)), 8

    def spec(shape: tuple[int, ...]) -> list[str | None]:
        free = rng.sample(list(mesh), len(mesh))
        return [free.pop() if free and rng.random() < 0.6 and size % mesh[free[-1]] == 0 else None for size in shape]

    def array(*shape: int, scale: float) -> dict[str, Any]:
        return {"shape": list(shape), "dtype": dtype, "init": f"normal(0, {scale})", "spec": spec(shape)}

    arrays = {
        "x": array(rows, terms, scale=rng.choice((1.0, 2.0))),
        "w1": array(terms, inner, scale=terms**-0.5),
        "w2": array(inner, columns, scale=inner**-0.5),
        "b": array(inner, scale=0.5),
    }
    first, second = (rng.choice(FUNCTIONS) for _ in range(2))
    graph = {"z": "x @ w1 + b", "h": first.format(x="z"), "y": "h @ w2", "o": second.format(x="y")}
    outputs: dict[str, Any] = {"o": spec((rows, columns))}
    plain: dict[str, Any] = {
        "name": f"right_{number}",
        "mesh": {"axes": list(mesh), "shape": list(mesh.values())},
        "arrays": arrays,
        "graph": graph,
        "outputs": outputs,
        "program": rng.choice(("auto", "constraint", "derived", "derived")),
        "timeout": 120,
    }
    if rng.random() < 0.6:
        graph["loss"], outputs["loss"] = rng.choice(("mean(o ** 2)", "sum(o * o)", "mean(o)")), []
        plain["grad"] = {"of": "loss", "wrt": rng.sample(list(arrays), 2)}
    return plain


@contextlib.contextmanager
def compiled_once() -> Iterator[None]:
    """Let JAX keep what it compiles in a folder, so that the other seeds of a program need no compilation."""
    with tempfile.TemporaryDirectory(prefix="compiled-") as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        yield


@contextlib.contextmanager
def typed_once() -> Iterator[None]:
    """Let the seeds of an experiment share its types and its compiled programs: none depends on a seed."""
    known: dict[str, InferredTypes] = {}
    infer = job.infer

    def inferred(experiment: Experiment, *, derives: bool = False) -> InferredTypes:
        key = json.dumps([{**experiment.definition, "seed": 0}, derives], default=str)
        if key not in known:
            known[key] = infer(experiment, derives=derives)
        types = known[key]
        # The derived lines are an experiment of their own, with its data.
        return types if types.derived is None else replace(types, derived=replace(types.derived, seed=experiment.seed))

    shared.forget()
    with mock.patch.object(job, "infer", inferred), mock.patch.object(shared, "forget"):
        yield


def main() -> None:
    """Run the programs at several seeds; the exit status is 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--verify", help="as the key of a file: twin, rounding")
    parser.add_argument("--out", type=Path, help="a file to which each run adds a line")
    given = parser.parse_args()
    judge.prepare(optimized=True)
    counts: Counter[str] = Counter()
    decided: Counter[str] = Counter()
    twins = runs_with_twin = 0.0
    start = time.process_time()
    more = {} if given.verify is None else {"verify": given.verify}
    with compiled_once():
        for number in range(given.first, given.first + given.count):
            definition = complete({**program(number), **more})
            with typed_once():
                judgements = [judge.judge({**definition, "seed": seed}) for seed in range(given.seeds)]
            for seed, judged in enumerate(judgements):
                counts[judged["status"]] += 1
                decided.update(_why_decided(output) for output in judged.get("twins", {}).values())
                twins += judged.get("twin_seconds", 0.0)
                runs_with_twin += bool(judged.get("twins"))
                if judged["status"] != "passed":
                    print(number, seed, judged["status"], judged.get("error"), judged["found"], flush=True)
                if given.out is not None:
                    _add(given.out, number, seed, judged)
            judge.forget()
    spent = time.process_time() - start
    print(f"jax {jax.__version__}: {dict(counts)}; {spent:.0f} s of processor time")
    print(f"{runs_with_twin:.0f} runs needed a twin, which took {twins:.0f} s; the outputs that twins decided were,")
    print(f"by the measured rounding alone, {dict(decided)}")
    sys.exit(bool(counts.keys() - {"passed", "weak"}))


def _why_decided(output: dict[str, Any]) -> str:
    """What an output that a twin decided would have been without it."""
    return "failed" if output["wrong"] else "undecided" if output.get("undecided") else "weak"


def _add(file: Path, number: int, seed: int, judged: dict[str, Any]) -> None:
    kept = ("status", "error", "found", "ran", "twins", "twin_seconds")
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({"number": number, "seed": seed, **{name: judged.get(name) for name in kept}}) + "\n")


if __name__ == "__main__":
    main()
