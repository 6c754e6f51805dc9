"""Takes a section of an experiment; returns its expressions, and the section with one of them edited.

A program is broken with edits (`runner/app/cli/mutate.py`) and, as most edits undo each other, mended
(`runner/checks/diagnosis/search.py`). `runner/checks/edits/changed_parts.py` has the edits that change what is there,
`runner/checks/edits/missing.py` those that put back what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from typing import TypeGuard

from runner.base import dtypes
from runner.base.faults import Key
from runner.base.lazy import dataclass
from runner.checks.edits import inscribed
from runner.experiment.model import Experiment, Section
from runner.experiment.source_text import NO_SOURCE, SourceText
from runner.graph.language.lines import RepeatLines, called, expressions, line_of, lines, parts, repeat
from runner.graph.language.printing import text
from runner.graph.language.python_source import differentiated, passed_by_rules, passed_on
from runner.graph.language.syntax import Expression
from runner.graph.model import Branches, CalledFunction, Equation, Graph, Repeat, walk
from runner.graph.source import Frame, FunctionCall, Line, Source
from runner.graph.spelling import Spelling
from runner.graph.term import Apply, Const, Name, Term, children, mapped, name_of, names, substituted, swapped, within

_IN_ONE_COPY = 3.0
"""The penalty in rank of an edit of one copy of a line of Python that was traced several times.

There is none if the line gives several values: these are written one by one.
"""

_IN_LINES_ALIKE = 1.0
"""The penalty in rank of an edit that is made in several lines of a file that are alike."""

_STEPS = 2
"""The fewest copies of a line that are steps of a loop which is unrolled."""

_FEW = 4
"""The largest number of copies of a line of Python that are also edited one by one."""


_PERIODS = (2, 3)
"""How many parts of one form a line of Python may have, of which each is edited alone in all copies of the line."""

_MOST_PERIODIC = 8
"""The largest number of copies of such parts."""

_MOST_PARTS = 200
"""The largest number of parts of a value that is written out."""

_OF_DERIVATIVES = ("put back", "constant", "number", "scale", "collective")
"""The kinds of edits of a backward pass that people make in the line which takes the derivative."""

_OF_SEVERAL = ("window", "number")
"""The kinds of edits by which a line takes another of several values."""

_UNPACKED = re.compile(r"\w+(, *\w+)+ *=[^=]")
"""A statement that gives several values names."""


def gives_several(frame: Frame) -> bool:
    """Whether a line of the user's file gives several values names."""
    return _UNPACKED.match(frame.text) is not None


@dataclass(frozen=True)
class PlacedLine:
    """A line of a section.

    - `line`, `source`: its identity, and its text and columns where it is written.
    - `names`: what the names around it, of its function, are in the section, where they differ.
    """

    line: Line
    source: Source
    names: Mapping[str, Name]


@dataclass(frozen=True)
class EditedLine:
    """A line of a section with another `term`, in the names of the lines around it."""

    placed: PlacedLine
    term: Term

    @property
    def line(self) -> Line:
        """The line."""
        return self.placed.line

    @property
    def in_section(self) -> Term:
        """Its term in the names of the section."""
        return substituted(self.term, self.placed.names.get)


@dataclass(frozen=True)
class Change:
    """What an edit changes.

    - `edited`: the lines with other terms; `steps`: the repeats with other numbers of steps.
    - `in_file`: the key of each line of the file that changes, with a function that returns its new text.
    - `before`, `after`: return the part and its replacement as text.
    """

    edited: tuple[EditedLine, ...]
    steps: tuple[tuple[Line, int], ...]
    in_file: tuple[tuple[Key, Callable[[], str | int]], ...]
    before: Callable[[], str]
    after: Callable[[], str]

    @property
    def lines(self) -> frozenset[Line]:
        """The lines and repeats that it changes."""
        return frozenset((*(edited.line for edited in self.edited), *(line for line, _ in self.steps)))


