"""Tells whether a value of unknown type is a list, a tuple or a mapping of anything, for the type checker.

Unlike `isinstance`, these narrow for a type checker to containers of `Any` rather than of unknown entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether a value is a list."""
    return isinstance(value, list)


def is_sequence(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether a value is a list or a tuple."""
    return isinstance(value, list | tuple)


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    """Whether a value is a tuple."""
    return isinstance(value, tuple)


def is_dict(value: object) -> TypeGuard[dict[Any, Any]]:
    """Whether a value is a dict."""
    return isinstance(value, dict)


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Whether a value is a mapping of any kind."""
    return isinstance(value, Mapping)


def leaves(value: object) -> Iterator[Any]:
    """All values in nested lists and mappings, and the keys of the mappings, as texts."""
    if is_mapping(value):
        for key, inner in value.items():
            yield str(key)
            yield from leaves(inner)
    elif is_list(value):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value
