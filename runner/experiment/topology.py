"""Reads the name of a topology: its platform, its number of devices, and how JAX is asked for it. No JAX.

A topology is hardware that need not be here: the compiler compiles for it, and nothing runs. JAX gets it from
`jax.experimental.topologies.get_topology_desc`, except simulated CPU devices, which are always here.
"""

from __future__ import annotations

import importlib.util
import math
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field

from runner.base.faults import Key, invalid, nearest
from runner.base.lazy import dataclass
from runner.experiment.config.slices import GENERATIONS

LIBTPU_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "2",
}
"""Settings with which libtpu neither looks for TPUs, nor reports that there are none, nor locks the machine.

libtpu writes messages below the log level to files `tpu_driver.*` in the temporary folder; errors are still logged. The
accelerator type may be any valid one: without a TPU only the report depends on it.
"""


MOST_CPUS = 2048
"""The largest number of CPU devices of one process for which XLA compiles."""


@dataclass(frozen=True)
class Topology:
    """A topology: `v5e:16x16` for TPUs; `1x1x8`, partitions by hosts by GPUs, for more of the GPU of this machine;
    `cpu:8` for simulated CPU devices on which nothing runs.

    `shape` is that of one of its `slices`.
    """

    of_slice: str
    platform: str
    shape: tuple[int, ...]
    devices_per_chip: int = 1
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    slices: int = 1

    @property
    def name(self) -> str:
        """The name of one slice, with the number of slices if there are several: `2 × v5e:16x16`."""
        return self.of_slice if self.slices == 1 else f"{self.slices} × {self.of_slice}"

    @property
    def generation(self) -> str | None:
        """`v5e` of `v5e:16x16`; None but for TPUs."""
        return self.of_slice.partition(":")[0] if self.platform == "tpu" else None

    @property
    def devices(self) -> int:
        """The number of JAX devices."""
        return math.prod(self.shape) * self.devices_per_chip * self.slices

    @property
    def arguments(self) -> dict[str, str | int]:
        """The arguments of `get_topology_desc`."""
        if self.platform == "gpu":
            return {"platform": "cuda", "topology_name": self.of_slice, "topology": self.of_slice}
        slices = {"num_slices": self.slices} if self.slices > 1 else {}
        return {"platform": self.platform, "topology_name": self.of_slice, **self.options, **slices}

    @property
    def compiler_options(self) -> dict[str, int]:
        """The options of XLA with which to compile for it: to measure each product on a GPU takes minutes."""
        return {"xla_gpu_autotune_level": 0} if self.platform == "gpu" else {}

    def over_network(self, shape: Sequence[int]) -> tuple[int, ...] | None:
        """The number of slices along each axis of a mesh of that shape, first axes first; None if indivisible."""
        left, counts = self.slices, list[int]()
        for size in shape:
            counts.append(math.gcd(size, left))
            left //= counts[-1]
        return tuple(counts) if left == 1 else None

    @property
    def configuration(self) -> list[str]:
        """The lines of a program that make JAX compile for it; they use `os` and `jax`."""
        if self.platform == "cpu":
            return [
                'jax.config.update("jax_platforms", "cpu")',
                f'jax.config.update("jax_num_cpu_devices", {self.devices})',
            ]
        if self.platform == "gpu":
            return []
        variables = [f'    {name}="{value}",' for name, value in LIBTPU_ENVIRONMENT.items()]
        head = ["# libtpu compiles without a TPU: it need not look for one.", "os.environ.update("]
        return [*head, *variables, ")", 'jax.config.update("jax_platforms", "cpu")']

    @property
    def not_here(self) -> str:
        """The reason why nothing is run."""
        return f"compiled for {self.name}, {absence(self.of_slice)}"

    def mesh_shape(self, axes: int) -> tuple[int, ...]:
        """The shape of a mesh of `axes` axes with all devices, along the topology's own dimensions where possible."""
        sizes = [size for size in self.shape if size > 1]
        if self.devices_per_chip > 1:
            sizes.append(self.devices_per_chip)
        sizes = [self.slices, *sizes] if self.slices > 1 else sizes
        first, rest = sizes[: axes - 1], sizes[axes - 1 :]
        return (*first, math.prod(rest), *(1,) * (axes - 1 - len(first)))


