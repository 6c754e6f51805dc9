"""Says in words what was raised: by the user's code, or by the runner itself, which costs one program alone."""

from __future__ import annotations

import traceback


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
