"""Moves the sums over devices that a repeat only accumulates behind its last step.

If steps add up values that are summed over devices, each device can add up its own part: the sum over devices is then
sent once, not in every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from runner.base.lazy import dataclass
from runner.experiment.traced import TracedLine, TracedLoop, TracedTerm
from runner.graph.language.operations import OPERATIONS
from runner.graph.model import Graph, Operand, Ref, Repeat, literal, walk
from runner.graph.term import Apply, Name, Term, names, operates
from runner.programs.derivation.laying import Stripping, around
from runner.programs.derivation.sharing import collectives


@dataclass(frozen=True)
class Accumulation:
    """The body of a repeat that adds up each device's own part, and the collectives removed from it."""

    body: tuple[TracedLine, ...]
    sums: tuple[Apply, ...]

    def of(self, x: Term) -> Term:
        """Apply the removed sum over devices to a term."""
        return around(self.sums[0], x)

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes of that sum."""
        axes = literal(self.sums[0].operands[1])
        return (axes,) if isinstance(axes, str) else tuple(axes)

    @property
    def scatters(self) -> int | None:
        """The dimension that a reduce-scatter shards; None for an all-reduce."""
        return literal(dict(self.sums[0].named).get("scatter_dimension"))


def accumulated(body: Sequence[TracedLine], name: str, is_scalar: Callable[[Term], bool]) -> Accumulation | None:
    """The accumulation into a carried name; None if the steps do more than add sums over devices to it.

    `is_scalar`: whether a term is a number that is the same on all devices.
    """
    known = _Body(body)
    stripping = Stripping(known.read_once, is_scalar)
    line = known.only(name)
    if line is None or known.reads[name] != 1:
        return None
    term = _increment(stripping, line.term, name)
    sums = stripping.sums
    if term is None or not sums or any(around(total, Name(name)) != around(sums[0], Name(name)) for total in sums):
        return None
    # A collective that another line needs too is sent in every step in any case.
    standing = Counter(all_collective for line in body for all_collective in _all_collectives(line))
    if any(standing[total] > 1 for total in sums):
        return None
    stripped = {**stripping.stripped, name: term}
    lines = (replace(w, term=stripped[w.name]) if isinstance(w, TracedTerm) and w.name in stripped else w for w in body)
    return Accumulation(tuple(lines), tuple(sums))


@dataclass
class _Body:
    """The lines of a repeat's body, and how often they read each name."""

    lines: Sequence[TracedLine]

    def __post_init__(self) -> None:
        self.reads = Counter[str]()
        for line in self.lines:
            # An inner repeat reads its operands in every step.
            self.reads.update(names(line.term) if isinstance(line, TracedTerm) else [*line.names] * 2)
            if isinstance(line, TracedLoop):
                self.reads.update(line.form.stack.values())

    def only(self, name: str) -> TracedTerm | None:
        """The only line that defines a name."""
        lines = [line for line in self.lines if name in line.defines]
        line = lines[0] if len(lines) == 1 else None
        return line if isinstance(line, TracedTerm) else None

    def read_once(self, name: str) -> TracedTerm | None:
        """The only line that defines a name, if the name is read once."""
        return self.only(name) if self.reads[name] == 1 else None


def _increment(stripping: Stripping, term: Term, name: str) -> Term | None:
    """The term `acc + psum(x)` rewritten to `acc + x`; None if it has another form."""
    if not operates(term) or not OPERATIONS[term.operation].adds:
        return None
    left, right = term.operands
    if left == Name(name):
        stripped = stripping.strip(right)
        return None if stripped is None else replace(term, operands=(left, stripped))
    stripped = stripping.strip(left) if right == Name(name) and OPERATIONS[term.operation].commutes else None
    return None if stripped is None else replace(term, operands=(stripped, right))


def _all_collectives(line: TracedLine) -> Iterator[Term]:
    if isinstance(line, TracedTerm):
        yield from collectives(line.term)
    else:
        yield from (all_collective for inner in line.body for all_collective in _all_collectives(inner))


def added_up(graph: Graph) -> dict[int, int]:
    """The numbers of steps over which repeats only add up a value, by the value's number in the graph.

    A sum over devices of such a value is sent once, not in each step.
    """
    reads = Counter(number for equation in walk(graph) for number in equation.reads)
    ends = {number for equation in walk(graph) for body in equation.bodies for number in body.outputs}
    producers = graph.producers

    def summands(operand: Operand) -> Iterator[int]:
        if not isinstance(operand, Ref) or reads[operand.number] != 1 or operand.number in ends:
            return
        equation = producers.get(operand.number)
        if equation is None:
            return
        yield operand.number
        linear = OPERATIONS[equation.operation].linear if equation.spelled == "operator" else None
        if equation.spelled == "name" or linear:
            for operand in equation.operands[: 1 if linear == "first" else None]:
                yield from summands(operand)

    steps: dict[int, int] = {}
    for loop in walk(graph):
        if not isinstance(loop.form, Repeat) or loop.form.counted < 2:
            continue
        (body,) = loop.bodies
        for value, number in zip(body.inputs[: loop.form.carried], body.outputs, strict=False):
            added = producers.get(number)
            if added is None or added.spelled != "operator" or not OPERATIONS[added.operation].adds:
                continue
            others = [
                operand
                for operand in added.operands
                if not (isinstance(operand, Ref) and operand.number == value.number)
            ]
            once = reads[value.number] == 1 and body.outputs.count(number) == 1 and not reads[number]
            if once and len(others) == 1:
                steps.update(dict.fromkeys(summands(others[0]), loop.form.counted))
    return steps
