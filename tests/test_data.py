"""The arrays' initial values: the numbers of a NumPy script, made by the exact text that a program prints."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.base import dtypes
from runner.base.faults import InvalidExperiment
from runner.experiment import data
from runner.experiment.model import Experiment
from tests.harness import experiment


def of(init: Any, shape: Any = (4, 4), dtype: str = "float32", **more: Any) -> Experiment:
    """Return an experiment with one array `A`."""
    arrays = {"A": {"shape": list(shape), "dtype": dtype, "init": init}}
    return experiment("{dims: {K: 3}, graph: {C: A}, outputs: {C: []}}", arrays=arrays, **more)


def made(init: Any, shape: Any = (4, 4), dtype: str = "float32", folder: Path = Path(), **more: Any) -> np.ndarray:
    return data.make(of(init, shape, dtype, **more), folder)["A"]


def fault(init: Any, shape: Any = (4, 4), dtype: str = "float32", folder: Path = Path()) -> str:
    with pytest.raises(InvalidExperiment) as caught:
        made(init, shape, dtype, folder)
    assert caught.value.fault.key[:3] == ("arrays", "A", "init")
    return caught.value.fault.message


def same(actual: np.ndarray, expected: Any, dtype: str = "float32") -> None:
    assert actual.dtype == dtypes.dtype(dtype).numpy
    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    np.testing.assert_array_equal(actual.astype(wide), np.asarray(expected).astype(actual.dtype).astype(wide))


MAKERS = {
    "arange(16)": np.arange(16).reshape(4, 4),
    "arange(16, 32)": np.arange(16, 32).reshape(4, 4),
    "arange(0, 32, 2)": np.arange(0, 32, 2).reshape(4, 4),
    "arange(start=0, step=2, stop=32)": np.arange(0, 32, 2).reshape(4, 4),
    "linspace(0, 1)": np.linspace(0, 1, 16).reshape(4, 4),
    "linspace(stop=1, start=0)": np.linspace(0, 1, 16).reshape(4, 4),
    "linspace(0, 1, num=16)": np.linspace(0, 1, 16).reshape(4, 4),
    "zeros()": np.zeros((4, 4)),
    "zeros": np.zeros((4, 4)),
    "ones()": np.ones((4, 4)),
    "full(2.5)": np.full((4, 4), 2.5),
    "full(fill_value=K)": np.full((4, 4), 3),
    "eye()": np.eye(4),
    "2 * eye() - 1": 2 * np.eye(4) - 1,
    "(arange(16) - 8) / K ** 2": ((np.arange(16) - 8) / 9).reshape(4, 4),
    "-arange(16) % 5 // 2": (-np.arange(16) % 5 // 2).reshape(4, 4),
    "+ones()": np.ones((4, 4)),
    "7": np.full((4, 4), 7),
    "-K / 2": np.full((4, 4), -1.5),
}


@pytest.mark.parametrize("init", MAKERS)
def test_an_expression_makes_what_numpy_makes(init: str) -> None:
    same(made(init), MAKERS[init])


RANDOM = {
    "normal()": lambda rng: rng.normal(0, 1, (4, 4)),
    "normal": lambda rng: rng.normal(0, 1, (4, 4)),
    "normal(1, 0.1)": lambda rng: rng.normal(1, 0.1, (4, 4)),
    "normal(scale=0.1)": lambda rng: rng.normal(0, 0.1, (4, 4)),
    "uniform(-1, 1)": lambda rng: rng.uniform(-1, 1, (4, 4)),
    "uniform(high=K)": lambda rng: rng.uniform(0, 3, (4, 4)),
    "integers(5)": lambda rng: rng.integers(5, size=(4, 4)),
    "integers(-5, high=5)": lambda rng: rng.integers(-5, 5, (4, 4)),
    "normal() * normal() + 1": lambda rng: rng.normal(0, 1, (4, 4)) * rng.normal(0, 1, (4, 4)) + 1,
}


@pytest.mark.parametrize("init", RANDOM)
def test_random_values_are_those_of_default_rng(init: str) -> None:
    same(made(init, seed=7), RANDOM[init](np.random.default_rng(7)))


def test_one_generator_draws_in_the_order_of_the_arrays() -> None:
    arrays = {
        "B": {"shape": [3], "init": "normal()"},
        "skip": {"shape": [2], "init": "arange(2)"},
        "A": {"shape": [2, 2], "init": "integers(0, 100)", "dtype": "int32"},
        "C": {"shape": [4], "init": "uniform()"},
    }
    values = data.make(experiment("{graph: {D: A}, outputs: {D: []}, seed: 3}", arrays=arrays), Path())
    rng = np.random.default_rng(3)
    same(values["B"], rng.normal(0, 1, 3))
    same(values["A"], rng.integers(0, 100, (2, 2)), "int32")
    same(values["C"], rng.uniform(0, 1, 4))


@pytest.mark.parametrize(
    ("init", "shape", "dtype", "expected"),
    [
        ([[1, 2], [3, 4]], (2, 2), "float32", [[1, 2], [3, 4]]),
        ([math.nan, math.inf, -math.inf, -0.0], (4,), "float32", [math.nan, math.inf, -math.inf, -0.0]),
        (2.5, (2, 3), "bfloat16", np.full((2, 3), 2.5)),
        (3, (), "int32", 3),
        ([True, False], (2,), "bool", [True, False]),
        ([1, -8, 7], (3,), "int4", [1, -8, 7]),
        ([0.1, 448], (2,), "float8_e4m3fn", [0.1, 448]),
        (1e5, (2,), "float16", [math.inf, math.inf]),
        ([2**53 + 1], (1,), "int64", [2**53 + 1]),
        (math.nan, (2,), "complex64", [math.nan, math.nan]),
    ],
)
def test_a_literal_is_used_unchanged(init: Any, shape: Any, dtype: str, expected: Any) -> None:
    same(made(init, shape, dtype), expected, dtype)


@pytest.mark.parametrize("dtype", dtypes.NAMES)
def test_every_dtype_can_be_made_and_is_one_of_jax(dtype: str) -> None:
    import jax.numpy as jnp

    values = made("arange(4) % 2", (4,), dtype)
    same(values, [0, 1, 0, 1], dtype)
    assert jnp.dtype(dtype) == values.dtype


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.sampled_from(["normal()", "uniform(-2, 2)", "ones()", "K", "2", "0.5", "full(3)", "integers(-4, 4)"]),
        lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        max_leaves=5,
    ),
    st.sampled_from(["float32", "bfloat16", "int32"]),
    st.sampled_from([(), (3,), (2, 2), (1, 2, 3)]),
)
def test_the_source_is_plain_numpy_and_gives_the_same_array(init: str, dtype: str, shape: tuple[int, ...]) -> None:
    given = of(init, shape, dtype, seed=5)
    source = data.source(given.arrays[0], dict(given.dims), Path())
    names = {"np": np, "ml_dtypes": ml_dtypes, "rng": np.random.default_rng(5)}
    alone = np.asarray(eval(str(source), names))
    assert alone.shape == shape
    same(data.make(given, Path())["A"], alone, dtype)


@pytest.mark.parametrize(
    ("init", "loads", "draws"),
    [
        ("load('a.npy')", True, False),
        ("load ('a.npy')", True, False),
        ("1 + 2 * load(file='rng.npy')", True, False),
        ("normal()", False, True),
        ("1 + uniform", False, True),
        ("arange(16)", False, False),
        (3, False, False),
    ],
)
def test_the_calls_show_which_arrays_load_files_and_draw(init: Any, loads: bool, draws: bool) -> None:
    given = of(init)
    assert (data.loading(given) is not None) == loads
    assert data.source(given.arrays[0], dict(given.dims), Path()).draws == draws


def test_the_source_is_written_as_people_would_write_it() -> None:
    def source(init: Any, dtype: str = "float32") -> str:
        given = of(init, dtype=dtype)
        return str(data.source(given.arrays[0], dict(given.dims), Path()))

    assert source("arange(16)") == "np.arange(16).reshape((4, 4)).astype(np.float32)"
    assert source("normal()") == "rng.normal(0, 1, (4, 4)).astype(np.float32)"
    assert source("K * ones()", "bfloat16") == "(3 * np.ones((4, 4))).reshape((4, 4)).astype(ml_dtypes.bfloat16)"
    assert source("K / 2") == "np.full((4, 4), 3 / 2).astype(np.float32)"
    assert source(1) == "np.full((4, 4), 1, dtype=np.float32)"


def test_a_file_is_read_from_the_folder(tmp_path: Path) -> None:
    np.save(tmp_path / "values.npy", np.arange(16.0))
    same(made("load('values.npy') + 1", folder=tmp_path), np.arange(1, 17).reshape(4, 4))


def test_a_file_without_an_array_of_the_size_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "text.npy").write_text("1 2 3")
    np.save(tmp_path / "short.npy", np.zeros(3))
    assert fault("load('none.npy')", folder=tmp_path) == f"there is no file '{tmp_path.resolve() / 'none.npy'}'"
    assert fault("load('empty.npy')", folder=tmp_path) == "load takes a .npy file, and this is not one"
    assert fault("load('text.npy')", folder=tmp_path) == "load takes a .npy file, and this is not one"
    assert fault("load('many.npz')", folder=tmp_path).startswith("load takes one array, in a .npy file")
    assert fault("load('short.npy')", folder=tmp_path).startswith("it makes 3 values, but 'A' has shape [4, 4]")
    none = "load takes a .npy file, not a folder, a pipe or a device"
    assert fault("load('.')", folder=tmp_path) == none


FAULTS = {
    "arange(15)": "it makes 15 values, but 'A' has shape [4, 4]: 4 × 4 = 16",
    "2 * arange(17) - 1": "it makes 17 values, but 'A' has shape [4, 4]",
    "linspace(0, 1, 5)": "it makes 5 values, but 'A' has shape [4, 4]",
    "arnage(16)": "no function 'arnage' in an init; did you mean 'arange'?",
    "tanh(ones())": "no function 'tanh' in an init; there are arange, linspace, zeros, ones, full, eye, normal, uni",
    "L": "no dim or function 'L'; an init is made of dims and arange, linspace, zeros, ones, full, eye, normal, uni",
    "B": "no dim or function 'B'",
    "normal(1, 2, 3)": "normal(): too many positional arguments; it takes (loc=0, scale=1)",
    "full()": "full(): missing a required argument: 'fill_value'; it takes (fill_value)",
    "arange(0, step=2)": "arange with a step needs start and stop",
    "arange(0, 16, 0)": "NumPy refuses it: ",
    "normal(scale=-1)": "NumPy refuses it: scale < 0",
    "integers(5, 5)": "NumPy refuses it: low >= high",
    "1 / 0": "NumPy refuses it: division by zero",
    "load(K)": "load takes a file name in quotes",
    "ones()[0]": "an init is made of numbers, dims, + - * / // % ** and its functions",
    "ones() @ ones()": "an init is made of numbers, dims",
    "ones() > 0": "an init is made of numbers, dims",
    "'text'": "an init is made of numbers, dims",
    "(1, 2)": "an init is made of numbers, dims",
    "None": "an init is made of numbers, dims",
    "ones().T": "an init is made of numbers, dims",
    "2j * ones()": "it makes complex values, which float32 cannot hold",
    "2j": "it makes complex values, which float32 cannot hold",
}


@pytest.mark.parametrize("init", FAULTS)
def test_an_invalid_init_is_refused(init: str) -> None:
    assert fault(init).startswith(FAULTS[init])


def test_complex_values_go_into_a_complex_array() -> None:
    same(made("1 + 2j * ones()", dtype="complex64"), np.full((4, 4), 1 + 2j), "complex64")


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ([[1, 2], [3, 4]], "the values have shape [2, 2], but 'A' has shape [4, 4]"),
        ([[1, 2], [3]], "the rows have different shapes: [2] and [1]"),
        (["a"], "'a' is not a number"),
        ({"a": 1}, "{'a': 1} is not a number"),
    ],
)
def test_an_invalid_literal_is_refused(init: Any, message: str) -> None:
    assert fault(init) == message


@pytest.mark.parametrize(("init", "dtype"), [(300, "int8"), (-1, "uint32"), (2**40, "int32")])
def test_a_literal_that_its_dtype_cannot_hold_is_refused(init: Any, dtype: str) -> None:
    assert fault(init, dtype=dtype).startswith("NumPy refuses it: ")


@pytest.mark.parametrize("init", ["normal()", "zeros()", "arange(2 ** 60)", 0])
def test_arrays_that_exceed_memory_are_refused(init: Any) -> None:
    message = fault(init, (2**30, 2**30))
    assert "do not fit into memory" in message or message.startswith("NumPy refuses it: ")


def test_eye_makes_matrices_only() -> None:
    assert fault("eye()", (4,)) == "eye makes a matrix, but 'A' has rank 1"
    same(made("eye()", (2, 3)), np.eye(2, 3))
