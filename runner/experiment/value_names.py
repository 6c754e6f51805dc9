"""Gives a name to every value of per-device code that a trace shows.

Naming a part of an expression does not change what is computed, so the named code is an experiment like any other:
`runner/programs/trace.py` writes it as a program, and the SPMD interpreter runs it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeGuard

from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.experiment.model import Experiment
from runner.experiment.traced import TracedLine, TracedLoop, TracedTerm
from runner.experiment.traced_graphs import loop_of, section_graph
from runner.graph.inlining import of_equations
from runner.graph.language.lines import RepeatLines, at_index, called, line_of, lines, regions, repeat
from runner.graph.language.operations import CONSTANTS, OPERATIONS
from runner.graph.language.printing import text
from runner.graph.language.syntax import Expression
from runner.graph.model import Graph, Region, literal
from runner.graph.spelling import Spelling
from runner.graph.term import (
    Apply,
    Const,
    Group,
    Name,
    Term,
    bare,
    calls,
    children,
    heads,
    mapped,
    name_of,
    substituted,
    swapped,
    within,
)

VALUES = 500
"""The largest number of values of a trace; with more, the steps of loops are not traced, only their results."""

_STEP = re.compile(r"\[\d+\]")
"""The number of a step in the name of a value."""

ELEMENTS = 1_000_000
"""The largest number of elements of a trace's values on all devices together; with more, there is no trace."""


@dataclass(frozen=True)
class NamedValue:
    """One line of a trace.

    - `name`: as shown: `C`, `C/psum#0` for a collective inside an expression, `C/psum#0/before` for the operand of one,
      `ring[2].acc` for a step of a loop.
    - `node`: its name in the named code; `expression`: as the user wrote it.
    - `operation`, `axes`: those of the collective whose result it is; None and () for other values.
    - `before`: the array or node that is the collective's operand; None if that is a number.
    """

    name: str
    node: str
    expression: str
    operation: str | None = None
    axes: tuple[str, ...] = ()
    before: str | None = None

    @property
    def line(self) -> str:
        """The line that it belongs to, without the numbers of steps: `ring.acc`."""
        return without_steps(self.name.partition("/")[0])


def without_steps(name: str) -> str:
    """A name without the numbers of steps: `ring.acc` for `ring[2].acc`."""
    return _STEP.sub("", name)


@dataclass(frozen=True)
class NamedCode:
    """The named code `of` an experiment's `per_device`, as an `experiment` without outputs.

    `values` are in the order in which they are computed, `results` gives for each output of the original its name in
    the named code, `stepped` the `jax.lax.fori_loop`s whose steps the trace runs one by one, `whole` the loops whose
    steps it does not show, each with the reason.
    """

    of: Experiment
    experiment: Experiment
    values: tuple[NamedValue, ...]
    results: Mapping[str, str]
    stepped: tuple[str, ...] = ()
    whole: tuple[tuple[str, str], ...] = ()


def named(experiment: Experiment) -> NamedCode:
    """The per-device code of `experiment` with its loops unrolled and a name for each collective and its operand."""
    if not any(regions(experiment.computed("per_device"))):
        return _named(experiment, shown=True)
    # A `shard_map` inside has axes that are left to the compiler around it: there all devices have the same block.
    arrays = tuple(replace(array, layout=experiment.block(array.layout)) for array in experiment.arrays)
    return _named(replace(experiment, arrays=arrays, constraints={}, automatic=(), check_vma=False), shown=True)


def inside(experiment: Experiment) -> NamedCode:
    """The code inside of the user's own `shard_map`s that the `graph` of `experiment` calls.

    Every device begins with the whole arrays; within a `shard_map` it has its shards, as it does there. Outside of them
    nothing is shown: values are whole, and the compiler shards them.
    """
    whole = tuple(replace(array, layout=replace(array.layout, spec=Spec())) for array in experiment.arrays)
    lines = replace(
        experiment,
        arrays=whole,
        graph=of_equations(experiment.graph.inputs, ()),
        per_device=experiment.before("graph"),
        constraints={},
        outputs=dict.fromkeys(experiment.results, Spec()),
        grad=None,
        automatic=(),
        check_vma=False,
        sections=("per_device",),
    )
    return _named(lines, shown=False)


