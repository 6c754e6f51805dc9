"""What a profiler left: times of lines and collectives, bandwidth, skew, idle time, beside what was expected."""

from __future__ import annotations

import contextlib
import gzip
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import jax
import pytest

import runner
from runner.compiled.evidence import planes, timeline, xspace
from runner.compiled.evidence.model import ProfiledCollective, ProfiledDevice
from runner.compiled.evidence.planes import Event
from runner.compiled.evidence.timeline import Covered
from runner.compiled.explanation import files, profiles
from runner.compiled.explanation.files import Wanted
from runner.compiled.explanation.model import Explanation
from runner.compiled.explanation.modules import Known, UnreadableModule
from runner.reports.show import annotated, explained, measured
from tests.command import ROOT
from tests.profiled_step import step_and_operand
from tests.server import command
from tests.xspaces import Made, plane, space

# A GPU: an all-gather on its own stream during a product, then an all-reduce that nothing hides. Made by hand: what
# CPUs record has neither streams nor asynchronous collectives.

MODULE = """HloModule jit_step, is_scheduled=true, num_partitions=2

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (w: f32[256,256], x: f32[256,256]) -> f32[512,256] {
  %w = f32[256,256]{1,0} parameter(0), metadata={op_name="w"}
  %x = f32[256,256]{1,0} parameter(1), metadata={op_name="x"}
  %gather.start = (f32[256,256]{1,0}, f32[512,256]{1,0}) all-gather-start(%w), channel_id=1, \
replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true, metadata={op_name="jit(step)/take" \
source_file="/home/me/train.py" source_line=7}
  %product = f32[256,256]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
metadata={op_name="jit(step)/dot_general" source_file="/home/me/train.py" source_line=8}
  %gather.done = f32[512,256]{1,0} all-gather-done(%gather.start), metadata={op_name="jit(step)/take" \
source_file="/home/me/train.py" source_line=7}
  %reduce = f32[512,256]{1,0} all-reduce(%gather.done), channel_id=2, replica_groups={{0,1}}, \
use_global_device_ids=true, to_apply=%add, metadata={op_name="jit(step)/psum" source_file="/home/me/train.py" \
source_line=9}
  ROOT %result = f32[512,256]{1,0} negate(%reduce), metadata={op_name="jit(step)/neg" \
source_file="/home/me/train.py" source_line=10}
}
"""

_GATHER, _REDUCE = 256 * 256 * 4, 512 * 256 * 4
"""The bytes that a device sends: one of two halves, and on a ring as much as there is."""


def _executed(gather: int, reduce: int, at: int) -> tuple[list[Made], list[Made]]:
    """The kernels of one run on the streams of computing and of communicating; when the collectives begin."""

    def kernel(name: str, start: int, end: int, instruction: str) -> Made:
        return Made(name, at + start, end - start, {"hlo_op": instruction, "hlo_module": "jit_step"})

    computing = [
        kernel("gemm_split", 120, 140, "product"),
        kernel("gemm_reduce", 140, 160, "product"),
        kernel("loop_fusion", 270, 280, "result"),
    ]
    return computing, [
        kernel("ncclDevKernel_AllGather", gather, 200, "gather.start"),
        kernel("ncclDevKernel_AllReduce", reduce, 260, "reduce"),
    ]


def _gpu(gather: int, reduce: int, starts: Sequence[int], name: str, windows: Sequence[tuple[int, int]] = ()) -> bytes:
    runs = [_executed(gather, reduce, at) for at in starts]
    lines = {
        "Stream #13(Compute)": [kernel for computing, _ in runs for kernel in computing],
        "Stream #14(Collective)": [kernel for _, moving in runs for kernel in moving],
        "XLA Modules": [Made("jit_step", start, end - start) for start, end in windows],
    }
    return plane(name, lines)


def _left(folder: Path, *planes: bytes, host: str = "host") -> Path:
    there = folder / "plugins" / "profile" / "2026_11_28_03_20_04"
    there.mkdir(parents=True, exist_ok=True)
    (there / f"{host}.xplane.pb").write_bytes(space(plane("/host:CPU", {}), *planes))
    return folder


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("module") / "step.txt"
    file.write_text(MODULE)
    return file


