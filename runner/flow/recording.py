"""The arrays and outputs of a run in; what the record says of them out."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from runner import dtypes
from runner.link.target import Output, ProgramRun, Ranges
from runner.record.record import Record

_RECORDED_VALUES = 1000
"""Outputs of up to this many elements are recorded with their values."""

_LISTED = 64
"""On up to this many devices the record lists what each of them holds."""


def shards(held: Iterable[tuple[int, Ranges]], device_ids: list[int]) -> list[Record] | None:
    """What each device holds, in the order of the mesh, as `addressable_shards` has it; None on too many devices."""
    if len(device_ids) > _LISTED:
        return None
    in_order = sorted(held, key=lambda shard: device_ids.index(shard[0]))
    return [
        {"device": device, "index": [list(part) for part in ranges], "shape": [stop - start for start, stop in ranges]}
        for device, ranges in in_order
    ]


def output_of(run: ProgramRun, output: Output) -> Record:
    parts = sorted({tuple(stop - start for start, stop in place.ranges) for place in output.places})
    described = {
        "shape": list(output.shape),
        "dtype": output.dtype,
        "spec": None if output.spec is None else output.spec.padded(len(output.shape)).json(),
        "shard_shape": list(parts[0]),
        "shards_from": run.program if run.program.on_mesh else "spec",
        "shards": shards(((place.device, place.ranges) for place in output.places), run.device_ids),
    }
    if not output.held:
        return {**described, "text": None, "values": None}
    whole = output.whole()
    plain = whole.astype(np.float64) if dtypes.dtype(output.dtype).kind == "float" else whole
    if dtypes.dtype(output.dtype).kind == "int":
        plain = whole.astype(object)
    return {
        **described,
        "text": str(whole),
        "values": plain.tolist() if whole.size <= _RECORDED_VALUES else None,
    }
