"""Converts our PartitionSpecs to JAX's, and back."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from runner.base import dtypes
from runner.base.layout import Spec
from runner.experiment.model import Experiment


def partition(spec: Spec) -> P:
    """Convert to JAX's PartitionSpec."""
    return P(*(None if not axes else axes[0] if len(axes) == 1 else axes for axes in spec))


def structs(experiment: Experiment, mesh: AbstractMesh) -> list[jax.ShapeDtypeStruct]:
    """The arrays on a mesh as `ShapeDtypeStruct`s, then the gradients that lines read."""
    return [
        jax.ShapeDtypeStruct(
            array.shape,
            dtypes.dtype(array.dtype).numpy,
            sharding=NamedSharding(mesh, partition(array.layout.spec)),
        )
        for array in experiment.given
    ]


def spec_of(sharding: Any) -> Spec | None:
    """The PartitionSpec of a sharding; None where it has none."""
    spec = getattr(sharding, "spec", None)
    return None if spec is None else Spec.of(spec)


def sole_holder(sharding: Any) -> Any:
    """The `jax.Device` that alone holds an array that is placed on several; None if each holds a part or a copy.

    The compiler gives such a layout to the result of a callback. What the buffers of the other devices have in them
    means nothing.
    """
    if hasattr(sharding, "spec") or sharding.num_devices == 1:
        return None
    hlo = sharding._to_xla_hlo_sharding(0)
    return sharding._device_assignment[hlo.tile_assignment_devices()[0]] if hlo.is_maximal() else None
