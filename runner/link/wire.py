"""Connections between the commands that a cluster started: messages in at one end, out at the other.

Frames and authentication are those of `multiprocessing.connection`: both ends prove that they have the key of the run
before they send anything else. A message is a frame of JSON; received data is never unpickled. If a message has
`bytes`, that many follow it, in frames.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import json
import os
import queue
import secrets
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import AuthenticationError, connection
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias, cast

from runner.base.codec import Misfit, build
from runner.base.lazy import dataclass
from runner.base.untyped import is_dict

_AT_ONCE = 1 << 20
"""The number of bytes of a file in a frame."""

_LONGEST = 1 << 30
"""The largest number of bytes in a frame, after its sender has proved its identity."""

_AGAIN = 0.2
"""The seconds between two attempts to reach a process that is not there yet."""

_INTRODUCED = 5.0
"""The seconds in which a new connection has to prove that it belongs to the run, and to introduce itself."""

_AT_THE_DOOR = 64
"""The number of connections that may authenticate at once; others wait."""

_WATCHED = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 40_000))
"""A machine that is silent for 20 s is probed four times, every 5 s; an answer may take this many seconds."""

_library: Any = connection
"""The module from which `Listener` and `Client` take their authentication."""


class Wire:
    """One end of a connection. Messages to a process that has ended are lost; `receive` then returns None."""

    def __init__(self, end: socket.socket, patience: float) -> None:
        """`patience` is the number of seconds after which a message that makes no progress is given up."""
        end.settimeout(None)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _WATCHED:
            # Not every system has them.
            if hasattr(socket, option):
                end.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        seconds = min(max(patience, 0.01), float(1 << 30))
        interval = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, interval)
        self._socket = end
        self._frames: Any = connection.Connection(os.dup(end.fileno()))
        self._sends, self._reads = threading.Lock(), threading.Lock()

    def prove(self, key: bytes, seconds: float, *, asks_first: bool) -> None:
        """Prove to the other end that this one has the key, and verify its proof.

        Raises `AuthenticationError` if it has another key, and `OSError` if it does not answer within `seconds`.
        """
        ways: list[Callable[[Any, bytes], None]] = [_library.deliver_challenge, _library.answer_challenge]
        with self._over_after(seconds):
            try:
                for way in ways if asks_first else reversed(ways):
                    way(self._frames, key)
            except (AssertionError, EOFError, ValueError) as error:
                raise OSError(
                    f"the process that answers there is not of this run{f': {error}' if str(error) else ''}"
                ) from None

    @contextmanager
    def _over_after(self, seconds: float) -> Generator[None]:
        """End the connection if the body of the `with` statement takes longer, however slowly the other end sends."""
        timer = threading.Timer(seconds, self._end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def send(self, message: Mapping[str, Any], file: Path | None = None) -> None:
        """Send a message, and a file of bytes after it."""
        size = {} if file is None else {"bytes": file.stat().st_size}
        with self._sends:
            try:
                self._frames.send_bytes(json.dumps({**message, **size}).encode())
                if file is not None:
                    with open(file, "rb") as sent:
                        while part := sent.read(_AT_ONCE):
                            self._frames.send_bytes(part)
            except OSError:
                # A partial message is of no use: closing tells the receiver that there is no more.
                self._end()

    def receive(self, seconds: float | None = None) -> dict[str, Any] | None:
        """The next message; None at the end, after `seconds` without one, or for something that is no message."""
        if seconds is None:
            frame = self._frame(None)
        else:
            with self._over_after(seconds):
                frame = self._frame(seconds)
        try:
            message: Any = None if frame is None else json.loads(frame)
        except (ValueError, RecursionError):
            return None
        return message if is_dict(message) else None

    def read(self, size: int, into: Path | None) -> None:
        """Read the bytes that follow a message, as many as come, into a file, or discard them."""
        with open(os.devnull if into is None else into, "wb") as file:
            while size:
                part = self._frame(None)
                if not part or len(part) > size:
                    self._end()
                    return
                file.write(part)
                size -= len(part)

    def _frame(self, seconds: float | None) -> bytes | None:
        with self._reads:
            try:
                if not self._frames.poll(seconds):
                    return None
                return self._frames.recv_bytes(_LONGEST)
            except (EOFError, OSError):
                return None

    def part(self, seconds: float) -> None:
        """Wait until the other end has received everything and closed the connection, then close it.

        Nobody may be reading. Closing a connection with unread data would discard what was sent last.
        """
        with self._over_after(seconds), suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while self._frame(seconds) is not None:
                # The connection is already broken.
                continue
        self.close()

    def _end(self) -> None:
        # The other end may have been first.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection; the other end notices."""
        self._end()
        # A reader sees the end now.
        with self._reads, self._sends:
            self._frames.close()
            self._socket.close()