@pytest.fixture(scope="module")
def gpus(tmp_path_factory: pytest.TempPathFactory, module: Path) -> Explanation:
    """Two runs, each in a window of its own; device 1 comes 40 ns later than device 0."""
    windows = [(100, 290), (1100, 1290)]
    folder = tmp_path_factory.mktemp("gpus")
    _left(
        folder,
        _gpu(100, 200, (0, 1000), "/device:GPU:0", windows),
        _gpu(140, 220, (0, 1000), "/device:GPU:1", windows),
    )
    return files.explain(module, Wanted(Known(mesh={"data": 2}), hardware="h100", profile=folder))


def _collective(explanation: Explanation, kind: str) -> ProfiledCollective:
    assert explanation.profile is not None
    (entry,) = [entry for entry in explanation.profile.collectives if entry.kind == kind]
    return entry


def _ns(seconds: float | None) -> int:
    assert seconds is not None
    return round(seconds * 1e9)


def test_a_device_computes_communicates_and_waits(gpus: Explanation) -> None:
    assert gpus.profile is not None
    assert (gpus.profile.devices, gpus.profile.runs) == (2, 2)
    first, second = gpus.profile.by_device
    assert _split(first) == {"run": 180, "computing": 50, "exposed": 120, "hidden": 40, "idle": 10}
    assert _split(second) == {"run": 160, "computing": 50, "exposed": 80, "hidden": 20, "idle": 30}
    assert [_ns(first.between), _ns(second.between)] == [820, 840]


def _split(device: ProfiledDevice) -> dict[str, int]:
    parts = {
        "run": device.seconds,
        "computing": device.computing,
        "exposed": device.exposed,
        "hidden": device.hidden,
        "idle": device.idle,
    }
    return {name: _ns(seconds) for name, seconds in parts.items()}


def test_a_collective_is_exposed_while_its_device_computes_nothing(gpus: Explanation) -> None:
    gather, reduce = _collective(gpus, "all-gather"), _collective(gpus, "all-reduce")
    assert gather.seconds is not None
    assert gather.exposed is not None
    assert reduce.exposed is not None
    # 100 and 60 ns long; the product takes 40 ns of the first, 20 ns of the second.
    assert (_ns(gather.seconds.median), _ns(gather.exposed.min), _ns(gather.exposed.max)) == (80, 40, 60)
    assert _ns(reduce.exposed.total) == 2 * (60 + 40)


def test_bandwidth_is_that_of_the_device_that_waits_least(gpus: Explanation) -> None:
    gather, reduce = _collective(gpus, "all-gather"), _collective(gpus, "all-reduce")
    assert (_ns(gather.shortest_s), _ns(gather.skew_s)) == (60, 40)
    assert (_ns(reduce.shortest_s), _ns(reduce.skew_s)) == (40, 20)
    # nccl-tests: algbw = S/t; busbw = algbw (n-1)/n for an all-gather, algbw 2(n-1)/n for an all-reduce.
    assert gather.bus_bandwidth == pytest.approx((512 * 256 * 4 / 60e-9) * 1 / 2)
    assert reduce.bus_bandwidth == pytest.approx((512 * 256 * 4 / 40e-9) * 2 * 1 / 2)
    assert (gather.bus_bandwidth, reduce.bus_bandwidth) == pytest.approx((_GATHER / 60e-9, _REDUCE / 40e-9))


def test_lines_have_their_measured_time(gpus: Explanation) -> None:
    assert {line: _ns(time) for line, time in explained.line_times(gpus).items()} == {
        "train.py:7": 80, "train.py:8": 40, "train.py:9": 50, "train.py:10": 10,
    }  # fmt: skip
    shares = {line.number: line.share for file in annotated.files(gpus) for line in file.lines if line is not None}
    assert shares == pytest.approx({7: 80 / 180, 8: 40 / 180, 9: 50 / 180, 10: 10 / 180})
    assert annotated.share_of(gpus) == "measured time"


