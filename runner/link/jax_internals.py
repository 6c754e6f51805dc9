"""Asks JAX, in a process that has imported it, for what only its private modules know.

`runner/worker/versions.py` does so for the worker; tests/test_house.py says which modules may.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any


def has_devices() -> bool:
    """Whether JAX has made its devices; True, too, where a release no longer says so."""
    bridge: Any = importlib.import_module("jax._src.xla_bridge")
    return not hasattr(bridge, "backends_are_initialized") or bool(bridge.backends_are_initialized())


def mesh_of_with() -> Any:
    """The mesh of the older `with mesh:` around the call; None where there is none."""
    resources: Any = getattr(importlib.import_module("jax._src.mesh"), "thread_resources", None)
    mesh = None if resources is None else resources.env.physical_mesh
    return mesh if mesh is not None and mesh.axis_names else None


def pytree_nodes() -> Mapping[type, Any]:
    """The registered pytree classes, each with its `to_iter` and `from_iter`; none before JAX is imported."""
    return importlib.import_module("jax._src.tree_util")._registry if "jax" in sys.modules else {}
