"""Each check can fail, says where, and passes correct results: on synthetic runs, without JAX."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.base.faults import InvalidExperiment
from runner.base.layout import Typed
from runner.checks import blame, oracles
from runner.checks.context import Context
from runner.checks.kinds import agreement, layout, pinned, replicas, sections, value
from runner.checks.kinds.layout import LayoutVerdict
from runner.checks.kinds.replicas import ReplicasVerdict
from runner.checks.reference.arithmetic import ANY
from runner.experiment import data
from runner.experiment.program import Program
from runner.link.target import DeviceShard, Output, ProgramRun
from runner.reports.record.verdicts import NotRun
from tests.evidence import ran
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
    dtype = given.arrays[0].dtype
    every = {line: {ANY: dtype} for line in ("C", "partial", "q")}
    return oracles.consult(given, arrays, {"C": Typed((4, 4), dtype)}, {"graph": every, "per_device": every})


def run(of: Context, program: str = "shard_map", **changes: Any) -> ProgramRun:
    """Return the result of a correct program; `changes` maps a position to another value that it holds."""
    promised = of.layout("C")
    right = of.arrays["A"].astype(np.float64) @ of.arrays["B"].astype(np.float64)
    held, copies = [], {}
    for position in range(4):
        part = right[promised.index(position)].astype(of.arrays["A"].dtype)
        part = changes.get(f"at{position}", lambda x: x)(part)
        copy = copies.setdefault(part.tobytes() + bytes(promised.block(position)), len(copies))
        held.append(DeviceShard(position, IDS[position], promised.ranges(position), copy, part))
    operands = {
        array.name: [(IDS[position], array.layout.ranges(position)) for position in range(4)]
        for array in of.experiment.arrays
    }
    output = Output(of.outputs["C"][1], (4, 4), None, tuple(held))
    return ProgramRun(Program(program), outputs={"C": output}, event=ran(IDS, operands=operands))


def off_by_one(part: np.ndarray) -> np.ndarray:
    part = part.copy()
    part[0, 1] += 1
    return part


def test_a_correct_program_passes_every_check() -> None:
    given = context()
    ran, other = run(given), run(given, "auto")
    assert value.check(given, ran).status == "passed"
    assert layout.check(given, ran) == LayoutVerdict(status="passed")
    assert replicas.check(given, ran) == ReplicasVerdict(status="passed", copies=2)
    assert agreement.check(given, ran, [other]).status == "passed"


# value


def test_a_wrong_element_on_one_device_is_found_there() -> None:
    given = context()
    verdict: Any = value.check(given, run(given, at2=off_by_one))
    assert verdict.status == "failed"
    assert verdict.max_abs_error == 1.0
    output = verdict.outputs["C"]
    assert (output.status, output.wrong, output.of, output.devices) == ("failed", 1, 32, [3])


def test_a_program_is_compared_with_the_oracle_of_its_section() -> None:
    given = context(per_device={"C": "psum(A @ B, 'x') + 1"})
    assert value.check(given, run(given, "auto")).status == "passed"
    verdict: Any = value.check(given, run(given, "shard_map"))
    assert (verdict.status, verdict.outputs["C"].oracle) == ("failed", "per_device")


def test_the_tolerance_is_in_the_verdict() -> None:
    given = context()
    verdict = value.check(given, run(given))
    assert 0 < verdict.rtol < 1e-6
    assert verdict.atol == given.tolerance("per_device", "C").atol == 0.0


def test_integers_have_no_tolerance() -> None:
    given = context(TEXT.replace("shape: [4, 4],", "shape: [4, 4], dtype: int32,"))
    assert (value.check(given, run(given)).rtol, value.check(given, run(given)).atol) == (0.0, 0.0)
    assert value.check(given, run(given, at0=off_by_one)).status == "failed"


def test_nan_in_the_reference_is_noted() -> None:
    rows = "[[.nan, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]"
    given = context(TEXT.replace("arange(16),", f"{rows},"))
    verdict = value.check(given, run(given))
    assert verdict.status == "passed"
    # The first row, on the two devices that hold it.
    assert verdict.note == "the reference has NaN: 8 comparisons of NaN with NaN count as equal"
    assert value.check(context(), run(context())).note is None


def test_a_nan_that_the_reference_does_not_have_fails() -> None:
    given = context()
    assert value.check(given, run(given, at1=lambda part: part * np.nan)).status == "failed"


BFLOAT16 = TEXT.replace("shape: [4, 4],", "shape: [4, 4], dtype: bfloat16,").replace("arange(16)", "normal()")


def test_a_check_says_what_it_would_have_noticed() -> None:
    given = context(BFLOAT16)
    verdict: Any = value.check(given, run(given))
    assert verdict.status == "passed"
    power = verdict.power
    assert 0.01 < power < value.WEAK
    root = np.sqrt(np.mean(np.asarray(given.graph.values["C"][0]) ** 2)) if given.graph else 0
    changes: list[dict[str, Any]] = [
        {f"at{i}": lambda x, f=f: x + np.asarray(f * power * root, x.dtype) for i in range(4)} for f in (0.5, 1.5)
    ]
    within, beyond = changes
    assert value.check(given, run(given, **within)).status == "passed"
    assert value.check(given, run(given, **beyond)).status == "failed"


WEAKEST = TEXT.replace("shape: [4, 4],", "shape: [4, 4], dtype: float8_e5m2,").replace("arange(16)", "normal()")


def test_a_check_that_would_miss_ten_percent_is_weak() -> None:
    given = context(WEAKEST)
    verdict: Any = value.check(given, run(given))
    assert verdict.status == "weak"
    assert verdict.power > value.WEAK
    assert verdict.reason.startswith("C: it would not notice a mistake of less than ")


def test_a_value_that_is_0_but_for_rounding_is_called_so() -> None:
    text = TEXT.replace("arange(16),", '"0.1 * ((arange(16) % 4) ** 2 - 3.5)",').replace('"arange(16, 32)"', "1")
    given = context(text)
    verdict = value.check(given, run(given))
    assert (verdict.status, verdict.reason) == (
        "weak",
        "C: rounding may be 4.3 times its root mean square, as in a value that is 0 but for rounding",
    )


def test_an_experiment_may_accept_by_name_that_a_check_is_weak() -> None:
    given = context(f"{WEAKEST}\nexpect: {{weak: [C]}}")
    verdict = value.check(given, run(given))
    assert (verdict.status, verdict.accepted) == ("passed", ["C"])
    assert value.check(given, run(given, at0=lambda part: part * 4)).status == "failed"


def test_an_output_that_its_dtype_cannot_hold_proves_nothing() -> None:
    text = TEXT.replace("shape: [4, 4],", "shape: [4, 4], dtype: float8_e4m3fn,")
    given = context(text.replace("arange(16),", "20,").replace('"arange(16, 32)"', "20"))
    verdict = value.check(given, run(given))
    assert verdict.status == "weak"
    beyond = "C: 32 of 32 elements can be infinite or NaN and were not compared"
    assert verdict.reason == f"{beyond}: float8_e4m3fn has no infinity and holds NaN instead"


# sections


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("psum(A @ B, 'x')", "passed"),
        ("A @ B", "failed"),
        ("psum(A @ B, 'x') * 2", "failed"),
        ("psum(A @ B, 'x') * (1 + 1e-9)", "failed"),
        ("psum(A @ B, 'x') + 0 * axis_index('y')", "passed"),
        ("psum(A @ B, 'x') + 1e-7 * axis_index('x')", "failed"),
    ],
)
def test_sections_that_differ_fail(line: str, status: str) -> None:
    assert sections.check(context(per_device={"C": line})).status == status


def test_a_difference_of_sections_is_located() -> None:
    verdict = sections.check(context(per_device={"C": "psum(A @ B, 'x') + 0.25 * (axis_index('x') == 1)"}))
    output = verdict.outputs["C"]
    assert (output.wrong, output.of, output.devices, output.max_abs_error) == (16, 32, [2, 3], 0.25)
    apart = "C of per_device is not graph's at 16 of 32 elements, on devices 2,3; largest error 0.25, allowed"
    assert str(verdict.reason).startswith(apart)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_no_dtype_hides_a_millionth_from_the_sections(dtype: str) -> None:
    text = TEXT.replace("shape: [4, 4],", f"shape: [4, 4], dtype: {dtype},").replace("arange(16)", "normal()")
    assert sections.check(context(text)).status == "passed"
    assert sections.check(context(text, per_device={"C": "psum(A @ B, 'x') * (1 + 1e-6)"})).status == "failed"


CAST = {"partial": "psum(A @ B, 'x')", "C": "astype(partial, 'bfloat16')"}


def test_a_cast_that_may_round_either_way_may_differ_by_one_step() -> None:
    # 0.5 is halfway between two numbers of bfloat16 at 256; the order of the sum decides.
    rows = "[[128.25, 128.25, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4], [1, 2, 3, 4], [5, 6, 7, 8]]"
    text = TEXT.replace("arange(16),", f"{rows},")
    right = {"graph": {"C": "astype(A @ B, 'bfloat16')"}, "per_device": CAST}
    assert sections.check(context(text, **right)).status == "passed"
    wrong = {**CAST, "partial": "psum(A @ B, 'x') * (1 + 1e-6)"}
    assert sections.check(context(text, **right | {"per_device": wrong})).status == "failed"


def test_a_cast_in_only_one_section_is_a_difference() -> None:
    lines = {"partial": "psum(astype(A @ B, 'bfloat16'), 'x')", "C": "astype(partial, 'float32')"}
    text = TEXT.replace("arange(16)", "normal()")
    assert sections.check(context(text, per_device=lines)).status == "failed"


def test_sections_may_decide_otherwise_where_only_a_cast_would_hide_a_near_tie() -> None:
    # Six sixths are 1 or a little less, by the order in which they are added; in bfloat16 they are more.
    sixth, three = "astype((%s * 0 + 1) / 6, 'bfloat16')", "(partial + partial + partial)"
    graph = {"partial": sixth % "(A @ B)", "C": f"floor({three} + partial + partial + partial)"}
    per_device = {"partial": sixth % "psum(A @ B, 'x')", "C": f"floor({three} + {three})"}
    assert sections.check(context(graph=graph, per_device=per_device)).status == "passed"
    wrong = {**per_device, "C": f"floor({three} + {three} + 1)"}
    assert sections.check(context(graph=graph, per_device=wrong)).status == "failed"


def test_last_bits_of_a_function_of_equal_numbers_may_decide_if_they_come_from_two_places() -> None:
    lines = {"q": "A * 2", "partial": "A + A", "C": "where(tanh(q) < tanh(partial), 1.0, 0.0)"}
    given = context(graph=lines)
    assert oracles.in_float64(given, "graph")["C"].low is None
    assert oracles.in_float64(given, "graph", place=0)["C"].low is not None


def test_an_approximating_per_device_declares_its_error() -> None:
    lines = {"q": "round(A @ B * 0.01) * 100", "C": "psum(q, 'x')"}
    assert sections.check(context(per_device=lines)).status == "failed"
    accepted = context(f"{TEXT}\nexpect: {{sections: {{C: 0.2}}}}", per_device=lines)
    assert sections.check(accepted).status == "passed"


# layout


def test_a_device_that_holds_another_range_is_named() -> None:
    given = context()
    ran = run(given)
    held = list(ran.outputs["C"].held)
    held[1] = replace(held[1], ranges=((0, 2), (0, 4)))
    ran.outputs["C"] = replace(ran.outputs["C"], held=tuple(held))
    verdict = layout.check(given, ran)
    assert verdict.status == "failed"
    assert verdict.reason == "device 5 holds C[0:2, 0:4], not C[2:4, 0:4]"
    assert verdict.wrong == 1


def test_a_device_that_holds_nothing_is_named() -> None:
    given = context()
    ran = run(given)
    ran.outputs["C"] = replace(ran.outputs["C"], held=ran.outputs["C"].held[:3])
    assert layout.check(given, ran).reason == "device 1 holds C nothing, not C[2:4, 0:4]"


def test_a_misplaced_operand_is_named() -> None:
    given = context()
    ran = run(given, "auto")
    ran.ran.operands["A"][0] = (7, ((0, 4), (2, 4)))
    verdict = layout.check(given, ran)
    assert (verdict.status, verdict.reason) == ("failed", "device 7 holds A[0:4, 2:4], not A[0:2, 0:2]")


def test_the_compiler_chooses_the_layouts_of_autos_outputs() -> None:
    given = context()
    ran = run(given, "auto")
    held = tuple(replace(part, ranges=((0, 4), (0, 4))) for part in ran.outputs["C"].held)
    ran.outputs["C"] = replace(ran.outputs["C"], held=held)
    verdict = layout.check(given, ran)
    assert verdict.status == "passed"
    assert "the compiler chooses" in str(verdict.note)


def test_vmap_has_no_layout() -> None:
    given = context()
    assert layout.check(given, run(given, "vmap")).status == "not_run"


# replicas


def test_copies_that_differ_in_one_bit_are_found_and_called_rounding() -> None:
    given = context()
    verdict = replicas.check(given, run(given, at2=lambda part: np.nextafter(part, np.float32(np.inf))))
    assert verdict.status == "failed"
    place, _, why = str(verdict.reason).partition(": ")
    assert place == "C[0:2, 0:4] on device 3 differs from device 7"
    assert why.startswith("by rounding alone")
    assert (verdict.wrong, verdict.copies) == (1, 2)
    assert "rounding" not in str(replicas.check(given, run(given, at2=off_by_one)).reason)


def test_shards_that_are_not_copies_may_differ() -> None:
    given = context()
    both: dict[str, Any] = {"at0": off_by_one, "at2": off_by_one}
    assert replicas.check(given, run(given, **both)).status == "passed"


# agreement


def test_programs_that_differ_are_named() -> None:
    given = context()
    verdict = agreement.check(given, run(given), [run(given, "auto"), run(given, "vmap", at0=off_by_one)])
    assert verdict.status == "failed"
    assert verdict.others == ["auto", "vmap"]
    assert verdict.max_abs_error == 1.0
    assert verdict.reason == "C differs from vmap at 1 of 16 elements"


def test_what_one_program_has_wrong_is_not_held_against_the_others() -> None:
    given = context()
    right, same, wrong = run(given), run(given, "auto"), run(given, "vmap", at0=off_by_one)
    given.failed = {(Program.VMAP, "C")}
    assert agreement.check(given, right, [same, wrong]).status == "passed"
    assert agreement.check(given, wrong, [right, same]).reason == (
        "C differs from shard_map at 1 of 16 elements; C differs from auto at 1 of 16 elements"
    )
    assert agreement.check(given, right, [wrong]) == NotRun(reason="C of vmap: the value is wrong there")
    # What a twin has proved may be any distance away.
    given.failed, given.proved = frozenset(), {(wrong.program, "C")}
    assert agreement.check(given, right, [wrong]).status == "passed"


def test_programs_of_different_dtypes_do_not_agree() -> None:
    given = context()
    other = run(given, "auto")
    held = tuple(replace(part, value=part.value.astype(np.float16)) for part in other.outputs["C"].held)
    other.outputs["C"] = Output("float16", (4, 4), None, held)
    verdict = agreement.check(given, run(given), [other])
    assert (verdict.status, verdict.reason) == ("failed", "C is float32, but float16 in auto")


def test_agreement_is_not_run_for_one_program() -> None:
    given = context()
    alone = NotRun(reason="no other program ran")
    assert agreement.check(given, run(given), []) == alone


def test_two_programs_may_differ_from_the_oracle_in_opposite_directions() -> None:
    given = context(TEXT.replace("arange(16)", "normal()").replace('"arange(16, 32)"', "normal()"))
    atol = np.float32(given.tolerance("graph", "C").atol)
    assert atol > 0
    up, down = (
        run(given, p, **{f"at{i}": lambda x, s=s: x + s * atol for i in range(4)})
        for p, s in (("auto", 1), ("explicit", -1))
    )
    assert agreement.check(given, up, [down]).status == "passed"
    far = run(given, "constraint", **{f"at{i}": lambda x: x - 4 * atol for i in range(4)})
    assert agreement.check(given, up, [far]).status == "failed"


def test_programs_of_sections_that_differ_are_not_compared() -> None:
    given = context()
    verdict = agreement.check(given, run(given), [run(given, "auto")], alike=False)
    assert verdict.status == "not_run"
    assert agreement.check(given, run(given), [run(given, "vmap", at0=off_by_one)], alike=False).status == "failed"


# values


def pinning(values: str, **keys: Any) -> Context:
    return context(f"{TEXT}\nexpect: {{values: {{C: {values}}}}}", **keys)


def test_a_pinned_corner_is_compared() -> None:
    given = pinning("[[152, 158], [504, 526]]")
    verdict = pinned.check(given, run(given))
    assert verdict.status == "passed"
    assert verdict.outputs["C"].compared == [2, 2]


def test_a_pinned_number_that_is_wrong_is_named() -> None:
    given = pinning("[[152, 159], [504, 526]]")
    verdict: Any = pinned.check(given, run(given))
    assert (verdict.status, verdict.max_abs_error) == ("failed", 1.0)
    assert verdict.reason == "C[0, 1] is 158.0, but expect.values pins 159"


def test_pinned_numbers_may_differ_in_the_last_bits_printed() -> None:
    given = pinning("[[152.0001]]")
    assert pinned.check(given, run(given)).status == "passed"
    given = pinning("[[152.001]]")
    assert pinned.check(given, run(given)).status == "failed"


@pytest.mark.parametrize("values", ["1", "[1]", "[[1, 2, 3, 4, 5]]", "[[[1]]]"])
def test_a_pinned_block_must_fit_into_its_output(values: str) -> None:
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
        (["seed=1", "expect.values={D:[0,{}],C:[[1]]}"], None),
        (["seed=1", "expect={values:{'C':[[1]]},collectives:{}}"], None),
        (["seed=1", "expect.values={D:[[1]]}"], "seed"),
        (["dims.I=8", "expect.collectives=null"], "dims.I"),
        (["dims.I=8", "expect.max_memory_bytes=9", "expect={collectives:{all-reduce:1}}"], "dims.I"),
    ],
)
def test_an_override_that_changes_the_numbers_releases_the_pins(overrides: list[str], key: str | None) -> None:
    released = pinned.released(["C"], overrides)
    reason = key and f"the file pins them for its own {key}, which the command line overrides"
    assert released == ({"C": reason} if reason else {})
    if reason:
        given = pinning("[[1]]")
        given.released = released
        pinned.fit(given)
        assert pinned.check(given, run(given)) == NotRun(reason=reason)


# The tolerance of a run.


def test_a_dtype_that_an_output_does_not_use_does_not_loosen_it() -> None:
    given = experiment(
        "arrays: {A: {shape: [4, 4], spec: [x]}, B: {shape: [4], dtype: float8_e4m3fn}}\n"
        "graph: {C: A * 2, D: B * 3}\noutputs: {C: [], D: []}"
    )
    outputs = {"C": ((4, 4), "float32"), "D": ((4,), "float8_e4m3fn")}
    floats = {"graph": {"D": {ANY: "float8_e4m3fn"}}}
    oracle_context = oracles.consult(given, data.make(given, Path()), outputs, floats)
    assert oracle_context.tolerance("graph", "C").atol == 0.0
    assert oracle_context.tolerance("graph", "D").atol > 0.1


@pytest.mark.parametrize(
    ("platform", "precision", "line", "least", "most"),
    [
        ("tpu", "default", "A @ B", 1e-3, 1e-1),
        ("gpu", "default", "A @ B", 1e-4, 1e-2),
        ("gpu", "tensorfloat32", "A @ B", 1e-4, 1e-2),
        ("gpu", "bfloat16", "A @ B", 1e-3, 1e-1),
        ("tpu", "high", "A @ B", 0.0, 1e-5),
        ("tpu", "default", "A * B", 0.0, 1e-5),
        ("cpu", "default", "A @ B", 0.0, 1e-5),
    ],
)
def test_products_with_reduced_precision_are_compared_at_that_precision(
    platform: str, precision: str, line: str, least: float, most: float
) -> None:
    text = TEXT.replace("arange(16)", "normal()").replace('"arange(16, 32)"', "normal()")
    given = context(text, graph={"C": line}, per_device={}, target={"platform": platform}, precision=precision)
    assert least <= given.tolerance("graph", "C").atol < most


MASKED = [
    "softmax(where(tri(4) > 0, A @ B, -1e30))",
    "exp(where(tri(4) > 0, A, -1e30) - max(A, axis=-1, keepdims=True)) @ B",
    "where(tri(4) > 0, log_softmax(where(tri(4) > 0, A, -1e9)), 0)",
]


@pytest.mark.parametrize("line", MASKED)
def test_masked_values_do_not_loosen_the_tolerance_of_the_others(line: str) -> None:
    given = context(TEXT.replace("arange(16)", "normal()"), graph={"C": line}, per_device={})
    assert given.graph is not None
    assert 0 < given.tolerance("graph", "C").atol < 1e-5 * np.abs(given.graph.values["C"][0]).max()


def test_a_result_that_cancels_is_weak() -> None:
    given = context(graph={"C": "A * 0.1 + 1e9 - 1e9 - A * 0.1"}, per_device={}, outputs={"C": ["y", "x"]})
    assert given.graph is not None
    assert given.tolerance("graph", "C").atol >= np.abs(given.graph.values["C"][0]).max()


def test_a_whole_output_is_put_together_from_its_parts() -> None:
    given = context()
    assert run(given).outputs["C"].whole().tolist() == (given.arrays["A"] @ given.arrays["B"]).tolist()


# Weak checks: no mistake would be visible.


def undecided(given: Context, program: str, change: Any = None) -> tuple[ProgramRun, Any]:
    """Return a run and its verdict: all elements of C depend on decisions, which were seen to double them."""
    ran = run(given, program, **({f"at{position}": change for position in range(4)} if change else {}))
    return ran, value.check(given, ran)


def twice(given: Context) -> Context:
    """Mark every element as one that a decision may double."""
    for oracle in (given.graph, given.per_device):
        assert oracle is not None
        exact, rounding = oracle.values["C"], oracle.rounding["C"]
        rounding.alternatives = ([2 * each for each in exact],)
        rounding.low, rounding.high = exact, [2 * each for each in exact]
        rounding.hangs = [np.ones(np.shape(each), bool) for each in exact]
    return given


def test_programs_that_agree_on_undecided_elements_are_not_blamed() -> None:
    given = twice(context())
    pairs = [undecided(given, program, lambda part: 1.5 * part) for program in ("auto", "shard_map")]
    runs = [ran for ran, _ in pairs]
    values = {ran.program: verdict for ran, verdict in pairs}
    assert {verdict.status for verdict in values.values()} == {"failed"}
    judged = blame.unblamed(given, values, runs, alike=True)
    assert {verdict.status for verdict in judged.values()} == {"weak"}
    assert judged[Program.AUTO].reason == (
        "C: 32 of 32 elements match no value that near ties allow, but auto and shard_map agree on them"
    )


@pytest.mark.parametrize("beside", [2.0, 1.0, 1.25])
def test_a_program_that_alone_differs_in_undecided_elements_fails(beside: float) -> None:
    given = twice(context())
    pairs = [
        undecided(given, "auto", lambda part: 1.5 * part),
        undecided(given, "shard_map", lambda part: beside * part),
    ]
    values = {ran.program: verdict for ran, verdict in pairs}
    judged = blame.unblamed(given, values, [ran for ran, _ in pairs], alike=True)
    assert judged == values
    assert judged[Program.AUTO].status == "failed"


def test_a_single_program_with_undecided_elements_fails() -> None:
    given = twice(context())
    ran, verdict = undecided(given, "auto", lambda part: 1.5 * part)
    assert blame.unblamed(given, {ran.program: verdict}, [ran], alike=True)[Program.AUTO].status == "failed"


def test_decided_elements_are_wrong_even_if_all_programs_agree() -> None:
    given = context()
    pairs = [undecided(given, program, off_by_one) for program in ("auto", "shard_map")]
    values = {ran.program: verdict for ran, verdict in pairs}
    judged = blame.unblamed(given, values, [ran for ran, _ in pairs], alike=True)
    assert {verdict.status for verdict in judged.values()} == {"failed"}


def test_an_output_that_may_have_any_value_is_weak() -> None:
    given = twice(context())
    for oracle in (given.graph, given.per_device):
        assert oracle is not None
        exact = oracle.values["C"]
        oracle.rounding["C"].alternatives = tuple(
            [share * each for each in exact] for share in (1.2, 1.4, 1.6, 1.8, 2.0)
        )
    verdict = undecided(given, "shard_map")[1]
    assert verdict.status == "weak"
    assert verdict.power > 0.5


def test_sections_are_weak_if_too_many_elements_only_lie_between() -> None:
    given = context(per_device={"C": "psum(A @ B, 'x') * 1.5"})
    rounding = given.in_float64["graph"]["C"]
    assert given.graph is not None
    (exact,) = given.graph.values["C"]
    rounding.alternatives = tuple([share * exact] for share in (1.2, 1.4, 1.6, 1.8, 2.0))
    rounding.low, rounding.high = [exact], [2 * exact]
    verdict = sections.check(given)
    assert (verdict.status, verdict.reason) == (
        "weak",
        "C: 32 of 32 elements lie between the values that near ties allow",
    )
    rounding.alternatives = rounding.alternatives[2:]
    assert sections.check(given).status == "failed"
