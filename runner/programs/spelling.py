"""Tuples and PartitionSpecs in; how a program spells them out."""

from __future__ import annotations

from runner.layout import Spec


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
