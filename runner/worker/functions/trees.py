"""Holds a tree by the names of its leaves, with its structure and the expression that makes it in a program."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from jax.sharding import NamedSharding

from runner.base import dtypes
from runner.base.faults import Fault, InvalidExperiment, Key
from runner.base.lazy import dataclass
from runner.experiment.imported import DEEPEST
from runner.worker import calls


@dataclass(frozen=True)
class Tree:
    """A pytree: the names of its leaves, its structure, and its Python expression, with `$name` for a leaf."""

    leaves: tuple[str, ...]
    structure: Any
    text: str

    def renamed(self, prefix: str) -> Tree:
        """The tree with a prefix added to the names of its leaves."""
        leaves = tuple(f"{prefix}{leaf}" for leaf in self.leaves)
        return Tree(leaves, self.structure, self.text)

    def made(self, values: Mapping[str, Any]) -> Any:
        """The tree with these values of its leaves."""
        return calls.tree.unflatten(self.structure, [values[leaf] for leaf in self.leaves])


def part_of_path(part: Any) -> str:
    """One part of the path of a leaf, as a string."""
    for attribute in ("key", "name", "idx"):
        if hasattr(part, attribute):
            return str(getattr(part, attribute))
    return str(part)


def identifier(text: str) -> str:
    """The part of a leaf's name that stands for a part of its path, which may be any text."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text).strip("_")


def tree_text(tree: Any) -> str | None:
    """The Python expression of a tree of dicts, lists and tuples; None if it contains other classes."""
    kind = cast("type[Any]", type(tree))
    if kind is str:
        return tree
    if tree is None:
        return "None"
    if kind is dict:
        parts = {key: tree_text(value) for key, value in tree.items()}
        if None in parts.values() or not all(isinstance(key, str | int) for key in parts):
            return None
        # The text is a template, in which a dollar sign begins the name of a leaf.
        return "{" + ", ".join(f"{key!r}".replace("$", "$$") + f": {part}" for key, part in parts.items()) + "}"
    if kind in (list, tuple):
        parts_of = [tree_text(value) for value in tree]
        if None in parts_of:
            return None
        inside = ", ".join(str(part) for part in parts_of)
        if kind is list:
            return f"[{inside}]"
        return f"({inside},)" if len(parts_of) == 1 else f"({inside})"
    return None


def require_shallow(tree: Any, text: str, key: Key) -> None:
    """Raise `InvalidExperiment` for a tree of so many levels that Python would not parse a program with it."""
    if max((len(path) for path, _ in calls.tree_util.tree_flatten_with_path(tree)[0]), default=0) > DEEPEST:
        message = f"{text} gives a tree of more than {DEEPEST} levels, for which no program can be written"
        raise InvalidExperiment(Fault(key, f"{message}; return its leaves in a list", text, 0, len(text)))


def require_dtypes(make: Callable[[], Any], key: Key, text: str) -> None:
    """Raise `InvalidExperiment` for the first array of a tree whose dtype, or whose type, JAX does not have."""
    try:
        leaves = calls.tree_util.tree_flatten_with_path(make())[0]
    except BaseException:
        # The caller reports what it raised at first.
        return
    for path, leaf in leaves:
        dtype: Any = getattr(leaf, "dtype", None)
        if not getattr(dtype, "isnative", True) or (hasattr(dtype, "isnative") and dtype.name not in dtypes.NAMES):
            where, what = calls.tree_util.keystr(path) or "it", dtype.name if dtype.names is None else str(dtype)
            what = what if dtype.isnative else f"{what} with its bytes in reverse"
            message = f"{where} is an array of {what}, a dtype that JAX does not have: convert it, by .astype"
            raise InvalidExperiment(Fault(key, message, text, 0, len(text)))
        try:
            calls.eval_shape(lambda leaf=leaf: leaf)
        except (TypeError, ValueError):
            message = f"{calls.tree_util.keystr(path) or 'it'} has the type {type(leaf).__name__}, which is no array"
            raise InvalidExperiment(Fault(key, f"{message} of JAX or NumPy", text, 0, len(text))) from None


def types_text(tree: Any) -> str:
    """The types of a tree's leaves in words."""

    def typed(leaf: Any) -> str:
        return f"{leaf.dtype}{list(leaf.shape)}"

    return str(calls.tree.map(typed, tree)).replace("'", "")


def plain_spec(spec: Any) -> list[Any] | None:
    """A PartitionSpec as in the YAML, or None if there is none."""
    if spec is None:
        return None
    entries = spec.spec if isinstance(spec, NamedSharding) else spec
    return [list(cast("tuple[str, ...]", entry)) if isinstance(entry, tuple) else entry for entry in entries]


def spec_entry(entry: Any) -> Any:
    """An entry of a spec in the YAML as one of a PartitionSpec."""
    return tuple(cast("list[str]", entry)) if isinstance(entry, list) else entry
