"""A trace shows every value on every device in the tutorials' format, and names the first that differs."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.app.flow import run
from runner.base.faults import InvalidExperiment
from runner.checks.reference import interpret
from runner.checks.trace import take
from runner.experiment import data, value_names
from runner.experiment.config.sources import Sources
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.graph.language import operations
from runner.link.steps import Step, StepWork
from runner.reports.record import record
from runner.reports.record.model import FirstDifference, Record, TracedCollective, TracedValue
from runner.reports.show import trace
from tests import harness
from tests.command import EXPERIMENTS, REFUSED, ROOT, alone, run_command
from tests.test_target import TYPES, asked, described, hear

LINE = {"mesh": {"axes": ["i"], "shape": [4]}}


def configured(text: str, **changes: Any) -> dict[str, Any]:
    """Return the resolved configuration of a YAML text; its name and its mesh (2 by 2) may be left out."""
    given = {"program": "shard_map", "trace": True, **harness.loaded(text), **changes}
    given.pop("defaults", None)
    return harness.config(given)


def ran(text: str, folder: Path, **changes: Any) -> Any:
    """Return the record of a run that takes a trace."""
    return run.run(configured(text, **changes), folder, Sources(), workers=harness.WORKERS)


def ours(name: str) -> str:
    return (ROOT / "conf" / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")


def printed(run_record: Any) -> str:
    return trace.plain(run_record.trace, run_record.mesh.axes, run_record.target.platform)


def nodes(run_record: Any) -> dict[str, Any]:
    return {node.name: node for node in run_record.trace.nodes}


def names(run_record: Record) -> list[str]:
    return list(nodes(run_record))


def replace_oracle(monkeypatch: pytest.MonkeyPatch, operation: str, wrong: Any) -> None:
    row = dataclasses.replace(operations.OPERATIONS[operation], counterpart=wrong)
    monkeypatch.setitem(operations.OPERATIONS, operation, row)


ALL_GATHER = """\
y = all_gather(x, 'i', tiled=True)
over i, a device sends 12 B, each block named after the device that it comes from
            before     after
            ┌───┐     ┌───┬───┬───┬───┐
CPU 0  i=0  │ 0 │  →  │ 0 │ 1 │ 2 │ 3 │
            ├───┤     ├───┼───┼───┼───┤
CPU 1  i=1  │ 1 │  →  │ 0 │ 1 │ 2 │ 3 │
            ├───┤     ├───┼───┼───┼───┤
CPU 2  i=2  │ 2 │  →  │ 0 │ 1 │ 2 │ 3 │
            ├───┤     ├───┼───┼───┼───┤
CPU 3  i=3  │ 3 │  →  │ 0 │ 1 │ 2 │ 3 │
            └───┘     └───┴───┴───┴───┘
BEFORE: On CPU_0 at mesh coordinates (i,) = (0,):
[3]

On CPU_1 at mesh coordinates (i,) = (1,):
[9]

On CPU_2 at mesh coordinates (i,) = (2,):
[5]

On CPU_3 at mesh coordinates (i,) = (3,):
[2]

AFTER: On CPU_0 at mesh coordinates (i,) = (0,):
[3 9 5 2]

On CPU_1 at mesh coordinates (i,) = (1,):
[3 9 5 2]

On CPU_2 at mesh coordinates (i,) = (2,):
[3 9 5 2]

