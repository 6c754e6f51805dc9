"""The six programs compute the oracles' values, for every operation and for combinations of them."""

import ast
import contextlib
import io
import re
import subprocess
import sys
from dataclasses import replace

import jax
import pytest

from runner.base.faults import InvalidExperiment
from runner.experiment.identifiers import Identifiers
from runner.experiment.program import Program
from runner.graph.language.operations import OPERATIONS
from runner.programs import emit, lines, source
from tests import harness
from tests.here import loaded
from tests.samples import ARRAYS, SAMPLES, SPECS

# Each is a limit of JAX or a fault of XLA, with a test of its own below or in `test_explicit.py`.
RUNNING = {"cumprod", "cummax", "cummin", "cumlogsumexp"}
TRANSFORMS = {"fft", "ifft", "rfft", "irfft", "fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn"}
NOT_EXPLICIT = {*TRANSFORMS, "lgamma", "gammaln", "betaln", "ragged_dot"}
if jax.__version_info__ >= (0, 12):
    # They gather from a table of coefficients, whose sharding JAX does not settle.
    NOT_EXPLICIT |= {"zeta", "gammainc", "gammaincc", "igamma_grad_a", "random_gamma_grad"}
MISPARTITIONED = "convolve(V, V, mode='same')"
NOT_CAST = {"sinc"}
NOT_UNDER_VMAP = {"ragged_dot"}

PACK = 70
"""Expressions per experiment: nearly all the time goes into XLA's compilation of each program."""


def expressions(*without, first=10):
    kept = [e for name, es in SAMPLES.items() if not any(name in w for w in without) for e in es[:first]]
    return [e for e in kept if e != MISPARTITIONED]


def packs(everything):
    return [everything[i : i + PACK] for i in range(0, len(everything), PACK)]


def graph_of(pack, program, specs):
    nodes = {f"n{i}": expression for i, expression in enumerate(pack)}
    return harness.config(
        ARRAYS % specs, graph=nodes, outputs={name: [] for name in nodes}, program=program, name="packed"
    )


def test_every_operation_has_samples():
    arrays = {name for name, row in OPERATIONS.items() if not row.over.does}
    assert set(SAMPLES) == arrays | {"subscript", "operators"}


@pytest.mark.sample(8)
@pytest.mark.parametrize("pack", packs(expressions(NOT_EXPLICIT)), ids=lambda pack: pack[0])
def test_explicit_runs_every_operation(pack, tmp_path):
    outcome = harness.run(graph_of(pack, "explicit", SPECS[0]), tmp_path)
    assert outcome.failures() == []


@pytest.mark.in_turn
@pytest.mark.parametrize("specs", SPECS[1:], ids=["2", "3"])
@pytest.mark.parametrize("pack", packs(expressions(NOT_EXPLICIT)), ids=lambda pack: pack[0])
def test_explicit_types_every_operation_in_other_layouts(pack, specs):
    experiment = harness.experiment(graph_of(pack, "explicit", specs))
    with harness.configured(experiment):
        assert harness.infer(experiment).unsupported == {}


@pytest.mark.sample(7)
@pytest.mark.parametrize("program", ["auto", "constraint"])
@pytest.mark.parametrize("pack", packs(expressions(RUNNING, first=1)), ids=lambda pack: pack[0])
def test_the_compiler_partitions_every_operation(pack, program, tmp_path):
    outcome = harness.run(graph_of(pack, program, SPECS[1 if program == "auto" else 0]), tmp_path)
    assert outcome.failures() == []


@pytest.mark.in_turn
@pytest.mark.parametrize("name", sorted(RUNNING))
def test_a_running_reduction_in_every_program(name, tmp_path):
    # One at a time: in one program, XLA of jaxlib 0.10 pads the second one with the first one's initial value.
    outcome = harness.run(ARRAYS % SPECS[0], tmp_path, graph={"out": f"{name}(A, axis=1)"}, outputs={"out": ["x"]})
    assert set(outcome.runs) == {"auto", "constraint", "explicit", "derived"}
    assert outcome.failures() == []


