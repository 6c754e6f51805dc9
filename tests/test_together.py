"""Processes that run a job together give one result; if one of them ends, hangs or fails alone, none is left."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from runner.base.layout import Spec, Typed
from runner.experiment.program import Program
from runner.link import handover
from runner.link.events import Compilation, Event, Finished, Log, OutputTold, Ran, Ranges, Traced
from runner.link.process import Worker
from runner.link.steps import Step, StepWork
from runner.link.target import program_run, traced_values
from runner.link.together import Together, folder, put_together
from runner.link.workers import Workers
from tests.evidence import timing
from tests.test_target import ALL, JOB, SCRIPT, TYPES, assert_gone, described, errors

COUNT = 2
NUMBER = "number = int(sys.argv[-3])\n"
"""Reads the number of the script's process."""
EACH = "\nsay('done', log=os.fstat(2).st_size, resident=1 + number); sys.stdin.read()"


class Crews:
    """Processes that run one script after the other, all the same one, each with its number."""

    def __init__(self, *bodies: str) -> None:
        self.bodies = list(bodies)
        self.started: list[Worker] = []

    def __call__(self, count: int) -> Together:
        body = self.bodies.pop(0) if len(self.bodies) > 1 else self.bodies[0]

        def start(number: int) -> Worker:
            worker = Worker([sys.executable, "-S", "-c", SCRIPT + NUMBER + body], (str(number), str(count), "nowhere"))
            self.started.append(worker)
            return worker

        return Together(count, start)


def hear(*bodies: str, timeout: float = 30.0) -> tuple[list[Event], Crews]:
    """Return every event of one job; afterwards no process is left."""
    crews = Crews(*bodies)
    workers = Workers(start_together=crews)
    try:
        events = list(workers.submit(JOB, "cpu", timeout, COUNT))
    finally:
        workers.close()
    assert_gone(crews)  # type: ignore[arg-type]
    return events, crews


GOOD = TYPES + "finish(*steps)" + EACH


def test_events_of_all_processes_are_merged() -> None:
    events, crews = hear(GOOD)
    assert described(events) == ALL
    assert errors(events) == {}
    assert len(crews.started) == COUNT


def test_a_slow_process_is_waited_for() -> None:
    events, _ = hear(TYPES + "time.sleep(0.5 * number); finish(*steps)" + EACH)
    assert described(events) == ALL


DEATHS = {
    "it is killed": ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL"),
    "it leaves": ("sys.exit(7)", "ended with status 7"),
}


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("death", DEATHS)
def test_the_end_of_one_process_ends_all_and_new_ones_do_the_rest(death: str, number: int) -> None:
    statement, how = DEATHS[death]
    words = "time.sleep(0.5); print('my words', file=sys.stderr, flush=True)"
    alone = f"\nif number == {number}:\n    {words}\n    {statement}\n"
    body = f"{TYPES}finish(steps[0]); say('started', step=steps[1]){alone}\ntime.sleep(60)"
    events, crews = hear(body, GOOD)
    assert errors(events) == {"shard_map": f"process {number} of 2 {how}; its last output:\nmy words"}
    assert [line for line in described(events) if line != "log"] == ALL[:-1]
    assert len(crews.started) == 2 * COUNT


FAILS = "say('finished', step=steps[0], error=%s)"


def test_an_error_of_one_process_is_reported_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.link.together.PATIENCE", 0.2)
    alone = f"\nif number == 1:\n    {FAILS % repr('boom')}\n"
    events, _ = hear(f"{TYPES}say('started', step=steps[0]){alone}\ntime.sleep(60)", GOOD)
    assert errors(events) == {"auto": "process 1 of 2 reported an error that the others did not: boom"}


def test_an_error_caused_by_another_processs_end_is_not_reported() -> None:
    ends = "\nif number == 1:\n    time.sleep(0.5)\n    os.abort()\n"
    events, _ = hear(
        f"{TYPES}say('started', step=steps[0]){ends}{FAILS % repr('connection lost')}\ntime.sleep(60)", GOOD
    )
    assert errors(events) == {"auto": "process 1 of 2 was ended by SIGABRT"}


@pytest.mark.parametrize(
    ("error", "heard"), [("'boom'", "boom"), ("'boom' * (number + 1)", "process 0 of 2: boom")], ids=["same", "each"]
)
def test_an_error_of_all_processes_ends_none(error: str, heard: str) -> None:
    body = f"{TYPES}say('started', step=steps[0]); {FAILS % error}; finish(*steps[1:]){EACH}"
    events, crews = hear(body)
    assert errors(events) == {"auto": heard}
    assert len(crews.started) == COUNT


