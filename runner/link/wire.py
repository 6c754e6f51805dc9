"""Messages in at one end of a connection, out at the other: how the commands that a cluster started talk to each other.

A message is a line of JSON; where it has `bytes`, so many follow it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from runner.untyped import is_dict

_AT_ONCE = 1 << 20
"""How many bytes of a file are read at once."""

_AGAIN = 0.2
"""Seconds between two tries to reach somebody who is not there yet."""

_WATCHED = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 40_000))
"""A machine that is silent for 20 s is asked four times, every 5 s, whether it is there; so long may an answer take."""


class Wire:
    """One end of a connection. What is sent to somebody who is gone is lost; `receive` tells that he is."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _WATCHED:
            # Not every system has them.
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._socket = connection
        self._read = connection.makefile("rb")
        self._sends = threading.Lock()

    def send(self, message: Mapping[str, Any], file: Path | None = None) -> None:
        """Send a message, and a file of bytes after it."""
        size = {} if file is None else {"bytes": file.stat().st_size}
        with self._sends:
            try:
                self._socket.sendall(json.dumps({**message, **size}).encode() + b"\n")
                if file is not None:
                    with open(file, "rb") as sent:
                        self._socket.sendfile(sent)
            except OSError:
                # What was sent in part is of no use: who receives it hears that there is no more.
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def receive(self, seconds: float | None = None) -> dict[str, Any] | None:
        """The next message; None when there is none any more, or none within so many seconds."""
        try:
            self._socket.settimeout(seconds)
            line = self._read.readline()
            self._socket.settimeout(None)
            message: Any = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None
        return message if is_dict(message) else None

    def read(self, size: int, into: Path | None) -> None:
        """Take the bytes that follow a message, into a file or away; as far as they come."""
        with open(os.devnull if into is None else into, "wb") as file:
            while size:
                try:
                    part = self._read.read(min(size, _AT_ONCE))
                except OSError:
                    return
                if not part:
                    return
                file.write(part)
                size -= len(part)

    def part(self, seconds: float) -> None:
        """Wait until the other end has had all and ended the connection, and end it; nobody may be reading.

        What is left unread when a connection ends takes with it what was sent last.
        """
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(seconds)
            while self._socket.recv(_AT_ONCE):
                # It is of no use any more.
                continue
        self.close()

    def close(self) -> None:
        """End the connection; the other end hears of it."""
        # The other end may have been first.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        # Who reads has come to the end by now.
        self._read.close()
        self._socket.close()


@contextmanager
def listening(address: str) -> Generator[socket.socket]:
    """Listen at the port of `address`, `host:port`. Raises `OSError` where somebody else does."""
    port = int(address.rpartition(":")[2])
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=1024) as server:
        yield server


def accepted(server: socket.socket, deadline: float) -> Wire | None:
    """The next one who connects; None after the `deadline`, a time of `time.monotonic`."""
    server.settimeout(max(0.01, deadline - time.monotonic()))
    try:
        return Wire(server.accept()[0])
    except TimeoutError:
        return None


def reached(address: str, deadline: float) -> Wire:
    """A connection to whoever listens at `address`, tried until the `deadline`. Raises `OSError`."""
    host, _, port = address.rpartition(":")
    while True:
        try:
            left = max(0.01, deadline - time.monotonic())
            return Wire(socket.create_connection((host.strip("[]"), int(port)), timeout=left))
        except OSError:
            if time.monotonic() + _AGAIN > deadline:
                raise
            time.sleep(_AGAIN)
