"""Reads a parameter list into its `inspect.Signature`."""

from __future__ import annotations

import functools
import inspect
from typing import Any


@functools.cache
def signature(arguments: str) -> inspect.Signature:
    """Parse a parameter list: `signature("a, axis=None, *, keepdims=False")`."""
    namespace: dict[str, Any] = {}
    exec(f"def f({arguments}): ...", namespace)  # text of the table of operations, never a user's
    return inspect.signature(namespace["f"])