def test_a_hanging_process_is_ended_with_the_others() -> None:
    body = TYPES + "say('started', step=steps[0])\nif number == 1: time.sleep(60)\nfinish(*steps)" + EACH
    events, crews = hear(body, GOOD, timeout=2.0)
    assert errors(events)["auto"].startswith("no result after the timeout of 2 s, while auto was being done")
    assert len(crews.started) == 2 * COUNT


def test_the_log_says_which_process_wrote_it_and_not_that_they_met() -> None:
    met = "print('[Gloo] Rank 0 is connected to 1 peer ranks. Expected number', file=sys.stderr)"
    body = f"{TYPES}{met}; number and print('hello', file=sys.stderr); finish(*steps){EACH}"
    events, _ = hear(body)
    assert events[-1] == Log(text="process 1 of 2:\nhello\n")


def test_idle_processes_of_another_kind_are_ended() -> None:
    crews = Crews(GOOD)
    workers = Workers(start_together=crews)
    try:
        for kind in ("4 devices", "8 devices"):
            assert described(list(workers.submit(JOB, kind, 30.0, COUNT)))[0] == "types"
            assert [worker._process.poll() is None for worker in crews.started[-COUNT:]] == [True] * COUNT
        assert len(crews.started) == 2 * COUNT
        assert [worker._process.poll() is None for worker in crews.started[:COUNT]] == [False] * COUNT
    finally:
        workers.close()


# The outputs of several processes.


ROWS: tuple[Ranges, ...] = (((0, 2), (0, 2)), ((2, 4), (0, 2)))


def part(*shards: tuple[int, int]) -> Finished:
    """Return the events of a process whose devices hold rows of an output: each device and its entry in the file."""
    ran = Ran(
        device_ids=[0, 1, 2, 3],
        outputs={
            "C": OutputTold(
                dtype="bfloat16",
                spec=Spec.of(["x", None]),
                shards=[(device, ROWS[device % 2], at) for device, at in shards],
            )
        },
        operands={"A": [(device, ((0, 4),)) for device, _ in shards]},
        stderr="",
        compilation=Compilation(memory=None, cost=None, timing=timing()),
    )
    return Finished(step=Step(Program.AUTO), result=ran)


def left(path: Path, *values: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    handover.leave(path, [np.asarray(value).astype(ml_dtypes.bfloat16) for value in values])


def test_the_shards_of_all_are_put_together_and_replicas_that_agree_are_one_copy(tmp_path: Path) -> None:
    rows = [np.arange(4).reshape(2, 2), np.arange(4, 8).reshape(2, 2)]
    left(tmp_path / "auto.bin", *rows)
    left(folder(tmp_path, 1) / "auto.bin", rows[0] + 1, rows[1])
    together = put_together([part((0, 0), (1, 1)), part((2, 0), (3, 1))])
    assert isinstance(together.result, Ran)
    run = program_run(Program.AUTO, together.result, {"C": (4, 2)}, lambda *_: (), tmp_path)
    assert [(held.device, held.ranges, held.copy) for held in run.outputs["C"].held] == [
        (0, ROWS[0], 0),
        (1, ROWS[1], 1),
        (2, ROWS[0], 2),
        (3, ROWS[1], 1),
    ]
    assert run.outputs["C"].held[2].value.astype(int).tolist() == [[1, 2], [3, 4]]
    assert run.ran.operands == {"A": [(device, ((0, 4),)) for device in range(4)]}
    assert not list(tmp_path.rglob("*.bin"))


def test_results_of_the_first_process_alone_are_kept() -> None:
    assert put_together([part((0, 0)), Finished(step=Step(Program.AUTO))]) == part((0, 0))


def test_the_rows_of_a_trace_are_in_the_order_of_the_mesh(tmp_path: Path) -> None:
    left(tmp_path / "trace.bin", [[0.0], [2.0]])
    left(folder(tmp_path, 1) / "trace.bin", [[1.0], [3.0]])
    step = Step(Program.SHARD_MAP, StepWork.TRACE)
    parts = [
        Finished(step=step, result=Traced(device_ids=[0, 2, 1, 3], values={"y": Typed((1,), "bfloat16")}, rows=[rows]))
        for rows in ([0, 2], [1, 3])
    ]
    together = put_together(parts).result
    assert isinstance(together, Traced)
    assert traced_values(together, tmp_path)["y"].astype(float).tolist() == [[0], [1], [2], [3]]
