"""The twin of a program, the same program in float64, decides where rounding does not."""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import runner
from runner.app import api
from runner.app.flow import run
from runner.checks import compare, twins
from runner.experiment.config.sources import Sources
from runner.graph.language import operations
from runner.graph.language.counterparts import threefry
from runner.reports.record import measures
from runner.worker import widening
from tests import harness
from tests.command import run_command
from tests.harness import WORKERS
from tests.test_machine import started
from tests.test_planted import config

MESH = {"axes": ["x"], "shape": [4]}


def layer(tmp_path: Path, **changes: Any) -> Any:
    """The value check of a program of the shipped layer."""
    tmp_path.mkdir(exist_ok=True)
    chosen = {"program": "shard_map", **changes}
    record: Any = run.run(config("layer", MESH, **chosen), tmp_path, Sources(), workers=WORKERS)
    return record.programs[chosen["program"]].checks.value


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tolerance be a ten-thousandth of what rounding may do, which right programs exceed."""
    monkeypatch.setattr(twins, "BOUND", dict.fromkeys(twins.BOUND, 1e6))
    monkeypatch.setattr(compare, "SAFE", dict.fromkeys(compare.SAFE, 1e-4))
    monkeypatch.setattr(compare, "UNITS", dict.fromkeys(compare.UNITS, 1e-4))


@pytest.mark.usefixtures("strict")
def test_a_right_program_whose_rounding_exceeds_what_was_measured_is_proved_by_its_twin(tmp_path: Path) -> None:
    value = layer(tmp_path)
    (output,) = value.outputs.values()
    assert (value.status, output.wrong > 0, output.twin.status) == ("passed", True, "passed")
    assert "in float64 the same program equals the oracle to" in output.reason
    assert output.twin.max_abs_error < 1e-13
    source = (tmp_path / "twin_shard_map.py").read_text(encoding="utf-8")
    assert "class CannotWiden" in source


@pytest.mark.usefixtures("strict")
def test_without_its_twin_it_fails_and_nobody_is_blamed(tmp_path: Path) -> None:
    value = layer(tmp_path, verify="rounding")
    assert value.status == "failed"
    assert [output.twin for output in value.outputs.values()] == [None]
    (sentence,) = value.diagnosis
    assert "nothing shows yet whether that is rounding, or a mistake" in sentence


NARROW = """
name: narrow
mesh: {axes: [model], shape: [4]}
arrays:
  x: {shape: [8, 8], spec: [model, null], dtype: bfloat16, init: normal}
  w: {shape: [8, 16], spec: [null, model], init: normal}
graph:
  h: tanh(astype(x @ astype(w, 'bfloat16'), 'float32') * 0.3)
  loss: mean(astype(astype(h, 'bfloat16') * (1 / 3), 'float32') ** 2)
  new: w - 0.1 * grad.w