def test_measured_stands_beside_what_was_expected(gpus: Explanation, capsys: pytest.CaptureFixture[str]) -> None:
    rows = explained.measured_collectives(gpus)
    assert [dict(zip(measured.COLLECTIVES, row, strict=True)) for row in rows] == [
        {
            "collective": "all-gather", "line": "train.py:7", "over": "data", "a run": "80.0 ns", "exposed": "50.0 ns",
            "at least": "5.00 µs", "reached": "999%", "busbw": "4.37e+03 GB/s", "skew": "40.0 ns",
        },
        {
            "collective": "all-reduce", "line": "train.py:9", "over": "data", "a run": "50.0 ns", "exposed": "50.0 ns",
            "at least": "5.00 µs", "reached": "999%", "busbw": "1.31e+04 GB/s", "skew": "20.0 ns",
        },
    ]  # fmt: skip
    explained.text(gpus, complete=True)
    shown = capsys.readouterr().out
    assert "measured: 2 runs on 2 devices" in shown
    assert "between runs" in shown


@pytest.mark.parametrize(
    "windows", [pytest.param([], id="no windows"), pytest.param([(90, 2300)], id="one window around all runs")]
)
def test_runs_are_told_apart_by_what_repeats(
    tmp_path: Path, module: Path, gpus: Explanation, windows: list[tuple[int, int]]
) -> None:
    # A product has two kernels in each run.
    begins = [(100, 200), (140, 220)]
    devices = [_gpu(*b, (0, 1000, 2000), f"/device:GPU:{n}", windows) for n, b in enumerate(begins)]
    taken = files.explain(module, Wanted(Known(mesh={"data": 2}), profile=_left(tmp_path, *devices))).profile
    assert taken is not None
    assert gpus.profile is not None
    assert taken.runs == 3
    assert [_split(device) for device in taken.by_device] == [_split(device) for device in gpus.profile.by_device]


def test_a_run_that_the_recording_cuts_is_left_out(tmp_path: Path, module: Path) -> None:
    cut = _executed(100, 200, 1000)[0][:1]
    computing, moving = _executed(100, 200, 0)
    windows = [Made("jit_step", 90, 200), Made("jit_step", 1090, 100)]
    lines = {"Stream #1": [*computing, *cut], "Stream #2": moving, "XLA Modules": windows}
    explanation = files.explain(module, Wanted(profile=_left(tmp_path, plane("/device:GPU:0", lines))))
    assert explanation.profile is not None
    assert explanation.profile.runs == 1
    assert "profile: 1 of the runs began before the recording, or ended after it: left out" in explanation.notes


def test_the_devices_of_a_second_host_are_numbered_after_those_of_the_first(tmp_path: Path, module: Path) -> None:
    windows = [(100, 290)]
    _left(tmp_path, _gpu(100, 200, (0,), "/device:GPU:0", windows), host="a")
    _left(tmp_path, _gpu(140, 220, (0,), "/device:GPU:0", windows), host="b")
    explanation = files.explain(module, Wanted(profile=tmp_path))
    assert explanation.profile is not None
    assert [device.device for device in explanation.profile.by_device] == [0, 1]
    assert _ns(_collective(explanation, "all-gather").skew_s) == 40


def test_a_tpu_waits_for_an_asynchronous_collective_at_its_end(tmp_path: Path, module: Path) -> None:
    def op(name: str, start: int, end: int) -> Made:
        return Made(f"%{name} = f32[] opcode()", start, end - start)

    lines = {
        "XLA Modules": [Made("jit_step(123)", 0, 300)],
        "XLA Ops": [
            op("gather.start", 10, 12),
            op("product", 12, 60),
            op("gather.done", 60, 100),
            op("reduce", 100, 150),
            op("result", 150, 160),
        ],
    }
    taken = files.explain(module, Wanted(profile=_left(tmp_path, plane("/device:TPU:0", lines))))
    assert taken.profile is not None
    assert taken.platform is None
    gather = _collective(taken, "all-gather")
    assert gather.seconds is not None
    assert gather.exposed is not None
    assert (_ns(gather.seconds.total), _ns(gather.exposed.total), gather.skew_s) == (42, 42, None)
    assert _split(taken.profile.by_device[0]) == {"run": 150, "computing": 58, "exposed": 92, "hidden": 48, "idle": 0}


