"""Refuses an experiment whose values this machine's memory cannot hold.

The estimate is the least that a run needs: the arrays in this process, in the reference and on simulated devices. An
experiment that passes may still run out of memory; one that is refused certainly would.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

from runner.base import dtypes
from runner.base.faults import Key, invalid
from runner.base.layout import Typed
from runner.base.words import bytes_text
from runner.experiment.model import Experiment

_REFERENCE = 8
"""Bytes of an element in the reference, which is in float64."""


def check(experiment: Experiment) -> None:
    """Raise `InvalidExperiment` if the arrays do not fit into memory; nothing is allocated."""
    sizes = {array.name: _array_bytes(experiment, array.name) for array in experiment.arrays}
    need = sum(sizes.values())
    have = available()
    if have is None or need <= have:
        return
    largest = max(sizes, key=lambda name: sizes[name])
    array = experiment.array(largest)
    whole = math.prod(array.shape) * dtypes.dtype(array.dtype).itemsize
    raise invalid(
        ("arrays", largest, "shape"),
        f"the arrays do not fit into memory: '{largest}' alone has {bytes_text(whole)}; with the reference in float64 "
        f"and what the devices hold the run takes at least {bytes_text(need)}, and {bytes_text(have)} are free; "
        f"arrays with 1/{-(-need // have)} of the elements would fit",
    )


def _array_bytes(experiment: Experiment, name: str) -> int:
    array = experiment.array(name)
    size, itemsize = math.prod(array.shape), dtypes.dtype(array.dtype).itemsize
    here = size * (itemsize + _REFERENCE)
    if experiment.target.platform != "cpu":
        return here
    on_devices = experiment.mesh.size * math.prod(array.layout.shard_shape) * itemsize
    # The worker makes the array as well, and places it.
    return here + size * itemsize + (on_devices if experiment.programs != ("vmap",) else 0)


def check_values(experiment: Experiment, types: Mapping[str, Mapping[str, Typed]]) -> None:
    """Raise `InvalidExperiment` if the reference cannot hold a value of some line.

    `types` has the shape and the dtype of each line's value for each section; for `per_device`, on one device.
    """
    have = available()
    if have is None:
        return
    for section, values in types.items():
        for name, (shape, _) in values.items():
            need = math.prod(shape) * _REFERENCE
            if need > have:
                raise invalid(
                    _line(section, name),
                    f"'{name}' has {math.prod(shape):,} elements: {bytes_text(need)} in the reference's float64, and "
                    f"{bytes_text(have)} are free; 1/{-(-need // have)} of them would fit",
                )


def _line(section: str, name: str) -> Key:
    return (section, *name.split("."))


def available() -> int | None:
    """The bytes of memory that this process can still use; None if the system does not say."""
    sizes = [here for here in (_free_on_the_machine(), _free_in_the_group()) if here is not None]
    return min(sizes, default=None)


def _free_on_the_machine() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except FileNotFoundError:
        # Outside of Linux, free memory is unknown without starting other programs.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _free_in_the_group() -> int | None:
    """The bytes that a container's limit leaves; None if there is no limit."""
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return None
    return None if limit == "max" else max(int(limit) - int(used), 0)
