"""Counts the lines of functions and sections with calls written out, and finds those that nothing reads.

It only counts, so that an experiment that is too large is refused before any of it is built.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from runner.base.faults import Fault, InvalidExperiment, invalid
from runner.experiment.functions import DefinedFunction, terms_in
from runner.experiment.model import Experiment
from runner.experiment.written import WrittenLine
from runner.graph.language.lines import line_of, lines, repeat
from runner.graph.language.operations import row_of
from runner.graph.model import Equation, Graph, Repeat, dependencies, walk
from runner.graph.source import Line, Section
from runner.graph.term import bare, calls, within

LINES = 10_000
"""The largest number of lines of a section, and of all functions together: each is read, typed and interpreted."""

DEEPEST = 50
"""The largest depth of nested calls, since the code that writes them out is recursive."""

UNROLLED = 1_000
"""The largest number of lines of an unrolled repeat: each program compiles all of them, in more than linear time."""

SLOW = 200
"""The number of lines of an unrolled repeat above which a warning says that compilation takes long."""

STEPS = 1_000_000
"""The largest number of lines that all steps of a section's repeats compute: the NumPy reference computes each."""


def check_functions(functions: Mapping[str, DefinedFunction], section: Section) -> dict[str, int]:
    """The number of lines of each function. Raises `InvalidExperiment` for too many, or calls nested too deep."""
    known: dict[str, int] = {}
    for name in functions:
        _count(name, functions, section, known, ())
    for name, count in known.items():
        if count > LINES:
            message = f"a call of '{name}' comes to {count:,} lines, as each call in it is written out"
            raise invalid(functions[name].key, f"{message}; the limit is {LINES:,}: compute once what is called twice")
    if (together := sum(known.values())) > LINES:
        message = f"the functions come to {together:,} lines together, as each call in them is written out"
        raise invalid(("functions",), f"{message}; the limit is {LINES:,}: take fewer, or shorter ones")
    return known


def check_calls(lines: Sequence[WrittenLine], section: Section, counts: Mapping[str, int]) -> None:
    """Raise `InvalidExperiment` for the line whose calls make a section too long."""
    together = 0
    for line in lines:
        count = 1 + sum(counts[name] for name in _called(line.value, section, counts))
        together += count
        if together > LINES:
            message = f"its calls come to {count:,} lines, and {section} to more than {LINES:,}, the most allowed"
            raise invalid(line.key, message)


def _count(
    name: str, functions: Mapping[str, DefinedFunction], section: Section, known: dict[str, int], path: tuple[str, ...]
) -> int:
    if name in known or name in path:
        # The reader of the lines reports a cycle.
        return known.get(name, 0)
    path = (*path, name)
    if len(path) > DEEPEST:
        chain = f"{' → '.join(path[:2])} → … → {path[-1]}"
        message = f"calls of functions nest more than {DEEPEST} deep: {chain}; write some of them as one"
        raise invalid(functions[path[0]].key, message)
    if (traced := functions[name].traced) is not None:
        known[name] = len(traced.lines) + 1
        return known[name]
    called = [callee for value in functions[name].lines.values() for callee in _called(value, section, functions)]
    count = len(functions[name].lines) + sum(_count(callee, functions, section, known, path) for callee in called)
    known[name] = count
    return count


def _called(value: Any, section: Section, functions: Mapping[str, Any]) -> Iterator[str]:
    """The functions that a line calls, or passes to an operation that calls them, once for each call."""
    for term in terms_in(value, section):
        for part in within(term):
            if calls(part, functions):
                yield part.operation
            elif (name := (bare(part) or "").partition(".")[0]) in functions:
                yield name


