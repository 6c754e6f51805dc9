"""The NumPy generator against `jax.random`: bits, integers, uniform values exactly; the rest to a few roundings."""

from functools import cache

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.checks.reference.rounded_numpy import NEAREST, rounded
from runner.graph.language.counterparts import threefry
from tests import harness

SHAPES = [(), (5,), (2, 3), (3, 1, 4), (0, 2), (257,)]
BOUNDS = [(0.0, 1.0), (-1.0, 1.0), (-3.3, 0.1), (5.0, 9.3), (3.0, 1.0)]
RANGES = [(0, 10), (-7, 7), (5, 5), (9, 3), (0, 2**31 - 1), (-(2**31), 2**31 - 1), (0, 255), (0, 256), (-129, 3)]

few = settings(max_examples=10, derandomize=True, deadline=None)
seeds = st.integers(-(2**63), 2**63 - 1)
shapes = st.sampled_from(SHAPES)
dtypes = st.sampled_from(["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e3m4"])


@cache
def compiled(name, *arguments):
    """Return `jax.random.name` of a key, compiled with everything else static."""
    return jax.jit(lambda key: getattr(jax.random, name)(key, *arguments))


def draw(name, seed, *arguments):
    """Return the same draw from both: ours, then JAX's."""
    ours = getattr(threefry, name)(threefry.key(seed), *arguments)
    theirs = np.asarray(compiled(name, *arguments)(jax.random.PRNGKey(seed)))
    assert ours.shape == theirs.shape
    return ours, theirs


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**32 + 5, -1, -(2**31), 2**63 - 1, -(2**63), np.int32(-7)])
def test_a_seed_gives_jaxs_key(seed):
    expected = np.asarray(jax.random.PRNGKey(seed))
    for ours in (threefry.key(seed), threefry.PRNGKey(seed), threefry.key_data(threefry.key(seed))):
        assert ours.dtype == np.uint32
        np.testing.assert_array_equal(ours, expected)
    np.testing.assert_array_equal(jax.random.key_data(jax.random.key(seed)), expected)


@few
@given(seeds, st.integers(-(2**31), 2**31 - 1))
def test_fold_in_of_a_traced_integer(seed, data):
    theirs = jax.jit(jax.random.fold_in)(jax.random.PRNGKey(seed), np.int32(data))
    np.testing.assert_array_equal(threefry.fold_in(threefry.key(seed), np.int32(data)), theirs)


@few
@given(seeds, st.sampled_from([1, 2, 7, (3,), (2, 3), ()]))
def test_split_draws_what_jax_draws(seed, num):
    np.testing.assert_array_equal(*draw("split", seed, num))


def test_keys_of_a_split_are_indexed_like_jaxs():
    first, second = jax.random.split(jax.random.key(3))
    ours = threefry.split(threefry.key(3))
    np.testing.assert_array_equal(threefry.bits(ours[1], (4,)), jax.random.bits(second, (4,)))
    np.testing.assert_array_equal(threefry.bits(ours[0], (4,)), jax.random.bits(first, (4,)))


@pytest.mark.in_turn
@few
@given(seeds, shapes, st.sampled_from(["uint8", "uint16", "uint32"]))
def test_bits_draws_what_jax_draws(seed, shape, dtype):
    ours, theirs = draw("bits", seed, shape, dtype)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.in_turn
@settings(few, max_examples=15)
@given(seeds, shapes, dtypes, st.sampled_from(BOUNDS))
def test_uniform_draws_what_jax_draws(seed, shape, dtype, bounds):
    ours, theirs = draw("uniform", seed, shape, dtype, *bounds)
    assert ours.dtype == np.float64
    np.testing.assert_array_equal(ours, theirs.astype(np.float64))


def test_uniform_between_arrays_of_bounds():
    low, high = np.array([-3.3, 0.1, 5.7], np.float32), np.array([[6.5], [9.1]], np.float32)
    ours = threefry.uniform(threefry.key(1), (2, 3), "float32", low.astype(np.float64), high.astype(np.float64))
    np.testing.assert_array_equal(ours, jax.random.uniform(jax.random.key(1), (2, 3), "float32", low, high))


@pytest.mark.in_turn
@settings(few, max_examples=15)
@given(seeds, st.sampled_from([(), (2, 3), (1000,)]), dtypes, st.sampled_from(["normal", "gumbel"]))
def test_values_computed_from_uniform_ones(seed, shape, dtype, name):
    ours, theirs = draw(name, seed, shape, dtype)
    tolerance = 4 * float(ml_dtypes.finfo(dtype).eps)
    # A Gumbel value near 0 is a logarithm near 1, whose error is absolute.
    absolute = tolerance if name == "gumbel" else 0.0
    np.testing.assert_allclose(ours, theirs.astype(np.float64), rtol=tolerance, atol=absolute)


@pytest.mark.in_turn
@few
@given(seeds, st.sampled_from([(), (2, 3), (1000,)]), st.sampled_from(["float32", "bfloat16"]))
def test_laplace_draws_what_jax_draws(seed, shape, dtype):
    ours, theirs = draw("laplace", seed, shape, dtype)
    np.testing.assert_allclose(ours, theirs.astype(np.float64), rtol=4 * float(ml_dtypes.finfo(dtype).eps))