On CPU_3 at mesh coordinates (i,) = (3,):
[3 9 5 2]
"""

DIGITS = [[3, 1, 4, 1], [5, 9, 2, 6], [5, 3, 5, 8], [9, 7, 1, 2]]

TUTORIAL = {
    "vector_all_gather": ([[3], [9], [5], [2]], [[3, 9, 5, 2]] * 4),
    "vector_psum": (DIGITS, [[22, 20, 12, 17]] * 4),
    "vector_psum_scatter": (DIGITS, [[22], [20], [12], [17]]),
    "vector_all_to_all": (DIGITS, [[3, 5, 5, 9], [1, 9, 3, 7], [4, 2, 5, 1], [1, 6, 8, 2]]),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", TUTORIAL)
def test_the_tutorials_collectives_before_and_after(tmp_path: Path, name: str) -> None:
    run_record = ran(ours(name), tmp_path, **LINE)
    before, after = TUTORIAL[name]
    assert run_record.status == "passed"
    assert run_record.trace.taken_from == "shard_map"
    assert run_record.trace.same_outputs is True
    node = nodes(run_record)["y"]
    assert node.collective == TracedCollective(operation=name.removeprefix("vector_"), axes=["i"])
    assert node.before == TracedValue(name="x", shape=[len(before[0])], dtype="int32", values=before)
    assert node.values == after
    assert node.agrees is True
    text = printed(run_record)
    for when, values in (("BEFORE", before), ("AFTER", after)):
        first, second, *_ = (np.array(value) for value in values)
        on = "at mesh coordinates (i,) ="
        assert f"{when}: On CPU_0 {on} (0,):\n{first}\n\nOn CPU_1 {on} (1,):\n{second}\n" in text
    if name == "vector_all_gather":
        assert text.split("\n\n", 1)[1] == ALL_GATHER
    again = record.read(tmp_path)
    assert printed(again) == text
    assert again.trace == run_record.trace


def test_the_command_prints_the_trace_as_plain_text(tmp_path: Path) -> None:
    result = run_command(
        "+experiment=vector_all_gather", "program=shard_map", "trace=true", f"hydra.run.dir={tmp_path}"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert ALL_GATHER in result.stdout
    assert "\x1b" not in result.stdout


RINGS = """
arrays: {A: {shape: [8], init: "arange(8)", spec: [x]}}
per_device:
  total: A * 1
  ring:
    repeat: 2
    carry: {sent: A, sum: total * 1}
    body:
      sent: ppermute(sent, 'x', shift=1)
      twice: {repeat: 2, index: j, carry: {v: sent}, body: {v: v + i * 10 + j}}
      sum: sum + twice.v
    unroll: UNROLL
  B: psum(ring.sum + ring.sent * 2, 'x') + all_gather(psum(A, 'y'), 'x', tiled=True)[0]
outputs: {B: []}
"""


@pytest.mark.parametrize("unroll", ["true", "false"])
def test_every_step_of_a_loop_and_every_collective_inside_an_expression(tmp_path: Path, unroll: str) -> None:
    run_record = ran(RINGS.replace("UNROLL", unroll), tmp_path, check_vma=False)
    assert run_record.status == "passed", run_record.error
    assert names(run_record) == [
        "total",
        "ring/carry/sum",
        *(f"ring[{i}].{name}" for i in (0, 1) for name in ("sent", "twice[0].v", "twice[1].v", "sum")),
        "B/psum#0/before",
        "B/psum#0",
        "B/psum#1",
        "B/all_gather#0",
        "B",
    ]
    shown = nodes(run_record)
    assert shown["ring[0].sent"].before.name == "A"
    assert shown["ring[1].sent"].before.name == "ring[0].sent"
    assert shown["ring[0].sent"].values == [[4, 5, 6, 7]] * 2 + [[0, 1, 2, 3]] * 2
    # Device 0 in step 1, with its own A back: v = A + 10 + 0 + 10 + 1.
    assert shown["ring[1].twice[1].v"].values[0] == [21, 22, 23, 24]
    assert shown["B/psum#0"].expression == "psum(ring.sum + ring.sent * 2, 'x')"
    assert shown["B/psum#0/before"].expression == "ring.sum + ring.sent * 2"
    assert shown["B/all_gather#0"].before.name == "B/psum#1"
    assert shown["B"].collective is None
    assert all(node.agrees for node in shown.values())
    assert run_record.trace.same_outputs is True
    assert run_record.trace.steps_one_by_one == ([] if unroll == "true" else ["ring"])
    assert ("the steps of ring ran one by one" in printed(run_record)) == (unroll == "false")
    text = printed(run_record)
    assert "B/psum#0/before = " not in text
    head, values = text.split("B/psum#0 = psum(ring.sum + ring.sent * 2, 'x')\n")[1].split("BEFORE: ", 1)
    assert "│ 0+2 │" in head
    assert values.startswith("On CPU_0 at mesh coordinates (x, y) = (0, 0):")


def test_a_bug_in_the_interpreter_is_traced_to_the_first_value_that_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_oracle(monkeypatch, "psum", lambda mesh, x, axis_name, **_: [2 * value for value in x])
    run_record = ran(
        """
