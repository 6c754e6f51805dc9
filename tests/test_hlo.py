"""The text of compiled modules: instructions, groups, names, trip counts, and unreadable parts."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax._src.lax import parallel
from jax.extend.core import Primitive
from jaxlib import lapack

from runner.base.executions import InBranch, Range
from runner.base.layout import Mesh
from runner.compiled.evidence import groups, hlo, opcodes
from runner.compiled.evidence.gather import gather
from runner.compiled.evidence.hlo import Instruction, Metadata, Shape
from runner.compiled.evidence.model import Between, Evidence
from runner.compiled.evidence.nodes import OperationOrigin, Origins, asked, stacks
from runner.experiment.model import Experiment
from runner.experiment.program import Program
from tests import harness
from tests.compiled import collectives_in

EXPERIMENT = """
mesh: {axes: [x, y], shape: [4, 2]}
arrays:
  A: {shape: [8, 8], spec: [x, y]}
per_device:
  C: psum(A, 'x')
  D: C * 2
outputs:
  D: [null, y]
"""

HEADER = "HloModule jit_test, is_scheduled=true, num_partitions=8\n\n"
ADD = """%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

"""
BY = 'metadata={op_name="jit(test)/shard_map/C/psum"}'
OVER_X = "replica_groups={{0,2,4,6},{1,3,5,7}}, use_global_device_ids=true, to_apply=%add"


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return harness.experiment(EXPERIMENT)


def entry(*lines: str) -> str:
    """Return a module of `A` and these lines."""
    body = ['%A = f32[2,4]{1,0} parameter(0), metadata={op_name="A"}', *lines]
    return f"{HEADER}{ADD}ENTRY %main (A: f32[2,4]) -> f32[2,4] {{\n" + "".join(f"  {line}\n" for line in body) + "}\n"


def instruction_of(line: str) -> Instruction:
    """Return an instruction in a module of its own."""
    module = hlo.read(f"{HEADER}ENTRY %main () -> f32[] {{\n  {line}\n}}\n")
    assert module.unread == []
    assert module.entry is not None
    (instruction,) = module.entry.instructions.values()
    return instruction


# Instructions.


def test_an_instruction_is_read_with_its_operands_and_attributes():
    fusion = instruction_of(
        "ROOT %fusion.2 = (f32[2,4]{1,0:T(8,128)S(1)}, /*index=1*/bf16[3]{0}) fusion(%A.1, /*index=1*/%copy-done), "
        'kind=kLoop, calls=%fused.1, metadata={op_name="jit(f)/C/mul, calls=%no" stack_frame_id=3}'
    )
    assert fusion.name == "fusion.2"
    assert fusion.opcode == "fusion"
    assert fusion.root
    assert fusion.shapes == (Shape("float32", (2, 4), 32, 1), Shape("bfloat16", (3,), 16))
    assert fusion.bytes == 2 * 4 * 4 + 3 * 2
    assert fusion.operands == ("A.1", "copy-done")
    assert fusion.called == (("calls", "fused.1"),)
    assert fusion.op_name == "jit(f)/C/mul, calls=%no"
    assert fusion.attribute("kind") == "kLoop"
    assert fusion.attribute("nothing") is None


def test_an_instruction_without_percent_signs_and_with_shapes_of_operands():
    addition = instruction_of("add.1 = f32[2]{0} add(f32[2]{0} a.1, f32[2]{0} b), metadata={}")
    assert addition.name == "add.1"
    assert addition.operands == ("a.1", "b")
    assert instruction_of("add.1 = f32[2]{0} add(f32[2,3]{1,0} a.1,b,/*index=2*/c)").operands == ("a.1", "b", "c")


def test_attributes_end_at_the_comma_outside_of_brackets_and_quotes():
    reduction = instruction_of(
        "%r = f32[2]{0} all-reduce(%a), channel_id=1, replica_groups=[2,4]<=[4,2]T(1,0), "
        'frontend_attributes={k="a,b=(",is_spmd_generated="true"}, to_apply=%add'
    )
    assert reduction.attribute("replica_groups") == "[2,4]<=[4,2]T(1,0)"
    assert reduction.attribute("frontend_attributes") == '{k="a,b=(",is_spmd_generated="true"}'
    assert reduction.attribute("is_spmd_generated") == '"true"'
    assert reduction.attribute("k") is None
    assert reduction.attribute("to_apply") == "%add"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[]", 4),
        ("f32[0,8]{1,0}", 0),
        ("pred[5]", 5),
        ("s4[5]{0:E(4)}", 3),
        ("c128[2]", 32),
        ("f8e4m3fn[2,2]{1,0}", 4),
        ("f4e2m1fn[4]", 2),
        ("s32[<=6]", 24),
        ("token[]", 0),
        ("((f32[8,16]{1,0}), f32[2,16]{1,0}, u32[]{:S(2)})", 8 * 16 * 4 + 2 * 16 * 4 + 4),
        ("bf16[4]{0:T(256)(128)(2,1)S(1)}", 8),
    ],
)
def test_the_bytes_of_a_shape_are_those_of_its_elements(text, size):
    assert sum(shape.bytes for shape in hlo.shapes(text)) == size


def bits(name: str) -> int:
    """Return the bits per element of a dtype, from NumPy and ml_dtypes."""
    if name in ("bool", "complex64", "complex128"):
        return 8 * np.dtype(name).itemsize
    kind = np.dtype(getattr(ml_dtypes, name, name))
    return (ml_dtypes.iinfo if name.lstrip("u").startswith("int") else ml_dtypes.finfo)(kind).bits


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("pred", "bool"), ("s2", "int2"), ("s4", "int4"), ("s8", "int8"), ("s16", "int16"), ("s32", "int32"),
        ("s64", "int64"), ("u2", "uint2"), ("u4", "uint4"), ("u8", "uint8"), ("u16", "uint16"), ("u32", "uint32"),
        ("u64", "uint64"), ("f16", "float16"), ("bf16", "bfloat16"), ("f32", "float32"), ("f64", "float64"),
        ("c64", "complex64"), ("c128", "complex128"), ("f4e2m1fn", "float4_e2m1fn"), ("f8e3m4", "float8_e3m4"),
        ("f8e4m3", "float8_e4m3"), ("f8e4m3fn", "float8_e4m3fn"), ("f8e4m3fnuz", "float8_e4m3fnuz"),
        ("f8e4m3b11fnuz", "float8_e4m3b11fnuz"), ("f8e5m2", "float8_e5m2"), ("f8e5m2fnuz", "float8_e5m2fnuz"),
        ("f8e8m0fnu", "float8_e8m0fnu"),
    ],
)  # fmt: skip
def test_every_dtype_has_its_size(text, name):
    assert hlo.shapes(f"{text}[3,5]{{1,0}}") == (Shape(name, (3, 5), bits(name)),)


def test_branches_are_computations_that_it_runs():
    conditional = instruction_of("%c = f32[] conditional(%p, %a, %b), branch_computations={%first, %second.1}")
    assert conditional.called == (("branch_computations", "first"), ("branch_computations", "second.1"))


def test_a_done_instruction_does_not_run_its_computation_again():
    assert instruction_of("%d = f32[2]{0} async-done(%s), calls=%wrapped").called == ()


ORDER = """HloModule jit_test

