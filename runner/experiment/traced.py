"""Holds lines that a worker made, as data: terms and loops in their own names, without text.

They are those of a function that it read from Python, or those that it derived. They cross to the process that asked as
compact JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any, TypeAlias, cast

from runner.base import codec
from runner.base.lazy import dataclass
from runner.graph.model import LoopForm
from runner.graph.term import Term, bare, elements, term_of, written
from runner.graph.term import names as names_in

TracedLine: TypeAlias = "TracedTerm | TracedLoop"
"""A line: an expression with a name, or a loop."""


@dataclass(frozen=True)
class TracedTerm:
    """A line `name: term`."""

    name: str
    term: Term

    @property
    def defines(self) -> frozenset[str]:
        """The name as a set, as loops may define several."""
        return frozenset((self.name,))

    @cached_property
    def names(self) -> frozenset[str]:
        """All names that the line reads."""
        return frozenset(names_in(self.term))


@dataclass(frozen=True)
class TracedLoop:
    """A loop; `carry`, `over`: the initial values, and what each step takes a slice of."""

    name: str
    form: LoopForm
    body: tuple[TracedLine, ...]
    carry: Mapping[str, Term] = field(default_factory=dict[str, Term])
    over: Mapping[str, Term] = field(default_factory=dict[str, Term])

    @property
    def bound(self) -> Iterator[str]:
        """Every name of the body: what it starts with, its lines, and the names of loops inside."""
        yield from (self.form.index, *self.carry, *self.over, *(line.name for line in self.body))
        yield from _bound(self.body)

    @cached_property
    def defines(self) -> frozenset[str]:
        """The names of its results after the last step."""
        return frozenset(f"{self.name}.{name}" for name in (*self.carry, *self.form.stack))

    @cached_property
    def names(self) -> frozenset[str]:
        """All names that it reads, including those in its body."""
        firsts = (name for term in (*self.carry.values(), *self.over.values()) for name in names_in(term))
        return frozenset(firsts).union(*(line.names for line in self.body))


def with_terms(line: TracedLine, other: Callable[[Term], Term]) -> TracedLine:
    """The line with the other term of each of its terms, those inside loops too."""
    if isinstance(line, TracedTerm):
        return replace(line, term=other(line.term))
    carry, over = ({name: other(term) for name, term in firsts.items()} for firsts in (line.carry, line.over))
    return replace(line, body=tuple(with_terms(inner, other) for inner in line.body), carry=carry, over=over)


@dataclass(frozen=True)
class TracedLines:
    """The lines of a function and the names of its results.

    - `parameters`: the names of its operands, then of the arrays that it captures.
    - `lines`: expressions and loops, in order; a line reads parameters and earlier lines.
    """

    parameters: tuple[str, ...]
    lines: tuple[TracedLine, ...]
    results: tuple[str, ...]

    JSON = list[Any]

    @classmethod
    def of(cls, written: list[Any]) -> TracedLines:
        """Build from the lists that `json` returns."""
        parameters, lines, results = written
        return cls(tuple(parameters), _lines_of(lines), tuple(results))

    def json(self) -> list[Any]:
        """Return lists for JSON."""
        return [list(self.parameters), _written_lines(self.lines), list(self.results)]

    def with_line(self, path: Sequence[object], value: Term | int) -> TracedLines | None:
        """The lines with another value of the one at `path`, its key below the function; None if it cannot have it.

        A number replaces that of a loop's steps: `("scan", "repeat")`.
        """
        if [*path] == ["result"] and not isinstance(value, int):
            results = tuple(name for end in elements(value) or (value,) if (name := bare(end)) is not None)
            return replace(self, results=results) if len(results) == len(self.results) else None
        lines = _with_line(self.lines, path, value)
        return None if lines is None else replace(self, lines=lines)

    def only(self, results: Sequence[int]) -> TracedLines:
        """The function with only these of its results, by number, and the lines on which they depend."""
        kept = tuple(self.results[at] for at in results)
        needed, lines = {*kept}, list[TracedLine]()
        for line in reversed(self.lines):
            if not needed.isdisjoint((line.name, *line.defines)):
                needed |= line.names
                lines.append(line)
        return replace(self, lines=tuple(reversed(lines)), results=kept)

    @property
    def named(self) -> Iterator[str]:
        """The names of its lines and of those inside loops."""
        return _named(self.lines)

    @property
    def values(self) -> Iterator[str]:
        """The names of its lines, each followed by those that a loop there binds."""
        for line in self.lines:
            yield line.name
            yield from _bound((line,))

    @cached_property
    def bound_in_loops(self) -> frozenset[str]:
        """The names that its loops define inside."""
        return frozenset(_bound(self.lines))

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name that it binds: parameters, lines, and what its loops define."""
        return frozenset({*self.parameters, *(line.name for line in self.lines), *self.bound_in_loops})


