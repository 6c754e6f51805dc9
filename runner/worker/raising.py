"""Says in words what was raised: by the user's code, or by the runner itself, which costs one program alone."""

from __future__ import annotations

import traceback
from pathlib import Path

from runner.base.faults import Fault, InvalidExperiment, Key
from runner.worker.versions import is_own


def text_of(error: BaseException) -> str:
    """The text of an exception, whose class may be the user's own and fail to give one."""
    try:
        return str(error)
    except BaseException as other:
        return f"its __str__ raises {type(other).__name__}"


def raised(doing: str, error: Exception) -> str:
    """The error of a program for an exception of the runner's own; the traceback goes to the worker's log.

    `doing`: what the runner did: `deriving the lines of one device`.
    """
    traceback.print_exception(error)
    text = text_of(error)
    described = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"this is a bug in shardproof, please report it: {doing} raised {described}; worker.log has the traceback"


def reported(error: BaseException, what: str, key: Key, call: str = "", remedy: str = "") -> InvalidExperiment:
    """The report of an exception of the user's code, with its line if known."""
    lines = [line.strip() for line in text_of(error).split("\n") if line.strip()]
    # JAX says of out_specs what is wrong with them in the lines after a colon.
    first = " ".join(lines[: 3 if lines and lines[0].endswith(":") else 1])
    # The place follows in JAX's words, and is given here as a line.
    first = first.partition(" This error occurs at source:")[0]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno} {frames[-1].line}" if frames else ""
    message = f"{what}{where}: {type(error).__name__}" + (f": {first}" if first else "")
    message += f"\n{remedy}" if remedy else ""
    return InvalidExperiment(Fault(key, message, call or None, 0, len(call)))