def _named(experiment: Experiment, *, shown: bool) -> NamedCode:
    try:
        meaning: dict[str, Term] = {}
        naming = _Naming(experiment, unroll=True, shown=shown)
        naming.run(naming.graph, meaning, "")
    except _TooMany:
        meaning = {}
        naming = _Naming(experiment, unroll=False, shown=shown)
        naming.run(naming.graph, meaning, "")
    gradients = {name: experiment.outputs[name] for name in (experiment.grad.names if experiment.grad else ())}
    graph = section_graph(naming.lines, ("per_device",), (array.name for array in experiment.given))
    code = replace(experiment, per_device=graph, outputs=gradients, programs=(experiment.traced,))
    results = {name: name_of(meaning[name]) or name if name in meaning else name for name in experiment.outputs}
    stepped = tuple(dict.fromkeys(naming.stepped))
    return NamedCode(experiment, code, tuple(naming.values), results, stepped, tuple(naming.whole))


def too_large(elements: int) -> str:
    """Why there is no trace of values with this many elements in all."""
    return f"its values have {elements} elements on all devices together; a trace holds at most {ELEMENTS}"


class _TooMany(Exception):
    """The loops have too many steps to show them all."""


Meaning = Mapping[str, Term]
"""The values in the named code that the names of a loop's body, and the results of loops, refer to."""


