"""The oracle: the values of every device, in NumPy, with each distinct value computed once."""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.checks.reference import CannotInterpret, Interpretation, interpret
from runner.checks.reference.arithmetic import Arithmetic
from runner.experiment import data
from runner.experiment.changing import ChangingGraph, remaining
from runner.graph.language.lines import expressions
from runner.graph.language.operations import OPERATIONS
from runner.graph.language.syntax import parse
from runner.worker.types import infer
from tests.harness import experiment

ARRAYS = """
arrays:
  A: {shape: [4, 4], init: arange(16), spec: [null, x]}
  B: {shape: [4, 4], init: "arange(16, 32)", spec: [x, null]}
"""


def oracle(section: str, arrays: str = ARRAYS, outputs: str = "C", **keys: Any) -> Interpretation:
    given = experiment(f"{arrays}\noutputs: {{{outputs}: []}}", **keys)
    return interpret(given, section, data.make(given, Path()))  # type: ignore[arg-type]


def whole(text: str, arrays: str = ARRAYS) -> Any:
    """Return the value of one expression of `graph`."""
    return oracle("graph", arrays, graph={"C": text}).values["C"][0]


A, B = np.arange(16.0).reshape(4, 4), np.arange(16.0, 32).reshape(4, 4)


def test_every_device_holds_its_shard() -> None:
    interpretation = oracle("per_device", per_device={"C": "A + 0"})
    assert [value.tolist() for value in interpretation.values["C"]] == [
        A[:, :2].tolist(), A[:, :2].tolist(), A[:, 2:].tolist(), A[:, 2:].tolist(),
    ]  # fmt: skip


STEPS = """ {s: A + 1, unused: B * 2, t: s * 2,
 r: {repeat: 2, carry: {A: t, first: s}, body: {
   inner: {repeat: 3, index: j, carry: {b: A}, body: {c: b + first + j, b: c + i}},
   A: inner.b + t}},
 C: r.A + A}"""
"""Names that a loop shadows, that start one, and that no line reads."""


@pytest.mark.parametrize("section", ["graph", "per_device"])
@pytest.mark.parametrize("keep", [("C",), ("C", "r.first", "s"), ()])
def test_keeping_values_does_not_change_the_results(section: str, keep: tuple[str, ...]) -> None:
    arrays = ARRAYS.replace("[null, x]", "[]").replace("[x, null]", "[]")
    given = experiment(f"{arrays}\n{section}:{STEPS}\noutputs: {{C: []}}")
    made = data.make(given, Path())
    everything = interpret(given, section, made)  # type: ignore[arg-type]
    interpretation = interpret(given, section, made, keep=keep)  # type: ignore[arg-type]
    assert set(interpretation.values) == set(keep)
    for name in keep:
        np.testing.assert_array_equal(interpretation.values[name], everything.values[name])


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[list[weakref.ref[Any]], list[int]]]:
    """Watch an operation: its results, and after each one how many of them are still alive."""

    def watching(name: str) -> tuple[list[weakref.ref[Any]], list[int]]:
        operation = OPERATIONS[name]
        made: list[weakref.ref[Any]] = []
        alive: list[int] = []

        def watched(*given: Any) -> Any:
            result = operation.numpy(*given)
            made.append(weakref.ref(result))
            alive.append(sum(each() is not None for each in made))
            return result

        monkeypatch.setitem(OPERATIONS, name, dataclasses.replace(operation, counterpart=watched))
        return made, alive

    return watching


def test_values_that_a_loop_replaces_are_released(watch: Any) -> None:
    made, alive = watch("tanh")
    loop = "{repeat: 5, carry: {a: start}, body: {b: tanh(a), a: tanh(b)}}"
    given = experiment(f"{ARRAYS}\ngraph: {{start: tanh(A), r: {loop}, C: r.a}}\noutputs: {{C: []}}")
    interpretation = interpret(given, "graph", data.make(given, Path()), keep=["C"])
    assert (len(made), max(alive)) == (11, 2)
    assert interpretation.values["C"][0] is made[-1]()


