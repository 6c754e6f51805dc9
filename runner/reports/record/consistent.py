"""Finds the inconsistencies of a record whose fields have the right types.

The code that shows a record relies on a size for each mesh axis, complete pictures, and values that match their shapes.
The runner only writes such records, but a file may contain anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any

from runner.base import codec, dtypes
from runner.base.codec import Misfit
from runner.base.untyped import is_dict, is_list, is_mapping, is_sequence
from runner.experiment.program import Program
from runner.reports.record.model import ArrayRecord, CompiledProgram, OutputRecord, Pictures, Record

_LARGEST = 1 << 62
"""The largest valid size, index or number of bytes, so that sums of a few still fit into 64 bits."""


def require(record: Record, data: dict[str, Any]) -> None:
    """Raise `Misfit` for the first inconsistency."""
    require_integers(data)
    _programs(record, data)
    mesh = record.mesh
    if mesh is not None and len(mesh.axes) != len(mesh.shape):
        raise Misfit(f"mesh has {len(mesh.axes)} axes and {len(mesh.shape)} sizes")
    for name, array in record.arrays.items():
        _array(array, f"arrays.{name}")
    for program, compiled in record.compiled.items():
        for part in ("memory", "cost", "timing", "estimate", "profile"):
            require_finite(getattr(compiled, part), f"programs.{program}.{part}")
        for name, output in compiled.outputs.items():
            _array(output, f"programs.{program}.outputs.{name}")
            _values(output, f"programs.{program}.outputs.{name}")
    if record.pictures is not None:
        require_pictures(record.pictures)


def require_integers(data: object, at: str = "") -> None:
    """Raise `Misfit` for an integer in plain data that is too large to compute with."""
    if isinstance(data, int) and abs(data) > _LARGEST:
        raise Misfit(f"{at} is {data:.1e}, which is too large")
    if is_dict(data):
        for key, value in data.items():
            require_integers(value, f"{at}.{key}" if at else str(key))
    elif is_list(data):
        for number, value in enumerate(data):
            require_integers(value, f"{at}[{number}]")


def _programs(record: Record, data: dict[str, Any]) -> None:
    """Require that a program with outputs is a valid `CompiledProgram`: else it would pass as an uncompiled one."""
    for name, program in record.programs.items():
        if name not in tuple(Program):
            raise Misfit(f"programs has {name!r:.60}, which is not a program")
        if "outputs" in data["programs"][name] and not isinstance(program, CompiledProgram):
            codec.build_at(CompiledProgram, data["programs"][name], f"programs.{name}")


def require_finite(value: object, at: str = "") -> None:
    """Raise `Misfit` for a number of a value that is NaN or infinite; `at`: the path of the value in its file."""
    if isinstance(value, float) and not math.isfinite(value):
        raise Misfit(f"{at} is {value}, not a finite number")
    if is_sequence(value):
        for number, inner in enumerate(value):
            require_finite(inner, f"{at}[{number}]")
    elif is_dataclass(value) or is_mapping(value):
        for key, inner in (vars(value) if is_dataclass(value) else value).items():
            require_finite(inner, f"{at}.{key}" if at else str(key))


def _array(array: ArrayRecord, at: str) -> None:
    for number, held in enumerate(array.shards or ()):
        _ranges(held.index, array.shape, f"{at}.shards[{number}].index")


def _ranges(ranges: Sequence[Sequence[int]], shape: Sequence[int], at: str) -> None:
    whole = len(ranges) == len(shape) and all(
        len(bounds) == 2 and 0 <= bounds[0] <= bounds[1] <= size for bounds, size in zip(ranges, shape, strict=True)
    )
    if not whole:
        raise Misfit(f"{at} is {list(map(list, ranges))!r:.60}, which is not a part of {list(shape)!r:.60}")


def _values(output: OutputRecord, at: str) -> None:
    if output.dtype not in dtypes.NAMES:
        raise Misfit(f"{at}.dtype is {output.dtype!r:.60}, which is not a dtype")
    if output.values is not None and not _has_shape(output.values, output.shape):
        raise Misfit(f"{at}.values does not have the shape {output.shape!r:.60}")


def _has_shape(values: Any, shape: Sequence[int]) -> bool:
    if not shape:
        return not is_list(values)
    return is_list(values) and len(values) == shape[0] and all(_has_shape(row, shape[1:]) for row in values)


def require_pictures(pictures: Pictures) -> None:
    """Raise `Misfit` for pictures that cannot be drawn."""
    mesh = pictures.mesh
    if len(mesh.axes) != len(mesh.shape) or min(mesh.shape, default=1) < 1:
        raise Misfit(f"pictures.mesh has {len(mesh.axes)} axes and the sizes {list(mesh.shape)!r:.60}")
    if math.prod(mesh.shape) != len(mesh.device_ids):
        raise Misfit(f"pictures.mesh has {len(mesh.device_ids)} devices at {math.prod(mesh.shape)} places")
    for number, array in enumerate(pictures.arrays):
        at = f"pictures.arrays[{number}]"
        if len(array.dims) != len(array.shape):
            raise Misfit(f"{at} has {len(array.dims)} dims and the shape {list(array.shape)!r:.60}")
        if not array.shards or not all(shard.devices for shard in array.shards):
            raise Misfit(f"{at} has no shards, or one that no device has")
        for k, shard in enumerate(array.shards):
            _ranges(shard.ranges, array.shape, f"{at}.shards[{k}].ranges")
