"""Programs for explicit sharding have few reshards, and none of a value that has the right layout already."""

import re

import numpy as np
import pytest

from runner.experiment.data import make
from runner.experiment.enumeration import identity
from runner.experiment.program import Program
from runner.programs.global_view import explicit
from runner.programs.types import Repairs
from tests import harness

ARRAYS = """
arrays:
  A: {shape: [4, 8], init: normal, spec: [x, y]}
  W: {shape: [4, 8], init: normal, spec: [y, x]}
  B: {shape: [8, 4], init: normal, spec: [y, null]}
  V: {shape: [8], init: normal, spec: [x]}
  T: {shape: [2, 4, 8], init: normal, spec: [null, x, y]}
  J: {shape: [8], dtype: int32, init: "integers(0, 4)", spec: [y]}
  M: {shape: [4, 8], dtype: bool, init: "integers(0, 2)", spec: [x]}
"""


def line(expression, output, tmp_path, arrays=ARRAYS, **changes):
    """Return the lines of the node `n` with a use by `out` after it, so that no output fixes the layout of `n`."""
    experiment = harness.experiment(
        arrays, graph={"n": expression, "out": "n"}, outputs={"out": output}, program="explicit", **changes
    )
    with harness.configured(experiment):
        types = harness.infer(experiment)
    lines = explicit(experiment, tmp_path, types).splitlines()
    at = next(i for i, text in enumerate(lines) if text.endswith('named_scope("n"):'))
    return lines[at + 1].strip()


X, Y, N = '"x"', '"y"', "None"


def laid(*entries):
    return f"NamedSharding(mesh, P({', '.join(entries)}))"


@pytest.mark.parametrize(
    ("expression", "written"),
    [
        ("A + A", "A + A"),
        ("A * 2 + T", "A * 2 + T"),
        ("sum(A, axis=0)", "jnp.sum(A, axis=0)"),
        # The operand that is cheaper to move is moved; of equal ones the second.
        ("A + W", f"A + jax.reshard(W, {laid(X, Y)})"),
        ("A + V", f"A + jax.reshard(V, {laid(Y)})"),
        ("V - A", f"jax.reshard(V, {laid(Y)}) - A"),
        ("where(M, A, A)", f"jnp.where(jax.reshard(M, {laid(X, Y)}), A, A)"),
        ("concatenate([A, W], axis=1)", f"jnp.concatenate([A, jax.reshard(W, {laid(X, Y)})], axis=1)"),
        ("clip(A, min=W)", f"jnp.clip(A, min=jax.reshard(W, {laid(X, Y)}))"),
        ("average(A, axis=1, weights=V)", f"jnp.average(A, axis=1, weights=jax.reshard(V, {laid(Y)}))"),
        # The scanned dimension is replicated, the others stay sharded.
        ("cumsum(A, axis=1)", f"jnp.cumsum(jax.reshard(A, {laid(X, N)}), axis=1)"),
        ("sort(A, axis=0)", f"jnp.sort(jax.reshard(A, {laid(N, Y)}), axis=0)"),
        ("A[:, 0]", f"jax.reshard(A, {laid(X, N)})[:, 0]"),
        ("take(A, J, axis=1)", f"jnp.take(jax.reshard(A, {laid(X, N)}), jax.reshard(J, {laid(N)}), axis=1)"),
        # If JAX accepts the result's sharding as an argument, it is given.
        ("A @ B", f"jnp.matmul(A, B, out_sharding={laid(X, N)})"),
        ("einsum('...ij,jk->...ik', T, B)", f'jnp.einsum("...ij,jk->...ik", T, B, out_sharding={laid(N, X, N)})'),
        ("tensordot(A, B, axes=1)", f"jnp.tensordot(A, B, axes=1, out_sharding={laid(X, N)})"),
        ("A[J % 4]", f"A.at[J % 4].get(out_sharding={laid(N, Y)})"),
        ("T[:, J % 4]", f"T.at[:, J % 4].get(out_sharding={laid(N, N, Y)})"),
        ("A[J % 4, J]", f"A.at[J % 4, J].get(out_sharding={laid(Y)})"),
    ],
)
def test_a_repair_reads_as_an_expert_writes_it(expression, written, tmp_path):
    assert line(expression, [], tmp_path) == f"n = {written}"


