"""Computes the network of the costs of layouts and assignments, from tensors, operations and prices.

The variables are the layouts of tensors and the assignments of mesh axes to the factors of operations, so that an
operand shares a cost with its operation alone, however many operands there are. A line has the costs

- of resharding its operands for the assignment, of computing, and of completing a sum in the layout of the result;
- if it is differentiated, of resharding the cotangent of the result, of computing the gradients, and of completing each
  of these, over the axes that the operand lacks, in the operand's own layout.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from runner.base.layout import Mesh, Spec
from runner.base.lazy import dataclass
from runner.compiled.estimate.prices import Prices, Sending, Work
from runner.experiment.open_layouts import LineCost
from runner.programs.derivation.rules import SCATTERED, Assignment, Dimensions, Rule, layout
from runner.programs.planning.model import Layable, Operand, RuledOperation, Tensor, Transfer
from runner.programs.planning.network import Choice, Costs, Network, Numbers, Table
from runner.programs.planning.spaces import Indices, Space, Spaces, Units, plain_layouts, split_axes

_NEVER = 1000.0
"""How many times the costliest reshard a layout costs that no program can say."""

_COMPILED = 1e-7
"""The share by which the cost of a product as compiled breaks ties where the compiler does not divide it as planned."""

_APART = 0.02
"""What a state in two layouts costs beside the reshard, as a share of the costliest one of its arrays."""


@dataclass(frozen=True, eq=False)
class Lying:
    """The choices of a tensor: its own layout, and a second one that it is also kept in for its readers, by number.

    A tensor with several readers is resharded once for all of them. Tensors of one shape share their choices, which
    equal only themselves, so they can be a key.
    """

    space: Space
    own: Indices
    held: Indices

    @cached_property
    def distinct(self) -> tuple[Indices, Indices]:
        """The tensor's own layouts, each once, and the place of each choice's in these."""
        layouts, places = np.unique(self.own, return_inverse=True)
        return layouts, places

    def spec(self, number: int) -> Spec:
        """The tensor's own layout in a choice."""
        return self.space.layouts[int(self.own[number])]


Contracting = frozenset[tuple[int, str]]
"""Numbers of products, or places of operands, with mesh axes."""


@dataclass(frozen=True)
class NumberedAssignment:
    """An assignment of mesh axes to the factors of an operation, and what it requires.

    - `needed`: the number of each operand's layout; `partial`: that of each result before it is completed.
    - `over`: the axes over which the result is completed; `summed`: whether it is a sum, which can be reduce-scattered.
    - `lacking`: for each operand the axes over which its gradient is completed.
    - `shards`: the number of parts that the operation is split into.
    """

    assignment: Assignment
    needed: tuple[int, ...]
    partial: tuple[int, ...]
    over: tuple[str, ...]
    summed: bool
    lacking: tuple[tuple[str, ...], ...]
    shards: int


class _Laid:
    """The layouts that the assignments of an operation require, by number.

    A layout depends on the axes of its own factors alone, so that many assignments share it.
    """

    def __init__(self, mesh: Mesh, rule: Rule) -> None:
        self._mesh, self._rule = mesh, rule
        self._numbers: dict[Hashable, int | None] = {}

    def number(self, space: Space, dimensions: Dimensions, assignment: Assignment) -> int | None:
        """The layout of a tensor with these dimensions; None if it cannot have one for the assignment."""
        axes = tuple(assignment.get(factor, ()) for factors in dimensions for factor in factors)
        key = space, dimensions, axes
        if key not in self._numbers:
            spec = layout(self._mesh, self._rule, dimensions, assignment)
            self._numbers[key] = None if spec is None else space.index.get(spec.padded(space.rank))
        return self._numbers[key]


@dataclass(frozen=True)
class Term:
    """A cost that depends on one or two variables, the path of its line, and what it is for."""

    line: str
    what: str
    variables: tuple[int, ...]
    table: Table


@dataclass(frozen=True)
class _Cost:
    """A cost of an operation, for each of its ways and, if `of` names an operand or result, each layout of that.

    `what`: what the cost is for, with `{operation}` and `{tensor}` in place of their names.
    """

    what: str
    of: tuple[Literal["operand", "result"], int] | None
    table: Table


@dataclass(frozen=True)
class Transmission:
    """A collective of a plan, and how often it runs.

    - `tensor`: the number of the tensor that it lays out or completes; None inside an operation.
    - `backward`: whether it lays out or completes the tensor's cotangent.
    """

    tensor: int | None
    times: int
    sending: Sending
    backward: bool = False


