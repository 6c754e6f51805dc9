"""Arguments as text in; the signature that Python checks them by out."""

from __future__ import annotations

import functools
import inspect
from typing import Any


@functools.cache
def signature(arguments: str) -> inspect.Signature:
    """The signature that `arguments` spells: `signature("a, axis=None, *, keepdims=False")`."""
    namespace: dict[str, Any] = {}
    exec(f"def f({arguments}): ...", namespace)  # the table's own text, never a user's
    return inspect.signature(namespace["f"])