@pytest.mark.in_turn
@few
@given(seeds, st.sampled_from([(-2.0, 2.0), (0.5, 1.25), (-1.0, 3.0)]), st.sampled_from([None, (7,), (2, 3)]))
def test_truncated_normal_draws_what_jax_draws(seed, bounds, shape):
    ours, theirs = draw("truncated_normal", seed, *bounds, shape)
    assert np.all((ours >= bounds[0]) & (ours <= bounds[1]))
    np.testing.assert_allclose(ours, theirs.astype(np.float64), rtol=1e-5, atol=1e-6)


@pytest.mark.in_turn
@few
@given(seeds, st.sampled_from([(), (9,), (2, 3)]), st.sampled_from(["int32", "int8", "float32"]))
def test_rademacher_draws_what_jax_draws(seed, shape, dtype):
    ours, theirs = draw("rademacher", seed, shape, dtype)
    assert set(np.ravel(ours).tolist()) <= {-1, 1}
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.in_turn
@few
@given(
    seeds, st.sampled_from([((), True), ((5,), True), ((2, 2), False), ((6,), False)]), st.sampled_from([0, 1, None])
)
def test_choice_draws_what_jax_draws(seed, how, axis):
    a = 7 if axis is None else np.arange(7 * 7, dtype=np.float32).reshape(7, 7)
    named = {} if axis is None else {"axis": axis}
    ours = threefry.choice(threefry.key(seed), a, *how, **named)
    np.testing.assert_array_equal(ours, jax.random.choice(jax.random.PRNGKey(seed), a, *how, **named))


@pytest.mark.in_turn
@few
@given(
    seeds,
    st.sampled_from([((), True), ((5,), True), ((2, 2), False), ((4,), False)]),
    st.sampled_from([0, 1, None]),
    st.sampled_from([np.float32, np.int32]),
    st.lists(st.integers(0, 9), min_size=3, max_size=3),
)
def test_choice_by_weights_draws_what_jax_draws(seed, how, axis, dtype, others):
    weights = np.array([1, 2, 3, 4, *others], dtype)
    a = 7 if axis is None else np.arange(7 * 7, dtype=np.float32).reshape(7, 7)
    named = {} if axis is None else {"axis": axis}
    shape, replace = how
    ours = threefry.choice(threefry.key(seed), a, shape, replace, weights, **named)
    theirs = jax.random.choice(jax.random.PRNGKey(seed), a, shape, replace, weights, **named)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_choice_draws_indices_of_the_default_dtype_of_the_experiment(dtype, tmp_path):
    """The oracle of gradients computes in float64, whatever the experiment's dtypes are."""
    text = f"""
arrays: {{v: {{shape: [16], dtype: {dtype}, init: "uniform(1, 2)", spec: [x]}}}}
graph: {{out: "choice(key(0), v, (8,))", loss: sum(out ** 2)}}
outputs: {{out: [x], loss: []}}
grad: {{of: loss, wrt: [v]}}
"""
    outcome = harness.run(text, tmp_path, program=["auto", "derived"])
    assert outcome.failures() == []


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("replace", [True, False])
def test_choice_by_weights_is_undecided_where_rounding_decides(dtype, replace, tmp_path):
    text = f"""
arrays: {{w: {{shape: [32], dtype: {dtype}, init: "uniform(0, 1)", spec: [x]}}}}
graph: {{out: "choice(key(0), 32, (24,), {replace}, w)"}}
outputs: {{out: []}}
expect: {{weak: [out]}}
"""
    outcome = harness.run(text, tmp_path)
    assert outcome.failures() == []


@pytest.mark.parametrize("seed", range(3))
def test_the_tails_of_normal_are_as_exact_as_its_middle(seed):
    ours, theirs = draw("normal", seed, (100_000,), "float32")
    assert np.max(np.abs(ours)) > 4
    np.testing.assert_allclose(ours, theirs, rtol=4 * float(np.finfo(np.float32).eps))


@pytest.mark.in_turn
@settings(few, max_examples=15)
@given(
    seeds,
    st.sampled_from([(), (6,), (300,)]),
    st.sampled_from(RANGES),
    st.sampled_from(["int32", "uint32", "int8", "uint8", "int16"]),
)
def test_randint_draws_what_jax_draws(seed, shape, bounds, dtype):
    ours, theirs = draw("randint", seed, shape, *bounds, dtype)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


def test_randint_between_arrays_of_bounds():
    low, high = np.array([[0], [-5]], np.int32), np.array([1, 7, 2**20], np.int32)
    ours = threefry.randint(threefry.key(5), (2, 3), low, high)
    np.testing.assert_array_equal(ours, jax.random.randint(jax.random.key(5), (2, 3), low, high))


