"""A profiler's recording becomes the time of each line and collective, and no time is lost."""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.app.flow import run, verification
from runner.base import codec
from runner.base.words import time_text
from runner.compiled.evidence import collectives, hlo, planes, profile
from runner.compiled.evidence.model import (
    Profile,
    ProfiledCollective,
    ProfiledDevice,
    ProfiledNode,
    Seconds,
    Unattributed,
)
from runner.compiled.evidence.nodes import Origins
from runner.compiled.evidence.planes import Capture, Event, Recorded
from runner.compiled.evidence.profile import own_times
from runner.compiled.evidence.trace_events import TraceEvent, TraceLine, TracePlane
from runner.experiment.config.sources import Sources
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.link.events import Profiled, RunTimes
from runner.link.steps import Step, StepWork
from runner.reports.show import profile as table
from runner.reports.show import report
from tests import evidence, harness
from tests.command import run_whole
from tests.test_target import TYPES, asked, described, errors, hear
from tests.test_trace import LINE, configured, ours

needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")

EXPERIMENT = """
arrays:
  A: {shape: [4, 4], spec: [x, null]}
per_device:
  start: A * 2
  other: start + 1
  ring:
    repeat: 3
    carry: {v: start}
    body: {v: "ppermute(v, 'x', shift=1) * 3"}
    unroll: false
  C: ring.v + other
outputs: {C: [x, null]}
program: shard_map
"""

MODULE = """HloModule jit_f, is_scheduled=true, num_partitions=4

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %m = f32[4]{0} multiply(%p, %p), metadata={op_name="jit(f)/shard_map/start/mul"}
  ROOT %a = f32[4]{0} add(%m, %m), metadata={op_name="jit(f)/shard_map/other/add"}
}

%scaled (q: f32[4]) -> f32[4] {
  %q = f32[4]{0} parameter(0), metadata={op_name="jit(f)/shard_map/other/add"}
  ROOT %t = f32[4]{0} multiply(%q, %q), metadata={op_name="jit(f)/shard_map/ring/while/body/v/mul"}
}

%body (b: (s32[], f32[4])) -> (s32[], f32[4]) {
  %b = (s32[], f32[4]{0}) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %v = f32[4]{0} get-tuple-element(%b), index=1
  %permute = f32[4]{0} collective-permute(%v), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}, metadata={op_name="jit(f)/shard_map/ring/while/body/v/ppermute"}
  %step = f32[4]{0} fusion(%permute), kind=kLoop, calls=%scaled
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  ROOT %carry = (s32[], f32[4]{0}) tuple(%next, %step)
}

%condition (c: (s32[], f32[4])) -> pred[] {
  %c = (s32[], f32[4]{0}) parameter(0)
  %j = s32[] get-tuple-element(%c), index=0
  %three = s32[] constant(3)
  ROOT %less = pred[] compare(%j, %three), direction=LT
}

ENTRY %main (A: f32[4]) -> f32[4] {
  %A = f32[4]{0} parameter(0), metadata={op_name="A"}
  %both = f32[4]{0} fusion(%A), kind=kLoop, calls=%fused
  %zero = s32[] constant(0)
  %nowhere = f32[4]{0} copy(%both)
  %first = (s32[], f32[4]{0}) tuple(%zero, %nowhere)
  %while = (s32[], f32[4]{0}) while(%first), condition=%condition, body=%body, metadata={op_name="jit(f)/shard_map/ring/while"}, backend_config={"known_trip_count":{"n":"3"}}
  %last = f32[4]{0} get-tuple-element(%while), index=1
  ROOT %sum = f32[4]{0} add(%last, %both), metadata={op_name="jit(f)/transpose(jvp(C))/add"}
}
"""  # noqa: E501


def event(
    instruction: str, start: int, end: int, *, done: int = 0, line: int = 0, device: int = 0, **more: Any
) -> Event:
    """Return an event of run 0, in nanoseconds."""
    given = {"run": 0, "module": "jit_f", "name": instruction, **more}
    return Event(line=line, device=device, start=start, end=end, done=max(end, done), instruction=instruction, **given)


