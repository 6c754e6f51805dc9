"""Configures this process like a fresh one for an experiment, whatever ran before.

The JAX settings of a program's header persist: each job begins with JAX's own configuration, and if the number of
simulated devices changes, the backends are created again. A program that differs in anything else that persists (the
platform, libtpu's environment) is another kind of job, which another process does.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from typing import Any, cast

import jax

from runner.experiment import topology
from runner.experiment.imported import SETTINGS_OF_A_PROCESS, SETTINGS_OF_THE_RUN
from runner.experiment.model import Experiment
from runner.link.events import Done
from runner.worker import calls, processes, shared, versions

_config: Any = cast("Any", jax.config)

_simulated: int | None = None
"""The number of devices that the backends of this process simulate, if it has any."""


def prepare(experiment: Experiment) -> None:
    """Configure JAX for a job, before lowering the graph asks for a device."""
    versions.leave_out_own_frames()
    versions.keep_lines_of_backward_rules()
    versions.take_mesh_of_each_call()
    now = _config.values
    for name, value in _own().items():
        if now[name] != value:
            calls.configure(name, value)
    calls.configure("jax_enable_x64", experiment.x64)
    absent = experiment.target.topology
    if absent is not None and absent.platform == "tpu":
        os.environ.update(topology.LIBTPU_ENVIRONMENT)
        calls.configure("jax_platforms", "cpu")
    elif experiment.target.platform == "cpu":
        calls.configure("jax_platforms", "cpu")
        # As the headers of its programs do.
        here = experiment.target.devices_each if experiment.on_mesh else 1
        simulate(absent.devices if absent is not None else here)
    else:
        processes.connect()


@functools.cache
def _own() -> Mapping[str, Any]:
    """JAX's settings with which each job begins, as they are before the first: those of the user's environment.

    Programs set others, and so do the arguments of `runner.check`.
    """
    values: Mapping[str, Any] = _config.values
    return {**{name: values[name] for name in values if name not in SETTINGS_OF_A_PROCESS}, **SETTINGS_OF_THE_RUN}


def simulate(devices: int) -> None:
    """Set the number of simulated CPU devices; arrays on the old devices are lost."""
    global _simulated
    if _simulated == devices:
        return
    if _simulated is not None:
        shared.forget()
        versions.clear_backends()
    calls.configure("jax_num_cpu_devices", devices)
    processes.connect()
    _simulated = devices


def done() -> Done:
    """Describe this process after a job, for the parent."""
    sys.stderr.flush()
    return Done(log=os.fstat(2).st_size, resident=_resident())


def _resident() -> int | None:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
