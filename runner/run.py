"""A resolved configuration and a run folder in; everything that the run found out, as a record, and the files beside it.

This is the flow of the whole house: experiment, worker, oracles, checks, pictures, record.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from runner import data, dtypes, record
from runner.checks import agreement, diagnosis, layout, pinned, replicas, value
from runner.checks.context import Context
from runner.data import Arrays
from runner.experiment import Experiment, read
from runner.faults import Fault, InvalidExperiment
from runner.layout import Layout, spec_json, spec_text
from runner.process import Event, Worker
from runner.record import Record
from runner.reference import interpret
from runner.show import pictures, svg, terminal
from runner.sources import Sources
from runner.target import Output, ProgramRun, listen, program_run

_RECORDED_VALUES = 1000
"""Outputs of up to this many elements are recorded with their values."""


def run(
    config: Mapping[str, Any],
    folder: Path,
    sources: Callable[[], Sources],
    overrides: Sequence[str] = (),
    worker: Worker | None = None,
) -> Record:
    """Run one experiment and write its run folder.

    `sources` is asked only where a place in a file must be named, `overrides` are those of the command line, `worker` is
    one that was started earlier. What a user or a program does wrong does not raise: it is in the record.
    """
    found = _blank(config, overrides)
    worker = worker or Worker()
    try:
        _run(config, folder, sources, worker, found)
    except InvalidExperiment as error:
        found.update(status="invalid", error=sources().report(error.fault))
    finally:
        worker.close()
    record.write(found, folder)
    return found


def _blank(config: Mapping[str, Any], overrides: Sequence[str]) -> Record:
    return {
        "schema": record.SCHEMA,
        "experiment": config.get("name"),
        "summary": config.get("summary") or "",
        "overrides": list(overrides),
        "status": "passed",
        "error": None,
        "warnings": [],
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "mesh": None,
        "target": None,
        "arrays": {},
        "programs": {},
        "not_supported": {},
        "environment": record.environment(None),
    }


def _run(
    config: Mapping[str, Any], folder: Path, sources: Callable[[], Sources], worker: Worker, found: Record
) -> None:
    experiment = read(config)
    loading = _loading(experiment)
    data_folder = sources().folder(loading) if loading else Path.cwd()
    arrays = data.make(experiment, data_folder)
    _describe(experiment, arrays, found)
    with tempfile.TemporaryDirectory(prefix="shardproof-") as left_here:
        job = {
            "config": dict(config),
            "folder": str(folder.resolve()),
            "data": str(data_folder.resolve()),
            "arrays": left_here,
            "programs": list(experiment.programs),
        }
        events = listen(worker, job, experiment.timeout)
        context: Context | None = None
        runs: list[ProgramRun] = []
        for event in events:
            match event["event"]:
                case "invalid":
                    raise _with_diagnosis(experiment, arrays, _fault(event["fault"]))
                case "types":
                    context = _oracles(experiment, arrays, event, found)
                case "finished":
                    assert context is not None
                    runs.append(_program_run(context, event, Path(left_here)))
                case "died":
                    found.update(status="error", error=event["error"])
                case "log" if event["text"].strip():
                    with open(folder / "worker.log", "a", encoding="utf-8") as log:
                        log.write(event["text"])
    if context is None:
        return
    _check(context, runs, found)
    _draw(context, runs, folder, found)


def _loading(experiment: Experiment) -> tuple[str, ...] | None:
    for array in experiment.arrays:
        if "load(" in getattr(array.init, "text", ""):
            return ("arrays", array.name, "init")
    return None


def _fault(plain: dict[str, Any]) -> Fault:
    return Fault(tuple(plain["key"]), plain["message"], plain["expression"], plain["start"], plain["end"])


def _describe(experiment: Experiment, arrays: Arrays, found: Record) -> None:
    found["mesh"] = {"axes": list(experiment.mesh.axes), "shape": list(experiment.mesh.shape)}
    found["target"] = {"platform": experiment.target.platform, "devices": experiment.mesh.size, "kind": None}
    for array in experiment.arrays:
        found["arrays"][array.name] = {
            "shape": list(array.shape),
            "dtype": array.dtype,
            "spec": spec_json(array.layout.spec),
            "shard_shape": list(array.layout.shard_shape),
        }
        values = arrays[array.name]
        if not dtypes.dtype(array.dtype).exact:
            wide = values.astype(np.complex128)
            for count, what in ((np.isnan(wide).sum(), "NaN"), (np.isinf(wide).sum(), "infinite")):
                if count:
                    found["warnings"].append(f"{count} of the {values.size} values of '{array.name}' are {what}")


def _oracles(experiment: Experiment, arrays: Arrays, types: Event, found: Record) -> Context:
    """Both oracles, interpreted while the worker compiles."""
    found["not_supported"] = types["unsupported"]
    for program, reason in types["unsupported"].items():
        found["warnings"].append(f"program {program} is left out: JAX {types['versions']['jax']} refuses it: {reason}")
    found["target"] = types["target"]
    found["environment"].update(types["versions"])
    context = _context(experiment, arrays, types, pinned.not_pinned(found["overrides"]))
    pinned.fit(context)
    for name, (_, noise) in context.tolerances.items():
        section = context.graph or context.per_device
        assert section is not None
        distinct = {id(v): np.asarray(v) for v in section.values[name]}.values()
        whole = np.concatenate([v.astype(np.complex128).ravel() for v in distinct])
        if not whole.size or not np.abs(np.nan_to_num(whole)).any():
            found["warnings"].append(f"the reference of '{name}' is all zero, which proves nothing")
        elif whole.size > 1 and (whole == whole[0]).all():
            found["warnings"].append(f"the reference of '{name}' has one value everywhere, which proves little")
        elif noise:
            found["warnings"].append(f"the reference of '{name}' is zero to within rounding, which proves little")
    return context


def _context(experiment: Experiment, arrays: Arrays, types: Event, not_pinned: str | None = None) -> Context:
    return Context(
        experiment,
        arrays,
        {name: (tuple(shape), dtype) for name, (shape, dtype) in types["outputs"].items()},
        {
            section: {name: (tuple(shape), dtype) for name, (shape, dtype) in nodes.items()}
            for section, nodes in types["nodes"].items()
        },
        interpret(experiment, "graph", arrays) if experiment.graph else None,
        interpret(experiment, "per_device", arrays) if experiment.per_device else None,
        not_pinned,
    )


def _with_diagnosis(experiment: Experiment, arrays: Arrays, fault: Fault) -> InvalidExperiment:
    """The fault, and where a per-device output fails to be replicated, the edit that would mend it."""
    if fault.key[:1] != ("outputs",) or "left out" not in fault.message or not experiment.graph:
        return InvalidExperiment(fault)
    graph = interpret(experiment, "graph", arrays)
    types = {
        "outputs": {n: [list(np.shape(graph.values[n][0])), _dtype_of(graph.values[n][0])] for n in experiment.outputs},
        "nodes": {},
    }
    findings = diagnosis.diagnose(_context(experiment, arrays, types))
    message = "\n".join([fault.message, *findings])
    return InvalidExperiment(Fault(fault.key, message, fault.expression, fault.start, fault.end))


def _dtype_of(value: Any) -> str:
    kind = np.asarray(value).dtype
    return "float32" if kind == np.float64 else "complex64" if kind == np.complex128 else str(kind)


def _program_run(context: Context, event: Event, arrays: Path) -> ProgramRun:
    layouts: dict[str, Layout] = {name: context.layout(name) for name in context.outputs}
    shapes = {name: shape for name, (shape, _) in context.outputs.items()}
    return program_run(event, shapes, lambda name, position: layouts[name].ranges(position), arrays)


def _check(context: Context, runs: list[ProgramRun], found: Record) -> None:
    ran = [run for run in runs if run.error is None]
    diagnosed: list[str] | None = None
    for run in runs:
        if run.error is not None:
            found["programs"][run.program] = {"status": "error", "error": run.error, "checks": {}}
            continue
        checks = {
            "value": value.check(context, run),
            "layout": layout.check(context, run),
            "replicas": replicas.check(context, run),
            "agreement": agreement.check(context, run, [other for other in ran if other is not run]),
        }
        if context.experiment.values:
            checks["values"] = pinned.check(context, run)
        if checks["value"]["status"] == "failed":
            blame, mine = _blame(context, checks["value"])
            if mine and diagnosed is None:
                diagnosed = diagnosis.diagnose(context)
            checks["value"]["diagnosis"] = [blame, *(diagnosed or [] if mine else [])]
        failed = any(check["status"] == "failed" for check in checks.values())
        found["programs"][run.program] = {
            "status": "failed" if failed else "passed",
            "error": None,
            "checks": checks,
            "outputs": {name: _output(context, name, output) for name, output in run.outputs.items()},
            **run.evidence,
        }
    statuses = [program["status"] for program in found["programs"].values()]
    found["status"] = record.worst([found["status"], *statuses])


def _blame(context: Context, check: dict[str, Any]) -> tuple[str, bool]:
    """Who is wrong, by which oracles disagree; and whether it is the experiment's own per-device program."""
    against: dict[str, bool] = {}
    for output in check["outputs"].values():
        for oracle, verdict in output["against"].items():
            against[oracle] = against.get(oracle, True) and verdict["status"] == "passed"
    if "per_device" not in against:
        return "JAX and the oracle differ: the program, JAX or the compiler is wrong, or the oracle is", False
    if "graph" not in against:
        return (
            "JAX and the SPMD interpreter differ: the program, JAX or the compiler is wrong, or the interpreter is",
            False,
        )
    if against["per_device"]:
        return "JAX computes what per_device says, and that is not what graph says: per_device is wrong", True
    if against["graph"]:
        return "JAX computes what graph says; only the SPMD interpreter differs: the interpreter is wrong", False
    if value.interpreter_agrees(context):
        return "both oracles agree and JAX differs from them: the program, JAX or the compiler is wrong", False
    return "JAX, the SPMD interpreter and graph all differ: per_device is wrong, and so is the program or JAX", True


