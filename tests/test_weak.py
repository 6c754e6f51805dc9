"""Python numbers and values of weak type in plain lines: the oracle gives them JAX's dtype, with x64 and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from runner.base.faults import InvalidExperiment
from runner.checks.reference.arithmetic import Arithmetic
from runner.checks.reference.interpreter import interpret
from runner.checks.reference.machine import Machine
from runner.experiment import data
from runner.experiment.model import Experiment
from runner.worker import types
from runner.worker.walk import Walker
from tests.harness import experiment

ARRAYS = """
arrays:
  x: {shape: [4], init: [-1.5, 0.5, 2.0, 3.0]}
  h: {shape: [4], dtype: bfloat16, init: [-1.5, 0.5, 2.9, 3.1]}
  i: {shape: [4], dtype: int32, init: [-7, 1, 3, 2147483647]}
  s: {shape: [4], dtype: int8, init: [-128, -1, 3, 127]}
  u: {shape: [4], dtype: uint8, init: [0, 1, 200, 255]}
  p: {shape: [4], dtype: uint32, init: [0, 1, 200, 4294967295]}
  b: {shape: [4], dtype: bool, init: [true, false, true, false]}
"""
WIDE = "  q: {shape: [4], dtype: int64, init: [-7, 1, 3, 1099511627776]}\n"

LINES = """
where(x > 0, 1, 0) + s; where(x > 0, 300, 0) // s; where(x > 0, 300, 2) < s; where(b, where(x > 0, 300, 2), s)
(where(x > 0, 300, 2) + 1) * s; -where(x > 0, 3, 2) + u; abs(where(b, -300, 2)) + s; where(x > 0, 300, 2)[1] + s
where(x > 0, 2**30, 0) * 4; sum(where(b, 2**30, 1)) + s; cumsum(where(b, 2**30, 1)) + i; max(where(b, 300, 0)) + s
full((4,), 300) + s; full_like(x, 3) + s; asarray(300) + s; array([300, 1, 2, 3]) + s; arange(4) + s; arange(5) * 2**30
stack([where(x > 0, 300, 2), s]); concatenate([where(x > 0, 300, 2), s]); s.at[1].add(where(b, 300, 2)[1])
take(s, where(x > 0, 3, 2)); s[where(x > 0, 300, 2)]; select([b], [where(x > 0, 300, 2)], 0) + s
clip(s, 0, where(x > 0, 300, 2)); power(where(x > 0, 3, 2), s); power(2, 30) * 4; left_shift(1, 30) * 2; invert(5) + u
where(b, 300, 1) << 3; bitwise_xor(where(b, 300, 1), s); remainder(where(b, 300, 1), s); where(b, 300, 1) == u
b * 3 + s; b * 2**30 * 4; sum(b) * 2**30; sum(u); prod(s); dot(i, i); p + i; p * s; s * 300 // 7; u - 1; 300 - u
argmax(x) * 2**30; argsort(x) * 2**30; top_k(x, 2)[1] * 2**30; searchsorted(x, 0.7) * 2**30; count_nonzero(b) * 2**30
logical_not(i) + 2**30 + 2**30; relu(b) * 2**30 * 4; tril_indices(3)[0] * 2**30 * 2; where(b, 1, 0.5) + s
key_data(key(2**40 + 3)); key_data(key(-5)); key_data(key(where(b, 300, -1)[1])); bernoulli(key(0), 0.5, (4,))
categorical(key(0), x) * 2**30 * 4; permutation(key(0), 4) * 2**30; randint(key(0), (4,), 0, 10) * 2**30
nextafter(x, 2)
"""
TOO_LARGE = """
where(x > 0, 2**40, 0) + 1; where(b, 5, 2**33); full((4,), 2**40); arange(2**40, 2**40 + 4); power(2, 40) + 2**40
right_shift(2**40, 3); i < 2**40; i + 2**31; array([1, 2, 3, 2**40]); 2**40 / i; linspace(0, 2**40, 4); x * 2**40
remainder(2**40, 7) + i; minimum(5, 2**33) + i; where(x > 0, 2**40, 0) >> 35; q + where(b, 2**40, 1); q * s + 2**41
"""


def lines(text: str) -> dict[str, str]:
    return {f"e{n}": line.strip() for n, line in enumerate(text.replace("\n", ";").split(";")) if line.strip()}


def given(graph: dict[str, str], arrays: str = ARRAYS) -> Experiment:
    return experiment(arrays, graph=graph, outputs={name: [] for name in graph})


def both(of: Experiment, machine: Machine | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of the lines in JAX and in the oracle."""
    arrays = data.make(of, Path())
    floats: dict[str, dict[int, str]] = {}

    def walked(arrays: dict[str, Any]) -> dict[str, Any]:
        walker = Walker(of, dict(arrays))
        walker.run(of.graph, "graph")
        return {name: walker.values[name] for name in of.results}

    with jax.enable_x64(of.x64):
        types.whole(of, floats)
        by_jax = jax.jit(walked)(arrays)
    interpretation = interpret(of, "graph", arrays, arithmetic=Arithmetic(floats, machine))
    return by_jax, {name: interpretation.values[name][0] for name in of.results}


@pytest.mark.in_turn
@pytest.mark.parametrize("wide", [False, True], ids=["32 bits", "64 bits"])
def test_numbers_have_the_dtypes_that_jax_gives_them(wide: bool) -> None:
    graph = lines(LINES + TOO_LARGE if wide else LINES)
    by_jax, by_oracle = both(given(graph, ARRAYS + WIDE if wide else ARRAYS))
    wrong: list[Any] = []
    for name, text in graph.items():
        actual, expected = np.asarray(by_jax[name]), np.asarray(by_oracle[name])
        if actual.dtype.kind in "iub":
            same = actual.dtype == expected.dtype and np.array_equal(actual, expected)
        else:
            same = np.allclose(actual.astype(np.float64), expected, rtol=1e-6)
        if not same:
            wrong.append((text, actual, expected))
    assert not wrong


@pytest.mark.parametrize("line", ["where(x > 0, 2**40, 0)", "i + 2**31", "array([1, 2**40])", "i.at[0].set(2**31)"])
def test_an_integer_beyond_32_bits_is_refused_at_its_place(line: str) -> None:
    with pytest.raises(InvalidExperiment) as refused:
        types.whole(given({"y": line}), {})
    number = 2**40 if "40" in line else 2**31
    assert str(refused.value).startswith(
        f"graph.y: JAX refuses it: the integer {number} does not fit in int32; integers have 64 bits where an array or "
        "a line has a 64-bit dtype, which sets jax_enable_x64"
    )


def test_a_weak_float_is_rounded_to_the_dtype_of_what_it_is_combined_with() -> None:
    of = given({"y": "where(b, 0.1, 0.2) * h", "z": "0.1 * h", "w": "full((4,), 0.7) * h"})
    by_jax, rounded = both(of, Machine())
    for name in of.results:
        assert np.array_equal(np.asarray(by_jax[name]).astype(np.float64), np.asarray(rounded[name])), name


def test_the_carries_of_a_loop_are_arrays_where_they_begin_as_numbers() -> None:
    carry = {"repeat": 4, "unroll": False, "carry": {"c": "0"}, "index": "i", "body": {"c": "c + 2**29"}}
    graph: dict[str, Any] = {"loop": carry, "y": "loop.c + 0"}
    of = experiment(ARRAYS, graph=graph, outputs={"y": []})
    by_jax, by_oracle = both(of)
    assert int(by_jax["y"]) == int(by_oracle["y"]) == -(2**31)
