"""Shardproof runs a sharded JAX computation from one YAML file, checks every device's values, and explains collectives.

`run` runs an experiment and returns its `Record`, `sweep` many of them and returns a table, `check` a function of your
own; `plan` finds its layouts, and `explain` says what a step was compiled to; `read` reads the record of a run folder,
and the table of a sweep; `compose` and `validate` say what an experiment is. docs/api.md shows them.
"""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

from runner.version import __version__

if TYPE_CHECKING:
    from runner.app.api import (
        AUTO,
        Configuration,
        Experiment,
        InvalidConfiguration,
        InvalidExperiment,
        InvalidPlan,
        Record,
        check,
        compose,
        plan,
        read,
        run,
        sweep,
        validate,
    )
    from runner.app.explaining import Explained, compare, explain

__all__ = [
    "AUTO",
    "Configuration",
    "Experiment",
    "Explained",
    "InvalidConfiguration",
    "InvalidExperiment",
    "InvalidPlan",
    "Record",
    "__version__",
    "check",
    "compare",
    "compose",
    "explain",
    "plan",
    "read",
    "run",
    "sweep",
    "validate",
]


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that `import runner` alone is fast."""
    if name not in __all__:
        raise AttributeError(f"module 'runner' has no attribute '{name}'")
    module = "explaining" if name in ("Explained", "compare", "explain") else "api"
    collecting = gc.isenabled()
    # Nothing that an import makes is garbage.
    gc.disable()
    try:
        return getattr(importlib.import_module(f"runner.app.{module}"), name)
    finally:
        if collecting:
            gc.enable()


def __dir__() -> list[str]:
    return sorted(__all__)