class Tables:
    """The tables of all costs; variables are the tensors by number, then the operations by number."""

    def __init__(
        self,
        mesh: Mesh,
        layable: Layable,
        prices: Prices,
        *,
        divided: bool | None = None,
        partitioned: bool = True,
        contracting: Contracting = frozenset(),
        typed: bool = False,
    ) -> None:
        """Tables to be compared must agree in `divided`, which by default is that of the prices.

        - `partitioned`: whether products are computed as XLA's partitioner divides them, or as planned: in per-device
          lines, which no partitioner changes.
        - `contracting`: the products and axes for which operands that `contracted` finds are ruled out.
        - `typed`: whether JAX's types have the layouts of the forward pass of functions, as on Explicit axes.
        """
        self.mesh, self.layable, self.prices, self._typed = mesh, layable, prices, typed
        self._contracting: dict[int, tuple[str, ...]] = {}
        for number, axis in sorted(contracting):
            self._contracting[number] = (*self._contracting.get(number, ()), axis)
        self._partitioned = partitioned
        self._inner = dict(_inner_products(layable)) if partitioned else {}
        """The products inside of lines, with the tensors of these."""
        self._divided = prices.divided if divided is None else divided
        self.units, self._shared = _fitting(mesh, layable)
        self._propagated = self._propagated_to(self._contracting)
        self._spaces = Spaces(mesh, prices, self.units, partitioned=partitioned)
        self.notes = tuple(self._notes())
        self._alike: dict[Hashable, Lying] = {}
        self.lying = [self._lying(tensor) for tensor in layable.tensors]
        numbers: dict[Hashable, int] = {}
        self.kinds = [numbers.setdefault(self._kind(*each), len(numbers)) for each in enumerate(layable.operations)]
        """For each operation a number; operations with equal numbers share their ways and tables."""
        self._possible: dict[int, tuple[NumberedAssignment, ...]] = {}
        self._planned: dict[int, Indices] = {}
        """For each kind of operation the numbers of its ways, among those that are possible."""
        self._barred: dict[int, list[Contracting]] = {}
        """For each of these ways the operands, by their place, that must not be split over an axis as contracted."""
        self._compiled: dict[Hashable, Indices] = {}
        self.ways = [self._ways(number, operation) for number, operation in enumerate(layable.operations)]
        self._costs_of: dict[Hashable, list[_Cost]] = {}

    def _notes(self) -> Iterator[str]:
        """Yield notes on what is left out to keep the tables small enough."""
        for unit in self.units:
            if len(unit) > 1:
                yield f"{', '.join(unit)} are used together: there are too many layouts to choose for each alone"
        if not self._shared:
            yield "a value that several operations read is resharded for each: there are too many layouts to share one"

    # Variables.

    def _lying(self, tensor: Tensor) -> Lying:
        key = tensor.shape, tensor.itemsize, tensor.spec, tensor.whole_first, tensor.readers > 1
        if key in self._alike:
            return self._alike[key]
        space = self._spaces.of(tensor.shape, tensor.itemsize)
        if tensor.spec is not None:
            specs: tuple[Spec, ...] = (tensor.spec,)
        else:
            specs = plain_layouts(self.mesh, tensor.shape, self.units)
            specs = tuple(spec for spec in specs if not (tensor.whole_first and spec[0]))
        several = tensor.readers > 1 and self._shared
        pairs = [(spec, held) for spec in specs for held in (_wider(spec, self.units) if several else (spec,))]
        # A layout in the file may have an order of axes that the space lacks.
        pairs = [(own, held) for own, held in pairs if held in space.index]
        own, held = (np.array([space.index[pair[side]] for pair in pairs]) for side in (0, 1))
        self._alike[key] = Lying(space, own, held)
        return self._alike[key]

    def _kind(self, number: int, operation: RuledOperation) -> Hashable:
        """A key for all that an operation's costs depend on; operations with equal keys share tables."""
        tensors = self.layable.tensors
        operands = [
            (self.lying[operand.tensor], operand.place, operand.stored, tensors[operand.tensor].differentiated)
            for operand in operation.operands
        ]
        results = [(self.lying[at], tensors[at].copies > 0, tensors[at].differentiated) for at in operation.results]
        named = self._is_laid(operation), self._is_propagated(operation), self._contracting.get(number)
        named = *named, self._is_typed(operation.line, operation.results)
        again = operation.region is not None, operation.recomputed is not None
        flags = operation.steps, operation.work, operation.stored, operation.differentiated, named, again
        return repr(operation.rule), tuple(operands), tuple(results), flags

    def _ways(self, number: int, operation: RuledOperation) -> tuple[NumberedAssignment, ...]:
        kind = self.kinds[number]
        if kind not in self._planned:
            laid = _Laid(self.mesh, operation.rule)
            assignments = _assignments(self.mesh, operation.rule, self.units)
            tried = (self._way(operation, assignment, laid) for assignment in assignments)
            self._possible[kind] = tuple(way for way in tried if way is not None)
            self._planned[kind] = np.arange(len(self._possible[kind]))
            if self._divided and operation.work.flops:
                shards = np.array(self._shards(kind, operation))
                self._planned[kind] = np.flatnonzero(shards == shards.max(initial=0))
                self._compiled.clear()
            self._bar(kind, operation.rule, self._contracting.get(number, ()))
        return tuple(self._possible[kind][int(at)] for at in self._planned[kind])

    def _bar(self, kind: int, rule: Rule, axes: Sequence[str]) -> None:
        """List each way that does not contract over an axis twice: for one operand and for the other not split so."""
        self._barred[kind] = [Contracting()] * len(self._planned[kind])
        for axis in axes:
            ways, barred = list[int](), list[Contracting]()
            for at, mine in zip(self._planned[kind], self._barred[kind], strict=True):
                contracts = _factor(self._possible[kind][int(at)].assignment, axis) in rule.reduced
                alike = [mine] if contracts else [mine | {(place, axis)} for place in (0, 1)]
                ways += [int(at)] * len(alike)
                barred += alike
            self._planned[kind], self._barred[kind] = np.array(ways, dtype=np.intp), barred

    def contracted(self, choice: Choice) -> Iterator[tuple[int, str]]:
        """Yield the products, with the axes, whose operands are both split over the axis as they are contracted.

        The compiler sums partial products over this axis, whatever is planned.
        """
        for number, operation in enumerate(self.layable.operations):
            if not (self._partitioned and operation.work.flops and len(operation.operands) == 2):
                continue
            assignment = self.ways[number][choice[self.variable(number)]].assignment
            split = [
                self._contracted_over(operation, place)[self._propagated_layout(operand.tensor, choice)]
                for place, operand in enumerate(operation.operands)
            ]
            for axis in split[0] & split[1]:
                if _factor(assignment, axis) not in operation.rule.reduced:
                    yield number, axis

    def _propagated_to(self, products: Iterable[int]) -> frozenset[int]:
        """The tensors inside of lines that lie as what they transpose, which products read."""
        queue = [operand.tensor for number in products for operand in self.layable.operations[number].operands]
        reached = set[int]()
        while queue:
            producer = self._producers.get(queue.pop())
            if producer is not None and self._is_transposed(producer):
                reached |= set(producer.results)
                queue.append(producer.operands[0].tensor)
        return frozenset(reached)

    def _propagated_layout(self, at: int, choice: Choice) -> int:
        """The number of a tensor's layout as compiled, which is that of what it transposes, if it does."""
        space, own = self.lying[at].space, int(self.lying[at].own[choice[at]])
        producer = self._producers.get(at)
        if producer is None or not self._is_transposed(producer):
            return own
        operand, rule = producer.operands[0], producer.rule
        before = self.lying[operand.tensor].space.layouts[self._propagated_layout(operand.tensor, choice)]
        dimensions = rule.operands[operand.place or ""]
        number = space.index.get(Spec(before[dimensions.index(factors)] for factors in rule.result))
        # What moves nothing may happen anywhere.
        return own if number is None or space.cost[number, own] == 0.0 else number

    @cached_property
    def _producers(self) -> dict[int, RuledOperation]:
        return {at: operation for operation in self.layable.operations for at in operation.results}

    def _contracted_over(self, operation: RuledOperation, place: int) -> Sequence[frozenset[str]]:
        """For each layout of an operand the axes that split dimensions which are contracted."""
        operand, rule = operation.operands[place], operation.rule
        space = self.lying[operand.tensor].space
        dimensions = rule.operands[operand.place] if operand.place else ()
        contracted = [d for d, factors in enumerate(dimensions) if len(factors) == 1 and factors[0] in rule.reduced]
        return [frozenset(axis for d in contracted for axis in spec[d]) for spec in space.layouts]

    def _shards(self, kind: int, operation: RuledOperation) -> list[int]:
        """The number of parts that a product is split into as compiled, in each of its possible ways.

        The layout of a result that the file gives may be one that the compiler does not divide a way for.
        """
        possible = self._possible[kind]
        given = [self.layable.tensors[at].spec is not None for at in operation.results]
        if given == [True] and self._is_pinned(operation):
            return [possible[int(at)].shards for at in self._ways_of_result(operation, kind, 0)[0]]
        return [way.shards for way in possible]

    def _way(self, operation: RuledOperation, assignment: Assignment, laid: _Laid) -> NumberedAssignment | None:
        mesh, rule = self.mesh, operation.rule
        if not rule.possible(mesh, assignment):
            return None
        used = tuple(axis for axes in assignment.values() for axis in axes)
        needed: list[int] = []
        lacking: list[tuple[str, ...]] = []
        for operand in operation.operands:
            space = self.lying[operand.tensor].space
            dimensions = ((),) * space.rank if operand.place is None else rule.operands[operand.place]
            number = laid.number(space, dimensions, assignment) if len(dimensions) == space.rank else None
            if number is None:
                return None
            needed.append(number)
            own = space.layouts[number].axes
            lacking.append(tuple(a for a in mesh.axes if a in used and a not in own) if operand.place else ())
        partial: list[int] = []
        for at in operation.results:
            number = laid.number(self.lying[at].space, rule.result, assignment)
            if number is None:
                return None
            partial.append(number)
        reduced = {factor: kind for factor, kind in rule.reduced.items() if assignment.get(factor)}
        over = {axis for factor in reduced for axis in assignment[factor]}
        return NumberedAssignment(
            assignment,
            tuple(needed),
            tuple(partial),
            tuple(axis for axis in mesh.axes if axis in over),
            all(kind in SCATTERED for kind in reduced.values()),
            tuple(lacking),
            mesh.axis_size(used),
        )

    def variable(self, operation: int) -> int:
        """The number of an operation's variable."""
        return len(self.lying) + operation

    # Costs.

    @cached_property
    def network(self) -> Network:
        """The network of all costs, summed for each variable and pair."""
        sizes = [len(lying.own) for lying in self.lying] + [len(ways) for ways in self.ways]
        alone = [np.zeros(size) for size in sizes]
        parts: dict[tuple[int, int], list[tuple[Table, bool]]] = {}
        for term in self.terms:
            if len(term.variables) == 1:
                (variable,) = term.variables
                alone[variable] = alone[variable] + term.table.costs
            elif term.variables[0] == term.variables[1]:
                alone[term.variables[0]] = alone[term.variables[0]] + np.diagonal(term.table.costs)
            else:
                a, b = sorted(term.variables)
                parts.setdefault((a, b), []).append((term.table, term.variables != (a, b)))
        # Pairs with the same summands share a table.
        summed: dict[tuple[tuple[Table, bool], ...], Table] = {}
        tables: dict[tuple[int, int], Table] = {}
        for pair, summands in parts.items():
            key = tuple(summands)
            if key not in summed:
                costs = [table.costs.T if turned else table.costs for table, turned in summands]
                summed[key] = Table(functools.reduce(np.add, costs))
            tables[pair] = summed[key]
        # Of layouts that cost the same, a loop stacks values in the one that needs less memory.
        memory = self.prices.least == "memory"
        stacked = frozenset(each.after for each in self.layable.transfers if each.kind == "stack" and not memory)
        for at, lying in enumerate(self.lying):
            copies = self.layable.tensors[at].copies
            if at in stacked:
                alone[at] = alone[at] + self.prices.held * lying.space.held[lying.own]
            if copies:
                alone[at] = alone[at] + self.prices.held * copies * lying.space.held[lying.own]
                alone[at] = alone[at] + self.prices.order * np.array(
                    [self._order(lying.spec(i)) for i in range(len(lying.own))]
                )
        return Network(tuple(alone), tables, self._places())

    def _places(self) -> tuple[Numbers, ...]:
        """For each variable a row per choice with a number for the place of each mesh axis."""
        axes = [unit[0] for unit in self.units]
        of: dict[Lying | int, Numbers] = {}
        places: list[Numbers] = []
        for lying in self.lying:
            if lying not in of:
                layouts = lying.space.layouts
                specs = (
                    (layouts[int(own)], layouts[int(held)]) for own, held in zip(lying.own, lying.held, strict=True)
                )
                rows = [[_dimension(own, axis) * 64 + _dimension(held, axis) for axis in axes] for own, held in specs]
                of[lying] = np.array(rows).reshape(len(rows), len(axes))
            places.append(of[lying])
        for kind, ways in zip(self.kinds, self.ways, strict=True):
            if kind not in of:
                rows = [[_factor(way.assignment, axis) for axis in axes] for way in ways]
                of[kind] = np.array(rows).reshape(len(rows), len(axes))
            places.append(of[kind])
        return tuple(places)

    def _order(self, spec: Spec) -> int:
        """How far a layout is from having the mesh's first axes on the first dimensions."""
        later = {axis: len(self.mesh.axes) - at for at, axis in enumerate(self.mesh.axes)}
        return sum(d * later[axis] for d, axes in enumerate(spec) for axis in axes)

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """All costs, of tensors, transfers and operations."""
        terms: list[Term] = []
        for at, (tensor, lying) in enumerate(zip(self.layable.tensors, self.lying, strict=True)):
            if tensor.readers > 1:
                table = Table(lying.space.cost[lying.own, lying.held] * tensor.steps)
                terms.append(Term(tensor.line, f"{self.layable.label(at)} for its readers", (at,), table))
        for transfer in self.layable.transfers:
            terms += self._transferred(transfer)
        for at, operation in enumerate(self.layable.operations):
            terms += self._operated(at, operation)
        terms += [self._carried(result, array) for result, array in self.layable.states]
        return (*terms, *self._tied())

    def _tied(self) -> Iterator[Term]:
        """Yield the costs of laying out a product inside of a line otherwise than the line, which no program can say.

        The compiler propagates the layout of `x + h @ w` to the product in it.
        """
        for product, line in self._inner.items():
            mine, own = self.lying[product], self.lying[line]
            apart = mine.own[:, None] != own.own[None, :]
            if not apart.all(axis=0).any():
                costs = apart * (_NEVER * float(self.prices.held + mine.space.cost.max(initial=0.0)))
                yield Term(self.layable.tensors[line].line, "products in lines", (product, line), Table(costs))

    def _carried(self, result: int, array: int) -> Term:
        """The cost of resharding a result for the next call, whose array it is; a slice would be free."""
        space, own = self.lying[result].space, self.lying[result].own
        taken = np.array([space.index[self.lying[array].spec(i)] for i in range(len(self.lying[array].own))])
        apart = own[:, None] != taken[None, :]
        finite = space.cost[np.isfinite(space.cost)]
        costs = space.cost[own[:, None], taken[None, :]] + apart * (_APART * float(finite.max(initial=0.0)))
        what = f"resharding {self.layable.label(result)} for the next step"
        return Term(self.layable.tensors[result].line, what, (result, array), Table(costs))

    def _transferred(self, transfer: Transfer) -> Iterator[Term]:
        before, after = self.lying[transfer.before], self.lying[transfer.after]
        over = transfer.before, transfer.after
        name = self.layable.label(transfer.before)
        differentiated = self.layable.tensors[transfer.after].differentiated
        typed = self._is_typed(transfer.line, [transfer.after])
        key = before, after, transfer.kind, transfer.steps, typed
        if key not in self._costs_of:
            space, rows = before.space, before.own
            stops = self.stops(transfer)
            there = space.cost[rows[:, None], stops[None, :]] * transfer.steps
            if typed:
                there = there + self._never(before, space.cost[rows[:, None], stops[None, :]] > 0.0)
            back = space.cost[stops[None, :], rows[:, None]] * transfer.steps
            self._costs_of[key] = [_Cost("", None, Table(there)), _Cost("", None, Table(back))]
        there, back = self._costs_of[key]
        yield Term(transfer.line, f"resharding {name}", over, there.table)
        if transfer.kind == "stack" and not self.layable.tensors[transfer.after].copies:
            written = [self.prices.computing(Work(), 1, moved) for moved in after.space.held[after.own]]
            yield Term(transfer.line, f"stacking {name}", (transfer.after,), Table(np.array(written)))
        if differentiated:
            yield Term(transfer.line, f"resharding the gradient of {name}", over, back.table)

    def stops(self, transfer: Transfer) -> Indices:
        """For each choice of a transfer's target the layout that its source needs, by number."""
        after = self.lying[transfer.after]
        return np.array([self._stop(transfer, after.spec(i)) for i in range(len(after.own))])

    def _stop(self, transfer: Transfer, spec: Spec) -> int:
        """The layout that the source of a transfer needs so that the target has `spec`, by number."""
        ends = {"as it is": spec, "slice": Spec(((), *spec)), "stack": Spec(spec[1:])}
        return self.lying[transfer.before].space.index[ends[transfer.kind]]

    def _operated(self, number: int, operation: RuledOperation) -> Iterator[Term]:
        kind, variable = self.kinds[number], self.variable(number)
        if kind not in self._costs_of:
            self._costs_of[kind] = list(self._priced(number, operation, self.ways[number]))
        for cost in self._costs_of[kind]:
            match cost.of:
                case None:
                    yield Term(operation.line, cost.what.format(operation=operation.called), (variable,), cost.table)
                case "operand", place:
                    at = operation.operands[place].tensor
                    yield Term(operation.line, self._what(cost, operation, at), (at, variable), cost.table)
                case "result", place:
                    at = operation.results[place]
                    yield Term(operation.line, self._what(cost, operation, at), (at, variable), cost.table)

    def _what(self, cost: _Cost, operation: RuledOperation, at: int) -> str:
        """Say what a cost is for: a phrase with the names of the operation and of one of its tensors."""
        return cost.what.format(tensor=self.layable.label(at), operation=operation.called)

    def _priced(self, number: int, operation: RuledOperation, ways: Sequence[NumberedAssignment]) -> Iterator[_Cost]:
        """Yield the costs of an operation, for each of its ways and each layout of its operands and results."""
        tensors = self.layable.tensors
        sent = [self._inside(operation, way) for way in ways]
        costs = np.array([sum(sending.cost for sending in sendings) for sendings in sent]) * operation.steps
        typed = self._is_typed(operation.line, operation.results)
        if typed and operation.work.flops:
            # JAX asks for the layout of what contracts over an axis.
            ambiguous = np.array([[bool(way.over) for way in ways]])
            costs = costs + self._never(self.lying[operation.results[0]], ambiguous)[0]
        yield _Cost("collectives inside {operation}", None, Table(costs))
        costs = np.array([self._computing(operation, way) for way in ways]) * operation.steps
        yield _Cost("computing {operation}", None, Table(costs))
        if operation.recomputed is not None:
            costs = np.array([self._forward(operation, way) for way in ways]) * operation.steps
            yield _Cost("computing {operation} again", None, Table(costs))
        for place, operand in enumerate(operation.operands):
            lying = self.lying[operand.tensor]
            needed = np.array([way.needed[place] for way in ways])
            there = lying.space.cost[:, needed] * self._times(operation)
            costs = np.minimum(there[lying.own], self._again(there[lying.held]))
            if operation.work.flops and self._partitioned and self.prices.least != "memory":
                # Of plans that cost the same, one whose products read values as they lie: gradients do so too.
                apart = (lying.own[:, None] != needed) & (lying.held[:, None] != needed)
                costs = costs + self.prices.held * apart * lying.space.held[lying.own][:, None]
            if typed and operation.work.flops:
                costs = costs + self._never(lying, self._otherwise(operation, place, needed))
            elif typed or self._is_propagated(operation):
                costs = costs + self._never(lying, lying.space.cost[lying.own[:, None], needed] > 0.0)
            barred = [{axis for at, axis in mine if at == place} for mine in self._barred[self.kinds[number]]]
            if any(barred):
                over = self._contracted_over(operation, place)
                lies = np.array([[bool(over[int(own)] & mine) for mine in barred] for own in lying.own])
                costs = costs + self._never(lying, lies)
            yield _Cost("resharding {tensor} for {operation}", ("operand", place), Table(costs))
            if operation.differentiated and tensors[operand.tensor].differentiated:
                costs = self._differentiating(number, place) * operation.steps
                yield _Cost("the gradient of {tensor} in {operation}", ("operand", place), Table(costs))
        for place, result in enumerate(operation.results):
            lying = self.lying[result]
            partial = np.array([way.partial[place] for way in ways])
            costs = self._resulting(number, place) * _runs(operation)
            if typed:
                costs = costs + self._never(lying, lying.own[:, None] != partial)
            elif self._is_propagated(operation):
                costs = costs + self._never(lying, lying.space.cost[partial, lying.own[:, None]] > 0.0)
            yield _Cost("partial sums of {operation}", ("result", place), Table(costs))
            if operation.differentiated and tensors[result].differentiated:
                costs = (lying.space.cost[:, partial] * self._returning(operation, result))[lying.own]
                yield _Cost("the cotangent of {tensor} in {operation}", ("result", place), Table(costs))

    def _differentiating(self, number: int, place: int) -> Costs:
        """The cost of completing an operand's gradient, for each layout of the operand and each way of the operation.

        What the gradient is computed from is resharded first, from the layouts of the way.
        """
        operation = self.layable.operations[number]
        lying, gradients = self.lying[operation.operands[place].tensor], self._ways_of_gradient(number, place)
        layouts, places = lying.distinct
        possible = self._possible[self.kinds[number]]
        rows = [lying.space.completing(way.needed[place], way.lacking[place], summed=True) for way in possible]
        return (_at(np.stack(rows), gradients, layouts[:, None]) + self._resharding(number, gradients, place))[places]

    def _resulting(self, number: int, place: int) -> Costs:
        """The cost of completing a result, for each layout of the result and each way of the operation.

        Operands are resharded from the layouts of the way if the compiler computes the result in another one.
        """
        operation, ways = self.layable.operations[number], self.ways[number]
        space, (layouts, places) = (
            self.lying[operation.results[place]].space,
            self.lying[operation.results[place]].distinct,
        )
        as_split = np.stack([_completed(space, way, place) for way in ways])[:, layouts].T
        if not self._is_pinned(operation):
            return as_split[places]
        results, possible = (
            self._ways_of_result(operation, self.kinds[number], place),
            self._possible[self.kinds[number]],
        )
        rows = np.stack([_completed(space, way, place) for way in possible])
        costs = _at(rows, results, layouts[:, None]) + self._resharding(number, results, None)
        computing = np.array([self.prices.computing(operation.work, way.shards, 0.0) for way in possible])
        costs = costs + computing[results] - [self.prices.computing(operation.work, way.shards, 0.0) for way in ways]
        shards = np.array([way.shards for way in possible])
        if self._divided:
            # A product that the compiler does not divide must not be the cheaper one; of those that cost the same, the
            # compiled one decides.
            undivided = shards[results] < [way.shards for way in ways]
            costs = np.where(undivided, np.maximum(costs, as_split) + _COMPILED * costs, costs)
        return costs[places]

    def _resharding(self, number: int, ways: Indices, gradient: int | None) -> Costs:
        """The cost of resharding operands, and for the gradient of one the cotangent, from one way to another.

        `ways`: the other way, for each layout and each way, among those that are possible.
        """
        operation = self.layable.operations[number]
        possible, planned = self._possible[self.kinds[number]], self._planned[self.kinds[number]]
        ends = [_ends(operation, way, gradient) for way in possible]
        costs = np.zeros((len(planned), len(possible)))
        for at, (tensor, _) in enumerate(ends[0]):
            layouts = np.array([mine[at][1] for mine in ends])
            costs += self.lying[tensor].space.cost[layouts[planned]][:, layouts]
        return _at(costs, np.arange(len(planned)), ways)

    def gradient_ways(self, number: int, place: int) -> Indices:
        """The way in which an operand's gradient is computed, for each choice of the operand and each way."""
        operand = self.layable.operations[number].operands[place]
        return self._ways_of_gradient(number, place)[self.lying[operand.tensor].distinct[1]]

    def _ways_of_gradient(self, number: int, place: int) -> Indices:
        """The way in which an operand's gradient is computed, for each distinct layout of it and each way."""
        operation = self.layable.operations[number]
        operands, rule = operation.operands, operation.rule
        dimensions = [() if operand.place is None else rule.operands[operand.place] for operand in operands]
        read = [(each.tensor, mine) for each, mine in zip(operands, dimensions, strict=True)]
        read[place] = operation.results[0], rule.result
        return self._compiled_ways(
            operation, self.kinds[number], operands[place].tensor, dimensions[place], read, closed=False
        )

    def _ways_of_result(self, operation: RuledOperation, kind: int, place: int) -> Indices:
        """The way in which a result is computed, for each distinct layout of it and each way."""
        rule = operation.rule
        read = [(each.tensor, rule.operands[each.place]) for each in operation.operands if each.place is not None]
        return self._compiled_ways(operation, kind, operation.results[place], rule.result, read, closed=True)

    def _compiled_ways(
        self,
        operation: RuledOperation,
        kind: int,
        tensor: int,
        dimensions: Dimensions,
        read: Sequence[tuple[int, Dimensions]],
        *,
        closed: bool,
    ) -> Indices:
        """The way in which the compiler computes a tensor, for each distinct layout of it and each planned way.

        The partitioner computes a product in the layout in which its result is wanted. An axis that the planned way has
        on a dimension of one operand alone, and the tensor on another dimension, splits the product along the latter,
        and operands are resharded for that; but along a dimension that all operands have it computes as they are split.
        It does not contract over an axis that an array of the file is not split over, if the tensor is.

        - `dimensions`: the factors of the tensor's dimensions; `read`: those of the tensors it is computed from.
        - `closed`: an axis that the tensor lacks does not split a dimension of it either, since the layout is that of a
          constraint on the product itself.

        Ways are numbered among all that are possible.
        """
        lying = self.lying[tensor]
        key = kind, lying, dimensions, closed
        if key in self._compiled:
            return self._compiled[key]
        possible, planned = self._possible[kind], self._planned[kind]
        if not (self._partitioned and operation.work.flops and dimensions and self.units):
            self._compiled[key] = np.broadcast_to(planned, (len(lying.distinct[0]), len(planned)))
            return self._compiled[key]
        axes = [unit[0] for unit in self.units]
        # Factors are counted from 1; 0 stands for none.
        factors = {factor: at for at, factor in enumerate(sorted(operation.rule.sizes), start=1)}
        first = np.array([factors.get(mine[0], 0) if mine else 0 for mine in dimensions])
        shared = set[int].intersection(*({factor for mine in each for factor in mine} for _, each in read))
        free = np.zeros(len(factors) + 1, dtype=bool)
        free[
            [factors[factor] for mine in dimensions for factor in mine if factor in factors and factor not in shared]
        ] = True
        split = np.array([[factors.get(_factor(way.assignment, axis), 0) for axis in axes] for way in possible])
        codes = (len(factors) + 1) ** np.arange(len(axes))
        of_code = np.full((len(factors) + 1) ** len(axes), -1)
        of_code[split @ codes] = np.arange(len(possible))
        layouts = [lying.space.layouts[int(at)] for at in lying.distinct[0]]
        there = np.array([[_dimension(spec, axis) for axis in axes] for spec in layouts])
        wanted = np.where(there >= 0, first[there], 0)[:, None, :]
        mine = split[planned][None, :, :]
        moves = free[mine] & (wanted != mine) & ((wanted > 0) | (closed & (there < 0)[:, None, :]))
        unsplit = self._unsplit(factors, axes, read)[mine, np.arange(len(axes))]
        moves |= (wanted > 0) & (wanted != mine) & unsplit
        if closed:
            moves |= unsplit & self._gathered(operation, possible, axes)[planned][None, :, :]
        chosen = of_code[np.where(moves, wanted, mine) @ codes]
        self._compiled[key] = np.where(chosen < 0, planned, chosen)
        return self._compiled[key]

    def _gathered(
        self, operation: RuledOperation, ways: Sequence[NumberedAssignment], axes: Sequence[str]
    ) -> NDArray[np.bool_]:
        """For each way and axis that it reduces over, whether the compiler gathers operands over the axis instead.

        It does so unless the partial result is smaller than one of these operands.
        """
        gathered = np.zeros((len(ways), len(axes)), dtype=bool)
        for row, way in enumerate(ways):
            result = float(self.lying[operation.results[0]].space.held[way.partial[0]])
            for at, axis in enumerate(axes):
                sizes = [
                    float(space.held[needed]) * self.mesh.sizes[axis]
                    for operand, needed in zip(operation.operands, way.needed, strict=True)
                    if (space := self.lying[operand.tensor].space).layouts[needed].over((axis,)).axes
                    and self._is_open(operand.tensor, axis)
                ]
                gathered[row, at] = axis in way.over and result >= max(sizes, default=0.0)
        return gathered

    def _is_open(self, at: int, axis: str) -> bool:
        """Whether a tensor may be split over an axis: the file does not give it a layout without that."""
        spec = self.layable.tensors[at].spec
        return spec is None or axis in spec.axes

    def _unsplit(
        self, factors: Mapping[int, int], axes: Sequence[str], read: Sequence[tuple[int, Dimensions]]
    ) -> NDArray[np.bool_]:
        """For each factor, counted from 1, and axis, whether an array of the file that has it is not split over it."""
        unsplit = np.zeros((len(factors) + 1, len(axes)), dtype=bool)
        for tensor, dimensions in read:
            spec = self.layable.tensors[tensor].spec
            if spec is not None and self.layable.tensors[tensor].copies:
                for entry, mine in zip(spec, dimensions, strict=True):
                    rows = [factors[factor] for factor in mine if factor in factors]
                    unsplit[rows] |= np.array([axis not in entry for axis in axes])
        return unsplit

    def _again(self, costs: Costs) -> Costs:
        """The costs of resharding a copy that readers share: the partitioner reshards the value itself for each."""
        return np.where(costs > 0.0, np.inf, costs) if self._partitioned else costs

    def _never(self, lying: Lying, ruled_out: NDArray[np.bool_]) -> Costs:
        """The costs of what no program can say, unless it can say nothing else of a layout."""
        possible = ~ruled_out.all(axis=1, keepdims=True)
        cost = _NEVER * (self.prices.held + float(lying.space.cost.max(initial=0.0)))
        return np.where(ruled_out & possible, cost, 0.0).astype(np.float64)

    def _is_typed(self, line: str, results: Sequence[int] = ()) -> bool:
        """Whether JAX's types determine the layouts in a line, and of results: the code does not state these."""
        frame = self.layable.frames.get(line) if self._typed else None
        return (
            frame is not None and not frame.derivative and all(self.layable.tensors[at].spec is None for at in results)
        )

    def _otherwise(self, operation: RuledOperation, place: int, needed: Indices) -> NDArray[np.bool_]:
        """For each layout of an operand of a product and each way whether they differ where it is not contracted."""
        operand, lying = operation.operands[place], self.lying[operation.operands[place].tensor]
        dimensions = operation.rule.operands[operand.place] if operand.place else ()
        kept = [d for d, factors in enumerate(dimensions) if not set(factors) & operation.rule.reduced.keys()]
        numbers: dict[tuple[tuple[str, ...], ...], int] = {}
        alike = np.array(
            [numbers.setdefault(tuple(spec[d] for d in kept), len(numbers)) for spec in lying.space.layouts]
        )
        return alike[lying.own][:, None] != alike[needed]

    def _is_propagated(self, operation: RuledOperation) -> bool:
        """Whether the compiler propagates the layout of an operand to a product of `contracting`."""
        return self._is_transposed(operation) and operation.results[0] in self._propagated

    def _is_transposed(self, operation: RuledOperation) -> bool:
        """Whether an operation has a value inside of a line with the dimensions of its operand, in any order."""
        rule, results = operation.rule, operation.results
        if not self._partitioned or operation.work.flops or len(operation.operands) != 1 or len(results) != 1:
            return False
        if operation.operands[0].place is None or self.layable.tensors[results[0]].name or results[0] in self._inner:
            return False
        dimensions = rule.operands[operation.operands[0].place]
        return sorted(dimensions) == sorted(rule.result) != [] and all(len(factors) == 1 for factors in dimensions)

    def _is_pinned(self, operation: RuledOperation) -> bool:
        """Whether the layout of a product's result is a constraint on it: of a line, and not inside a function."""
        return bool(operation.work.flops) and self._is_laid(operation)

    def _is_laid(self, operation: RuledOperation) -> bool:
        """Whether the results of an operation are lines, or products that lie as their lines."""
        named = (self.layable.tensors[at].name or at in self._inner for at in operation.results)
        return all(named) and operation.line not in self.layable.frames

    def _times(self, operation: RuledOperation) -> int:
        """How often operands are resharded in a run: in a loop or a checkpoint the backward pass does it again."""
        again = operation.differentiated and (operation.steps > 1 or operation.region is not None)
        return operation.steps * (2 if again else 1)

    def _returning(self, operation: RuledOperation, result: int) -> int:
        """How often a result's bytes are moved if its cotangent is: the compiler moves the weights of attention too."""
        tensor = self.layable.tensors[result]
        inside = 2 * operation.inside / (tensor.itemsize * math.prod(tensor.shape)) if self._partitioned else 0.0
        return operation.steps * (1 + round(inside))

    def _inside(self, operation: RuledOperation, way: NumberedAssignment) -> list[Sending]:
        """The collectives inside an operation in one step, of all times that it is computed."""
        backward = [operation.steps == 1] if operation.differentiated else []
        return [
            sending
            for back in (False, *backward, *([False] if operation.recomputed is not None else []))
            for sending in operation.rule.sendings(self.mesh, way.assignment, self.prices, backward=back)
        ]

    def _traffic(self, operation: RuledOperation, way: NumberedAssignment) -> tuple[list[float], float]:
        """The bytes that an operation reads of each operand from memory, and those that it writes."""

        def stored(place: int, operand: Operand) -> float:
            return float(self.lying[operand.tensor].space.held[way.needed[place]]) if operand.stored else 0.0

        written = 0.0
        for place, result in enumerate(operation.results):
            if operation.stored or self.layable.tensors[result].copies:
                written += float(self.lying[result].space.held[way.partial[place]])
        return [stored(place, operand) for place, operand in enumerate(operation.operands)], written

    def _forward(self, operation: RuledOperation, way: NumberedAssignment) -> float:
        """The cost of one device's computation of the result."""
        read, written = self._traffic(operation, way)
        return self.prices.computing(operation.work, way.shards, sum(read) + written)

    def _computing(self, operation: RuledOperation, way: NumberedAssignment) -> float:
        """The cost of one device's computation, forward and for each gradient of the backward pass."""
        read, written = self._traffic(operation, way)
        cost = self._forward(operation, way)
        if operation.differentiated:
            for place, operand in enumerate(operation.operands):
                # A gradient is computed from the cotangent and the other operands.
                if self.layable.tensors[operand.tensor].differentiated:
                    moved = sum(read) + written if operation.work.flops else read[place]
                    cost += self.prices.computing(operation.work, way.shards, moved)
        return cost

    def possible(self, number: int) -> Sequence[NumberedAssignment]:
        """The ways in which the compiler may compute an operation, among them those of the plan."""
        return self._possible[self.kinds[number]]

    def result_ways(self, number: int, place: int) -> Indices:
        """The way in which the compiler computes a result, for each layout of the result and each planned way.

        Ways are numbered among all that are possible.
        """
        operation, kind = self.layable.operations[number], self.kinds[number]
        lying = self.lying[operation.results[place]]
        if self._is_pinned(operation):
            return self._ways_of_result(operation, kind, place)[lying.distinct[1]]
        return np.broadcast_to(self._planned[kind], (len(lying.own), len(self._planned[kind])))

    def ends_of(self, number: int, gradient: int | None) -> Iterator[tuple[int, Indices, Indices]]:
        """Yield what a product, or the gradient of its operand `gradient`, is computed from.

        Each is a tensor, its layout in each planned way, and that in each way that is possible.
        """
        ends = [_ends(self.layable.operations[number], way, gradient) for way in self.possible(number)]
        for at, (tensor, _) in enumerate(ends[0] if ends else ()):
            layouts = np.array([mine[at][1] for mine in ends])
            yield tensor, layouts[self._planned[self.kinds[number]]], layouts

    # Explaining a choice.

    def items(self, choice: Choice) -> Iterator[LineCost]:
        """Yield the costs of a choice that are not 0."""
        for term in self.terms:
            cost = float(term.table.costs[tuple(choice[variable] for variable in term.variables)])
            if cost:
                yield LineCost(line=term.line, what=term.what, cost=cost)

    def recomputed(self, choice: Choice) -> float:
        """The flops of products that a device computes again for the backward pass."""
        return math.fsum(
            operation.steps * operation.work.flops / self.ways[at][choice[self.variable(at)]].shards
            for at, operation in enumerate(self.layable.operations)
            if operation.recomputed is not None
        )

    def sendings(self, choice: Choice) -> Iterator[Transmission]:
        """Yield the collectives of a choice."""
        tensors = self.layable.tensors
        for at, tensor in enumerate(tensors):
            lying, number = self.lying[at], choice[at]
            if tensor.readers > 1:
                for each in lying.space.path(int(lying.own[number]), int(lying.held[number])):
                    yield Transmission(at, tensor.steps, each)
        for transfer in self.layable.transfers:
            yield from self._passing(transfer, choice)
        for number, operation in enumerate(self.layable.operations):
            yield from self._sending(number, operation, choice)

    def _reshards(
        self, operation: RuledOperation, way: NumberedAssignment, other: NumberedAssignment, gradient: int | None
    ) -> Iterator[tuple[int, Sending]]:
        """Yield the collectives that reshard what a product or a gradient is computed from, from one way to another."""
        starts, stops = _ends(operation, way, gradient), _ends(operation, other, gradient)
        for (tensor, before), (_, after) in zip(starts, stops, strict=True):
            for each in self.lying[tensor].space.path(before, after):
                yield tensor, each

    def _passing(self, transfer: Transfer, choice: Choice) -> Iterator[Transmission]:
        before, after = self.lying[transfer.before], self.lying[transfer.after]
        start = int(before.own[choice[transfer.before]])
        stop = self._stop(transfer, after.spec(choice[transfer.after]))
        for each in before.space.path(start, stop):
            yield Transmission(transfer.before, transfer.steps, each)
        if self.layable.tensors[transfer.after].differentiated:
            for each in before.space.path(stop, start):
                yield Transmission(transfer.before, transfer.steps, each, backward=True)

    def _sending(self, index: int, operation: RuledOperation, choice: Choice) -> Iterator[Transmission]:
        tensors, chosen = self.layable.tensors, choice[self.variable(index)]
        way = self.ways[index][chosen]
        for each in self._inside(operation, way):
            yield Transmission(None, operation.steps, each)
        for place, operand in enumerate(operation.operands):
            at, lying, number = operand.tensor, self.lying[operand.tensor], choice[operand.tensor]
            needed, own, held = way.needed[place], int(lying.own[number]), int(lying.held[number])
            costs = lying.space.cost[:, needed]
            start = own if costs[own] <= self._again(costs[held]) else held
            for each in lying.space.path(start, needed):
                yield Transmission(at, self._times(operation), each)
            if operation.differentiated and tensors[at].differentiated:
                numbers = self._ways_of_gradient(index, place)
                gradient = self.possible(index)[int(numbers[int(lying.distinct[1][number]), chosen])]
                for tensor, each in self._reshards(operation, way, gradient, place):
                    yield Transmission(tensor, operation.steps, each, backward=True)
                for each in lying.space.completion(gradient.needed[place], gradient.lacking[place], own, summed=True):
                    yield Transmission(at, operation.steps, each, backward=True)
        for place, result in enumerate(operation.results):
            lying, own = self.lying[result], int(self.lying[result].own[choice[result]])
            sendings = [(result, each) for each in _completion(lying.space, way, place, own)]
            if self._is_pinned(operation):
                numbers = self._ways_of_result(operation, self.kinds[index], place)
                computed = self.possible(index)[int(numbers[int(lying.distinct[1][choice[result]]), chosen])]
                compiled = [*self._reshards(operation, way, computed, None)]
                compiled += [(result, each) for each in _completion(lying.space, computed, place, own)]
                undivided = self._divided and computed.shards < way.shards
                sendings = max(compiled, sendings, key=_cost_of) if undivided else compiled
            for tensor, each in sendings:
                yield Transmission(tensor, _runs(operation), each)
            if operation.differentiated and tensors[result].differentiated:
                for each in lying.space.path(own, way.partial[place]):
                    yield Transmission(result, self._returning(operation, result), each, backward=True)


