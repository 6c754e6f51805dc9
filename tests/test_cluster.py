"""Processes that a cluster starts for one command form one run; the end of one ends all, with a message.

The cluster is this machine, with the environment variables that Slurm and Open MPI set.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any

import pytest

from runner.app.flow import run as flow
from runner.base.faults import InvalidExperiment
from runner.experiment.config.compose import compose
from runner.experiment.config.folders import conf_folder
from runner.experiment.config.sources import Sources
from runner.experiment.program import Program
from runner.experiment.reader import read
from runner.link import cluster, lending, wire
from runner.link.cluster import Member, Owner, Remote, Unlike, Unmet, introduced
from runner.link.events import Done, Finished, encoded
from runner.link.process import Worker
from runner.link.steps import Step
from runner.link.wire import Wire
from runner.link.workers import Workers
from tests.command import ROOT, recorded, run_command
from tests.test_processes import of_one, rounded, values, without_times


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def of_slurm(number: int, count: int, port: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "1234",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": str(count),
        "SLURM_PROCID": str(number),
        "SLURM_LOCALID": str(number),
        "JAX_COORDINATOR_PORT": str(port),
    }


def of_open_mpi(number: int, count: int, port: int) -> dict[str, str]:
    return {
        "OMPI_MCA_orte_hnp_uri": f"{4096 * 77}.0;tcp://127.0.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": str(count),
        "OMPI_COMM_WORLD_RANK": str(number),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(number),
        "OMPI_VERSION": "4.1.4",
        "JAX_COORDINATOR_PORT": str(port),
    }


Variables = Callable[[int, int, int], Mapping[str, str]]


def started(
    number: int, port: int, *arguments: str, variables: Variables = of_slurm, count: int = 2
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables(number, count, port)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def commands(folder: Path, *overrides: str, variables: Variables = of_slurm) -> list[subprocess.Popen[str]]:
    """Return two processes that run case 3; the first one's folder is `0`."""
    port = free_port()
    case = ("-m", "runner", "+experiment=case3_allreduce", "target.cluster=true")
    return [
        started(number, port, *case, *overrides, f"hydra.run.dir={folder / str(number)}", variables=variables)
        for number in range(2)
    ]


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Return the exit status and the output of each."""
    results: list[tuple[int, str, str]] = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=120)
            results.append((process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
    return results


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.in_turn
def test_two_commands_that_slurm_started_are_one_run(tmp_path: Path) -> None:
    first, second = ended(commands(tmp_path, "program=shard_map", "trace=true"))
    assert (first[0], first[2]) == (0, "")
    assert second == (0, "", "")
    assert not (tmp_path / "1").exists()
    record = recorded(tmp_path / "0")
    assert record["status"] == "passed"
    assert record["target"] == {"platform": "cpu", "devices": 4, "kind": "cpu", "topology": None, "processes": 2}
    held = record["programs"]["shard_map"]["outputs"]["C"]["shards"]
    assert [(each["device"], each["process"]) for each in held] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert [each["process"] for each in record["trace"]["devices"]] == [0, 0, 1, 1]
    assert record["trace"]["taken_from"] == "shard_map"
    assert "process 1: CPU 2,3" in first[1]


@pytest.mark.whole
@pytest.mark.parametrize("variables", [of_slurm, of_open_mpi])
def test_the_record_equals_that_of_one_process(variables: Variables, tmp_path: Path) -> None:
    assert [each[0] for each in ended(commands(tmp_path, "trace=true", variables=variables))] == [0, 0]
    several = without_times(recorded(tmp_path / "0"))
    run_command("+experiment=case3_allreduce", "trace=true", f"hydra.run.dir={tmp_path / 'one'}")
    single = without_times(recorded(tmp_path / "one"))
    assert several["target"]["processes"] == 2
    assert rounded(of_one(several)) == rounded(of_one(single))
    assert [value.tolist() for _, value in values(several)] == [due.tolist() for _, due in values(single)]


@pytest.mark.whole
def test_the_programs_run_alone_in_a_cluster(tmp_path: Path) -> None:
    ended(commands(tmp_path, "program=shard_map"))
    text = (tmp_path / "0" / "program_shard_map.py").read_text()
    assert "jax.distributed.initialize()\n" in text
    port = free_port()
    results = ended([started(n, port, str(tmp_path / "0" / "program_shard_map.py")) for n in range(2)])
    for status, out, err in results:
        assert status == 0, err
        assert "[1208. 1262. 1316. 1370.]" in out


@pytest.mark.whole
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found in /proc")
@pytest.mark.parametrize("number", [0, 1])
def test_a_worker_that_is_killed_ends_its_program_and_the_rest_runs(number: int, tmp_path: Path) -> None:
    processes = commands(tmp_path, "program=[auto,shard_map]")
    wait_for((tmp_path / "0" / "hlo_auto.txt").exists)
    os.kill(workers_of(processes[number])[0], 9)
    (first, *_), (second, _, _) = ended(processes)
    assert (first, second) == (3, 3)
    programs = recorded(tmp_path / "0")["programs"]
    assert programs["auto"]["error"].startswith(f"process {number} of 2 was ended by SIGKILL")
    assert programs["shard_map"]["status"] == "passed"


@pytest.mark.whole
def test_a_command_that_is_killed_ends_the_run(tmp_path: Path) -> None:
    processes = commands(tmp_path, "program=[auto,shard_map]")
    wait_for((tmp_path / "0" / "hlo_auto.txt").exists)
    processes[1].kill()
    (first, _, _), _ = ended(processes)
    assert first == 3
    record = recorded(tmp_path / "0")
    gone = "process 1 of 2 is gone: its command ended, or its machine cannot be reached"
    assert record["programs"]["auto"]["error"] == gone
    assert record["error"] == gone


@pytest.mark.whole
def test_the_others_end_if_the_first_command_ends(tmp_path: Path) -> None:
    processes = commands(tmp_path, "program=[auto,shard_map]")
    wait_for((tmp_path / "0" / "hlo_auto.txt").exists)
    processes[0].terminate()
    _, second = ended(processes)
    lost = "process 1 of 2 has lost process 0: its command ended, or its machine cannot be reached\n"
    assert second == (3, "", lost)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (
            {"topology": "v5e:2x2"},
            "nothing runs on v5e:2x2: there is nothing to divide over a cluster's processes",
        ),
        ({"processes": 3}, "4 devices cannot be divided evenly over 3 processes; over 1, 2, 4 they can"),
        ({"processes": 2, "devices": 8}, "process 1 would have devices 4 to 7, none of them in the mesh x=2 × y=2"),
    ],
)
def test_unsupported_targets_are_refused_in_a_cluster(target: dict[str, Any], says: str) -> None:
    plain = compose("case3_allreduce", conf_folder()).plain
    with pytest.raises(InvalidExperiment) as refused:
        read({**plain, "target": {**plain["target"], "cluster": True, **target}})
    assert str(refused.value) == f"target.cluster: {says}"


def test_gpus_of_a_cluster_are_those_that_the_worker_finds() -> None:
    plain = compose("case3_allreduce", conf_folder()).plain
    target = {**plain["target"], "platform": "gpu", "cluster": True, "processes": 8}
    assert read({**plain, "target": target}).target.processes == 8


def test_a_sweep_does_not_run_over_a_cluster(tmp_path: Path) -> None:
    plain = compose("case3_allreduce", conf_folder()).plain
    workers = Workers()
    try:
        flow.run({**plain, "target": {**plain["target"], "cluster": True}}, tmp_path, Sources(), workers=workers)
    finally:
        workers.close()
    record = recorded(tmp_path)
    assert record["status"] == "invalid"
    assert "a cluster runs one experiment, whose command it starts once for each process: srun -n 2" in record["error"]


# How processes meet, with workers that do nothing.


@pytest.fixture
def idle() -> Iterator[Callable[[], Worker]]:
    """Return a factory of processes that stand in for workers."""
    made: list[Worker] = []

    def make() -> Worker:
        made.append(Worker((sys.executable, "-c", "import sys; sys.stdin.read()")))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


KEY = b"what all processes of the run have"


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give all processes the key in their environment."""
    monkeypatch.setenv(wire.VARIABLE, KEY.decode())