class _Naming:
    def __init__(self, experiment: Experiment, *, unroll: bool, shown: bool) -> None:
        self._mesh, self._source = experiment.mesh, experiment.source_text["per_device"]
        self._numbers = {*experiment.dims, *CONSTANTS}
        self._unroll = unroll
        self._shown = shown
        self._taken = {*experiment.dims, *(array.name for array in experiment.arrays)}
        self.graph = experiment.computed("per_device")
        self._spelling = Spelling.of(self.graph)
        self._taken |= {*_all_names(self.graph)}
        self.lines: list[TracedLine] = []
        self.values: list[NamedValue] = []
        self.stepped: list[str] = []
        self.whole: list[tuple[str, str]] = []

    def run(self, graph: Graph, meaning: dict[str, Term], prefix: str) -> None:
        """Name the values of `graph` in the loop step `prefix`; `meaning` gets their names."""
        for equation in lines(graph):
            name, loop = line_of(equation).name, repeat(equation)
            shown = prefix + name
            if loop is None:
                expression = Expression(equation.source.text, self._spelling.equation(equation))
                node = self._node(expression, meaning, shown, None if prefix else name)
                meaning[name] = Name(node)
            elif loop.form.region is not None:
                self._region(loop, loop.form.region, meaning, shown)
            elif not loop.going and (self._unroll or any(regions(loop.body))):
                self._steps(loop, meaning, shown)
            else:
                self._whole(loop, meaning, shown, None if prefix else name)

    def _whole(self, loop: RepeatLines, meaning: dict[str, Term], shown: str, node: str | None) -> None:
        """Take a loop as it is, and name its results."""
        node = node or self._free(shown)
        self.lines.append(replace(_renamed(loop_of(loop, self._spelling), meaning), name=node))
        if self._shown:
            why = f"with them the trace would have more than {VALUES} values"
            self.whole.append((shown, "their number is known only as it runs" if loop.going else why))
        for name in loop.results:
            meaning[f"{loop.name}.{name}"] = Name(f"{node}.{name}")
            if self._shown:
                says = f"after {loop.often}" if loop.form.steps is not None else "after the last step"
                self.values.append(NamedValue(f"{shown}.{name}", f"{node}.{name}", says))

    def _steps(self, loop: RepeatLines, meaning: dict[str, Term], shown: str) -> None:
        if not loop.form.unroll:
            self.stepped.append(shown)
        firsts = {line.name: first for line, first in loop.firsts(self._spelling)}
        carried = {name: self._first(firsts[name], meaning, f"{shown}/carry/{name}") for name in loop.carry}
        whole = {name: self._first(firsts[name], meaning, f"{shown}/over/{name}") for name in loop.over}
        steps: dict[str, list[Term]] = {name: [] for name in loop.stack}
        assert loop.form.steps is not None
        for step in range(loop.form.steps):
            slices = {name: at_index(value, Const(step)) for name, value in whole.items()}
            inside = {**meaning, **carried, **slices, loop.index: _index(step, known=loop.form.unroll)}
            self.run(loop.body, inside, f"{shown}[{step}].")
            carried = {name: inside[name] for name in carried}
            for name, inner in loop.stack.items():
                steps[name].append(inside.get(inner, Name(inner)))
        for name, values in steps.items():
            stacked = Apply("stack", (Group(tuple(values), "list"),))
            says = f"{loop.stack[name]} of all {loop.often}"
            meaning[f"{loop.name}.{name}"] = Name(self.define((stacked, None, (), None), f"{shown}.{name}", says))
        for name, value in carried.items():
            meaning[f"{loop.name}.{name}"] = value

    def _region(self, loop: RepeatLines, region: Region, meaning: dict[str, Term], shown: str) -> None:
        """Name the values of a `shard_map` of the user's own: each device takes its shards of whole operands."""
        around, inside = self._shown, dict[str, Term]()
        for (line, first), spec in zip(loop.firsts(self._spelling), region.in_specs, strict=True):
            name, self._shown = line.name, around
            whole = self._first(first, meaning, f"{shown}/over/{name}")
            self._shown = True
            shard = (self._sharded(whole, spec), None, (), None)
            says = f"{self.says(first)} by {spec}"
            inside[name] = Name(self.define(shard, f"{shown}.{name}", says))
        self.run(loop.body, inside, f"{shown}.")
        self._shown = around
        for (name, inner), spec in zip(loop.stack.items(), region.out_specs, strict=True):
            joined = (_joined(inside.get(inner, Name(inner)), spec), None, (), None)
            says = f"{inner} by {spec}"
            meaning[f"{loop.name}.{name}"] = Name(self.define(joined, f"{shown}.{name}", says))

    def _sharded(self, whole: Term, spec: Spec) -> Term:
        """A device's shard of a whole value."""
        for dimension, axes in enumerate(spec):
            for axis in axes:
                count = Const(self._mesh.axis_size(axis))
                shards = Apply("stack", (Apply("split", (whole, count, Const(dimension))),))
                whole = at_index(shards, Apply("axis_index", (Const(axis),)))
        return whole

    def _first(self, expression: Expression, meaning: Meaning, shown: str) -> Term:
        """The initial value of a carried name: another name for an existing value, or a value of its own."""
        known = substituted(expression.term, meaning.get)
        if not children(known) and "." not in (bare(known) or ""):
            return known
        return Name(self._node(expression, meaning, shown))

    def _node(self, expression: Expression, meaning: Meaning, shown: str, node: str | None = None) -> str:
        parts = _Parts(self, meaning, shown)
        term = expression.term
        if _communicates(term):
            return self.define(parts.collective(term), shown, self.says(expression), node)
        return self.define((parts.named(term), None, (), None), shown, self.says(expression), node)

    def define(self, what: _Collective, shown: str, says: str, node: str | None = None) -> str:
        """Add one value; return its name in the named code."""
        if self._unroll and len(self.values) >= VALUES:
            raise _TooMany
        term, operation, axes, before = what
        node = node or self._free(shown)
        self.lines.append(TracedTerm(node, term))
        if self._shown:
            self.values.append(NamedValue(shown, node, says, operation, axes, before))
        return node

    def says(self, written: Expression | Term) -> str:
        """An expression or a part of one, as it is written: in the user's Python, or at its line."""
        if self._source.empty:
            return written.text if isinstance(written, Expression) else text(written)
        return self._source.of(written.term if isinstance(written, Expression) else written)

    def _free(self, shown: str) -> str:
        node = re.sub(r"\W+", "_", shown)
        while node in self._taken:
            node += "_"
        self._taken.add(node)
        return node

    def is_value(self, term: Term) -> bool:
        """Whether an operand is more than numbers and dims."""
        return any(
            calls(part, OPERATIONS) or (bare(part) is not None and heads(part)[0] not in self._numbers)
            for part in within(term)
        )


