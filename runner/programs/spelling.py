"""Spells tuples and PartitionSpecs in Python."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from runner.base.layout import Mesh, Spec
from runner.experiment.model import Checkpoint

CONSTRAIN, RESHARD, SHARD_MAP = "jax.lax.with_sharding_constraint", "jax.reshard", "jax.shard_map"
"""JAX's functions that lay a value out, and the one in which a device computes with its part."""


def tuple_of(items: list[str]) -> str:
    """`(a, b)`, `(a,)`."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def sharding(spec: Spec) -> str:
    """`NamedSharding(mesh, P('x', None))`."""
    return f"NamedSharding(mesh, {spec})"


def resharded(value: str, spec: Spec) -> str:
    """`value` resharded in explicit mode: `jax.reshard(value, …)`."""
    return f"{RESHARD}({value}, {sharding(spec)})"


def constrained(value: str, spec: Spec) -> str:
    """`value` under a `with_sharding_constraint`."""
    return f"{CONSTRAIN}({value}, {sharding(spec)})"


def constrained_inside(value: str, spec: Spec) -> str:
    """`value` inside a `shard_map`, under a constraint on the automatic axes."""
    return f"{CONSTRAIN}({value}, {spec})"


def out_shardings(specs: Iterable[Spec | None]) -> list[str]:
    """The `out_shardings` of a program; None leaves a layout to the compiler."""
    each = ["None" if spec is None else sharding(spec) for spec in specs]
    whole = f"out_shardings = {tuple_of(each)}"
    return [whole] if len(whole) <= 100 else ["out_shardings = (", *(f"    {entry}," for entry in each), ")"]


def checkpointed(function: str, checkpoint: Checkpoint, more: str = "") -> str:
    """A function under `jax.checkpoint`, with its policy."""
    policy: list[str] = []
    if checkpoint.policy is not None:
        names = f"({', '.join(map(repr, checkpoint.names))})" if checkpoint.names else ""
        policy = [f"policy=jax.checkpoint_policies.{checkpoint.policy}{names}"]
    return f"jax.checkpoint({', '.join([function, *policy, *([more] if more else [])])})"


def main_of(lines: Iterable[str]) -> str:
    """The function `main` of these lines, and its call."""
    body = (f"    {line}" if line else "" for line in lines)
    return "\n".join(["def main():", *body, "", "", 'if __name__ == "__main__":', "    main()"])


def ordered(mesh: Mesh, devices: str, axis_types: str) -> list[str]:
    """The lines of `make_mesh` that order the devices as the experiment asks."""
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
