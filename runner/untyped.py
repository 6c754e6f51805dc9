"""A value of which nothing is known in; whether it is a list, a tuple or a mapping out, whose entries may be anything.

`isinstance` says the same, but of the entries it tells a type checker nothing, not even that they may be anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether it is a list."""
    return isinstance(value, list)


def is_sequence(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether it is a list or a tuple."""
    return isinstance(value, list | tuple)


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    """Whether it is a tuple."""
    return isinstance(value, tuple)


def is_dict(value: object) -> TypeGuard[dict[Any, Any]]:
    """Whether it is a dict."""
    return isinstance(value, dict)


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether it is a mapping of any kind."""
    return isinstance(value, Mapping)