_Collective = tuple[Term, str | None, tuple[str, ...], str | None]
"""A value, and the operation, axes and operand of the collective that computes it."""


class _Parts:
    """An expression in which collectives are replaced by names, and the meaning of its other names."""

    def __init__(self, naming: _Naming, meaning: Meaning, shown: str) -> None:
        self._naming = naming
        self._meaning = meaning
        self._shown = shown
        self._count: Counter[str] = Counter()

    def named(self, term: Term) -> Term:
        return substituted(self._without(term), self._meaning.get)

    def _without(self, term: Term) -> Term:
        if not _communicates(term):
            return mapped(term, self._without)
        what = self.collective(term)
        shown = f"{self._shown}/{what[1]}#{self._count[str(what[1])] - 1}"
        return Name(self._naming.define(what, shown, self._naming.says(term)))

    def collective(self, term: Apply) -> _Collective:
        """A collective whose operand, unless it is a number, has a name."""
        operation, moved = term.operation, str(_moved(term))
        call = mapped(term, self.named)
        arguments, known = _bound(term), _bound(call)
        operand = known[moved]
        number = self._count[operation]
        self._count[operation] += 1
        before = bare(operand)
        if "." not in (before or "") and not self._naming.is_value(operand):
            before = None
        elif before is None:
            shown = f"{self._shown}/{operation}#{number}/before"
            before = self._naming.define((operand, None, (), None), shown, self._naming.says(arguments[moved]))
            call = swapped(call, operand, Name(before))
        axes = (axis for axis in map(literal, within(arguments["axis_name"])) if isinstance(axis, str))
        return call, operation, tuple(axes), before


def _joined(shard: Term, spec: Spec) -> Term:
    """The whole value of which each device has a shard."""
    for dimension, axes in enumerate(spec):
        for axis in reversed(axes):
            how = (("axis", Const(dimension)), ("tiled", Const(value=True)))
            shard = Apply("all_gather", (shard, Const(axis)), how)
    return shard


def _communicates(term: Term) -> TypeGuard[Apply]:
    """Whether an expression is a single collective: one that moves values between devices, or casts their types."""
    return _moved(term) is not None


def _moved(term: Term) -> str | None:
    """The argument that is moved or cast, if an expression is a single collective."""
    over = called(term).over
    return over.operands[0] if over.operands else None


def _bound(call: Apply) -> dict[str, Term]:
    """The arguments of a collective by name."""
    return {
        **dict(zip(OPERATIONS[call.operation].signature.parameters, call.operands, strict=False)),
        **dict(call.named),
    }


def _index(step: int, *, known: bool) -> Term:
    """The number of a step: Python's in an unrolled loop, an array of a weak type in `jax.lax.fori_loop`."""
    return Const(step) if known else Apply("asarray", (Const(step),))


def _renamed(loop: TracedLoop, known: Mapping[str, Term]) -> TracedLoop:
    """A loop, with terms in the place of names that it reads from around it."""
    within = {loop.form.index, *loop.carry, *loop.over, *(line.name for line in loop.body)}
    own = {name: term for name, term in known.items() if name not in within}
    return replace(
        loop,
        carry={name: substituted(first, known.get) for name, first in loop.carry.items()},
        over={name: substituted(whole, known.get) for name, whole in loop.over.items()},
        body=tuple(
            _renamed(line, own) if isinstance(line, TracedLoop) else replace(line, term=substituted(line.term, own.get))
            for line in loop.body
        ),
    )


def _all_names(graph: Graph) -> Iterator[str]:
    """The names that a graph's lines define, with those that its repeats bind."""
    for equation in lines(graph):
        yield line_of(equation).name
        if (loop := repeat(equation)) is not None:
            yield from loop.bound
            yield from _all_names(loop.body)