@dataclass
class Meeting:
    """Several processes at one address."""

    idle: Callable[[], Worker]
    count: int = 2
    address: str = field(default_factory=lambda: f"localhost:{free_port()}")

    def place(self, number: int, jax: str = "0.12.0") -> Member:
        return Member(number=number, count=self.count, address=self.address, local=None, jax=jax, worker=self.idle())

    def comes(self, number: int, config: Mapping[str, Any], jax: str = "0.12.0") -> tuple[threading.Thread, list[Any]]:
        """Connect another process; return its thread, and a list that receives the answer."""
        answers: list[Any] = []

        def come() -> None:
            connection = wire.reached(self.address, lambda: KEY, time.monotonic() + 10, 10.0)
            connection.send(introduced(self.place(number, jax), config))
            answers.append(connection.receive())
            connection.close()

        thread = threading.Thread(target=come)
        thread.start()
        return thread, answers


@pytest.mark.usefixtures("keyed")
def test_missing_processes_are_named_and_the_others_released(idle: Callable[[], Worker]) -> None:
    meeting = Meeting(idle, 4)
    thread, answers = meeting.comes(2, {})
    with pytest.raises(Unmet) as unmet:
        Owner(meeting.place(0), {}, 1.0, Path())
    thread.join()
    assert str(unmet.value) == f"processes 1, 3 of 4 did not connect to {meeting.address} within 1 s"
    assert answers == [{"do": "end", "status": 3}]


