"""Workers that crash, hang, write garbage or never start: each is recorded, and a new one does the remaining steps."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from runner.base.codec import Misfit
from runner.base.faults import Fault
from runner.base.layout import Spec
from runner.experiment.program import Program
from runner.link import handover
from runner.link.events import (
    Compilation,
    Died,
    Event,
    Finished,
    Invalid,
    Log,
    OutputTold,
    Ran,
    Ranges,
    Started,
    Types,
    encoded,
)
from runner.link.process import Worker
from runner.link.steps import Step, StepWork
from runner.link.target import DeviceShard, Output, program_run
from runner.link.workers import Workers as Kept
from tests.evidence import timing

SCRIPT = """
import json, os, signal, sys, time

def say(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)

def types(unsupported={}):
    target = {"platform": "cpu", "devices": 4, "kind": "cpu", "topology": None}
    say("types", unsupported=unsupported, outputs={}, nodes={}, floats={}, target=target, jax="0.10.2", jaxlib="0.10.2")

def finish(*steps):
    for name in steps:
        say("started", step=name)
        say("finished", step=name)

job = json.loads(sys.stdin.readline())
steps = job["steps"]
"""
TYPES = "types()\n"
"""The first message of a worker."""


def asked(*steps: Step) -> dict[str, Any]:
    """Return a job of these steps."""
    return {"steps": [step.to_json() for step in steps]}


STEPS = tuple(map(Step, (Program.AUTO, Program.SHARD_MAP, Program.VMAP)))
JOB = asked(*STEPS)


class Workers:
    """Workers that run one script after the other; the last one again and again."""

    def __init__(self, *bodies: str) -> None:
        self.bodies = list(bodies)
        self.started: list[Worker] = []

    def __call__(self) -> Worker:
        body = self.bodies.pop(0) if len(self.bodies) > 1 else self.bodies[0]
        worker = Worker([sys.executable, "-S", "-c", SCRIPT + body])
        self.started.append(worker)
        return worker


def listen(worker: Worker, job: dict[str, Any], timeout: float, start: Workers | None = None) -> Iterator[Event]:
    """Return the events of the one job of a worker and its replacements."""
    kept = Kept(worker, start=start) if start else Kept(worker)
    try:
        yield from kept.submit(job, "cpu", timeout)
    finally:
        kept.close()


def hear(*bodies: str, timeout: float = 30.0, job: dict[str, Any] = JOB) -> tuple[list[Event], Workers]:
    """Return every event; afterwards no process is left."""
    workers = Workers(*bodies)
    events = list(listen(workers(), job, timeout, workers))
    assert_gone(workers)
    return events, workers


def assert_gone(workers: Workers) -> None:
    for worker in workers.started:
        assert worker._process.poll() is not None
        with pytest.raises(ProcessLookupError):
            os.kill(worker._process.pid, 0)


def name(step: Step) -> str:
    """Return the name of a step: `auto`, `profile auto`."""
    return step.program if step.work is StepWork.RUN else f"{step.work} {step.program}"


def described(events: list[Event]) -> list[str]:
    return [" ".join([type(event).__name__.lower(), *_step(event)]) for event in events]


def _step(event: Event) -> list[str]:
    return [name(event.step)] if isinstance(event, Started | Finished) else []


def errors(events: list[Event]) -> dict[str, str]:
    return {name(event.step): event.error for event in events if isinstance(event, Finished) and event.error}


ALL = ["types", *(f"{stage} {name(step)}" for step in STEPS for stage in ("started", "finished")), "log"]


def test_a_worker_that_does_everything() -> None:
    events, workers = hear(TYPES + "finish(*steps)")
    assert described(events) == ALL
    assert errors(events) == {}
    assert len(workers.started) == 1


CRASHES = {
    "abort": ("os.abort()", "the process was ended by SIGABRT"),
    "kill": ("os.kill(os.getpid(), signal.SIGKILL)", "the process was ended by SIGKILL"),
    "segfault": ("os.kill(os.getpid(), signal.SIGSEGV)", "the process was ended by SIGSEGV"),
    "exit": ("sys.exit(7)", "the process ended with status 7"),
    "silent exit": ("sys.exit(0)", "the process ended with status 0"),
    "exception": ("raise ValueError('broken')", "the process ended with status 1"),
}


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_is_recorded_and_the_others_run(crash: str) -> None:
    statement, how = CRASHES[crash]
    body = f"{TYPES}finish(steps[0]); say('started', step=steps[1])\nprint('last words', file=sys.stderr)\n{statement}"
    events, workers = hear(body, TYPES + "finish(*steps)")
    assert [line for line in described(events) if line != "log"] == ALL[:-1]
    assert list(errors(events)) == ["shard_map"]
    assert errors(events)["shard_map"].startswith(f"{how}; its last output:\nlast words")
    assert len(workers.started) == 2


def test_a_crash_in_every_program_ends() -> None:
    events, workers = hear(TYPES + "say('started', step=steps[0]); os.abort()")
    assert list(errors(events)) == [name(step) for step in STEPS]
    assert len(workers.started) == 3
    assert described(events).count("types") == 1


def test_a_hang_is_ended_and_the_others_run() -> None:
    body = TYPES + "say('started', step=steps[0]); print('waiting', file=sys.stderr, flush=True); time.sleep(60)"
    start = time.perf_counter()
    events, _ = hear(body, TYPES + "finish(*steps)", timeout=2.0)
    assert time.perf_counter() - start < 10
    assert errors(events) == {
        "auto": "no result after the timeout of 2 s, while auto was being done; its last output:\nwaiting"
    }
    assert described(events)[-2:] == ["finished vmap", "log"]


def test_a_worker_that_closes_its_output_but_stays_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.link.process.PARTING", 0.2)
    events, _ = hear(TYPES + "say('started', step=steps[0]); os.close(1); time.sleep(60)", TYPES + "finish(*steps)")
    assert list(errors(events)) == ["auto"]


@pytest.mark.parametrize(
    "garbage",
    ["print('hello')", "print('{')", "print('[1, 2]')", "print('{}')", "os.write(1, b'\\xff\\xfe\\n')", "print()"],
)
def test_output_that_is_no_event_is_kept_in_the_log(garbage: str) -> None:
    events, _ = hear(f"{garbage}\nsys.stdout.flush()\n{TYPES}finish(*steps)")
    assert described(events) == ALL


def test_half_an_event_counts_as_last_words() -> None:
    body = TYPES + """say('started', step=steps[0]); print('{"event": "fini', end='', flush=True); os.abort()"""
    events, _ = hear(body, TYPES + "finish(*steps)")
    assert errors(events) == {"auto": 'the process was ended by SIGABRT; its last output:\n{"event": "fini'}


def test_a_worker_that_dies_before_its_job_says_how() -> None:
    worker = Worker([sys.executable, "-S", "-c", "import sys; sys.exit('no jax here')"])
    worker._process.wait()
    events = list(listen(worker, {**JOB, "padding": "x" * 100_000}, 30.0))
    assert described(events) == ["log", "died"]
    assert events[1] == Died(error="the process ended with status 1; its last output:\nno jax here")


def test_a_worker_that_dies_between_two_programs_is_an_error_of_the_run() -> None:
    events, _ = hear(TYPES + "finish(steps[0]); sys.exit(3)")
    assert events[-1] == Died(error="the process ended with status 3")


def test_programs_that_are_not_supported_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.link.process.PARTING", 0.2)
    events, _ = hear("types({'vmap': 'why'}); finish(*steps[:2]); time.sleep(60)")
    assert described(events)[-2:] == ["finished shard_map", "log"]
    nothing, _ = hear("types({n['program']: 'why' for n in steps}); time.sleep(60)")
    assert described(nothing) == ["types", "log"]


def test_nothing_is_waited_for_after_an_invalid_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.link.process.PARTING", 0.2)
    fault = Fault(("arrays", "A", "spec", 1), "wrong", "a + b", 4, 5)
    events, _ = hear(f"print({encoded(Invalid(fault=fault))!r}, flush=True); time.sleep(60)")
    assert described(events) == ["invalid", "log"]
    assert events[0] == Invalid(fault=fault)


def test_an_event_that_is_not_as_it_should_be_is_a_bug_and_leaves_no_worker_behind() -> None:
    workers = Workers("say('started', step=7); time.sleep(60)")
    with pytest.raises(Misfit, match=r"^step is 7, not a mapping$"):
        list(listen(workers(), JOB, 30.0, workers))
    assert_gone(workers)


def test_a_closed_listener_leaves_no_worker_behind() -> None:
    workers = Workers(TYPES + "finish(*steps); time.sleep(60)")
    events = listen(workers(), JOB, 30.0, workers)
    assert isinstance(next(events), Types)
    assert isinstance(events, Generator)
    events.close()
    assert_gone(workers)


def test_the_log_is_all_that_was_written_to_standard_error() -> None:
    events, _ = hear(TYPES + "print('x' * 5000, file=sys.stderr); finish(*steps)")
    assert events[-1] == Log(text="x" * 5000 + "\n")


def test_the_end_of_the_last_output_is_kept() -> None:
    body = TYPES + "say('started', step=steps[0]); print('x' * 5000 + 'end', file=sys.stderr); sys.exit(1)"
    words = errors(hear(body, TYPES + "finish(*steps)")[0])["auto"].split("\n", 1)[1]
    assert words.endswith("xend")
    assert len(words) == 2000


def test_a_timeout_may_be_endless() -> None:
    assert described(hear(TYPES + "finish(*steps)", timeout=math.inf)[0]) == ALL


def test_an_unused_worker_can_be_closed() -> None:
    worker = Worker([sys.executable, "-S", "-c", SCRIPT])
    worker.close()
    worker.close()
    assert worker._process.poll() is not None


@pytest.mark.in_turn
def test_the_worker_itself_leaves_when_no_job_comes() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "runner.worker", str(os.getpid())],
        input=b"",
        capture_output=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parent.parent,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


BUSY = """
import sys
from runner.link import lifeline
lifeline.die_with(sys.argv[1])
print("up", flush=True)
9 ** 9 ** 9
"""

PARENT = """
import signal, sys, time
# Who runs the tests may ignore it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from runner.link.process import Worker
worker = Worker([sys.executable, "-c", {busy!r}])
print(worker._process.pid, worker._process.stdout.readline().strip(), flush=True)
time.sleep(60)
"""


@pytest.mark.sample(3)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_worker_ends_with_its_parent_even_while_no_python_runs(how: signal.Signals) -> None:
    command = [sys.executable, "-c", PARENT.format(busy=BUSY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent) as parent:
        assert parent.stdout is not None
        worker, up = parent.stdout.readline().split()
        assert up == "up"
        parent.send_signal(how)
        assert parent.wait(timeout=60) == -how
    with pytest.raises(ProcessLookupError):
        _gone(int(worker))


def _gone(process: int) -> None:
    for _ in range(200):
        os.kill(process, 0)
        time.sleep(0.05)


def test_a_worker_whose_parent_is_gone_before_it_asks_leaves() -> None:
    code = "from runner.link import lifeline; lifeline.die_with('1'); print('still here')"
    root = Path(__file__).parent.parent
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=root, check=True)
    assert ran.stdout == b""


# One worker for one job after the other.

LOOP = """
def done():
    say("done", log=os.fstat(2).st_size, resident=RESIDENT)