@pytest.mark.parametrize("seed", range(3))
def test_what_intervals_cover_is_what_a_count_of_nanoseconds_says(seed: int) -> None:
    rng = random.Random(seed)
    intervals = [(start, start + rng.randrange(12)) for start in (rng.randrange(100) for _ in range(rng.randrange(20)))]
    covered = {at for start, end in intervals for at in range(start, end)}
    together = Covered(intervals)
    assert together.length == len(covered)
    for _ in range(50):
        start = rng.randrange(110)
        end = start + rng.randrange(40)
        assert together.within(start, end) == len(covered & set(range(start, end)))


def test_an_instruction_with_several_kernels_is_no_second_run() -> None:
    events = [Event(0, 0, -1, at, at + 5, at + 5, "kernel", name, "f") for at, name in [(0, "a"), (10, "a"), (20, "b")]]
    assert [event.run for event in timeline.with_runs(events, {"a", "b"})] == [0, 0, 0]


# A profile that JAX takes here.


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile of three runs of a step on eight devices, beside another program."""
    folder = tmp_path_factory.mktemp("log")
    subprocess.run([sys.executable, "-m", "tests.profiled_step", str(folder)], cwd=ROOT, check=True, timeout=300)
    return folder


def _file(folder: Path, ending: str) -> Path:
    (file,) = folder.glob(f"plugins/profile/*/*{ending}")
    return file


@pytest.fixture(scope="module")
def cpus(taken: Path) -> Explanation:
    return files.explain(None, Wanted(profile=taken))


@pytest.mark.in_turn
def test_the_file_is_read_as_jaxs_own_reader_reads_it(taken: Path) -> None:
    file = _file(taken, ".xplane.pb")
    count = 0
    with warnings.catch_warnings():
        # jaxlib's types have no __module__, which Python 3.12 warns of.
        warnings.simplefilter("ignore", DeprecationWarning)
        theirs = jax.profiler.ProfileData.from_file(str(file)).planes
        for mine, other in zip(xspace.read(file.read_bytes()), theirs, strict=True):
            assert mine.name == other.name
            for line, wanted in zip(mine.lines, other.lines, strict=True):
                assert line.name == wanted.name
                for event, expected in zip(line.events, wanted.events, strict=True):
                    count += 1
                    assert (event.name, dict(event.stats)) == (expected.name, dict(expected.stats))
                    assert event.start_ns == pytest.approx(expected.start_ns, abs=1)
                    assert event.duration_ns == pytest.approx(expected.duration_ns, abs=1)
    assert count > 100


def test_a_profile_alone_has_the_module_and_the_times(cpus: Explanation) -> None:
    assert (cpus.module, cpus.platform, cpus.partitions) == ("jit_step", "cpu", 8)
    assert cpus.profile is not None
    assert (cpus.profile.devices, cpus.profile.runs) == (8, 3)
    (reduce,) = cpus.profile.collectives
    assert reduce.executions == 3
    assert reduce.seconds is not None
    assert any("jit_" in note and "other programs" in note for note in cpus.notes)


def test_the_parts_of_a_run_add_up_to_it(cpus: Explanation, taken: Path) -> None:
    recording = profiles.read(taken)
    events = recording.of(recording.chosen()).events
    carriers = {"all-reduce": "all-reduce"} | {
        entry.instruction: entry.instruction for entry in cpus.placed or () if entry.kind == "all-reduce"
    }
    for run in range(3):
        executed = [event for event in events if event.run == run]
        for device in timeline.Timeline(executed, carriers, {"while"}).devices():
            assert device.computing + device.exposed + device.idle == pytest.approx(device.seconds)


def test_a_step_here_takes_its_times_from_a_profile(taken: Path, cpus: Explanation) -> None:
    step, x = step_and_operand()
    here = runner.explain(step, x, profile=taken)
    assert here.profile is not None
    assert cpus.profile is not None
    assert here.profile.collectives == cpus.profile.collectives
    assert here.versions["jax"] == jax.__version__


def test_the_trace_for_viewers_has_the_same_times(taken: Path, cpus: Explanation, tmp_path: Path) -> None:
    step, x = step_and_operand()
    shutil.copy(_file(taken, ".trace.json.gz"), tmp_path / "vm.trace.json.gz")
    module = tmp_path / "step.txt"
    module.write_text(step.lower(x).compile().as_text())
    other = files.explain(module, Wanted(profile=tmp_path)).profile
    assert other is not None
    assert cpus.profile is not None
    assert (other.runs, other.devices) == (3, 8)
    (mine,), (wanted,) = other.collectives, cpus.profile.collectives
    assert mine.shortest_s == pytest.approx(wanted.shortest_s, rel=1e-3, abs=2e-9)


@pytest.mark.in_turn
def test_the_command_says_what_was_measured(taken: Path, tmp_path: Path) -> None:
    done = command(tmp_path, "--profile", str(taken), "--html", "e.html", module="runner explain")
    assert done.returncode == 0, done.stderr
    assert "measured: 3 runs on 8 devices" in done.stdout
    assert "busbw" in done.stdout
    assert "busbw" in (tmp_path / "e.html").read_text()


def test_a_profile_without_its_module_asks_for_its_file(tmp_path: Path) -> None:
    folder = _left(tmp_path, _gpu(100, 200, (0,), "/device:GPU:0", [(90, 300)]))
    with pytest.raises(UnreadableModule, match=r"does not have the module of jit_step; give its file: explain FILE"):
        files.explain(None, Wanted(profile=folder))


def test_a_program_that_did_not_run_is_refused(tmp_path: Path) -> None:
    folder = _left(tmp_path, _gpu(100, 200, (0,), "/device:GPU:0", [(90, 300)]))
    with pytest.raises(UnreadableModule, match=r"the profile has no program jit_stop; did you mean 'jit_step'\?"):
        files.explain(None, Wanted(profile=folder, module="jit_stop"))


def test_a_folder_without_a_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableModule, match="no profile is here"):
        profiles.read(tmp_path)


@pytest.mark.parametrize("seed", range(40))
def test_a_broken_profile_gives_planes_or_a_message(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    content = bytearray(space(_gpu(100, 200, (0, 1000), "/device:GPU:0", [(90, 300)])))
    for _ in range(rng.choice([1, 3])):
        content[rng.randrange(len(content))] = rng.randrange(256)
    del content[rng.choice([len(content), rng.randrange(len(content))]) :]
    (tmp_path / "a.xplane.pb").write_bytes(content)
    with contextlib.suppress(UnreadableModule):
        assert len(profiles.read(tmp_path).recorded.events) < 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "it has no traceEvents"),
        ('{"traceEvents": [{"ph": "X", "ts": "now"}]}', "an event has no time"),
        ('{"traceEvents": [{"ph": "X", "ts": NaN}]}', "an event has no time"),
        ('{"traceEvents": [{"ph": "X", "pid": {}}]}', "an event has no process and thread"),
    ],
)
def test_a_broken_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.trace.json.gz").write_bytes(gzip.compress(text.encode()))
    with pytest.raises(UnreadableModule, match=message):
        profiles.read(tmp_path)


def test_a_trace_that_is_no_gzip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.trace.json.gz").write_bytes(b"no gzip")
    with pytest.raises(UnreadableModule, match="Not a gzipped file"):
        profiles.read(tmp_path)


def test_planes_of_several_hosts_keep_their_lines_apart() -> None:
    host = planes.Recorded((Event(0, 0, 0, 0, 5, 5, "a", "a", "f"), Event(1, 1, 0, 0, 5, 5, "a", "a", "f")))
    both = planes.together([host, host])
    assert [(event.line, event.device) for event in both.events] == [(0, 0), (1, 1), (2, 2), (3, 3)]
