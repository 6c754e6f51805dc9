"""Says what the runner itself raised while it wrote one program, which costs that program alone."""

from __future__ import annotations

import traceback


def raised(doing: str, error: Exception) -> str:
    """The error of a program for an exception of the runner's own; the traceback goes to the worker's log.

    `doing`: what the runner did: `deriving the lines of one device`.
    """
    traceback.print_exception(error)
    described = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"this is a bug in shardproof, please report it: {doing} raised {described}; worker.log has the traceback"
