"""Times collectives, products and copies on the local devices.

Its arguments are the process that started it (`lifeline.owner`), with which it ends, and the request. Each measure is a
line of JSON on standard output; all other output goes to standard error.
"""

from __future__ import annotations

import sys

from runner.link import lifeline

if __name__ == "__main__":
    lifeline.die_with(sys.argv[1])

import functools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from runner.link.measures import MeasuredRun, MeasuringRequest
from runner.worker import calls

_lax, _numpy = cast("Any", jax.lax), cast("Any", jnp)

_WARM = 2
"""Runs that are not counted."""

_EMPTY_PROGRAMS = 100
"""Products and copies grow until one takes as long as so many empty programs: then starting it is a hundredth."""

_SIDES = (1024, 2048, 4096, 8192, 16384)
"""The rows and columns of the matrices that are multiplied."""

_COPIED = tuple(2**power for power in (26, 28, 30, 32))
"""The bytes on each device that are copied."""


def main() -> None:
    """Measure, and print each measure as soon as it is known."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    wanted = MeasuringRequest(**json.loads(sys.argv[2]))
    if wanted.platform == "cpu":
        calls.configure("jax_platforms", "cpu")
        calls.configure("jax_num_cpu_devices", wanted.devices)
    for measure in measures(wanted):
        channel.write(json.dumps(vars(measure)) + "\n")
        channel.flush()


def measures(wanted: MeasuringRequest) -> Iterator[MeasuredRun]:
    """Measure the local devices, the smallest sizes first."""
    devices = calls.devices(wanted.platform)[: wanted.devices or None]
    count = len(devices)
    mesh = calls.make_mesh((count,), ("x",), axis_types=(AxisType.Auto,), devices=devices)
    kind = devices[0].device_kind
    measured = functools.partial(MeasuredRun, device=kind, devices=count)
    few = max(3, wanted.runs // 5)
    empty = _time(calls.jit(_nothing), _placed(mesh, P("x"), (count,), jnp.float32), wanted.runs)
    yield measured(kind="dispatch", dtype="float32", bytes=0, seconds=empty)
    # One device has nobody to communicate with.
    for collective, size in ((c, s) for c in wanted.kinds for s in wanted.sizes if count > 1):
        # As in nccl-tests: the size of the whole for a gather or scatter, else what each device contributes.
        elements = max(count * count, size // 4 // (count * count) * count * count)
        local = elements // count if collective == "all-gather" else elements
        function = calls.jit(
            calls.shard_map(
                _COLLECTIVES[collective](count), mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False
            )
        )
        operand = _placed(mesh, P("x"), (local * count,), jnp.float32)
        seconds = _time(function, operand, wanted.runs)
        yield measured(kind=collective, dtype="float32", bytes=4 * elements, seconds=seconds)
    least = _EMPTY_PROGRAMS * empty
    for dtype in wanted.dtypes:

        def product(side: int, dtype: str = dtype) -> float:
            operand = _placed(mesh, P("x"), (count, side, side), jnp.dtype(dtype))
            return _time(calls.jit(_product), operand, few)

        side, seconds = _grown(_SIDES, least, product)
        yield measured(kind="product", dtype=dtype, bytes=2 * side**3, seconds=seconds)

    def copy(size: int) -> float:
        return _time(calls.jit(_copy), _placed(mesh, P("x"), (count * size // 4,), jnp.float32), few)

    size, seconds = _grown(_COPIED, least, copy)
    yield measured(kind="copy", dtype="float32", bytes=2 * size, seconds=seconds)


def _grown(sizes: Sequence[int], least: float, timed: Callable[[int], float]) -> tuple[int, float]:
    """The first size that takes at least so many seconds, or the last one, and its time."""
    size, seconds = sizes[0], timed(sizes[0])
    for larger in sizes[1:]:
        if seconds >= least:
            break
        size, seconds = larger, timed(larger)
    return size, seconds


_COLLECTIVES: dict[str, Callable[[int], Callable[[Any], Any]]] = {
    "all-gather": lambda _: lambda a: _lax.all_gather(a, "x", tiled=True),
    "reduce-scatter": lambda _: lambda a: _lax.psum_scatter(a, "x", tiled=True),
    "all-reduce": lambda _: lambda a: _lax.psum(a, "x"),
    "all-to-all": lambda _: lambda a: _lax.all_to_all(a, "x", 0, 0, tiled=True),
    "collective-permute": lambda count: lambda a: _lax.ppermute(a, "x", [(i, (i + 1) % count) for i in range(count)]),
}


def _nothing(a: Any) -> Any:
    return a


def _copy(a: Any) -> Any:
    return a + 1


def _product(a: Any) -> Any:
    return _numpy.einsum("dij,djk->dik", a, a, precision="highest")


def _placed(mesh: jax.sharding.Mesh, spec: P, shape: tuple[int, ...], dtype: Any) -> Any:
    create = calls.jit(lambda: _numpy.ones(shape, dtype), out_shardings=NamedSharding(mesh, spec))
    return calls.block_until_ready(create())


def _time(function: Callable[[Any], Any], operand: Any, runs: int) -> float:
    """The median time of a blocked run, in seconds."""
    taken: list[float] = []
    for _ in range(_WARM + runs):
        start = time.perf_counter()
        calls.block_until_ready(function(operand))
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[_WARM:])


if __name__ == "__main__":
    main()