def test_the_value_check_catches_a_convolution_that_xla_partitions_wrongly(tmp_path):
    # A bug of XLA's partitioner, in jaxlib 0.10 and 0.12. When it is fixed, `MISPARTITIONED` can go.
    outcome = harness.run(
        ARRAYS % SPECS[0], tmp_path, graph={"out": MISPARTITIONED}, outputs={"out": ["x"]}, program="auto"
    )
    assert outcome.checks["auto"].value.status == "failed"


@pytest.mark.sample(6)
@pytest.mark.parametrize("pack", packs(expressions(NOT_CAST, NOT_UNDER_VMAP, first=1)), ids=lambda pack: pack[0])
def test_every_operation_works_on_shards(pack, tmp_path):
    nodes = {}
    for i, expression in enumerate(pack):
        nodes[f"n{i}"] = expression
        nodes[f"out{i}"] = f"expand_dims(n{i}, (0, 1))"
    text = ARRAYS % SPECS[0]
    for shape, larger in (("[4, 8]", "[8, 16]"), ("[8, 4]", "[16, 8]"), ("[4, 4]", "[8, 8]"), ("[8]", "[16]")):
        text = text.replace(f"shape: {shape}", f"shape: {larger}")
    text = text.replace("[2, 4, 8]", "[4, 4, 16]").replace("[2, 4, 2, 4]", "[4, 8, 2, 4]").replace("[y, x]", "[x, y]")
    outputs = {name: ["x", "y"] for name in nodes if name.startswith("out")}
    outcome = harness.run(text, tmp_path, per_device=nodes, outputs=outputs)
    assert outcome.types.unsupported == {}
    assert outcome.failures() == []


# Collectives.

COLLECTIVES = [
    *(f"{name}(A, {axes})" for name in ("psum", "pmean", "pmax", "pmin") for axes in ("'x'", "'y'", "('y', 'x')")),
    "psum(R, 'x')",
    "psum(M, 'y')",
    "psum(1, 'x')",
    "psum_scatter(A, 'x', tiled=True)",
    "psum_scatter(A[:2], 'x')",
    "psum_scatter(I, 'y', scatter_dimension=1, tiled=True)",
    "all_gather(A, 'x')",
    "all_gather(M, 'y', axis=1, tiled=True)",
    "all_gather(R, 'x', axis=-1)",
    "all_to_all(A, 'x', 0, 1, tiled=True)",
    "all_to_all(A[:2], 'y', 0, 1)",
    "all_to_all(I, 'x', split_axis=1, concat_axis=1, tiled=True)",
    "ppermute(A, 'x', shift=1)",
    "ppermute(I, 'y', shift=-1)",
    "ppermute(A, 'x', shift=1 << 1)",
    "ppermute(A, 'y', shift=-8 // 3)",
    "ppermute(A, 'y', perm=[[0, 1], [1, 0]])",
    "pshuffle(A, 'x', [1, 0])",
    "axis_index('y')",
    "axis_index(('y', 'x'))",
    "A * axis_size('x') + axis_size(('x', 'y'))",
    "pcast(R, 'x', to='varying')",
]
# Features that JAX's vmap lacks.
SHARD_MAP_ONLY = [
    "all_gather(A, ('x', 'y'))",
    "all_gather(A, ('y', 'x'), axis=1, tiled=True)",
    "psum_scatter(A, ('y', 'x'), tiled=True)",
    "ppermute(A, ('x', 'y'), shift=3)",
    "ppermute(A, 'x', perm=[[0, 1]])",
    "pshuffle(A, ('x', 'y'), [3, 1, 0, 2])",
    "all_to_all(R, 'x', 0, 1, tiled=True)",
    "all_gather(A, 'y', axis_index_groups=[[1], [0]])",
]
IN_GROUPS = [f"{name}(A, ('x', 'y'), axis_index_groups=[[0, 3], [2, 1]])" for name in ("psum", "pmean", "pmax", "pmin")]
OPERANDS = """
mesh: {axes: [x, y], shape: [2, 2]}
arrays:
  A: {shape: [16, 16], init: normal, spec: [x, y]}
  R: {shape: [4, 4], init: normal, spec: []}
  I: {shape: [8, 8], dtype: int32, init: "integers(0, 9)", spec: [x, y]}
  M: {shape: [8, 8], dtype: bool, init: "integers(0, 2)", spec: [x, y]}
"""


