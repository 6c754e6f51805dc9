"""Every collective in NumPy against `jax.lax` under `shard_map`, device by device, on simulated CPU devices."""

import itertools
from functools import cache

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from runner.base.layout import Mesh
from runner.graph.language.counterparts import collectives
from tests import here

MESHES = [
    Mesh(axes, shape)
    for axes, shape in [
        (("x",), (4,)),
        (("x",), (3,)),
        (("x", "y"), (2, 2)),
        (("x", "y"), (2, 3)),
        (("x", "y"), (4, 2)),
        (("x", "y"), (1, 4)),
        (("x", "y", "z"), (2, 2, 2)),
        (("x", "y", "z"), (2, 1, 3)),
    ]
]
LINE = Mesh(("x",), (4,))
SQUARE = Mesh(("x", "y"), (2, 2))

few = settings(max_examples=35, derandomize=True, deadline=None)


# Both sides of a comparison.


@cache
def jax_mesh(mesh):
    return jax.make_mesh(mesh.shape, mesh.axes, axis_types=(AxisType.Auto,) * len(mesh.axes))


@cache
def compiled(mesh, name, arguments, keywords):
    def device_program(block):
        operand = block.reshape(block.shape[len(mesh.shape) :])
        result = getattr(jax.lax, name)(operand, *arguments, **dict(keywords))
        return jax.numpy.expand_dims(result, tuple(range(len(mesh.shape))))

    spec = P(*mesh.axes)
    return jax.jit(jax.shard_map(device_program, mesh=jax_mesh(mesh), in_specs=spec, out_specs=spec, check_vma=False))


def by_jax(mesh, name, values, *arguments, **keywords):
    """Return what every device, by row-major position, holds after `jax.lax.name`."""
    blocks = np.stack(values).reshape(*mesh.shape, *values[0].shape)
    operand = jax.device_put(blocks, NamedSharding(jax_mesh(mesh), P(*mesh.axes)))
    # Collectives that are launched without waiting for each other can abort JAX 0.10 on CPU.
    result = jax.block_until_ready(compiled(mesh, name, arguments, tuple(keywords.items()))(operand))
    position = {device: i for i, device in enumerate(jax_mesh(mesh).devices.flat)}
    held = {position[shard.device]: np.asarray(shard.data) for shard in result.addressable_shards}
    return [held[i].reshape(held[i].shape[len(mesh.shape) :]) for i in range(mesh.size)]


def widened(values):
    return [value.astype(np.float64) if value.dtype == np.float32 else value for value in values]


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for position, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert np.shape(mine) == other.shape, position
        assert np.asarray(mine).dtype == (np.float64 if other.dtype == np.float32 else other.dtype), position
        np.testing.assert_array_equal(mine, other, err_msg=f"device {position}")


def assert_agreement(mesh, name, values, *arguments, **keywords):
    ours = getattr(collectives, name)(mesh, widened(values), *arguments, **keywords)
    assert_same(ours, by_jax(mesh, name, values, *arguments, **keywords))
    return ours


# The drawn inputs.


@st.composite
def places(draw, ordered=False):
    """Draw a mesh and one or several of its axes, in any order unless `ordered`."""
    mesh = draw(st.sampled_from(MESHES))
    count = draw(st.integers(1, len(mesh.axes)))
    choices = list((itertools.combinations if ordered else itertools.permutations)(mesh.axes, count))
    names = draw(st.sampled_from(choices))
    return mesh, names[0] if count == 1 and draw(st.booleans()) else names


@st.composite
def values_on(draw, mesh, shape, dtypes=("float32", "int32")):
    """Return different values for every device, small enough for every sum of them to be exact."""
    dtype = draw(st.sampled_from(dtypes))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    return [rng.integers(-999, 999, shape).astype(dtype) for _ in range(mesh.size)]


@st.composite
def groups_of(draw, size, equal):
    """Draw a partition of range(size) into lists in any order, or None."""
    if draw(st.booleans()):
        return None
    indices = draw(st.permutations(range(size)))
    if equal:
        length = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
        cuts = range(length, size, length)
    else:
        cuts = sorted(draw(st.sets(st.integers(1, size - 1)))) if size > 1 else []
    return tuple(tuple(indices[a:b]) for a, b in itertools.pairwise([0, *cuts, size]))