arrays: {A: {shape: [4], init: [1, 2, 3, 4], spec: [x]}}
graph: {C: "2 * sum(A) + 1"}
per_device: {local: sum(A), C: "1 + 2 * psum(local, 'x')"}
outputs: {C: []}
""",
        tmp_path,
        program="all",
    )
    sentence = (
        "the first value that differs between JAX and the SPMD interpreter is C/psum#0 = psum(local, 'x'), "
        "on devices 0-3, by at most 4"
    )
    first = run_record.trace.first_difference
    assert first == FirstDifference(
        node="C/psum#0",
        expression="psum(local, 'x')",
        devices=[0, 1, 2, 3],
        max_abs_error=4.0,
        text=sentence,
    )
    assert [(name, node.agrees) for name, node in nodes(run_record).items()] == [
        ("local", True),
        ("C/psum#0", False),
        ("C", False),
    ]
    assert nodes(run_record)["C/psum#0"].expected == [6.0, 6.0, 14.0, 14.0]
    for program in ("shard_map", "vmap"):
        assert run_record.programs[program].checks.value.diagnosis == [
            "JAX computes what graph says; only the SPMD interpreter differs: the interpreter is wrong",
            sentence,
        ]
    assert run_record.programs["auto"].status == "passed"
    assert "by at most 4: the first value that does\nover " in printed(run_record)
    assert "SPMD INTERPRETER: On CPU_0 at mesh coordinates (x, y) = (0, 0):\n6.0\n" in printed(run_record)


def test_the_step_of_a_loop_that_differs_is_named_although_no_output_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_oracle(monkeypatch, "square", lambda x: np.where(x > 3, x + 1, x * x))
    run_record = ran(
        """
arrays: {A: {shape: [4], init: "full(2)", spec: [x]}}
per_device:
  r: {repeat: 3, carry: {v: A}, body: {v: square(v)}}
  C: A + 1
outputs: {C: [x]}
""",
        tmp_path,
    )
    assert run_record.status == "passed"
    assert run_record.trace.first_difference.node == "r[1].v"
    assert run_record.warnings[-1] == run_record.trace.first_difference.text
    assert run_record.warnings[-1].startswith(
        "the first value that differs between JAX and the SPMD interpreter is r[1].v = square(v), on devices 0-3"
    )


def test_large_values_are_compared_but_neither_recorded_nor_printed(tmp_path: Path) -> None:
    run_record = ran(
        """
arrays: {A: {shape: [40, 40], spec: [x]}}
per_device: {s: "sum(A)", m: "A[:10, :20]", C: "psum(A, 'x')"}
outputs: {C: []}
""",
        tmp_path,
    )
    shown = nodes(run_record)
    assert shown["C"].values is None
    assert shown["C"].before.values is None
    assert shown["C"].agrees is True
    assert shown["C"].max_abs_error > 0
    assert np.shape(shown["m"].values) == (4, 10, 20)
    assert "BEFORE: float32[20, 40] on each device: 800 elements, too many to print\n" in printed(run_record)
    assert "float32[10, 20] on each device: 200 elements, too many to print; they are in the record\n" in printed(
        run_record
    )


def test_a_trace_that_would_be_too_large_is_not_taken(tmp_path: Path) -> None:
    text = """