%c (a: f32[2], b: f32[2]) -> f32[2] {
  %n = f32[2] negate(%b)
  ROOT %r = f32[2] add(%a, %n)
  %unused = f32[2] multiply(%r, %b)
  %b = f32[2] parameter(1)
  %a = f32[2] parameter(0)
}

%same (p: f32[2]) -> f32[2] {
  ROOT %p = f32[2] parameter(0)
}
"""


def test_instructions_may_stand_in_any_order():
    module = hlo.read(ORDER)
    computation = module.computations["c"]
    assert computation.root is computation.instructions["r"]
    assert {number: parameter.name for number, parameter in computation.parameters.items()} == {0: "a", 1: "b"}
    used = {name: [user.name for user in computation.users.get(name, ())] for name in computation.instructions}
    assert used == {"b": ["n", "unused"], "a": ["r"], "n": ["r"], "r": ["unused"], "unused": []}
    same = module.computations["same"]
    assert same.root is same.parameters[0]


def test_text_between_computations_is_ignored():
    text = ORDER.replace("  ROOT %r", "\n  \n  ROOT %r").replace("%same", '\nFileNames\n1 "a.py"\n\n  {\n%same')
    module = hlo.read(text)
    assert module.unread == []
    assert list(module.computations) == ["c", "same"]
    assert [collective.position for collective in module.computations["c"].order] == [0, 1, 2, 3, 4]


def test_missing_module_attributes_have_defaults():
    module = hlo.read(ORDER)
    assert (module.name, module.scheduled, module.partitions, module.replicas) == ("jit_test", False, 1, 1)
    assert module.entry is None
    partitioned = hlo.read("HloModule m, is_scheduled=true, replica_count=3, num_partitions=7\n")
    assert (partitioned.name, partitioned.scheduled, partitioned.partitions, partitioned.replicas) == ("m", True, 7, 3)


def test_a_computation_without_a_root_has_none():
    assert hlo.read("%c () -> f32[] {\n  %a = f32[] constant(1)\n}\n").computations["c"].root is None


def test_the_computations_of_an_instruction_by_their_roles():
    text = "\n\n".join(f"%{name} () -> f32[] {{\n  ROOT %{name}1 = f32[] constant(1)\n}}" for name in ("p", "q"))
    loop = "%w = f32[] while(%a), condition=%p, body=%q"
    module = hlo.read(f"{text}\n\nENTRY %main () -> f32[] {{\n  {loop}\n}}\n")
    assert module.entry is not None
    (while_,) = module.entry.instructions.values()
    assert [inner.name for inner in module.inside(while_)] == ["p1", "q1"]
    assert [inner.name for inner in module.inside(while_, "body")] == ["q1"]
    assert list(module.inside(while_, "calls")) == []
    assert {name: [(role, by.name) for _, by, role in callers] for name, callers in module.callers.items()} == {
        "p": [("condition", "w")],
        "q": [("body", "w")],
    }


@pytest.mark.parametrize("attributes", ["called_computations={}", 'custom_call_target="calls=%c"', "metadata={}"])
def test_attributes_that_name_no_computation_call_none(attributes):
    assert instruction_of(f"%c = f32[] custom-call(%p), {attributes}").called == ()


# Replica groups.


def spelt(mesh: Mesh, axes: tuple[str, ...]) -> dict[str, str]:
    """Return the groups of devices along `axes`, in each spelling."""
    last = [mesh.axes.index(axis) for axis in axes]
    order = [*(i for i in range(len(mesh.axes)) if i not in last), *last]
    size = math.prod(mesh.shape[i] for i in last)
    iota = f"[{mesh.size // size},{size}]<=[{','.join(map(str, mesh.shape))}]T({','.join(map(str, order))})"
    names = ",".join(f"'{axis}'={length}" for axis, length in mesh.sizes.items())
    along = ",".join(f"'{axis}'" for axis in axes)
    # The same mesh with its axes swapped, and so with its devices in another order.
    around = [f"'{axis}'={length}" for axis, length in reversed(mesh.sizes.items())]
    turned = f"[{','.join(map(str, mesh.shape))}]T({','.join(map(str, reversed(range(len(mesh.axes)))))})"
    return {
        "list": "{" + ",".join("{" + ",".join(map(str, row)) + "}" for row in mesh.groups(axes)) + "}",
        "iota": iota,
        "mesh": f"mesh[{names}] {{{along}}}",
        "mesh in another order": f"mesh[{','.join(around)}], device_ids=({turned}) {{{along}}}",
    }


@st.composite
def meshes(draw) -> tuple[Mesh, tuple[str, ...]]:
    """Draw a mesh and some of its axes, in any order."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    names = tuple("xyzw"[: len(shape)])
    axes = draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    return Mesh(names, tuple(shape)), tuple(axes)


@given(meshes())
def test_groups_read_back_to_the_axes_in_every_spelling(drawn):
    mesh, axes = drawn
    moved = tuple(axis for axis in mesh.axes if axis in axes and mesh.sizes[axis] > 1)
    for spelling, text in spelt(mesh, axes).items():
        rows = groups.read(text, mesh.size)
        assert rows is not None, spelling
        assert {frozenset(row) for row in rows.tolist()} == {frozenset(row) for row in mesh.groups(axes)}, spelling
        assert groups.axes_of(rows, mesh) == moved, spelling


@pytest.mark.in_turn
@given(meshes(), st.randoms(use_true_random=False))
def test_the_order_of_groups_and_of_devices_in_them_does_not_matter(drawn, random):
    mesh, axes = drawn
    rows = [random.sample(row, len(row)) for row in mesh.groups(axes)]
    random.shuffle(rows)
    assert groups.axes_of(np.array(rows), mesh) == groups.axes_of(groups.along(mesh, axes), mesh)


@given(meshes(), st.data())
def test_axes_are_given_only_if_the_groups_match(drawn, data):
    mesh, axes = drawn
    flat = data.draw(st.permutations(range(mesh.size)))
    size = mesh.axis_size(axes)
    rows = np.array(flat).reshape(-1, size)
    read_axes = groups.axes_of(rows, mesh)
    if read_axes is not None:
        assert {frozenset(row) for row in rows.tolist()} == {frozenset(row) for row in mesh.groups(read_axes)}