def _inner_products(layable: Layable) -> Iterator[tuple[int, int]]:
    """Yield the products inside of lines with the tensors of these, where only operations along shapes are between."""
    producers = {result: operation for operation in layable.operations for result in operation.results}
    for name, line in (*layable.named.items(), *layable.inside.items()):
        tensor, reached = layable.tensors[line], [line]
        while reached and tensor.name == name.rpartition(".")[2] and tensor.line not in layable.frames:
            operation = producers.get(reached.pop())
            if operation is None or operation.line != tensor.line:
                continue
            for at in [] if operation.work.flops else [operand.tensor for operand in operation.operands]:
                if layable.tensors[at].shape == tensor.shape and not layable.tensors[at].name and at in producers:
                    if producers[at].work.flops:
                        yield at, line
                    reached.append(at)


def _at(costs: Costs, rows: Indices, columns: Indices) -> Costs:
    """`costs[rows, columns]`, which NumPy takes faster by one number for each entry."""
    return costs.reshape(-1)[rows * costs.shape[1] + columns]


def _runs(operation: RuledOperation) -> int:
    """How often an operation's result is computed in a run."""
    return operation.steps * (1 if operation.recomputed is None else 2)


def _cost_of(sendings: Sequence[tuple[int, Sending]]) -> float:
    return sum(each.cost for _, each in sendings)