def absence(name: str, devices: int = 1) -> str:
    """The reason why nothing runs on a topology, as the end of a sentence that names it, or its `devices`."""
    if name.startswith("cpu:"):
        return "and not run"
    return "which is not here" if devices == 1 else "which are not here"


_NAME = re.compile(r"(?:(?P<generation>[A-Za-z0-9]+):)?(?P<shape>\d+(?:x\d+)*)\Z")
KEY: Key = ("target", "topology")


def parse(name: object, platform: str, slices: int = 1) -> Topology:
    """The topology of that name, with `slices` slices. `platform` is the target's; the name of a TPU overrides it.

    Raises `InvalidExperiment` for an invalid name; only the compiler knows whether the hardware exists.
    """
    match = _NAME.match(name) if isinstance(name, str) else None
    if match is None:
        raise invalid(KEY, f"{name!r} is not a topology; write a TPU generation and the chips along each dimension, "
                           "such as v5e:16x16 or v5p:4x4x8, or 1x1x8 for 8 GPUs, cpu:8 for 8 CPU devices")  # fmt: skip
    shape = tuple(map(int, match["shape"].split("x")))
    if 0 in shape:
        raise invalid(KEY, f"'{name}' has a dimension of 0 chips")
    if match["generation"] is None:
        if slices > 1:
            raise invalid(("target", "slices"), f"GPUs have no slices; {name} counts partitions, hosts and GPUs")
        return _gpus(str(name), shape, platform)
    if match["generation"] == "cpu":
        return _simulated(str(name), shape, slices)
    generation = GENERATIONS.get(match["generation"])
    if generation is None:
        hint = nearest(match["generation"], GENERATIONS) or f"; there are {', '.join(GENERATIONS)}"
        raise invalid(KEY, f"no TPU generation '{match['generation']}'{hint}")
    if len(shape) != generation.dimensions:
        example = "x".join(["4"] * generation.dimensions)
        raise invalid(KEY, f"the chips of {match['generation']} lie in {generation.dimensions} dimensions, not "
                           f"{len(shape)}: {match['generation']}:{example}, for example")  # fmt: skip
    return Topology(str(name), "tpu", shape, generation.devices_per_chip, generation.options, slices)


def _simulated(name: str, shape: tuple[int, ...], slices: int) -> Topology:
    if len(shape) > 1:
        raise invalid(KEY, f"simulated CPU devices have a number alone: cpu:{math.prod(shape)}")
    if math.prod(shape) > MOST_CPUS:
        raise invalid(KEY, f"XLA compiles for no more than {MOST_CPUS:,} simulated CPU devices; '{name}' has more")
    if slices > 1:
        raise invalid(("target", "slices"), f"CPUs have no slices; {name} is a number of simulated devices")
    return Topology(name, "cpu", shape)


def _gpus(name: str, shape: tuple[int, ...], platform: str) -> Topology:
    if platform == "tpu":
        raise invalid(KEY, f"'{name}' names no TPU generation, as v5e:2x4 does; there are {', '.join(GENERATIONS)}")
    if len(shape) != 3:
        raise invalid(KEY, f"'{name}' is not a topology of GPUs, which counts partitions, hosts and GPUs: 1x1x8")
    return Topology(name, "gpu", shape)


def missing(topology: Topology) -> str | None:
    """The reason why this machine cannot compile for a topology, if its compiler is not installed; else None."""
    if topology.platform != "tpu" or importlib.util.find_spec("libtpu") is not None:
        return None
    here = sys.platform == "linux" and platform.machine() == "x86_64"
    remedy = ": pip install 'shardproof[aot]'" if here else ", which there is for Linux on x86-64 only"
    return f"compiling for {topology.name} needs libtpu{remedy}"


def require(topology: Topology) -> None:
    """Raise `InvalidExperiment` if the compiler for a topology is not installed."""
    reason = missing(topology)
    if reason:
        raise invalid(KEY, reason)
