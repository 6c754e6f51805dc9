"""Each check can fail, says where, and passes what is right: on runs made by hand, without JAX."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner import data
from runner.checks import agreement, layout, pinned, replicas, value
from runner.checks.context import Context
from runner.faults import InvalidExperiment
from runner.reference import interpret
from runner.target import Held, Output, ProgramRun
from tests.harness import experiment

TEXT = """
arrays:
  A: {shape: [4, 4], init: arange(16), spec: [y, x]}
  B: {shape: [4, 4], init: "arange(16, 32)", spec: [x, null]}
graph: {C: A @ B}
per_device: {C: "psum(A @ B, 'x')"}
outputs: {C: [y, null]}
"""
IDS = [7, 5, 3, 1]
"""The devices of the mesh in row-major order: their ids are not their positions."""


def context(text: str = TEXT, **keys: Any) -> Context:
    given = experiment(text, **keys)
    arrays = data.make(given, Path())
    graph = interpret(given, "graph", arrays) if given.graph else None
    per_device = interpret(given, "per_device", arrays) if given.per_device else None
    dtype = given.arrays[0].dtype
    return Context(given, arrays, {"C": ((4, 4), dtype)}, {"graph": {"C": ((4, 4), dtype)}}, graph, per_device)


def run(of: Context, program: str = "shard_map", **changes: Any) -> ProgramRun:
    """What a program that does everything right leaves; `changes` maps a position to another value that it holds."""
    promised = of.layout("C")
    right = of.arrays["A"].astype(np.float64) @ of.arrays["B"].astype(np.float64)
    held, copies = [], {}
    for position in range(4):
        part = right[promised.index(position)].astype(of.arrays["A"].dtype)
        part = changes.get(f"at{position}", lambda x: x)(part)
        copy = copies.setdefault(part.tobytes() + bytes(promised.block(position)), len(copies))
        held.append(Held(position, IDS[position], promised.ranges(position), copy, part))
    operands = {
        array.name: [(IDS[position], array.layout.ranges(position)) for position in range(4)]
        for array in of.experiment.arrays
    }
    output = Output(of.outputs["C"][1], (4, 4), None, tuple(held))
    return ProgramRun(program, outputs={"C": output}, operands=operands, device_ids=IDS)


def off_by_one(part: np.ndarray) -> np.ndarray:
    part = part.copy()
    part[0, 1] += 1
    return part


def test_what_is_right_passes_every_check() -> None:
    given = context()
    ran, other = run(given), run(given, "auto")
    assert value.check(given, ran)["status"] == "passed"
    assert layout.check(given, ran) == {"status": "passed"}
    assert replicas.check(given, ran) == {"status": "passed", "copies": 2}
    assert agreement.check(given, ran, [other])["status"] == "passed"


# value


def test_a_wrong_element_on_one_device_is_found_there() -> None:
    given = context()
    found = value.check(given, run(given, at2=off_by_one))
    assert found["status"] == "failed"
    assert found["max_abs_error"] == 1.0
    for oracle in ("per_device", "graph"):
        against = found["outputs"]["C"]["against"][oracle]
        assert (against["status"], against["wrong"], against["of"], against["devices"]) == ("failed", 1, 32, [3])


def test_each_oracle_has_its_own_verdict() -> None:
    given = context(per_device={"C": "psum(A @ B, 'x') + 1"})
    found = value.check(given, run(given))
    assert found["status"] == "failed"
    against = found["outputs"]["C"]["against"]
    assert (against["graph"]["status"], against["per_device"]["status"]) == ("passed", "failed")


def test_a_program_of_graph_is_held_against_graph_only() -> None:
    given = context()
    assert list(value.check(given, run(given, "auto"))["outputs"]["C"]["against"]) == ["graph"]
    without = context(graph={})
    assert list(value.check(without, run(without))["outputs"]["C"]["against"]) == ["per_device"]


def test_the_tolerance_is_in_the_verdict() -> None:
    given = context()
    found = value.check(given, run(given))
    assert 0 < found["rtol"] < 1e-4
    assert found["atol"] == given.tolerance("C").atol > 0


def test_integers_have_no_tolerance() -> None:
    given = context(TEXT.replace("shape: [4, 4],", "shape: [4, 4], dtype: int32,"))
    assert (value.check(given, run(given))["rtol"], value.check(given, run(given))["atol"]) == (0.0, 0.0)
    assert value.check(given, run(given, at0=off_by_one))["status"] == "failed"


def test_nan_in_the_reference_is_noted() -> None:
    rows = "[[.nan, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]"
    given = context(TEXT.replace("arange(16),", f"{rows},"))
    found = value.check(given, run(given))
    assert found["status"] == "passed"
    # The first row, on the two devices that hold it, against two oracles.
    assert found["note"] == "the reference has NaN: 16 comparisons of NaN with NaN count as equal"
    assert "note" not in value.check(context(), run(context()))


def test_a_nan_that_the_reference_does_not_have_fails() -> None:
    given = context()
    assert value.check(given, run(given, at1=lambda part: part * np.nan))["status"] == "failed"


@pytest.mark.parametrize(
    ("line", "agree"), [("psum(A @ B, 'x')", True), ("A @ B", False), ("psum(A @ B, 'x') * 2", False)]
)
def test_whether_the_oracles_agree(line: str, agree: bool) -> None:
    assert value.interpreter_agrees(context(per_device={"C": line})) == agree


# layout


def test_a_device_that_holds_another_range_is_named() -> None:
    given = context()
    ran = run(given)
    held = list(ran.outputs["C"].held)
    held[1] = replace(held[1], ranges=((0, 2), (0, 4)))
    ran.outputs["C"] = replace(ran.outputs["C"], held=tuple(held))
    found = layout.check(given, ran)
    assert found["status"] == "failed"
    assert found["reason"] == "device 5 holds C[0:2, 0:4], not C[2:4, 0:4]"
    assert found["wrong"] == 1


def test_a_device_that_holds_nothing_is_named() -> None:
    given = context()
    ran = run(given)
    ran.outputs["C"] = replace(ran.outputs["C"], held=ran.outputs["C"].held[:3])
    assert layout.check(given, ran)["reason"] == "device 1 holds C nothing, not C[2:4, 0:4]"


def test_an_operand_in_the_wrong_place_is_named() -> None:
    given = context()
    ran = run(given, "auto")
    ran.operands["A"][0] = (7, ((0, 4), (2, 4)))
    found = layout.check(given, ran)
    assert (found["status"], found["reason"]) == ("failed", "device 7 holds A[0:4, 2:4], not A[0:2, 0:2]")


def test_the_outputs_of_auto_lie_where_the_compiler_wants_them() -> None:
    given = context()
    ran = run(given, "auto")
    held = tuple(replace(part, ranges=((0, 4), (0, 4))) for part in ran.outputs["C"].held)
    ran.outputs["C"] = replace(ran.outputs["C"], held=held)
    found = layout.check(given, ran)
    assert found["status"] == "passed"
    assert "the compiler chooses" in found["note"]


def test_vmap_has_no_layout() -> None:
    given = context()
    assert layout.check(given, run(given, "vmap"))["status"] == "not_run"


# replicas


def test_copies_that_differ_in_one_bit_are_found() -> None:
    given = context()
    found = replicas.check(given, run(given, at2=lambda part: np.nextafter(part, np.float32(np.inf))))
    assert found["status"] == "failed"
    assert found["reason"] == "C[0:2, 0:4] on devices 3 differs from device 7"
    assert (found["wrong"], found["copies"]) == (1, 2)


def test_parts_that_are_no_copies_may_differ() -> None:
    given = context()
    both = {"at0": off_by_one, "at2": off_by_one}
    assert replicas.check(given, run(given, **both))["status"] == "passed"


# agreement


def test_programs_that_differ_are_named() -> None:
    given = context()
    found = agreement.check(given, run(given), [run(given, "auto"), run(given, "vmap", at0=off_by_one)])
    assert found["status"] == "failed"
    assert found["with"] == ["auto", "vmap"]
    assert found["max_abs_error"] == 1.0
    assert found["reason"] == "C differs from vmap at 1 of 16 elements"


def test_programs_of_different_dtypes_do_not_agree() -> None:
    given = context()
    other = run(given, "auto")
    held = tuple(replace(part, value=part.value.astype(np.float16)) for part in other.outputs["C"].held)
    other.outputs["C"] = Output("float16", (4, 4), None, held)
    found = agreement.check(given, run(given), [other])
    assert (found["status"], found["reason"]) == ("failed", "C is float32, but float16 in auto")


def test_one_program_alone_agrees_with_nobody() -> None:
    given = context()
    assert agreement.check(given, run(given), []) == {"status": "not_run", "reason": "no other program ran"}


def test_two_programs_may_each_be_off_in_their_own_direction() -> None:
    given = context()
    atol = np.float32(given.tolerance("C").atol)
    up, down = (
        run(given, p, **{f"at{i}": lambda x, s=s: x + s * atol for i in range(4)}) for p, s in (("a", 1), ("b", -1))
    )
    assert agreement.check(given, up, [down])["status"] == "passed"
    far = run(given, "c", **{f"at{i}": lambda x: x - 4 * atol for i in range(4)})
    assert agreement.check(given, up, [far])["status"] == "failed"


# values


def pinning(values: str, **keys: Any) -> Context:
    return context(f"{TEXT}\nexpect: {{values: {{C: {values}}}}}", **keys)


def test_a_pinned_corner_is_compared() -> None:
    given = pinning("[[152, 158], [504, 526]]")
    found = pinned.check(given, run(given))
    assert found["status"] == "passed"
    assert found["outputs"]["C"]["compared"] == [2, 2]


def test_a_pinned_number_that_is_wrong_is_named() -> None:
    given = pinning("[[152, 159], [504, 526]]")
    found = pinned.check(given, run(given))
    assert (found["status"], found["max_abs_error"]) == ("failed", 1.0)
    assert found["reason"] == "C[0, 1] is 158.0, but expect.values pins 159"


def test_pinned_numbers_may_differ_in_the_last_bits_printed() -> None:
    given = pinning("[[152.0001]]")
    assert pinned.check(given, run(given))["status"] == "passed"
    given = pinning("[[152.001]]")
    assert pinned.check(given, run(given))["status"] == "failed"


@pytest.mark.parametrize("values", ["1", "[1]", "[[1, 2, 3, 4, 5]]", "[[[1]]]"])
def test_a_pinned_block_must_lie_in_the_output(values: str) -> None:
    with pytest.raises(InvalidExperiment, match="the pinned values have shape"):
        pinned.fit(pinning(values))


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ([], None),
        (["+experiment=case3", "mesh=x2", "program=auto", "precision=default"], None),
        (["dims.I=8"], "dims.I"),
        (["arrays.A.init=ones()"], "arrays.A.init"),
        (["~graph.D"], "graph.D"),
        (["+per_device.D=A"], "per_device.D"),
        (["seed=1"], "seed"),
        (["seed=1", "expect.values.C=[[1]]"], None),
    ],
)
def test_an_override_that_changes_the_numbers_releases_the_pins(overrides: list[str], key: str | None) -> None:
    reason = pinned.not_pinned(overrides)
    assert reason == (key and f"the file pins them for its own {key}, which the command line overrides")
    if key:
        given = pinning("[[1]]")
        given.not_pinned = reason
        pinned.fit(given)
        assert pinned.check(given, run(given)) == {"status": "not_run", "reason": reason}


# The tolerance of a run.


def test_the_coarsest_dtype_of_any_array_or_node_decides() -> None:
    given = context()
    fine = given.tolerance("C").rtol
    coarse = Context(
        given.experiment,
        given.arrays,
        given.outputs,
        {"graph": {"h": ((4,), "bfloat16")}},
        given.graph,
        given.per_device,
    )
    assert coarse.tolerance("C").rtol > 1000 * fine


@pytest.mark.parametrize(
    ("platform", "precision", "line", "narrowed"),
    [
        ("tpu", "default", "A @ B", True),
        ("gpu", "tensorfloat32", "A @ B", True),
        ("tpu", "high", "A @ B", False),
        ("tpu", "default", "A * B", False),
        ("cpu", "default", "A @ B", False),
    ],
)
def test_products_that_an_accelerator_takes_in_bfloat16_are_compared_so(
    platform: str, precision: str, line: str, narrowed: bool
) -> None:
    given = context(graph={"C": line}, per_device={"C": "A"}, target={"platform": platform}, precision=precision)
    given = Context(given.experiment, given.arrays, given.outputs, given.nodes, given.graph, None)
    assert (given.tolerance("C").rtol > 2e-3) == narrowed


MASKED = [
    "softmax(where(tri(4) > 0, A @ B, -1e30))",
    "exp(where(tri(4) > 0, A, -1e30) - max(A, axis=-1, keepdims=True)) @ B",
    "where(tri(4) > 0, log_softmax(where(tri(4) > 0, A, -1e9)), 0)",
]


@pytest.mark.parametrize("line", MASKED)
def test_what_a_mask_leaves_is_checked_as_closely_as_if_there_were_none(line: str) -> None:
    given = context(TEXT.replace("arange(16)", "normal()"), graph={"C": line}, per_device={"C": "A"})
    given = Context(given.experiment, given.arrays, given.outputs, given.nodes, given.graph, None)
    allowed, noise = given.tolerances["C"]
    assert given.graph is not None
    assert not noise
    assert 0 < allowed.atol < 1e-3 * np.abs(given.graph.values["C"][0]).max()


@pytest.mark.parametrize("line", ["A * 0.1 + 1e9 - 1e9 - A * 0.1", "A - A"])
def test_what_cancels_is_still_noise(line: str) -> None:
    given = context(graph={"C": line}, per_device={"C": line}, outputs={"C": ["y", "x"]})
    largest = max(np.abs(part).max() for part in given.graph.values["C"]) if given.graph else 0
    assert given.tolerances["C"][1]
    assert given.tolerance("C").atol >= largest


def test_a_whole_output_is_put_together_from_its_parts() -> None:
    given = context()
    assert run(given).outputs["C"].whole().tolist() == (given.arrays["A"] @ given.arrays["B"]).tolist()