def _ends(operation: RuledOperation, way: NumberedAssignment, gradient: int | None) -> list[tuple[int, int]]:
    """What a product, or the gradient of its operand `gradient`, is computed from: tensors, and their layouts."""
    operands = zip(operation.operands, way.needed, strict=True)
    ends = [(operand.tensor, needed) for at, (operand, needed) in enumerate(operands) if at != gradient]
    return ends if gradient is None else [*ends, *zip(operation.results, way.partial, strict=True)]


def _dimension(spec: Spec, axis: str) -> int:
    """The dimension that an axis splits, or -1."""
    for d, axes in enumerate(spec):
        if axis in axes:
            return d
    return -1


def _factor(assignment: Assignment, axis: str) -> int:
    """The factor that an axis splits, or -1."""
    for factor, axes in assignment.items():
        if axis in axes:
            return factor
    return -1


def _wider(spec: Spec, units: Units) -> Iterator[Spec]:
    """Yield a layout, then those with fewer of its axes."""
    there = [unit for unit in units if unit[0] in spec.axes]
    others = set(spec.axes) - {axis for unit in there for axis in unit}
    for kept in itertools.product((True, False), repeat=len(there)):
        yield spec.over(others | {axis for unit, keep in zip(there, kept, strict=True) if keep for axis in unit})


