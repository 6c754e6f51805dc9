"""A section of an experiment in; its expressions, and the section with one of them edited, out.

A program is broken with edits (`runner/cli/mutate.py`) and, as most of them undo each other, mended
(`runner/checks/diagnosis.py`): `runner/checks/slips.py` has those that change what is there, `runner/checks/mends.py`
those that put back what is missing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from runner.experiment.model import Experiment, Loop, Node, Section, Statement
from runner.language import trees
from runner.language.operators import called
from runner.language.syntax import Expression


@dataclass(frozen=True)
class Edit:
    """One change of a section.

    - `line`: where it is (`ring.acc`); `statements`: the section after it; `first`: the first statement that changes.
    - `kind`: what is changed; `before`, `after`: the part and what stands in its place.
    - `mend`: what it says of a program that it mends; `rank`: the lower, the likelier that is what somebody means.
    """

    line: str
    statements: tuple[Statement, ...]
    first: int
    kind: str
    before: str
    after: str
    mend: str
    rank: float


@dataclass(frozen=True)
class Site:
    """One expression of the program: where it stands (`("ring", "acc")`), what stands before it, its loop's index."""

    path: tuple[str, ...]
    expression: Expression
    before: dict[str, Expression]
    index: str | None = None

    @property
    def name(self) -> str:
        return ".".join(self.path)


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
        self.sites = list(_sites(self.statements))

    def edit(self, site: Site, old: ast.expr, new: ast.expr, kind: str, mend: str, rank: float) -> Edit:
        """The section with `new` in the place of `old`."""
        tree = trees.swapped(site.expression.tree, old, new)
        changed = Expression(trees.text(tree), tree)
        rank += 0.25 if len(site.path) > 1 else 0.0
        return self._edit(
            site.path,
            lambda line: replace(line, expression=changed),
            (kind, trees.text(old), trees.text(new), mend, rank),
        )

    def stepped(self, path: tuple[str, ...], loop: Loop, by: int) -> Edit:
        """The section with a loop at `path` that takes more steps, or fewer."""
        steps = loop.steps + by
        text = f"{steps} step{'s' if steps != 1 else ''}"
        what = "one step short" if by > 0 else "one step long"
        mend = f"per_device.{'.'.join(path)}: the repeat is {what}: with {text} it equals the graph"
        return self._edit(path, lambda _: replace(loop, steps=steps), ("loop", f"{loop.steps} steps", text, mend, 1.0))

    def _edit(
        self,
        path: tuple[str, ...],
        change: Callable[[Statement], Statement],
        said: tuple[str, str, str, str, float],
    ) -> Edit:
        first = next(i for i, statement in enumerate(self.statements) if statement.name == path[0])
        return Edit(".".join(path), _changed(self.statements, path, change), first, *said)


def _sites(
    statements: tuple[Statement, ...],
    path: tuple[str, ...] = (),
    outer: Mapping[str, Expression] | None = None,
    index: str | None = None,
) -> Iterator[Site]:
    before = dict(outer or {})
    for statement in statements:
        if isinstance(statement, Node):
            yield Site((*path, statement.name), statement.expression, dict(before), index)
            before[statement.name] = statement.expression
        else:
            yield from _sites(statement.body, (*path, statement.name), before, statement.index)


def indices(experiment: Experiment, section: Section) -> frozenset[str]:
    """The lines that no array's values enter: sizes, positions, counts of devices."""
    data = {array.name for array in experiment.given}

    def visit(statements: Iterable[Statement], path: str) -> set[str]:
        without = set[str]()
        for statement in statements:
            if isinstance(statement, Node):
                if data.isdisjoint(_read(statement.expression.tree)):
                    without.add(f"{path}{statement.name}")
                else:
                    data.add(statement.name)
                continue
            data.update(line.name for line, first in statement.firsts() if not data.isdisjoint(_read(first.tree)))
            # What one step computes, the next one reads.
            visit(statement.body, path)
            without |= visit(statement.body, f"{path}{statement.name}.")
            last = (*((name, name) for name, _ in statement.carry), *statement.stack)
            data.update(f"{statement.name}.{name}" for name, inner in last if inner in data)
        return without

    return frozenset(visit(experiment.section(section), ""))


def _read(tree: ast.AST) -> Iterator[str]:
    """The names whose values an expression reads, not their shapes alone."""
    if isinstance(tree, ast.Call) and (operation := called(tree)) is not None and operation.kind == "static":
        return
    if isinstance(tree, ast.Attribute):
        yield ast.unparse(tree)
    if isinstance(tree, ast.Name):
        yield tree.id
    for child in ast.iter_child_nodes(tree):
        yield from _read(child)


def is_reduction(node: ast.expr) -> bool:
    operation = called(node)
    return operation is not None and operation.reduces


def is_collective(node: ast.expr) -> bool:
    """Whether a part is a collective that moves or combines values."""
    operation = called(node)
    return operation is not None and operation.communicates


def is_reduced(site: Site, node: ast.expr) -> bool:
    """Whether a part, or the line that it names, is a reduction over devices already."""
    if isinstance(node, ast.Name) and node.id in site.before:
        node = site.before[node.id].tree
    return is_reduction(node)


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
