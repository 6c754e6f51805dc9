"""Every operation in every dtype: is JAX's result within the tolerance that follows from the measured rounding?

`python -m benchmarks.operations_rounding [--dtypes float32 …] [--seeds 2] [OPERATION …]`, from the root of the
repository.

The expressions are those of the tests (`tests/samples.py`), on whole arrays on one device, where only rounding makes a
difference. Prints every expression that uses more than `--share` of its tolerance, with the largest error, the measured
rounding and the number of undecided elements; the exit status is 1 if one is outside.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from runner.base.faults import InvalidExperiment
from runner.checks import oracles
from runner.checks.compare import EXCUSED, Alternatives, Difference, difference, tolerance
from runner.checks.reference import Oracle
from runner.experiment import data
from runner.experiment.model import Experiment
from runner.worker.types import infer
from runner.worker.walk import Walker
from tests import harness
from tests.samples import ARRAYS, SAMPLES

DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn")

PACK = 70
"""Expressions per experiment: nearly all the time goes into XLA's compilation of each function."""


@dataclass(frozen=True)
class Row:
    """The result for one expression: JAX's distance from the oracle, and the measured rounding."""

    dtype: str
    expression: str
    seed: int
    apart: Difference
    rounding: float

    @property
    def outside(self) -> bool:
        """Whether the check `value` would fail on its elements."""
        return bool(self.apart.wrong) or self.apart.excused > EXCUSED * self.apart.size

    def __str__(self) -> str:
        apart = self.apart
        verdict = f"{apart.wrong} of {apart.size} outside" if self.outside else f"share {apart.share:.2f}"
        if apart.undecided:
            verdict += f"; undecided {apart.undecided}, between {apart.between}, excused {apart.excused}"
        return f"{self.dtype}  {self.expression}  seed {self.seed}: {verdict}; error {apart.max_abs:.2g}, " + (
            f"measured {self.rounding:.2g}"
        )


def expressions(names: Sequence[str] = ()) -> list[str]:
    """Return the expressions of some operations, or of all."""
    return [each for name in names or SAMPLES for each in SAMPLES[name]]


def compared(
    dtype: str, given: Sequence[str], seeds: int = 1, refused: list[str] | None = None, pack: int = PACK
) -> Iterator[Row]:
    """Compute expressions on arrays of `dtype` by JAX and by the oracle; `refused` collects the unsupported ones."""
    refused = [] if refused is None else refused
    allowed = []
    for expression in given:
        try:
            infer(_experiment(dtype, [expression], 0))
            allowed.append(expression)
        except InvalidExperiment:
            refused.append(expression)
    for start in range(0, len(allowed), pack):
        yield from _compared(dtype, allowed[start : start + pack], seeds, refused)


def _compared(dtype: str, pack: list[str], seeds: int, refused: list[str]) -> Iterator[Row]:
    try:
        computed = _by_jax(dtype, pack, seeds)
        expected = [_by_oracle(dtype, pack, seed) for seed in range(seeds)]
    except (NotImplementedError, ValueError, jax.errors.JaxRuntimeError) as error:
        # LAPACK has no half precision; XLA lacks some products in float16 and some functions of 8-bit floats.
        if len(pack) == 1:
            refused.append(f"{pack[0]} ({str(error).splitlines()[0][:80]})")
            return
        for half in (pack[: len(pack) // 2], pack[len(pack) // 2 :]):
            yield from _compared(dtype, half, seeds, refused)
        return
    for seed, (results, oracle) in enumerate(zip(computed, expected, strict=True)):
        for (name, expression), result in zip(_named(pack).items(), results, strict=True):
            rounding = oracle.rounding[name]
            beside = Alternatives.of(rounding, lambda value: np.asarray(value[0]))
            kind = str(result.dtype)
            apart = difference(result, oracle.values[name][0], kind, tolerance(kind, rounding), beside)
            yield Row(dtype, expression, seed, apart, rounding.error)


def _by_oracle(dtype: str, pack: list[str], seed: int) -> Oracle:
    experiment = _experiment(dtype, pack, seed)
    types = infer(experiment)
    return oracles.consult(experiment, data.make(experiment, Path()), types.outputs, types.floats).oracle("graph")


def _by_jax(dtype: str, pack: list[str], seeds: int) -> list[list[np.ndarray]]:
    experiment = _experiment(dtype, pack, 0)
    names = [array.name for array in experiment.arrays]

    def whole(*arrays: Any) -> list[Any]:
        walker = Walker(experiment, dict(zip(names, arrays, strict=True)))
        walker.run(experiment.graph, "graph")
        return [walker.values[name] for name in experiment.results]

    with harness.configured(experiment):
        compiled = jax.jit(whole)
        made = [data.make(_experiment(dtype, pack, seed), Path()) for seed in range(seeds)]
        return [[np.asarray(each) for each in compiled(*(arrays[name] for name in names))] for arrays in made]


def _named(pack: Sequence[str]) -> dict[str, str]:
    return {f"n{i}": expression for i, expression in enumerate(pack)}


def _experiment(dtype: str, pack: Sequence[str], seed: int) -> Experiment:
    nodes = _named(pack)
    whole = re.sub(r"%\(\w+\)s", "[]", ARRAYS)
    # Arrays without a dtype are floats.
    text = re.sub(r"(shape: \[[\d, ]+\]), init", rf"\1, dtype: {dtype}, init", whole)
    return harness.experiment(text, graph=nodes, outputs={name: [] for name in nodes}, seed=seed, program="auto")


def main() -> None:
    """Run the requested expressions, and print those outside the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operations", nargs="*")
    parser.add_argument("--dtypes", nargs="*", default=DTYPES)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.6)
    given = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    print(f"jax {jax.__version__}, {given.seeds} seeds")
    bad = 0
    for dtype in given.dtypes:
        start, count, outside = time.perf_counter(), 0, 0
        refused: list[str] = []
        for row in compared(dtype, expressions(given.operations), given.seeds, refused):
            count += 1
            outside += row.outside
            if row.outside or row.apart.share > given.share:
                print(f"{'OUTSIDE ' if row.outside else ''}{row}", flush=True)
        took = time.perf_counter() - start
        print(f"{dtype}: {outside} of {count} outside, {len(refused)} do not exist; {took:.0f} s", flush=True)
        print(f"    {'; '.join(refused)}" if refused else "", flush=True)
        bad += outside
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
