"""The bytes that a device sends under `derived` and under the file's `per_device`: `python -m benchmarks.derived_bytes`

Covers every shipped experiment that has both, as the programs request it before compilation, including gradients: the
collectives of the traced programs, multiplied by the iterations of their loops, by the ring formulas: (n - 1)/n of the
whole for a gather, a scatter and an exchange, twice that for a reduction, a block for a permutation. Prints a table;
the exit status is 1 if `derived` sends more in an experiment that `MORE` does not explain, or more than it says.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from benchmarks.derived import DEVICES
from runner.base.layout import Mesh
from runner.experiment import expect
from runner.experiment.config import schema
from runner.experiment.config.compose import compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.imported import imports
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.programs.types import InferredTypes
from runner.programs.writers import WRITERS
from runner.worker.functions import tracing
from runner.worker.lowered import requested
from runner.worker.specs import structs
from runner.worker.types import infer
from tests import harness
from tests.command import ROOT

PROGRAMS = (Program.DERIVED, Program.SHARD_MAP)

MORE = {
    "expert_parallel_moe": (
        2.43,
        "the graph runs every token through every expert, so all tokens are gathered and all results scattered; only "
        "per_device has slots of a capacity to exchange. A graph with slots (in tests/derived_bytes.yaml) needs two "
        "exchanges",
    ),
    "vocab_parallel_cross_entropy": (
        1.03,
        "the graph subtracts the logarithm of the total before it picks the label's logit, so the backward pass sums "
        "one more number per token",
    ),
}
"""The experiments in which `derived` sends more: at most how many times what `per_device` sends, and why."""


def asked(program: Any, operands: Any, mesh: Mesh) -> tuple[float, Counter[str]]:
    """Return the bytes that a device sends for a program, and the number of collectives of each kind."""
    sent, counts = 0.0, Counter[str]()
    for each in requested(jax.make_jaxpr(program)(*operands).jaxpr, mesh):
        sent += each.times * each.sent
        counts[each.kind] += each.times
    return sent, counts


def both(experiment: Experiment, folder: Path) -> dict[Program, tuple[float, Counter[str]]] | str:
    """Return what each of the two programs requests; or why there is only one."""
    experiment = replace(experiment, programs=PROGRAMS)
    requests: dict[Program, tuple[float, Counter[str]]] = {}
    with harness.configured(experiment):
        types = infer(experiment)
        if types.unsupported:
            return "; ".join(f"{program}: {why}" for program, why in types.unsupported.items())
        for program in PROGRAMS:
            requests[program] = sent_by(experiment, program, types, folder)
    return requests


def sent_by(experiment: Experiment, program: Program, types: InferredTypes, folder: Path) -> tuple[float, Counter[str]]:
    """Return what one program requests, as in `asked`, under the experiment's JAX configuration."""
    module: dict[str, Any] = {"__name__": "written"}
    source = WRITERS[program](experiment, folder, types)
    exec(compile("\n".join(_without_settings(source)), str(program), "exec"), module)
    mesh = module["make_mesh"](jax.devices()[: experiment.mesh.size])
    operands = [
        jax.ShapeDtypeStruct(each.shape, each.dtype) for each in structs(experiment, mesh)[: len(experiment.arrays)]
    ]
    return asked(module["program"](mesh), operands, experiment.mesh)


def _without_settings(source: str) -> Iterator[str]:
    """Return a program without its process settings, since the process is configured already."""
    yield from (line for line in source.splitlines() if not line.startswith("jax.config.update("))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="experiments; all where none is named")
    names = parser.parse_args().names
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    wrong, reasons = False, list[str]()
    print("| experiment | derived | per_device | of it | collectives of derived | of per_device |")
    print("|---|---|---|---|---|---|")
    for name in names or sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml")):
        with tempfile.TemporaryDirectory() as scratch:
            plain = compose(name, Path(scratch)).plain
            if imports(plain):
                plain = tracing.traced(schema.completed(plain), conf_folder() / "experiment", Path(scratch) / "trees")
            if expect.refusal(plain) or not plain["graph"] or not plain["per_device"]:
                continue
            requests = both(read(plain), ROOT)
        if isinstance(requests, str):
            print(f"| {name} | – | – | – | {requests} | – |")
            continue
        (mine, kinds), (theirs, others) = (requests[program] for program in PROGRAMS)
        ratio = "1" if mine == theirs else f"{mine / theirs:.2f}" if theirs else "∞"
        most, why = MORE.get(name, (1.0, ""))
        wrong |= mine > theirs * (most + 0.005 if why else 1.0001)
        reasons += [f"{name}: {why}"] if why and mine > theirs else []
        print(f"| {name} | {mine:,.0f} | {theirs:,.0f} | {ratio} | {_listed(kinds)} | {_listed(others)} |", flush=True)
    print("", *reasons, sep="\n")
    sys.exit(wrong)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(kind if count == 1 else f"{kind} × {count}" for kind, count in sorted(counts.items())) or "none"


if __name__ == "__main__":
    main()