def read_profile(*events: Event, runs: int = 1, module: str = MODULE, unknown: Sequence[str] = ()) -> Any:
    """Return the profile of these events with the module above."""
    experiment = harness.experiment(EXPERIMENT, mesh={"axes": ["x"], "shape": [4]})
    parsed, origins = hlo.read(module), Origins(experiment, "per_device")
    run_s = RunTimes(median=1.0, min=1.0, max=1.0, n=runs)
    taken = Capture("profile/shard_map", runs, run_s, Recorded(events, tuple(unknown)))
    return profile.read(taken, parsed, origins, collectives.read(parsed, origins, experiment.mesh))


def nanoseconds(taken: Any) -> dict[str, int]:
    """Return the total of each line, collective, and the rest."""
    entries = [("+".join(node.nodes), node.seconds) for node in taken.nodes]
    entries += [(entry.instruction, entry.seconds) for entry in taken.collectives if entry.seconds]
    entries.append(("unattributed", taken.unattributed.seconds))
    return {name: round(seconds.total * 1e9) for name, seconds in entries}


def parts(taken: Profile) -> float:
    """Return the sums of the lines, of the collectives and of the rest."""
    entries = [*taken.nodes, *(entry for entry in taken.collectives if entry.seconds), taken.unattributed]
    return math.fsum(entry.seconds.total for entry in entries)


# Own times.


def test_nested_events_on_a_line_are_not_counted_twice() -> None:
    events = [event("a", 0, 100), event("b", 10, 40), event("c", 20, 30), event("d", 50, 60), event("e", 100, 110)]
    assert own_times(events, {}) == [60, 20, 10, 10, 10]


def test_other_lines_work_at_the_same_time() -> None:
    assert own_times([event("a", 0, 100), event("b", 10, 40, line=1)], {}) == [100, 30]


def test_the_steps_of_a_loop_are_inside_it_on_any_line() -> None:
    inside = {"while": frozenset({"a", "b"})}
    events = [
        event("while", 0, 100),
        event("a", 10, 40, line=1),
        event("b", 30, 60, line=2),
        event("c", 70, 80, line=3),
        event("a", 0, 100, line=4, device=1),
        event("a", 90, 95, line=1, run=1),
    ]
    assert own_times(events, inside) == [50, 30, 30, 10, 100, 5]


def test_an_instruction_takes_until_it_is_done() -> None:
    assert own_times([event("a", 0, 10, done=50), event("b", 10, 30)], {}) == [50, 20]


def test_a_loop_that_returns_early_lasts_until_its_steps_are_done() -> None:
    events = [event("while", 0, 5, done=100), event("a", 10, 20, done=90, line=1)]
    assert own_times(events, {"while": frozenset({"a"})}) == [20, 80]


# Lines and collectives.


def test_each_step_of_a_loop_adds_to_its_lines() -> None:
    steps = [
        execution
        for at in (100, 200, 300)
        for execution in (
            event("permute", at, at + 50),
            event("step", at + 50, at + 80),
            event("next", at + 80, at + 85),
        )
    ]
    taken = read_profile(event("while", 90, 400), *steps)
    assert nanoseconds(taken) == {"ring.v": 90, "ring": 310 - 3 * 85, "permute": 150, "unattributed": 15}
    (permute,) = taken.collectives
    assert permute == ProfiledCollective(
        instruction="permute",
        node="ring.v",
        nodes=["ring.v"],
        gradient=False,
        kind="collective-permute",
        executions=3,
        seconds=Seconds(median=1.5e-7, min=1.5e-7, max=1.5e-7, total=1.5e-7),
        exposed=Seconds(median=1.5e-7, min=1.5e-7, max=1.5e-7, total=1.5e-7),
    )
    assert taken.unknown == []