def size_of(mesh, axes, groups):
    return len(groups[0]) if groups else mesh.axis_size(axes)


# Reductions.


@pytest.mark.in_turn
@settings(few, max_examples=60)
@given(st.data(), places(), st.sampled_from(["psum", "pmean", "pmax", "pmin"]))
def test_reductions_agree_with_jax(data, place, name):
    mesh, axes = place
    groups = data.draw(groups_of(mesh.axis_size(axes), equal=name == "pmean"))
    dtypes = ("int32", "bool") if name == "psum" else ("float32", "int32", "bool")
    if name == "pmean":
        # Division by powers of two is exact; only one rounding to float32 remains.
        dtypes = ("float32",)
    shape = data.draw(st.sampled_from([(), (3,), (2, 3)]))
    values = data.draw(values_on(mesh, shape, dtypes))
    ours = getattr(collectives, name)(mesh, widened(values), axes, axis_index_groups=groups)
    theirs = by_jax(mesh, name, values, axes, axis_index_groups=groups)
    if name == "pmean":
        ours = [np.asarray(mean).astype(np.float32).astype(np.float64) for mean in ours]
        for mine, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(mine, other, rtol=3e-7)
    else:
        assert_same(ours, theirs)


# Groups over a part of their axes, in any order, and devices alone in their group.
PARTS = [
    (LINE, "x", ((0, 1), (2, 3))),
    (LINE, "x", ((3, 1), (0, 2))),
    (LINE, "x", ((2,), (0,), (3,), (1,))),
    (SQUARE, ("x", "y"), ((0, 3), (2, 1))),
    (SQUARE, ("y", "x"), ((1, 0), (2, 3))),
    (Mesh(("x", "y"), (4, 2)), "x", ((0, 2), (1, 3))),
]


@pytest.mark.parametrize(("mesh", "axes", "groups"), PARTS)
@pytest.mark.parametrize("name", ["psum", "pmean", "pmax", "pmin"])
def test_a_reduction_in_groups_stays_within_each_group(name, mesh, axes, groups):
    # Multiples of four, whose means of up to four are exact.
    values = [np.array([4 * 3**i, -(4 * 5**i)], "float32") for i in range(mesh.size)]
    assert_agreement(mesh, name, values, axes, axis_index_groups=groups)


@pytest.mark.parametrize(("mesh", "axes", "groups"), PARTS)
@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize(("name", "arguments"), [("psum_scatter", ()), ("all_gather", ()), ("all_to_all", (0, 1))])
def test_a_movement_in_groups_stays_within_each_group(name, arguments, tiled, mesh, axes, groups):
    size = len(groups[0])
    values = [np.arange(8 * size, dtype="float32").reshape(size, 8)[:, :size] * 7**i for i in range(mesh.size)]
    assert_agreement(mesh, name, values, axes, *arguments, axis_index_groups=groups, tiled=tiled)


@pytest.mark.in_turn
@few
@given(st.data(), places())
def test_psum_of_floats_agrees_with_jax(data, place):
    mesh, axes = place
    assert_agreement(mesh, "psum", data.draw(values_on(mesh, (2, 3))), axes)


def test_psum_of_small_integers_wraps_as_in_jax():
    assert_agreement(LINE, "psum", [np.full(2, 100, np.int8)] * 4, "x")
    assert_agreement(LINE, "psum", [np.array(100, np.int8)] * 4, "x")


@pytest.mark.parametrize("dtype", ["int32", "int8", "bool"])
def test_pmean_of_integers_is_a_float(dtype):
    assert_agreement(LINE, "pmean", [np.array([i, 7 * i]).astype(dtype) for i in range(4)], "x")


@pytest.mark.parametrize(("constant", "total"), [(1, 4), (2.5, 10.0), (True, 4)])
def test_psum_of_a_constant_counts_devices(constant, total):
    assert collectives.psum(LINE, [constant] * 4, "x") == [total] * 4
    function = jax.shard_map(lambda: jax.lax.psum(constant, "x"), mesh=jax_mesh(LINE), in_specs=(), out_specs=P())
    assert jax.jit(function)() == total


