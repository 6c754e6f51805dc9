"""Finds the keys of the file that shard each sharded dimension of a module.

A region belongs to one mesh axis: a dimension of a value, and the dimensions that correspond to it through operations,
as far as the axis shards these too. Every key that shards a dimension of a region is a reason for the sharding of all
of it: without one of several, the others still shard it. For its readers, a value whose layout a key sets begins a new
region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from runner.base.layout import Spec
from runner.graph.sharding.propagation import parsed_rule

RegionNode: TypeAlias = tuple[int, int, str]
"""The number of a value, one of its dimensions, and a mesh axis that shards it."""

RegionNodes: TypeAlias = tuple[Mapping[str, RegionNode], ...]
"""For each dimension of a value the axes that shard it."""


def whole(axis: str) -> str:
    """Return the mesh axis that one of Shardy's axes names whole or in part, as `data:(1)2` does."""
    return axis.partition(":")[0]


class Regions:
    """The regions of a module, built while it is read; `keys` are all keys in their order."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._order = {key: at for at, key in enumerate(keys)}
        self._above: dict[RegionNode, RegionNode] = {}
        self._keys: dict[RegionNode, dict[str, None]] = {}
        self._hints: dict[RegionNode, dict[str, None]] = {}
        self._moved: list[tuple[RegionNode, RegionNode]] = []
        self._before: dict[RegionNode, list[RegionNode]] | None = None
        """What `_moved` has, by the tops of the nodes after; None until it is asked for."""
        self._numbers = 0

    def number(self) -> int:
        """Return a new value's number."""
        self._numbers += 1
        return self._numbers

    def nodes(self, number: int, spec: Spec) -> RegionNodes:
        """The nodes of a value with a layout."""
        return tuple({whole(axis): (number, at, whole(axis)) for axis in axes} for at, axes in enumerate(spec))

    def key(self, node: RegionNode, key: str) -> None:
        """Record that a key shards a dimension."""
        self._keys.setdefault(self._top(node), {})[key] = None

    def hint(self, node: RegionNode, key: str) -> None:
        """Record a key that may shard a dimension, to be used if no other key does."""
        self._hints.setdefault(self._top(node), {})[key] = None

    def lie(self, nodes: RegionNodes, spec: Spec, key: str) -> None:
        """Record that a key asks for a layout that the nodes have in part."""
        for along, axes in zip(nodes, spec, strict=False):
            for axis in axes:
                if axis in along:
                    self.key(along[axis], key)

    def join(self, left: RegionNodes, right: RegionNodes) -> None:
        """Record that two values have the same layout, dimension by dimension."""
        for mine, theirs in zip(left, right, strict=False):
            for axis in mine.keys() & theirs.keys():
                self._join(mine[axis], theirs[axis])

    def move(self, before: RegionNodes, after: RegionNodes) -> None:
        """Record that a value is resharded: an axis that then shards another dimension comes from the same keys.

        Keys that shard the new dimension take precedence.
        """
        self.join(before, after)
        gone = {
            axis: node
            for along, kept in zip(before, after, strict=False)
            for axis, node in along.items()
            if axis not in kept
        }
        for along, kept in zip(after, before, strict=False):
            self._before = None
            self._moved += [(node, gone[axis]) for axis, node in along.items() if axis not in kept and axis in gone]

    def compute(self, rule: str | None, operands: Sequence[RegionNodes], results: Sequence[RegionNodes]) -> None:
        """Record that an operation's values have the same layout along the factors of its rule."""
        of_operands, of_results = parsed_rule(rule)
        first: dict[tuple[str, str], RegionNode] = {}
        for side, values in ((of_operands, operands), (of_results, results)):
            for term, nodes in zip(side, values, strict=False):
                for factors, along in zip(term, nodes, strict=False):
                    for axis, node in along.items():
                        for factor in factors:
                            self._join(first.setdefault((factor, axis), node), node)

    def origins(self, nodes: RegionNodes) -> dict[str, list[str]]:
        """For each axis that shards a value the keys that cause it, as far as they are known."""
        by_axis: dict[str, list[str]] = {}
        for along in nodes:
            for axis, node in along.items():
                keys = self._keys_of(node, set())
                if keys:
                    by_axis[axis] = sorted(keys, key=lambda key: (self._order.get(key, len(self._order)), key))
        return by_axis

    def _keys_of(self, node: RegionNode, visited: set[RegionNode]) -> set[str]:
        top = self._top(node)
        keys = set(self._keys.get(top) or self._hints.get(top) or ())
        if not keys and top not in visited:
            visited.add(top)
            for before in self._moves().get(top, ()):
                keys |= self._keys_of(before, visited)
        return keys

    def _moves(self) -> Mapping[RegionNode, Sequence[RegionNode]]:
        if self._before is None:
            self._before = {}
            for moved, before in self._moved:
                self._before.setdefault(self._top(moved), []).append(before)
        return self._before

    def _join(self, left: RegionNode, right: RegionNode) -> None:
        above, below = self._top(left), self._top(right)
        if above == below:
            return
        self._before = None
        self._above[below] = above
        for known in (self._keys, self._hints):
            if below in known:
                known.setdefault(above, {}).update(known.pop(below))

    def _top(self, node: RegionNode) -> RegionNode:
        top = node
        while top in self._above:
            top = self._above[top]
        while node != top:
            self._above[node], node = top, self._above[node]
        return top