@given(meshes(), st.integers(-3, 3))
def test_the_pairs_of_a_shift_read_back_to_its_axis(drawn, shift):
    mesh, (axis, *_) = drawn
    rows = mesh.groups(axis)
    pairs = [(row[i], row[(i + shift) % len(row)]) for row in rows for i in range(len(row))]
    read_pairs = groups.pairs("{" + ",".join(f"{{{a},{b}}}" for a, b in pairs) + "}")
    assert read_pairs is not None
    assert read_pairs.tolist() == [list(pair) for pair in pairs]
    assert groups.axes_between(read_pairs, mesh) == ((axis,) if shift % mesh.sizes[axis] else ())


def test_a_permute_without_pairs_moves_along_no_axis():
    pairs = groups.pairs("{}")
    assert pairs is not None
    assert groups.axes_between(pairs, Mesh(("x",), (4,))) == ()


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_a_part_of_an_axis(before, size, after):
    whole = before * size * after
    rows = groups.read(f"mesh['x'={whole}] {{'x':({before}){size}}}", whole)
    assert rows is not None
    expected = np.arange(whole).reshape(before, size, after).transpose(0, 2, 1).reshape(-1, size)
    assert {frozenset(row) for row in rows.tolist()} == {frozenset(row) for row in expected.tolist()}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("{}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("{{0,1},{2,3}}", [[0, 1], [2, 3]]),
        ("[1,8]<=[8]", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("[2,4]<=[4,2]T(1,0)", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("[4,2]<=[2,2,2]T(2,0,1)", [[0, 2], [4, 6], [1, 3], [5, 7]]),
        ("mesh['x'=8] {'x':(1)2}", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("mesh['x'=8] {'x':(2)4}", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("mesh['x'=8] {'x':(1)2,'x':(4)2}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("mesh['x'=8] {'x':(4)2,'x':(1)2}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("mesh['x'=8] {'x':(2)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("mesh['x'=4,'y'=2] {'x':(1)2,'y'}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
        ("mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("mesh['a'=2,'b'=2], device_ids=(3,1,2,0) {'b'}", [[3, 1], [2, 0]]),
    ],
)
def test_all_spellings_of_groups_give_their_rows(text, rows):
    read_rows = groups.read(text, 8)
    assert read_rows is not None
    assert sorted(sorted(row) for row in read_rows.tolist()) == sorted(sorted(row) for row in rows)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "all",
        "{{0,1},{2}}",
        "mesh['x'=8] {'z'}",
        "mesh['x'=8] {'x':(3)2}",
        "mesh['x'=8] {'x':(1)4,'x':(2)2}",
        "mesh['x'=8] {'x':(8)2}",
        "mesh['x'=8] {'z':(1)2}",
        "<[8]>",
        "[2,4]=>[8]",
        "{0,1}",
        "[2,4]<=[4,2]T(1,1)",
        "[3,3]<=[8]",
        "mesh[x] {x}",
        "{{a}}",
        "{{0,1},{2,3,4}}",
    ],
)
def test_text_that_spells_no_groups_gives_none(text):
    assert groups.read(text, 8) is None


# Names.


@pytest.mark.parametrize(
    ("stack", "node", "primitive", "gradient"),
    [
        ("jit(test)/shard_map/C/psum", "C", "psum", False),
        ("C/psum", "C", "psum", False),
        ("jit(test)/transpose(jvp(C))/dot_general", "C", "dot_general", True),
        ("jit(test)/jvp(C)/dot_general", "C", "dot_general", False),
        ("jit(test)/transpose(jvp())/shard_map/C/psum_invariant", "C", "psum_invariant", True),
        ("jit(test)/vmap(vmap(C))/mul", "C", "mul", False),
        ("jit(test)/C/jit(D)/mul", "C", "mul", False),
        ("jit(test)/shard_map/C", "C", "C", False),
        ("A", "A", "", False),
    ],
)
def test_a_name_stack_leads_to_its_line(experiment, stack, node, primitive, gradient):
    assert Origins(experiment, "per_device").of(Metadata(stack)) == (OperationOrigin(node, primitive, gradient),)


@pytest.mark.parametrize("stack", ["", "jit(test)/shard_map", "broadcast.5", "jit(test)/E/psum", "a"])
def test_a_name_stack_without_a_line_has_no_origin(experiment, stack):
    assert Origins(experiment, "per_device").of(Metadata(stack)) == ()


@pytest.mark.parametrize(
    "merged",
    [
        "jit(test)/shard_map/D/mul;jit(test)/shard_map/C/psum;jit(test)/shard_map/D/mul",
        "jit(test)/shard_map/(D/mul:C/psum:D/mul)",
        "jit(test)/(jvp(D)/mul:transpose(jvp(C))/psum)",
        "(D/mul:C/psum)",
        "jit(test)/shard_map/D/(mul:add);C/psum",
        "jit(test)/(shard_map/D/(mul:add):C/psum)",
    ],
)
def test_a_merged_name_leads_to_all_its_lines(experiment, merged):
    assert list(dict.fromkeys(origin.node for origin in Origins(experiment, "per_device").of(Metadata(merged)))) == [
        "D",
        "C",
    ]


@pytest.mark.parametrize(
    ("merged", "parts"),
    [
        ("jit(f)/C/mul", ["jit(f)/C/mul"]),
        ("jit(f)/transpose(jvp(C))", ["jit(f)/transpose(jvp(C))"]),
        ("a/b;c", ["a/b", "c"]),
        ("a/(b:c/d)", ["a/b", "a/c/d"]),
        ("a/(jvp()/b:transpose(jvp())/b)", ["a/jvp()/b", "a/transpose(jvp())/b"]),
        ("(a:b)", ["a", "b"]),
        ("a/(b:c/(d:e))", ["a/b", "a/c/d", "a/c/e"]),
        ("jit(f)/while[cond_nconsts=0]/body/psum[axes=('x',) groups=None]", ["jit(f)/while/body/psum"]),
        ("jit(f)/dot_general[dims=(((1,), (0,)), ((), ())) type=f32[2] of='a/b']", ["jit(f)/dot_general"]),
        ("params['w']", ["params['w']"]),
        ("", [""]),
    ],
)
def test_the_names_that_the_compiler_merged(merged, parts):
    assert stacks(merged) == parts


def test_a_loop_is_not_the_line_of_operations_merged_in_it():
    merged = "jit(test)/shard_map/ring/while/body/closed_call/(inner/while/body/g/ppermute:h/mul)"
    nodes = [origin.node for origin in Origins(harness.experiment(LOOP), "per_device").of(Metadata(merged))]
    assert nodes == ["ring.inner.g", "ring.h"]


def test_every_collective_of_jax_is_known_by_its_name():
    primitives = {primitive.name for primitive in vars(parallel).values() if isinstance(primitive, Primitive)}
    local = {"axis_index", "preduced", "vary_unreduced_cast", "vary_unreduced_cast_p"}
    names = {name for name in primitives - local if not name.endswith("_done")}
    assert len(names) > 15
    assert {name for name in names if not asked(f"jit(f)/shard_map/{name}")} == set()


@pytest.mark.parametrize(
    "stack", ["jit(f)/C/mul", "psum", "jit(f)/psum/mul", "jit(f)/shard_map", "jit(f)/axis_index", ""]
)
def test_a_name_stack_that_asks_for_no_collective(stack):
    assert not asked(stack)


@pytest.mark.parametrize("stack", ["jit(C)/shard_map/D/mul", "jit(C)/transpose(jvp(D))/mul"])
def test_a_function_is_not_the_line_of_the_same_name(experiment, stack):
    assert [origin.node for origin in Origins(experiment, "per_device").of(Metadata(stack))] == ["D"]


LOOP = """
mesh: {axes: [x], shape: [4]}
arrays:
  A: {shape: [8], spec: [x]}
per_device:
  ring:
    repeat: 3
    carry: {h: A}
    body:
      inner:
        repeat: 2
        carry: {g: h}
        body:
          g: ppermute(g, 'x', shift=1)
      h: inner.g
  body: ring.h * 2
outputs:
  body: [x]
"""


@pytest.mark.parametrize(
    ("stack", "node"),
    [
        ("jit(test)/shard_map/ring/while/body/closed_call/inner/while/body/g/ppermute", "ring.inner.g"),
        ("jit(test)/shard_map/ring/inner/g/ppermute", "ring.inner.g"),
        ("jit(test)/shard_map/ring/while/body/add", "ring"),
        ("jit(test)/shard_map/ring/while/cond/lt", "ring"),
        ("jit(test)/shard_map/ring/while", "ring"),
        ("jit(test)/shard_map/body/mul", "body"),
        ("jit(test)/shard_map/body/while/body/add", "body"),
    ],
)
def test_a_loop_in_a_loop(stack, node):
    assert [origin.node for origin in Origins(harness.experiment(LOOP), "per_device").of(Metadata(stack))] == [node]


NAMED_AS_JAX_NAMES_LOOPS = """
mesh: {axes: [x], shape: [4]}
arrays:
  A: {shape: [8], spec: [x]}
per_device:
  ring:
    repeat: 3
    carry: {body: A, cond: A}
    body:
      body: ppermute(body, 'x', shift=1)
      cond: cond + body
  body: ring.body + ring.cond
outputs:
  body: [x]
"""


@pytest.mark.parametrize(
    ("stack", "nodes"),
    [
        ("jit(test)/shard_map/ring/while/body/closed_call/body/ppermute", ["ring.body"]),
        ("jit(test)/shard_map/ring/while/body/closed_call/cond/add", ["ring.cond"]),
        ("jit(test)/shard_map/ring/body/ppermute", ["ring.body"]),
        ("jit(test)/shard_map/ring/while/body/add", ["ring"]),
        ("jit(test)/shard_map/ring/while/cond/lt", ["ring"]),
        ("jit(test)/shard_map/while/body/add", []),
        ("jit(test)/shard_map/body/add", ["body"]),
    ],
)
def test_a_loop_of_jax_is_no_line_of_that_name(stack, nodes):
    origins = Origins(harness.experiment(NAMED_AS_JAX_NAMES_LOOPS), "per_device")
    assert [origin.node for origin in origins.of(Metadata(stack))] == nodes


# Trip counts.


def loop(start: str = "0", end: str = "6", step: str = "1", direction: str = "LT", known: str = "") -> str:
    """Return a module with an all-reduce in a loop."""
    carried = "(s32[], f32[2,4])"
    return (
        f"{HEADER}{ADD}"
        f"%body (p: {carried}) -> {carried} {{\n"
        f"  %p = {carried} parameter(0)\n"
        f"  %i = s32[] get-tuple-element(%p), index=0\n"
        f"  %step = s32[] constant({step})\n"
        f"  %next = s32[] add(%i, %step)\n"
        f"  %v = f32[2,4]{{1,0}} get-tuple-element(%p), index=1\n"
        f"  %r = f32[2,4]{{1,0}} all-reduce(%v), channel_id=1, {OVER_X}, {BY}\n"
        f"  ROOT %t = {carried} tuple(%next, %r)\n"
        f"}}\n\n"
        f"%condition (q: {carried}) -> pred[] {{\n"
        f"  %q = {carried} parameter(0)\n"
        f"  %j = s32[] get-tuple-element(%q), index=0\n"
        f"  %end = s32[] {end}\n"
        f"  ROOT %less = pred[] compare(%j, %end), direction={direction}\n"
        f"}}\n\n"
        f"ENTRY %main (A: f32[2,4]) -> {carried} {{\n"
        f'  %A = f32[2,4]{{1,0}} parameter(0), metadata={{op_name="A"}}\n'
        f"  %zero = s32[] constant({start})\n"
        f"  %init = {carried} tuple(%zero, %A)\n"
        f"  ROOT %while.1 = {carried} while(%init), condition=%condition, body=%body{known}\n"
        f"}}\n"
    )


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (loop(end="constant(6)"), 6),
        (loop(start="2", end="constant(6)"), 4),
        (loop(end="constant(6)", step="4"), 2),
        (loop(start="7", end="constant(6)"), 0),
        (loop(end="constant(6)", known=', backend_config={"known_trip_count":{"n":"9"}}'), 9),
        (loop(end="all-gather(%j)", known=', backend_config={"known_trip_count":{"n":"9"}}'), 9),
    ],
)
def test_a_collective_in_a_loop_counts_once_a_step(experiment, text, count):
    (inside,) = [
        collective for collective in collectives_in(text, experiment).entries if collective.kind == "all-reduce"
    ]
    assert inside.count == count


COUNTED = f"""{HEADER}{ADD}
%body (p: (s32[], f32[2,4], s32[], s32[])) -> (s32[], f32[2,4], s32[], s32[]) {{
  %p = (s32[], f32[2,4], s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %i.copy = s32[] copy(%i)
  %step = s32[] get-tuple-element(%p), index=2
  %next = s32[] add(%i.copy, %step)
  %v = f32[2,4]{{1,0}} get-tuple-element(%p), index=1
  %r = f32[2,4]{{1,0}} all-reduce(%v), channel_id=1, {OVER_X}, {BY}
  %end = s32[] get-tuple-element(%p), index=3
  ROOT %t = (s32[], f32[2,4], s32[], s32[]) tuple(%next, %r, %step, %end)
}}

%condition (q: (s32[], f32[2,4], s32[], s32[])) -> pred[] {{
  %q = (s32[], f32[2,4], s32[], s32[]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %last = s32[] get-tuple-element(%q), index=3
  ROOT %less = pred[] compare(%j, %last), direction=LT
}}

ENTRY %main (A: f32[2,4]) -> (s32[], f32[2,4], s32[], s32[]) {{
  %A = f32[2,4]{{1,0}} parameter(0), metadata={{op_name="A"}}
  %one = s32[] constant(1)
  %two = s32[] constant(2)
  %two.copy = s32[] copy(%two)
  %eight = s32[] constant(8)
  %init = (s32[], f32[2,4], s32[], s32[]) tuple(%one, %A, %two.copy, %eight)
  ROOT %while.1 = (s32[], f32[2,4], s32[], s32[]) while(%init), condition=%condition, body=%body
}}
"""
"""A loop from 1 to 8 by 2, whose bound and increment are carried."""


def test_a_loop_may_carry_its_end_and_its_step(experiment):
    module = collectives_in(COUNTED, experiment)
    assert [collective.count for collective in module.entries] == [4]
    assert module.unknown == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The counter that is incremented is not the one that is tested.
        ("%next = s32[] add(%i.copy,", "%other = s32[] negate(%i)\n  %next = s32[] add(%other,"),
        ("add(%i.copy, %step)", "add(%end, %step)"),
        ("add(%i.copy, %step)", "add(%step, %step)"),
        ("add(%i.copy, %step)", "add(%i, %i.copy)"),
        ("add(%i.copy, %step)", "multiply(%i.copy, %step)"),
        # The bound or the increment changes in every iteration.
        ("tuple(%next, %r, %step, %end)", "tuple(%next, %r, %end, %step)"),
        ("tuple(%next, %r, %step, %end)", "tuple(%next, %r, %step, %next)"),
        ("tuple(%next, %r, %step, %end)", "tuple(%next, %r, %next, %end)"),
        ("tuple(%next, %r, %step, %end)", "tuple(%i, %r, %step, %end)"),
        ("compare(%j, %last)", "compare(%last, %j)"),
        ("direction=LT", "direction=LE"),
        ("%two = s32[] constant(2)", "%two = s32[] constant(-2)"),
        ("%eight = s32[] constant(8)", "%eight = s32[] parameter(1)"),
        ("%one = s32[] constant(1)", "%one = s32[] negate(%two)"),
        # Names that are not in the module, or not in the expected place.
        ("condition=%condition", "condition=%lost"),
        ("  ROOT %less", "  %less"),
        ("  ROOT %t", "  %t"),
        ("while(%init)", "while(%lost)"),
        ("compare(%j, %last)", "compare(%lost, %last)"),
        ("compare(%j, %last)", "compare(%j, %lost)"),
        ("tuple(%next, %r, %step, %end)", "tuple(%lost, %r, %step, %end)"),
        ("tuple(%next, %r, %step, %end)", "tuple(%next, %r, %lost, %end)"),
        ("tuple(%one, %A, %two.copy, %eight)", "tuple(%lost, %A, %two.copy, %eight)"),
        ("tuple(%one, %A, %two.copy, %eight)", "copy(%everything)"),
        ("ROOT %t = (s32[], f32[2,4], s32[], s32[]) tuple(", "ROOT %t = (s32[], f32[2,4], s32[], s32[]) fusion("),
        ("%two.copy = s32[] copy(%two)", "%two.copy = s32[] copy(%lost)"),
        ("ROOT %less = pred[] compare(%j, %last), direction=LT", "ROOT %less = pred[] and(%j, %last)"),
    ],
)
def test_a_loop_that_counts_in_another_way_is_not_counted(experiment, old, new):
    assert old in COUNTED
    assert [collective.count for collective in collectives_in(COUNTED.replace(old, new), experiment).entries] == [None]


