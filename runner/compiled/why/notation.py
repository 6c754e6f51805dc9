"""Writes each line of a graph's plan in the scaling book's notation, with its collectives and their reasons.

`hidden[B_data, F_model] = gelu(x[B_data, D] · w1[D, F_model])`: a dimension's name and the mesh axes that shard it.

Source: How to Scale Your Model (Austin et al., 2025), "Sharded Matrices and How to Multiply Them".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from runner.base.layout import Spec
from runner.base.words import bytes_text
from runner.compiled.why import needs
from runner.experiment.model import Experiment
from runner.experiment.source_text import SourceText
from runner.graph.language.lines import RepeatLines, expressions, repeat
from runner.graph.language.printing import text
from runner.graph.model import Graph, literal, walk
from runner.graph.sharding.propagation import Plan, PlannedCollective, PlannedLine, PlannedOperation, PlannedValue
from runner.graph.term import Name, Term, mapped, name_of, substituted

_Lying: TypeAlias = "tuple[list[str], Spec]"
"""The names of a value's dimensions, or their sizes, and its layout."""


def lines(experiment: Experiment, plan: Plan) -> list[PlannedLine]:
    """The lines of the graph in their order, those of a repeat for a single step; none without a plan."""
    if plan.missing is not None:
        return []
    values: dict[str, _Lying] = {}
    for array in experiment.given:
        dims = [name or str(size) for name, size in zip(array.dims, array.shape, strict=True)]
        values[array.name] = dims, array.layout.spec.padded(len(array.shape))
    last: dict[str, PlannedValue] = {}
    for operation in plan.operations:
        if operation.line is not None and not operation.gradient and operation.results:
            last[operation.line] = operation.results[0]
    collectives = [planned for planned in plan.collectives if planned.kind != "slice"]
    operations = plan.summary().operations
    known = needs.keys_of(experiment)
    graph = experiment.computed("graph")
    written_lines = list(expressions(graph))
    names = {line.path: str(line) for line, _ in written_lines}
    repeats = {str(loop.line): loop for loop in _repeats(graph)}
    source = experiment.source_text["graph"]
    described: list[PlannedLine] = []
    headed: set[str] = set()
    for line, expression in written_lines:
        loop = ".".join(line.loops)
        if loop and line.first != "carry" and loop not in headed:
            headed.add(loop)
            described.append(
                PlannedLine(line=loop, text=f"{source.name(loop)}: {repeats[loop].often}, in each of which")
            )
        around, slice_of = (line.loops[:-1], repeats[loop]) if line.first else (line.loops, None)
        lies = _known(values, around, repeats)
        read = lies(name_of(expression.term))
        asked = experiment.constrained.get(line.path, experiment.results.get(line.path))
        if read is not None and asked is not None:
            read = read[0], asked.padded(len(read[0]))
        own = _of(last[line.path]) if line.path in last else read
        says = _expression(expression.term, lies, source)
        if line.first == "over" and slice_of is not None:
            says = f"{says}[{slice_of.index}]"
            own = (read[0][1:], Spec(read[1][1:])) if read else None
        if own is not None:
            values[str(line)] = own
        place = f"{source.frames[str(line)].place}: " if str(line) in source.frames else ""
        name = f"{place}{source.operand(str(line))}{written(*own) if own else ''}"
        says = f"{name} = {says}{' at first' if line.first == 'carry' else ''}"
        of_line = [planned for planned in collectives if planned.line == line.path]
        moves = [_collective(planned, operations, known, names) for planned in of_line]
        described.append(PlannedLine(line=str(line), text=says, collectives=moves))
    return described


def written(dims: Sequence[str], spec: Spec) -> str:
    """`[B_data, F_{data,model}]`; a dimension without a name is written as its size."""
    parts: list[str] = []
    for name, axes in zip(dims, spec, strict=False):
        over = axes[0] if len(axes) == 1 else f"{{{','.join(axes)}}}"
        parts.append(f"{name}_{over}" if axes else name)
    return f"[{', '.join(parts)}]" if parts else ""


def _of(value: PlannedValue) -> _Lying:
    return [name or str(size) for name, size in zip(value.dims, value.shape, strict=True)], value.spec


def _repeats(graph: Graph) -> Iterator[RepeatLines]:
    """The repeats of a graph, and those inside of them."""
    return (of for equation in walk(graph) if (of := repeat(equation)) is not None)


def _known(
    values: Mapping[str, _Lying], around: tuple[str, ...], repeats: Mapping[str, RepeatLines]
) -> Callable[[str | None], _Lying | None]:
    """The layouts of the names that are visible inside the given repeats; the innermost definition counts."""

    def lies(name: str | None) -> _Lying | None:
        for depth in range(len(around), -1, -1) if name is not None else ():
            path = ".".join((*around[:depth], name or ""))
            loop, _, own = path.rpartition(".")
            # A stacked result has one dimension more than the value of a step.
            if loop in repeats and len(around) < len(loop.split(".")) and own in repeats[loop].stack:
                return None
            if path in values:
                return values[path]
        return None

    return lies


_AT = "\0"
"""Replaces an `@` that is not a matrix product."""


def _expression(term: Term, lies: Callable[[str | None], _Lying | None], source: SourceText) -> str:
    """An expression with the layout of each value in it; `·` is the product of matrices."""

    def laid(name: str) -> Term | None:
        lying, operand = lies(name), source.operand(name)
        if lying is None:
            return None if operand == name else Name(operand.replace("@", _AT))
        return Name(f"{operand}{written(*lying)}".replace("@", _AT))

    def named(part: Term) -> Term:
        """A carried `T` by its name; text as it is written."""
        name, literal_text = name_of(part), literal(part)
        if isinstance(literal_text, str):
            return Name(repr(literal_text).replace("@", _AT))
        return mapped(part, named) if name is None or lies(name) is None else Name(name)

    return text(substituted(named(term), laid)).replace(" @ ", " · ").replace(_AT, "@")


def _collective(
    planned: PlannedCollective,
    operations: Sequence[PlannedOperation],
    known: needs.Keys,
    names: Mapping[str, str],
) -> str:
    over = f"over {', '.join(planned.axes)}"
    why = needs.of_collective(needs.renamed(planned, names), operations, known).text
    of = known.named(names.get(planned.of, planned.of))
    dims = [name or str(size) for name, size in zip(planned.dims, planned.shape, strict=False)]
    backward = " (backward)" if planned.gradient else ""
    sends = f"a device sends {bytes_text(planned.bytes_sent)}"
    if planned.before == planned.after or not dims:
        return f"{planned.kind}{backward} {over}, {sends}: {why}"
    change = f"{of}{written(dims, planned.before)} → {of}{written(dims, planned.after)}"
    return f"{planned.kind}{backward} of {of} {over}: {change}, {sends}; {why}"
