"""Every experiment at many seeds: does a check fail that should not? `python benchmarks/seeds.py [--seeds 40] [NAME …]`

Each program is compiled once and run on the data of every seed; oracles, tolerances and checks are the runner's own.
Prints for each experiment the number of verdicts, those that were not `passed`, and the largest share of a tolerance
that was used; the exit status is 1 if a verdict was not `passed`. An experiment with `verify_dims` is run at these.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from runner import codec
from runner.checks import oracles
from runner.checks.kinds import agreement, replicas, sections, value
from runner.experiment import data
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from runner.link.events import Compilation, Ran, Timing
from runner.link.target import ProgramRun, program_run
from runner.programs.types import InferredTypes
from runner.programs.writers import WRITERS
from runner.record.verdicts import Verdict
from runner.worker.execute import leave
from runner.worker.gradient import unsharded
from runner.worker.types import infer
from tests.command import REFUSED
from tests.harness import configured, shipped
from tests.here import loaded

DEVICES = 16


def main() -> None:
    """Run the named experiments, or all, and print the failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--folder", type=Path, default=Path(__file__).resolve().parents[1] / "conf")
    given = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    files = (given.folder / "experiment").glob("*.yaml")
    names = given.names or sorted(file.stem for file in files if file.stem not in REFUSED)
    bad = 0
    print(f"jax {jax.__version__}, {given.seeds} seeds")
    for name in names:
        start = time.perf_counter()
        counts, used = _run(name, given.folder, given.seeds)
        wrong = {status: count for (_, status), count in counts.items() if status not in ("passed", "not_run")}
        bad += sum(wrong.values())
        worst = max(used, key=lambda key: used[key], default=None)
        share = f"{used[worst]:.2f} of the tolerance of {worst}" if worst else ""
        print(f"{name:48} {sum(counts.values()):5} verdicts  {time.perf_counter() - start:5.1f} s  {share}", flush=True)
        for (check, status), count in counts.items():
            if status not in ("passed", "not_run"):
                print(f"    {status} {count} times: {check}", flush=True)
    print(f"{bad} verdicts were not passed")
    sys.exit(bool(bad))


def _run(name: str, folder: Path, seeds: int) -> tuple[Counter[tuple[str, str]], dict[str, float]]:
    experiment, _ = shipped(name, folder)
    counts: Counter[tuple[str, str]] = Counter()
    used: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch, configured(experiment), contextlib.ExitStack() as stack:
        where = Path(scratch)
        types = infer(experiment)
        programs = [program for program in experiment.programs if program not in types.unsupported]
        modules = {p: stack.enter_context(written(p, experiment, types, where)) for p in programs}
        functions: dict[str, Any] = {}
        for seed in range(seeds):
            seeded = replace(experiment, seed=seed)
            arrays = data.make(seeded, where)
            context = oracles.consult(seeded, arrays, types.outputs, types.floats)
            if seeded.grad:
                _consult_gradients(context)
            runs = [execute(context, p, modules[p], functions, where) for p in programs]
            verdicts: dict[str, Verdict] = {}
            if context.graph and context.per_device:
                verdicts["sections"] = sections.check(context)
            for run in runs:
                checked = value.check(context, run)
                verdicts[f"{run.program} value"] = checked
                for output, compared in checked.compared.items():
                    key = f"{output} in {run.program}"
                    used[key] = max(used.get(key, 0.0), compared.share)
                verdicts[f"{run.program} replicas"] = replicas.check(context, run)
                verdicts[f"{run.program} agreement"] = agreement.check(context, run, [r for r in runs if r is not run])
            for check, verdict in verdicts.items():
                detail = "" if verdict.status in ("passed", "not_run") else f" (seed {seed}): {_why(verdict)}"
                counts[check + detail, verdict.status] += 1
    return counts, used


def _consult_gradients(context: oracles.Context) -> None:
    """Add the oracles of the gradients."""
    checked = context.experiment
    assert checked.grad is not None
    exact, draws = unsharded(checked, context.arrays, context.floats["graph"]) if checked.graph else ([], [])
    named = [dict(zip(checked.grad.wrt, each, strict=False)) for each in (exact, *draws)]
    oracles.consult_gradients(context, named[0], named[1:])


def _why(verdict: Verdict) -> str:
    reasons = [verdict.reason or ""]
    for name, output in codec.plain(verdict).get("outputs", {}).items():
        if output["status"] not in ("passed", "not_run"):
            fields = {
                key: output[key] for key in ("wrong", "of", "max_abs_error", "atol", "rtol", "reason") if key in output
            }
            reasons.append(f"{name}: {fields}")
    return "; ".join(filter(None, reasons))


def written(
    program: Program, experiment: Experiment, types: InferredTypes, where: Path
) -> contextlib.AbstractContextManager[ModuleType]:
    """Write a program into `where` and import it with the JAX configuration of its header."""
    path = where / f"program_{program}.py"
    path.write_text(WRITERS[program](experiment, where, types), encoding="utf-8")
    return loaded(path)


def execute(
    context: oracles.Context, program: Program, module: ModuleType, functions: dict[str, Any], where: Path
) -> ProgramRun:
    """Run a program on the arrays of the context."""
    experiment = context.experiment
    operands: Any = tuple(context.arrays[array.name] for array in experiment.arrays)
    devices = jax.devices()[: experiment.mesh.size]
    if not program.on_mesh:
        functions.setdefault(program, module.program())
        operands, ids = module.split(*operands), list(range(experiment.mesh.size))
    else:
        mesh = module.make_mesh(devices)
        if program not in functions:
            functions[program] = module.program(mesh)
        operands, ids = jax.device_put(operands, module.shardings(mesh)), [d.id for d in mesh.devices.flat]
    outputs = jax.block_until_ready(functions[program](*operands))
    ran = Ran(
        device_ids=ids,
        outputs=leave(experiment, program, outputs, where),
        operands={},
        stderr=None,
        compilation=Compilation(memory=None, cost=None, timing=Timing(place_s=None, compile_s=0.0, run_s=None)),
    )
    shapes = {name: shape for name, (shape, _) in context.outputs.items()}
    return program_run(program, ran, shapes, lambda name, position: context.layout(name).ranges(position), where)


if __name__ == "__main__":
    main()
