"""Finds what the dimensions of a graph's values mean (batch, sequence, heads, …), from the operations that they meet.

A meaning belongs to a whole group of connected dimensions. None is given where the operations do not tell it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Literal, TypeAlias

from runner.base import dtypes
from runner.base.lazy import dataclass
from runner.graph.language.operations import OPERATIONS, row_of
from runner.programs.derivation.rules import Dimensions
from runner.programs.planning.dimensions import Groups
from runner.programs.planning.model import Layable, RuledOperation

Meaning: TypeAlias = Literal[
    "batch", "sequence", "heads", "features", "experts", "vocabulary", "stages", "positions in space"
]

_SCANS = ("associative_scan", *(row.name for row in OPERATIONS.values() if row.scan is not None))
"""Operations that run along a dimension."""

_SELECTIONS = ("argmax", "argmin", "argsort", "top_k", "categorical")
"""Operations whose results are choices among the elements of floats."""

_WINDOWED = tuple(row.name for row in OPERATIONS.values() if row.windowed)

_ATTENTION = "dot_product_attention"
"""The operation that says itself what its factors mean: batch, queries, heads of the keys, query heads of each."""


@dataclass(frozen=True)
class Contraction:
    """A product of two tensors: its factors, as groups.

    - `number`, `operation`: the operation; `first`, `second`: its operands.
    - `carried`: the groups of both operands and the result; `contracted`: of both operands alone; `free`: of the
      first, and of the second, operand and the result.
    """

    number: int
    operation: RuledOperation
    first: int
    second: int
    carried: frozenset[int]
    contracted: frozenset[int]
    free: tuple[frozenset[int], frozenset[int]]

    @property
    def sides(self) -> Iterator[tuple[int, int, frozenset[int], frozenset[int]]]:
        """Each operand, the other one, and the free groups of each."""
        first, second = self.free
        yield self.first, self.second, first, second
        yield self.second, self.first, second, first


class Meanings:
    """The meaning of each group of dimensions, and the weights of a graph.

    - `weights`: the tensors that are weights, or computed from weights alone; `roots`: the arrays that these are.
    """

    def __init__(self, layable: Layable) -> None:
        self._layable = layable
        self.groups = Groups(layable)
        self._inputs = [at for at in layable.arrays if layable.tensors[at].shape]
        self._producers = {at: operation for operation in layable.operations for at in operation.results}
        self._steps = list(_steps(layable))
        self._contractions = list(self._products())
        self._arrays_of: dict[int, frozenset[int]] = {}
        self._kept: frozenset[int] | None = None
        self._data: set[int] = set()
        """The operands of products with weights that are data."""
        self._attended = dict(self._attentions())
        self._tokens = self._token_groups()
        self.roots = self._weights()
        columns = set(self._weight_groups())
        self._of_weights = frozenset(columns | {part for part, whole in self.groups.faster() if whole in columns})
        self._evidence = self._grouped()

    def of(self, group: int | None) -> Meaning | None:
        """The meaning of a group; None if it is not known."""
        if group is None:
            return None
        return next((meaning for meaning, groups in self._evidence if group in groups), None)

    # The graph, as seen here.

    def _products(self) -> Iterator[Contraction]:
        """Yield the products of two tensors with a factor in common."""
        for number, operation in enumerate(self._layable.operations):
            placed = [(each.tensor, operation.rule.operands[each.place]) for each in operation.operands if each.place]
            if not operation.work.flops or operation.called == _ATTENTION or len(placed) < 2:
                continue
            result = _factors(operation.rule.result)
            for at, (second, mine) in enumerate(placed[1:], start=1):
                a, b = frozenset[int]().union(*(_factors(each) for _, each in placed[:at])), _factors(mine)
                # What an operand after these has is summed with that one.
                left = result.union(*(_factors(each) for _, each in placed[at + 1 :]))
                carried, contracted, first, last = (
                    self._groups_of(number, factors) for factors in (a & b & left, (a & b) - left, a - b, b - a)
                )
                kept = self._groups_of(number, left)
                yield Contraction(
                    number, operation, placed[at - 1][0], second, carried, contracted, (first & kept, last & kept)
                )

    def _groups_of(self, operation: int, factors: Iterable[int]) -> frozenset[int]:
        groups = (self.groups.of_factor(operation, factor) for factor in factors)
        return frozenset(group for group in groups if group is not None)

    def _spread(self, begin: Iterable[int], *, products: bool = False, back: bool = False) -> set[int]:
        """The tensors that are computed from some; or, `back`, that some are computed from."""
        queue = list(begin)
        reached, edges = set(queue), self._edges[products, back]
        while queue:
            for after in edges.get(queue.pop(), ()):
                if after not in reached:
                    reached.add(after)
                    queue.append(after)
        return reached

    @cached_property
    def _edges(self) -> dict[tuple[bool, bool], dict[int, list[int]]]:
        """What each tensor leads to, by whether products count and whether the direction is back."""
        edges: dict[tuple[bool, bool], dict[int, list[int]]] = {}
        for products, back in itertools.product((False, True), repeat=2):
            mine = edges[products, back] = {}
            for befores, afters, product in self._steps:
                if products or not product:
                    for at in afters if back else befores:
                        mine.setdefault(at, []).extend(befores if back else afters)
        return edges

    def _attentions(self) -> Iterator[tuple[int, tuple[Contraction, Contraction | None]]]:
        """Yield groups that a softmax runs over and a product then contracts with another tensor that adds features.

        With each: that product, and the one that computed the scores.
        """
        for tensor, begin, groups in self._normalised():
            weights = self._spread(begin)
            scores = self._spread([tensor], back=True)
            asked = next((each for each in self._contractions if set(each.operation.results) & scores), None)
            for contraction in self._forward_products():
                for mine, other, _, added in contraction.sides:
                    if mine in weights and other not in weights and added:
                        yield from ((group, (contraction, asked)) for group in contraction.contracted & groups)

    def _forward_products(self) -> list[Contraction]:
        """The products without those of a backward pass that is written in a function of the user's."""
        frames = self._layable.frames
        own = [(each, frames.get(each.operation.line)) for each in self._contractions]
        return [each for each, frame in own if frame is None or not frame.derivative]

    def _normalised(self) -> Iterator[tuple[int, tuple[int, ...], frozenset[int]]]:
        """Yield the tensors whose exponentials are summed, those computed first of them, and the groups summed over."""
        for number, operation in enumerate(self._layable.operations):
            rule, begin = operation.rule, operation.results
            groups = self._groups_of(number, rule.exponentials)
            if not groups and operation.called == "sum" and operation.operands:
                producer = self._producers.get(operation.operands[0].tensor)
                while producer is not None and producer.called == "astype":
                    producer = self._producers.get(producer.operands[0].tensor)
                if producer is not None and producer.called == "exp":
                    groups, begin = self._groups_of(number, rule.reduced), producer.results
            if groups:
                yield operation.operands[0].tensor, begin, groups

    # Weights.

    def _token_groups(self) -> frozenset[int]:
        """The groups of data that its products with weights do not contract."""
        learned, data, tokens, features = self._learned(), set[int](), set[int](), set(self._choices())
        summed = set[int]()
        for product in self._contractions:
            side = self._data_of(product, learned, data)
            if side is not None:
                mine, added = side
                self._data.add(mine)
                # What a weight added may be carried by the next: heads, experts.
                features |= (product.free[0] | product.free[1]) - added - tokens
                tokens |= (added | product.carried) - features
                data |= self._sources(mine)
                summed |= product.contracted
        # A weight that mixes tokens keeps the features that others contract.
        return frozenset(tokens - summed)

    def _choices(self) -> Iterator[int]:
        """Yield the groups that a choice is spread along, as by a one-hot mask: experts, and their places."""
        for operation in self._layable.operations:
            read = {operand.tensor for operand in operation.operands}
            if read & self._selected:
                before = {group for at in read for group in self.groups.of_tensor(at)}
                for at in operation.results:
                    yield from set(self.groups.of_tensor(at)) - before

    def _data_of(self, product: Contraction, learned: set[int], data: set[int]) -> tuple[int, frozenset[int]] | None:
        """The operand of a product with a weight that is data, and what is free of it; None if both are data."""
        first, second = (self._sources(at) for at in (product.first, product.second))
        for mine, other, side in ((first, second, 0), (second, first, 1)):
            if other and other <= learned and not mine <= learned:
                return (product.second if side else product.first), product.free[side]
        if (first & data and second & data) or (product.contracted and product.contracted <= self._kept_by(learned)):
            return None
        if second & data:
            return product.second, product.free[1]
        if first & data:
            return product.first, product.free[0]
        # Activations stand before weights, unless the second operand has what no product ever contracts.
        contracted = frozenset[int]().union(*(contraction.contracted for contraction in self._contractions))
        turned = not learned and bool(product.free[1] - contracted) and product.free[0] <= contracted
        turned = turned and bool(product.free[0])
        return (product.second, product.free[1]) if turned else (product.first, product.free[0])

    def _kept_by(self, learned: set[int]) -> frozenset[int]:
        """The groups of data that products with learned arrays keep, and that none of them sums over."""
        if self._kept is None:
            kept, summed = set[int](), set[int]()
            for product in self._contractions:
                first, second = (self._sources(at) <= learned for at in (product.first, product.second))
                if first != second:
                    kept |= product.free[0 if second else 1]
                    summed |= product.contracted
            self._kept = frozenset(kept - summed)
        return self._kept

    def _sources(self, tensor: int) -> frozenset[int]:
        """The arrays that a tensor is computed from."""
        if tensor not in self._arrays_of:
            reached = self._spread([tensor], products=True, back=True)
            self._arrays_of[tensor] = frozenset(reached & set(self._inputs))
        return self._arrays_of[tensor]

    def _operands(self) -> set[int]:
        return {at for contraction in self._contractions for at in (contraction.first, contraction.second)}

    def _learned(self) -> set[int]:
        """The arrays with a gradient, or those that a step returns updated, or returns gradients of."""
        tensors = self._layable.tensors
        wanted = {at for at in self._inputs if tensors[at].differentiated}
        if wanted:
            return wanted
        ends = [at for at, tensor in enumerate(tensors) if tensor.copies and at not in self._inputs]
        updated = set[int]()
        for at in self._inputs:
            like = [end for end in ends if tensors[end].shape == tensors[at].shape]
            if dtypes.is_inexact(tensors[at].dtype) and any(
                self.groups.of_tensor(end) == self.groups.of_tensor(at) for end in like
            ):
                updated.add(at)
        used = {at for at in self._inputs if self._spread([at]) & self._operands()}
        floats = {at for at in used if dtypes.is_inexact(tensors[at].dtype)}
        # A step returns all weights; a residual block returns what it was given.
        return updated if len(floats & updated) * 2 > len(floats) else set()

    def _weights(self) -> dict[int, frozenset[int]]:
        """The tensors that are computed from weights alone, each with the arrays that it is computed from."""
        asked = {
            at
            for attended, score in self._attended.values()
            for product in (attended, score)
            if product is not None
            for at in (product.first, product.second)
        }
        roots: dict[int, frozenset[int]] = {}
        uses = self._operands() | set(self._tables())
        learned = self._learned()
        for at in self._inputs:
            if not dtypes.is_inexact(self._layable.tensors[at].dtype):
                continue
            alone = self._alone(at)
            # The gradient of a kernel is a convolution, whose windows move along the positions in the kernel.
            shared = (self._tokens & set(self.groups.of_tensor(at))) - set(self._windows(1))
            if not alone & uses or alone & self._data or (alone & asked and at not in learned):
                continue
            if not shared or ((at in learned or not learned) and self._is_expert(alone, shared)):
                roots[at] = frozenset({at})
        more = True
        while more:
            more = False
            for befores, afters, _ in self._steps:
                if befores and all(before in roots for before in befores):
                    for after in afters:
                        if after not in roots:
                            roots[after] = frozenset[int]().union(*(roots[before] for before in befores))
                            more = True
        return roots

    def _alone(self, array: int) -> set[int]:
        """The tensors that are computed from one array, without products."""
        alone, more = {array}, True
        while more:
            more = False
            for befores, afters, product in self._steps:
                if not product and befores and set(befores) <= alone and not set(afters) <= alone:
                    alone |= set(afters)
                    more = True
        return alone

    def _tables(self) -> Iterator[int]:
        """Yield the tensors in which integers look up rows."""
        for operation in self._layable.operations:
            if operation.rule.looked_up and operation.operands:
                yield operation.operands[0].tensor

    def _is_expert(self, alone: set[int], shared: frozenset[int]) -> bool:
        """Whether an array, which shares a dimension with the data, is the weights of experts, one for each part.

        It is if a nonlinear function other than a softmax stands between it and another product with such an array.
        """
        mine = [contraction for contraction in self._contractions if {contraction.first, contraction.second} & alone]
        if not mine or not all(shared <= each.carried for each in mine):
            return False
        before = self._spread(at for each in mine for at in each.operation.results)
        following = [contraction for contraction in self._contractions if shared <= contraction.carried]
        after = self._spread((at for each in following for at in (each.first, each.second)), back=True)
        between = [each for each in self._layable.operations if set(each.results) & before & after]
        # An array of the last layer has the product before it.
        if not between:
            before = self._spread(at for each in following for at in each.operation.results)
            after = self._spread((at for each in mine for at in (each.first, each.second)), back=True)
            between = [each for each in self._layable.operations if set(each.results) & before & after]
        return self._is_layer(between)

    @cached_property
    def _exponentials(self) -> set[int]:
        """The tensors of softmaxes that are computed first: the exponentials, which are summed."""
        return {at for _, begin, _ in self._normalised() for at in begin}

    def _is_layer(self, between: Sequence[RuledOperation]) -> bool:
        """Whether operations have a nonlinear function of each element, and no softmax."""
        softmax = any(self._exponentials & set(operation.results) for operation in between)
        return not softmax and any(_is_curved(operation.called) for operation in between)

    def _weight_groups(self) -> Iterator[int]:
        for product in self._contractions:
            for mine, other, free, _ in product.sides:
                if mine in self.roots and other not in self.roots:
                    yield from free | product.carried | product.contracted
        for operation in self._layable.operations:
            if operation.rule.looked_up and operation.operands and operation.operands[0].tensor in self.roots:
                yield from self.groups.of_tensor(operation.operands[0].tensor)

    # Meanings.

    def _grouped(self) -> list[tuple[Meaning, frozenset[int]]]:
        """The groups with each meaning; the first that a group has counts."""
        experts, sequence, heads = set(self._experts()), set(self._sequences()), set(self._heads())
        spatial, vocabulary = set(self._windows(2)), set(self._vocabularies())
        stages = {group for group in experts | set(self._carried_by_weights()) if group in self._rolled}
        return [
            ("stages", frozenset(stages)),
            ("experts", frozenset(experts)),
            ("heads", frozenset(heads)),
            ("sequence", frozenset(sequence - self._of_weights)),
            ("vocabulary", frozenset(vocabulary)),
            ("features", self._of_weights),
            ("positions in space", frozenset(spatial)),
            ("batch", frozenset(self._batches())),
        ]

    def _carried_by_weights(self) -> Iterator[int]:
        for product in self._contractions:
            if (product.first in self.roots) != (product.second in self.roots):
                yield from product.carried

    @cached_property
    def _rolled(self) -> frozenset[int]:
        """The groups along which blocks move to the next device in each step of a loop."""
        moved = (
            (number, factor)
            for number, operation in enumerate(self._layable.operations)
            if operation.steps > 1 and operation.called == "roll"
            for sent in operation.rule.inside
            for factor in sent.over
        )
        groups = (self.groups.of_factor(number, factor) for number, factor in moved)
        return frozenset(group for group in groups if group is not None)

    def _experts(self) -> Iterator[int]:
        """Yield the groups that a weight carries and that tokens are routed to."""
        routed = {group for at in self._selected for group in self.groups.of_tensor(at)}
        routed |= {
            group for tensor, _, groups in self._normalised() if tensor not in self.roots for group in groups
        }  # fmt: skip
        carried = set(self._carried_by_weights())
        yield from carried & routed
        yield from carried & self._tokens
        yield from self._layered()

    def _layered(self) -> Iterator[int]:
        """Yield the groups that the weights of two layers carry, with a nonlinear function between: one expert each.

        The slots of a mixture are made by weights alone, as queries are, but what attention gives has no such layers.
        """
        layers = [
            each
            for each in self._contractions
            if each.carried
            and (each.first in self.roots) != (each.second in self.roots)
            and each.operation.called not in _WINDOWED
        ]
        for first, second in itertools.permutations(layers, 2):
            if not first.carried & second.carried:
                continue
            after, before = (
                self._spread(first.operation.results),
                self._spread((second.first, second.second), back=True),
            )
            between = [each for each in self._layable.operations if set(each.results) & after & before]
            if self._is_layer(between):
                yield from first.carried & second.carried

    @cached_property
    def _selected(self) -> set[int]:
        """The tensors that are computed from choices, without products: routing masks."""
        return self._spread(
            at for operation in self._layable.operations if operation.called in _SELECTIONS for at in operation.results
        )

    def _sequences(self) -> Iterator[int]:
        """Yield the groups that attention or a scan runs over."""
        for group, (attended, asked) in self._attended.items():
            # The gradient of a softmax over a vocabulary is multiplied with weights.
            if group not in self._of_weights:
                yield group
                # Queries that are weights have no batch, so that it is free in the scores.
                yield from (asked.free[0] | asked.free[1]) - attended.carried if asked is not None else ()
        for number, operation in enumerate(self._layable.operations):
            read = {operand.tensor for operand in operation.operands}
            if operation.called in _SCANS and not read & self._selected:
                yield from self._scanned(operation, number)
            elif operation.called == _ATTENTION and (group := self.groups.of_factor(number, 1)) is not None:
                yield group
        yield from self._linear_attention()

    def _scanned(self, operation: RuledOperation, number: int) -> Iterator[int]:
        """Yield the groups along which a scan runs."""
        for sent in operation.rule.inside:
            yield from (group for factor in sent.over if (group := self.groups.of_factor(number, factor)) is not None)

    def _linear_attention(self) -> Iterator[int]:
        """Yield the groups of positions that a product of keys and values sums over, and those of its queries."""
        if not self.roots:
            return
        for product in self._contractions:
            summed = product.contracted - self._of_weights
            others = (product.free[0] | product.free[1]) - self._of_weights
            mine = {product.first, product.second}
            if not summed or others or mine & set(self.roots) or mine & self._selected:
                continue
            states = self._spread(product.operation.results)
            for each in self._contractions:
                for state, query, _, asked in each.sides:
                    if state in states and query not in states and query not in self.roots and each is not product:
                        positions = asked - self._of_weights
                        yield from summed if positions else ()
                        yield from positions

    def _heads(self) -> Iterator[int]:
        """Yield the groups of weights that attention carries along, or that its scores have for queries alone."""
        for product in self._contractions:
            if not {product.first, product.second} & set(self.roots):
                yield from product.carried & self._of_weights
        for group, (_, asked) in self._attended.items():
            if asked is not None and group not in self._of_weights:
                yield from (asked.free[0] | asked.free[1] | asked.carried) & self._of_weights
        for number, operation in enumerate(self._layable.operations):
            if operation.called == _ATTENTION:
                groups = (self.groups.of_factor(number, factor) for factor in (2, 3))
                yield from (group for group in groups if group is not None)

    def _vocabularies(self) -> Iterator[int]:
        """Yield the groups of weights that integers look up, or over which a loss normalises."""
        for tensor, begin, groups in self._normalised():
            # A choice may be made of the values themselves, and not of their exponentials.
            if tensor not in self.roots and not self._routes({*begin, *self._spread([tensor], back=True)}):
                yield from (groups - set(self._attended)) & self._of_weights
        for number, operation in enumerate(self._layable.operations):
            factors = set(operation.rule.looked_up)
            yield from (
                group
                for factor in factors
                if (group := self.groups.of_factor(number, factor)) is not None and group in self._of_weights
            )

    def _routes(self, begin: Iterable[int]) -> bool:
        """Whether a choice among values that are computed from these decides what a product reads, as a router's."""
        after = self._spread(begin)
        chosen = (
            each.results
            for each in self._layable.operations
            if each.called in _SELECTIONS and after & {operand.tensor for operand in each.operands}
        )
        return bool(self._spread(itertools.chain.from_iterable(chosen)) & self._operands())

    def _windows(self, least: int) -> Iterator[int]:
        """Yield the groups along which windows move, of convolutions in at least so many dimensions."""
        for number, operation in enumerate(self._layable.operations):
            if operation.called in _WINDOWED and len(operation.rule.halo) >= least:
                groups = (self.groups.of_factor(number, factor) for factor in operation.rule.halo)
                yield from (group for group in groups if group is not None)

    def _batches(self) -> Iterator[int]:
        """Yield the groups that are free in every product with a weight, and in no other product."""
        forward = self._forward_products()
        inner = [each for each in forward if (each.first in self.roots) == (each.second in self.roots)]
        summed = frozenset[int]().union(*(each.contracted for each in inner))
        windows = frozenset(self._windows(1))
        # The gradient of a weight sums over its batch; what other products of data sum over is none.
        data = (each for each in inner if not (each.free[0] | each.free[1]) - windows <= self._of_weights)
        mixed = frozenset[int]().union(*(each.contracted for each in data))
        # Positions of queries stand beside those of keys, which another product sums over.
        beside = {group for each in inner for _, _, mine, other in each.sides if other & summed for group in mine}
        for product in self._contractions:
            for mine, other, free, _ in product.sides:
                if other in self.roots and mine not in self.roots:
                    yield from free - beside - mixed - self._of_weights
        for number, operation in enumerate(self._layable.operations):
            if operation.called == _ATTENTION and (group := self.groups.of_factor(number, 0)) is not None:
                yield group


def _steps(layable: Layable) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], bool]]:
    """Yield what each operation and transfer reads and gives, and whether it is a product."""
    for operation in layable.operations:
        yield tuple(operand.tensor for operand in operation.operands), operation.results, bool(operation.work.flops)
    for transfer in layable.transfers:
        if not layable.tensors[transfer.after].name.startswith("grad."):
            yield (transfer.before,), (transfer.after,), False


def _factors(dimensions: Dimensions) -> frozenset[int]:
    return frozenset(factor for factors in dimensions for factor in factors)


def _is_curved(called: str) -> bool:
    """Whether an operation is a nonlinear function of each element."""
    row = row_of(called)
    return row.elementwise and row.linear is None