def test_a_fusion_that_serves_several_lines_is_not_split() -> None:
    taken = read_profile(event("both", 0, 10), event("sum", 10, 15))
    shared, backward = taken.nodes
    assert (shared.node, shared.nodes, shared.gradient) == (None, ["start", "other"], False)
    assert (backward.node, backward.nodes, backward.gradient) == ("C", ["C"], True)
    assert nanoseconds(taken) == {"start+other": 10, "C": 5, "unattributed": 0}


def test_a_fusion_is_attributed_to_its_computation_not_its_operands() -> None:
    assert nanoseconds(read_profile(event("step", 0, 10))) == {"ring.v": 10, "unattributed": 0}


def test_instructions_without_a_line_are_counted() -> None:
    taken = read_profile(
        event("nowhere", 0, 10),
        event("gone", 10, 15),
        event("sum", 15, 17, module="jit_other"),
        event("", 20, 50, name="MemcpyD2D"),
    )
    assert nanoseconds(taken) == {"unattributed": 47}
    assert taken.unattributed.instructions == ["MemcpyD2D", "nowhere", "gone", "sum"]
    assert taken.unknown == ["the module does not have gone, sum", "the trace does not show permute"]


def test_times_are_per_run_and_device() -> None:
    events = [
        event("sum", start, start + took, device=device, line=device, run=run)
        for (device, run), start, took in [((0, 0), 0, 10), ((1, 0), 0, 30), ((0, 1), 100, 20), ((1, 1), 100, 40)]
    ]
    taken = read_profile(*events, event("both", 50, 58, run=0), runs=2)
    backward, shared = taken.nodes
    assert backward.seconds == Seconds(median=2.5e-8, min=1e-8, max=4e-8, total=1e-7)
    assert shared.seconds == Seconds(median=0.0, min=0.0, max=8e-9, total=8e-9)
    assert (taken.devices, taken.runs) == (2, 2)
    assert taken.seconds.total == pytest.approx(1.08e-7)


def test_indistinguishable_runs_have_only_a_total() -> None:
    taken = read_profile(event("sum", 0, 10, run=-1), event("permute", 10, 30, run=-1), runs=2)
    assert taken.seconds == Seconds(median=None, min=None, max=None, total=3e-8)
    assert taken.collectives[0].executions is None
    assert taken.unknown == ["the trace does not tell the runs apart"]


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ((), "the trace shows no instruction"),
        ((event("sum", 0, 10),), "the trace shows 1 of 5 runs"),
        ((event("permute", 0, 10),), "permute ran 1 times a run, not 3 times"),
    ],
)
def test_an_unexpected_trace_is_reported(events: tuple[Event, ...], sentence: str) -> None:
    assert sentence in read_profile(*events, runs=5, unknown=["what the reader could not read"]).unknown
    assert "what the reader could not read" in read_profile(*events, unknown=["what the reader could not read"]).unknown


def test_without_a_module_everything_is_unattributed() -> None:
    assert nanoseconds(read_profile(event("sum", 0, 10), module="")) == {"unattributed": 10}


def test_a_start_and_its_done_are_one_collective() -> None:
    module = """HloModule jit_f, is_scheduled=true, num_partitions=4

ENTRY %main (A: f32[4]) -> f32[4] {
  %A = f32[4]{0} parameter(0)
  %begin = (f32[4]{0}, f32[4]{0}) collective-permute-start(%A), channel_id=1, source_target_pairs={{0,1}}, metadata={op_name="jit(f)/start/ppermute"}
  %work = f32[4]{0} add(%A, %A), metadata={op_name="jit(f)/other/add"}
  %end = f32[4]{0} collective-permute-done(%begin)
  ROOT %sum = f32[4]{0} add(%end, %work), metadata={op_name="jit(f)/C/add"}
}
"""  # noqa: E501
    taken = read_profile(event("begin", 0, 1), event("work", 1, 20), event("end", 20, 25), module=module)
    assert nanoseconds(taken) == {"other": 19, "begin": 6, "unattributed": 0}
    assert taken.collectives[0].executions == 1
    assert taken.unknown == []


