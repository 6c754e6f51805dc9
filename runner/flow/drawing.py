"""What the programs of a run left in; the pictures of its arrays out."""

from __future__ import annotations

from pathlib import Path

from runner import dtypes
from runner.checks.context import Context
from runner.layout import Layout, spec_text
from runner.link.target import ProgramRun
from runner.record import files
from runner.record.model import Pictures, Record
from runner.show import pictures, svg, terminal


def draw(context: Context, runs: list[ProgramRun], folder: Path, found: Record) -> None:
    """The pictures, from what was found where a program ran and from the specs where none did."""
    experiment = context.experiment
    assert found.target is not None
    platform = found.target.platform
    on_mesh = [run for run in runs if run.error is None and run.program != "vmap"]
    ids = tuple(on_mesh[0].device_ids) if on_mesh else tuple(range(experiment.mesh.size))
    absent = experiment.target.topology.name if experiment.target.topology else ""
    mesh = pictures.MeshPicture(experiment.mesh.axes, experiment.mesh.shape, ids, platform, absent)
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
    found.pictures = Pictures(mesh=mesh.to_json(), arrays=[picture.to_json() for picture in merged])
    files.write_text(folder / "shardings.txt", terminal.plain(mesh, merged))
    files.write_text(folder / "shardings.svg", svg.draw(mesh, merged, experiment.name))


def _output_picture(context: Context, name: str, run: ProgramRun, platform: str) -> pictures.ArrayPicture:
    output = run.outputs[name]
    holders: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for place in output.places:
        holders.setdefault(place.ranges, []).append(place.device)
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
