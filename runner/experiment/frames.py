"""A line of a function and a call of it in; the line with the names that it has where the function is called, out."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runner.experiment.functions import at
from runner.experiment.model import Call, Line, Origin
from runner.experiment.plain import located
from runner.faults import InvalidExperiment, Key
from runner.language import static
from runner.language.check import Scope, canonical
from runner.language.syntax import Expression, SyntaxFault, names


@dataclass(frozen=True)
class Frame:
    """Where lines are read: in a section, or in a function that is called there.

    - `env`: the names of the function and what the section calls them; `statics`: parameters that stand for what is
      known without arrays.
    - `prefix`: what the names begin with that the section gives the function's lines; `own`: the function's own names.
    - `inside`: the functions whose lines are being read, outermost first.
    """

    env: dict[str, str] = field(default_factory=dict[str, str])
    statics: Mapping[str, ast.expr] = field(default_factory=dict[str, ast.expr])
    prefix: str = ""
    own: frozenset[str] = frozenset()
    calls: tuple[Call, ...] = ()
    uses: tuple[Key, ...] = ()
    inside: tuple[str, ...] = ()

    def filled(self, expression: Expression, key: Key, scope: Scope) -> ast.expr:
        """The tree of an expression, with what is known without arrays written out: parameters, comprehensions."""
        known = Expression(expression.text, filled(expression.tree, self.statics))
        mesh = scope.mesh if scope.section == "per_device" else None
        try:
            known = static.written_out(known, scope.sizes, mesh, scope.parameters)
        except SyntaxFault as fault:
            raise InvalidExperiment(located(key, expression.text, fault, self.uses)) from None
        return canonical(known).tree

    def in_section(self, tree: ast.expr) -> ast.expr:
        """A tree with the section's names."""
        return _Renamed(self.env).visit(copy.deepcopy(tree)) if self.calls else tree

    def in_repeat(self, carried: Iterable[str], own: Iterable[str]) -> Frame:
        """The same inside a repeat: what it carries keeps its name, and hides what has the same outside."""
        env = {name: known for name, known in self.env.items() if name not in set(own)}
        return replace(self, env=env | {name: name for name in carried})


class _Renamed(ast.NodeTransformer):
    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def visit_Call(self, node: ast.Call) -> ast.Call:
        node.args = [self.visit(argument) for argument in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        # It reads its own two values.
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(self._env.get(node.id, node.id), node.ctx), node)


class _Filled(_Renamed):
    """Puts what is known without arrays in the place of the parameters that stand for it."""

    def __init__(self, statics: Mapping[str, ast.expr]) -> None:
        self._statics = statics

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        own = {each.arg for each in node.args.args}
        inside = _Filled({name: known for name, known in self._statics.items() if name not in own})
        node.body = inside.visit(node.body)
        return node

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id not in self._statics:
            return node
        known = copy.deepcopy(self._statics[node.id])
        for part in ast.walk(known):
            # They stand where the parameter stands, for messages and for places.
            if isinstance(part, ast.expr):
                ast.copy_location(part, node)
        return known


def filled(tree: ast.expr, statics: Mapping[str, ast.expr]) -> ast.expr:
    """A copy of the tree with what is known without arrays in the place of the parameters that stand for it."""
    return _Filled(statics).visit(copy.deepcopy(tree))


@dataclass(frozen=True)
class Place:
    """Where an expression stands: its key and text, what it may read, the function, the repeat; its line's `name`."""

    key: Key
    text: str
    scope: Scope
    frame: Frame
    within: Line | None
    name: str

    def fault(self, message: str, node: ast.AST) -> InvalidExperiment:
        """What is wrong with a part of the expression."""
        return InvalidExperiment(located(self.key, self.text, at(self.text, message, node), self.frame.uses))


def free(wish: str, taken: set[str]) -> str:
    """A name that is not `taken`, which it then is."""
    name, count = wish, 2
    while name in taken:
        name, count = f"{wish}_{count}", count + 1
    taken.add(name)
    return name


def cycle(start: str, scope: Scope) -> list[str] | None:
    """The names along which `start` depends on itself, if it does."""
    paths = [[start]]
    while paths:
        path = paths.pop()
        expression = scope.later.get(path[-1])
        for node in names(expression.tree) if expression else ():
            if node.id in scope.values or node.id not in scope.later:
                continue
            if node.id == start:
                return [*path, start]
            if node.id not in path:
                paths.append([*path, node.id])
    return None


def line_of(name: str, within: Line | None, origin: Origin) -> Line:
    """The identity of a line `within` a repeat, or of none."""
    return replace(Line(name) if within is None else within.inside(name), origin=origin)