@pytest.mark.parametrize(
    "text",
    [
        loop(end="parameter(1)"),
        loop(end="constant(6)", direction="NE"),
        loop(end="constant(6)", step="0"),
        loop(end="constant(6)", start="{1}"),
    ],
)
def test_a_loop_of_unknown_length_is_reported(experiment, text):
    module = collectives_in(text, experiment)
    assert [collective.count for collective in module.entries] == [None]
    assert module.unknown == ["how often r runs is not known"]


def test_a_loop_whose_body_is_missing_is_reported(experiment):
    module = collectives_in(COUNTED.replace("body=%body", "body=%lost"), experiment)
    assert module.entries == []
    assert module.missing == [
        "while.1 calls lost, which the module does not have",
        "r is in body, which nothing calls",
    ]


def test_a_condition_runs_once_more_than_the_body(experiment):
    known = ', backend_config={"known_trip_count":{"n":"9"}}'
    text = loop(end="all-gather(%j), channel_id=2, replica_groups=[4,2]<=[8]", known=known)
    counts = {collective.kind: collective.count for collective in collectives_in(text, experiment).entries}
    assert counts == {"all-reduce": 9, "all-gather": 10}


def test_a_branch_may_not_be_taken(experiment):
    text = entry(
        "%which = pred[] constant(true)",
        "ROOT %c = f32[2,4]{1,0} conditional(%which, %A, %A), true_computation=%yes, false_computation=%no",
    )
    branch = "%{} (p: f32[2,4]) -> f32[2,4] {{\n  %p.{} = f32[2,4]{{1,0}} parameter(0)\n  ROOT %{}\n}}\n\n"
    yes = branch.format("yes", "1", f"r = f32[2,4]{{1,0}} all-reduce(%p.1), {OVER_X}, {BY}")
    no = branch.format("no", "2", "n = f32[2,4]{1,0} negate(%p.2)")
    module = collectives_in(text.replace(ADD, ADD + yes + no), experiment)
    assert [(collective.kind, collective.count) for collective in module.entries] == [
        ("all-reduce", Range(min=0, max=1))
    ]
    assert module.entries[0].branches == [InBranch(choice="c", branch=0, of=2, times=1)]
    assert module.unknown == []
    # It runs in every branch.
    either = text.replace("false_computation=%no", "false_computation=%yes")
    module = collectives_in(either.replace(ADD, ADD + yes), experiment)
    assert [(collective.kind, collective.count, collective.branches) for collective in module.entries] == [
        ("all-reduce", 1, [])
    ]