arrays: {A: {shape: [1024, 512], init: "linspace(0, 1)", spec: [x]}}
per_device: {B: A * 2, C: B + 1}
outputs: {C: [x]}
"""
    run_record = ran(text, tmp_path)
    assert run_record.status == "passed"
    assert run_record.trace.taken_from is None
    assert run_record.trace.nodes == []
    reason = "its values have 2097152 elements on all devices together; a trace holds at most 1000000"
    assert run_record.trace.reason == reason
    assert run_record.warnings == [f"there is no trace: {reason}"]
    assert printed(run_record) == f"no trace: {reason}\n"
    assert not (tmp_path / "program_trace.py").exists()


@pytest.mark.in_turn
def test_the_steps_of_loops_with_too_many_of_them_are_left_out(tmp_path: Path) -> None:
    run_record = ran(
        """
arrays: {A: {shape: [4], spec: [x]}}
per_device:
  r: {repeat: 400, carry: {v: A, w: "psum(A, 'x') * 1"}, body: {v: v + i, u: v * 2, w: w + 1}, unroll: false}
  C: psum(r.v, 'x') + r.w
outputs: {C: []}
""",
        tmp_path,
    )
    assert run_record.status == "passed"
    assert names(run_record) == ["r.v", "r.w", "C/psum#0", "C"]
    assert nodes(run_record)["r.v"].expression == "after 400 steps"
    assert nodes(run_record)["C/psum#0"].before.name == "r.v"
    left_out = "the steps of r: with them the trace would have more than 500 values"
    assert run_record.trace.left_out == [left_out]
    assert f"not in the trace: {left_out}\n" in printed(run_record)


def test_values_of_every_kind(tmp_path: Path) -> None:
    run_record = ran(
        """
arrays:
  A: {shape: [4], init: [1, 2, 3, 4], spec: [x]}
  Z: {shape: [2], init: "full(1j)", dtype: complex64}
  H: {shape: [2], init: [0, 1], dtype: bfloat16}
per_device:
  k: fold_in(key(0), axis_index('x'))
  n: axis_size('x')
  two: psum(1, 'y')
  both: divmod(A, 2)
  z: psum(Z, 'y')
  h: 1 / H
  big: A > 2
  C: both[0] + n
outputs: {C: [x]}
""",
        tmp_path,
    )
    assert run_record.status == "passed"
    shown = nodes(run_record)
    assert shown["k"].dtype == "uint32"
    assert shown["k"].shape == [2]
    assert shown["n"].values == [2] * 4
    assert shown["two"].before is None
    assert shown["two"].values == [2] * 4
    assert shown["z"].values == [[2j, 2j]] * 4
    assert shown["h"].values == [[np.inf, 1.0]] * 4
    assert shown["big"].values[2] == [True, True]
    assert all(node.agrees for node in shown.values())
    assert run_record.trace.left_out == ["both: it is not an array"]
    assert printed(record.read(tmp_path)) == printed(run_record)


def test_only_the_first_sixteen_devices_are_printed(tmp_path: Path) -> None:
    text = """