outputs: {loss: [], new: [null, model]}
grad: {of: loss, wrt: [w]}
verify: twin
"""


@pytest.mark.in_turn
def test_casts_do_not_round_in_a_twin_nor_in_the_gradient_that_it_is_compared_with(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    record: Any = runner.run({**yaml.safe_load(NARROW), "program": ["auto", "derived"]}, folder=folder)
    assert record.status == "passed"
    twins_of = [output.twin for result in record.programs.values() for output in result.checks.value.outputs.values()]
    assert [twin.status for twin in twins_of] == ["passed"] * 6
    assert max(twin.max_abs_error for twin in twins_of) < 1e-13


@pytest.mark.parametrize("verify", ["auto", "twin"])
def test_a_mistake_smaller_than_the_rounding_is_noticed_by_the_twin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: str
) -> None:
    row = dataclasses.replace(operations.OPERATIONS["sigmoid"], counterpart=lambda x: (1 + 1e-8) / (1 + np.exp(-x)))
    monkeypatch.setitem(operations.OPERATIONS, "sigmoid", row)
    value = layer(tmp_path, verify=verify)
    assert value.status == ("passed" if verify == "auto" else "failed")
    if verify == "twin":
        (output,) = value.outputs.values()
        assert output.twin.status == "failed"
        assert "in float64 the same program differs from the oracle too" in output.reason


def test_a_mistake_beyond_the_tolerance_is_not_taken_for_rounded_constants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = dataclasses.replace(operations.OPERATIONS["square"], counterpart=lambda x: x * x + 2.5e-6)
    monkeypatch.setitem(operations.OPERATIONS, "square", row)
    changes = {"graph": {}, "per_device": {"out": "square(x)"}, "outputs": {"out": ["x"]}, "expect": {}}
    record: Any = run.run(
        {**config("layer", MESH, program="shard_map"), **changes}, tmp_path, Sources(), workers=WORKERS
    )
    (output,) = record.programs["shard_map"].checks.value.outputs.values()
    assert (output.status, output.wrong > 0, output.twin.status) == ("failed", True, "failed")


@pytest.mark.parametrize(("times", "status"), [(0.3, "passed"), (2.0, "failed")])
def test_a_mistake_of_what_a_twin_notices_fails_and_a_smaller_one_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: float, status: str
) -> None:
    (right,) = layer(tmp_path / "right", verify="twin").outputs.values()
    assert (right.by_twin, right.noticed) == (True, right.twin.power)
    assert 1e-13 < right.noticed < 1e-10 < right.power
    sigmoid = 1 + times * right.noticed
    row = dataclasses.replace(operations.OPERATIONS["sigmoid"], counterpart=lambda x: sigmoid / (1 + np.exp(-x)))
    monkeypatch.setitem(operations.OPERATIONS, "sigmoid", row)
    assert layer(tmp_path / "wrong", verify="twin").status == status


def test_what_is_mostly_undecided_is_proved_by_its_twin(tmp_path: Path) -> None:
    # A third of 3 is 1 in float64, and may be less in float32.
    changes = {"graph": {}, "per_device": {"out": "floor(x / 3 / x * 3)"}, "outputs": {"out": ["x"]}, "expect": {}}
    experiment = {**config("layer", MESH, program="shard_map"), **changes}
    for folder in ("rounding", "auto"):
        (tmp_path / folder).mkdir()
    record: Any = run.run({**experiment, "verify": "rounding"}, tmp_path / "rounding", Sources(), workers=WORKERS)
    assert record.error is None
    assert record.programs["shard_map"].checks.value.status == "weak"
    record = run.run(experiment, tmp_path / "auto", Sources(), workers=WORKERS)
    (output,) = record.programs["shard_map"].checks.value.outputs.values()
    assert (output.undecided.count > output.of / 2, output.twin.status) == (True, "passed")
    assert output.status == "passed"


TIED = """
name: tied
mesh: {axes: [x], shape: [2]}
arrays: {x: {shape: [8, 6], spec: [null, x], dtype: bfloat16, init: ones}}
graph: {out: "floor(sum(astype(astype(x, 'float32') / 6, 'bfloat16'), axis=1))"}
outputs: {out: []}
program: derived
"""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_mostly_undecided_in_float64_too_is_not_proved(tmp_path: Path, dtype: str) -> None:
    # Six sixths are 1 or a little less, by the order in which they are added.
    tied = TIED.replace("bfloat16", dtype)
    record: Any = run.run(harness.config(tied), tmp_path, Sources(), workers=WORKERS)
    checks = record.programs["derived"].checks
    (output,) = checks.value.outputs.values()
    assert (output.twin.status, output.twin.ties, checks.derivation.status) == ("passed", output.of, "passed")
    assert (output.status, record.status) == ("weak", "weak")
    assert output.reason.startswith("16 of 16 elements are undecided in float64 too")


def widened(function: Any, *operands: Any, exact: tuple[float, ...] = (), as_read: bool = False) -> list[np.ndarray]:
    """What a function computes in float64."""
    in_float64, wide = widening.widened(function, operands, exact, as_read=as_read)
    return [np.asarray(value) for value in in_float64(*wide)]


X = np.linspace(0.1, 1, 4).astype(np.float32)
WIDE = X.astype(np.float64)


def test_casts_constants_and_products_are_widened() -> None:
    def function(x: jax.Array) -> tuple[jax.Array, ...]:
        narrow = x.astype("bfloat16") * 0.3
        product = jax.lax.dot(narrow, narrow, preferred_element_type=jnp.float32)
        return (narrow * (1 / 3)).astype("float32") + 1 / 3, product, jax.lax.complex(x, x) * 2

    a, b, c = widened(function, X, exact=(0.3, 1, 3))
    assert (a.dtype, b.dtype, c.dtype) == (np.float64, np.float64, np.complex128)
    np.testing.assert_allclose(a, WIDE * 0.1 + 1 / 3, rtol=1e-15)
    np.testing.assert_allclose(b, np.sum((WIDE * 0.3) ** 2), rtol=1e-15)
    np.testing.assert_array_equal(c, (WIDE + 1j * WIDE) * 2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_constants_of_derivatives_are_exact(dtype: str) -> None:
    def function(x: jax.Array) -> tuple[jax.Array, ...]:
        slope = jax.grad(lambda x: jax.lax.erf(1.125 * x).sum())(x)
        return slope, jax.grad(lambda x: jax.lax.erfc(x).sum())(x), jnp.rad2deg(x)

    x = X.astype(dtype)
    erf, erfc, degrees = widened(function, x, exact=(1.125,))
    wide, steepest = x.astype(np.float64), 2 / np.pi**0.5
    np.testing.assert_allclose(erf, 1.125 * steepest * np.exp(-((1.125 * wide) ** 2)), rtol=1e-14)
    np.testing.assert_allclose(erfc, -steepest * np.exp(-(wide**2)), rtol=1e-14)
    np.testing.assert_allclose(degrees, np.rad2deg(wide), rtol=1e-15)


def test_the_constants_of_what_is_cast_to_a_narrow_dtype_are_exact() -> None:
    def function(x: jax.Array) -> tuple[jax.Array, ...]:
        return jax.grad(lambda x: jax.lax.erf(x.astype("bfloat16")).sum())(x), jax.nn.gelu(x.astype("bfloat16"))

    slope, gelu = widened(function, X)
    np.testing.assert_allclose(slope, 2 / np.pi**0.5 * np.exp(-(WIDE**2)), rtol=1e-14)
    inner = (2 / np.pi) ** 0.5 * (WIDE + 0.044715 * WIDE**3)
    np.testing.assert_allclose(gelu, WIDE * (1 + np.tanh(inner)) / 2, rtol=1e-14)


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="JAX computes the sine")
def test_a_series_for_one_dtype_is_refused() -> None:
    with pytest.raises(widening.CannotWiden, match="sinc"):
        widening.widened(jax.grad(lambda x: jnp.sinc(x).sum()), (X,))


def test_numbers_that_round_to_the_same_one_keep_their_places() -> None:
    x = X.astype("bfloat16")
    (moved,) = widened(lambda x: [0.999 * x + (1.0 - x) + 1e-50], x, exact=(0.999, 1.0, 1e-50))
    np.testing.assert_allclose(moved, 1 - 0.001 * x.astype(np.float64), rtol=1e-15)


def test_a_function_has_the_numbers_with_which_it_was_read_and_those_of_jax_are_exact() -> None:
    def function(x: jax.Array) -> tuple[jax.Array, ...]:
        return -0.7071 * x, jax.random.normal(jax.random.key(0), (3,)) * 2**0.5, jax.grad(jax.lax.erf)(x[0])

    root = float(np.float16(2**0.5))
    scaled, drawn, steepness = widened(function, X.astype("float16"), exact=(0.707, root), as_read=True)
    wide = X.astype("float16").astype(np.float64)
    np.testing.assert_allclose(scaled, -0.707 * wide, rtol=1e-15)
    np.testing.assert_allclose(drawn, threefry.normal(threefry.key(0), (3,)) * 2**0.5, rtol=1e-13)
    np.testing.assert_allclose(steepness, 2 / np.pi**0.5 * np.exp(-(wide[0] ** 2)), rtol=1e-14)


def test_the_same_number_in_two_dtypes_is_read_as_two() -> None:
    x = X.astype("bfloat16")
    narrow, single = widened(lambda x: (x * 0.1, x.astype("float32") * 0.1), x, exact=(0.1, 0.100098), as_read=True)
    np.testing.assert_allclose([narrow, single], np.outer([0.100098, 0.1], x.astype(np.float64)), rtol=1e-15)


def test_the_algorithm_of_a_product_is_not_kept() -> None:
    q = np.random.default_rng(0).normal(size=(1, 4, 1, 4)).astype(np.float32)
    narrow, wide = jnp.bfloat16, q[0, :, 0].astype(np.float64)
    (attended,) = widened(lambda q: [jax.nn.dot_product_attention(*[q.astype(narrow)] * 3)], q)
    weights = np.exp(wide @ wide.T / 2)
    np.testing.assert_allclose(attended[0, :, 0], weights @ wide / weights.sum(1, keepdims=True), rtol=1e-12)


def test_loops_branches_and_rules_are_widened() -> None:
    @jax.custom_jvp
    def ruled(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    @ruled.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        return ruled(*primals), 0.7 * tangents[0]

    def function(x: jax.Array) -> tuple[jax.Array, ...]:
        total, _ = jax.lax.scan(lambda c, a: (c * 0.5 + a, None), jnp.float32(0), x)
        grown = jax.lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 1.3, x)
        chosen = jax.lax.cond(x[0] > 0, lambda x: x * 0.1, lambda x: x, x)
        return total, grown, jax.checkpoint(jnp.tanh)(chosen), jax.grad(lambda x: ruled(x).sum())(x)

    total, grown, tanh, gradient = widened(function, X, exact=(1.3, 0.1, 0.7))
    expected = 0.0
    for x in WIDE:
        expected = expected * 0.5 + x
    assert abs(total - expected) < 1e-15
    steps = round(np.log(grown[0] / WIDE[0]) / np.log(1.3))
    np.testing.assert_allclose(grown, WIDE * 1.3**steps, rtol=1e-14)
    np.testing.assert_allclose(tanh, np.tanh(WIDE * 0.1), rtol=1e-15)
    np.testing.assert_array_equal(gradient, [0.7] * 4)


@pytest.mark.in_turn
def test_random_numbers_are_those_that_the_function_draws_in_its_own_dtypes() -> None:
    def function(key: jax.Array) -> tuple[jax.Array, ...]:
        return (
            jax.random.uniform(key, (5,), minval=1.0, maxval=3.0),
            jax.random.normal(key, (300,)),
            jax.random.normal(key, (300,), "bfloat16"),
            jax.random.randint(key, (5,), 0, 100),
            jax.random.truncated_normal(key, -1.0, 1.0, (5,)),
        )

    drawn, key = widened(function, jax.random.key(7)), threefry.key(7)
    assert [value.dtype.name for value in drawn] == ["float64", "float64", "float64", "int32", "float64"]
    np.testing.assert_array_equal(drawn[0], threefry.uniform(key, (5,), minval=1.0, maxval=3.0))
    np.testing.assert_allclose(drawn[1], threefry.normal(key, (300,)), rtol=1e-13)
    np.testing.assert_allclose(drawn[2], threefry.normal(key, (300,), "bfloat16"), rtol=1e-13)
    np.testing.assert_array_equal(drawn[3], threefry.randint(key, (5,), 0, 100))
    np.testing.assert_allclose(drawn[4], threefry.truncated_normal(key, -1.0, 1.0, (5,)), rtol=1e-13)


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda x: jax.lax.bitcast_convert_type(x, jnp.int32), "the bits of a float"),
        (lambda x: jnp.nextafter(x, x + 1), "nextafter"),
        (lambda x: jax.lax.reduce_precision(x, 5, 3), "rounds on purpose"),
        (lambda x: jax.pure_callback(lambda x: x, x, x), "a callback"),
    ],
)
def test_what_has_no_meaning_in_float64_is_refused(function: Any, what: str) -> None:
    with pytest.raises(widening.CannotWiden, match=what):
        widening.widened(function, (X,))


@pytest.mark.parametrize(("limit", "status"), [(1e-6, "failed"), (4, "passed")])
def test_the_accuracy_of_an_output_is_measured_and_can_be_expected(tmp_path: Path, limit: float, status: str) -> None:
    changes = {"program": "vmap", "expect": {"accuracy": limit}}
    record: Any = run.run(config("layer", MESH, **changes), tmp_path, Sources(), workers=WORKERS)
    assert record.programs["vmap"].checks.accuracy.status == status
    (row,) = measures.rows(0, record, [])
    assert 0 < row.value("accuracy") < 4


SWEPT = """
name: swept
mesh: {axes: [x], shape: [2]}
arrays:
  x: {shape: [4, 8], spec: [x], init: normal}
  w: {shape: [8, 4], spec: [], init: normal}
