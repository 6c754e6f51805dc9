"""Groups the dimensions of a graph's values that go together, by the factors of the operations between them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from runner.programs.derivation.rules import Dimensions, Rule
from runner.programs.planning.model import Layable, RuledOperation


class Part(NamedTuple):
    """A part of a dimension of a tensor: all of it, or the slowest of its factors (`stride` 1), or a faster one."""

    tensor: int
    dimension: int
    stride: int = 0


class Groups:
    """The groups of dimensions that the operations and transfers of a graph connect, each with a number.

    A factor of an operation connects the dimensions that it is a part of. A dimension that a reshape splits is
    connected by the slowest of its parts, which is what a mesh axis splits first.
    """

    def __init__(self, layable: Layable) -> None:
        self._layable = layable
        self._numbers: dict[Part, int] = {}
        self._parents: list[int] = []
        self._factors: dict[tuple[int, int], int] = {}
        for at, operation in enumerate(layable.operations):
            for dimensions, tensor in sides(layable, operation):
                for part, factor in _parts(operation.rule, dimensions, tensor):
                    self._connect(self._number(part), self._factors.setdefault((at, factor), self._number(part)))
        for transfer in layable.transfers:
            before, after = (layable.tensors[at] for at in (transfer.before, transfer.after))
            skipped = (len(before.shape) > len(after.shape), len(after.shape) > len(before.shape))
            for d in range(min(len(before.shape), len(after.shape))):
                self._connect(
                    self.of(transfer.before, d + skipped[0]), self.of(transfer.after, d + skipped[1])
                )  # fmt: skip

    def of(self, tensor: int, dimension: int) -> int:
        """The group of a dimension."""
        return self._root(self._number(Part(tensor, dimension)))

    def of_tensor(self, tensor: int) -> list[int]:
        """The groups of a tensor's dimensions longer than 1."""
        return [self.of(tensor, d) for d, size in enumerate(self._layable.tensors[tensor].shape) if size > 1]

    def of_factor(self, operation: int, factor: int) -> int | None:
        """The group of a factor of an operation, by number; None for a factor that no dimension has."""
        number = self._factors.get((operation, factor))
        return None if number is None else self._root(number)

    def faster(self) -> Iterator[tuple[int, int]]:
        """Yield the group of each faster part of a dimension, with that of the dimension's slowest part."""
        for part, number in list(self._numbers.items()):
            if part.stride:
                yield self._root(number), self.of(part.tensor, part.dimension)

    def _number(self, part: Part) -> int:
        if part not in self._numbers:
            self._numbers[part] = len(self._parents)
            self._parents.append(len(self._parents))
        return self._numbers[part]

    def _root(self, number: int) -> int:
        while self._parents[number] != number:
            self._parents[number] = self._parents[self._parents[number]]
            number = self._parents[number]
        return number

    def _connect(self, a: int, b: int) -> None:
        self._parents[self._root(a)] = self._root(b)


def sides(layable: Layable, operation: RuledOperation) -> Iterator[tuple[Dimensions, int]]:
    """Yield the factors of the dimensions of each operand and result of an operation, with its tensor."""
    for operand in operation.operands:
        if operand.place is not None:
            yield operation.rule.operands[operand.place], operand.tensor
    for tensor in operation.results:
        if len(layable.tensors[tensor].shape) == len(operation.rule.result):
            yield operation.rule.result, tensor


def _parts(rule: Rule, dimensions: Dimensions, tensor: int) -> Iterator[tuple[Part, int]]:
    """Yield the parts of a tensor's dimensions with their factors."""
    for d, factors in enumerate(dimensions):
        real = [factor for factor in factors if rule.sizes[factor] > 1]
        for position, factor in enumerate(real):
            inside = math.prod(rule.sizes[later] for later in real[position + 1 :])
            yield Part(tensor, d, inside if position else 0), factor