def test_a_collective_fusion_names_the_lines_that_it_computes() -> None:
    module = """HloModule jit_f, is_scheduled=true, num_partitions=4

%add (l: f32[], r: f32[]) -> f32[] {
  %l = f32[] parameter(0)
  %r = f32[] parameter(1)
  ROOT %s = f32[] add(%l, %r)
}

%fused (p: f32[8], k: s32[]) -> f32[2] {
  %p = f32[8]{0} parameter(0)
  %k = s32[] parameter(1)
  %m = f32[8]{0} multiply(%p, %p), metadata={op_name="jit(f)/other/mul"}
  %reduce = f32[8]{0} all-reduce(%m), channel_id=1, replica_groups=[1,4]<=[4], to_apply=%add, metadata={op_name="jit(f)/C/psum"}
  ROOT %part = f32[2]{0} dynamic-slice(%reduce, %k), dynamic_slice_sizes={2}
}

ENTRY %main (A: f32[8], k0: s32[]) -> f32[2] {
  %A = f32[8]{0} parameter(0)
  %k0 = s32[] parameter(1)
  ROOT %scatter = f32[2]{0} fusion(%A, %k0), kind=kCustom, calls=%fused
}
"""  # noqa: E501
    taken = read_profile(event("scatter", 0, 10), module=module)
    assert nanoseconds(taken) == {"reduce": 10, "unattributed": 0}
    assert taken.unknown == ["the time of reduce includes other, computed in the same fusion"]


# Recorded profiles. The planes of GPUs and TPUs are synthetic: made with XLA's names of lines and events, not recorded.


def plane(name: str, lines: Sequence[TraceLine]) -> TracePlane:
    return TracePlane(name, dict(enumerate(lines)))


def made(name: str, start: float, took: float, **stats: Any) -> TraceEvent:
    return TraceEvent(name, start, took, list(stats.items()))


def on_cpu(name: str, start: float, took: float, run: int, device: int, number: int) -> TraceEvent:
    stats = {"hlo_op": name, "hlo_module": "jit_f", "run_id": run, "device_ordinal": device, "_pt": 0, "_p": number}
    return made(name, start, took, **stats)


RUNS = TraceLine("python", [made("run", 0, 100, step_num=0), made("PjitFunction(f)", 1, 90), made("run", 200, 100)])


def test_a_cpu_executes_on_the_threads_of_the_host() -> None:
    threads = [
        TraceLine("tf_XLAPjRtCpuClient/1", [
            made("[0] Execute", 5, 60),
            on_cpu("a", 10, 20, run=-7, device=0, number=1),
            made("end: a", 29, 0.2, _ct=0, _c=1),
            on_cpu("b", 230, 20, run=-6, device=1, number=2),
        ]),
        TraceLine("tf_XLAEigen/2", [made("end: b", 280, 0.2, _ct=0, _c=2)]),
    ]  # fmt: skip
    recorded = planes.read([plane("/host:metadata", []), plane("/host:CPU", [RUNS, *threads])])
    assert recorded == Recorded(
        (
            Event(1, 0, 0, 10, 30, 30, "a", "a", "jit_f"),
            Event(1, 1, 1, 230, 250, 280, "b", "b", "jit_f"),
        )
    )


def test_a_missing_end_event_is_reported() -> None:
    thread = [on_cpu("a", 10, 20, 1, 0, 1), made("end: a", 29, 0.2, _c=1), on_cpu("b", 30, 5, 1, 0, 2)]
    recorded = planes.read([plane("/host:CPU", [TraceLine("tf_XLAEigen/2", thread)])])
    assert [execution.done for execution in recorded.events] == [30, 35]
    assert recorded.unknown == ("the trace does not say when 1 of 2 events ended",)