def test_a_promised_output_is_what_a_contraction_makes(tmp_path):
    experiment = harness.experiment(ARRAYS, graph={"C": "A @ B"}, outputs={"C": [None, "y"]}, program="explicit")
    with harness.configured(experiment):
        text = explicit(experiment, tmp_path, harness.infer(experiment))
    assert f"C = jnp.matmul(A, B, out_sharding={laid(N, Y)})" in text
    assert "reshard" not in text


def test_a_promised_output_is_what_a_convolution_makes(tmp_path):
    experiment = harness.experiment(
        ARRAYS,
        graph={"C": "conv_general_dilated(T, reshape(B, (4, 4, 2)), (1,), 'SAME')"},
        outputs={"C": [None, "x", "y"]},
        program="explicit",
    )
    with harness.configured(experiment):
        text = explicit(experiment, tmp_path, harness.infer(experiment))
    assert f'(1,), "SAME", out_sharding={laid(N, X, Y)})' in text


def test_an_output_in_its_layout_is_not_resharded(tmp_path):
    experiment = harness.experiment(ARRAYS, graph={"C": "A * 2"}, outputs={"C": ["x", "y"]}, program="explicit")
    with harness.configured(experiment):
        types = harness.infer(experiment)
    assert types.repairs == Repairs()


def test_a_constraint_that_differs_from_the_outputs_layout(tmp_path):
    experiment = harness.experiment(
        ARRAYS,
        graph={"b": "A * 2", "c": "b + 1"},
        constraints={"A": [], "b": ["y"]},
        outputs={"b": ["x"], "c": ["y"]},
        program="explicit",
    )
    with harness.configured(experiment):
        text = explicit(experiment, tmp_path, harness.infer(experiment))
    lines = [part.strip() for part in text.splitlines()]
    assert f"A = jax.reshard(A, {laid(N, N)})" in lines
    assert f"b = jax.reshard(b, {laid(Y, N)})" in lines
    assert f"return (jax.reshard(b, {laid(X, N)}), c)" in lines


def test_a_carry_keeps_the_layout_with_which_it_enters(tmp_path):
    loop = {"repeat": 2, "carry": {"acc": "A"}, "body": {"acc": "acc.T @ W"}, "unroll": False}
    arrays = "arrays: {A: {shape: [4, 4], spec: [x, y]}, W: {shape: [4, 4], spec: [y, x]}}"
    experiment = harness.experiment(arrays, graph={"r": loop}, outputs={"r.acc": ["x", "y"]}, program="explicit")
    with harness.configured(experiment):
        text = explicit(experiment, tmp_path, harness.infer(experiment))
    assert f"return (jax.reshard(acc, {laid(X, Y)}),)" in text


RECURRENCE = """
name: recurrence
mesh: {axes: [x], shape: [4]}
dims: {T: 4, D: 8}
arrays:
  a: {shape: [T, D], init: "uniform(0.1, 0.9)", spec: [null, x]}
  b: {shape: [T, D], spec: [null, x]}
graph:
  h0: zeros((D,))
  y0: zeros((T, D))
  scan:
    repeat: T
    index: t
    carry: {h: h0, y: y0}
    body:
      h: a[t] * h + b[t]
      y: dynamic_update_slice(y, h[None, :], (t, 0))
  out: scan.y + 1
outputs: {out: [null, x]}
program: explicit
"""


@pytest.mark.parametrize("keys", ["", "constraints: {h0: [x], y0: [null, x]}\nexpect: {no_collectives: true}\n"])
def test_carries_that_begin_as_zeros_have_the_mesh(tmp_path, keys):
    outcome = harness.run(RECURRENCE + keys, tmp_path)
    assert outcome.record.status == "passed", outcome.record.error
    warnings = [warning for warning in outcome.record.warnings if "gathers the carry scan.h at every step" in warning]
    # It begins unsharded only if nothing constrains it.
    assert bool(warnings) == (not keys)
    assert "with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):" in outcome.sources["explicit"]