@pytest.mark.parametrize("beyond", [2**31, 2**32 - 1])
def test_randint_up_to_the_end_of_its_dtype(beyond):
    low, high = np.int32(2**31 - 3), np.uint32(beyond)
    ours = threefry.randint(threefry.key(5), (300,), low, high)
    assert set(ours.tolist()) == {2**31 - 3, 2**31 - 2, 2**31 - 1}
    np.testing.assert_array_equal(ours, jax.random.randint(jax.random.key(5), (300,), low, high))


@pytest.mark.in_turn
@few
@given(seeds, st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.sampled_from([None, (), (400,)]))
def test_bernoulli_draws_what_jax_draws(seed, p, shape):
    ours, theirs = draw("bernoulli", seed, p, shape)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.in_turn
@few
@given(seeds, st.sampled_from([(0, None), (-1, None), (1, (2,)), (0, (5, 3))]))
def test_categorical_draws_what_jax_draws(seed, where):
    logits = np.array([[0.3, -1.0, 2.0], [0.0, 0.1, -0.7]], np.float32)
    axis, shape = where
    shape = (5, 2) if shape == (2,) else shape
    ours = threefry.categorical(threefry.key(seed), logits, axis, shape)
    theirs = jax.random.categorical(jax.random.PRNGKey(seed), logits, axis, shape)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", range(5))
def test_a_draw_from_narrow_logits_takes_what_jaxs_does_or_one_as_near(seed):
    logits = np.array([[0.25, -1.0, 2.0], [0.0, 0.125, -0.75]], ml_dtypes.float8_e4m3fn)
    own = threefry.categorical(
        threefry.key(seed), rounded(logits, "float8_e4m3fn", NEAREST), shape=(50, 2), own_dtype="float8_e4m3fn"
    )
    theirs = jax.jit(lambda key: jax.random.categorical(key, logits, shape=(50, 2)))(jax.random.PRNGKey(seed))
    assert np.mean(own == theirs) > 0.95


@pytest.mark.in_turn
@few
@given(seeds, st.sampled_from([0, 1, 2, 9, 3000]))
def test_permutation_of_a_range(seed, n):
    np.testing.assert_array_equal(*draw("permutation", seed, n))


@pytest.mark.parametrize("axis", [0, 1])
def test_permutation_along_an_axis(axis):
    x = np.arange(12).reshape(3, 4)
    ours = threefry.permutation(threefry.key(2), x, axis)
    np.testing.assert_array_equal(ours, jax.random.permutation(jax.random.key(2), x, axis))


@pytest.mark.parametrize("seed", [-1, 2**40 + 3, 2**63 - 1])
def test_64_bit_seeds_give_the_keys_of_jax_with_x64(seed):
    with jax.enable_x64(True):
        expected = jax.random.key_data(jax.random.key(np.asarray(seed, np.int64)))
    np.testing.assert_array_equal(threefry.key(np.asarray(seed, np.int64)), expected)


@pytest.mark.in_turn
def test_64_bit_values_are_those_of_jax_with_x64():
    with jax.enable_x64(True):
        key = jax.random.PRNGKey(11)
        np.testing.assert_array_equal(
            threefry.bits(threefry.key(11), (9,), "uint64"), jax.random.bits(key, (9,), "uint64")
        )
        np.testing.assert_array_equal(
            threefry.uniform(threefry.key(11), (9,), "float64"), jax.random.uniform(key, (9,), "float64")
        )
        np.testing.assert_allclose(
            threefry.normal(threefry.key(11), (99,), "float64"), jax.random.normal(key, (99,), "float64"), rtol=1e-13
        )
        np.testing.assert_array_equal(
            threefry.randint(threefry.key(11), (9,), -5, 2**40, "int64"),
            jax.random.randint(key, (9,), -5, 2**40, "int64"),
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: threefry.key(1.5), "a seed has to be one integer of at most 64 bits, not 1.5"),
        (lambda: threefry.key(2**64), "a seed has to be one integer of at most 64 bits, not 18446744073709551616"),
        (lambda: threefry.fold_in(threefry.key(0), 0.5), "fold_in takes one integer, not 0.5"),
        (lambda: threefry.split(threefry.split(threefry.key(0))), "split takes one key, not uint32 of shape (2, 2)"),
        (lambda: threefry.normal(3), "a random draw takes one key, not int64 of shape ()"),
        (
            lambda: threefry.normal(threefry.key(0), dtype="int32"),
            "normal draws floats of 8 to 64 bits, not int32",
        ),
        (lambda: threefry.bits(threefry.key(0), dtype="int32"), "bits draws uint8, uint16, uint32, uint64, not int32"),
        (lambda: threefry.randint(threefry.key(0), (), 0, 1, "float32"), "randint draws integers, not float32"),
        (
            lambda: threefry.choice(threefry.key(0), 3, (4,), False),
            "choice takes 4 of 3 elements only with replace=True",
        ),
        (
            lambda: threefry.choice(threefry.key(0), 3, (4,), True, np.ones(2)),
            "choice's p has shape [2], and there are 3 elements",
        ),
        (lambda: threefry.bernoulli(threefry.key(0), 1), "bernoulli's p has to be a float, not int64"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == message