@dataclass(frozen=True)
class Edit:
    """An edit of a line of the file, which may stand for several lines of a section.

    - `line`: its name (`ring.acc`); `frame`: its place in the user's file, for a line read from Python.
    - `kind`: the kind of edit; `rank`: the lower, the likelier is the mistake.
    - `message`: returns the message if the edit mends the program.
    - `change`: returns what it changes. A section has very many edits, of which few are tried.
    - `edits`: those of the section.
    """

    line: str
    frame: Frame | None
    kind: str
    rank: float
    message: Callable[[], str] = field(repr=False, compare=False)
    change: Callable[[], Change] = field(repr=False, compare=False)
    edits: Edits = field(repr=False, compare=False)

    @cached_property
    def changed(self) -> Change:
        """What it changes."""
        return self.change()

    @property
    def written(self) -> str:
        """The new text of its line; "" if that is a repeat, or comes after the first statement that changes."""
        if self.edits.position(self.line) > min(map(self.edits.position, map(str, self.changed.lines))):
            return ""
        terms = (edited.term for edited in self.changed.edited if str(edited.line) == self.line)
        return next(map(text, terms), "")

    @property
    def before(self) -> str:
        """The part as text."""
        return self.changed.before()

    @property
    def after(self) -> str:
        """Its replacement as text."""
        return self.changed.after()

    @property
    def key(self) -> Key:
        """The key of the line in the file."""
        return self.changed.in_file[0][0]

    @property
    def text(self) -> str | int:
        """The new text of the line in the file."""
        return self.changed.in_file[0][1]()

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
    - `named`: its name in messages; `places`: every line of the section that it stands for.
    - `frame`: its place in the user's file, for a line read from Python.
    - `given`: the names that no line before it gives: parameters, and what a repeat carries.
    - `source`: how the user's Python spells the values of its function.
    - `integers`: the names of arrays of integers.
    - `copies`: the sites of the other lines that are edited with it: those that a line of Python became where it was
      traced several times, or lines of a file that are alike. They have the same form, other names and other numbers.
    - `penalty`: the penalty in rank of an edit here.
    """

    path: tuple[str, ...]
    term: Term
    before: dict[str, Before]
    index: str | None = None
    named: str = ""
    places: tuple[PlacedLine, ...] = ()
    frame: Frame | None = None
    given: tuple[str, ...] = ()
    source: SourceText = NO_SOURCE
    integers: frozenset[str] = frozenset()
    copies: tuple[EditSite, ...] = ()
    penalty: float = 0.0

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def label(self) -> str:
        """The name that the lines around it in the file have for it."""
        return self.places[0].line.label

    def text(self, term: Term) -> str:
        """The text of a part for messages: of a line of Python, as the source has it."""
        return self.source.of(self.written_out(term))

    def written_out(self, term: Term) -> Term:
        """A part in which values of the same Python line that its source does not name are written out."""

        own = form(self.term)

        def same_line(name: str) -> Term | None:
            before = self.before.get(name)
            unnamed = before is not None and before.frame == self.frame and name not in self.source.spelled
            if before is not None and own == form(before.term):
                # It is this line in the step before.
                return None
            return before.whole if before is not None and unnamed else None

        if self.frame is None:
            return term
        # A line that a loop of Python runs again and again reads itself, several times in each step.
        whole = substituted(term, same_line)
        return whole if sum(1 for _ in within(whole)) <= _MOST_PARTS else term

    def of_call(self, old: Term, message: Callable[[], str]) -> Callable[[], str]:
        """The message of an edit, which names the call too if the edited part is what the call gives the function."""
        if self.frame is None or not self.frame.caller or not self._is_given(old):
            return message
        caller = self.frame.caller
        return lambda: f"{message()}; or its call gives it the wrong value, {caller}"

    def _is_given(self, part: Term) -> bool:
        """Whether a part is a value that the caller of its function gives."""
        if not isinstance(part, Name) or self.frame is None:
            return False
        before = self.before.get(part.name)
        return before is None or before.frame is None or before.frame.caller != self.frame.caller

    def lacking(self, what: Callable[[], str], part: Term, new: Term, *, later: bool = False) -> Callable[[], str]:
        """Return the message that something is missing, and the line as it reads once `new` replaces `part`.

        `what` returns what is missing: of very many edits few are reported. With `later` it may as well be missing from
        the whole line, and so from a statement that passes the value on.
        """

        def message() -> str:
            edited = self.text(swapped(self.term, part, new))
            if self.frame is not None:
                passing = (passed_on(self.frame), *passed_by_rules(self.frame)) if later or part is self.term else ()
                there = ", or in ".join(dict.fromkeys(str(each) for each in (self.frame, *passing) if each))
                return f"{what()} is left out in {there}: with {edited} it equals the graph"
            return f"{what()} is left out: with {self.named}: {edited} it equals the graph"

        return message


class Edits:
    """The edits of one section of an experiment.

    - `every`: its expressions in their order; `sites`: the same, those that are edited together as one; `loops`: its
      repeats.
    - `combinations`: the mesh axes of more than one device, singly and all together, for collectives: none in a section
      of whole arrays; `counts`: the numbers of devices along them; `blocks`: the shapes of the arrays on a device.
    - `reference`: the experiment whose graph the section should compute; `factors`: by which its results are off.

    With `alike` there are also edits of all lines of a file that have one form, as of a ring that is unrolled by hand.
    """

    def __init__(
        self, experiment: Experiment, section: Section, *, alike: bool = False, reference: Experiment | None = None,
        factors: Sequence[float] = (),
    ) -> None:  # fmt: skip
        self.experiment = experiment
        self.factors = factors
        self.section: Section = section
        self.blocks = {array.name: experiment.block(array.layout).shard_shape for array in experiment.given}
        axes = [axis for axis, size in experiment.manual.sizes.items() if size > 1]
        combinations = [*((axis,) for axis in axes), *([tuple(axes)] if len(axes) > 1 else [])]
        self.combinations = combinations if section == "per_device" or experiment.regions else []
        self.counts = sorted({experiment.mesh.axis_size(axes) for axes in combinations})
        self.reference = experiment if reference is None else reference
        self._graph, computed = experiment.section(section), experiment.computed(section)
        self._positions = {line_of(equation).name: i for i, equation in enumerate(lines(computed))}
        terms = {line: expression.term for line, expression in expressions(computed)}
        reading = _SiteReader(experiment, section, Spelling.of(self._graph))
        arrays = tuple(array.name for array in experiment.given)
        integers = frozenset(a.name for a in experiment.given if dtypes.dtype(a.dtype).kind == "int")
        around = _Around(arrays, integers=integers)
        self.every = _by_line(reading.sites(self._graph, terms, {}, around))
        self._copies = Copies(self.every)
        self.sites = [*self._copies.together(alike=alike)]
        self.loops = [loop for equation in walk(self._graph) if (loop := repeat(equation)) is not None]

    @cached_property
    def read(self) -> frozenset[str]:
        """The names on which the results depend."""
        needed, reads = {*self.experiment.results}, dict[str, set[str]]()
        for name, read_names in _reads(self._graph, Spelling.of(self._graph)):
            if name is None:
                needed.update(read_names)
            else:
                reads.setdefault(name, set()).update(read_names)
        following = [*needed]
        while following:
            new = reads.get(following.pop(), set[str]()) - needed
            needed |= new
            following += new
        return frozenset(needed)

    @cached_property
    def sliced(self) -> frozenset[str]:
        """The texts of what a slice takes a part of."""
        every = (part for site in self.sites for part in parts(site.term))
        return frozenset(text(children(part)[0]) for part in every if called(part).moves == "part")

    def added_sum(self, site: EditSite) -> str | None:
        """The operand for which JAX adds the sum of a site, empty if it is not known; None for any other site."""
        return self.experiment.added_sums[self.section].get(str(site.places[0].line))

    def edit(self, site: EditSite, old: Term, new: Term, kind: str, message: Callable[[], str], rank: float) -> Edit:
        """The section with `new` in the place of `old`, in the site and in its copies."""
        rank += site.penalty + 0.25 * (len(site.path) > 1)
        message = site.of_call(old, message)
        frame = site.frame
        if frame is not None and frame.derivative and kind in _OF_DERIVATIVES:
            # No line has what is left out of a backward pass that JAX makes: people write it where they take it.
            frame = differentiated(frame) or frame
        if kind in _OF_SEVERAL and site.frame is not None and gives_several(site.frame):
            message = partial(self._or_in_reader, site, message)
        if frame is not None and frame != site.frame:
            message = partial(_of_derivative, frame, message)
        return Edit(site.name, frame, kind, rank, message, lambda: self._change(site, old, new), self)

    def of_terms(
        self,
        terms: Sequence[tuple[EditSite, Term]],
        frame: Frame,
        kind: str,
        message: Callable[[], str],
        rank: float,
    ) -> Edit:
        """The section with other terms at several sites, which follow from one line of the user's file."""
        site, term = terms[0]

        def change() -> Change:
            return self._changed(terms, lambda: site.text(site.term), lambda: site.text(term))

        return Edit(site.name, frame, kind, rank, message, change, self)

    def _or_in_reader(self, site: EditSite, message: Callable[[], str]) -> str:
        """A message on the wrong one of several values, which is as likely to be wrong where it is read."""
        readers = self._readers(site)
        return f"{message()}; or another of its values is meant in {readers[0]}" if len(readers) == 1 else message()

    def _readers(self, site: EditSite) -> list[str]:
        """The other lines of the user's file that read a value which this line computes from that of a site."""
        reads, frames = {site.label}, list[str]()
        for other in self.sites:
            if reads.isdisjoint(part.name for part in within(other.term) if isinstance(part, Name)):
                continue
            if other.frame == site.frame:
                reads.add(other.label)
            elif other.frame is not None:
                frames.append(str(other.frame))
        return list(dict.fromkeys(frames))

    @property
    def another_step(self) -> Iterator[tuple[EditSite, Term]]:
        """The last step of each line of a loop that is unrolled, and its term with one more step after it."""
        for site in self._copies.last_steps:
            term = self._copies.following(site)
            if term is not None:
                yield site, term

    def _change(self, site: EditSite, old: Term, new: Term) -> Change:
        copies = ((copy, self._copies.edited(site, copy, old, new)) for copy in site.copies)
        terms = [(site, swapped(site.term, old, new)), *((copy, term) for copy, term in copies if term is not None)]
        return self._changed(terms, lambda: site.text(old), lambda: site.text(new))

    def _changed(
        self, terms: Sequence[tuple[EditSite, Term]], before: Callable[[], str], after: Callable[[], str]
    ) -> Change:
        """The section with other terms at these sites."""
        edited = (EditedLine(placed, term) for edited_site, term in terms for placed in edited_site.places)
        in_file = ((self._key(edited_site), partial(_in_file, edited_site, term)) for edited_site, term in terms)
        return Change(tuple(edited), (), tuple(in_file), before, after)

    def _key(self, site: EditSite) -> Key:
        return site.places[0].line.written(self.section)[0]

    @property
    def unrolled(self) -> Iterator[Sequence[EditSite]]:
        """The sites of each line of Python that ran again and again, in that order."""
        return (group for group in self._copies.groups if len(group) > 1 and group[0].frame is not None)

    def frame(self, loop: RepeatLines) -> Frame | None:
        """The line of the user's Python that runs a repeat."""
        return self.experiment.given_frames[self.section].get(str(loop.line))

    def operands(self, loop: RepeatLines, kind: str) -> dict[str, Term]:
        """What a repeat carries at first, or is over, by the names inside."""
        starts = loop.firsts(Spelling.of(self._graph))
        return {line.name: first.term for line, first in starts if line.first == kind}

    def firsts(self, loop: RepeatLines, kind: str) -> list[EditSite | None]:
        """The lines that give these operands; None for what no line gives."""
        sites = {site.label: site for site in self.sites if site.path[:-1] == loop.line.loops}
        return [sites.get(name_of(operand) or "") for operand in self.operands(loop, kind).values()]

    def stepped(self, loop: RepeatLines, by: int, terms: Sequence[tuple[EditSite, Term]] = ()) -> Edit:
        """The section in which a repeat takes `by` more steps, with other terms at the lines that say so."""
        steps, name = loop.form.counted + by, str(loop.line)
        often = replace(loop, form=replace(loop.form, steps=steps)).often
        what = "one step short" if by > 0 else "one step long"
        frame = self.frame(loop)
        mend = f"{frame or f'per_device.{name}'}: the repeat is {what}: with {often} it equals the graph"
        key = (*loop.line.written(self.section)[0], "repeat")

        def change() -> Change:
            of_terms = self._changed(terms, lambda: loop.often, lambda: often)
            in_file = ((key, lambda: steps), *of_terms.in_file)
            return replace(of_terms, steps=((loop.line, steps),), in_file=in_file)

        return Edit(name, frame, "loop", 1.0, lambda: mend, change, self)

    def position(self, line: str) -> int:
        """The position of a line, or of the outermost repeat around it, among those of the section."""
        return self._positions[line.partition(".")[0]]