def test_lines_that_read_gradients_have_the_mesh_too(tmp_path):
    text = """
name: mine
mesh: {axes: [x], shape: [4]}
dims: {D: 8}
arrays: {w: {shape: [D], spec: [x]}, x: {shape: [D], spec: [x]}}
graph:
  loss: mean((w * x - ones((D,))) ** 2)
  steps:
    repeat: 2
    carry: {m: "zeros((D,))"}
    body: {m: 0.9 * m + grad.w}
  new: w - 0.1 * steps.m
grad: {of: loss, wrt: [w]}
outputs: {loss: [], new: [x]}
program: explicit
"""
    outcome = harness.run(text, tmp_path)
    assert outcome.record.status == "passed", outcome.record.error
    assert outcome.sources["explicit"].count("use_abstract_mesh") == 2


def test_a_program_that_makes_no_arrays_needs_no_mesh_around_it(tmp_path):
    experiment = harness.experiment(ARRAYS, graph={"C": "A * 2"}, outputs={"C": ["x", "y"]}, program="explicit")
    with harness.configured(experiment):
        assert "use_abstract_mesh" not in explicit(experiment, tmp_path, harness.infer(experiment))


def test_a_ragged_dot_is_neither_typed_nor_mapped_by_jax():
    lines = {"out": "ragged_dot(A, stack([B, B * 2]), J[:2])"}
    unsupported = harness.types(ARRAYS, graph=lines, outputs={"out": []}).unsupported
    assert set(unsupported) == {"explicit"}
    assert (
        "Explicit sharding inference for ragged_dot_general is not currently implemented"
        in unsupported[Program.EXPLICIT]
    )
    unsupported = harness.types(ARRAYS, per_device=lines, outputs={"out": []}, check_vma=False).unsupported
    assert set(unsupported) == {"vmap"}
    assert "ragged_dot vmap over any dim but 0" in unsupported[Program.VMAP]


def test_an_operation_refused_only_by_lowering_is_reported():
    # JAX 0.12 puts lgamma together from a gather when it lowers it, and has no sharding for that gather.
    unsupported = harness.types(ARRAYS, graph={"first": "A * 2", "out": "lgamma(A)"}, outputs={"out": []}).unsupported
    if unsupported:
        assert unsupported[Program.EXPLICIT].startswith("graph.out: JAX refuses it: Use `.at[...].get(out_sharding=)`")
        assert set(unsupported) == {"explicit"}


MIXED = """\
mesh: {axes: [x, y], shape: [2, 2], types: [explicit, auto]}
arrays:
  A: {shape: [8, 4], spec: [x, y]}
  W: {shape: [4, 8], spec: [y, x]}
  V: {shape: [4, 8], spec: [null, y]}
graph:
  h: A @ W
  g: tanh(A @ V)
  loss: mean(g ** 2) + sum(h)
  new: V - 0.1 * grad.V
  k: zeros((8, 8)) + h
constraints: {g: [x, y]}
outputs: {h: [x, y], loss: [], new: [x, y], grad.V: [null, [x, y]], k: [null, x]}
grad: {of: loss, wrt: [V]}
"""


