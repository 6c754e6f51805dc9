"""How many collectives of the compiled programs of all experiments have a reason.

    python benchmarks/why.py [NAME …] [--all]

Compiles every program of every experiment of `conf/experiment` on simulated devices, without running any, and counts
the explained collectives; prints the unexplained ones, with --all every one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import jax  # noqa: E402

from runner.base.faults import InvalidExperiment, invalid  # noqa: E402
from runner.compiled.evidence import words  # noqa: E402
from runner.compiled.evidence.gather import gather  # noqa: E402
from runner.compiled.evidence.model import Collective  # noqa: E402
from runner.compiled.why.reasons import explained  # noqa: E402
from runner.experiment.config.compose import compose  # noqa: E402
from runner.experiment.model import Experiment  # noqa: E402
from runner.experiment.program import Program  # noqa: E402
from runner.experiment.reader import read  # noqa: E402
from runner.programs.writers import WRITERS  # noqa: E402
from runner.worker import calls  # noqa: E402
from runner.worker.compilation import Unsupported, asked, compile_program, planned  # noqa: E402
from runner.worker.job import _load  # noqa: E402
from runner.worker.specs import structs  # noqa: E402
from runner.worker.types import infer  # noqa: E402
from tests.here import configurable  # noqa: E402

DEVICES = 64
"""The size of the largest mesh of an experiment."""


def collectives(name: str, folder: Path) -> Iterator[tuple[Program, Collective]]:
    """Return the collectives of an experiment's programs with their reasons; none if it is expected to be refused."""
    try:
        experiment = read(compose(name, folder).plain)
    except InvalidExperiment:
        return
    yield from compiled_collectives(experiment, folder)


def compiled_collectives(
    experiment: Experiment, folder: Path, *, refused: bool = False, reasons: bool = True
) -> Iterator[tuple[Program, Collective]]:
    """Return the collectives of an experiment's programs, with their reasons if `reasons` is set.

    A program that JAX's types refuse has none; if `refused` is set, that raises `InvalidExperiment`.
    """
    try:
        with configurable():
            calls.configure("jax_enable_x64", experiment.x64)
            types = infer(experiment)
    except InvalidExperiment:
        if refused:
            raise
        return
    for program in experiment.programs:
        if not program.on_mesh:
            continue
        if program in types.unsupported:
            if refused:
                raise invalid(("program",), f"{program}: {types.unsupported[program]}")
            continue
        written = types.derived if program is Program.DERIVED and types.derived else experiment
        path = folder / f"program_{program}.py"
        path.write_text(WRITERS[program](experiment, folder, types), encoding="utf-8")
        with configurable():
            module = _load(path)
            mesh = module.make_mesh()
            # The program computes the gradients that its lines read.
            operands = structs(experiment, mesh)[: len(experiment.arrays)]
            try:
                planning = planned(written, program, folder) if reasons else None
                compiled = compile_program(program, module.program(mesh), operands, planning=planning)
                compiled.leave(program, folder)
            except Unsupported as error:
                if refused:
                    raise invalid(("program",), f"{program}: {error}") from error
                continue
            lines = asked(written, program, compiled) if reasons else None
        evidence = gather(written, program, folder, None, compiled.unreadable).evidence
        if not reasons:
            yield from ((program, collective) for collective in evidence.collectives or [])
            continue
        derivation = types.derivation if program is Program.DERIVED else None
        for collective in explained(
            written, program, evidence.collectives or [], compiled.plan, derivation and derivation.plan, lines
        ):
            yield program, collective


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    # Hide XLA's own warnings.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    counts: Counter[str | None] = Counter()
    names = arguments.names or sorted(path.stem for path in (ROOT / "conf" / "experiment").glob("*.yaml"))
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            for program, collective in collectives(name, Path(folder)):
                assert collective.why is not None
                counts[collective.why.by] += 1
                if arguments.all or collective.why.by is None:
                    print(
                        f"{name} {program}: {words.collective(collective)}: {words.because(collective.why)}", flush=True
                    )
    total = counts.total()
    known = total - counts[None]
    share = f" ({known / total:.1%})" if total else ""
    shares = ", ".join(f"{by} {count}" for by, count in counts.items() if by)
    print(f"{known} of {total} collectives of {len(names)} experiments have a reason{share}: {shares}")


if __name__ == "__main__":
    main()
