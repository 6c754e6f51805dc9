"""Computes the bytes that a device needs at each time, by the choices of a graph.

Besides arrays and outputs a device needs memory for values in between. An operation takes one step of the schedule, in
the order of the graph; the backward pass follows the forward pass, in reverse. In memory are the operands and results
of products, from the step that computes them to the last one that reads them; other operations are fused into their
readers, and write into the memory of what they read last. The backward pass reads what the forward pass kept for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from runner.base.lazy import dataclass
from runner.graph.language.operations import row_of
from runner.programs.planning.model import Layable, Transfer
from runner.programs.planning.network import Choice, Costs, Numbers, Table
from runner.programs.planning.rematerialising import is_linear
from runner.programs.planning.spaces import Space
from runner.programs.planning.tables import Tables, by_tensor


@dataclass(frozen=True)
class _Buffer:
    """The bytes of a buffer, for each choice of one variable or of two, and the first and the last step with it."""

    variables: tuple[int, ...]
    table: Table
    first: int
    last: int


class Memory:
    """The bytes that a device needs, as a function of the choices of tensors and operations."""

    def __init__(self, tables: Tables, platform: str = "cpu") -> None:
        self._tables, self._layable = tables, tables.layable
        self._fuses = platform == "tpu"
        """Whether the compiler computes the operands of products, and softmax, inside of products."""
        self._host = platform == "cpu"
        """Whether the compiler is XLA's for CPUs, with copies of its own: `_of_host`."""
        self._steps = _Schedule(tables.layable, fuses=self._fuses)
        self._shared: dict[Hashable, Table] = {}

    def needed(self, choice: Choice) -> float:
        """The most bytes that a device needs at a time."""
        return float(self.profile(choice).max())

    @cached_property
    def least(self) -> float:
        """The least bytes that arrays and outputs take."""
        alone = self._tables.network.alone
        return sum(
            float(costs[np.isfinite(alone[at])].min()) for at, costs in by_tensor(self._tables).items() if costs.size
        )

    def priced(self, prices: Costs) -> Mapping[tuple[int, ...], Table]:
        """What memory costs at a price per byte at each step, for each choice of a variable, or of two in order."""
        before = np.concatenate([[0.0], np.cumsum(prices)])
        costs: dict[tuple[int, ...], Table] = {}
        # Pairs that share a table, for as long a time, keep sharing it.
        shared: dict[tuple[Table, float], Table] = {}
        summed: dict[tuple[Table, Table], Table] = {}
        for buffer in self._buffers:
            price = float(before[buffer.last + 1] - before[buffer.first])
            if price <= 0.0:
                continue
            key = buffer.table, price
            if key not in shared:
                shared[key] = Table(price * buffer.table.costs)
            known, more = costs.get(buffer.variables), shared[key]
            if known is not None:
                if (known, more) not in summed:
                    summed[known, more] = Table(known.costs + more.costs)
                more = summed[known, more]
            costs[buffer.variables] = more
        return costs

    def profile(self, choice: Choice) -> Costs:
        """The bytes that a device needs at each step."""
        changes = np.zeros(self._steps.last + 2)
        for buffer in self._buffers:
            size = float(buffer.table.costs[tuple(choice[at] for at in buffer.variables)])
            changes[buffer.first] += size
            changes[buffer.last + 1] -= size
        return np.cumsum(changes)[:-1]

    @cached_property
    def _buffers(self) -> tuple[_Buffer, ...]:
        return (
            *self._held(),
            *self._between(),
            *self._passed(),
            *self._stacked(),
            *self._copied(),
            *self._differentiated(),
            *(self._of_host() if self._host else ()),
        )

    def _held(self) -> Iterator[_Buffer]:
        """Yield arrays and outputs, which stay in memory."""
        for at, tensor in enumerate(self._layable.tensors):
            arrays = tensor.copies - tensor.outputs
            if arrays:
                yield _Buffer((at,), self._of_tensor(at, arrays), 0, self._steps.last)
            if tensor.outputs and at not in self._layable.gradients:
                # The memory of an output serves other values until the output is computed.
                yield _Buffer((at,), self._of_tensor(at, tensor.outputs), self._steps.made.get(at, 0), self._steps.last)

    def _between(self) -> Iterator[_Buffer]:
        """Yield the values between operations, and those inside one."""
        steps, tensors = self._steps, self._layable.tensors
        for at, first in steps.made.items():
            if at not in steps.stored:
                continue
            again = steps.recomputed.get(at)
            # A compiler for TPUs keeps what a softmax reads in float32.
            wide = 2 if self._fuses and at in steps.exponentiated and tensors[at].dtype in _HALF else 1
            if again is None:
                last = steps.until[at]
                # In a loop each step keeps a value of its own for the backward pass.
                many = tensors[at].steps if last > steps.turn >= first else 1
                yield _Buffer((at,), self._of_tensor(at, wide * many), first, last)
            else:
                yield _Buffer((at,), self._of_tensor(at, wide), first, max(first, steps.until_turn.get(at, first)))
                yield _Buffer((at,), self._of_tensor(at, wide), again, max(again, steps.until[at]))
        for number, operation in enumerate(self._layable.operations):
            forward, back = steps.forward(number), steps.backward(number)
            kept, many, end = forward + 1, operation.steps, steps.backward_end(number)
            if operation.recomputed is not None:
                kept, many = steps.backward(operation.recomputed), 1
            if operation.differentiated and row_of(operation.called).exponential and not self._fuses:
                for at in (operand.tensor for operand in operation.operands if tensors[operand.tensor].differentiated):
                    yield _Buffer((at,), self._of_tensor(at, 1), forward, forward)
                    yield _Buffer((at,), self._of_tensor(at, many), kept, back)
            if not operation.inside:
                continue
            variable = self._tables.variable(number)
            shares = np.array([operation.inside / way.shards for way in self._tables.ways[number]])
            # Softmax is computed inside of both products, and its cotangent has the width of the result.
            alive = 1.0 if self._fuses else 2.0
            last = min(1.0, tensors[operation.results[0]].itemsize / 4) if self._fuses else 1.0
            yield _Buffer((variable,), Table(alive * shares), forward, forward)
            if operation.differentiated:
                yield _Buffer((variable,), Table(alive * shares * many), kept, end)
                yield _Buffer((variable,), Table(last * shares), back, end)

    def _passed(self) -> Iterator[_Buffer]:
        """Yield what a loop stacks for operations after it, such as the inputs of layers for a loop that goes back."""
        for at, (first, last) in self._steps.stacked.items():
            yield _Buffer((at,), self._of_tensor(at, 1), first, last)

    def _stacked(self) -> Iterator[_Buffer]:
        """Yield what loops keep of operations that are fused elsewhere: JAX stacks it for the backward pass."""
        steps, kept = self._steps, dict[int, tuple[int, int]]()
        for number, operation in enumerate(self._layable.operations):
            again = operation.recomputed is not None
            if operation.steps == 1 or not operation.differentiated or (is_linear(operation) and not again):
                continue
            forward, back, many = steps.forward(number), steps.backward(number), operation.steps
            read = [operand.tensor for operand in operation.operands]
            for at in read:
                tensor = self._layable.tensors[at]
                if tensor.steps == many and not tensor.copies and at not in steps.stored and at not in steps.recomputed:
                    first, last = kept.get(at, (forward, back))
                    kept[at] = min(first, forward), max(last, back)
            more = KEPT.get(operation.called, 1) - 1
            if more and read and not again:
                yield _Buffer((read[0],), self._of_tensor(read[0], more * many), forward, back)
        for at, (first, last) in kept.items():
            yield _Buffer((at,), self._of_tensor(at, self._layable.tensors[at].steps), first, last)

    def _copied(self) -> Iterator[_Buffer]:
        """Yield the copies of operands that are resharded for an operation, and results before they are completed."""
        for at, tensor in enumerate(self._layable.tensors):
            if tensor.readers > 1 and at in self._steps.read:
                first, last = self._steps.read[at]
                yield _Buffer((at,), self._shared_copy(at), first, last)
        for transfer in self._layable.transfers:
            if transfer.kind == "slice" and transfer.after in self._steps.read:
                # An array whose slices are laid out otherwise is resharded as a whole.
                first, last = self._steps.read[transfer.after]
                yield _Buffer((transfer.before, transfer.after), self._resliced(transfer), first, last)
        for number, operation in enumerate(self._layable.operations):
            forward, back = self._steps.forward(number), self._steps.backward(number)
            keeps = operation.differentiated and operation.steps == 1 and not is_linear(operation)
            for place in range(len(operation.operands)):
                pair, table = self._pair(number, place), self._operand(number, place)
                until = self._steps.read_again(number, place)
                yield _Buffer(pair, table, forward, until if keeps else forward)
                if operation.differentiated and not keeps:
                    yield _Buffer(pair, table, back, until)
            for place, result in enumerate(operation.results):
                if result not in self._steps.stored and operation.steps == 1 and result not in self._steps.recomputed:
                    # What a collective completes is in memory, also where others are fused into their readers.
                    pair, last = (result, self._tables.variable(number)), self._steps.until.get(result, forward)
                    yield _Buffer(pair, self._completed(number, place), forward, max(forward, last))
                if result in self._steps.stored or self._layable.tensors[result].copies:
                    pair = result, self._tables.variable(number)
                    yield _Buffer(pair, self._result(number, place), forward, forward)
                    if operation.recomputed is not None and operation.differentiated:
                        again = self._steps.backward(operation.recomputed)
                        yield _Buffer(pair, self._result(number, place), again, again)
                    if operation.differentiated:
                        end = self._steps.backward_end(number)
                        yield _Buffer(pair, self._cotangent(number, place), back, end)

    def _differentiated(self) -> Iterator[_Buffer]:
        """Yield the cotangents and gradients of the backward pass."""
        steps, tensors = self._steps, self._layable.tensors
        gradients: dict[int, tuple[int, int]] = {}
        for number, operation in enumerate(self._layable.operations):
            if not operation.differentiated:
                continue
            for result in operation.results:
                if result in steps.stored - steps.derived and tensors[result].differentiated:
                    first, last = steps.cotangent(number, result)
                    yield _Buffer((result,), self._of_tensor(result, 1), first, last)
            for place, operand in enumerate(operation.operands):
                tensor = tensors[operand.tensor]
                if not tensor.differentiated:
                    continue
                array, begin = steps.gradient_of(number, place)
                if array in steps.gradients:
                    first, _ = gradients.get(array, (begin, begin))
                    gradients[array] = min(first, begin), steps.gradients[array]
                if operation.work.flops:
                    step = steps.gradient(number, place)
                    yield _Buffer(self._pair(number, place), self._gradient(number, place), step, step)
        for at, (first, last) in gradients.items():
            yield _Buffer((at,), self._of_tensor(at, 1), first, max(first, last))

    def _of_host(self) -> Iterator[_Buffer]:
        """Yield copies that XLA makes for CPUs.

        Products of half precision are computed in float32, also by Eigen and YNNPACK; the copies of their operands
        serve the backward pass too. The gradient of a convolution's kernel is computed from transposed copies.
        """
        steps, tensors = self._steps, self._layable.tensors
        for number, operation in enumerate(self._layable.operations):
            forward, back = steps.forward(number), steps.backward(number)
            if not operation.work.flops:
                continue
            for place, operand in enumerate(operation.operands):
                if tensors[operand.tensor].dtype in _HALF:
                    until = steps.read_again(number, place) if operation.differentiated else forward
                    many = operation.steps if operation.recomputed is None else 1
                    table = Table(self._widened(number, place) * (many if until > steps.turn >= forward else 1))
                    yield _Buffer((self._tables.variable(number),), table, forward, until)
            if operation.differentiated and operation.rule.halo:
                for at in (operation.operands[0].tensor, *operation.results):
                    yield _Buffer((at,), self._of_tensor(at, 1), back, back)

    def _widened(self, number: int, place: int) -> Costs:
        """The bytes of an operand in float32, for each way of a product."""
        space = self._tables.lying[self._layable.operations[number].operands[place].tensor].space
        return 2 * space.held[np.array([way.needed[place] for way in self._tables.ways[number]])]

    def _pair(self, number: int, place: int) -> tuple[int, int]:
        return self._layable.operations[number].operands[place].tensor, self._tables.variable(number)

    def _of_tensor(self, at: int, many: int) -> Table:
        lying = self._tables.lying[at]
        key = lying, many
        if key not in self._shared:
            self._shared[key] = Table(many * lying.space.held[lying.own])
        return self._shared[key]

    def _shared_copy(self, at: int) -> Table:
        """The bytes of the second layout of a tensor, for each of its choices."""
        lying = self._tables.lying[at]
        key = lying, "shared"
        if key not in self._shared:
            self._shared[key] = Table(lying.space.copied[lying.own, lying.held])
        return self._shared[key]

    def _resliced(self, transfer: Transfer) -> Table:
        """The bytes of a copy of an array in the layout of its slices, for each choice of it and of a slice."""
        before, after = self._tables.lying[transfer.before], self._tables.lying[transfer.after]
        key = before, after, "resliced"
        if key not in self._shared:
            stops = self._tables.stops(transfer)
            self._shared[key] = Table(before.space.copied[before.own[:, None], stops[None, :]])
        return self._shared[key]

    def _operand(self, number: int, place: int) -> Table:
        """The bytes of an operand's copy."""
        operation = self._layable.operations[number]
        lying, ways = self._tables.lying[operation.operands[place].tensor], self._tables.ways[number]
        key = self._tables.kinds[number], "operand", place
        if key not in self._shared:
            space, needed = lying.space, np.array([way.needed[place] for way in ways])
            from_own = space.cost[lying.own[:, None], needed] <= space.cost[lying.held[:, None], needed]
            before = np.where(from_own, lying.own[:, None], lying.held[:, None])
            self._shared[key] = Table(space.copied[before, needed])
        return self._shared[key]

    def _result(self, number: int, place: int) -> Table:
        """The bytes of a result before it is completed, and of the operands that the compiler reshards."""
        key = self._tables.kinds[number], "result", place
        if key not in self._shared:
            operation = self._layable.operations[number]
            lying = self._tables.lying[operation.results[place]]
            possible, ways = self._tables.possible(number), self._tables.result_ways(number, place)
            partial = np.array([way.partial[place] for way in possible])[ways]
            summed = np.array([bool(way.over) for way in possible])[ways]
            costs = self._moved(lying.space, partial, lying.own[:, None], summed, fused=not operation.work.flops)
            self._shared[key] = Table(costs + self._resharded(number, ways, None))
        return self._shared[key]

    def _completed(self, number: int, place: int) -> Table:
        """The bytes of a result that a collective completes, or moves to its layout."""
        key = self._tables.kinds[number], "completed", place
        if key not in self._shared:
            lying = self._tables.lying[self._layable.operations[number].results[place]]
            partial = np.array([way.partial[place] for way in self._tables.ways[number]])
            moved = lying.space.copied[partial[None, :], lying.own[:, None]] > 0
            self._shared[key] = Table(np.where(moved, lying.space.held[lying.own][:, None], 0.0))
        return self._shared[key]

    def _cotangent(self, number: int, place: int) -> Table:
        """The bytes of the copy of a result's cotangent."""
        key = self._tables.kinds[number], "cotangent", place
        if key not in self._shared:
            lying = self._tables.lying[self._layable.operations[number].results[place]]
            partial = np.array([way.partial[place] for way in self._tables.ways[number]])
            self._shared[key] = Table(lying.space.copied[lying.own[:, None], partial])
        return self._shared[key]

    def _gradient(self, number: int, place: int) -> Table:
        """The bytes of an operand's gradient before it is completed, and of what is resharded to compute it."""
        key = self._tables.kinds[number], "gradient", place
        if key not in self._shared:
            lying = self._tables.lying[self._layable.operations[number].operands[place].tensor]
            possible, ways = self._tables.possible(number), self._tables.gradient_ways(number, place)
            partial = np.array([way.needed[place] for way in possible])[ways]
            summed = np.array([bool(way.lacking[place]) for way in possible])[ways]
            costs = self._moved(lying.space, partial, lying.own[:, None], summed)
            self._shared[key] = Table(costs + self._resharded(number, ways, place))
        return self._shared[key]

    def _moved(
        self, space: Space, before: Numbers, after: Numbers, summed: NDArray[np.bool_], *, fused: bool = False
    ) -> Costs:
        """The bytes of a tensor that is completed, or moved to another layout, in the layout before that.

        `fused`: a block of it is computed alone, if that is what the move leaves.
        """
        there = (space.copied[before, after] > 0) | summed
        if not fused:
            there |= space.held[before] > space.held[after]
        return np.where(there, space.held[before], 0.0)

    def _resharded(self, number: int, ways: Numbers, gradient: int | None) -> Costs:
        """The bytes of copies of what a product, or a gradient of it, is computed from, in another way than planned."""
        costs = np.zeros(ways.shape)
        for tensor, planned, possible in self._tables.ends_of(number, gradient):
            costs = costs + self._tables.lying[tensor].space.copied[planned, possible[ways]]
        return costs


