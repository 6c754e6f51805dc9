"""Every experiment at many seeds: does a check fail that should not?

`python -m benchmarks.seeds [--seeds 40] [--layouts ARRAY …] [--folder FOLDER] [NAME …]`, from the root of the
repository.

Each experiment is run as the command runs it, twins included, and compiled once for all of its seeds; one with
`verify_dims` is run at these, the large ones at smaller sizes. `--layouts` runs it in every layout of these arrays in
which a mesh axis shards one dimension. Prints for each experiment the runs, those that did not pass, the largest share
of a tolerance that was used, and how many runs needed a twin; the exit status is 1 if one did not pass.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks.fuzz import judge
from benchmarks.right_programs import compiled_once, typed_once
from runner.base.layout import Mesh, SpecEntries
from runner.experiment.model import Experiment
from tests.command import LARGE, REFUSED
from tests.harness import shipped

DEVICES = 16
SIZES = {"M": 1024, "K": 64, "N": 128}
"""The sizes of the large experiments."""


def main() -> None:
    """Run the named experiments, or all, and print the failures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--layouts", nargs="*", default=[], help="the arrays whose layouts are swept")
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parents[1] / "conf")
    given = parser.parse_args()
    judge.prepare(optimized=True, devices=DEVICES)
    files = (given.folder / "experiment").glob("*.yaml")
    names = given.names or sorted(file.stem for file in files if file.stem not in REFUSED)
    bad = 0
    print(f"jax {jax.__version__}, {given.seeds} seeds")
    with compiled_once():
        for name in names:
            experiment, _ = shipped(name, given.folder)
            if name in LARGE:
                experiment = experiment.at(dims={dim: SIZES[dim] for dim in SIZES if dim in experiment.dims})
            for layouts in _layouts(experiment, given.layouts):
                with typed_once():
                    bad += _run(name, experiment.at(layouts=layouts) if layouts else experiment, layouts, given.seeds)
            judge.forget()
    print(f"{bad} runs did not pass")
    sys.exit(bool(bad))


def _layouts(experiment: Experiment, names: Sequence[str]) -> Iterator[dict[str, SpecEntries]]:
    """Every layout of some arrays, by the keys of their specs."""
    arrays = [array for array in experiment.arrays if array.name in names]
    specs = [list(_specs(experiment.mesh, array.shape)) for array in arrays]
    for chosen in itertools.product(*specs):
        yield {f"arrays.{array.name}.spec": spec for array, spec in zip(arrays, chosen, strict=True)}


def _specs(mesh: Mesh, shape: tuple[int, ...]) -> Iterator[SpecEntries]:
    for spec in itertools.product((None, *mesh.axes), repeat=len(shape)):
        used = [axis for axis in spec if axis is not None]
        whole = tuple(() if axis is None else (axis,) for axis in spec)
        if len({*used}) == len(used) and mesh.divides(shape, whole):
            yield list(spec)


def _run(name: str, experiment: Experiment, layouts: Mapping[str, Any], seeds: int) -> int:
    """Run an experiment at all seeds and print what came of it; return the number of runs that did not pass."""
    start, failures, twins, used = time.process_time(), list[str](), 0, (0.0, "")
    definition = dict(experiment.definition)
    # Pinned values are those of one seed.
    definition["expect"] = {**(definition.get("expect") or {}), "values": {}}
    for seed in range(seeds):
        judged = judge.judge({**definition, "seed": seed})
        used = max([used, *((share, of) for of, share in judged.get("shares", {}).items())])
        twins += bool(judged.get("twins"))
        if judged["status"] != "passed":
            failures.append(f"    seed {seed}: {judged['status']} {judged.get('error') or ''} {judged['found']}")
    where = " ".join(f"{key}={value}" for key, value in layouts.items())
    share = f"{used[0]:.2f} of the tolerance of {used[1]}" if used[1] else ""
    spent = time.process_time() - start
    print(f"{name:48} {seeds:3} runs {twins:3} with twins  {spent:6.1f} s  {share} {where}", flush=True)
    for failure in failures:
        print(failure, flush=True)
    return len(failures)


if __name__ == "__main__":
    main()
