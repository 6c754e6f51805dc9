"""The one place that knows how JAX 0.10, 0.11 and 0.12 differ."""

from __future__ import annotations

from typing import Any

from jax.sharding import AbstractMesh, AxisType

from runner.layout import Mesh


def abstract_mesh(mesh: Mesh, axis_type: AxisType) -> AbstractMesh:
    """A mesh without devices. The default of `axis_types` changed from Auto to Explicit in 0.11: it is always given."""
    return AbstractMesh(mesh.shape, mesh.axes, axis_types=(axis_type,) * len(mesh.axes))


def varying_axes(kind: Any) -> frozenset[str]:
    """The manual mesh axes over which a value of this type may differ inside `shard_map`. Named `vma` before 0.11."""
    manual = getattr(kind, "manual_axis_type", None)
    return manual.varying if manual is not None else kind.vma


def sharding_type_errors() -> tuple[type[Exception], ...]:
    """What JAX raises where sharding types do not agree. These have no public names in 0.10 to 0.12."""
    from jax._src import core, named_sharding

    return core.ShardingTypeError, named_sharding.DuplicateSpecError