@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize(
    ("config", "jax", "says"),
    [
        ({"dims": {"I": 8}}, "0.12.0", "dims.I is 8, that of process 0 is 4"),
        ({"dims": {"I": 4, "J": 1}}, "0.12.0", "dims.J is there, process 0 has none"),
        ({"dims": {}}, "0.12.0", "dims.I is not there, process 0 has one"),
        ({"dims": {"I": 4}}, "0.10.2", "versions.jax is '0.10.2', that of process 0 is '0.12.0'"),
    ],
)
def test_differing_input_is_refused_with_the_key_that_differs(
    config: Mapping[str, Any], jax: str, says: str, idle: Callable[[], Worker]
) -> None:
    meeting = Meeting(idle, 3)
    coming = [meeting.comes(1, config, jax), meeting.comes(2, {"dims": {"I": 4}})]
    with pytest.raises(Unlike) as unlike:
        Owner(meeting.place(0), {"dims": {"I": 4}}, 10.0, Path())
    assert str(unlike.value) == f"process 1 of 3 was started with another input: {says}"
    for thread, answers in coming:
        thread.join()
        assert answers == [{"do": "end", "status": 2}]


def challenge(connection: Any) -> None:
    """Wait until the other end asks for a proof."""
    connection.recv_bytes()


def nothing(stranger: socket.socket) -> None:
    stranger.recv(1)


def leaves(stranger: socket.socket) -> None:
    stranger.close()


def saying(words: bytes) -> Callable[[socket.socket], None]:
    def say(stranger: socket.socket) -> None:
        stranger.sendall(words)
        drained(stranger)

    return say


def drop_by_drop(stranger: socket.socket) -> None:
    """Send a proof byte by byte, slowly, without end."""
    stranger.sendall(struct.pack("!i", 200))
    while True:
        stranger.sendall(b"a")
        time.sleep(0.05)


def with_another_key(stranger: socket.socket) -> None:
    with pytest.raises(AuthenticationError):
        Wire(stranger, 5.0).prove(b"another key, quite as long", 5.0, asks_first=False)


def midway(stranger: socket.socket) -> None:
    """Disconnect after half of the proof."""
    stranger.sendall(struct.pack("!i", 64) + b"ab")
    stranger.close()


def drained(stranger: socket.socket) -> None:
    while stranger.recv(1 << 16):
        continue


def proved(*messages: bytes) -> Callable[[socket.socket], None]:
    """Prove the key, and then send `messages`."""

    def say(stranger: socket.socket) -> None:
        ours = Wire(stranger, 5.0)
        ours.prove(KEY, 5.0, asks_first=False)
        for message in messages:
            stranger.sendall(message)
        drained(stranger)

    return say


def framed(message: object) -> bytes:
    text = json.dumps(message).encode()
    return struct.pack("!i", len(text)) + text


STRANGERS: dict[str, Callable[[socket.socket], None]] = {
    "says nothing": nothing,
    "leaves at once": leaves,
    "leaves midway": midway,
    "speaks HTTP": saying(b"GET / HTTP/1.1\r\n\r\n"),
    "says it is process 1": saying(b'{"number": 1, "count": 2, "versions": {}, "config": {}}\n'),
    "says it is process 1, in a frame": saying(framed({"number": 1, "count": 2, "versions": {}, "config": {}})),
    "sends {}": saying(framed({})),
    "sends a huge length": saying(struct.pack("!iQ", -1, 1 << 62)),
    "sends a negative length": saying(struct.pack("!i", -7)),
    "sends zeros": saying(bytes(1 << 20)),
    "drop by drop": drop_by_drop,
    "has another key": with_another_key,
    "has the key and says nothing": proved(),
    "has the key and sends {}": proved(framed({})),
    "has the key and sends a list": proved(framed([1])),
    "has the key and sends no JSON": proved(struct.pack("!i", 3) + b"{{{"),
    "has the key and sends a huge length": proved(struct.pack("!iQ", -1, 1 << 62)),
    "has the key and is process 7": proved(framed({"number": 7, "count": 2, "versions": {}, "config": {}})),
    "has the key and is process true": proved(framed({"number": True, "count": 2, "versions": {}, "config": {}})),
}


