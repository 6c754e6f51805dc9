"""`manual`: a per_device that is manual over some axes of the mesh, and leaves the others to the compiler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runner.base.layout import Layout, Mesh, Spec
from runner.checks.diagnosis import search
from runner.checks.edits.section import Edits
from runner.checks.kinds import value
from runner.checks.reference import interpret
from runner.checks.reference.gradient import shares
from runner.experiment.data import make
from runner.experiment.enumeration import identity
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.link.target import DeviceShard, Output, ProgramRun
from tests.harness import config, consulted, experiment, refusal, run

GOOD = """\
mesh: {axes: [x, y, z], shape: [2, 2, 2]}
manual: [y]
dims: {N: 8, M: 16}
arrays:
  a: {shape: [N, M], spec: [[y, x], z]}
  b: {shape: [N, M], spec: [y, x]}
  c: {shape: [M, M], spec: [z, x]}
graph:
  s: a @ c
  t: sin(s)
  r: sum(t, axis=0)
  q: b * 2 + mean(s)
per_device:
  s: a @ c
  u: sin(s)
  r: psum(sum(u, axis=0), 'y')
  ring:
    repeat: axis_size('y')
    carry: {v: a}
    body:
      v: ppermute(v, 'y', shift=1)
  t: u + ring.v - a
  q: b * 2 + pmean(mean(s), 'y')
constraints:
  s: [y, x]
  u: [x, z]
outputs:
  t: [y, [z, x]]
  r: [z]
  q: [[y, x], null]
"""

STEP = """\
mesh: {axes: [data, model], shape: [2, 2]}
manual: [data]
arrays:
  x: {shape: [4, 4], spec: [data]}
  w: {shape: [4, 4], init: "normal(0, 0.5)", spec: [data, model]}
both:
  full: {graph: w, per_device: "all_gather(w, 'data', tiled=True)"}
  h: tanh(x @ full)
  loss: {graph: mean(h ** 2), per_device: "pmean(mean(h ** 2), 'data')"}
  norm: {graph: sqrt(sum(grad.w ** 2)), per_device: "sqrt(psum(sum(grad.w ** 2), 'data'))"}
  new: w - 0.1 * grad.w / norm
