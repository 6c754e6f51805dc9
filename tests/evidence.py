"""Records with given collectives, memory and outputs, for tests that need exact ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from runner.base import codec, executions
from runner.base.layout import Spec
from runner.checks.kinds.layout import LayoutVerdict
from runner.checks.kinds.replicas import ReplicasVerdict
from runner.compiled.evidence.model import Between, Collective
from runner.link.events import Compilation, Cost, Devices, Memory, Ran, RunTimes, Timing
from runner.reports.record.model import (
    ArrayRecord,
    CompiledProgram,
    Environment,
    MeshShape,
    OutputRecord,
    ProgramRecord,
    Record,
)
from runner.reports.record.verdicts import (
    AgreementVerdict,
    Checks,
    FileChecks,
    SectionsVerdict,
    ValueOutput,
    ValueVerdict,
)


def as_json(value: Any) -> Any:
    """Return the fields in `result.json`."""
    return json.loads(json.dumps(codec.plain(value)))


def collective(
    kind: str = "all-reduce",
    node: str | None = "C",
    axes: list[str] | None = None,
    between: dict[str, list[str]] | None = None,
    **more: Any,
) -> Collective:
    """Return a collective as `docs/record.md` describes it."""
    plain = Collective(
        kind=kind,
        node=node,
        nodes=[] if node is None else [node],
        gradient=False,
        inserted=False,
        between=None if between is None else Between(source=between["from"], to=between["to"]),
        axes=axes if axes is not None or "groups" in more else ["x"],
        groups=[[0, 2], [1, 3]],
        dtype="float32",
        bytes_in=64,
        bytes_out=64,
        bytes=64,
        count=1,
        asynchronous=False,
        overlapped=None,
        instruction="all-reduce.3",
    )
    # By default, a device sends as many bytes as the larger side has.
    return replace(plain, **{"bytes_sent": more.get("bytes", 64), **more})


def output(**more: Any) -> OutputRecord:
    """Return an output as a record describes it."""
    plain = OutputRecord(
        shape=[4, 4],
        dtype="float32",
        spec=Spec(((), ())),
        shard_shape=[4, 4],
        shards_from="auto",
        shards=None,
        text="[[0. 1.]]",
        values=None,
    )
    return replace(plain, **more)


def compared(**more: Any) -> ValueOutput:
    """Return the verdict of `value` on an output."""
    plain = ValueOutput(
        status="passed",
        oracle="graph",
        max_abs_error=1e-7,
        max_rel_error=1e-7,
        rtol=1e-6,
        atol=2e-6,
        share=0.05,
        rounding=1e-6,
        wrong=0,
        of=64,
        devices=[],
        power=3e-6,
    )
    return replace(plain, **more)


def value(**more: Any) -> ValueVerdict:
    """Return the verdict of `value` on a program."""
    plain = ValueVerdict(
        status="passed",
        max_abs_error=1e-7,
        max_rel_error=1e-7,
        rtol=1e-6,
        atol=2e-6,
        outputs={"C": compared()},
        power=3e-6,
    )
    return replace(plain, **more)


CHECKS = Checks(
    value=value(),
    layout=LayoutVerdict(status="passed"),
    replicas=ReplicasVerdict(status="passed", copies=2),
    agreement=AgreementVerdict(status="passed", max_abs_error=0.0, others=["auto"]),
)
"""The checks of a program that passed."""


def timing(compile_s: float = 0.05, run_s: float = 0.0002) -> Timing:
    """Return the times of a program."""
    runs = RunTimes(median=run_s, min=run_s, max=run_s, n=10)
    return Timing(place_s=0.001, compile_s=compile_s, run_s=runs)


def memory(arguments: int = 64, outputs: int = 64, temps: int = 64) -> Memory:
    """Return a program's memory on each device."""
    return Memory.of(arguments, outputs, temps, 0, None)


def program(*collectives: Collective, **more: Any) -> CompiledProgram:
    """Return a program that passed."""
    plain = CompiledProgram(
        status="passed",
        error=None,
        checks=CHECKS,
        outputs={"C": output()},
        memory=memory(),
        cost=Cost(flops=80.0),
        timing=timing(),
        collectives=list(collectives),
        collectives_unknown=[],
        collectives_missing=[],
        compiler_warnings=[],
        bytes_sent=executions.most(
            executions.total((entry.count, entry.branches, entry.bytes_sent) for entry in collectives)
        ),
    )
    return replace(plain, **more)


def ran(device_ids: list[int], **more: Any) -> Ran:
    """Return a worker's result for a program without compiler messages."""
    compilation = Compilation(memory=None, cost=None, timing=timing())
    return replace(Ran(device_ids=device_ids, outputs={}, operands={}, stderr="", compilation=compilation), **more)


def died(error: str) -> ProgramRecord:
    """Return a program that ended with an error."""
    return ProgramRecord(status="error", error=error, checks=Checks())


def on(jax: str) -> Environment:
    """Return the devices and versions of a run with this JAX."""
    return Environment(jax=jax, jaxlib=jax, python="3.11.7", runner="0.1.0", git=None)


def record(programs: dict[str, Any] | None = None, **more: Any) -> Record:
    """Return a record of `case`, by default of a `shard_map` with one all-reduce."""
    array = ArrayRecord(
        shape=[4, 4], dtype="float32", spec=Spec(((), ("x",))), shard_shape=[4, 2], shards_from="spec", shards=None
    )
    plain = Record(
        experiment="case",
        summary="",
        overrides=["+experiment=case"],
        status="passed",
        error=None,
        warnings=[],
        time="2026-01-01T00:00:00+00:00",
        mesh=MeshShape(axes=["x", "y"], shape=[2, 2]),
        target=Devices(platform="cpu", devices=4, kind="cpu", topology=None),
        checks=FileChecks(sections=SectionsVerdict(status="passed", outputs={})),
        arrays={"A": array},
        programs={"shard_map": program(collective())} if programs is None else programs,
        not_supported={},
        environment=on("0.10.2"),
    )
    return replace(plain, **more)
