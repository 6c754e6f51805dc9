"""Decides whether JAX may be imported for the experiment that is likely to run next.

The process that runs the experiment validates it by the same functions, but must import them first, while the waiting
worker already has them. Imports no JAX.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.base import dtypes
from runner.experiment import data, expect, memory
from runner.experiment.imported import imports
from runner.experiment.model import Experiment
from runner.experiment.reader import read

_BYTES = 1 << 20
"""The most bytes of arrays that are created to check them; the other process creates them as well."""


def is_valid(definition: Mapping[str, Any]) -> bool:
    """Whether an experiment is valid and one worker on this machine runs it; False if this takes long to decide."""
    try:
        expect.refusal(definition)
        if imports(definition):
            return False
        experiment = read(definition)
        if not _is_small(experiment):
            return False
        memory.check(experiment)
        data.make(experiment, Path.cwd())
    except Exception:
        # The other process finds the same error and reports it.
        return False
    return True


def _is_small(experiment: Experiment) -> bool:
    target = experiment.target
    if target.processes > 1 or target.cluster or target.topology is not None or data.loading(experiment) is not None:
        return False
    arrays = experiment.arrays
    return sum(math.prod(array.shape) * dtypes.dtype(array.dtype).itemsize for array in arrays) <= _BYTES