def test_values_that_an_update_replaces_are_released_device_by_device(watch: Any) -> None:
    made, alive = watch("dynamic_update_slice")
    update = "dynamic_update_slice(a, A * i, (0, 0))"
    loop = f"{{repeat: 3, carry: {{a: A}}, body: {{a: '{update}'}}}}"
    given = experiment(f"{ARRAYS}\nper_device: {{r: {loop}, C: r.a}}\noutputs: {{C: [null, x]}}")
    interpretation = interpret(given, "per_device", data.make(given, Path()), keep=["C"])
    distinct = len({id(value) for value in interpretation.values["C"]})
    assert distinct > 1
    assert (len(made), max(alive)) == (3 * distinct, distinct + 1)


def test_replicated_work_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    tanh = OPERATIONS["tanh"]

    def counted(x: Any) -> Any:
        calls.append(x.shape)
        return tanh.numpy(x)

    monkeypatch.setitem(OPERATIONS, "tanh", dataclasses.replace(tanh, counterpart=counted))
    interpretation = oracle(
        "per_device", per_device={"t": "tanh(A)", "s": "psum(t, 'x')", "u": "tanh(s)", "C": "tanh(u @ u.T)"}
    )
    # A is sharded over x and copied over y; after the psum there is one value for all four devices.
    assert calls == [(4, 2), (4, 2), (4, 2), (4, 4)]
    assert [len({id(v) for v in interpretation.values[name]}) for name in ("t", "s", "u", "C")] == [2, 1, 1, 1]


def test_floats_are_float64_whatever_the_dtype() -> None:
    arrays = "arrays: {a: {shape: [2], dtype: bfloat16, init: [1, 0.00390625]}}"
    assert whole("sum(a)", arrays) == 1.00390625
    assert whole("sum(a)", arrays).dtype == np.float64
    assert whole("a * 1j", arrays).dtype == np.complex128


@pytest.mark.parametrize(
    ("dtype", "values", "text"),
    [
        ("int32", [2**31 - 1, -5], "a + 1"),
        ("int32", [2**31 - 1, 3], "a * a"),
        ("int8", [127, -128], "a + a"),
        ("uint8", [0, 200], "a - 1"),
        ("uint32", [2**32 - 1, 7], "a * 3"),
        ("int32", [7, -7], "a // 2"),
        ("int32", [7, -7], "a % 4"),
        ("int16", [30000, 30000], "sum(a)"),
        ("bool", [True, True], "sum(a)"),
        ("int32", [1, 2], "a << 31"),
    ],
)
def test_integers_are_exactly_those_of_jax(dtype: str, values: list[int], text: str) -> None:
    arrays = f"arrays: {{a: {{shape: [2], dtype: {dtype}, init: {str(values).lower()}}}}}"
    expected = eval(text, {"a": jnp.asarray(values, dtype), "sum": jnp.sum})
    result = np.asarray(whole(text, arrays))
    assert result.tolist() == np.asarray(expected).tolist()
    assert result.dtype == expected.dtype


def test_integers_of_64_bits_are_exact() -> None:
    arrays = f"arrays: {{a: {{shape: [1], dtype: int64, init: [{2**53}]}}}}"
    assert whole("a + 1", arrays).tolist() == [2**53 + 1]


def test_without_x64_an_integer_of_64_bits_has_32() -> None:
    assert whole("arange(3) + 2147483647").dtype == np.int32


LOOPS = {
    "plain": ("a: A", "a: a + B * i", 3, ["a = A", "a = a + B * {i}"]),
    "two carries in order": ("a: A, b: B", "a: a @ b, b: a - b", 2, ["a = A", "b = B", "a = a @ b", "b = a - b"]),
    "a name of the body": ("a: A", "t: a * 2, a: t + 1", 2, ["a = A", "t = a * 2", "a = t + 1"]),
    "no step": ("a: A", "a: a + 1", 0, ["a = A"]),
}