_EVERYWHERE = "::"


def here(address: str) -> str:
    """The addresses of this machine on which to listen for processes that were told to connect to `address`.

    That is the address itself; but if it resolves to a loopback address, as a machine's own name does on Debian, others
    know the machine by another, unknown one.
    """
    host, port = _parts(address)
    if host == "localhost" or _is_loopback(host):
        return address
    where = [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    return f"[{_EVERYWHERE}]:{port}" if all(map(_is_loopback, where)) else address


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def listening(address: str) -> Generator[list[socket.socket]]:
    """Listen `here`, at `host:port`, on all addresses of this machine that the name resolves to, and no others.

    Raises `OSError` if the port is taken, or if no address is this machine's.
    """
    host, port = _parts(here(address))
    if host == _EVERYWHERE:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        with socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=1024) as server:
            yield [server]
        return
    with ExitStack() as stack:
        servers: list[socket.socket] = []
        absent: OSError | None = None
        for family, where in dict.fromkeys(
            (info[0], cast("tuple[str, int]", info[4]))
            for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        ):
            try:
                servers.append(stack.enter_context(socket.create_server(where, family=family, backlog=1024)))
            except OSError as error:
                if error.errno not in _ELSEWHERE:
                    raise
                absent = error
        if not servers:
            assert absent is not None, "a name that leads nowhere is an error"
            raise absent
        yield servers


_ELSEWHERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""The errors of listening at an address that is not this machine's, or of a kind that it does not have."""


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class Arrivals:
    """The processes that connect to an address and prove that they belong to the run, each with its first message."""

    def __init__(self, servers: Sequence[socket.socket], key: bytes, patience: float) -> None:
        self.strangers = 0
        """The number of connections that failed to authenticate."""
        self._key, self._patience = key, patience
        self._came: queue.Queue[tuple[Wire, dict[str, Any]]] = queue.Queue()
        self._door = threading.Semaphore(_AT_THE_DOOR)
        self._closed = threading.Event()
        self._openers = [threading.Thread(target=self._open, args=(server,), daemon=True) for server in servers]
        for opener in self._openers:
            opener.start()

    def next(self, deadline: float) -> tuple[Wire, dict[str, Any]] | None:
        """Return the next process; None after the `deadline`, a time of `time.monotonic`."""
        try:
            return self._came.get(timeout=min(max(0.01, deadline - time.monotonic()), threading.TIMEOUT_MAX))
        except queue.Empty:
            return None

    def close(self) -> None:
        """Accept no more connections."""
        self._closed.set()
        for opener in self._openers:
            opener.join()
        while not self._came.empty():
            self._came.get()[0].close()

    def _open(self, server: socket.socket) -> None:
        server.settimeout(_AGAIN)
        while not self._closed.is_set():
            if not self._door.acquire(timeout=_AGAIN):
                continue
            try:
                end, _ = server.accept()
            except OSError:
                # Nothing connected, or the connection is gone.
                self._door.release()
                continue
            threading.Thread(target=self._greet, args=(end,), daemon=True).start()

    def _greet(self, end: socket.socket) -> None:
        """Authenticate a new connection, which may send anything, or nothing, and read its introduction."""
        wire = Wire(end, self._patience)
        try:
            deadline = time.monotonic() + _INTRODUCED
            wire.prove(self._key, _INTRODUCED, asks_first=True)
            message = wire.receive(max(0.01, deadline - time.monotonic()))
        except (AuthenticationError, OSError):
            message = None
        finally:
            self._door.release()
        if message is None or self._closed.is_set():
            self.strangers += 1
            wire.close()
        else:
            self._came.put((wire, message))