def on_every_device(expressions, **changes):
    """Return the expressions as nodes, and outputs that show them on each device, whichever copies are equal."""
    nodes = {"own": "1 + axis_index(('x', 'y'))"}
    for i, expression in enumerate(expressions):
        nodes |= {f"n{i}": expression, f"out{i}": f"expand_dims(n{i} * own, (0, 1))"}
    outputs = {name: ["x", "y"] for name in nodes if name.startswith("out")}
    return harness.config(OPERANDS, per_device=nodes, outputs=outputs, **changes)


@pytest.mark.sample(3)
@pytest.mark.parametrize("shape", [[2, 2], [1, 2], [2, 1]], ids=str)
def test_collectives_agree_with_the_interpreter(shape, tmp_path):
    fitting = COLLECTIVES if shape == [2, 2] else [e for e in COLLECTIVES if not re.search(r"\[1|\[:2|\[\[", e)]
    outcome = harness.run(on_every_device(fitting, mesh={"axes": ["x", "y"], "shape": shape}), tmp_path)
    assert set(outcome.runs) == {"shard_map", "vmap"}
    assert outcome.failures() == []


def test_collectives_that_only_shard_map_has(tmp_path):
    given = on_every_device([*SHARD_MAP_ONLY, *IN_GROUPS], check_vma=False, program="shard_map")
    outcome = harness.run(given, tmp_path)
    assert outcome.failures() == []


@pytest.mark.sample(2)
@pytest.mark.parametrize("expression", SHARD_MAP_ONLY)
def test_features_that_vmap_lacks_are_reported(expression):
    experiment = harness.experiment(on_every_device([expression]))
    with harness.configured(experiment):
        reason = harness.infer(experiment).unsupported[Program.VMAP]
    assert reason.startswith("per_device.n0: ")
    assert "jax.vmap" in reason
    assert "\n" not in reason


# Combinations.