def _output(context: Context, name: str, output: Output) -> Record:
    whole = output.whole()
    parts = sorted({tuple(stop - start for start, stop in held.ranges) for held in output.held})
    plain = whole.astype(np.float64) if dtypes.dtype(output.dtype).kind == "float" else whole
    if dtypes.dtype(output.dtype).kind == "int":
        plain = whole.astype(object)
    return {
        "shape": list(output.shape),
        "dtype": output.dtype,
        "spec": output.spec if output.spec is not None else spec_json(context.layout(name).spec),
        "shard_shape": list(parts[0]),
        "text": str(whole),
        "values": plain.tolist() if whole.size <= _RECORDED_VALUES else None,
    }


def _draw(context: Context, runs: list[ProgramRun], folder: Path, found: Record) -> None:
    """The pictures, from what was found where a program ran and from the specs where none did."""
    experiment = context.experiment
    platform = found["target"]["platform"]
    on_mesh = [run for run in runs if run.error is None and run.program != "vmap"]
    ids = tuple(on_mesh[0].device_ids) if on_mesh else tuple(range(experiment.mesh.size))
    mesh = pictures.MeshPicture(experiment.mesh.axes, experiment.mesh.shape, ids, platform)
    drawn = [
        pictures.from_layout(
            array.layout,
            name=array.name,
            role="array",
            dtype=array.dtype,
            itemsize=dtypes.dtype(array.dtype).itemsize,
            dims=array.dims,
            device_ids=ids,
            platform=platform,
        )
        for array in experiment.arrays
    ]
    for name, (shape, dtype) in context.outputs.items():
        for run in on_mesh:
            drawn.append(_output_picture(context, name, run, platform))
        if not on_mesh:
            drawn.append(
                pictures.from_layout(
                    Layout(experiment.mesh, shape, experiment.outputs[name]),
                    name=name,
                    role="output",
                    dtype=dtype,
                    itemsize=dtypes.dtype(dtype).itemsize,
                    dims=(None,) * len(shape),
                    device_ids=ids,
                    platform=platform,
                )
            )
    merged = pictures.merge(drawn)
    found["pictures"] = {"mesh": mesh.to_json(), "arrays": [picture.to_json() for picture in merged]}
    record.write_text(folder / "shardings.txt", terminal.plain(mesh, merged))
    record.write_text(folder / "shardings.svg", svg.draw(mesh, merged, experiment.name))


def _output_picture(context: Context, name: str, run: ProgramRun, platform: str) -> pictures.ArrayPicture:
    output = run.outputs[name]
    holders: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for held in output.held:
        holders.setdefault(held.ranges, []).append(held.device)
    spec = tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in output.spec or [])
    padded = spec + ((),) * (len(output.shape) - len(spec))
    return pictures.ArrayPicture(
        name=name,
        role="output",
        shape=output.shape,
        dtype=output.dtype,
        dims=(None,) * len(output.shape),
        spec=spec_text(padded) if output.spec is not None else "a layout without a PartitionSpec",
        shards=tuple(pictures.Shard(ranges, tuple(devices)) for ranges, devices in holders.items()),
        itemsize=dtypes.dtype(output.dtype).itemsize,
        platform=platform,
        programs=(run.program,),
    )