def reached(address: str, key: Callable[[], bytes], deadline: float, patience: float, *, same: bool = False) -> Wire:
    """Connect to the process that listens at `address` and has the key, trying until the `deadline`.

    The `key` is read again for each attempt, since it may not exist yet. With `same` it does not change, so a failed
    authentication is final. Raises `OSError`, and `AuthenticationError` if the listener has another key.
    """
    while True:
        wire = None
        try:
            secret = key()
            left = max(0.01, deadline - time.monotonic())
            wire = Wire(socket.create_connection(_parts(address), timeout=left), patience)
            wire.prove(secret, min(_INTRODUCED, left), asks_first=False)
            return wire
        except (AuthenticationError, OSError) as error:
            if wire is not None:
                wire.close()
            if same and isinstance(error, AuthenticationError):
                raise
            if time.monotonic() + _AGAIN > deadline:
                raise
            time.sleep(_AGAIN)


VARIABLE = "SHARDPROOF_KEY"

_SHORTEST = 16
"""The least number of characters of a key, so that it cannot be guessed."""


class Unusable(Exception):
    """A key that must not be used; the message says why."""


class Absent(OSError):
    """There is no key yet; the message says where it is expected."""


def file(folder: Path, address: str) -> Path:
    """The file of a run's key; the run's folder is in `folder`, and its processes meet at `address`."""
    return folder / f".shardproof-{hashlib.sha256(address.encode()).hexdigest()[:16]}.key"


def given() -> bytes | None:
    """The key of the environment; None if it has none. Raises `Unusable`."""
    text = os.environ.get(VARIABLE)
    if text is not None and len(text) < _SHORTEST:
        raise Unusable(f"{VARIABLE} has {len(text)} characters; a key needs at least {_SHORTEST}")
    return None if text is None else text.encode()


@contextmanager
def left(path: Path) -> Generator[bytes]:
    """The key of a new run: the environment's, or one that is stored at `path` while this is open.

    Raises `Unusable` and `OSError`.
    """
    key = given()
    if key is not None:
        yield key
        return
    key = secrets.token_hex(32).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    # A killed run may have left one.
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(key)
        yield key
    finally:
        path.unlink(missing_ok=True)


def read(path: Path) -> bytes:
    """The key of the run that process 0 began. Raises `Unusable`, and `Absent` where it is not there yet."""
    key = given()
    if key is not None:
        return key
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Absent(
            f"set {VARIABLE} to the same value in all processes, or let them share the folder where "
            f"process 0 writes {path} ({error.strerror})"
        ) from None
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise Unusable(f"{path} must be a file that its user alone can read and write")
        key = os.read(handle, 1024)
    finally:
        os.close(handle)
    if not key:
        raise Absent(f"{path} is being written")
    return key


@dataclass(frozen=True)
class Introduction:
    """A process's introduction to process 0, once both have proved that they belong to the run."""

    number: int
    count: int
    versions: dict[str, Any]
    config: dict[str, Any]


@dataclass(frozen=True)
class Bid:
    """A request of process 0: to do a `job`, or to `end` with a `status`."""

    do: Literal["job", "kill", "start", "end"]
    job: dict[str, Any] | None = None
    status: int | None = None


@dataclass(frozen=True)
class WorkerLine:
    """An event of another process's worker, as a line; `log` is what it wrote in a job that is done."""

    event: str
    log: str = ""


@dataclass(frozen=True)
class Values:
    """The name of a file of values, and how many of its bytes follow."""

    file: str
    bytes: int


@dataclass(frozen=True)
class End:
    """How a worker ended, as text; the end of its output, and all of it."""

    how: str
    words: str
    log: str


Answer: TypeAlias = "WorkerLine | Values | End"


def bid(message: dict[str, Any]) -> Bid:
    """The message as a request. Raises `Misfit`."""
    asked = build(Bid, message)
    if asked.do == "job" and not (asked.job and isinstance(asked.job.get("definition"), dict)):
        raise Misfit("job: a job with its definition")
    if asked.do == "end" and asked.status is None:
        raise Misfit("status: the exit status of all")
    return asked


def answer(message: dict[str, Any]) -> Answer:
    """The message as an answer. Raises `Misfit`."""
    heard: Answer = build(cast("Any", WorkerLine | Values | End), message)
    if isinstance(heard, Values) and (PurePath(heard.file).name != heard.file or not heard.file.endswith(".bin")):
        raise Misfit("file: the name of a file of values")
    if isinstance(heard, Values) and heard.bytes < 0:
        raise Misfit("bytes: how many follow")
    return heard