def test_a_computation_that_is_called_twice_runs_twice(experiment):
    text = entry(
        "%first = f32[2,4]{1,0} call(%A), to_apply=%twice",
        "ROOT %second = f32[2,4]{1,0} call(%first), to_apply=%twice",
    )
    twice = (
        "%twice (p: f32[2,4]) -> f32[2,4] {\n  %p = f32[2,4]{1,0} parameter(0)\n"
        f"  ROOT %r = f32[2,4]{{1,0}} all-reduce(%p), {OVER_X}, {BY}\n}}\n\n"
    )
    module = collectives_in(text.replace(ADD, ADD + twice), experiment)
    assert [collective.count for collective in module.entries] == [2]
    assert module.unknown == []


# Unreadable parts are reported.


def all_reduce(groups: str = "replica_groups={{0,2,4,6},{1,3,5,7}}", by: str = BY) -> str:
    """Return a module of one all-reduce."""
    return entry(f"ROOT %r = f32[2,4]{{1,0}} all-reduce(%A), {groups}, to_apply=%add, {by}")


def test_a_module_of_one_all_reduce_is_read(experiment):
    module = collectives_in(all_reduce(), experiment)
    assert [(collective.kind, collective.node, collective.axes, collective.bytes) for collective in module.entries] == [
        ("all-reduce", "C", ["x"], 32)
    ]
    assert module.unknown == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the module has no entry computation that could be read"),
        ("Segmentation fault", "the module has no entry computation that could be read"),
        (
            all_reduce().replace("ROOT %r = f32[2,4]{1,0} all-reduce", "ROOT %r := f32[2,4]{1,0} all-reduce"),
            "1 line of the module could not be read, the first: ROOT %r := f32[2,4]{1,0} all-reduce(%A), "
            + f"replica_groups={{{{0,2,4,6}},{{1,3,5,7}}}}, to_apply=%add, {BY}",
        ),
        (
            all_reduce().replace("ENTRY %main (A: f32[2,4]) -> f32[2,4] {", "ENTRY %main (A: f32[2,4]) -> f32[2,4]"),
            "the module has no entry computation that could be read",
        ),
        (
            all_reduce().replace("%add (a: f32[], b: f32[]) -> f32[] {\n", "%add (a: f32[], b: f32[]) -> f32[]\n"),
            "3 lines of the module could not be read, the first: %a = f32[] parameter(0)",
        ),
        (
            all_reduce().replace("%add (a: f32[], b: f32[]) -> f32[] {", "%add a, b {"),
            "4 lines of the module could not be read, the first: %add a, b {",
        ),
        (all_reduce()[:-2], "1 line of the module could not be read, the first: the text ends inside of main"),
        (
            entry("ROOT %r = f32[2,4]{1,0}"),
            "1 line of the module could not be read, the first: ROOT %r = f32[2,4]{1,0}",
        ),
        (
            entry("ROOT %r = f32[2,4]{1,0} 7(%A)"),
            "1 line of the module could not be read, the first: ROOT %r = f32[2,4]{1,0} 7(%A)",
        ),
        (
            entry(f"%r = f32[2] all-reduce(%A), {OVER_X}, {BY}", "%r = f32[2] negate(%A)"),
            "1 line of the module could not be read, the first: %r = f32[2] negate(%A)",
        ),
        (
            entry('ROOT %g = f32[2,4] custom-call(%A), custom_call_target="NcclAllGather"'),
            "g calls NcclAllGather, which may communicate",
        ),
        (
            entry("ROOT %g = f32[2,4] custom-call(%A)"),
            "g calls an unnamed target, which may communicate",
        ),
        (
            # Nothing is communicated between its start and its done.
            entry('ROOT %g = f32[2,4] custom-call(%A), custom_call_target="AsyncCollectiveStart"'),
            "g calls AsyncCollectiveStart, which may communicate",
        ),
        (
            entry("ROOT %g = f32[2,4] all-gather-v2(%A)"),
            "g (all-gather-v2) seems to communicate, in an unknown way",
        ),
        (
            entry("ROOT %g = f32[2,4] multicast(%A), channel_id=1, replica_groups=[1,8]<=[8]"),
            "g (multicast) seems to communicate, in an unknown way",
        ),
        (
            entry("ROOT %g = f32[2,4] transmit-done(%A)"),
            "g (transmit-done) seems to communicate, in an unknown way",
        ),
        (
            entry("ROOT %g = f32[2,4] fusion(%A), kind=kLoop, calls=%lost"),
            "g calls lost, which the module does not have",
        ),
        (
            all_reduce().replace(
                ADD,
                ADD + "%alone (p: f32[2]) -> f32[2] {\n  %p = f32[2] parameter(0)\n"
                f"  ROOT %q = f32[2] all-reduce(%p), {OVER_X}\n}}\n\n",
            ),
            "q is in alone, which nothing calls",
        ),
    ],
)
def test_a_possibly_missing_collective_is_reported(experiment, text, reason):
    module = collectives_in(text, experiment)
    assert module.unknown == [reason]
    assert module.missing == [reason]