mesh: {axes: [x], shape: [18]}
arrays: {A: {shape: [18], spec: [x]}}
per_device: {C: A * 2}
outputs: {C: [x]}
"""
    run_record = ran(text, tmp_path)
    assert len(nodes(run_record)["C"].values) == 18
    assert "On CPU_15" in printed(run_record)
    assert "On CPU_16" not in printed(run_record)
    assert printed(run_record).endswith("\n\nand on 2 more devices, which are in the record\n")


@pytest.mark.in_turn
def test_the_program_of_the_trace_runs_alone(tmp_path: Path) -> None:
    ran(ours("vector_psum"), tmp_path, **LINE)
    output = alone(tmp_path, "program_trace.py")
    assert "y:\nOn CPU_0 at mesh coordinates (i,) = (0,):\n[22 20 12 17]\n" in output
    assert "x:\nOn CPU_0 at mesh coordinates (i,) = (0,):\n[3 1 4 1]\n" in output


def test_without_shard_map_the_traced_values_are_the_interpreters(tmp_path: Path) -> None:
    run_record = ran(ours("vector_psum_scatter"), tmp_path, **LINE, program="vmap")
    assert run_record.trace.taken_from == "interpreter"
    assert nodes(run_record)["y"].values == [[22], [20], [12], [17]]
    assert nodes(run_record)["y"].agrees is None
    assert printed(run_record).startswith(
        "trace: every value on every device, by the SPMD interpreter alone (program shard_map was not selected)\n"
    )
    assert not (tmp_path / "program_trace.py").exists()


def test_without_trace_there_is_none(tmp_path: Path) -> None:
    run_record = ran(ours("vector_psum"), tmp_path, **LINE, trace=False)
    assert run_record.trace is None
    assert not (tmp_path / "program_trace.py").exists()


@pytest.mark.parametrize("how", ["os.abort()", "time.sleep(60)"])
def test_a_crashed_shard_map_is_not_run_again_for_its_trace(how: str) -> None:
    job = asked(Step(Program.SHARD_MAP), Step(Program.VMAP), Step(Program.SHARD_MAP, StepWork.TRACE))
    body = f"{TYPES}say('started', step=steps[0]); {how}"
    events, _ = hear(body, TYPES + "finish(*steps)", job=job, timeout=2.0)
    assert [line for line in described(events) if line.startswith("started")] == ["started shard_map", "started vmap"]


@pytest.mark.parametrize("programs", [["auto", "derived"], ["auto"]])
def test_of_a_graph_alone_the_derived_lines_are_traced(tmp_path: Path, programs: list[str]) -> None:
    run_record = ran(ours("case3_allreduce"), tmp_path, per_device={}, expect={}, program=programs, report=True)
    assert (run_record.status, run_record.warnings) == ("passed", [])
    assert list(run_record.programs) == programs
    assert run_record.trace.taken_from == "derived"
    assert run_record.trace.same_outputs is (True if "derived" in programs else None)
    assert names(run_record) == ["C/psum#0/before", "C"]
    node = nodes(run_record)["C"]
    assert node.collective == TracedCollective(operation="psum", axes=["x"])
    # Device 0 has the first two columns of A and rows of B, device 2 the last two.
    a, b = np.arange(16).reshape(4, 4), np.arange(16, 32).reshape(4, 4)
    first, last = (a[:, half] @ b[half] for half in (slice(0, 2), slice(2, 4)))
    np.testing.assert_array_equal(node.before.values, [first, first, last, last])
    np.testing.assert_array_equal(node.values, [a @ b] * 4)
    assert all(line.agrees for line in run_record.trace.nodes)
    title = "every value on every device, as derived computed it, compared with the SPMD interpreter's"
    assert f"trace: {title}\n" in printed(run_record)
    assert "CPU 2  x=1, y=0  │ 2 │  →  │ 0+2 │\n" in printed(run_record)
    assert "0+2" in (tmp_path / "collectives.svg").read_text(encoding="utf-8")
    assert f"E{title[1:]}." in (tmp_path / "report.html").read_text(encoding="utf-8").replace("&#x27;", "'")


SCAN = """
arrays: {A: {shape: [4, 2], init: "arange(8)", spec: [null, x]}, w: {shape: [2], init: [1, 2], spec: [x]}}
graph:
  r: {repeat: 2, carry: {v: A}, body: {v: v * w + sum(v)}, unroll: false}
  loss: sum(r.v ** 2) / 1000
