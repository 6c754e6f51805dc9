"""`ragged_all_to_all` equals JAX's other collectives on padded blocks; what XLA lacks is reported."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from runner.base.faults import InvalidExperiment
from runner.base.layout import Mesh
from runner.checks import origins
from runner.compiled.evidence import collectives as evidence
from runner.compiled.evidence import hlo
from runner.compiled.evidence.nodes import Origins
from runner.experiment.program import Program
from runner.graph.language.counterparts import collectives
from runner.graph.language.lines import expressions
from runner.link.steps import StepWork
from runner.reports.record.verdicts import SectionsVerdict
from runner.worker import lowered
from tests import harness

DEVICES, ROWS, ROOM = 4, 6, 30
LINE = Mesh(("x",), (DEVICES,))

Call = list[list[np.ndarray]]
"""The six arguments, each with an array for every device."""


@st.composite
def calls(draw: st.DrawFn, each: int) -> Call:
    """Draw a call with `each` slices between every two devices, some of them empty, at disjoint offsets."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = DEVICES * each
    sizes = rng.integers(0, 4, (DEVICES, count))
    starts = rng.integers(0, ROWS - sizes + 1)
    places = np.zeros((DEVICES, count), int)
    received = np.zeros((DEVICES, count), int)
    for to in range(DEVICES):
        slices = [(s, to * each + k) for s in range(DEVICES) for k in range(each)]
        received[to] = [sizes[s, j] for s, j in slices]
        # The remaining space is distributed in front of the slices, which are in any order.
        total = int(received[to].sum())
        sizes_here = [min(int(gap), 2) for gap in rng.integers(0, 3, len(slices))]
        at = 0
        for number in rng.permutation(len(slices)):
            gap = sizes_here[number] if at + total + sizes_here[number] <= ROOM else 0
            sender, slot = slices[number]
            places[sender, slot] = at + gap
            at += gap + int(sizes[sender, slot])
            total -= int(sizes[sender, slot])
    operand, output = rng.normal(size=(DEVICES, ROWS, 2)), rng.normal(size=(DEVICES, ROOM, 2))
    integers = [np.asarray(a, np.int32) for a in (starts, sizes, places, received)]
    return [list(a) for a in (operand.astype(np.float32), output.astype(np.float32), *integers)]


def by_dense(each: int):
    """Return the same from an `all_to_all` of blocks of the largest slice's size, and updates of single rows."""

    def device(operand: Any, output: Any, starts: Any, sizes: Any, places: Any, _: Any) -> Any:
        offsets = jax.numpy.arange(ROWS)
        blocks = operand[jax.numpy.clip(starts[:, None] + offsets, 0, ROWS - 1)]
        wanted = jax.numpy.where(offsets < sizes[:, None], places[:, None] + offsets, ROOM)
        blocks, wanted = (jax.lax.all_to_all(a, "x", 0, 0, tiled=True) for a in (blocks, wanted))
        return output.at[wanted.reshape(-1)].set(blocks.reshape(-1, 2), mode="drop")

    mesh = jax.make_mesh((DEVICES,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:DEVICES])
    mapped = jax.jit(jax.shard_map(device, mesh=mesh, in_specs=P("x"), out_specs=P("x")))

    def call(arguments: Call) -> np.ndarray:
        return np.asarray(mapped(*map(np.concatenate, arguments))).reshape(DEVICES, ROOM, 2)

    return call


DENSE = {each: by_dense(each) for each in (1, 2)}


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(sorted(DENSE)))
def test_a_ragged_all_to_all_equals_an_all_to_all_of_padded_blocks(data, each):
    arguments = data.draw(calls(each))
    ours = collectives.ragged_all_to_all(LINE, *arguments, axis_name="x")
    np.testing.assert_array_equal(np.stack(ours), DENSE[each](arguments))


def of(*values: Any) -> list[np.ndarray]:
    return [np.asarray(value) for value in values]