@pytest.mark.parametrize(
    ("text", "reason", "lacking"),
    [
        (
            all_reduce("replica_groups=@everyone"),
            "which devices r connects could not be read: @everyone",
            {"axes", "groups", "bytes_sent"},
        ),
        (
            all_reduce("channel_id=1"),
            "which devices r connects could not be read: None",
            {"axes", "groups", "bytes_sent"},
        ),
        (
            all_reduce("source_target_pairs={{0,1},{2,3,4}}"),
            "which devices r connects could not be read: {{0,1},{2,3,4}}",
            {"axes", "groups", "bytes_sent"},
        ),
        (
            all_reduce("source_target_pairs={{0,1,2},{3,4}}"),
            "which devices r connects could not be read: {{0,1,2},{3,4}}",
            {"axes", "groups", "bytes_sent"},
        ),
        (
            all_reduce("replica_groups={{0}}"),
            "the groups of r hold 1 devices, the mesh has 8: {{0}}",
            {"axes", "bytes_sent"},
        ),
        (
            all_reduce().replace("num_partitions=8", "replica_count=8"),
            "the module has 8 replicas; groups are read as if it had one",
            set(),
        ),
        (
            all_reduce().replace("f32[2,4]{1,0} all-reduce", "f9[2,4]{1,0} all-reduce"),
            "the size of a f9 in r is not known",
            {"bytes", "bytes_out"},
        ),
        (
            all_reduce().replace("%A = f32[2,4]{1,0}", "%A = f9[2,4]{1,0}"),
            "the size of a f9 in r is not known",
            {"bytes", "bytes_in", "bytes_sent"},
        ),
        (
            all_reduce().replace("all-reduce(%A)", "all-reduce(%Z)"),
            "an operand of r is not in main",
            {"bytes", "bytes_in", "bytes_sent"},
        ),
        (
            all_reduce(by="").replace(', metadata={op_name="A"}', ""),
            "r comes from no line of the experiment",
            {"node"},
        ),
        (
            entry(f"ROOT %r = f32[2,4] all-reduce-start(%A), {OVER_X}, {BY}"),
            "r has no matching done instruction",
            {"bytes", "bytes_out", "overlapped"},
        ),
    ],
)
def test_an_unknown_fact_of_a_collective_is_null_and_reported(experiment, text, reason, lacking):
    module = collectives_in(text, experiment)
    assert module.unknown == [reason]
    assert module.missing == []
    (only,) = module.entries
    assert {key for key, value in vars(only).items() if value is None} - {"between", "of", "at", "why"} == lacking


# Custom calls.