def test_no_axes_reduce_nothing():
    x = [np.arange(3.0), np.arange(3.0)]
    line = Mesh(("x",), (2,))
    for name in ("psum", "pmax", "pmin", "all_gather", "psum_scatter"):
        assert all(a is b for a, b in zip(getattr(collectives, name)(line, x, ()), x, strict=True)), name


# Movement.


@pytest.mark.in_turn
@settings(few, max_examples=50)
@given(st.data(), places(), st.booleans())
def test_psum_scatter_agrees_with_jax(data, place, tiled):
    mesh, axes = place
    groups = data.draw(groups_of(mesh.axis_size(axes), equal=True))
    size = size_of(mesh, axes, groups)
    dimension = data.draw(st.integers(0, 2))
    shape = [1, 2, 3]
    shape[dimension] = size * data.draw(st.integers(1, 2)) if tiled else size
    values = data.draw(values_on(mesh, shape))
    keywords = {"scatter_dimension": dimension, "axis_index_groups": groups, "tiled": tiled}
    ours = assert_agreement(mesh, "psum_scatter", values, axes, **keywords)
    # JAX 0.10 cannot count dimensions from the end here; JAX 0.12 can.
    same = collectives.psum_scatter(mesh, widened(values), axes, **(keywords | {"scatter_dimension": dimension - 3}))
    assert all(np.array_equal(a, b) for a, b in zip(ours, same, strict=True))


@pytest.mark.in_turn
@settings(few, max_examples=50)
@given(st.data(), places(), st.booleans())
def test_all_gather_agrees_with_jax(data, place, tiled):
    mesh, axes = place
    groups = data.draw(groups_of(mesh.axis_size(axes), equal=True))
    rank = data.draw(st.integers(1 if tiled else 0, 3))
    values = data.draw(values_on(mesh, (1, 2, 3)[:rank], ("float32", "int32", "bool")))
    last = rank if tiled else rank + 1
    axis = data.draw(st.integers(-last, last - 1))
    assert_agreement(mesh, "all_gather", values, axes, axis_index_groups=groups, axis=axis, tiled=tiled)


@pytest.mark.in_turn
@settings(few, max_examples=70 if here.OPTIMIZED else 35)
@given(st.data(), places(), st.booleans())
def test_all_to_all_agrees_with_jax(data, place, tiled):
    mesh, axes = place
    groups = data.draw(groups_of(mesh.axis_size(axes), equal=True))
    size = size_of(mesh, axes, groups)
    split, concat = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
    shape = [1, 2, 3]
    shape[split] = size * data.draw(st.integers(1, 2)) if tiled else size
    values = data.draw(values_on(mesh, shape))
    keywords = {"axis_index_groups": groups, "tiled": tiled}
    ours = assert_agreement(mesh, "all_to_all", values, axes, split, concat, **keywords)
    same = collectives.all_to_all(mesh, widened(values), axes, split - 3, concat - 3, **keywords)
    assert all(np.array_equal(a, b) for a, b in zip(ours, same, strict=True))


@pytest.mark.in_turn
@few
@given(st.data(), places(ordered=True))
def test_ppermute_agrees_with_jax(data, place):
    mesh, axes = place
    size = mesh.axis_size(axes)
    count = data.draw(st.integers(0, size))
    sources, destinations = (data.draw(st.permutations(range(size)))[:count] for _ in range(2))
    pairs = tuple((s - data.draw(st.sampled_from([0, size])), d) for s, d in zip(sources, destinations, strict=True))
    assert_agreement(mesh, "ppermute", data.draw(values_on(mesh, (2,), ("float32", "int32", "bool"))), axes, pairs)


@pytest.mark.in_turn
@few
@given(st.data(), places(ordered=True), st.integers(-9, 9))
def test_ppermute_by_a_shift(data, place, shift):
    mesh, axes = place
    size = mesh.axis_size(axes)
    values = data.draw(values_on(mesh, (2,)))
    ours = collectives.ppermute(mesh, widened(values), axes, shift=shift)
    perm = tuple((i, (i + shift) % size) for i in range(size))
    assert_same(ours, by_jax(mesh, "ppermute", values, axes, perm))