@pytest.mark.parametrize("case", LOOPS)
@pytest.mark.parametrize("unroll", ["true", "false"])
def test_a_loop_is_its_body_written_out(case: str, unroll: str) -> None:
    carry, body, steps, lines = LOOPS[case]
    first = carry.count(":")
    names: dict[str, Any] = {"A": A, "B": B}
    for line in lines[:first]:
        exec(line, names)
    for i in range(steps):
        for line in lines[first:]:
            exec(line.format(i=i), names)
    loop = f"{{repeat: {steps}, carry: {{{carry}}}, body: {{{body}}}, unroll: {unroll}}}"
    interpretation = oracle("graph", f"{ARRAYS}\ngraph: {{r: {loop}, C: r.a}}")
    np.testing.assert_array_equal(interpretation.values["C"][0], names["a"])


def test_a_loop_does_not_change_outer_names() -> None:
    loops = "{r: {repeat: 2, index: B, carry: {A: A}, body: {t: A + 1, A: t}}, C: A + B + r.A}"
    interpretation = oracle("graph", f"{ARRAYS}\ngraph: {loops}")
    np.testing.assert_array_equal(interpretation.values["C"][0], A + B + A + 2)
    assert "t" not in interpretation.values


def test_a_nested_loop_sees_both_numbers() -> None:
    inner = "{repeat: 3, index: j, carry: {b: a}, body: {b: b + 10 * i + j}}"
    outer = f"{{repeat: 2, carry: {{a: A * 0}}, body: {{s: {inner}, a: s.b}}}}"
    interpretation = oracle("graph", f"{ARRAYS}\ngraph: {{r: {outer}, C: r.a}}")
    assert interpretation.values["C"][0][0, 0] == sum(10 * i + j for i in range(2) for j in range(3))


EXPRESSIONS = st.recursive(
    st.sampled_from(["A", "B", "A.T", "1.5", "A[1:3, :]", "sum(A, axis=0, keepdims=True)"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda t: f"tanh({t})"),
        inner.map(lambda t: f"where({t} > 1, {t}, -1)"),
    ),
    max_leaves=6,
)


@pytest.mark.in_turn
@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS)
def test_on_one_device_both_oracles_are_equal(text: str) -> None:
    single = ARRAYS.replace("x", "null") + f"mesh: {{axes: [x], shape: [1]}}\ngraph: {{C: '{text}'}}"
    single += f"\nper_device: {{C: '{text}'}}"
    try:
        graph = oracle("graph", single)
    except ValueError:
        with pytest.raises(ValueError):
            oracle("per_device", single)
        return
    per_device = oracle("per_device", single)
    np.testing.assert_array_equal(per_device.values["C"][0], graph.values["C"][0])


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(2, 2), (4, 2), (1, 4), (8, 1)]),
    st.sampled_from(["[x, y]", "[y, x]", "[[x, y], null]", "[null, [y, x]]", "[x, null]", "[]"]),
    st.integers(0, 9),
)
def test_a_psum_of_the_shards_sums_is_the_sum_of_the_whole(shape: tuple[int, int], spec: str, seed: int) -> None:
    used = [axis for axis in ("x", "y") if axis in spec]
    text = f"arrays: {{A: {{shape: [8, 8], init: 'integers(-99, 99)', dtype: int32, spec: {spec}}}}}\nseed: {seed}\n"
    text += f"mesh: {{axes: [x, y], shape: {list(shape)}}}\ngraph: {{C: sum(A)}}\n"
    text += f'per_device: {{C: "psum(sum(A), {tuple(used)})"}}'
    total = oracle("graph", text).values["C"][0]
    assert [value.item() for value in oracle("per_device", text).values["C"]] == [total.item()] * math.prod(shape)


def test_a_gather_of_the_shards_is_the_whole() -> None:
    interpretation = oracle("per_device", per_device={"C": "all_gather(B, 'x', tiled=True)"})
    for value in interpretation.values["C"]:
        np.testing.assert_array_equal(value, B)