def test_a_gpu_executes_on_streams() -> None:
    launched = [
        made("loop_add_fusion", 10, 5, hlo_op="a", hlo_module="jit_f"),
        made("ncclDevKernel", 15, 50, hlo_op="permute", hlo_module="jit_f"),
        made("MemcpyD2D", 210, 5),
    ]
    lines = [TraceLine("Stream #13(Compute)", launched), TraceLine("XLA Ops", [made("a", 10, 55, hlo_op="a")])]
    host = plane("/host:CPU", [RUNS, TraceLine("thread", [on_cpu("a", 1, 2, 1, 0, 1)])])
    recorded = planes.read([host, plane("/device:GPU:0", lines), plane("/device:GPU:1", [lines[0]])])
    executions = [
        (execution.device, execution.run, execution.start, execution.name, execution.instruction, execution.module)
        for execution in recorded.events
    ]
    assert executions == [
        (device, *fields)
        for device in (0, 1)
        for fields in [
            (0, 10, "loop_add_fusion", "a", "jit_f"),
            (0, 15, "ncclDevKernel", "permute", "jit_f"),
            (1, 210, "MemcpyD2D", "", ""),
        ]
    ]


def test_a_tpu_names_events_by_the_text_of_their_instructions() -> None:
    device = [
        TraceLine("XLA Modules", [made("jit_f(123)", 0, 100), made("jit_f(123)", 200, 100)]),
        TraceLine("XLA Ops", [
            made("%while = (s32[], f32[4]{0}) while(%first), condition=%condition", 10, 80),
            made("%permute = f32[4]{0} collective-permute(%v)", 20, 30),
            made("%sum = f32[4]{0} add(%last, %both)", 210, 30),
        ]),
        TraceLine("Async XLA Ops", [made("%permute", 20, 60)]),
    ]  # fmt: skip
    synthetic = [
        plane("/device:TPU:3", device),
        plane("/device:TPU:0 SparseCore 1", [TraceLine("Sparse Core Ops", [made("x", 0, 1)])]),
    ]
    recorded = planes.read(synthetic)
    assert [
        (execution.device, execution.run, execution.instruction, execution.module) for execution in recorded.events
    ] == [
        (3, 0, "while", "jit_f"),
        (3, 0, "permute", "jit_f"),
        (3, 1, "sum", "jit_f"),
    ]
    assert recorded.unknown == ("the events of /device:TPU:0 SparseCore 1 were not read",)
    assert own_times(recorded.events, {}) == [50, 30, 30]


def test_the_events_reach_the_parent_as_they_are(tmp_path: Path) -> None:
    recorded = Recorded((event("a", 0, 10, done=2**40), event("b", 5, 6, run=-1, name="é")), ("a sentence",))
    taken = Capture("profile/auto", 1, RunTimes(median=0.1, min=0.1, max=0.1, n=1), recorded)
    left = planes.leave(tmp_path / "profile_auto.bin", taken)
    assert planes.collect(codec.build(Profiled, evidence.as_json(left)), tmp_path) == taken
    assert list(tmp_path.iterdir()) == []


# End to end.


def ran(text: str, folder: Path, **changes: Any) -> Any:
    """Return the record of a run that takes profiles."""
    changes = {"program": "all", "trace": False, "profile": True, **changes}
    return run.run(configured(text, **changes), folder, Sources(), workers=harness.WORKERS)


@pytest.mark.in_turn
def test_the_profile_of_every_program_adds_up_and_its_trace_can_be_opened(tmp_path: Path) -> None:
    record = ran(ours("case3_allreduce"), tmp_path)
    assert record.status == "passed"
    assert record.warnings == []
    for program, result in record.compiled.items():
        taken = result.profile
        assert (taken.folder, taken.runs) == (f"profile/{program}", 5)
        assert taken.devices == (1 if program == "vmap" else 4)
        assert [collective.instruction for collective in taken.collectives] == [
            collective.instruction for collective in result.collectives
        ]
        assert all(collective.seconds.min > 0 and collective.executions == 1 for collective in taken.collectives)
        assert taken.unknown == []
        assert parts(taken) == pytest.approx(taken.seconds.total)
        (trace,) = (tmp_path / taken.folder / "plugins" / "profile").iterdir()
        suffixes = ("xplane.pb", "trace.json.gz")
        assert all(len(list(trace.glob(f"*.{suffix}"))) == 1 for suffix in suffixes)
        with gzip.open(trace / "perfetto_trace.json.gz", "rt", encoding="utf-8") as file:
            shown = json.load(file)["traceEvents"]
        executed = [entry["dur"] for entry in shown if "hlo_op" in entry.get("args", {})]
        # The events have the times at which their threads continued, possibly before the operations were done.
        assert taken.seconds.total * 1e6 >= math.fsum(executed) * 0.999
    assert {node.node for node in record.compiled["shard_map"].profile.nodes} == {"partial"}
    assert list((tmp_path / "profile").glob(".*")) == []