def _assignments(mesh: Mesh, rule: Rule, units: Units) -> Iterator[dict[int, tuple[str, ...]]]:
    """Yield all ways to split factors over mesh axes; several axes on one factor are in mesh order."""
    factors = _factors(rule)
    for chosen in itertools.product((None, *factors), repeat=len(units)):
        assignment: dict[int, tuple[str, ...]] = {}
        for unit, factor in zip(units, chosen, strict=True):
            if factor is not None:
                assignment[factor] = (*assignment.get(factor, ()), *unit)
        if all(rule.sizes[factor] % mesh.axis_size(mine) == 0 for factor, mine in assignment.items()):
            yield assignment


def _factors(rule: Rule) -> list[int]:
    return [factor for factor, size in rule.sizes.items() if size > 1 and factor not in rule.whole]


LARGEST = 300_000_000
"""The most entries of all tables if every dimension were divisible; about a quarter of them exist."""


def _fitting(mesh: Mesh, layable: Layable) -> tuple[Units, bool]:
    """The units of mesh axes for which the tables are small enough, and whether tensors may have a second layout.

    If necessary, neighbouring axes of the mesh that no layout in the file names are split together.
    """
    units = split_axes(mesh)
    named = {axis for tensor in layable.tensors if tensor.spec is not None for axis in tensor.spec.axes}
    if _entries(layable, len(units), shared=True) <= LARGEST:
        return units, True
    while _entries(layable, len(units), shared=False) > LARGEST:
        joined = [at for at in range(len(units) - 1) if not named & {*units[at], *units[at + 1]}]
        if not joined:
            break
        # Join the smallest axes first: the choice matters more for large ones.
        at = min(joined, key=lambda at: mesh.axis_size((*units[at], *units[at + 1])))
        units = (*units[:at], (*units[at], *units[at + 1]), *units[at + 2 :])
    return units, False