@dataclass(frozen=True)
class UserSpelling:
    """How the user's source spells values and expressions of a function's lines.

    - `sources`: the texts of expressions, and the variables of values, by their terms.
    - `wishes`: what the source calls a value that is no variable's, or that it does not call so alone, by its name in
      the lines: `lse` for each value of `lse = logsumexp(x)`.
    """

    sources: Mapping[Term, str] = field(default_factory=dict[Term, str])
    wishes: Mapping[str, str] = field(default_factory=dict[str, str])

    JSON = list[Any]

    @classmethod
    def of(cls, written: list[Any]) -> UserSpelling:
        """Build from the lists that `json` returns."""
        sources, wishes = written
        return cls({term_of(term): source for term, source in sources}, wishes)

    def json(self) -> list[Any]:
        """Return the pairs of each term with its source, and the wishes, for JSON."""
        return [[[written(term), source] for term, source in self.sources.items()], dict(self.wishes)]


def _bound(lines: Iterable[TracedLine]) -> Iterator[str]:
    for line in lines:
        if isinstance(line, TracedLoop):
            yield from line.bound


def _with_line(
    lines: tuple[TracedLine, ...], path: Sequence[object], value: Term | int
) -> tuple[TracedLine, ...] | None:
    name, *rest = map(str, path)
    line = next((line for line in lines if line.name == name), None)
    edited: TracedLine | None = None
    if not isinstance(line, TracedLoop):
        edited = TracedTerm(name, value) if line is not None and not rest and not isinstance(value, int) else None
    elif isinstance(value, int):
        edited = replace(line, form=replace(line.form, steps=value)) if rest == ["repeat"] else None
    elif len(rest) == 2 and rest[0] == "carry":
        edited = replace(line, carry={**line.carry, rest[1]: value})
    elif len(rest) == 2 and rest[0] == "over":
        edited = replace(line, over={**line.over, rest[1]: value})
    elif len(rest) > 1 and (body := _with_line(line.body, rest[1:], value)) is not None:
        edited = replace(line, body=body)
    return None if edited is None else tuple(edited if other is line else other for other in lines)


def _named(lines: Iterable[TracedLine]) -> Iterator[str]:
    for line in lines:
        yield line.name
        if isinstance(line, TracedLoop):
            yield from _named(line.body)


def _written_lines(lines: Iterable[TracedLine]) -> list[Any]:
    return [[line.name, _loop(line) if isinstance(line, TracedLoop) else written(line.term)] for line in lines]


def _lines_of(lines: list[Any]) -> tuple[TracedLine, ...]:
    return tuple(
        _loop_of(name, cast("dict[str, Any]", line)) if isinstance(line, dict) else TracedTerm(name, term_of(line))
        for name, line in lines
    )


def _loop(loop: TracedLoop) -> dict[str, Any]:
    return {
        "form": codec.plain(loop.form),
        "carry": {name: written(term) for name, term in loop.carry.items()},
        "over": {name: written(term) for name, term in loop.over.items()},
        "body": _written_lines(loop.body),
    }


def _loop_of(name: str, loop: dict[str, Any]) -> TracedLoop:
    carry, over = ({name: term_of(term) for name, term in loop[part].items()} for part in ("carry", "over"))
    return TracedLoop(name, codec.build(LoopForm, loop["form"]), _lines_of(loop["body"]), carry, over)