def test_a_loop_is_the_sum_of_its_steps(tmp_path: Path) -> None:
    record = ran(EXPERIMENT, tmp_path, **LINE | {"mesh": {"axes": ["x"], "shape": [4]}}, program="shard_map")
    result = record.compiled["shard_map"]
    taken = result.profile
    (permute,) = taken.collectives
    assert (permute.node, permute.executions, result.collectives[0].count) == ("ring.v", 3, 3)
    assert "ring" in {node.node for node in taken.nodes}
    assert parts(taken) == pytest.approx(taken.seconds.total)
    assert taken.unknown == []


def test_without_profile_there_is_none(tmp_path: Path) -> None:
    record = ran(ours("case3_allreduce"), tmp_path, profile=False, program="shard_map")
    assert record.compiled["shard_map"].profile is None
    assert not (tmp_path / "profile").exists()


@pytest.mark.in_turn
def test_a_failed_profiler_is_reported_and_values_are_kept(tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("a file where the folder of the profiles belongs")
    record = ran(ours("case3_allreduce"), tmp_path, program="shard_map")
    result = record.compiled["shard_map"]
    assert (record.status, result.status) == ("passed", "passed")
    (reason,) = result.profile.unknown
    assert "is not a directory" in reason
    assert record.warnings == [f"program shard_map has no profile: {reason}"]
    assert (result.profile.folder, result.profile.seconds) == (None, None)
    assert table.rows(result.profile) == []


PROFILED = asked(
    *(Step(program, work) for program in (Program.AUTO, Program.VMAP) for work in (StepWork.RUN, StepWork.PROFILE))
)


@pytest.mark.parametrize("how", ["os.abort()", "time.sleep(60)"])
def test_a_profiler_that_ends_the_worker_fails_no_program(how: str) -> None:
    names = ["auto", "profile auto", "vmap", "profile vmap"]
    body = f"{TYPES}finish(steps[0]); say('started', step=steps[1]); {how}"
    events, _ = hear(body, TYPES + "finish(*steps)", job=PROFILED, timeout=2.0)
    assert [line for line in described(events) if line.startswith("finished")] == [f"finished {name}" for name in names]
    assert list(errors(events)) == ["profile auto"]


def test_a_program_that_ends_the_worker_is_not_tried_again_for_its_profile() -> None:
    body = f"{TYPES}say('started', step=steps[0]); os.abort()"
    job = asked(Step(Program.AUTO), Step(Program.AUTO, StepWork.PROFILE), Step(Program.VMAP))
    events, _ = hear(body, TYPES + "finish(*steps)", job=job)
    assert [line for line in described(events) if line.startswith("started")] == ["started auto", "started vmap"]


def test_a_program_that_jax_cannot_express_has_no_profile_either() -> None:
    events, workers = hear("types({'auto': 'why'})\nfinish(*steps[2:])\n", job=PROFILED)
    assert errors(events) == {}
    assert len(workers.started) == 1


def test_a_verification_takes_no_profile() -> None:
    config = configured(
        "{arrays: {A: {shape: [N], spec: [x]}}, graph: {C: A + 1}, outputs: {C: [x]}}",
        dims={"N": 8},
        verify_dims={"N": 4},
        program="auto",
        trace=False,
        profile=True,
        target={"topology": "v5e:2x2"},
    )
    smaller = verification.smaller(read(config))
    assert not isinstance(smaller, str)
    assert smaller.profile is False


@pytest.mark.in_turn
@needs_libtpu
def test_a_compile_only_run_has_one_warning_instead_of_profiles(tmp_path: Path) -> None:
    record = ran(ours("case3_allreduce"), tmp_path, target={"topology": "v5e:2x2"})
    assert record.status == "passed"
    assert record.warnings == ["there is no profile: nothing runs on v5e:2x2, which is not here"]
    assert not any(result.profile for result in record.compiled.values())
    assert not (tmp_path / "profile").exists()


@pytest.mark.in_turn
def test_a_sweep_profiles_each_point(tmp_path: Path) -> None:
    done = run_whole(
        "-m",
        "+experiment=case3_allreduce",
        "program=shard_map,vmap",
        "profile=true",
        f"hydra.sweep.dir={tmp_path}",
        PYTHONWARNINGS="error",
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("0/profile/shard_map/plugins/profile/*/*.xplane.pb"))) == 1
    assert len(list(tmp_path.glob("1/profile/vmap/plugins/profile/*/*.xplane.pb"))) == 1


