"""Takes a section of an experiment; returns its expressions, and the section with one of them edited.

A program is broken with edits (`runner/cli/mutate.py`) and, as most edits undo each other, mended
(`runner/checks/diagnosis.py`). `runner/checks/slips.py` has the edits that change what is there,
`runner/checks/mends.py` those that put back what is missing.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias, TypeGuard

from runner.checks import inscribed
from runner.experiment.lines import Flat, Line, Loop, Node, Statement, expressions, flat, inside, with_inside
from runner.experiment.model import Experiment, Section
from runner.experiment.source_text import NO_SOURCE, SourceText
from runner.faults import Key
from runner.graph.source import Frame
from runner.graph.term import Apply, Name, Term, children, name_of, names, substituted, swapped
from runner.language.parts import called, parts
from runner.language.printing import text
from runner.language.syntax import Expression

Position: TypeAlias = tuple[int, ...]
"""The position of a statement in a section: its number, then its number within the enclosing statement, and so on."""


_SLICES = ("dynamic_slice", "dynamic_slice_in_dim", "dynamic_index_in_dim")

_IN_ONE_COPY = 3.0
"""The penalty in rank of an edit of one copy of a line of Python that was traced several times."""


@dataclass(frozen=True)
class Edit:
    """An edit of a line of the file, which may stand for several lines of a section.

    - `line`: its name (`ring.acc`); `frame`: its place in the user's file, for a line read from Python.
    - `written`: returns the single lines of the edited section; `first`: the first of them that changes.
    - `kind`: the kind of edit; `before`, `after`: the part and its replacement.
    - `message`: returns the message if the edit mends the program; `rank`: the lower, the likelier is the mistake.
    - `key`, `text`: the key of the line in the file, and its new text; `others`: those of the other lines of the file
      that change, where a line of Python was traced several times.
    - `edited`: the statements that change, with their positions.
    - `pattern`: the part, its replacement and the whole expression without the names of values, for a line of Python
      that was traced several times.
    """

    line: str
    written: Callable[[], tuple[Flat, ...]] = field(repr=False, compare=False)
    first: int
    kind: str
    before: str
    after: str
    message: Callable[[], str] = field(repr=False, compare=False)
    rank: float
    key: Key = ()
    text: str | int = ""
    frame: Frame | None = None
    others: tuple[tuple[Key, str | int], ...] = ()
    edited: tuple[tuple[Position, Node | Loop[Statement]], ...] = field(default=(), repr=False, compare=False)
    pattern: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @cached_property
    def statements(self) -> tuple[Flat, ...]:
        """The single lines of the edited section; computed on request, since a long section has many edits."""
        return self.written()

    @property
    def mend(self) -> str:
        """The message if the edit mends the program."""
        return self.message()

    @property
    def place(self) -> str:
        """The name that users know the line by."""
        return self.line if self.frame is None else str(self.frame)


@dataclass(frozen=True)
class Before:
    """The line that gives a name.

    `frame` is its place in the user's file, and `whole` its expression with the other parts of the same Python line
    written out.
    """

    term: Term
    frame: Frame | None = None
    whole: Term | None = None


@dataclass(frozen=True)
class EditSite:
    """An expression of the file: its path (`("ring", "acc")`), the lines before it, and the index of its loop.

    - `term`, `before`: in the names of the function that the line belongs to, if any.
    - `named`: its name in messages; `places`: every line of the section that it stands for, with its position.
    - `frame`: its place in the user's file, for a line read from Python.
    - `given`: the names that no line before it gives: parameters, and what a repeat carries.
    - `source`: how the user's Python spells the values of its function.
    """

    path: tuple[str, ...]
    term: Term
    before: dict[str, Before]
    index: str | None = None
    named: str = ""
    places: tuple[tuple[Position, Node], ...] = ()
    frame: Frame | None = None
    given: tuple[str, ...] = ()
    source: SourceText = NO_SOURCE

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def label(self) -> str:
        """The name that the lines around it in the file have for it."""
        return self.places[0][1].line.label

    def text(self, term: Term) -> str:
        """The text of a part for messages: of a line of Python, as the source has it."""
        return self.source.of(self.written_out(term))

    def written_out(self, term: Term) -> Term:
        """A part in which values of the same Python line that its source does not name are written out."""

        def same_line(name: str) -> Term | None:
            before = self.before.get(name)
            unnamed = before is not None and before.frame == self.frame and name not in self.source.spelled
            return before.whole if before is not None and unnamed else None

        return term if self.frame is None else substituted(term, same_line)

    def lacking(self, what: str, part: Term, new: Term) -> Callable[[], str]:
        """Return the message that something is missing, and the line as it reads once `new` replaces `part`."""

        def message() -> str:
            edited = self.text(swapped(self.term, part, new))
            if self.frame is not None:
                return f"{what} is left out in {self.frame}: with {edited} it equals the graph"
            return f"{what} is left out: with {self.named}: {edited} it equals the graph"

        return message


class Edits:
    """The edits of one section of an experiment.

    - `sites`: its expressions; `loops`: its repeats, with their positions.
    - `combinations`: the mesh axes of more than one device, singly and all together; `blocks`: the shapes of the arrays
      on a device.
    """

    def __init__(self, experiment: Experiment, section: Section) -> None:
        self.experiment = experiment
        self.section: Section = section
        self.blocks = {array.name: experiment.block(array.layout).shard_shape for array in experiment.given}
        axes = [axis for axis, size in experiment.manual.sizes.items() if size > 1]
        self.combinations = [*((axis,) for axis in axes), *([tuple(axes)] if len(axes) > 1 else [])]
        self._statements = experiment.section(section)
        self._lines = [flat((statement,)) for statement in self._statements]
        self._first = {line.name: i for i, line in reversed([*enumerate(experiment.lines(section))])}
        terms = {line: expression.term for line, expression in expressions(experiment.lines(section))}
        reading = _SiteReader(experiment, section)
        arrays = tuple(array.name for array in experiment.given)
        self.sites = _by_line(reading.sites(self._statements, terms, (), _Around(arrays)))
        self.loops = list(_loops(self._statements, ()))

    @cached_property
    def _patterns(self) -> Mapping[Position, str]:
        """By the positions of the expressions that have the line of Python and the form of another one, their form."""
        forms = {
            site.places[0][0]: (site.frame, _form(site.term, site.term))
            for site in self.sites
            if site.frame is not None
        }
        often = Counter(forms.values())
        return {at: form for at, (frame, form) in forms.items() if often[frame, form] > 1}

    @cached_property
    def sliced(self) -> frozenset[str]:
        """The texts of what a dynamic slice takes a part of."""
        slices = (part for site in self.sites for part in parts(site.term) if isinstance(part, Apply))
        return frozenset(text(part.operands[0]) for part in slices if part.operation in _SLICES)

    def edit(self, site: EditSite, old: Term, new: Term, kind: str, message: Callable[[], str], rank: float) -> Edit:
        """The section with `new` in the place of `old`."""
        term = swapped(site.term, old, new)
        expression = Expression.of(term)
        edited = [(position, Node(node.line, expression)) for position, node in site.places]
        _, node = site.places[0]
        whole = self._patterns.get(site.places[0][0])
        pattern = () if whole is None else (whole, _form(old, site.term), _form(new, site.term))
        return Edit(
            site.name, *self._with(edited), kind, site.text(old), site.text(new), message,
            rank + 0.25 * (len(site.path) > 1), key=node.line.written(self.section)[0],
            text=text(inscribed.in_file(node, term)), frame=site.frame, edited=tuple(edited), pattern=pattern,
        )  # fmt: skip

    def stepped(self, position: Position, loop: Loop[Statement], by: int) -> Edit:
        """The section in which the loop at `position` takes `by` more steps."""
        edited_loop, name = replace(loop, steps=loop.counted_steps + by), str(loop.line)
        what = "one step short" if by > 0 else "one step long"
        frame = self.experiment.given_frames[self.section].get(name)
        after = edited_loop.often
        mend = f"{frame or f'per_device.{name}'}: the repeat is {what}: with {after} it equals the graph"
        edited = [(position, edited_loop)]
        return Edit(
            name, *self._with(edited), "loop", loop.often, after, lambda: mend, 1.0,
            key=(*loop.line.written(self.section)[0], "repeat"), text=edited_loop.counted_steps, frame=frame,
        )  # fmt: skip

    def in_all_copies(self, edits: Sequence[Edit]) -> list[Edit]:
        """The edits, and those of Python lines that were traced several times made in each copy.

        A loop of Python or a helper makes copies that differ in the numbers at the ends of their names. An edit of one
        of them alone is unlikelier, since the line stands for all. A collective or a function that is mapped over the
        leaves of a tree makes copies that have the same form and other names.
        """
        spelled: dict[tuple[object, ...], list[int]] = {}
        formed: dict[tuple[object, ...], list[int]] = {}
        for number, edit in enumerate(edits):
            if edit.frame is not None and edit.edited:
                key = (edit.frame, edit.kind)
                spelled.setdefault((*key, *map(_unnumbered, (edit.before, edit.after))), []).append(number)
                if edit.pattern:
                    formed.setdefault((*key, *edit.pattern), []).append(number)
        ranked = [*edits]
        for numbers in spelled.values():
            if self._apart([edits[number] for number in numbers]):
                for number in numbers:
                    ranked[number] = replace(edits[number], rank=edits[number].rank + _IN_ONE_COPY)
        groups = dict.fromkeys(map(tuple, (*spelled.values(), *formed.values())))
        together = [same for numbers in groups if self._apart(same := [edits[number] for number in numbers])]
        return ranked + [self._all_of(same) for same in together]

    def _apart(self, same: Sequence[Edit]) -> bool:
        """Whether there are several edits, each of other lines."""
        places = [position for edit in same for position, _ in edit.edited]
        return len(same) > 1 and len({*places}) == len(places)

    def _all_of(self, same: Sequence[Edit]) -> Edit:
        """The section with several edits made."""
        written, first = self._with([each for edit in same for each in edit.edited])
        others = tuple((edit.key, edit.text) for edit in same[1:])
        return replace(same[0], written=written, first=first, others=others)

    def _with(
        self, edited: Sequence[tuple[Position, Node | Loop[Statement]]]
    ) -> tuple[Callable[[], tuple[Flat, ...]], int]:
        """A function that returns the lines of the edited section, and the position of the first change."""

        def written() -> tuple[Flat, ...]:
            changed: dict[int, Statement] = {}
            for (number, *rest), statement in edited:
                changed[number] = _changed(changed.get(number, self._statements[number]), rest, statement)
            lines = (
                flat((changed[i],)) if i in changed else single_lines for i, single_lines in enumerate(self._lines)
            )
            return tuple(itertools.chain.from_iterable(lines))

        return written, min(self._first[(*statement.line.loops, statement.name)[0]] for _, statement in edited)


@dataclass(frozen=True)
class _Around:
    """The names in scope for the lines of a section, a function or a repeat, and the lines that give them.

    `source`: how the user's Python spells the values of the function.
    """

    given: tuple[str, ...] = ()
    before: dict[str, Before] = field(default_factory=dict[str, Before])
    index: str | None = None
    source: SourceText = NO_SOURCE


@dataclass(frozen=True)
class _SiteReader:
    """Reads the expressions of a section."""

    experiment: Experiment
    section: Section

    def sites(
        self,
        statements: Iterable[Statement],
        terms: Mapping[Line, Term] | None,
        position: Position,
        around: _Around,
    ) -> Iterator[EditSite]:
        """The expressions of statements, each with the names in scope.

        `terms` has the section's lines in the section's names; None for the statements of a function.
        """
        for number, statement in enumerate(statements):
            here = (*position, number)
            if isinstance(statement, Node):
                site = self._site(statement, here, around)
                if site.frame is not None or site.source.empty:
                    # The others are of JAX alone, as the counter of a fori_loop.
                    yield site
                around.before[site.label] = Before(site.term, site.frame, site.written_out(site.term))
            elif isinstance(statement, Loop):
                given = (*around.given, *statement.given)
                within = _Around(given, dict(around.before), statement.index, around.source)
                yield from self.sites(statement.body, terms, here, within)
            else:
                parameters = tuple(name for name, _ in statement.call.arguments)
                source = self.experiment.imports.source_text(statement.call)
                within = _Around(parameters, index=around.index, source=source)
                yield from self.sites(inside(statement), None, here, within)
                if terms is not None:
                    around.before.update((give.name, Before(terms[give.line])) for give in statement.gives)

    def _site(self, node: Node, position: Position, around: _Around) -> EditSite:
        line, (key, _) = node.line, node.line.written(self.section)
        frame = self.experiment.given_frames[self.section].get(str(line))
        named = f"{self.section}.{line}" if key[0] == self.section else ".".join(map(str, key))
        path = (*line.loops, line.name)
        places = ((position, node),)
        return EditSite(
            path, node.expression.term, dict(around.before), around.index, str(frame or named), places, frame,
            around.given, around.source,
        )  # fmt: skip


def _form(part: Term, whole: Term) -> str:
    """The text of a part, or of its replacement, with the places that values have in the whole expression for names."""
    numbers = {name: Name(f"_{number}") for number, name in enumerate(dict.fromkeys(names(whole)))}
    return text(substituted(part, numbers.get))


def _unnumbered(shown: str) -> str:
    """A text without the numbers that distinguish the names of values of one line, `h_2` and `h_3`."""
    return re.sub(r"(?<=[A-Za-z])_\d+\b", "", shown)


def _loops(statements: Iterable[Statement], position: Position) -> Iterator[tuple[Position, Loop[Statement]]]:
    for number, statement in enumerate(statements):
        if isinstance(statement, Loop):
            yield (*position, number), statement
        yield from _loops(inside(statement), (*position, number))


def _by_line(of_calls: Iterable[EditSite]) -> list[EditSite]:
    """Merge the sites of one line of a function, which has a site for each call."""
    sites: dict[object, EditSite] = {}
    for site in of_calls:
        line = (site.places[0][1].line.written("graph")[0], site.label, text(site.term))
        same = sites.get(line)
        sites[line] = site if same is None else replace(same, places=(*same.places, *site.places))
    return list(sites.values())


def _changed(statement: Statement, position: Sequence[int], replacement: Statement) -> Statement:
    """A statement in which the statement at `position` inside it is replaced."""
    if not position:
        return replacement
    parts = list(inside(statement))
    parts[position[0]] = _changed(parts[position[0]], position[1:], replacement)
    return with_inside(statement, parts)


def indices(experiment: Experiment, section: Section) -> frozenset[str]:
    """The lines that do not depend on any array: sizes, positions, numbers of devices."""
    data = {array.name for array in experiment.given}

    def visit(statements: Iterable[Flat], path: str) -> set[str]:
        without = set[str]()
        for statement in statements:
            if isinstance(statement, Node):
                if data.isdisjoint(_read(statement.expression.term)):
                    without.add(f"{path}{statement.name}")
                else:
                    data.add(statement.name)
                continue
            data.update(line.name for line, first in statement.firsts() if not data.isdisjoint(_read(first.term)))
            # What one step computes is read by the next.
            visit(statement.body, path)
            without |= visit(statement.body, f"{path}{statement.name}.")
            last = (*((name, name) for name, _ in statement.carry), *statement.stack)
            data.update(f"{statement.name}.{name}" for name, inner in last if inner in data)
        return without

    return frozenset(visit(experiment.lines(section), ""))


def _read(term: Term) -> Iterator[str]:
    """The names whose values an expression reads; those of which it reads only the shape are left out."""
    name, operation = name_of(term), called(term)
    if name is not None:
        yield name
    if operation is None or operation.kind != "static":
        for part in children(term):
            yield from _read(part)


def is_reduction(term: Term) -> TypeGuard[Apply]:
    """Whether a part is a reduction over devices of its first operand."""
    operation = called(term)
    return operation is not None and operation.reduces and _has_operands(term)


def is_collective(term: Term) -> TypeGuard[Apply]:
    """Whether a part is a collective that moves or combines the values of its first operand."""
    operation = called(term)
    return operation is not None and operation.communicates and _has_operands(term)


def _has_operands(term: Term) -> bool:
    return isinstance(term, Apply) and bool(term.operands)


def is_reduced(site: EditSite, term: Term) -> bool:
    """Whether a part, or the line that it names, is already a reduction over devices."""
    return is_reduction(named_by(term, site))


def named_by(term: Term, site: EditSite) -> Term:
    """The expression of the line that a part names, if that line stands before; otherwise the part itself."""
    before = site.before.get(term.name) if isinstance(term, Name) else None
    return term if before is None else before.term
