"""The layout of each device, computed from mesh and spec alone, against JAX, which only this test asks."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from runner.base.layout import Layout, Mesh, Spec

MESHES = [Mesh(("x",), (8,)), Mesh(("x", "y"), (2, 4)), Mesh(("y", "x"), (4, 2)), Mesh(("a", "b", "c"), (2, 1, 2))]


def jax_mesh(mesh: Mesh) -> jax.sharding.Mesh:
    devices = np.array(jax.devices()[: mesh.size]).reshape(mesh.shape)
    return jax.sharding.Mesh(devices, mesh.axes)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Draw a mesh of up to 8 devices and an array of rank up to 3, each axis over any or no dimension, in any order."""
    mesh = draw(st.sampled_from(MESHES))
    rank = draw(st.integers(0, 3))
    entries: list[list[str]] = [[] for _ in range(draw(st.integers(0, rank)))]
    for axis in draw(st.permutations(mesh.axes)):
        where = draw(st.integers(-1, len(entries) - 1))
        if where >= 0:
            entries[where].append(axis)
    spec = Spec.of(entries)
    shape = tuple(mesh.axis_size(spec[i] if i < len(spec) else ()) * draw(st.integers(1, 3)) for i in range(rank))
    return Layout(mesh, shape, spec)


def partition_spec(spec: Spec) -> PartitionSpec:
    return PartitionSpec(*(None if not axes else axes[0] if len(axes) == 1 else axes for axes in spec))


@settings(max_examples=150, deadline=None)
@given(layouts())
def test_every_device_holds_the_shard_that_jax_gives_it(layout: Layout) -> None:
    mesh = jax_mesh(layout.mesh)
    sharding = NamedSharding(mesh, partition_spec(layout.spec))
    indices = sharding.devices_indices_map(layout.shape)
    for position, device in enumerate(mesh.devices.flat):
        promised = tuple(s.indices(n)[:2] for s, n in zip(indices[device], layout.shape, strict=True))
        assert layout.ranges(position) == promised
    assert layout.shard_shape == sharding.shard_shape(layout.shape)


@settings(max_examples=150, deadline=None)
@given(layouts())
def test_the_shards_tile_the_array_and_each_has_as_many_copies(layout: Layout) -> None:
    covered = np.zeros(layout.shape, int)
    for position in range(layout.mesh.size):
        covered[layout.index(position)] += 1
    copies = math.prod(layout.mesh.sizes[axis] for axis in layout.replicated_over)
    assert (covered == copies).all()
    held = list(layout.holders())
    assert [len(members) for _, members in held] == [copies] * math.prod(layout.shards)
    assert sorted(position for _, members in held for position in members) == list(range(layout.mesh.size))
    assert [block for block, _ in held] == sorted(block for block, _ in held)


@pytest.mark.in_turn
@pytest.mark.parametrize("axes", ["x", "y", ("x", "y"), ("y", "x"), ()])
def test_axis_index_and_groups_are_those_of_jax(axes: str | tuple[str, ...]) -> None:
    mesh = Mesh(("x", "y"), (2, 4))

    @jax.shard_map(mesh=jax_mesh(mesh), in_specs=PartitionSpec(("x", "y")), out_specs=PartitionSpec(("x", "y")))
    def index(x: jax.Array) -> jax.Array:
        return x * 0 + (jax.lax.axis_index(axes) if axes else 0)

    by_position = np.asarray(index(jax.numpy.arange(8)))
    assert [mesh.axis_index(position, axes) for position in range(8)] == by_position.tolist()
    if not axes:
        assert mesh.groups(axes) == [[position] for position in range(8)]
        return

    @jax.shard_map(
        mesh=jax_mesh(mesh), in_specs=PartitionSpec(("x", "y")), out_specs=PartitionSpec(("x", "y")), check_vma=False
    )
    def members(x: jax.Array) -> jax.Array:
        return jax.lax.all_gather(x, axes, tiled=True)[None]

    gathered = np.asarray(members(jax.numpy.arange(8))).reshape(8, -1)
    for group in mesh.groups(axes):
        for position in group:
            assert gathered[position].tolist() == group


def test_positions_are_row_major() -> None:
    assert Mesh(("x", "y"), (2, 2)).coordinates == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert Mesh(("x", "y"), (2, 4)).axis_size(("x", "y")) == 8
    assert Mesh((), ()).size == 1


SPELLINGS = [
    (Spec(), "P()", [], "[]"),
    (Spec(((), ("x",))), "P(None, 'x')", [None, "x"], "[null, x]"),
    (Spec((("x", "y"), ())), "P(('x', 'y'), None)", [["x", "y"], None], "[[x, y], null]"),
]


@pytest.mark.parametrize(("spec", "text", "json", "yaml"), SPELLINGS)
def test_a_spec_is_spelt_as_jax_and_as_the_yaml_spell_it(spec: Spec, text: str, json: list[Any], yaml: str) -> None:
    assert str(spec) == text
    assert spec.json() == Spec.of(json).json() == json
    assert spec.yaml() == yaml
    assert Spec.of(json) == spec
    assert eval(text, {"P": PartitionSpec}) == partition_spec(spec)


def test_a_spec_has_no_axes_where_it_has_no_entries() -> None:
    spec = Spec.of([None, ["y", "x"]])
    assert spec.padded(4) == ((), ("y", "x"), (), ())
    assert spec.padded(1) == spec
    assert spec.axes == ("y", "x")