_HALF = ("bfloat16", "float16")

KEPT = {
    "celu": 3, "elu": 3, "gelu": 5, "hard_swish": 3, "hard_tanh": 2, "log_sigmoid": 2, "mish": 5, "selu": 3, "silu": 3,
    "soft_sign": 4, "softplus": 2, "squareplus": 2, "swish": 3, "tanh": 2,
}  # fmt: skip
"""How many values of the size of its operand JAX keeps of an operation for its backward pass, where it is not one."""


class _Schedule:
    """The steps of a graph's operations, and which of its values are in memory when.

    - `turn`: the last step of the forward pass; `last`: the last step.
    - `stored`: the tensors that are in memory; `made`: the step that computes a tensor; `until`: the last step that
      reads it; `until_turn`: that of the forward pass; `read`: the first and the last step that reads its copy.
    - `recomputed`: for each tensor that the backward pass computes again, the step at which it does so.
    - `stacked`: for what a loop stacks, the first and the last step with it, if operations read it.
    - `exponentiated`: the tensors whose exponentials are divided by their sums, as by a softmax.
    - `derived`: the tensors whose cotangents are computed element by element, inside of the products that read them.
    - `gradients`: for each array with a gradient, the last step that reads this.
    """

    def __init__(self, layable: Layable, *, fuses: bool) -> None:
        self._layable, many, self._fuses = layable, len(layable.operations), fuses
        self._forward = layable.forward if layable.forward is not None else many
        self._differentiated = any(operation.differentiated for operation in layable.operations)
        self.turn = self._forward
        # Step 0 is the time before the first operation.
        self.last = many + (2 * self._forward if self._differentiated else 0) + 1
        self.stored = frozenset(self._stored())
        self.exponentiated = {
            operand.tensor
            for operation in layable.operations
            for operand in operation.operands
            if operation.rule.exponentials and operation.rule.operands.get(operand.place or "") == operation.rule.result
        }
        self._sliced = {each.after: each for each in layable.transfers if each.kind == "slice"}
        """The transfers to slices, by these."""
        self._cotangents = self._cotangents_begin()
        self.derived = frozenset(self._derived() if fuses else ())
        self.made: dict[int, int] = {}
        for number, operation in enumerate(layable.operations):
            self.made |= dict.fromkeys(operation.results, self.forward(number))
        self.recomputed = {
            at: self.backward(operation.recomputed)
            for operation in layable.operations
            if operation.recomputed is not None and operation.differentiated
            for at in operation.results
        }
        carries = dict(self._carries())
        self.made |= carries
        passing = (each for each in layable.transfers if each.kind != "stack" and each.after not in carries)
        self._passed = {each.before: each.after for each in passing}
        self.until, self.until_turn = self._until(backward=True), self._until(backward=False)
        self.read = self._read()
        self.stacked = dict(self._stacked())
        self.gradients = {
            tensor: max([self.forward(number) for number in readers], default=self.last)
            for tensor, readers in layable.gradients.items()
        }

    def forward(self, number: int) -> int:
        """The step of an operation of the graph."""
        after = 2 * self._forward if self._differentiated and number >= self._forward else 0
        return 1 + number + after

    def backward(self, number: int) -> int:
        """The first of the two steps of an operation's backward pass."""
        return 1 + self._forward + 2 * max(self._forward - 1 - number, 0)

    def backward_end(self, number: int) -> int:
        """The last step of an operation's backward pass; only products need the second one."""
        return self.backward(number) + bool(self._layable.operations[number].work.flops)

    def gradient(self, number: int, place: int) -> int:
        """The step that computes the gradient of an operand: first those of arrays, which take no more memory."""
        of_array = self._layable.tensors[self._layable.operations[number].operands[place].tensor].copies
        return self.backward(number) + (not of_array)

    def read_again(self, number: int, place: int) -> int:
        """The last step of the backward pass that reads an operand, for the gradients of the others."""
        operation, tensors = self._layable.operations[number], self._layable.tensors
        others = [
            self.gradient(number, other)
            for other, operand in enumerate(operation.operands)
            if other != place and tensors[operand.tensor].differentiated
        ]
        return max(others, default=self.backward(number)) if operation.work.flops else self.backward(number)

    def gradient_of(self, number: int, place: int) -> tuple[int, int]:
        """The array that an operand is, or is a slice of, and the step from which its gradient is in memory."""
        at, begin = self._layable.operations[number].operands[place].tensor, self.backward(number)
        while at in self._sliced:
            transfer = self._sliced[at]
            at, begin = transfer.before, self.backward(self._layable.loops[transfer.line][1])
        return at, begin

    def cotangent(self, number: int, at: int) -> tuple[int, int]:
        """The first and the last step with the cotangent of an operation's result."""
        operation = self._layable.operations[number]
        overwritten = any(self.overwritten(number, place) for place in range(len(operation.operands)))
        last = self.backward(number) + (not overwritten)
        return min(self._cotangents.get(at, last), last), last

    def _cotangents_begin(self) -> dict[int, int]:
        """The step that begins to compute the cotangent of each tensor, with that of its last reader."""
        begin: dict[int, int] = {}
        passed = {each.after: each.before for each in self._layable.transfers}
        for number in reversed(range(len(self._layable.operations[: self._forward]))):
            operation = self._layable.operations[number]
            if not operation.differentiated:
                continue
            # What is not in memory is computed together with what reads it.
            fused = [begin[at] for at in operation.results if at in begin and at not in self.stored]
            for place, operand in enumerate(operation.operands):
                step = min(fused, default=self.gradient(number, place))
                at: int | None = operand.tensor
                while at is not None and step < begin.get(at, self.last):
                    begin[at] = step
                    at = passed.get(at)
        return begin

    def _derived(self) -> set[int]:
        """The tensors from which no product leads to the loss, in a graph whose compiler fuses operands of products."""
        through = {each.before for each in self._layable.transfers}
        for operation in reversed(self._layable.operations[: self._forward]):
            if operation.work.flops or through.intersection(operation.results):
                through.update(operand.tensor for operand in operation.operands)
        return {at for operation in self._layable.operations for at in operation.results} - through

    def overwritten(self, number: int, place: int) -> bool:
        """Whether an operation may write its result into the memory of an operand: element by element."""
        operation, tensors = self._layable.operations[number], self._layable.tensors
        operand, rule = operation.operands[place], operation.rule
        if operation.work.flops or operand.place is None or len(operation.results) != 1:
            return False
        result = operation.results[0]
        size, own = tensors[result].itemsize, tensors[operand.tensor].itemsize
        # Products of more dimensions are computed as those of matrices; what is fused with a reshape is not in place.
        reshaped = not self._fuses and len(tensors[result].shape) > 2
        moves = rule.halo or rule.permuted or rule.edges or reshaped
        return rule.operands[operand.place] == rule.result and size <= own and not moves

    def _stored(self) -> Iterator[int]:
        fused = {at for operation in self._layable.operations if not operation.work.flops for at in operation.results}
        for operation in self._layable.operations:
            if operation.work.flops:
                read = [
                    operand.tensor for operand in operation.operands if not (self._fuses and operand.tensor in fused)
                ]
                yield from (at for at in (*operation.results, *read) if not self._layable.tensors[at].copies)

    def _read(self) -> dict[int, tuple[int, int]]:
        """The first and the last step that reads the copy of each tensor.

        One that no operation reads is read through what it is passed on to; if that is only outputs, no step reads it.
        """
        read: dict[int, tuple[int, int]] = {}
        for number, operation in enumerate(self._layable.operations):
            keeps = operation.differentiated and not is_linear(operation)
            last = self.backward(number) if keeps else self.forward(number)
            for operand in operation.operands:
                first, until = read.get(operand.tensor, (self.forward(number), 0))
                read[operand.tensor] = first, max(until, last)
        by_operations = frozenset(read)
        for transfer in reversed(self._layable.transfers):
            before, after = transfer.before, read.get(transfer.after)
            if before not in by_operations and after is not None:
                first, until = read.get(before, after)
                read[before] = min(first, after[0]), max(until, after[1])
        return read

    def _stacked(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield what loops stack with the step of the first value in it, and of the last operation that reads it."""
        until = dict(self.until)
        for transfer in reversed(self._layable.transfers):
            if transfer.after in until:
                last = until[transfer.after]
                if transfer.kind == "slice":
                    last = max(last, self.forward(self._layable.loops[transfer.line][1]))
                until[transfer.before] = max(until.get(transfer.before, 0), last)
        for transfer in self._layable.transfers:
            at = transfer.after
            if transfer.kind == "stack" and at in until and not self._layable.tensors[at].copies:
                begin, _ = self._layable.loops[transfer.line]
                yield at, (min(self.forward(begin), until[at]), until[at])

    def _carries(self) -> Iterator[tuple[int, int]]:
        """Yield the values that repeats carry, and the first step of their bodies that reads them."""
        tensors = self._layable.tensors
        first: dict[int, int] = {}
        for number, operation in enumerate(self._layable.operations):
            for operand in operation.operands:
                first.setdefault(operand.tensor, self.forward(number))
        for transfer in self._layable.transfers:
            at = transfer.after
            if transfer.kind == "as it is" and tensors[at].steps > tensors[transfer.before].steps and at in first:
                yield at, first[at]

    def _until(self, *, backward: bool) -> dict[int, int]:
        """The last step that reads each tensor, through operations that are fused into their readers.

        `backward`: also the steps of the backward pass.
        """
        until: dict[int, int] = {}
        passed = self._passed
        for number in reversed(range(len(self._layable.operations))):
            operation = self._layable.operations[number]
            last = self.forward(number)
            for at in operation.results:
                if at not in self.stored:
                    further = max(until.get(at, last), until.get(passed.get(at, -1), last))
                    stacked = operation.steps > 1 and operation.recomputed is None
                    last = max(last, min(further, self.turn) if stacked else further)
            kept = backward and operation.differentiated and not is_linear(operation)
            written = any(at in self.stored for at in operation.results) and last == self.forward(number)
            for place, operand in enumerate(operation.operands):
                step = last - 1 if written and self.overwritten(number, place) else last
                step = max(step, self.read_again(number, place)) if kept else step
                until[operand.tensor] = max(until.get(operand.tensor, 0), step)
        if backward:
            # The cotangent is computed from the tensor each time that it is read.
            for number, operation in enumerate(self._layable.operations[: self._forward]):
                if operation.differentiated:
                    until |= {at: self.backward_end(number) for at in self.derived.intersection(operation.results)}
        for at, step in self.made.items():
            until[at] = max(until.get(at, step), until.get(passed.get(at, -1), step), step)
        return until