outputs: {loss: [], new: [data, model], grad.w: [data, model]}
grad: {of: loss, wrt: [w]}
"""


def changed(old: str, new: str, text: str = GOOD) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


@pytest.mark.in_turn
def test_a_partly_manual_shard_map_runs_in_every_program_and_is_traced(tmp_path: Path) -> None:
    outcome = run(GOOD, tmp_path, trace=True)
    assert outcome.failures() == []
    assert set(outcome.runs) == {*Program}
    a, b, c = (made.astype(np.float64) for made in make(outcome.experiment, tmp_path).values())
    for program in ("shard_map", "vmap"):
        np.testing.assert_allclose(outcome.value(program, "t"), np.sin(a @ c), atol=1e-5)
        np.testing.assert_allclose(outcome.value(program, "r"), np.sin(a @ c).sum(0), atol=1e-5)
        np.testing.assert_allclose(outcome.value(program, "q"), b * 2 + np.mean(a @ c), atol=1e-5)
    trace = outcome.record.trace
    assert trace is not None
    assert trace.taken_from == "shard_map"
    assert all(node.agrees for node in trace.nodes)
    # Devices 0 and 1 differ along z, which is automatic; 0 and 2 along y.
    shown = next(node for node in trace.nodes if node.name == "s")
    assert shown.shape == [4, 16]
    assert shown.values is not None
    assert shown.values[0] == shown.values[1] != shown.values[2]


def test_the_program_names_the_manual_axes_alone(tmp_path: Path) -> None:
    outcome = run(GOOD, tmp_path, program=["shard_map", "vmap"])
    source = outcome.sources["shard_map"]
    assert 'in_specs=(P("y", None), P("y", None), P(None, None)),' in source
    assert 'out_specs=(P("y", None), P(None), P("y", None)),' in source
    assert 'axis_names={"y"},' in source
    assert "# each device along y: a[4, 16], b[4, 16], c[16, 16]" in source
    # Values that the graph also shards over y are sharded over y already.
    assert 's = jax.lax.with_sharding_constraint(s, P(None, "x"))' in source
    assert 'u = jax.lax.with_sharding_constraint(u, P("x", "z"))' in source
    assert '    NamedSharding(mesh, P("y", ("z", "x"))),' in source
    assert outcome.sources["vmap"].count("jax.vmap(") == 1


def test_a_program_manual_over_all_axes_has_no_axis_names(tmp_path: Path) -> None:
    text = changed("  u: [x, z]\n", "")
    outcome = run(text, tmp_path, program="shard_map", manual=["z", "x", "y"], arrays=WHOLE, outputs={"t": ["y"]})
    assert outcome.failures() == []
    assert "axis_names" not in outcome.sources["shard_map"]
    assert "out_shardings" not in outcome.sources["shard_map"]


WHOLE = {name: {"shape": shape, "spec": ["y"][: name != "c"]} for name, shape in
         (("a", ["N", "M"]), ("b", ["N", "M"]), ("c", ["M", "M"]))}  # fmt: skip


@pytest.mark.in_turn
@pytest.mark.parametrize("check_vma", [True, False])
def test_a_step_of_training(check_vma: bool, tmp_path: Path) -> None:
    """`new` is the plain NumPy step; without `check_vma` JAX sums gradients over the manual axes only."""
    programs = ["shard_map", "vmap"] if check_vma else ["shard_map"]
    outcome = run(STEP, tmp_path, program=programs, check_vma=check_vma)
    assert outcome.failures() == []
    assert shares(outcome.experiment) == (1 if check_vma else 2)
    x, w = (made.astype(np.float64) for made in make(outcome.experiment, tmp_path).values())
    h = np.tanh(x @ w)
    gradient = x.T @ (2 * h * (1 - h**2) / h.size)
    for program in programs:
        np.testing.assert_allclose(outcome.value(program, "grad.w"), gradient, atol=1e-5)
        step = w - 0.1 * gradient / np.sqrt((gradient**2).sum())
        np.testing.assert_allclose(outcome.value(program, "new"), step, atol=1e-5)


def test_a_collective_that_the_compiler_puts_inside_has_its_reason(tmp_path: Path) -> None:
    outcome = run(GOOD, tmp_path, program="shard_map")
    entries = outcome.record.compiled["shard_map"].collectives or []
    inserted = next(
        entry for entry in entries if entry.axes == ["z"] and entry.nodes == ["s"] and entry.kind == "all-reduce"
    )
    assert inserted.why is not None
    assert inserted.why.planned
    assert inserted.why.keys == ["arrays.a.spec", "arrays.c.spec"]
    written = next(entry for entry in entries if entry.kind == "collective-permute" and entry.axes == ["y"])
    assert not written.inserted
    plan = outcome.runs["shard_map"].ran.compilation.plan
    assert plan is not None
    # Of its block [4, 16] a device holds [2, 8].
    gathered = next(entry for entry in plan.collectives or () if entry.kind == "all-gather" and entry.line == "s")
    assert (gathered.of, gathered.axes, gathered.bytes_in) == ("a", ("x",), 4 * 2 * 8)


def test_devices_that_differ_along_automatic_axes_have_one_block(tmp_path: Path) -> None:
    checked = experiment(GOOD)
    arrays = make(checked, tmp_path)
    values = interpret(checked, "per_device", arrays).values
    for position, (_, y, _) in enumerate(checked.mesh.coordinates):
        np.testing.assert_array_equal(values["a"][position], arrays["a"][4 * y : 4 * y + 4])
    assert values["s"][0] is values["s"][1] is values["s"][4]


@pytest.mark.in_turn
def test_a_sum_that_is_missing_is_found_over_the_manual_axis(tmp_path: Path) -> None:
    text = changed("psum(sum(u, axis=0), 'y')", "sum(u, axis=0)")
    context = consulted(experiment(text, check_vma=False), tmp_path)
    assert search.diagnose(context) == [
        "a psum over 'y' is left out: with per_device.r: psum(sum(u, axis=0), 'y') it equals the graph"
    ]
    assert Edits(context.experiment, "per_device").combinations == [("y",)]


def test_each_device_is_compared_with_its_own_part_of_the_block(tmp_path: Path) -> None:
    """Devices with the same block that hold each other's parts are wrong."""
    context = consulted(experiment(GOOD), tmp_path)
    assert context.per_device is not None
    layout, blocks = context.layout("t"), context.blocks("t")

    def run_with(exchanged: dict[int, int]) -> ProgramRun:
        outputs: dict[str, Output] = {}
        for name in context.outputs:
            of, own = context.layout(name), context.blocks(name)
            held: list[DeviceShard] = []
            for position in range(8):
                source = exchanged.get(position, position) if name == "t" else position
                assert context.per_device is not None
                part = np.asarray(context.per_device.values[name][source])[of.within(source, own)].astype(np.float32)
                held.append(DeviceShard(position, position, of.ranges(position), source, part))
            outputs[name] = Output("float32", of.shape, None, tuple(held))
        return ProgramRun(Program.SHARD_MAP, outputs=outputs)

    assert layout.shard_shape == (4, 4)
    assert blocks.shard_shape == (4, 16)
    assert value.check(context, run_with({})).status == "passed"
    wrong = value.check(context, run_with({0: 1, 1: 0}))
    assert wrong.status == "failed"
    assert wrong.compared["t"].devices == [0, 1]
    # The same bits are right on one device and wrong on another.
    assert value.check(context, run_with({1: 0})).compared["t"].devices == [1]


