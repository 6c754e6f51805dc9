"""Makes the table of a record's trees: leaves, bytes and layouts of each subtree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from runner.base import dtypes
from runner.base.grouping import by_key
from runner.base.lazy import dataclass
from runner.base.words import bytes_text
from runner.reports.record.model import ArrayRecord, Record
from runner.reports.show.table import Table

SHOWN = 16
"""The most rows that are shown by default."""

_HEAD = ("tree", "leaves", "bytes", "per device", "layout")


@dataclass(frozen=True)
class _Leaf:
    """The path of a leaf, its bytes, the bytes of its largest shard, and its layout."""

    path: tuple[str, ...]
    bytes: int
    per_device: int
    spec: str


def table(record: Record, most: int | None = SHOWN) -> Table[str]:
    """Return one row for each tree and its subtrees, the most bytes per device first.

    If there would be more than `most` rows, only the largest subtrees are expanded.
    """
    paths = frozenset(record.paths.values())
    outputs: dict[str, ArrayRecord] = {}
    for program in record.compiled.values():
        outputs = {**program.outputs, **outputs}
    held = {name: array for name, array in {**outputs, **record.arrays}.items() if name in paths}
    leaves = [_leaf(name, array) for name, array in held.items()]
    return Table(_HEAD, list(_rows(leaves, (), _opened(leaves, most))), right=frozenset({1, 2, 3}))


def _leaf(name: str, array: ArrayRecord) -> _Leaf:
    width = dtypes.dtype(array.dtype).itemsize
    whole, shard = math.prod(array.shape) * width, math.prod(array.shard_shape) * width
    return _Leaf(tuple(name.split("/")), whole, shard, "in no layout" if array.spec is None else str(array.spec))


def _children(leaves: Iterable[_Leaf], prefix: tuple[str, ...]) -> dict[tuple[str, ...], list[_Leaf]]:
    """Return the children of a node with their leaves, the largest first."""
    children = by_key((leaf.path[len(prefix)], leaf) for leaf in leaves if leaf.path != prefix)
    parts = sorted(children.values(), key=lambda each: -_per_device(each))
    return {_common([leaf.path for leaf in part]): part for part in parts}


def _common(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the common prefix of all paths."""
    return tuple(names[0] for names in takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False)))


def _opened(leaves: list[_Leaf], most: int | None) -> frozenset[tuple[str, ...]]:
    """Return the subtrees to expand: the largest ones, as long as their rows fit."""
    waiting = _children(leaves, ())
    opened: set[tuple[str, ...]] = set()
    rows = len(waiting)
    while waiting:
        prefix = max(waiting, key=lambda each: (_per_device(waiting[each]), -len(each)))
        inside = _children(waiting.pop(prefix), prefix)
        if inside and (most is None or rows + len(inside) <= most):
            opened.add(prefix)
            rows += len(inside)
            waiting |= inside
    return frozenset(opened)


def _rows(
    leaves: Iterable[_Leaf], prefix: tuple[str, ...], opened: frozenset[tuple[str, ...]], depth: int = 0
) -> Iterator[list[str]]:
    for path, below in _children(leaves, prefix).items():
        name = "/".join(path[len(prefix) :])
        yield ["  " * depth + ("/" if depth else "") + name, *_sums(below)]
        if path in opened:
            yield from _rows(below, path, opened, depth + 1)


def _per_device(leaves: Iterable[_Leaf]) -> int:
    return sum(leaf.per_device for leaf in leaves)


def _sums(leaves: Sequence[_Leaf]) -> list[str]:
    specs = list(dict.fromkeys(leaf.spec for leaf in leaves))
    whole, each = bytes_text(sum(leaf.bytes for leaf in leaves)), bytes_text(_per_device(leaves))
    return [str(len(leaves)), whole, each, specs[0] if len(specs) == 1 else f"{len(specs)} layouts"]
