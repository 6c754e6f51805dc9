"""A section of an experiment in; its expressions, and the section with one of them edited, out.

A program is broken with edits (`runner/cli/mutate.py`) and, as most of them undo each other, mended
(`runner/checks/diagnosis.py`): `runner/checks/slips.py` has those that change what is there, `runner/checks/mends.py`
those that put back what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from runner.checks import inscribed
from runner.experiment.model import Call, Experiment, Loop, Node, Section, Statement
from runner.faults import Key
from runner.graph.term import Apply, Name, Term, children, name_of, substituted, swapped
from runner.language.parts import called
from runner.language.printing import text
from runner.language.syntax import Expression


@dataclass(frozen=True)
class Edit:
    """One change of a line of the file, which several lines of a section may stand for.

    - `line`: where it is (`ring.acc`); `statements`: the section after it; `first`: the first statement that changes.
    - `kind`: what is changed; `before`, `after`: the part and what stands in its place.
    - `mend`: what it says of a program that it mends; `rank`: the lower, the likelier that is what somebody means.
    - `key`, `text`: where the file has the line, and what stands there instead.
    """

    line: str
    statements: tuple[Statement, ...]
    first: int
    kind: str
    before: str
    after: str
    mend: str
    rank: float
    key: Key = ()
    text: str | int = ""


@dataclass(frozen=True)
class Site:
    """One expression of the file: where it stands (`("ring", "acc")`), what stands before it, its loop's index.

    - `term`, `before`: in the names of the function that it is a line of, if it is one.
    - `named`: what messages call it; `places`: every line of the section that it is, with its path.
    """

    path: tuple[str, ...]
    term: Term
    before: dict[str, Term]
    index: str | None = None
    named: str = ""
    places: tuple[tuple[tuple[str, ...], Node], ...] = ()

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def label(self) -> str:
        """What the lines around it in the file call it."""
        return self.places[0][1].line.label


class Edits:
    """The edits of one section of an experiment.

    - `sites`: its expressions; `combinations`: the axes of more than one device, each and all.
    """

    def __init__(self, experiment: Experiment, section: Section) -> None:
        self.experiment = experiment
        self.section: Section = section
        self.statements = experiment.section(section)
        axes = [axis for axis, size in experiment.manual.sizes.items() if size > 1]
        self.combinations = [*((axis,) for axis in axes), *([tuple(axes)] if len(axes) > 1 else [])]
        found = list(_sites(self.statements, section))
        lines: dict[tuple[Call, ...], list[Node]] = {}
        for site in found:
            for _, node in site.places:
                lines.setdefault(node.line.calls, []).append(node)
        self._in_section = {calls: inscribed.in_section(nodes) if calls else {} for calls, nodes in lines.items()}
        self.sites = _by_line(found)

    def edit(self, site: Site, old: Term, new: Term, kind: str, mend: str, rank: float) -> Edit:
        """The section with `new` in the place of `old`."""
        term = swapped(site.term, old, new)
        rank += 0.25 if len(site.path) > 1 else 0.0
        statements = self.statements
        for path, node in site.places:
            changed = Expression.of(substituted(term, self._in_section[node.line.calls].get))
            statements = _changed(statements, path, lambda line, changed=changed: replace(line, expression=changed))
        first = min(_position(self.statements, path) for path, _ in site.places)
        node = site.places[0][1]
        return Edit(
            site.name, statements, first, kind, text(old), text(new), mend, rank,
            key=node.line.written(self.section)[0], text=text(inscribed.in_file(node, term)),
        )  # fmt: skip

    def stepped(self, path: tuple[str, ...], loop: Loop, by: int) -> Edit:
        """The section with a loop at `path` that takes more steps, or fewer."""
        steps = loop.steps + by
        after = f"{steps} step{'s' if steps != 1 else ''}"
        what = "one step short" if by > 0 else "one step long"
        mend = f"per_device.{'.'.join(path)}: the repeat is {what}: with {after} it equals the graph"
        statements = _changed(self.statements, path, lambda _: replace(loop, steps=steps))
        first = _position(self.statements, path)
        return Edit(
            ".".join(path), statements, first, "loop", f"{loop.steps} steps", after, mend, 1.0,
            key=(*loop.line.written(self.section)[0], "repeat"), text=steps,
        )  # fmt: skip


def _position(statements: Iterable[Statement], path: tuple[str, ...]) -> int:
    return next(i for i, statement in enumerate(statements) if statement.name == path[0])


def _sites(
    statements: tuple[Statement, ...],
    section: Section,
    path: tuple[str, ...] = (),
    outer: Mapping[str, Term] | None = None,
    index: str | None = None,
) -> Iterator[Site]:
    """The expressions of a section, each with those before it by the names that its own line knows."""
    known: dict[tuple[Call, ...], dict[str, Term]] = {(): dict(outer or {})}
    for statement in statements:
        if isinstance(statement, Node):
            line, term = statement.line, inscribed.own(statement)
            here, before = (*path, statement.name), known.setdefault(line.calls, {})
            key, _ = line.written(section)
            named = f"{section}.{'.'.join(here)}" if key[0] == section else ".".join(map(str, key))
            yield Site(here, term, dict(before), index, named, ((here, statement),))
            before[line.label] = term
            if line.calls:
                # What a call gives has a name where it is called.
                known[()][statement.name] = statement.expression.term
        else:
            nested = {**known[()]}
            yield from _sites(statement.body, section, (*path, statement.name), nested, statement.index)


def _by_line(found: Iterable[Site]) -> list[Site]:
    """The sites, those of one line of a function as one."""
    sites: dict[object, Site] = {}
    for site in found:
        node = site.places[0][1]
        line = (node.line.written("graph")[0], site.label, text(site.term)) if node.line.calls else site.path
        same = sites.get(line)
        sites[line] = site if same is None else replace(same, places=(*same.places, *site.places))
    return list(sites.values())


def indices(experiment: Experiment, section: Section) -> frozenset[str]:
    """The lines that no array's values enter: sizes, positions, counts of devices."""
    data = {array.name for array in experiment.given}

    def visit(statements: Iterable[Statement], path: str) -> set[str]:
        without = set[str]()
        for statement in statements:
            if isinstance(statement, Node):
                if data.isdisjoint(_read(statement.expression.term)):
                    without.add(f"{path}{statement.name}")
                else:
                    data.add(statement.name)
                continue
            data.update(line.name for line, first in statement.firsts() if not data.isdisjoint(_read(first.term)))
            # What one step computes, the next one reads.
            visit(statement.body, path)
            without |= visit(statement.body, f"{path}{statement.name}.")
            last = (*((name, name) for name, _ in statement.carry), *statement.stack)
            data.update(f"{statement.name}.{name}" for name, inner in last if inner in data)
        return without

    return frozenset(visit(experiment.section(section), ""))


def _read(term: Term) -> Iterator[str]:
    """The names whose values an expression reads, not their shapes alone."""
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


def is_reduced(site: Site, term: Term) -> bool:
    """Whether a part, or the line that it names, is a reduction over devices already."""
    return is_reduction(named_by(term, site))


def named_by(term: Term, site: Site) -> Term:
    """What the line says that a part names, if it names one before its own; or the part."""
    return site.before.get(term.name, term) if isinstance(term, Name) else term


def _changed(
    statements: tuple[Statement, ...], path: tuple[str, ...], change: Callable[[Statement], Statement]
) -> tuple[Statement, ...]:
    """The statements with that at `path` changed."""
    done: list[Statement] = []
    for statement in statements:
        if statement.name != path[0]:
            done.append(statement)
        elif len(path) == 1:
            done.append(change(statement))
        else:
            assert isinstance(statement, Loop)
            done.append(replace(statement, body=_changed(statement.body, path[1:], change)))
    return tuple(done)
