"""Changes a job for one of several JAX processes.

All processes do the same job in step, since a collective waits for all of them. They agree on decisions that depend on
the clock. The first process does work that is needed only once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import jax
import numpy as np

from runner.base.faults import Fault
from runner.base.lazy import dataclass
from runner.link import together
from runner.link.events import Called, Invalid
from runner.worker import calls, versions


@dataclass(frozen=True)
class Membership:
    """The number of this process, how many there are, and the address where they meet.

    `local` are the devices of its machine that are its own; None: JAX decides.
    """

    number: int = 0
    count: int = 1
    address: str = ""
    local: tuple[int, ...] | None = None

    @property
    def first(self) -> bool:
        """Whether this process does the work that is needed only once."""
        return self.number == 0


ours = Membership()
"""The membership of this process; it is alone unless its parent says otherwise."""


def join(arguments: Sequence[str]) -> None:
    """Set this process's number, the count, the coordinator's address and its devices from the arguments."""
    global ours
    if len(arguments) > 1:
        number, count, address, *local = arguments
        ours = Membership(int(number), int(count), address, tuple(map(int, local)) or None)


def called() -> Called | Invalid:
    """Set the membership of this process from the cluster that started it."""
    global ours
    cluster = versions.of_cluster()
    if isinstance(cluster, str):
        return Invalid(fault=Fault(("target", "cluster"), cluster))
    ours = Membership(*cluster)
    local = None if ours.local is None else list(ours.local)
    return Called(number=ours.number, count=ours.count, address=ours.address, local=local, jax=jax.__version__)


_connected = False


def connect() -> None:
    """Connect to the other processes, before this process has devices."""
    global _connected
    if ours.count > 1 and not _connected:
        # Most experiments run in one process.
        from runner.link import wire

        calls.configure("jax_cpu_collectives_implementation", "gloo")
        # In a cluster the address was configured. By default JAX's coordinator listens on every interface.
        _distributed.initialize(
            ours.address,
            ours.count,
            ours.number,
            ours.local,
            cluster_detection_method="deactivate",
            coordinator_bind_address=os.environ.get("JAX_COORDINATOR_BIND_ADDRESS") or wire.here(ours.address),
        )
        _connected = True


_distributed: Any = cast("Any", jax).distributed


def folders(folder: Path, arrays: Path) -> tuple[Path, Path]:
    """The folders for this process's programs and values; all processes read the same programs."""
    if ours.first:
        return folder, arrays
    own = together.folder(arrays, ours.number)
    own.mkdir(exist_ok=True)
    return own, own


_asked = 0
"""How many values the processes have exchanged so far."""


def agreed(number: float) -> float:
    """The largest of the processes' values, once all have one."""
    global _asked
    if ours.count == 1:
        return number
    _asked += 1
    return max(map(float, versions.exchanged(str(_asked), ours.number, ours.count, repr(float(number)))))


def wait() -> None:
    """Wait for the other processes, which may still be compiling."""
    agreed(0.0)


def placed(module: ModuleType, mesh: Any) -> Any:
    """Place a program's arrays on a mesh, as its own `main` does."""
    place: Callable[[Any, Any], Any] = calls.device_put if ours.count == 1 else module.place
    return place(module.inputs(), module.shardings(mesh))


def put(value: np.ndarray, sharding: Any) -> jax.Array:
    """Place an array; each process contributes its own devices' shards."""
    if ours.count == 1:
        return calls.device_put(value, sharding)
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def idle(devices: Sequence[Any], numbers: Iterable[int]) -> int | None:
    """The number of a process without any of these devices; None if each has some."""
    occupied = {devices[number].process_index for number in numbers}
    return next((process for process in range(ours.count) if process not in occupied), None)


def number_of(device: Any) -> int:
    """The position of a device among all devices; JAX's ids are offset for each process."""
    if ours.count == 1:
        return device.id
    return calls.devices(device.platform).index(device)


def on_one_device(platform: str | None = None) -> Any:
    """The first device of this process."""
    return calls.local_devices(backend=platform)[0]