@pytest.mark.parametrize(
    "target",
    [
        "lapack_sgetrf_ffi", "TopK", "__onednn$matmul", "__cublas$lt$matmul$f8", "__cudnn$convForward",
        "__cub$DeviceRadixSort", "__cusolver$cholesky", "cusolver_getrf_ffi", "hipsolver_syevd_ffi",
        "cu_threefry2x32_ffi", "hip_lu_pivots_to_permutation", "Sharding", "SPMDFullToShardShape",
        "xla.sdy.FuncResultSharding", "annotate_device_placement", "MoveToHost", "PadToStatic", "X64Combine",
        "LuRealDecompositionBlock", "EighTpu", "AllocateBuffer", "AssumeGatherIndicesInBound",
        "te_fused_attn_forward_ffi", "te_norm_backward_ffi",
    ],
)  # fmt: skip
def test_local_custom_calls_are_not_reported(experiment, target):
    module = collectives_in(entry(f'ROOT %g = f32[2,4] custom-call(%A), custom_call_target="{target}"'), experiment)
    assert (module.entries, module.unknown, module.missing) == ([], [], [])


@pytest.mark.parametrize(
    "target",
    [
        "NcclAllReduce", "__nccl_all_reduce", "rccl_all_gather", "mpi_allreduce_ffi", "nvshmem_put", "ucx_send",
        "cusolvermp_potrf_ffi", "cufftmp_exec", "tpu_custom_call", "mosaic_gpu_v2", "triton_kernel_call",
        "MegaScaleCollectiveInputStart", "BarrierStart", "xla_ffi_python_cpu_callback", "my_lapack_sgetrf_ffi",
        "lapack_sgetrf_ffi_and_more", "TopKAcrossDevices", "sharding", "te_gemm_ffi", "",
    ],
)  # fmt: skip
def test_custom_calls_that_may_communicate_are_reported(experiment, target):
    module = collectives_in(entry(f'ROOT %g = f32[2,4] custom-call(%A), custom_call_target="{target}"'), experiment)
    assert module.entries == []
    reason = f"g calls {target or 'an unnamed target'}, which may communicate"
    assert module.missing == [reason]


def test_all_that_jax_registers_for_cpus_stays_on_its_device():
    names = [name for registered in lapack.registrations().values() for name, *_ in registered]
    assert len(names) > 50
    assert [name for name in names if not opcodes.local(name)] == []


def test_a_call_inside_of_a_fusion_is_found(experiment):
    fused = (
        "%fused (p: f32[2,4]) -> f32[2,4] {\n  %p = f32[2,4]{1,0} parameter(0)\n"
        '  ROOT %c = f32[2,4]{1,0} custom-call(%p), custom_call_target="NcclAllReduce"\n}\n\n'
    )
    text = entry("ROOT %f = f32[2,4]{1,0} fusion(%A), kind=kCustom, calls=%fused").replace(ADD, ADD + fused)
    assert collectives_in(text, experiment).missing == ["c calls NcclAllReduce, which may communicate"]


@pytest.mark.parametrize(
    ("target", "overlapped"),
    [("__cublas$gemm", ["D"]), ("Cholesky", ["D"]), ("AllocateBuffer", []), ("X64Combine", []), ("NcclSend", [])],
)
@pytest.mark.parametrize("fused", [False, True])
def test_only_computing_instructions_overlap_with_communication(experiment, target, overlapped, fused):
    by = 'metadata={op_name="jit(test)/shard_map/D/dot_general"}'
    call = f'f32[2,4]{{1,0}} custom-call(%A), custom_call_target="{target}", {by}'
    inside = f"%fused (A: f32[2,4]) -> f32[2,4] {{\n  %A = f32[2,4]{{1,0}} parameter(0)\n  ROOT %c = {call}\n}}\n\n"
    text = entry(
        f"%p = (f32[2,4], f32[2,4]) collective-permute-start(%A), source_target_pairs={{{{0,2}}}}, {BY}",
        "%m = f32[2,4]{1,0} fusion(%A), kind=kCustom, calls=%fused" if fused else f"%m = {call}",
        "%d = f32[2,4] collective-permute-done(%p)",
        "ROOT %r = f32[2,4] add(%m, %d)",
    )
    (only,) = collectives_in(text.replace(ADD, ADD + inside) if fused else text, experiment).entries
    assert only.overlapped == overlapped


@pytest.mark.parametrize("operation", ["copy", "slice", "dynamic-slice", "dynamic-update-slice"])
def test_asynchronous_copies_within_a_device_are_not_collectives(experiment, operation):
    # As the TPU compiler prefetches values into fast memory during a permute.
    text = entry(
        f"%p = (f32[2,4], f32[2,4]) collective-permute-start(%A), source_target_pairs={{{{0,1}}}}, {BY}",
        f"%s = ((f32[2,4]), f32[2,4], s32[]) {operation}-start(%A)",
        f"%t = f32[2,4] {operation}-done(%s)",
        "%d = f32[2,4] collective-permute-done(%p)",
        "ROOT %r = f32[2,4] add(%t, %d)",
    )
    module = collectives_in(text, experiment)
    assert [(collective.kind, collective.overlapped) for collective in module.entries] == [("collective-permute", [])]
    assert module.unknown == []


def test_a_partly_readable_collective_is_not_dropped(experiment):
    (only,) = collectives_in(all_reduce("replica_groups=@everyone", by=""), experiment).entries
    assert only.kind == "all-reduce"
    assert only.axes is None
    assert only.groups is None
    assert only.bytes == 32
    # It moves its operand.
    assert only.node == "A"
    assert only.between == Between(source=["A"], to=[])


def test_a_collective_without_metadata_belongs_to_the_line_that_reads_it(experiment):
    text = entry(
        "%g = f32[8,4]{1,0} all-gather(%A), replica_groups={{0,2,4,6},{1,3,5,7}}, dimensions={0}",
        'ROOT %n = f32[8,4]{1,0} multiply(%g, %g), metadata={op_name="jit(test)/shard_map/D/mul"}',
    )
    (gathered,) = collectives_in(text, experiment).entries
    assert gathered.node == "D"
    assert gathered.inserted
    assert gathered.between == Between(source=["A"], to=["D"])


def test_an_element_without_a_number_is_a_line_that_could_not_be_read(experiment):
    merged = f"%t = (f32[2,4], f32[2,4]) all-reduce(%A, %A), {OVER_X}"
    result = collectives_in(entry(merged, "ROOT %g = f32[2,4] get-tuple-element(%t), index=one"), experiment)
    assert len(result.entries) == 1
    assert result.missing == [
        "1 line of the module could not be read, the first: ROOT %g = f32[2,4] get-tuple-element(%t), index=one"
    ]