def visit(address: str, stranger: Callable[[socket.socket], None]) -> threading.Thread:
    """Connect a stranger to an address as soon as a process listens there."""

    def come() -> None:
        host, _, port = address.rpartition(":")
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                with socket.create_connection((host, int(port)), timeout=20) as end, suppress(OSError):
                    stranger(end)
                return
            except ConnectionRefusedError:
                time.sleep(0.01)

    thread = threading.Thread(target=come, daemon=True)
    thread.start()
    return thread


@pytest.mark.sample(3)
@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_neither_delays_nor_joins_the_run(
    stranger: str, idle: Callable[[], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_INTRODUCED", 0.5)
    meeting = Meeting(idle)
    visits = [visit(meeting.address, STRANGERS[stranger]) for _ in range(3)]
    time.sleep(0.1)
    answers: list[Any] = []

    def late() -> None:
        time.sleep(0.3)
        _, heard = meeting.comes(1, {})
        answers.append(heard)

    threading.Thread(target=late).start()
    began = time.monotonic()
    owner = Owner(meeting.place(0), {}, 10.0, Path())
    owner.end(0)
    owner.close()
    assert time.monotonic() - began < 5
    for each in visits:
        each.join(5)
        assert not each.is_alive()
    assert answers == [[{"do": "end", "status": 0}]]


@pytest.mark.sample(2)
@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize("stranger", ["says nothing", "drop by drop", "has another key", "has the key and sends {}"])
def test_strangers_do_not_extend_the_timeout_of_process_0(
    stranger: str, idle: Callable[[], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "_INTRODUCED", 2.0)
    meeting = Meeting(idle)
    visits = [visit(meeting.address, STRANGERS[stranger]) for _ in range(80)]
    began = time.monotonic()
    with pytest.raises(Unmet) as unmet:
        Owner(meeting.place(0), {}, 1.0, Path())
    assert time.monotonic() - began < 3
    assert str(unmet.value).startswith(f"process 1 of 2 did not connect to {meeting.address} within 1 s")
    if stranger == "has another key":
        assert str(unmet.value).endswith(" who connected did not have the key of the run")
    for each in visits:
        each.join(10)


class Impostor:
    """Listens at the address of process 0, and sends arbitrary messages to whoever connects."""

    def __init__(self, says: Callable[[socket.socket], None]) -> None:
        self.server = socket.create_server(("localhost", 0))
        self.address = f"localhost:{self.server.getsockname()[1]}"
        threading.Thread(target=self._serve, args=(says,), daemon=True).start()

    def _serve(self, says: Callable[[socket.socket], None]) -> None:
        with suppress(OSError):
            while True:
                end, _ = self.server.accept()
                with end, suppress(OSError, AuthenticationError):
                    says(end)


def bidding(message: object) -> Callable[[socket.socket], None]:
    """Act as process 0, and answer with `message`."""

    def bid(end: socket.socket) -> None:
        ours = Wire(end, 5.0)
        ours.prove(KEY, 5.0, asks_first=True)
        ours.receive(5.0)
        end.sendall(framed(message))
        drained(end)

    return bid


def asking_for_another_key(end: socket.socket) -> None:
    Wire(end, 5.0).prove(b"another key, quite as long", 5.0, asks_first=True)


UNREAD = "process 0 sent process 1 of 2 a request that cannot be read"


@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize(
    ("says", "message"),
    [
        (nothing, "process 1 of 2 cannot reach process 0 at {} within 1 s: "),
        (saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "process 1 of 2 cannot reach process 0 at {} within 1 s: "),
        (asking_for_another_key, "process 1 of 2 and the process at {} do not have the same SHARDPROOF_KEY"),
        (bidding({}), f"{UNREAD}: it has no 'do'"),
        (bidding({"do": "job"}), f"{UNREAD}: job: a job with its definition"),
        (bidding({"do": "end"}), f"{UNREAD}: status: the exit status of all"),
        (bidding([]), "process 1 of 2 has lost process 0"),
    ],
)  # fmt: skip
def test_an_impostor_at_the_address_receives_nothing(
    says: Callable[[socket.socket], None], message: str, idle: Callable[[], Worker]
) -> None:
    impostor = Impostor(says)
    place = Member(number=1, count=2, address=impostor.address, local=None, jax="0.12.0", worker=idle())
    began = time.monotonic()
    with pytest.raises(Unmet) as unmet:
        lending.lend(place, {}, 1.0, Path(), lambda _: Path())
    impostor.server.close()
    assert time.monotonic() - began < 8
    assert str(unmet.value).startswith(message.format(impostor.address))


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({}, "sent a message that cannot be read: it has no 'event'"),
        ({"event": "{}"}, "sent a message that cannot be read: it is not an event"),
        ({"event": 3}, "sent a message that cannot be read: event is 3, not a string"),
        (
            {"file": "../../there.bin", "bytes": 1},
            "sent a message that cannot be read: file: the name of a file of values",
        ),
        ({"file": "auto.bin", "bytes": -1}, "sent a message that cannot be read: bytes: how many follow"),
        ({"how": 1, "words": "", "log": ""}, "sent a message that cannot be read: it has no 'event'"),
    ],
)
def test_an_invalid_message_ends_the_run_with_a_message(message: Any, says: str, tmp_path: Path) -> None:
    here, peer = pair()
    remote = Remote(1, here, None)
    remote.submit(json.dumps({"arrays": str(tmp_path)}))
    over = threading.Event()
    remote.listened_to_by(lambda event: over.set() if event is None else None)
    peer.send(message)
    assert over.wait(10)
    assert remote.lost
    assert remote.ended("process 1 of 2") == f"process 1 of 2 {says}"
    here.close()
    peer.close()


class Calls:
    """An object whose pickle makes a file when it is read."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self._file,)


def test_a_pickle_in_the_place_of_a_message_or_of_values_is_not_unpickled(tmp_path: Path) -> None:
    here, peer = pair()
    theirs = pickle.dumps(Calls(tmp_path / "called"))
    peer._frames.send_bytes(theirs)
    assert here.receive(10.0) is None
    (tmp_path / "sent").write_bytes(theirs)
    peer.send({"file": "auto.bin"}, tmp_path / "sent")
    assert here.receive(10.0) == {"file": "auto.bin", "bytes": len(theirs)}
    here.read(len(theirs), tmp_path / "auto.bin")
    assert (tmp_path / "auto.bin").read_bytes() == theirs
    assert not (tmp_path / "called").exists()
    # A connection that unpickles would have called it.
    peer._frames.send_bytes(theirs)
    here._frames.recv()
    assert (tmp_path / "called").exists()
    here.close()
    peer.close()


def test_a_send_to_a_process_that_does_not_read_times_out(tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(1 << 26))
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = Wire(socket.create_connection(server.getsockname()), 0.5)
        other, _ = server.accept()
        began = time.monotonic()
        ours.send({"file": "large.bin"}, large)
        assert time.monotonic() - began < 5
        ours.close()
        other.close()


def test_the_key_file_is_private_and_removed_once_all_have_connected(
    tmp_path: Path, idle: Callable[[], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(wire.VARIABLE, raising=False)
    meeting = Meeting(idle)
    path = wire.file(tmp_path, meeting.address)
    path.write_text("of a run that was killed")
    modes: list[int] = []
    statuses: list[int] = []

    def come() -> None:
        def once_there() -> bytes:
            text = wire.read(path)
            modes.append(path.stat().st_mode & 0o777)
            return text

        path.chmod(0o600)
        connection = wire.reached(meeting.address, once_there, time.monotonic() + 10, 10.0)
        connection.send(introduced(meeting.place(1), {}))
        message = connection.receive()
        statuses.append(-1 if message is None else message["status"])
        connection.close()

    thread = threading.Thread(target=come)
    thread.start()
    time.sleep(0.3)
    owner = Owner(meeting.place(0), {}, 10.0, tmp_path)
    assert not path.exists()
    owner.end(0)
    owner.close()
    thread.join()
    assert statuses == [0]
    assert set(modes) == {0o600}


@pytest.mark.parametrize("kind", ["readable", "link", "folder"])
def test_a_key_file_that_others_can_read_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(wire.VARIABLE, raising=False)
    path = tmp_path / "key"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        (tmp_path / "theirs").write_text("a" * 64)
        path.symlink_to(tmp_path / "theirs")
    else:
        path.write_text("a" * 64)
        path.chmod(0o644)
    with pytest.raises((wire.Unusable, wire.Absent)):
        wire.read(path)


def test_without_a_key_a_process_says_where_it_looked(
    tmp_path: Path, idle: Callable[[], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(wire.VARIABLE, raising=False)
    meeting = Meeting(idle)
    with pytest.raises(Unmet) as unmet:
        lending.lend(meeting.place(1), {}, 0.3, tmp_path, lambda _: Path())
    assert str(unmet.value) == (
        "process 1 of 2 has no key of the run: set SHARDPROOF_KEY to the same value in all processes, or let them "
        f"share the folder where process 0 writes {wire.file(tmp_path, meeting.address)} (No such file or directory)"
    )


def test_a_short_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(wire.VARIABLE, "secret")
    with pytest.raises(wire.Unusable, match=r"^SHARDPROOF_KEY has 6 characters; a key needs at least 16$"):
        wire.given()


@pytest.mark.parametrize(
    ("leads_to", "address", "due"),
    [
        (["10.0.0.5"], "node001:61683", "node001:61683"),
        (["127.0.1.1"], "node001:61683", "[::]:61683"),
        (["127.0.1.1", "10.0.0.5"], "node001:61683", "node001:61683"),
        (["127.0.0.1"], "localhost:61683", "localhost:61683"),
        (["127.0.0.1"], "127.0.0.1:61683", "127.0.0.1:61683"),
        (["::1"], "[::1]:61683", "[::1]:61683"),
    ],
)
def test_process_0_listens_on_all_addresses_only_for_a_loopback_name(
    leads_to: list[str], address: str, due: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(0, 0, 0, "", (where, 0)) for where in leads_to])
    assert wire.here(address) == due


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="who listens is read in /proc")
def test_process_0_listens_only_at_its_address() -> None:
    port = free_port()
    with wire.listening(f"127.0.0.1:{port}") as servers:
        assert [server.getsockname() for server in servers] == [("127.0.0.1", port)]
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        assert [line[1] for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "0A"] == [
            f"0100007F:{port:04X}"
        ]


@pytest.mark.usefixtures("keyed")
def test_an_address_in_use_is_refused(idle: Callable[[], Worker]) -> None:
    meeting = Meeting(idle)
    with wire.listening(meeting.address), pytest.raises(Unmet) as unmet:
        Owner(meeting.place(0), {}, 1.0, Path())
    assert str(unmet.value) == (
        f"process 0 of 2 cannot listen at {meeting.address}, where JAX's coordinator is to be: Address already in use; "
        "the environment variable JAX_COORDINATOR_PORT names another port, in all processes"
    )


def pair() -> tuple[Wire, Wire]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return Wire(client, 10.0), Wire(server.accept()[0], 10.0)


def test_values_arrive_before_the_event_that_reports_them(tmp_path: Path) -> None:
    here, peer = pair()
    remote = Remote(3, here, None)
    heard: list[Any] = []
    over = threading.Event()

    def hear(event: Any) -> None:
        if isinstance(event, Finished):
            heard.append((tmp_path / "process_3" / "auto.bin").read_bytes())
        heard.append(event)
        if event is None:
            over.set()

    left = tmp_path / "left.bin"
    left.write_bytes(bytes(range(256)) * 40_000)
    remote.submit(json.dumps({"arrays": str(tmp_path)}))
    remote.listened_to_by(hear)
    assert peer.receive() == {"do": "job", "job": {"arrays": str(tmp_path)}}
    finished = Finished(step=Step(Program.AUTO), error="none")
    peer.send({"file": "auto.bin"}, left)
    peer.send({"event": encoded(finished)})
    peer.send({"event": encoded(Done(log=3)), "log": "it wrote this"})
    peer.close()
    assert over.wait(10)
    here.close()
    assert heard == [left.read_bytes(), finished, Done(log=3), None]
    assert remote.log() == "it wrote this"
    assert remote.ended("process 3 of 4") == (
        "process 3 of 4 is gone: its command ended, or its machine cannot be reached"
    )


def test_a_silent_cluster_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = (sys.executable, "-c", "import sys; sys.stdin.read()")
    monkeypatch.setattr(cluster, "Worker", lambda membership: Worker(silent, membership))
    with pytest.raises(Unmet, match=r"^the cluster did not say within 0.2 s which of its processes this is$"):
        cluster.called(0.2)