@pytest.mark.in_turn
@few
@given(st.data(), places(ordered=True))
def test_pshuffle_agrees_with_jax(data, place):
    mesh, axes = place
    perm = tuple(data.draw(st.permutations(range(mesh.axis_size(axes)))))
    assert_agreement(mesh, "pshuffle", data.draw(values_on(mesh, (2,))), axes, perm)


@pytest.mark.in_turn
@few
@given(st.data(), places())
def test_pbroadcast_equals_its_definition_in_jaxs_documentation(data, place):
    # JAX compiles it for GPUs only, and documents it as this sum.
    mesh, axes = place
    source = data.draw(st.integers(0, mesh.axis_size(axes) - 1))
    values = data.draw(values_on(mesh, (2,)))
    ours = collectives.pbroadcast(mesh, values, axes, source)
    indices = collectives.axis_index(mesh, axes)
    masked = [value * (index == source) for value, index in zip(values, indices, strict=True)]
    assert_same(widened(ours), by_jax(mesh, "psum", masked, axes))


@pytest.mark.in_turn
@settings(few, max_examples=15)
@given(places())
def test_axis_index_and_axis_size(place):
    mesh, axes = place
    function = jax.shard_map(
        lambda: jax.numpy.expand_dims(jax.lax.axis_index(axes), tuple(range(len(mesh.axes)))),
        mesh=jax_mesh(mesh),
        in_specs=(),
        out_specs=P(*mesh.axes),
    )
    ours = collectives.axis_index(mesh, axes)
    assert all(index.dtype == np.int32 for index in ours)
    np.testing.assert_array_equal(ours, np.asarray(jax.jit(function)()).ravel())
    assert collectives.axis_size(mesh, axes) == max(ours) + 1
    assert type(collectives.axis_size(mesh, axes)) is int


def test_pcast_changes_nothing():
    x = [np.ones(2), np.zeros(2)]
    assert all(a is b for a, b in zip(collectives.pcast(Mesh(("x",), (2,)), x, "x", to="varying"), x, strict=True))


# MinText's printed vectors.

ROWS = [np.array(row) for row in ([3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8], [9, 7, 1, 2])]


def as_lists(values):
    return [value.tolist() for value in values]


def test_all_gather_of_four_numbers():
    x = [np.array([n]) for n in (3, 9, 5, 2)]
    assert as_lists(collectives.all_gather(LINE, x, "x", tiled=True)) == [[3, 9, 5, 2]] * 4


def test_psum_of_four_rows():
    assert as_lists(collectives.psum(LINE, ROWS, "x")) == [[22, 20, 12, 17]] * 4


def test_psum_scatter_of_four_rows():
    assert as_lists(collectives.psum_scatter(LINE, ROWS, "x", tiled=True)) == [[22], [20], [12], [17]]


def test_all_to_all_of_four_rows():
    expected = [[3, 5, 5, 9], [1, 9, 3, 7], [4, 2, 5, 1], [1, 6, 8, 2]]
    assert as_lists(collectives.all_to_all(LINE, ROWS, "x", 0, 0, tiled=True)) == expected


# The interpreter's assumptions.


@pytest.mark.parametrize("name", ["psum", "pmean", "pmax", "pmin", "all_gather"])
def test_devices_of_a_group_share_one_result(name):
    x = [np.array([float(i)]) for i in range(4)]
    a, b, c, d = getattr(collectives, name)(SQUARE, x, "y")
    assert a is b
    assert c is d
    assert a is not c


def test_groups_with_the_same_operands_share_their_results():
    left, right = np.arange(2.0), np.arange(2.0) + 5
    for name, arguments in {"psum": (), "all_gather": (), "psum_scatter": (), "all_to_all": (0, 0)}.items():
        a, b, c, d = getattr(collectives, name)(SQUARE, [left, right, left, right], "y", *arguments)
        assert a is c, name
        assert b is d, name


