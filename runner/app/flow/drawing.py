"""Takes what the programs of a run did; puts the pictures of its arrays into the record, and draws its files."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from runner.app.flow import dimensions
from runner.app.flow.dimensions import Fitting
from runner.base import dtypes
from runner.checks.context import Context
from runner.link.target import ProgramRun
from runner.reports.record import writing
from runner.reports.record.folders import PICTURES
from runner.reports.record.model import Record, Shard
from runner.reports.record.readable import readable
from runner.reports.show import pictures

_PICTURES: dict[str, Callable[[Record], str | None]] = {
    file: importlib.import_module(f"runner.reports.show.{module}").picture for file, module in PICTURES.items()
}
"""What draws each picture of a run of its record; None: there is nothing to draw."""


def draw(context: Context, runs: list[ProgramRun], folder: Path, record: Record, fitting: Fitting) -> None:
    """Draw the pictures, from the devices' values where a program ran and from the specs otherwise.

    `fitting` has the names that may be those of the outputs' dimensions.
    """
    experiment = context.experiment
    assert record.target is not None
    platform = record.target.platform
    on_mesh = [run for run in runs if run.error is None and run.program.on_mesh]
    ids = tuple(on_mesh[0].ran.device_ids) if on_mesh else tuple(range(experiment.mesh.size))
    absent = experiment.target.topology.name if experiment.target.topology else ""
    by_process: dict[int, list[int]] = {}
    for device, process in sorted(on_mesh[0].ran.process_of.items()) if on_mesh else ():
        by_process.setdefault(process, []).append(device)
    processes = tuple(tuple(devices) for _, devices in sorted(by_process.items()))
    mesh = pictures.MeshPicture(experiment.mesh.axes, experiment.mesh.shape, ids, platform, absent, processes)
    drawn = [
        pictures.from_layout(array.layout, array.name, "array", array.dtype, array.dims, ids, platform)
        for array in experiment.arrays
    ]
    shapes = {name: shape for name, (shape, _) in context.outputs.items()}
    named = dimensions.names(fitting, experiment.dims, shapes)
    for name, (shape, dtype) in context.outputs.items():
        dims = named.get(name, (None,) * len(shape))
        for run in on_mesh:
            # A gradient that lines replace is no output of their section's programs.
            if name in run.outputs:
                drawn.append(_output_picture(context, name, run, platform, dims))
        if not on_mesh:
            drawn.append(pictures.from_layout(context.layout(name), name, "output", dtype, dims, ids, platform))
    record.pictures = pictures.recorded(mesh, pictures.merge(drawn))
    shown = readable(record)
    for file, picture in _PICTURES.items():
        if (text := picture(shown)) is not None:
            writing.write_text(folder / file, text)


def _output_picture(
    context: Context, name: str, run: ProgramRun, platform: str, dims: tuple[str | None, ...]
) -> pictures.ArrayPicture:
    output = run.outputs[name]
    holders: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for place in output.places:
        holders.setdefault(place.ranges, []).append(place.device)
    return pictures.ArrayPicture(
        name=name,
        role="output",
        shape=output.shape,
        dtype=output.dtype,
        dims=dims,
        spec="a layout without a PartitionSpec" if output.spec is None else str(output.spec.padded(len(output.shape))),
        shards=tuple(Shard(ranges, tuple(devices)) for ranges, devices in holders.items()),
        itemsize=dtypes.dtype(output.dtype).itemsize,
        platform=platform,
        programs=(run.program,),
    )