first = True
while True:
    print("job", job["name"], file=sys.stderr, flush=True)
    JOB
    line = sys.stdin.readline()
    if not line:
        break
    job = json.loads(line)
    steps, first = job["steps"], False
"""


def several(jobs: int, body: str, resident: str = "1", ahead: bool = True) -> tuple[list[list[Event]], Workers]:
    """Return the events of several jobs, each handed over before the one before it has been received."""
    workers = Workers(LOOP.replace("RESIDENT", resident).replace("JOB", body))
    kept = Kept(start=workers)
    heard: list[list[Event]] = []
    try:
        waiting = [kept.submit({**JOB, "name": f"j{n}"}, "cpu", 20.0) for n in range(jobs if ahead else 0)]
        for n in range(jobs):
            heard.append(list(waiting[n] if ahead else kept.submit({**JOB, "name": f"j{n}"}, "cpu", 20.0)))
    finally:
        kept.close()
    assert_gone(workers)
    return heard, workers


def test_one_process_does_all_jobs_and_each_has_its_log() -> None:
    heard, workers = several(3, "types(); finish(*steps); done()")
    assert [described(events) for events in heard] == [ALL] * 3
    assert [events[-1] for events in heard] == [Log(text=f"job j{n}\n") for n in range(3)]
    assert len(workers.started) == 1


def test_the_jobs_that_wait_go_to_the_process_that_follows_one_that_died() -> None:
    body = "types(); finish(steps[0]); (job['name'] == 'j0' and first and len(steps) == 3 and os.abort()); "
    body += "finish(*steps[1:]); done()"
    heard, workers = several(3, body)
    assert [line for line in described(heard[0]) if line != "log"] == ["types", "started auto", "finished auto", "died"]
    assert [described(events) for events in heard[1:]] == [ALL] * 2
    assert len(workers.started) == 2


def test_a_process_that_grew_is_replaced() -> None:
    grown = "(1 if first else 1 << 31)"
    heard, workers = several(4, "types(); finish(*steps); done()", resident=grown, ahead=False)
    assert [described(events) for events in heard] == [ALL] * 4
    assert len(workers.started) == 2


def test_jobs_of_another_kind_have_a_process_of_their_own() -> None:
    workers = Workers(LOOP.replace("RESIDENT", "1").replace("JOB", "types(); finish(*steps); done()"))
    kept = Kept(start=workers)
    try:
        for kind in ("cpu", "gpu", "cpu"):
            assert described(list(kept.submit({**JOB, "name": kind}, kind, 20.0))) == ALL
    finally:
        kept.close()
    assert len(workers.started) == 2


# The output of a program.


def ran(*ranges: Ranges | None) -> Ran:
    shards = [(device, where, copy) for device, where, copy in zip((5, 3, 1), ranges, (0, 1, 0), strict=True)]
    return Ran(
        device_ids=[5, 3, 1],
        outputs={"C": OutputTold(dtype="bfloat16", spec=Spec.of(["x", None]), shards=shards)},
        operands={"A": [(5, ((0, 4),))]},
        stderr="",
        compilation=Compilation(memory=None, cost=None, timing=timing()),
    )


ROWS = (((0, 2), (0, 2)), ((2, 4), (0, 2)), ((0, 2), (0, 2)))


def leave(folder: Path, program: Program = Program.AUTO) -> None:
    values = [np.arange(4) + 4 * i for i in range(2)]
    handover.leave(folder / f"{program}.bin", [value.astype(ml_dtypes.bfloat16) for value in values])


def test_the_outputs_are_read_from_the_file_which_is_removed(tmp_path: Path) -> None:
    leave(tmp_path)
    run = program_run(Program.AUTO, ran(*ROWS), {"C": (4, 2)}, lambda *_: (), tmp_path)
    output = run.outputs["C"]
    assert output.dtype == "bfloat16"
    assert [(held.position, held.device, held.copy) for held in output.held] == [(0, 5, 0), (1, 3, 1), (2, 1, 0)]
    assert output.held[0].value is output.held[2].value
    assert output.whole().astype(float).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert run.ran.operands == {"A": [(5, ((0, 4),))]}
    assert os.listdir(tmp_path) == []


def test_without_a_layout_the_experiment_places_the_blocks(tmp_path: Path) -> None:
    leave(tmp_path, Program.VMAP)
    run = program_run(Program.VMAP, ran(None, None, None), {"C": (4, 2)}, lambda _, position: ROWS[position], tmp_path)
    assert run.outputs["C"].whole().astype(float).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_block_is_taken_from_the_part_that_has_it_and_else_from_several() -> None:
    values = np.arange(8.0).reshape(4, 2)
    held = tuple(DeviceShard(i, i, ((2 * i, 2 * i + 2), (0, 2)), i, values[2 * i : 2 * i + 2]) for i in range(2))
    output = Output("float32", (4, 2), None, held)
    assert output.block(((3, 4), (0, 2))).tolist() == [[6, 7]]
    assert np.shares_memory(output.block(((3, 4), (0, 2))), values)
    assert output.block(((1, 3), (1, 2))).tolist() == [[3], [5]]
    assert np.shares_memory(Output("float32", (2, 2), None, held[:1]).whole(), values)


KINDS = [np.float64, np.bool_, np.complex64, ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e4m3fn]


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_any_dtype_and_order_are_handed_over_bit_by_bit(tmp_path: Path, kind: Any) -> None:
    matrix = np.arange(6).reshape(2, 3).astype(kind)
    given = [matrix, matrix.T, matrix[:, 1], matrix[0, 1], matrix[:0], matrix]
    handover.leave(tmp_path / "a.bin", given)
    collected = handover.collect(tmp_path / "a.bin")
    assert [raw.tobytes() for raw in collected] == [value.tobytes() for value in given]
    assert np.array_equal(collected[1].view(kind).reshape(3, 2), matrix.T)
    assert os.listdir(tmp_path) == []


def test_an_empty_list_of_arrays_is_handed_over(tmp_path: Path) -> None:
    handover.leave(tmp_path / "a.bin", [])
    assert handover.collect(tmp_path / "a.bin") == []


def test_of_copies_the_first_device_counts() -> None:
    held = tuple(DeviceShard(i, i, ((0, 1),), i, np.array([float(i)])) for i in range(2))
    assert Output("float32", (1,), None, held).whole().tolist() == [0.0]


def test_a_crash_in_a_part_that_a_job_can_do_without_costs_only_that_part() -> None:
    crash = "say('phase', doing='auto was read', spare='origins'); os.kill(os.getpid(), signal.SIGSEGV)"
    first = f"{TYPES}say('started', step=steps[0])\n{crash}"
    second = f"{TYPES}assert job['without'] == {{'origins': 'the process was ended by SIGSEGV'}}\nfinish(*steps)"
    events, workers = hear(first, second)
    assert [line for line in described(events) if line != "log"] == ["types", "started auto", *ALL[1:-1]]
    assert errors(events) == {}
    assert len(workers.started) == 2


def test_a_crash_in_such_a_part_before_the_types_is_no_end() -> None:
    crash = "say('phase', doing='JAX was finding the types', spare='plan'); os.abort()"
    events, workers = hear(crash, f"{TYPES}assert list(job['without']) == ['plan']\nfinish(*steps)")
    assert [line for line in described(events) if line != "log"] == ALL[:-1]
    assert errors(events) == {}
    assert len(workers.started) == 2


def test_a_crash_after_such_a_part_is_one_of_the_step() -> None:
    part = "say('phase', doing='auto was read', spare='origins'); say('phase', doing='auto was read')"
    events, _ = hear(f"{TYPES}say('started', step=steps[0])\n{part}\nos.abort()", TYPES + "finish(*steps)")
    assert list(errors(events)) == ["auto"]