def test_a_ragged_all_to_all_equals_jaxs_documented_example():
    ours = collectives.ragged_all_to_all(
        Mesh(("x",), (2,)),
        of([1, 2, 2], [3, 4, 0]),
        of([0, 0, 0, 0], [0, 0, 0, 0]),
        of([0, 1], [0, 1]),
        of([1, 2], [1, 1]),
        of([0, 0], [1, 2]),
        of([1, 1], [2, 1]),
        axis_name="x",
    )
    assert [list(each) for each in ours] == [[1, 3, 0, 0], [2, 2, 4, 0]]


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_groups_are_independent(data):
    half = [argument[:2] for argument in data.draw(calls(2))]
    half[2:] = [[each[:4] for each in argument] for argument in half[2:]]
    # The received sizes are recomputed without the two omitted devices.
    half[5] = [np.concatenate([half[3][s][2 * to : 2 * to + 2] for s in range(2)]) for to in range(2)]
    alone = collectives.ragged_all_to_all(Mesh(("x",), (2,)), *half, axis_name="x")
    twice = [[argument[0], argument[0], argument[1], argument[1]] for argument in half]
    grouped = collectives.ragged_all_to_all(LINE, *twice, axis_name="x", axis_index_groups=[[0, 2], [1, 3]])
    np.testing.assert_array_equal(np.stack(grouped), np.stack([alone[0], alone[0], alone[1], alone[1]]))
    assert grouped[0] is grouped[1] or not np.shares_memory(grouped[0], twice[1][0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({3: [[1, 2], [1, 1]], 5: [[1, 1], [1, 1]]},
         "slice 1 of device 0, for device 1: send_sizes[1] is 2, and there recv_sizes[0] is 1"),
        ({2: [[0, 2], [0, 1]]}, "slice 1 of device 0, for device 1, is operand[2:4], which has 3 rows"),
        ({2: [[-1, 1], [0, 1]]}, "slice 0 of device 0, for device 0, is operand[-1:0], which has 3 rows"),
        ({4: [[0, 3], [1, 2]]}, "slice 1 of device 0, for device 1, is written to output[3:5], which has 4 rows"),
        ({4: [[0, 0], [0, 2]]},
         "slice 0 of device 1, for device 0, is written to output[0:1], where device 0 writes too"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_reported(changes, message):
    moved = [[[1, 2, 2], [3, 4, 0]], [[0] * 4, [0] * 4]]
    arguments = [*moved, [[0, 1], [0, 1]], [[1, 2], [1, 1]], [[0, 0], [1, 2]], [[1, 1], [2, 1]]]
    for at, value in changes.items():
        arguments[at] = value
    with pytest.raises(collectives.Misplaced) as error:
        collectives.ragged_all_to_all(Mesh(("x",), (2,)), *(of(*each) for each in arguments), axis_name="x")
    assert str(error.value) == message


SENT = """
mesh: {axes: [x], shape: [4]}
arrays:
  A: {shape: [16, 2], spec: [x]}
  R: {shape: [32, 2], spec: [x]}
  S: {shape: [16], dtype: int32, init: "integers(1, 2)", spec: [x]}
graph:
  sent: transpose(reshape(A, (4, 4, 2)), (1, 0, 2))
  C: reshape(concatenate([sent, reshape(R, (4, 8, 2))[:, 4:]], axis=1), (32, 2))
per_device:
  C: ragged_all_to_all(A, R, arange(4), S, axis_index('x') + zeros_like(S), S, axis_name='x')
outputs: {C: [x, null]}
"""


@pytest.mark.in_turn
def test_the_lines_are_compared_with_the_graph_if_xla_lacks_the_collective(tmp_path):
    outcome = harness.run(SENT, tmp_path)
    assert outcome.record.status == "passed"
    assert isinstance(outcome.sections, SectionsVerdict)
    assert outcome.sections.status == "passed"
    assert set(outcome.runs) == {"auto", "constraint", "explicit", "derived"}
    left = outcome.record.not_supported
    assert left["shard_map"].startswith(
        "XLA has no ragged_all_to_all for CPUs: compile it for hardware that has one, as with target=v5e_2x2; "
        "the check sections holds the lines to the graph all the same"
    )
    assert "jax.vmap has no ragged_all_to_all over the axis that it maps" in left["vmap"]


@pytest.mark.in_turn
def test_offsets_the_wrong_way_round_are_diagnosed(tmp_path_factory):
    folder = tmp_path_factory.mktemp
    text = """
mesh: {axes: [x], shape: [4]}
arrays:
  A: {shape: [16, 2], spec: [x]}
  R: {shape: [16, 2], spec: [x]}
  S: {shape: [16], dtype: int32, init: "integers(1, 2)", spec: [x]}
graph:
  d: arange(4)[:, None]
  i: arange(4)[None, :]
  C: reshape(reshape(A, (4, 4, 2))[(i - 2 * d) % 4, (i - d) % 4], (16, 2))
per_device:
  near: (axis_index('x') + arange(4)) % 4
  far: (axis_index('x') + 2 * arange(4)) % 4
  C: ragged_all_to_all(A, R, near, S, far, S, axis_name='x')
outputs: {C: [x, null]}
"""
    assert harness.run(text, folder("right")).record.status == "passed"
    outcome = harness.run(text.replace("near, S, far", "far, S, near"), folder("wrong"))
    assert outcome.sections is not None
    assert outcome.sections.diagnosis[0] == (
        "per_device.C: input_offsets and output_offsets of ragged_all_to_all(A, R, far, S, near, S, axis_name='x') "
        "are swapped: exchanged, it equals the graph"
    )


def test_without_a_graph_the_lines_are_refused_on_cpus():
    lines = SENT[: SENT.index("graph:")] + SENT[SENT.index("per_device:") :]
    with pytest.raises(InvalidExperiment, match=r"^per_device: XLA has no ragged_all_to_all for CPUs.*=v5e_2x2$"):
        harness.types(lines)


def test_values_that_do_not_fit_are_a_message_about_the_line(tmp_path):
    text = SENT.replace("axis_index('x') + zeros_like(S), S, axis_name", "arange(4) * 3, S, axis_name")
    message = """per_device.C
  slice 3 of device 0, for device 3, is written to output[9:10], which has 8 rows
    ragged_all_to_all(A, R, arange(4), S, arange(4) * 3, S, axis_name='x')
    ^^^"""
    with pytest.raises(AssertionError) as error:
        harness.run(text, tmp_path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("A, R, S, S, S, S, 'x'", "too many positional arguments"),
        ("A, R[:, :1], S, S, S, S, axis_name='x'",
         "ragged_all_to_all moves rows of float32[4, 2] into float32[8, 1], of another shape or dtype"),
        ("A, R, S[:3], S, S, S, axis_name='x'",
         "takes offsets and sizes of one length, a multiple of the 4 devices, not [3], [4], [4], [4]"),
        ("A, R, S * 1.0, S, S, S, axis_name='x'", "that are integers, not float32, int32, int32, int32"),
        ("A, zeros((8, 2)), S, S, S, S, axis_name='x'",
         "JAX types it like the operand `output`, which is the same there: cast that first, "
         "pcast(…, 'x', to='varying')"),
        ("A, R, S, S, S, 1, axis_name='x'", "ragged_all_to_all takes arrays"),
        ("A, R, S, S, S, S, axis_name='x', axis_index_groups=[[0, 1, 2], [3]]",
         "takes offsets and sizes of one length, a multiple of the 3 devices, not [4], [4], [4], [4]"),
    ],
)  # fmt: skip
def test_invalid_calls_are_refused(call, message):
    start = SENT.index("ragged_all_to_all(")
    text = SENT[:start] + f"ragged_all_to_all({call})" + SENT[SENT.index("\n", start) :]
    with pytest.raises(InvalidExperiment) as error:
        harness.types(text.replace("C: ragged", 'C: "ragged').replace(")\noutputs", ')"\noutputs'))
    assert message in str(error.value)


def test_the_trace_shows_which_rows_are_kept(tmp_path):
    experiment = harness.experiment(SENT)
    ((line, expression),) = expressions(experiment.per_device)
    rng = np.random.default_rng(0)
    values = {
        "A": [rng.normal(size=(4, 2)) for _ in range(4)],
        "R": [rng.normal(size=(8, 2)) for _ in range(4)],
        "S": [np.ones(4, np.int32)] * 4,
    }
    blocks = origins.of_collective(experiment, line, expression.term, "ragged_all_to_all", "A", values)
    assert blocks is not None
    rows = {block.ranges[0]: block.positions for block in blocks[1]}
    assert rows == {(0, 1): (0,), (1, 2): (1,), (2, 3): (2,), (3, 4): (3,), (4, 8): ()}


def test_the_trace_has_no_program_either():
    outcome = harness.types(SENT)
    assert Program.SHARD_MAP in outcome.unsupported
    assert StepWork.TRACE not in outcome.unsupported


COMPILED = """HloModule jit_f, is_scheduled=true, num_partitions=4

ENTRY %main (a: f32[4,2], r: f32[8,2], s: s32[4]) -> f32[8,2] {
  %a = f32[4,2] parameter(0)
  %r = f32[8,2] parameter(1)
  %s = s32[4] parameter(2)
  ROOT %ragged = f32[8,2] ragged-all-to-all(%a, %r, %s, %s, %s, %s), channel_id=1, replica_groups={{0,1,2,3}}, \
metadata={op_name="jit(f)/shard_map/C/ragged_all_to_all"}
}
"""


def test_the_bytes_of_a_compiled_ragged_all_to_all_are_unknown():
    experiment = harness.experiment(SENT)
    reading = evidence.read(hlo.read(COMPILED), Origins(experiment, "per_device"), experiment.mesh)
    (collective,) = reading.entries
    assert (collective.kind, collective.node, collective.axes, collective.inserted) == (
        "ragged-all-to-all",
        "C",
        ["x"],
        False,
    )
    # The bytes are those of the moved values, without the offsets and sizes.
    assert (collective.bytes_in, collective.bytes_out, collective.bytes_sent) == (32, 64, None)
    assert reading.missing == []


def test_a_lowered_ragged_all_to_all_is_read_as_its_kind():
    experiment = harness.experiment(SENT)
    mesh = jax.make_mesh((DEVICES,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:DEVICES])

    def device(a: Any, r: Any, s: Any) -> Any:
        with jax.named_scope("C"):
            return jax.lax.ragged_all_to_all(a, r, s, s, s, s, axis_name="x")

    mapped = jax.shard_map(device, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    given = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in (((16, 2), "f4"), ((32, 2), "f4"), ((16,), "i4"))]
    module = jax.jit(mapped).lower(*given).compiler_ir("stablehlo")
    (collective,) = lowered.asked(module, experiment.mesh, lambda at: (at.op_name, False))
    assert (collective.kind, collective.axes, collective.count, collective.alone) == (
        "ragged-all-to-all",
        ("x",),
        1,
        False,
    )
    assert (collective.bytes_in, collective.bytes_out, collective.bytes_sent) == (32, 64, None)