# The table.


def test_the_report_shows_where_the_time_goes(capsys: pytest.CaptureFixture[str]) -> None:
    def seconds(median: float | None, total: float) -> Seconds:
        return Seconds(median=median, min=median, max=median, total=total)

    def node(*names: str, took: Seconds) -> ProfiledNode:
        only = names[0] if len(names) == 1 else None
        return ProfiledNode(node=only, nodes=list(names), gradient=only is None, seconds=took)

    def collective(name: str, kind: str, took: Seconds | None) -> ProfiledCollective:
        return ProfiledCollective(
            instruction=name, node=name, nodes=[name], gradient=False, kind=kind, executions=1, seconds=took,
            exposed=seconds(8e-5, 8e-5), skew_s=2e-6, bus_bandwidth=1.25e9,
        )  # fmt: skip

    taken = Profile(
        folder="profile/shard_map",
        runs=5,
        run_s=evidence.timing().run_s,
        devices=4,
        seconds=seconds(1e-3, 1e-2),
        nodes=[
            node("a", "b", took=seconds(2.5e-4, 2.5e-3)),
            *(node(f"n{i}", took=seconds(1e-6, 1e-5)) for i in range(5)),
        ],
        collectives=[collective("C", "all-reduce", seconds(None, 7e-3)), collective("D", "all-gather", None)],
        unattributed=Unattributed(seconds=seconds(4.5e-5, 4.5e-4), instructions=["copy"]),
        unknown=[],
        by_device=[ProfiledDevice(device=0, seconds=1e-3, computing=7e-4, exposed=2e-4, hidden=0.0, idle=1e-4)],
    )
    record = evidence.record({"shard_map": evidence.program(profile=taken)})
    report.run(record, Path("/runs/case"), brief=False)
    printed = capsys.readouterr().out
    start = printed.index("profile: ")
    assert printed[start : printed.index("\n\n", start)].splitlines() == [
        "profile: the median time of a run on one device; a collective's includes waiting for other devices",
        "program    line             collective  per run  share  exposed  busbw      skew",
        "shard_map  C                all-reduce  –        70.0%  80.0 µs  1.25 GB/s  2.00 µs",
        "shard_map  a, b (backward)              250 µs   25.0%",
        "shard_map  unattributed                 45.0 µs  4.5%",
        "shard_map  n0                           1.00 µs  0.1%",
        "shard_map  n1                           1.00 µs  0.1%",
        "shard_map  3 more                       –        0.3%",
        "shard_map: measured: 5 runs on 1 device, 1.00 ms a run: a device computes 700 µs, communicates 200 µs more, "
        "hides 0 s of communication behind computation and is idle 100 µs",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.00 ns"), (9.996e-7, "1.00 µs"), (9.99e-5, "99.9 µs"), (0.25, "250 ms"), (3.0, "3.00 s"), (None, "–")],
)
def test_a_duration_has_three_digits(seconds: float | None, text: str) -> None:
    assert time_text(seconds) == text
