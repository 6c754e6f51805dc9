"""The arrays and outputs of a run in; what the record says of them out."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from runner import dtypes
from runner.link.events import Ranges
from runner.link.target import Output, ProgramRun
from runner.record.model import Held, OutputRecord

_RECORDED_VALUES = 1000
"""Outputs of up to this many elements are recorded with their values."""

_LISTED = 64
"""On up to this many devices the record lists what each of them holds."""


def shards(held: Iterable[tuple[int, Ranges]], device_ids: list[int]) -> list[Held] | None:
    """What each device holds, in the order of the mesh, as `addressable_shards` has it; None on too many devices."""
    if len(device_ids) > _LISTED:
        return None
    return [
        Held(
            device=device,
            index=[list(part) for part in ranges],
            shape=[stop - start for start, stop in ranges],
        )
        for device, ranges in sorted(held, key=lambda shard: device_ids.index(shard[0]))
    ]


def output_of(run: ProgramRun, output: Output) -> OutputRecord:
    """What the record says of an output."""
    parts = sorted({tuple(stop - start for start, stop in place.ranges) for place in output.places})
    text = values = None
    if output.held:
        whole = output.whole()
        kind = dtypes.dtype(output.dtype).kind
        plain = whole.astype(np.float64) if kind == "float" else whole.astype(object) if kind == "int" else whole
        text, values = str(whole), plain.tolist() if whole.size <= _RECORDED_VALUES else None
    return OutputRecord(
        shape=list(output.shape),
        dtype=output.dtype,
        spec=None if output.spec is None else output.spec.padded(len(output.shape)).json(),
        shard_shape=list(parts[0]),
        shards_from=run.program if run.program.on_mesh else "spec",
        shards=shards(((place.device, place.ranges) for place in output.places), run.device_ids),
        text=text,
        values=values,
    )