def _entries(layable: Layable, axes: int, *, shared: bool) -> int:
    """The number of entries of all tables with this many axes, if every dimension were divisible."""

    def layouts(at: int) -> int:
        tensor = layable.tensors[at]
        if tensor.spec is not None:
            return 1
        several = shared and tensor.readers > 1
        return (len(tensor.shape) * (2 if several else 1) + 1) ** axes

    total = sum(layouts(transfer.before) * layouts(transfer.after) for transfer in layable.transfers)
    for operation in layable.operations:
        beside = sum(map(layouts, (*(operand.tensor for operand in operation.operands), *operation.results)))
        total += beside * (len(_factors(operation.rule)) + 1) ** axes
    return total


def _completed(space: Space, way: NumberedAssignment, place: int) -> Costs:
    """The cost of completing a result in each layout."""
    partial = way.partial[place]
    return space.completing(partial, way.over, summed=way.summed) if way.over else space.cost[partial]


def _completion(space: Space, way: NumberedAssignment, place: int, after: int) -> list[Sending]:
    """The collectives that complete a result in the layout `after`."""
    if not way.over:
        return space.path(way.partial[place], after)
    return space.completion(way.partial[place], way.over, after, summed=way.summed)


def memory(tables: Tables, at: int) -> Costs:
    """The bytes of a tensor on one device in each of its layouts, for all arrays and outputs that share it."""
    lying, tensor = tables.lying[at], tables.layable.tensors[at]
    return tensor.copies * lying.space.held[lying.own]


def by_tensor(tables: Tables) -> Mapping[int, Costs]:
    """The bytes on one device of each tensor that is held, in each of its layouts."""
    return {at: memory(tables, at) for at, tensor in enumerate(tables.layable.tensors) if tensor.copies}


def held(tables: Tables, choice: Choice) -> float:
    """The bytes of arrays and outputs that a device holds."""
    return math.fsum(float(costs[choice[at]]) for at, costs in by_tensor(tables).items())
