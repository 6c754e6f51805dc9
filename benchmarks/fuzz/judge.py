"""Judges one configuration by the runner's own flow, in this process.

A process serves many experiments, with as many devices as the largest needs.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from runner.app.flow import run
from runner.base import codec
from runner.base.layout import Layout, Mesh, Spec
from runner.checks.reference import interpret
from runner.experiment import data, open_layouts
from runner.experiment.config.sources import Sources
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.link.events import Started, Types, WorkerEvent
from runner.link.steps import StepWork
from runner.link.workers import Workers
from runner.reports.record import verdicts
from runner.reports.record.model import CompiledProgram, OutputRecord, Record
from tests import here
from tests.here import Here

Judgement = dict[str, Any]
DEVICES = 8

_REFUSED = re.compile(r"NotImplementedError|UNIMPLEMENTED|Unimplemented|not implemented|failed to legalize operation")
"""The messages of JAX and XLA for a dtype or an operation that a backend does not support."""


class Chosen(Here):
    """A worker that runs `programs` of its job, all if None, and reports which one it runs."""

    def __init__(self, programs: Sequence[str] | None, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._programs = programs
        self._tell = tell
        self.nodes: dict[str, Any] = {}
        self.twin_seconds = 0.0
        """The processor time that twins took."""

    def submit(self, job: str) -> None:
        given = json.loads(job)
        steps = given["steps"]
        if self._programs is not None:
            steps = [step for step in steps if step["program"] in self._programs]
            job = json.dumps({**given, "steps": steps})
        start = time.process_time()
        super().submit(job)
        if any(step["work"] == StepWork.TWIN for step in steps):
            self.twin_seconds += time.process_time() - start

    def emit(self, event: WorkerEvent) -> None:
        if isinstance(event, Started):
            self._tell(event.step.program)
        if isinstance(event, Types):
            self.nodes = codec.plain(event.nodes)
        super().emit(event)


def judge(
    config: dict[str, Any], programs: Sequence[str] | None = None, tell: Callable[[str], None] = lambda _: None
) -> Judgement:
    """Run an experiment and return the verdict.

    `status` is that of the record, or `bug` if the runner itself failed. `found` lists `(kind, program, words)` for
    each failure. The kinds are `bug`, `error`, `refused` (a feature that a backend lacks), names of checks, and `weak`.
    `sent` holds the bytes that a device sends, by program, where they are known, for those on the mesh whose outputs
    have the experiment's specs: `auto` leaves outputs as the compiler lays them out. `ignoring` are the programs that
    leave what `constraints` lays out to the compiler, or to lines of their own. `shares` has the largest
    part of its tolerance that an element of each output used, `twins` the verdict of each output whose twin was run,
    and `twin_seconds` the processor time that this took.
    """
    worker = Chosen(programs, tell)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        folder = Path(scratch)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                record = run.run(config, folder, Sources(), workers=Workers(worker))
        except Exception:
            return {"status": "bug", "found": [["bug", "", traceback.format_exc()]]}
        sources = {
            path.stem.removeprefix("program_"): path.read_text(encoding="utf-8") for path in folder.glob("program_*.py")
        }
    return {
        "status": record.status,
        "error": record.error,
        "found": _findings(record),
        "ran": {name: program.status for name, program in record.programs.items()},
        "sent": _sent(record, config),
        "ignoring": [name for name in record.programs if config.get("constraints") and _ignores(Program(name))],
        "not_supported": record.not_supported,
        "types": worker.nodes,
        "sources": sources,
        "shares": {key: output.share for key, output in _compared(record)},
        "twins": {key: codec.plain(output) for key, output in _compared(record) if output.twin is not None},
        "twin_seconds": worker.twin_seconds,
    }


def _compared(record: Record) -> Iterator[tuple[str, verdicts.ValueOutput]]:
    for program, ran in record.programs.items():
        if isinstance(ran.checks.value, verdicts.ValueVerdict):
            yield from ((f"{name} in {program}", output) for name, output in ran.checks.value.compared.items())


def _ignores(program: Program) -> bool:
    return not program.places or program.section == "per_device"


def _sent(record: Record, config: dict[str, Any]) -> dict[str, int]:
    if record.status == "invalid" or open_layouts.is_open(config):
        return {}
    experiment, sent = read(config), dict[str, int]()
    for name, program in record.programs.items():
        if not isinstance(program, CompiledProgram) or program.bytes_sent is None or name == Program.VMAP:
            continue
        if all(_alike(experiment.mesh, output, experiment.outputs[of]) for of, output in program.outputs.items()):
            sent[name] = program.bytes_sent
    return sent


def _alike(mesh: Mesh, output: OutputRecord, wanted: Spec) -> bool:
    shape = tuple(output.shape)
    return output.spec is not None and Layout(mesh, shape, output.spec) == Layout(mesh, shape, wanted)


def _findings(record: Record) -> list[list[str]]:
    findings: list[list[str]] = []
    sections = record.checks.sections
    if sections is not None and sections.status == "failed":
        findings.append(["sections", "", _words(sections)])
    for name, program in record.programs.items():
        if program.status == "error":
            error = program.error or ""
            findings.append(["refused" if _REFUSED.search(error) else "error", name, error])
        for check, verdict in program.checks.named():
            if verdict.status in ("failed", "weak"):
                findings.append([check if verdict.status == "failed" else "weak", name, _words(verdict)])
    return findings


def _words(verdict: verdicts.Verdict) -> str:
    """Return a verdict's messages on the outputs that did not pass."""
    words = [verdict.reason] if verdict.reason else []
    for name, output in codec.plain(verdict).get("outputs", {}).items():
        if output["status"] in ("failed", "weak"):
            fields = {key: value for key, value in output.items() if key not in ("status", "devices", "whole")}
            words.append(f"{name}: {fields}")
    return "\n".join([*words, *verdict.diagnosis])


def prepare(*, optimized: bool, devices: int = DEVICES) -> None:
    """Give this process its simulated devices, and redirect the compiler's messages, not Python's, to a file.

    Without `optimized`, LLVM leaves what XLA made as it is, which saves a third of the time.
    """
    here.OPTIMIZED = optimized
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    log = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
    sys.stderr = os.fdopen(os.dup(2), "w", encoding="utf-8")
    os.dup2(log.fileno(), 2)


def oracle(config: dict[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
    """Return the whole outputs of the sections' oracles as nested lists."""
    experiment = read(config)
    arrays = data.make(experiment, folder)
    outputs: dict[str, dict[str, Any]] = {}
    for section in ("graph", "per_device"):
        if experiment.section(section):
            values = interpret(experiment, section, arrays, keep=experiment.results).values
            outputs[section] = {}
            for name, spec in experiment.results.items():
                local = values[name]
                shape = np.shape(local[0])
                if section == "graph":
                    whole = np.asarray(local[0])
                else:
                    whole = Layout.of_shards(experiment.mesh, shape, spec).assembled(local)
                outputs[section][name] = whole.astype(str).tolist() if whole.dtype.kind == "c" else whole.tolist()
    return outputs


_JUDGED = [0]


def forget() -> None:
    """Now and then, clear JAX's caches of programs that will not run again."""
    _JUDGED[0] += 1
    if _JUDGED[0] % 25 == 0:
        jax.clear_caches()