outputs: {loss: []}
grad: {of: loss, wrt: [w]}
"""


def test_the_steps_of_a_derived_repeat_are_traced(tmp_path: Path) -> None:
    run_record = ran(SCAN, tmp_path, program="derived")
    assert (run_record.status, run_record.trace.taken_from, run_record.trace.same_outputs) == (
        "passed",
        "derived",
        True,
    )
    assert run_record.trace.steps_one_by_one == ["r"]
    v = np.arange(8.0).reshape(4, 2)
    for step in range(2):
        v = v * [1, 2] + v.sum()
        # The columns are sharded over x, the first axis of the mesh.
        np.testing.assert_array_equal(nodes(run_record)[f"r[{step}].v"].values, [v[:, :1]] * 2 + [v[:, 1:]] * 2)
    assert all(node.agrees for node in run_record.trace.nodes)


def test_a_bug_in_the_interpreter_is_traced_in_derived_lines_although_derived_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_oracle(monkeypatch, "psum", lambda mesh, x, axis_name, **_: x)
    run_record = ran(ours("case3_allreduce"), tmp_path, per_device={}, expect={}, program="auto")
    assert run_record.status == "passed"
    assert run_record.trace.first_difference.node == "C"
    assert run_record.warnings == [run_record.trace.first_difference.text]


def test_without_a_program_that_ran_the_derived_lines_are_interpreted(tmp_path: Path) -> None:
    text = configured(ours("case3_allreduce"), per_device={}, expect={}, program="derived")
    derived = harness.types(text).derived
    context = harness.consulted(read(text), tmp_path)
    assert derived is not None
    taken = take(context, Program.DERIVED, value_names.named(derived), None, "it ran out of memory", [0, 1, 2, 3], None)
    assert (taken.taken_from, taken.reason) == ("interpreter", "it ran out of memory")
    assert [node.name for node in taken.nodes] == ["C/psum#0/before", "C"]
    assert np.array(taken.nodes[1].values)[3, 0].tolist() == [152, 158, 164, 170]


GROWS = """
arrays: {a: {shape: [4], spec: [x]}}
graph:
  loop: {repeat: 2, carry: {b: a}, body: {b: "concatenate([b, b])"}}
  out: loop.b
outputs: {out: []}
"""


def test_lines_that_cannot_be_derived_have_no_trace(tmp_path: Path) -> None:
    why = "the shapes in loop.body.b differ from step to step"
    run_record = ran(GROWS, tmp_path, program="auto")
    assert (run_record.status, run_record.trace.taken_from) == ("passed", None)
    assert run_record.trace.reason == f"derived cannot be written: {why}"
    assert run_record.warnings == [f"there is no trace: derived cannot be written: {why}"]
    assert printed(run_record) == f"no trace: derived cannot be written: {why}\n"
    run_record = ran(GROWS, tmp_path, program="all")
    assert run_record.trace.reason == f"derived cannot be written: {why}"
    assert [warning.partition(" (JAX")[0] for warning in run_record.warnings] == [f"program derived is left out: {why}"]


def test_a_per_device_that_no_program_runs_cannot_be_traced() -> None:
    with pytest.raises(InvalidExperiment) as error:
        read(configured(ours("vector_psum"), **LINE, program="auto"))
    message = "trace: trace=true shows per_device, which program=auto does not run; there are shard_map, vmap"
    assert str(error.value) == message


TRACEABLE = [n for n in EXPERIMENTS if n not in REFUSED and harness.loaded(ours(n)).get("per_device")]
NAMED = [n for n in TRACEABLE if not re.search(r"\bgrad\.|^imports:", ours(n), re.MULTILINE)]
"""Lines that read gradients cannot be traced; those of imported functions are known once a worker has read them."""


@pytest.mark.parametrize("name", NAMED)
def test_naming_changes_no_value(tmp_path: Path, name: str) -> None:
    text = ours(name)
    written = harness.loaded(text)
    axes = [entry["override /mesh"] for entry in written.get("defaults", ()) if "override /mesh" in entry]
    file = ROOT / "conf" / "mesh" / f"{axes[0]}.yaml" if axes else None
    mesh = written["mesh"] if file is None else harness.loaded(file.read_text(encoding="utf-8"))
    dims = written.get("dims", {})
    small = {key: min(size, 64) if isinstance(size, int) else size for key, size in dims.items()}
    experiment = read(configured(text, mesh=mesh, dims=small, expect={}))
    arrays = data.make(experiment, tmp_path)
    traced = value_names.named(experiment)
    before = interpret(experiment, "per_device", arrays)
    after = interpret(traced.experiment, "per_device", arrays)
    assert traced.whole == ()
    for output in experiment.results:
        for mine, theirs in zip(after.values[traced.results[output]], before.values[output], strict=True):
            np.testing.assert_array_equal(mine, theirs)