def _of_derivative(frame: Frame, message: Callable[[], str]) -> str:
    """A message on the backward pass of a line, which is as likely to be about the line that takes the derivative."""
    passed = passed_on(frame)
    return (
        f"{frame} takes{'' if passed is None else f', or {passed} passes on,'} a derivative that is wrong: {message()}"
    )


def _in_file(site: EditSite, term: Term) -> str:
    """The new text in the file of a line that is edited."""
    return text(inscribed.in_file(site.places[0].source, site.term, term))


class Copies:
    """The sites of a section, and which of them are alike but for names and numbers: `groups`, each in its order."""

    def __init__(self, sites: Sequence[EditSite]) -> None:
        groups: dict[tuple[object, ...], list[EditSite]] = {}
        for site in sites:
            groups.setdefault((site.frame, site.path[:-1], form(site.term)), []).append(site)
        self.groups = [*groups.values()]
        self._index = {
            (site.path[:-1], site.label): (group, number) for group in self.groups for number, site in enumerate(group)
        }

    @cached_property
    def _roles(self) -> dict[tuple[tuple[str, ...], str], tuple[tuple[str, ...], int]]:
        """What the copies of a line read at one place, by each of them, with its number: `v`, `v_2` and `v_3`."""
        roles: dict[tuple[tuple[str, ...], str], tuple[tuple[str, ...], int]] = {}
        for group in self.groups:
            read = zip(*(names(site.term) for site in group), strict=True) if len(group) > 1 else ()
            for role in read:
                if len({*role}) == len(role):
                    for number, name in enumerate(role):
                        roles.setdefault((group[0].path[:-1], name), (role, number))
        return roles

    def together(self, *, alike: bool) -> Iterator[EditSite]:
        """The sites, of which those of one line of Python are one, and stand alone only if they are few.

        With `alike` lines of a file that have one form also are one, besides each of them.
        """
        for group in self.groups:
            if len(group) == 1 or group[0].frame is None:
                yield from group
                if alike and len(group) > 1 and _counts(group[0].term):
                    yield replace(group[0], copies=tuple(group[1:]), penalty=_IN_LINES_ALIKE)
                continue
            # The first step of an unrolled loop may lack what is before it.
            shown = group[len(group) // 2]
            yield replace(shown, copies=tuple(site for site in group if site is not shown))
            if len(group) <= _FEW:
                penalty = 0.0 if gives_several(group[0].frame) else _IN_ONE_COPY
                yield from (replace(site, penalty=penalty) for site in group)
            for every in _PERIODS if len(group) <= _MOST_PERIODIC else ():
                if len(group) > every and len(group) % every == 0:
                    # The line has several parts of this form, and was traced several times.
                    for part in (group[first::every] for first in range(every)):
                        yield replace(part[0], copies=tuple(part[1:]), penalty=_IN_LINES_ALIKE)

    def edited(self, site: EditSite, copy: EditSite, old: Term, new: Term) -> Term | None:
        """The term of a copy with the edit of the site; None if it would read a value that no step there gives."""
        counterparts = dict(_aligned(site.term, copy.term))
        there = counterparts[Same(old)]
        by, lacking = _by(old, new), list[bool]()

        def moved(part: Term) -> Term:
            if Same(part) in counterparts:
                return counterparts[Same(part)]
            if isinstance(part, Name):
                name = self._counterpart(part.name, site, copy)
                lacking.append(name is None)
                return part if name is None else Name(name)
            if part is new and by and isinstance(there, Const) and isinstance(there.value, int):
                return Const(there.value + by)
            return mapped(part, moved)

        edited = swapped(copy.term, there, moved(new))
        return None if any(lacking) else edited

    @property
    def last_steps(self) -> Iterator[EditSite]:
        """The last site of each that are alike, as the steps of a loop that is unrolled are."""
        return (group[-1] for group in self.groups if len(group) >= _STEPS)

    def following(self, site: EditSite) -> Term | None:
        """The term of one more step after the last of a site's copies, in the terms of what there is.

        A value of the last step stands for that of the step before; integers go on as from the step before the last.
        """
        return self._following(*self._place(site), frozenset())

    def _place(self, site: EditSite) -> tuple[tuple[str, ...], str]:
        return site.path[:-1], site.label

    def _following(self, path: tuple[str, ...], label: str, around: frozenset[str]) -> Term | None:
        group, number = self._index[path, label]
        if number + 1 < len(group):
            return Name(group[number + 1].label)
        if len(group) < _STEPS or label in around:
            return None
        before, last = group[-2].term, group[-1].term
        pairs = dict(_aligned(last, before))
        missing = list[bool]()

        def moved(part: Term) -> Term:
            match part:
                case Name(name=name) if name == group[-2].label:
                    return last
                case Name(name=name) if (path, name) in self._index:
                    term = self._of_next(path, name, around | {label})
                    missing.append(term is None)
                    return part if term is None else term
                case Const(value=int() as value) if not isinstance(value, bool):
                    other = pairs[Same(part)]
                    return Const(2 * value - other.value) if isinstance(other, Const) else part  # type: ignore[operator]
                case _:
                    return mapped(part, moved)

        term = moved(last)
        return None if any(missing) else term

    def _of_next(self, path: tuple[str, ...], name: str, around: frozenset[str]) -> Term | None:
        """What stands for a value in one more step: the value itself, if it is of no step."""
        group, _ = self._index[path, name]
        return Name(name) if len(group) < _STEPS else self._following(path, name, around)

    def _counterpart(self, name: str, site: EditSite, copy: EditSite) -> str | None:
        """The value that stands to a copy as the value of this name stands to the site."""
        path = site.path[:-1]
        mine, theirs = (self._index[each.path[:-1], each.label] for each in (site, copy))
        group, number = self._index.get((path, name), ([], 0))
        values, by = [each.label for each in group], theirs[1] - mine[1]
        # A value that comes before the first step, or of the last, is read by a step as those of the others are.
        role, place = self._roles.get((path, name), ((name,), 0))
        if not group and any((path, other) in self._index for other in role):
            # It comes before the first step, and is no leaf of a tree that is computed leaf by leaf.
            return name
        if not group and len(role) == 1:
            return _of_same_part(name, site, copy)
        every = len(self._index[path, site.label][0])
        # The copies of a line that runs as often are its counterparts, those of one that runs more often are not.
        for series, at in sorted(((values, number + by), (role, place + by)), key=lambda each: len(each[0]) != every):
            if len(series) > 1 and 0 <= at < len(series):
                return series[at]
        return name if len(group) <= 1 else None


def _of_same_part(name: str, site: EditSite, copy: EditSite) -> str:
    """The leaf of a tree that stands to a copy as this one to the site: `layers/1/o`, where it reads `layers/1/q` in
    the place of `layers/0/q`; the leaf itself where the copy reads of no other part.
    """
    paths = {given: site.source.name(given).split("/") for given in site.given}
    own = paths.get(name, [name])
    for read, there in zip(names(site.term), names(copy.term), strict=True):
        mine, theirs = paths.get(read, [read]), paths.get(there, [there])
        apart = [at for at, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b]
        if len(mine) == len(theirs) and len(apart) == 1 and own[: apart[0] + 1] == mine[: apart[0] + 1]:
            wanted = [*own[: apart[0]], theirs[apart[0]], *own[apart[0] + 1 :]]
            return next((given for given, path in paths.items() if path == wanted), name)
    return name


@dataclass(frozen=True, eq=False)
class Same:
    """A part of a term as itself, not as what it says: equal parts may stand at several places."""

    part: Term

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.part is other.part

    def __hash__(self) -> int:
        return hash(type(self.part))


def _aligned(term: Term, other: Term) -> Iterator[tuple[Same, Term]]:
    """The parts of a term, each with that at the same place of another of the same form."""
    yield Same(term), other
    for part, counterpart in zip(children(term), children(other), strict=True):
        yield from _aligned(part, counterpart)


def _by(old: Term, new: Term) -> int:
    """The difference of two integer literals; 0 for other parts."""
    match old, new:
        case Const(value=int() as before), Const(value=int() as after):
            return after - before
        case _:
            return 0


_NAME, _NUMBER = Name("_"), Name("#")


def form(term: Term) -> Term:
    """A term without names and without the values of integers."""

    def without(part: Term) -> Term:
        match part:
            case Name():
                return _NAME
            case Const(value=int() as value) if not isinstance(value, bool):
                return _NUMBER
            case _:
                return mapped(part, without)

    return without(term)


def _counts(term: Term) -> bool:
    """Whether a term has an integer or communicates, as the lines of a ring do."""
    return any(
        is_collective(part) or (isinstance(part, Const) and isinstance(part.value, int)) for part in within(term)
    )


@dataclass(frozen=True)
class _Around:
    """The names in scope for the lines of a section, a function or a repeat, and the lines that give them.

    `source`: how the user's Python spells the values of the function; `integers`: the names of arrays of integers.
    """

    given: tuple[str, ...] = ()
    before: dict[str, Before] = field(default_factory=dict[str, Before])
    index: str | None = None
    source: SourceText = NO_SOURCE
    integers: frozenset[str] = frozenset()

    def same(self, pairs: Iterable[tuple[str, str | None]]) -> frozenset[str]:
        """The names inside of arrays of integers; `pairs` has each name inside with that around it."""
        return frozenset(inner for inner, outer in pairs if outer in self.integers)


@dataclass(frozen=True)
class _SiteReader:
    """Reads the expressions of a section."""

    experiment: Experiment
    section: Section
    spelling: Spelling

    def sites(
        self, graph: Graph, terms: Mapping[Line, Term] | None, names: dict[str, Name], around: _Around
    ) -> Iterator[EditSite]:
        """The expressions of a graph, each with the names in scope.

        `terms` has the section's lines in the section's names; None in a function. `names` are those that the names of
        the function have in the section; it gets those of the graph's lines.
        """
        for equation in graph.equations:
            match equation.form:
                case None if equation.source.whole and equation.source.line.first is None:
                    yield from self._line(equation, names, around)
                case None:
                    pass
                case Repeat():
                    yield from self._repeat(RepeatLines(equation, equation.form), terms, names, around)
                case CalledFunction(call=call, taken=taken):
                    yield from self._called(call, equation.bodies[0], names, around)
                    self._give(call.results, taken, terms, names, around)
                case Branches():
                    yield from self._choice(equation, equation.form, terms, names, around)

    def _line(self, equation: Equation, names: dict[str, Name], around: _Around) -> Iterator[EditSite]:
        line = equation.source.line
        site = self._site(equation, names, around)
        if site.frame is not None or site.source.empty:
            # The others are of JAX alone, as the counter of a fori_loop.
            yield site
        around.before[site.label] = Before(site.term, site.frame, site.written_out(site.term))
        _name(line.label, line, names)

    def _repeat(
        self, loop: RepeatLines, terms: Mapping[Line, Term] | None, names: dict[str, Name], around: _Around
    ) -> Iterator[EditSite]:
        given = (*around.given, *loop.given)
        firsts = ((line, name_of(first.term)) for line, first in loop.firsts(self.spelling))
        integers = around.integers | around.same((line.name, of) for line, of in firsts if line.first == "over")
        within = _Around(given, dict(around.before), loop.index or "i", around.source, integers)
        own = {name: known for name, known in names.items() if name not in loop.bound}
        yield from self.sites(loop.body, terms, own, within)
        _name(loop.line.label, loop.line, names)

    def _called(
        self, call: FunctionCall, body: Graph, names: Mapping[str, Name], around: _Around
    ) -> Iterator[EditSite]:
        own = {parameter: names.get(name, Name(name)) for parameter, name in call.arguments}
        yield from self.sites(body, None, own, self._around_call(call, around))

    def _choice(
        self,
        equation: Equation,
        form: Branches,
        terms: Mapping[Line, Term] | None,
        names: dict[str, Name],
        around: _Around,
    ) -> Iterator[EditSite]:
        within, known = self._around_call(form.call, around), dict(names)
        for call, body in zip(form.calls, equation.bodies, strict=True):
            yield from self._called(call, body, known, within)
            self._give(call.results, (body.producers[number].source for number in body.outputs), None, known, within)
        selecting = replace(self, spelling=self.spelling.selecting(form, equation.bodies))
        yield from selecting.sites(form.selecting, None, known, within)
        self._give([taken.line.label for taken in form.taken], form.taken, terms, names, around)

    def _around_call(self, call: FunctionCall, around: _Around) -> _Around:
        """What is in scope for the lines of a call."""
        parameters = tuple(name for name, _ in call.arguments)
        source = self.experiment.imports.source_text(call)
        return _Around(parameters, index=around.index, source=source, integers=around.same(call.arguments))

    def _give(
        self,
        results: Iterable[str],
        taken: Iterable[Source],
        terms: Mapping[Line, Term] | None,
        names: dict[str, Name],
        around: _Around,
    ) -> None:
        """Name the results of a call or a choice."""
        for result, source in zip(results, taken, strict=True):
            _name(result, source.line, names)
            if terms is not None:
                around.before[source.line.name] = Before(terms[source.line])

    def _site(self, equation: Equation, names: Mapping[str, Name], around: _Around) -> EditSite:
        line = equation.source.line
        key, _ = line.written(self.section)
        frame = self.experiment.given_frames[self.section].get(str(line))
        named = f"{self.section}.{line}" if key[0] == self.section else ".".join(map(str, key))
        path = (*line.loops, line.name)
        places = (PlacedLine(line, equation.source, dict(names)),)
        return EditSite(
            path, self.spelling.equation(equation), dict(around.before), around.index, str(frame or named), places,
            frame, around.given, around.source, around.integers,
        )  # fmt: skip


def _name(result: str, line: Line, names: dict[str, Name]) -> None:
    """Add to `names` what the name of a result is in the section."""
    if result == line.name:
        names.pop(result, None)
    else:
        names[result] = Name(line.name)


def _reads(graph: Graph, spelling: Spelling) -> Iterator[tuple[str | None, Iterable[str]]]:
    """What each value reads; under None what a repeat carries, stacks and is bounded by."""
    for equation in graph.equations:
        form, line = equation.form, equation.source.line
        match form:
            case None if equation.source.whole and line.first is None:
                read = Expression("", spelling.equation(equation)).names
                yield line.label, read
                yield line.name, read
            case None:
                pass
            case Repeat(sized_by=sized_by):
                loop = RepeatLines(equation, form)
                for first, expression in loop.firsts(spelling):
                    read = expression.names
                    yield (None, (first.name, *read)) if first.first == "carry" else (first.name, read)
                yield None, (loop.going, *loop.stack.values(), *(spelling.named[number] for number in sized_by))
            case CalledFunction(call=call):
                yield from ((name, (given,)) for name, given in call.arguments)
            case Branches(call=call, calls=calls, selecting=selecting):
                yield from ((name, (given,)) for of in (call, *calls) for name, given in of.arguments)
                yield from _reads(selecting, spelling.selecting(form, equation.bodies))
        for body in equation.bodies:
            yield from _reads(body, spelling)


def _by_line(of_calls: Iterable[EditSite]) -> list[EditSite]:
    """Merge the sites of one line of a function, which has a site for each call."""
    sites: dict[object, EditSite] = {}
    for site in of_calls:
        line = (site.places[0].line.written("graph")[0], site.label, text(site.term))
        same = sites.get(line)
        sites[line] = site if same is None else replace(same, places=(*same.places, *site.places))
    return list(sites.values())


def indices(experiment: Experiment, section: Section) -> frozenset[str]:
    """The lines that do not depend on any array: sizes, positions, numbers of devices."""
    data, computed = {array.name for array in experiment.given}, experiment.computed(section)
    spelling = Spelling.of(computed)

    def visit(graph: Graph, path: str) -> set[str]:
        without = set[str]()
        for equation in lines(graph):
            name, loop = line_of(equation).name, repeat(equation)
            if loop is None:
                if data.isdisjoint(_read(spelling.equation(equation))):
                    without.add(f"{path}{name}")
                else:
                    data.add(name)
                continue
            data.update(line.name for line, first in loop.firsts(spelling) if not data.isdisjoint(_read(first.term)))
            # What one step computes is read by the next.
            visit(loop.body, path)
            without |= visit(loop.body, f"{path}{name}.")
            last = (*((carried, carried) for carried in loop.carry), *loop.stack.items())
            data.update(f"{name}.{result}" for result, inner in last if inner in data)
        return without

    return frozenset(visit(computed, ""))


def _read(term: Term) -> Iterator[str]:
    """The names whose values an expression reads; those of which it reads only the shape are left out."""
    name = name_of(term)
    if name is not None:
        yield name
    if called(term).kind != "static":
        for part in children(term):
            yield from _read(part)


def is_reduction(term: Term) -> TypeGuard[Apply]:
    """Whether a part is a reduction over devices of its first operand."""
    return called(term).reduces and _has_operands(term)


def is_collective(term: Term) -> TypeGuard[Apply]:
    """Whether a part is a collective that moves or combines the values of its first operand."""
    return called(term).communicates and _has_operands(term)


def _has_operands(term: Term) -> bool:
    return isinstance(term, Apply) and bool(term.operands)


def is_reduced(site: EditSite, term: Term) -> bool:
    """Whether a part, or the line that it names, is a reduction over devices, perhaps with a cast of its type."""
    line = named_by(term, site)
    if isinstance(line, Apply) and called(line).casts_axes:
        return is_reduced(site, line.operands[0])
    return is_reduction(line)


def named_by(term: Term, site: EditSite) -> Term:
    """The expression of the line that a part names, if that line stands before; otherwise the part itself."""
    before = site.before.get(term.name) if isinstance(term, Name) else None
    return term if before is None else before.term
