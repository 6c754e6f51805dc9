"""Tuples and PartitionSpecs in; how a program spells them out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from runner.experiment.model import Checkpoint
from runner.layout import Mesh, Spec


def tuple_of(items: list[str]) -> str:
    """`(a, b)`, `(a,)`."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def sharding(spec: Spec) -> str:
    """`NamedSharding(mesh, P('x', None))`."""
    return f"NamedSharding(mesh, {spec})"


def resharded(value: str, spec: Spec) -> str:
    """`value`, laid out by explicit sharding."""
    return f"jax.reshard({value}, {sharding(spec)})"


def constrained(value: str, spec: Spec) -> str:
    """`value`, laid out by the compiler."""
    return f"jax.lax.with_sharding_constraint({value}, {sharding(spec)})"


def constrained_inside(value: str, spec: Spec) -> str:
    """`value`, which one device of a `shard_map` computes, laid out by the compiler over the automatic axes."""
    return f"jax.lax.with_sharding_constraint({value}, {spec})"


def out_shardings(specs: Iterable[Spec | None]) -> list[str]:
    """The lines that say how a program's outputs lie; None: as the compiler likes."""
    each = ["None" if spec is None else sharding(spec) for spec in specs]
    whole = f"out_shardings = {tuple_of(each)}"
    return [whole] if len(whole) <= 100 else ["out_shardings = (", *(f"    {one}," for one in each), ")"]


def checkpointed(function: str, checkpoint: Checkpoint, more: str = "") -> str:
    """A function of which the backward pass computes again what is not kept."""
    policy: list[str] = []
    if checkpoint.policy is not None:
        names = f"({', '.join(map(repr, checkpoint.names))})" if checkpoint.names else ""
        policy = [f"policy=jax.checkpoint_policies.{checkpoint.policy}{names}"]
    return f"jax.checkpoint({', '.join([function, *policy, *([more] if more else [])])})"


def ordered(mesh: Mesh, devices: str, axis_types: str) -> list[str]:
    """The lines of `make_mesh` that put the devices into the mesh in its own order."""
    assert mesh.devices is not None
    numbers = textwrap.wrap(", ".join(map(str, mesh.devices)), 100)
    order = [f"    order = [{numbers[0]}]"]
    if len(numbers) > 1:
        order = ["    order = [", *(f"        {line}" for line in numbers), "    ]"]
    return [
        f"    there = {devices}",
        *order,
        f"    grid = np.array([there[i] for i in order]).reshape({mesh.shape!r})",
        f"    return jax.sharding.Mesh(grid, {mesh.axes!r}, axis_types={axis_types})",
    ]