LOOP = """
mesh: {axes: [x], shape: [4]}
dims: {N: 8, rows: 2}
arrays:
  A: {shape: [N, 4], init: normal, spec: [x]}
  B: {shape: [4, N], init: normal, spec: [null, x]}
graph: {C: A @ B}
per_device:
  empty: pcast(zeros((N // 4, N)), 'x', to='varying')
  ring:
    repeat: axis_size('x')
    index: i
    carry: {rhs: B, acc: empty}
    body:
      acc: dynamic_update_slice(acc, A @ rhs, (0, ((axis_index('x') - i) %% axis_size('x')) * rows))
      rhs: ppermute(rhs, 'x', shift=1)
    unroll: %s
  C: ring.acc
outputs: {C: [x]}
"""
NESTED = """
arrays: {A: {shape: [4, 4], init: normal, spec: [x, y]}}
graph:
  outer:
    repeat: 2
    carry: {a: A}
    body:
      inner: {repeat: 3, index: j, carry: {b: a}, body: {b: b * 0.5 + i + j}, unroll: %s}
      a: inner.b + sum(inner.b)
    unroll: %s
per_device:
  outer:
    repeat: 2
    carry: {a: A}
    body:
      inner: {repeat: 3, index: j, carry: {b: a}, body: {b: b * 0.5 + i + j}, unroll: %s}
      a: inner.b + psum(sum(inner.b), ('x', 'y'))
    unroll: %s
outputs: {outer.a: [x, y]}
"""
CARRIED = """
arrays:
  A: {shape: [4, 4], init: normal, spec: [x, y]}
  B: {shape: [4, 4], init: normal, spec: [y, x]}
graph:
  ring:
    repeat: 3
    carry: {acc: A, n: "0.0", s: zeros(4)}
    body: {acc: acc @ B * 0.5, n: n + sum(acc), s: "s + sum(acc, axis=0)"}
    unroll: %s
  after: ring.acc * 2
outputs: {ring.acc: [x], ring.n: [], ring.s: [y], after: [x, y]}
"""
WHOLE = {"auto", "constraint", "explicit", "derived"}
LOCAL = {"shard_map", "vmap"}
CASES = {
    "a loop": (LOOP % "true", WHOLE | LOCAL),
    "a compiled loop": (LOOP % "false", WHOLE | LOCAL),
    "nested loops": (NESTED % (("true", "false") * 2), WHOLE | LOCAL),
    "nested compiled loops": (NESTED % (("false", "false") * 2), WHOLE | LOCAL),
    "carries that change their layout": (CARRIED % "true", WHOLE),
    "carries that change their layout, compiled": (CARRIED % "false", WHOLE),
    "no steps": (
        """
arrays: {A: {shape: [4, 4], init: normal, spec: [x, y]}}
graph: {r: {repeat: 0, carry: {a: A}, body: {a: a * 2}, unroll: false}, o: r.a}
per_device: {r: {repeat: 0, carry: {a: A}, body: {a: a * 2}}, o: r.a}
outputs: {o: [x, y]}
""",
        WHOLE | LOCAL,
    ),
    "names that the script has too": (
        """
dims: {np: 4, partial: 4, devices: 2}
arrays:
  jax: {shape: [np, partial], init: normal, spec: [x, y]}
  P: {shape: [np, partial], init: normal, spec: [x, y]}
  mesh: {shape: [np, partial], init: normal, spec: [x, y]}
  step: {shape: [4], init: normal, spec: []}
  rng: {shape: [4], init: normal, spec: []}
graph:
  jnp: jax @ P
  inputs: jnp * devices + mesh
  carry: inputs + step
  sum: carry + rng
  main: sum * np
per_device:
  jnp: psum(jax @ ppermute_, 'y')
  inputs: jnp * devices + mesh
  carry: inputs + dynamic_slice_in_dim(step, axis_index('y') * devices, devices)
  sum: carry + dynamic_slice_in_dim(rng, axis_index('y') * devices, devices)
  main: sum * np
outputs: {main: [x, y], carry: [x, y]}
""".replace(
            "  jnp: psum(jax @ ppermute_, 'y')",
            """  split: all_gather(jax, 'y', axis=1, tiled=True)
  join: all_gather(P, 'x', tiled=True)
  jnp: split @ join""",
        ),
        WHOLE | LOCAL,
    ),
    "rank 0, and an array that nobody reads": (
        """
arrays:
  s: {shape: [], init: 3, spec: []}
  A: {shape: [4], init: "arange(4)", spec: [[x, y]]}
  unused: {shape: [8], init: normal, spec: [x]}
graph: {out: s * sum(A)}
per_device: {out: "psum(s * sum(A), ('x', 'y'))"}
outputs: {out: []}
""",
        WHOLE | LOCAL,
    ),
    "no arrays": (
        """
graph: {out: arange(8.0), r: "normal(key(0), (4, 4))"}
outputs: {out: [], r: [x, y]}
""",
        WHOLE,
    ),
    "no arrays on the devices": (
        """
per_device:
  k: fold_in(key(0), axis_index('x'))
  out: expand_dims(axis_index('x') * 2 + axis_index('y'), (0, 1))
  u: uniform(k, (1, 4))
  n: normal(split_key(fold_in(k, axis_index('y')), 3)[2], (2,))
  z: ones((4,))
outputs: {out: [x, y], u: [x], n: [[x, y]], z: []}
""",
        LOCAL,
    ),
    "outputs that are Python's numbers": (
        """
arrays: {A: {shape: [4], init: "arange(4)", spec: [x]}}
graph: {n: size(A) * 2, m: "3", f: "2.5"}
per_device: {n: axis_size('x') * 4, m: "3", f: "2.5"}
outputs: {n: [], m: [], f: []}
""",
        WHOLE | LOCAL,
    ),
    "an output that no array changes": (
        """
arrays: {A: {shape: [4], init: "arange(4)", spec: [x]}}
graph: {out: zeros_like(A) + 1}
outputs: {out: [x]}
""",
        WHOLE,
    ),
    "one value under two names": (
        """
arrays: {A: {shape: [4], init: "arange(4)", spec: [x]}}
graph: {b: A * 2, c: b}
per_device: {b: A * 2, c: b}
outputs: {b: [x], c: [x]}
""",
        WHOLE | LOCAL,
    ),
    "constraints of an array, and of an output that is laid out otherwise": (
        """
arrays: {A: {shape: [4, 4], init: "arange(16)", spec: [x]}}
constraints: {A: [null, x], b: [y, x], c: []}
graph: {b: A * 2, c: b @ A, d: c + b}
outputs: {b: [x], c: [y], d: [x, y]}
""",
        WHOLE,
    ),
    "axes of size 1": (
        """
mesh: {axes: [x, y], shape: [4, 1]}
arrays: {A: {shape: [4, 3], init: normal, spec: [x, y]}, B: {shape: [3, 4], init: normal, spec: [y, x]}}
graph: {C: A @ B}
per_device: {g: "all_gather(B, 'x', axis=1, tiled=True)", C: "psum(A @ g, 'y')"}
outputs: {C: [x]}
""",
        WHOLE | LOCAL,
    ),
    "one device": (
        """
mesh: {axes: [x, y], shape: [1, 1]}
arrays: {A: {shape: [4, 3], init: normal, spec: [[y, x]]}}
graph: {C: sum(A)}
per_device: {C: "psum(sum(A), ('x', 'y'))"}
outputs: {C: []}
""",
        WHOLE | LOCAL,
    ),
    "three axes and tuples of them": (
        """
mesh: {axes: [x, y, z], shape: [2, 2, 2]}
arrays: {A: {shape: [8, 4], init: normal, spec: [[z, x], y]}, B: {shape: [4, 8], init: normal, spec: [y, [x, z]]}}
graph: {C: A @ B}
per_device:
  g: all_gather(all_gather(B, 'z', axis=1, tiled=True), 'x', axis=1, tiled=True)
  C: psum(A @ g, 'y')
outputs: {C: [[z, x]]}
""",
        WHOLE | LOCAL,
    ),
    "axes of different sizes, in the other order": (
        """
mesh: {axes: [x, y], shape: [2, 4]}
arrays: {A: {shape: [8, 4], init: normal, spec: [[y, x]]}, B: {shape: [8, 4], init: normal, spec: [[x, y]]}}
graph: {C: A + B, D: "sum(A, axis=0)"}
per_device: {C: A * 1, D: "psum(sum(A, axis=0), ('x', 'y'))"}
outputs: {D: []}
""",
        WHOLE | LOCAL,
    ),
    "copies that check_vma cannot know": (
        """
check_vma: false
arrays: {A: {shape: [4, 8], init: normal, spec: [x, y]}}
graph: {o: A * 1.0}
per_device: {o: "all_gather(all_gather(A, 'x', tiled=True), 'y', axis=1, tiled=True)"}
outputs: {o: []}
""",
        WHOLE | LOCAL,
    ),
    "a precision": (
        """
precision: bfloat16
arrays: {A: {shape: [4, 8], init: normal, spec: [x, y]}}
graph: {o: A @ A.T}
outputs: {o: [x]}
""",
        WHOLE,
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", CASES)
def test_programs_agree_with_the_oracles(case, tmp_path):
    text, programs = CASES[case]
    outcome = harness.run(text, tmp_path)
    assert outcome.types.unsupported == {}
    assert set(outcome.runs) == programs
    assert outcome.failures() == []
    # Its `main` compiles a program once more; each case tries another program's.
    program = list(outcome.sources)[list(CASES).index(case) // 2 % len(outcome.sources)]
    with loaded(tmp_path / f"program_{program}.py") as module, contextlib.redirect_stdout(io.StringIO()) as printed:
        module.main()
    assert all(f"{name}  " in printed.getvalue() for name in outcome.experiment.outputs)


DTYPES = (
    "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2", "int8", "int16", "int64", "uint8", "uint32",
    "complex64", "complex128",
)  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", DTYPES)
def test_programs_compute_in_every_dtype(dtype, tmp_path):
    text = f"""
arrays:
  A: {{shape: [4, 8], dtype: {dtype}, init: "integers(0, 3)", spec: [x, y]}}
  B: {{shape: [8, 4], dtype: {dtype}, init: "integers(0, 3)", spec: [y]}}
graph: {{C: A + A, D: A @ B, E: "sum(A, axis=0)"}}
per_device: {{C: A + A, D: "psum(A @ B, 'y')", E: "psum(sum(A, axis=0), 'x')"}}
outputs: {{C: [x, y], D: [x], E: [y]}}
"""
    outcome = harness.run(text, tmp_path)
    assert set(outcome.runs) == WHOLE | LOCAL
    assert outcome.failures() == []
    assert outcome.value("shard_map", "C").dtype == dtype


# Programs that JAX cannot express, and the messages.


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("psum_scatter(A, 'x', scatter_dimension=-1, tiled=True)",
         "psum_scatter's scatter_dimension counts from 0: 1 instead of -1"),
        ("psum_scatter(M, 'x', tiled=True)",
         "psum_scatter does not add booleans; convert them first: astype(…, 'int32')"),
        ("pbroadcast(A, 'x', 0)", "JAX compiles pbroadcast for GPUs only"),
        ("psum(A, 'x', axis_index_groups=[[0], [1]])",
         "under shard_map, JAX has psum with axis_index_groups only with check_vma: false"),
        ("all_gather(A, 'x', axis_index_groups=[[0], [0]])",
         "all_gather's axis_index_groups hold each of 0 to 1 once, not [[0], [0]]"),
        ("ppermute(A, ('y', 'x'), shift=1)", "ppermute over several axes names them in the mesh's order: ('x', 'y')"),
        ("ppermute(A, 'x', perm=[[0, 1], [1, 1]])",
         "ppermute's sources and destinations have to be unique: [[0, 1], [1, 1]]"),
        ("ppermute(A, 'x', perm=[[0, 5]])", "ppermute's perm has an index outside 0 to 1: [[0, 5]]"),
        ("ppermute(A, 'x', shift=axis_index('x'))",
         "ppermute's shift is an integer that is known before the program runs"),
        ("ppermute(A, 'x')", "ppermute takes either perm=[[source, destination], …] or shift="),
        ("pshuffle(A, 'x', [0, 0])", "pshuffle's perm is a permutation of 0 to 1, not [0, 0]"),
        ("pcast(A, 'x', to='varying')",
         "its operand float32[8, 8] varies over 'x' already; pcast to the other axes only"),
        ("psum(psum(A, 'x'), ('x', 'y'))",
         "its operand float32[8, 8] varies over 'y' but is the same along 'x', and JAX does not accept a mixture; "
         "leave 'x' out, or use pcast(…, 'x', to='varying') first"),
    ],
)  # fmt: skip
def test_a_collective_call_that_jax_does_not_support_is_refused(expression, message):
    with pytest.raises(InvalidExperiment) as raised:
        harness.types(OPERANDS, per_device={"n": expression}, outputs={"n": ["x", "y"]})
    assert raised.value.fault.message == message
    assert raised.value.fault.key == ("per_device", "n")


@pytest.mark.parametrize(
    ("first", "body", "message"),
    [
        ("zeros((8, 8))", "acc + A",
         "the carry 'acc' starts the same on every device along 'x' and 'y', but may differ at the end of the body; "
         "start it with pcast(zeros((8, 8)), ('x', 'y'), to='varying')"),
        ("psum(A, 'x')", "acc + A",
         "the carry 'acc' starts the same on every device along 'x', but may differ at the end of the body; "
         "start it with pcast(psum(A, 'x'), 'x', to='varying')"),
        ("A", "concatenate([acc, A])",
         "the carry 'acc' starts as float32[8, 8] and ends the body as float32[16, 8]; a fori_loop keeps one type"),
    ],
)  # fmt: skip
def test_a_carry_that_changes_its_type_is_refused(first, body, message):
    loop = {"repeat": 2, "carry": {"acc": first}, "body": {"acc": body}, "unroll": False}
    with pytest.raises(InvalidExperiment) as raised:
        harness.types(OPERANDS, per_device={"ring": loop}, outputs={"ring.acc": ["x", "y"]})
    assert raised.value.fault.message == message
    assert raised.value.fault.key == ("per_device", "ring", "carry", "acc")
    _, advice, start = message.rpartition("; start it with ")
    if advice:
        loop["carry"]["acc"] = start
        harness.types(OPERANDS, per_device={"ring": loop}, outputs={"ring.acc": ["x", "y"]})


@pytest.mark.parametrize(
    "line", ["psum(psum(A, 'x'), 'y')", "psum(pcast(psum(A, 'x'), 'x', to='varying'), ('x', 'y'))"]
)
def test_a_sum_over_what_varies_and_what_does_not_is_read_as_its_message_says(line):
    harness.types(OPERANDS, per_device={"n": line}, outputs={"n": []})


def test_a_random_key_as_output_is_refused():
    with pytest.raises(InvalidExperiment, match="'k' of graph is a random key; an output is an array of numbers"):
        harness.types("{graph: {k: key(0)}, outputs: {k: []}}")


def test_shapes_that_jax_refuses_are_named():
    with pytest.raises(InvalidExperiment) as raised:
        harness.types(OPERANDS, graph={"n": "A @ R"}, outputs={"n": []})
    assert raised.value.fault.message.startswith("JAX refuses it: ")
    assert raised.value.fault.message.endswith("; the operands are float32[16, 16], float32[4, 4]")


# The source.


def written(tmp_path):
    return harness.run(CASES["a compiled loop"][0], tmp_path)


@pytest.mark.in_turn
def test_a_program_is_a_script_of_its_own(tmp_path):
    alone = tmp_path / "alone"
    alone.mkdir()
    for program, text in written(tmp_path).sources.items():
        (alone / f"program_{program}.py").write_text(text)
        assert "runner" not in {alias.name.split(".")[0] for alias in imports(text)}
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E,F,I", "--ignore", "E501", str(alone)]
    checked = subprocess.run(ruff, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    command = [sys.executable, "-W", "error", "-I", str(alone / "program_shard_map.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("C  float32[8, 8]  P('x',")


def imports(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from node.names
        elif isinstance(node, ast.ImportFrom):
            yield ast.alias(node.module or "")


@pytest.mark.in_turn
def test_every_node_has_its_named_scope(tmp_path):
    sources = written(tmp_path).sources
    for program, names in (("auto", ["C"]), ("shard_map", ["empty", "ring", "acc", "rhs", "C"])):
        assert sorted(re.findall(r'with jax\.named_scope\("(\w+)"\)', sources[program])) == sorted(names)


WINDOWS = """
arrays: {A: {shape: [4, 8], init: normal, spec: [x, y]}}
graph: {m: "reduce_window(where(A > 0, A, -inf), -inf, 'max', (1, 3), (1, 1), 'SAME')"}
per_device: {m: "reduce_window(A, init_value=0.0, computation='add', window_dimensions=(1, 1))"}
outputs: {m: [x, y]}
"""


@pytest.mark.in_turn
def test_functions_and_infinities_are_written_by_jaxs_names(tmp_path):
    written = harness.run(WINDOWS, tmp_path).sources
    graph = 'm = jax.lax.reduce_window(jnp.where(A > 0, A, -jnp.inf), -jnp.inf, jax.lax.max, (1, 3), (1, 1), "SAME")'
    local = "m = jax.lax.reduce_window(A, init_value=0.0, computation=jax.lax.add, window_dimensions=(1, 1))"
    assert graph in written["auto"]
    assert local in written["shard_map"]


MATMUL = """
arrays: {A: {shape: [4, 8], init: normal, spec: [x, y]}, B: {shape: [8, 4], init: normal, spec: [y]}}
graph: {C: A @ B - 1}
per_device: {C: "psum(A @ B, 'y') - 1"}
outputs: {C: [x]}
"""


@pytest.mark.in_turn
def test_a_bug_in_a_writer_fails_the_value_check(tmp_path, monkeypatch):
    def swapped(self, equation, repair):
        turned = replace(equation, operands=equation.operands[::-1]) if equation.operation == "subtract" else equation
        return genuine(self, turned, repair)

    genuine = emit.Emit._operator
    monkeypatch.setattr(emit.Emit, "_operator", swapped)
    outcome = harness.run(MATMUL, tmp_path)
    assert {program: checks.value.status for program, checks in outcome.checks.items()} == dict.fromkeys(
        WHOLE | LOCAL, "failed"
    )


def test_a_bug_in_a_layout_fails_the_layout_check(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "constrained", lambda value, spec: f"jax.lax.with_sharding_constraint({value}, {P0})")
    outcome = harness.run(MATMUL, tmp_path, program="constraint")
    assert outcome.checks["constraint"].layout.status == "failed"
    assert outcome.checks["constraint"].value.status == "passed"


P0 = "NamedSharding(mesh, P())"


def test_jax_is_configured_by_the_header():
    experiment = harness.experiment(MATMUL, precision="float32")
    text = source.header(experiment, "auto", Identifiers(experiment), "C = A", mesh=True)
    assert 'jax.config.update("jax_num_cpu_devices", 4)' in text
    assert 'jax.config.update("jax_default_matmul_precision", "float32")' in text
    assert jax.default_matmul_precision.value is None