def check_repeats(graph: Graph, section: Section) -> None:
    """Raise `InvalidExperiment` for a repeat with too many steps, or too many unrolled lines."""
    for equation in lines(graph):
        if not isinstance(equation.form, Repeat):
            continue
        line, unrolled, steps = equation.form.line, _unrolled(equation), _steps(equation)
        key, uses = line.written(section)
        if unrolled > UNROLLED:
            alone = len([*lines(equation.bodies[0])]) == 1
            extent = f"{unrolled:,} steps" if alone else f"{unrolled:,} lines"
            message = (
                f"'{line.name}' is unrolled: each program would trace and compile its {extent} one by one, and "
                f"the limit is {UNROLLED:,} lines; unroll: false compiles one step"
            )
            raise InvalidExperiment(Fault(key, message, uses=uses))
        if steps > STEPS:
            message = (
                f"the steps of '{line.name}' compute {steps:,} lines, and the reference computes each in NumPy; "
                f"the limit is {STEPS:,}"
            )
            raise InvalidExperiment(Fault(key, message, uses=uses))


def warnings(graph: Graph, section: Section) -> list[str]:
    """A warning for each repeat that is unrolled to many lines."""
    return [
        f"'{equation.form.line.name}' of {section} is unrolled to {count:,} lines, which each program traces and "
        "compiles one by one; unroll: false compiles one step"
        for equation in lines(graph)
        if isinstance(equation.form, Repeat) and (count := _unrolled(equation)) > SLOW
    ]


def _unrolled(equation: Equation) -> int:
    """The number of lines that a program has for a line or a repeat."""
    if not isinstance(equation.form, Repeat):
        return 1
    return (equation.form.counted if equation.form.unroll else 1) * sum(map(_unrolled, lines(equation.bodies[0])))


def _steps(equation: Equation) -> int:
    """The number of lines that are computed for a line or a repeat, at the least."""
    if not isinstance(equation.form, Repeat):
        return 1
    steps = equation.form.steps
    return (1 if steps is None else steps) * sum(map(_steps, lines(equation.bodies[0])))


def unread(experiment: Experiment) -> list[str]:
    """A warning for each line that no output depends on: the compiler removes it.

    Lines inside a call of Python have none, as they stand in no file; the call has one.
    """
    held = {name for expected in experiment.expected.values() for name in expected.layouts}
    needed: dict[Section, set[str]] = {
        "graph": {*experiment.results, *experiment.constraints, *held},
        "per_device": set(experiment.results),
    }
    unread: list[str] = []
    for section, names in needed.items():
        graph = experiment.computed(section)
        for line in _unread(graph, names, ()):
            if line.path not in experiment.frames[section]:
                removed = _with(graph, line)
                unread.append(f"nothing reads '{line}' of {section}: the compiler removes it{removed}")
    return unread


def _unread(graph: Graph, names: Collection[str], needed: Iterable[int]) -> Iterator[Line]:
    """The lines and repeats that no later line reads, and of which no value has one of the `names` or is `needed`."""
    needed, unread = {*needed, *(graph.names[name] for name in names if name in graph.names)}, list[Line]()
    for equation in reversed(graph.equations):
        loop = repeat(equation)
        if needed.isdisjoint(value.number for value in equation.results):
            if loop is not None or (equation.source.whole and equation.source.line.first is None):
                unread.append(line_of(equation))
            continue
        needed |= dependencies(equation)
        if loop is not None:
            own = f"{loop.name}."
            inside = {name.removeprefix(own) for name in names if name.startswith(own)}
            unread += reversed(list(_unread(loop.body, inside, loop.body.outputs)))
    yield from reversed(unread)


def _with(computed: Graph, line: Line) -> str:
    """The collectives that are removed with a line, as text."""
    path = line.path
    gone = [
        equation.operation
        for equation in walk(computed)
        if equation.source.line.path == path or equation.source.line.path.startswith(f"{path}/")
    ]
    collectives = [name for name in dict.fromkeys(gone) if row_of(name).kind == "collective"]
    return f", and its {' and '.join(collectives)}, which no check counts" if collectives else ""
