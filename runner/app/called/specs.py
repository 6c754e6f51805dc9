"""Reads the specs of a call: a tree of specs for each operand becomes a spec for each leaf.

What is wrong is said of the caller's argument, `in_specs[0]["up"]`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from runner.base.words import as_spec, listed


class WrongSpecs(Exception):
    """Specs that do not fit their operands: the `argument` of the caller, and what is wrong with it."""

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(message)
        self.argument = argument


def is_spec(value: Any) -> bool:
    """Whether a value is the spec of an array: a PartitionSpec, a NamedSharding, or None for a replicated one."""
    jax: Any = sys.modules.get("jax")
    return value is None or (
        jax is not None and isinstance(value, jax.sharding.PartitionSpec | jax.sharding.NamedSharding)
    )


def per_operand(specs: Any, names: Sequence[str], keywords: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Return the specs of each operand, and what the caller calls them; the operands' `names` end with `keywords`.

    A single spec is for all operands. Raises `ValueError` and `WrongSpecs`.
    """
    if isinstance(specs, str):
        raise WrongSpecs("in_specs", _of_text(specs))
    if specs is not None and is_spec(specs):
        return [specs] * len(names), ["in_specs"] * len(names)
    if not isinstance(specs, Sequence):
        raise ValueError(f"in_specs is {specs!r}; give a PartitionSpec, or a tree of them, for each operand")
    given = list(cast("Sequence[Any]", specs))
    places = [f"in_specs[{at}]" for at in range(len(given))]
    count = len(names) - len(keywords)
    if keywords and len(given) == count + 1 and isinstance(given[-1], Mapping):
        own, place = cast("Mapping[str, Any]", given.pop()), places.pop()
        unknown = [name for name in own if name not in keywords]
        if unknown:
            raise WrongSpecs(f"{place}[{unknown[0]!r}]", f"no such keyword argument; there are {listed(keywords)}")
        given += [own.get(name) for name in keywords]
        places += [f"{place}[{name!r}]" for name in keywords]
    elif keywords and len(given) == count:
        given += [None] * len(keywords)
        places += [f"in_specs of {name}" for name in keywords]
    if len(given) != len(names):
        entries, operands = (
            f"{n} {what}{'' if n == 1 else 's'}" for n, what in ((len(given), "spec"), (len(names), "operand"))
        )
        message = f"in_specs has {entries}, and the function is called with {operands}; give one for each"
        raise ValueError(message + ", and None for one that is replicated")
    return given, places


def spread(specs: Any, tree: Any, place: str) -> list[Any]:
    """Return the PartitionSpec of each leaf of a tree of which `specs` is a prefix. Raises `WrongSpecs`.

    `place` is what the caller calls `specs`.
    """
    tree_util: Any = sys.modules["jax"].tree_util
    if is_spec(specs):
        return [_partition(specs)] * len(tree_util.tree_leaves(tree))
    if isinstance(specs, str):
        raise WrongSpecs(place, _of_text(specs))
    mine, theirs = _children(tree_util, specs), _children(tree_util, tree)
    if mine is None or (theirs is None and isinstance(specs, tuple)):
        hint = as_spec(cast("object", specs))
        raise WrongSpecs(place, f"a spec is a PartitionSpec, not {specs!r}{hint}")
    if theirs is None:
        raise WrongSpecs(place, f"it is a tree of specs, and the operand there is {_described(tree)}; give one spec")
    for key in [key for key in mine if key not in theirs]:
        known = f"it has {listed([*theirs])}" if theirs else "it has none"
        raise WrongSpecs(f"{place}{key}", f"the operand has no {key}; {known}")
    for key in [key for key in theirs if key not in mine]:
        raise WrongSpecs(place, f"there is no spec for {key}; give one, or one for all of {place}")
    return [spec for key, part in theirs.items() for spec in spread(mine[key], part, f"{place}{key}")]


def _children(tree_util: Any, tree: Any) -> dict[str, Any] | None:
    """The parts of a node of a tree by their keys, as Python writes them; None for a leaf."""

    def is_part(part: Any) -> bool:
        return part is not tree

    pairs: Iterable[tuple[Any, Any]] = tree_util.tree_flatten_with_path(tree, is_leaf=is_part)[0]
    parts = {tree_util.keystr(path): part for path, part in pairs}
    return None if "" in parts else parts


def _partition(spec: Any) -> Any:
    empty: Any = sys.modules["jax"].sharding.PartitionSpec()
    return empty if spec is None else getattr(spec, "spec", spec)


def _of_text(text: str) -> str:
    return f"a spec is a PartitionSpec, not the text {text!r}: write P({text!r})"


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" if shape is None else f"one array of shape {list(shape)}"