def test_ppermute_passes_objects_on_and_shares_its_zeros():
    x = [np.array([float(i)]) for i in range(4)]
    a, b, c, d = collectives.ppermute(LINE, x, "x", [(0, 1)])
    assert b is x[0]
    assert a is c is d
    assert a.tolist() == [0.0]


def test_collectives_do_not_write_to_their_operands():
    x = [row.copy() for row in ROWS]
    collectives.psum(LINE, x, "x")
    collectives.psum_scatter(LINE, x, "x", tiled=True)
    assert as_lists(x) == as_lists(ROWS)


# Errors.


def on_square(name, *arguments, **keywords):
    return lambda: getattr(collectives, name)(SQUARE, [np.zeros((3, 2))] * 4, *arguments, **keywords)


def on_line(name, *arguments, **keywords):
    return lambda: getattr(collectives, name)(LINE, [np.zeros((3, 4))] * 4, *arguments, **keywords)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (on_square("psum", "z"), "mesh axis 'z' does not exist; the mesh has x, y"),
        (on_square("psum", ("x", "x")), "axis_name names an axis twice: ('x', 'x')"),
        (
            on_line("psum", "x", axis_index_groups=[[0, 1], [1, 3]]),
            "axis_index_groups has to hold each of 0 to 3 exactly once, not [[0, 1], [1, 3]]",
        ),
        (
            on_line("pmean", "x", axis_index_groups=[[0], [1, 2, 3]]),
            "pmean needs axis_index_groups of equal size, not [[0], [1, 2, 3]]",
        ),
        (
            lambda: collectives.psum(LINE, [1] * 4, "x", axis_index_groups=[[0], [1, 2, 3]]),
            "psum needs axis_index_groups of equal size, not [[0], [1, 2, 3]]",
        ),
        (
            on_line("psum_scatter", "x", tiled=True),
            "psum_scatter splits scatter_dimension of size 3 over 4 devices, which does not divide it",
        ),
        (
            on_line("psum_scatter", "x"),
            "psum_scatter without tiled=True needs scatter_dimension of size 4, one per device, not 3",
        ),
        (
            on_line("psum_scatter", "x", scatter_dimension=2),
            "psum_scatter's scatter_dimension 2 is out of bounds for 2 dimensions",
        ),
        (
            lambda: collectives.psum_scatter(LINE, [np.zeros(4, bool)] * 4, "x"),
            "psum_scatter does not add booleans; convert them to int32 first",
        ),
        (on_line("all_gather", "x", axis=2, tiled=True), "all_gather's axis 2 is out of bounds for 2 dimensions"),
        (on_line("all_gather", "x", to="reduced"), "all_gather takes to='varying' or to='invarying', not 'reduced'"),
        (
            on_line("all_to_all", "x", 0, 1, tiled=True),
            "all_to_all splits split_axis of size 3 over 4 devices, which does not divide it",
        ),
        (
            on_line("all_to_all", "x", 0, 1),
            "all_to_all without tiled=True needs split_axis of size 4, one per device, not 3",
        ),
        (on_line("ppermute", "x"), "ppermute takes either perm= or shift="),
        (on_line("ppermute", "x", [(0, 1)], shift=1), "ppermute takes either perm= or shift="),
        (
            on_line("ppermute", "x", [(0, 1), (2, 1)]),
            "ppermute's sources and destinations have to be unique: [[0, 1], [2, 1]]",
        ),
        (on_line("ppermute", "x", [(0, 4)]), "ppermute's perm has an index outside 0 to 3: [[0, 4]]"),
        (on_line("ppermute", "x", [(0,)]), "ppermute takes pairs (source, destination), not [[0]]"),
        (
            on_square("ppermute", ("y", "x"), shift=1),
            "ppermute over several axes names them in the mesh's order: ('x', 'y')",
        ),
        (
            on_line("pshuffle", "x", [0, 1, 1, 2]),
            "pshuffle's perm has to be a permutation of 0 to 3, not [0, 1, 1, 2]",
        ),
        (on_line("pbroadcast", "x", 4), "pbroadcast's source has to be one of 0 to 3, not 4"),
        (on_line("pcast", "x", to="unreduced"), "pcast takes to='varying', not 'unreduced'"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == message