def test_a_module_that_breaks_the_reader_is_reported(experiment, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(hlo, "_instruction", lambda *_: int("one"))
    (tmp_path / "hlo_shard_map.txt").write_text(entry("ROOT %n = f32[2,4] negate(%A)"))
    reason = "the module could not be read: ValueError: invalid literal for int() with base 10: 'one'"
    assert gather(experiment, Program.SHARD_MAP, tmp_path, None).evidence == Evidence(
        collectives=None, collectives_unknown=[reason], collectives_missing=[reason], compiler_warnings=None
    )


def test_a_backend_that_shows_no_module(experiment, tmp_path: Path):
    (tmp_path / "hlo_shard_map.txt").write_text("")
    evidence = gather(experiment, Program.SHARD_MAP, tmp_path, "").evidence
    assert evidence.collectives is None
    assert evidence.collectives_unknown == ["the backend does not show the compiled module"]
    assert evidence.collectives_missing == ["the backend does not show the compiled module"]
    assert evidence.compiler_warnings == []


@pytest.mark.parametrize(
    ("kept", "kind", "bytes_out"),
    [
        ("ROOT %s = f32[2,1]{1,0} dynamic-slice(%r, %i, %i), dynamic_slice_sizes={2,1}", "reduce-scatter", 8),
        (
            "%s = f32[2,1]{1,0} dynamic-slice(%r, %i, %i), dynamic_slice_sizes={2,1}\n"
            "  ROOT %b = f32[2]{0} bitcast(%s)",
            "reduce-scatter",
            8,
        ),
        ("ROOT %s = f32[2,4]{1,0} negate(%r)", "all-reduce", 32),
    ],
)
def test_a_fusion_that_keeps_a_slice_of_a_sum_scatters(experiment, kept, kind, bytes_out):
    shape = "f32[2]{0}" if "bitcast" in kept else "f32[2,1]{1,0}" if "slice" in kept else "f32[2,4]{1,0}"
    fused = (
        "%fused (p: f32[2,4]) -> f32[2,1] {\n  %p = f32[2,4]{1,0} parameter(0)\n  %i = s32[] constant(0)\n"
        f"  %r = f32[2,4]{{1,0}} all-reduce(%p), channel_id=1, {OVER_X}, {BY}\n  {kept}\n}}\n\n"
    )
    text = entry(f"ROOT %f = {shape} fusion(%A), kind=kCustom, calls=%fused").replace(ADD, ADD + fused)
    (only,) = collectives_in(text, experiment).entries
    assert (only.kind, only.bytes_in, only.bytes_out) == (kind, 32, bytes_out)


def test_sums_that_a_fusion_reduces_together_are_scattered(experiment):
    """As TPU's compiler combines the gradients of two weights, each of which is sharded."""
    fused = (
        "%fused (p: f32[2,4], q: f32[2,4]) -> (f32[2,1], f32[2,1]) {\n  %p = f32[2,4]{1,0} parameter(0)\n"
        "  %q = f32[2,4]{1,0} parameter(1)\n"
        "  %i = s32[] constant(0)\n"
        f"  %r = (f32[2,4]{{1,0}}, f32[2,4]{{1,0}}) all-reduce(%p, %q), channel_id=1, {OVER_X}, {BY}\n"
        "  %a = f32[2,4]{1,0} get-tuple-element(%r), index=0\n  %b = f32[2,4]{1,0} get-tuple-element(%r), index=1\n"
        "  %s = f32[2,1]{1,0} dynamic-slice(%a, %i, %i), dynamic_slice_sizes={2,1}\n"
        "  %t = f32[2,1]{1,0} dynamic-slice(%b, %i, %i), dynamic_slice_sizes={2,1}\n"
        "  ROOT %both = (f32[2,1]{1,0}, f32[2,1]{1,0}) tuple(%s, %t)\n}\n\n"
    )
    text = entry(
        "%n = f32[2,4]{1,0} negate(%A)",
        "%f = (f32[2,1]{1,0}, f32[2,1]{1,0}) fusion(%A, %n), kind=kCustom, calls=%fused",
        "ROOT %g = f32[2,1]{1,0} get-tuple-element(%f), index=0",
    )
    for whole, kind in ((fused, "reduce-scatter"), (fused.replace("tuple(%s, %t)", "tuple(%s, %b)"), "all-reduce")):
        (only,) = collectives_in(text.replace(ADD, ADD + whole), experiment).entries
        assert (only.kind, only.bytes_in) == (kind, 64)


def test_a_send_and_its_receive_have_the_pairs_of_devices(experiment):
    pairs = 'frontend_attributes={_xla_send_recv_source_target_pairs="{{0,2},{2,4}}"}'
    text = entry(
        "%token = token[] after-all()",
        f"%recv = (f32[2,4]{{1,0}}, u32[], token[]) recv(%token), channel_id=1, {pairs}, {BY}",
        f"%send = (f32[2,4]{{1,0}}, u32[], token[]) send(%A, %token), channel_id=1, {pairs}, {BY}",
        "%recv-done = (f32[2,4]{1,0}, token[]) recv-done(%recv), channel_id=1",
        "%send-done = token[] send-done(%send), channel_id=1",
        "ROOT %got = f32[2,4]{1,0} get-tuple-element(%recv-done), index=0",
    )
    module = collectives_in(text, experiment)
    assert [(o.kind, o.axes, o.groups, o.bytes_in, o.bytes_out) for o in module.entries] == [
        ("recv", ["x"], [[0, 2], [2, 4]], 0, 32),
        ("send", ["x"], [[0, 2], [2, 4]], 32, 0),
    ]
    assert module.unknown == []


@pytest.mark.parametrize("kind", ["ragged-all-to-all", "collective-broadcast"])
def test_rare_kinds_of_collectives_are_read_with_their_axes(experiment, kind):
    line = f"ROOT %r = f32[2,4]{{1,0}} {kind}(%A), channel_id=1, replica_groups=[4,2]<=[8], {BY}"
    (only,) = collectives_in(entry(line), experiment).entries
    assert (only.kind, only.axes, only.bytes) == (kind, ["y"], 32)


def test_on_many_devices_axes_replace_the_groups():
    many = harness.experiment(EXPERIMENT.replace("[8, 8]", "[8, 64]"), mesh={"axes": ["x", "y"], "shape": [4, 32]})
    around = ",".join(f"{{{a},{(a + 32) % 128}}}" for a in range(128))
    text = entry(
        f"%p = f32[2,1]{{1,0}} collective-permute(%A), channel_id=1, source_target_pairs={{{around}}}, {BY}",
        f"%r = f32[2,1]{{1,0}} all-reduce(%p), channel_id=2, replica_groups=[4,32]<=[128], {BY}",
        f"ROOT %q = f32[2,1]{{1,0}} all-reduce(%r), channel_id=3, replica_groups=[2,64]<=[128], {BY}",
    ).replace("num_partitions=8", "num_partitions=128")
    module = collectives_in(text, many)
    assert [(collective.axes, collective.groups is None) for collective in module.entries] == [
        (["x"], True),
        (["y"], True),
        (None, False),
    ]
    assert module.unknown == []


def test_two_thousand_collectives_are_all_found(experiment):
    lines = [
        f"%r.{i + 1} = f32[2,4]{{1,0}} all-reduce(%{'A' if i == 0 else f'r.{i}'}), {OVER_X}, {BY}" for i in range(2000)
    ]
    module = collectives_in(entry(*lines), experiment)
    assert [collective.instruction for collective in module.entries] == [f"r.{i + 1}" for i in range(2000)]
    assert module.unknown == []