graph: {h: tanh(x @ w) * 0.3, loss: mean(h ** 2)}
outputs: {h: [x], loss: []}
program: auto
verify: twin
"""


@pytest.mark.in_turn
def test_points_of_a_sweep_that_differ_in_dtypes_alone_share_a_twin(tmp_path: Path) -> None:
    swept = {"arrays.x.dtype": ("float32", "float16"), "arrays.w.dtype": ("float32", "bfloat16")}
    runner.sweep(yaml.safe_load(SWEPT), swept, folder=tmp_path / "sweep")
    records = [runner.read(tmp_path / "sweep" / str(point)) for point in range(4)]
    twins_of = [record.programs["auto"].checks.value.outputs["h"].twin for record in records]
    assert [twin.status for twin in twins_of] == ["passed"] * 4
    assert [twin.shared for twin in twins_of] == [False, True, True, True]


@pytest.mark.in_turn
def test_a_sweep_killed_between_a_program_and_its_twin_is_resumed(tmp_path: Path) -> None:
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    text = f"# @package _global_\n{SWEPT}"
    (tmp_path / "mine" / "experiment" / "swept.yaml").write_text(text, encoding="utf-8")
    more = ("--config-dir", "mine", "+experiment=swept", "arrays.x.dtype=float32,float16", "hydra.sweep.dir=out")
    process = started("-m", *more, folder=tmp_path)
    twin, deadline = tmp_path / "out" / "1" / "twin_auto.py", time.monotonic() + 60
    while not twin.exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    process.kill()
    process.communicate()
    assert twin.exists()
    assert not (tmp_path / "out" / "1" / "result.json").exists()
    resumed = run_command("resume=out", folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "2 points: 2 passed" in resumed.stdout
    records = [runner.read(tmp_path / "out" / str(point)) for point in range(2)]
    outputs = [record.programs["auto"].checks.value.outputs for record in records]
    assert [of["h"].twin.status for of in outputs] == ["passed"] * 2


def test_where_all_twins_are_asked_for_a_note_says_what_they_show(tmp_path: Path) -> None:
    record: Any = run.run(harness.config(SWEPT, program=["auto", "derived"]), tmp_path, Sources(), workers=WORKERS)
    auto, derived = (record.programs[name].checks.value.note for name in ("auto", "derived"))
    assert auto == derived
    (largest,) = re.findall(r"^in float64 the programs equal the oracle to (\S+)$", auto)
    assert float(largest) < 1e-15


def test_a_twin_that_cannot_run_is_said_where_all_are_asked_for(tmp_path: Path) -> None:
    changes = {"graph": {"h": "nextafter(x, x + 1)"}, "outputs": {"h": ["x"]}}
    record: Any = run.run(harness.config({**yaml.safe_load(SWEPT), **changes}), tmp_path, Sources(), workers=WORKERS)
    assert (record.error, record.status) == (None, "passed")
    expected = (
        "auto has no twin in float64, and the measured rounding decides: it has nextafter, which is about one dtype"
    )
    assert expected in record.warnings


def test_what_was_accepted_as_weak_is_proved_where_a_twin_runs(tmp_path: Path) -> None:
    # Most digits are lost to rounding.
    changes = {"graph": {}, "per_device": {"out": "(x + 1e6) - 1e6"}, "outputs": {"out": ["x"]}}
    experiment = {**config("layer", MESH, program="shard_map"), **changes, "expect": {"weak": ["out"]}}
    for verify, accepted in (("auto", True), ("twin", False)):
        (tmp_path / verify).mkdir()
        record: Any = run.run({**experiment, "verify": verify}, tmp_path / verify, Sources(), workers=WORKERS)
        assert record.error is None
        (output,) = record.programs["shard_map"].checks.value.outputs.values()
        assert (output.status, output.accepted) == ("passed", accepted)


def _biased(x: Any, bias: float, *, summed: bool = True) -> Any:
    """A sum over the devices in bfloat16, with a mistake: a bias, or no sum."""

    def device(x: jax.Array) -> jax.Array:
        part = x.sum(0)
        total = jax.lax.psum(part, "x") if summed else part * 1
        return total + jnp.bfloat16(bias)

    specs = {"in_specs": jax.sharding.PartitionSpec("x"), "out_specs": jax.sharding.PartitionSpec()}
    mapped: Any = jax.shard_map
    return mapped(device, **specs, check_vma=summed)(x)


def right(x: Any) -> Any:
    return x.sum(0)


def slightly(x: Any) -> Any:
    return _biased(x, 5e-4)


def rightly(x: Any) -> Any:
    return _biased(x, 0.0)


def unsummed(x: Any) -> Any:
    return _biased(x, 0.0, summed=False)


@pytest.mark.in_turn
# The sum over devices in bfloat16 is beyond the rounding of the reference: the twin tells it from a mistake.
@pytest.mark.parametrize(
    ("function", "verify", "status"),
    [
        (rightly, "auto", "passed"),
        (slightly, "auto", "failed"),
        (slightly, "twin", "failed"),
        (unsummed, "twin", "failed"),
    ],
)
def test_mistakes_in_bfloat16_and_a_missing_psum_are_noticed(
    tmp_path: Path, function: Any, verify: str, status: str
) -> None:
    x = np.random.default_rng(0).normal(size=(8, 16)).astype("bfloat16")
    record = api.checked(
        function, (x,), tmp_path / "run", WORKERS, mesh={"x": 4}, in_specs=[jax.sharding.PartitionSpec("x")],
        reference=right, program="auto", verify=verify,
    )  # fmt: skip
    assert record.error is None
    value: Any = record.compiled["auto"].checks.value
    (output,) = value.outputs.values()
    assert (value.status, output.twin.status) == (status, status)