def test_a_shard_within_its_block() -> None:
    mesh = Mesh(("x", "y"), (2, 2))
    own = Layout(mesh, (8, 6), Spec.of([["x", "y"], None]))
    block = Layout(mesh, (8, 6), Spec.of(["x"]))
    assert [own.within(position, block) for position in range(4)] == [
        (slice(at, at + 2), slice(0, 6)) for at in (0, 2, 0, 2)
    ]


def test_axes_that_are_all_manual_are_interchangeable() -> None:
    text = "arrays: {a: {shape: [4, 4], spec: [x]}}\nper_device: {b: a + 1}\noutputs: {b: [x]}\n"
    other = text.replace("x", "y")
    assert identity(config(text, manual=["x"])) == identity(config(other, manual=["y"]))
    assert identity(config(text, manual=["x"])) != identity(config(text, manual=["x", "y"]))
    assert identity(config(text, manual=["x", "y"])) == identity(config(text, manual=["y", "x"]))


REFUSED = {
    "an unknown axis": (
        changed("manual: [y]", "manual: [yy]"),
        "2:10  manual[0]\n  mesh axis 'yy' does not exist; the mesh has x, y, z; did you mean 'y'?",
    ),
    "an axis twice": (changed("manual: [y]", "manual: [y, y]"), "2:13  manual[1]\n  the mesh axis 'y' appears twice"),
    "no axis": (
        changed("manual: [y]", "manual: []"),
        "2:9  manual\n  per_device is manual over at least one mesh axis; the mesh has x, y, z",
    ),
    "a collective over an automatic axis": (
        changed("pmean(mean(s), 'y')", "pmean(mean(s), ('y', 'z'))"),
        "23:6  per_device.q\n  mesh axis 'z' is automatic here: per_device is manual over y (manual: [y])\n"
        "    b * 2 + pmean(mean(s), ('y', 'z'))\n                                 ^^^",
    ),
    "the size of an automatic axis": (
        changed("axis_size('y')", "axis_size('x')"),
        "18:13  per_device.ring.repeat\n  mesh axis 'x' is automatic here: per_device is manual over y (manual: [y])\n"
        "    axis_size('x')\n              ^^^",
    ),
    "a constraint on a block over a manual axis": (
        changed("u: [x, z]", "u: [x, y]"),
        "26:10  constraints.u[1]\n"
        "  'u' is only in per_device, which is manual over 'y': its values are blocks, and can be sharded over x, z "
        "only",
    ),
    "an array whose parts are no blocks": (
        changed("spec: [[y, x], z]", "spec: [[x, y], z]"),
        "5:29  arrays.a.spec[0]\n"
        "  dimension 0 is sharded over 'x', which is automatic, before 'y', over which per_device is manual: a block "
        "of shard_map is in one piece, so manual axes come first: [y, x]",
    ),
    "an output whose parts are no blocks": (
        changed("q: [[y, x], null]", "q: [[z, y, x], null]"),
        "30:7  outputs.q[0]\n"
        "  dimension 0 is sharded over 'z', which is automatic, before 'y', over which per_device is manual: a block "
        "of shard_map is in one piece, so manual axes come first: [y, z, x]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_invalid_use_of_manual_is_refused(name: str, tmp_path: Path) -> None:
    text, message = REFUSED[name]
    file = tmp_path / "mine.yaml"
    assert refusal(lambda text: read(config(text)), text, file) == f"{file}:{message}"


def test_layouts_of_a_graph_program_need_not_fit_per_device() -> None:
    """A sweep of layouts for a program of the graph need not satisfy `per_device`."""
    checked = experiment(changed("spec: [[y, x], z]", "spec: [[x, y], z]"), program="auto")
    assert replace(checked, automatic=()).manual == checked.mesh
