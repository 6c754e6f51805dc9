"""Reads and checks the messages between the commands that a cluster started; anything else is refused."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any, Literal, TypeAlias, cast

from runner.base.codec import Misfit, build
from runner.base.lazy import dataclass


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


def introduction(message: dict[str, Any]) -> Introduction:
    """The message as an introduction. Raises `Misfit`."""
    return build(Introduction, message)


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