@pytest.mark.in_turn
def test_types_have_only_explicit_axes(tmp_path):
    outcome = harness.run(MIXED, tmp_path, program=["auto", "constraint", "explicit"])
    assert outcome.failures() == []
    for program, types in (("explicit", "Explicit, AxisType.Auto"), ("constraint", "Auto, AxisType.Auto")):
        assert f"axis_types=(AxisType.{types})" in outcome.sources[program]
    source = outcome.sources["explicit"]
    # The contracting dimension is sharded over y only, which is automatic; of two dimensions that claim x the first
    # gets it.
    assert f"h = jnp.matmul(A, W, out_sharding={laid(X, N)})" in source
    assert f"g = jax.lax.with_sharding_constraint(g, {laid(N, Y)})" in source
    assert f"        {laid(X, Y)},\n" in source
    typed = re.findall(r"(?:out_sharding=|jax.reshard\(\w+, )NamedSharding\(mesh, P\(([^)]*)", source)
    assert typed
    assert not any(Y in spec for spec in typed)
    made = {name: value.astype(np.float64) for name, value in make(outcome.experiment, tmp_path).items()}
    g = np.tanh(made["A"] @ made["V"])
    gradient = made["A"].T @ (2 * g * (1 - g**2) / g.size)
    np.testing.assert_allclose(outcome.value("explicit", "h"), made["A"] @ made["W"], atol=1e-5)
    np.testing.assert_allclose(outcome.value("explicit", "new"), made["V"] - 0.1 * gradient, atol=1e-5)


def test_the_layout_of_a_value_in_the_middle_is_the_compilers_where_axes_are_auto(tmp_path):
    text = """
mesh: {axes: [x, y], shape: [2, 2], types: [explicit, auto]}
arrays: {A: {shape: [8, 4], spec: [x]}, V: {shape: [4, 8], spec: [null, y]}}
graph: {g: A @ V, loss: sum(g)}
outputs: {loss: []}
expect: {layouts: {g: [x, y]}}
"""
    assert harness.run(text, tmp_path, program="explicit").failures() == []


def test_a_constraint_without_automatic_axes_replicates_along_them(tmp_path):
    """As in the program `constraint`: V shards the columns of g over y, and its constraint does not."""
    text = """
mesh: {axes: [x, y], shape: [2, 2], types: [explicit, auto]}
arrays: {A: {shape: [8, 4], spec: [x]}, V: {shape: [4, 8], spec: [null, y]}}
graph: {g: A @ V, loss: sum(g)}
constraints: {g: [x, null]}
outputs: {loss: []}
expect: {layouts: {g: [x, null]}}
"""
    outcome = harness.run(text, tmp_path, program=["constraint", "explicit"])
    assert outcome.failures() == []
    assert f"g = jax.lax.with_sharding_constraint(g, {laid(N, N)})" in outcome.sources["explicit"]


def test_a_type_of_an_axis_is_one_of_jaxs_names():
    read = harness.experiment(MIXED.replace("[explicit, auto]", "[Auto, Explicit]"))
    assert read.mesh.explicit == ("y",)
    assert harness.experiment(MIXED.replace(", types: [explicit, auto]", "")).mesh.explicit == ("x", "y")


def test_axes_of_two_types_are_not_interchangeable():
    text = "arrays: {A: {shape: [4, 4], spec: [x]}}\ngraph: {B: A + 1}\noutputs: {B: [x]}\n"

    def point(spec, types):
        mesh = {"axes": ["x", "y"], "shape": [2, 2], "types": types}
        return identity(harness.config(text.replace("[x]", spec), mesh=mesh))

    assert point("[x]", None) == point("[y]", None)
    assert point("[x]", ["explicit", "auto"]) == point("[y]", ["auto", "explicit"])
    assert point("[x]", ["explicit", "auto"]) != point("[y]", ["explicit", "auto"])


def test_an_update_by_a_number_is_inside_the_mesh_context(tmp_path):
    """JAX 0.12 refuses an update outside a mesh context."""
    text = "arrays: {A: {shape: [8, 4], spec: [null, y]}}\ngraph: {C: 'A.at[:2].add(1)'}\noutputs: {C: [null, y]}\n"
    outcome = harness.run(text, tmp_path, program="explicit")
    assert outcome.failures() == []
    assert "with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):" in outcome.sources["explicit"]
    (tmp_path / "other").mkdir()
    by_an_array = harness.run(text.replace("add(1)", "add(A[2:4])"), tmp_path / "other", program="explicit")
    assert by_an_array.failures() == []
    assert "use_abstract_mesh" not in by_an_array.sources["explicit"]