CAST_LATER = """
arrays: {A: {shape: [4], dtype: float32, init: "arange(4) / 7"}}
graph:
  h: astype(A, 'bfloat16') * 3
  g: astype(h, 'bfloat16')
outputs: {g: []}
"""


def test_an_interpretation_from_a_later_line_knows_the_given_dtypes() -> None:
    """An edited section is interpreted from its first changed line: a cast to the dtype that JAX has is none."""
    read = experiment(CAST_LATER)
    arrays = data.make(read, Path())
    arithmetic = Arithmetic(infer(read).floats["graph"])
    whole = interpret(read, "graph", arrays, arithmetic=arithmetic).values
    graph = read.computed("graph")
    edited = ChangingGraph(graph).changed({line: expression.term for line, expression in [*expressions(graph)][1:]})
    later = interpret(read, "graph", arrays, remaining(edited, graph), arithmetic=arithmetic, given=whole).values
    np.testing.assert_array_equal(later["g"][0], whole["g"][0])
    np.testing.assert_array_equal(later["g"][0], whole["h"][0])


def test_bits_of_another_size_are_refused_at_their_line() -> None:
    with pytest.raises(CannotInterpret, match="the bits of float32 are not read as int16, which has another size"):
        whole("bitcast_convert_type(A, 'int16')")


@pytest.mark.parametrize(
    "line",
    [
        "arange(1000000000000000)", "arange(0, 1e15)", "zeros((1000000, 1000000, 1000))",
        "iota('int32', 1000000000000)",
        "one_hot(arange(1000000), 100000000000)", "tile(A, (1000000, 10000000))", "eye(10000000)",
        "segment_sum(A, arange(4), 1000000000000)", "A + zeros((1000000, 1))[:, :, None] * arange(1000000)",
        "outer(arange(1000000), arange(1000000))", "zeros((1000000, 1)) @ zeros((1, 1000000))",
        "einsum('i,j->ij', arange(1000000), arange(1000000))", "arange(1000000)[None, :][arange(1000000) * 0]",
        "pad(A, ((0, 100000000000000), (0, 0)))", "repeat(arange(1000000), 100000000)",
    ],
)  # fmt: skip
def test_a_line_that_asks_for_more_than_is_allowed_is_refused_before_it_is_computed(line: str) -> None:
    given = experiment(f"{ARRAYS}\noutputs: {{C: []}}", graph={"C": "A + 0"})
    graph = ChangingGraph(given.computed("graph"))
    (changed,) = (expression for expression in expressions(graph.graph))
    edited = graph.changed({changed[0]: parse(line).term})
    # NumPy says MemoryError where it is asked.
    with pytest.raises(OverflowError, match="asks for"):
        interpret(given, "graph", data.make(given, Path()), edited, most=2_000_000)


@pytest.mark.parametrize(
    "line",
    [
        "arange(5, 1000, 100)", "A + 1", "zeros((4, 4))", "pad(A, ((1, 2), (0, 3)))", "A[arange(3)]", "repeat(A, 3)",
        "where(A > 1000000, 1, 100000)", "dynamic_slice(A, (1, 1), (2, 3))", "maximum(A, 1000000)", "A @ B", "A[:, 1]",
        "segment_sum(A, arange(4), 5)", "one_hot(arange(4), 6)", "einsum('ij,jk->ik', A, B)", "linspace(0, 1e6, 5)",
        "full((2, 2), 1000000)", "arange(1000000, 1000003)", "A[1:3, ..., None]",
    ],
)  # fmt: skip
def test_what_a_line_asks_for_is_no_more_than_it_gives_whatever_its_values_are(line: str) -> None:
    given = experiment(f"{ARRAYS}\noutputs: {{C: []}}", graph={"C": line})
    size = whole(line).size
    assert interpret(given, "graph", data.make(given, Path()), most=max(size, 16)).values["C"][0].size == size
