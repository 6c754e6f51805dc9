"""A call of `cond` or `switch` in; the lines of what it may call, and the line that takes one's value, out.

`h: cond(p, f, g, x)` becomes the lines of `g(x)` and of `f(x)`, and `h: where(p, …, …)`. So whoever reads statements
knows nothing of branches; the writers and JAX's types put the choice back (`runner/experiment/branches.py`).
"""

from __future__ import annotations

import ast
import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from runner.experiment.frames import Frame, Place
from runner.experiment.functions import RESULT, Function, is_static
from runner.experiment.model import Call, Node, Statement
from runner.experiment.plain import choices, read_expression
from runner.faults import nearest
from runner.language import forms
from runner.language.operations import CONSTANTS
from runner.language.syntax import name_of


@dataclass
class Choosing(ABC):
    """What reads the lines of a section, as far as it reads choices."""

    dims: Mapping[str, int]
    functions: Mapping[str, Function]
    taken: set[str]
    """The names that a line of a function cannot be given in the section."""

    @abstractmethod
    def _node(self, name: str, tree: ast.expr, place: Place, *, gives: int = 0, result: bool = False) -> Node: ...

    @abstractmethod
    def _name(self, name: str, place: Place) -> str: ...

    @abstractmethod
    def _fresh(self, wish: str, frame: Frame) -> str: ...

    @abstractmethod
    def _hoisted(self, tree: ast.expr, place: Place, before: list[Statement]) -> ast.expr: ...

    @abstractmethod
    def _call(
        self,
        function: Function,
        call: ast.expr,
        given: tuple[str, ...],
        place: Place,
        before: list[Statement],
        branch: int | None = None,
    ) -> list[Statement]: ...

    def _choice(self, call: ast.Call, given: tuple[str, ...], place: Place, before: list[Statement]) -> list[Statement]:
        """The lines of the branches and of what is taken of them; those of operands go to `before`."""
        asked = forms.read(call)
        if isinstance(asked, str):
            raise place.fault(asked, call)
        outer = place.frame
        label = given[0] if len(given) == 1 else self._fresh("_".join(given), outer)
        hidden = {name for case in asked.cases for name in self._hides(case)} | set(given if given[1:] else ())
        on = self._held(asked.on, f"{label}_{'on' if asked.name == 'cond' else 'index'}", hidden, place, before)
        operands = [
            operand if is_static(operand, self.dims) else self._held(operand, f"{label}_x", hidden, place, before)
            for operand in asked.operands
        ]
        made = Call(asked.name, label, given, (("on", on.id),), chooses=True)
        env = {**outer.env, **{name: self._name(name, place) for name in given}}
        frame = replace(outer, env=env, calls=(*outer.calls, made))
        inside = replace(place, frame=frame)
        lines: list[Statement] = []
        taken: list[tuple[ast.Name, ...]] = []
        scope = place.scope
        known, loops = set(scope.values), dict(scope.loops)
        for i, case in enumerate(asked.cases):
            word = (
                case.id if isinstance(case, ast.Name) else ("false", "true")[i] if asked.name == "cond" else f"case{i}"
            )
            names = tuple(self._fresh(f"{name}_{word}", frame) for name in given)
            if isinstance(case, ast.Lambda):
                lines += self._lambda(case, operands, f"{label}_{word}", names, inside, i)
            else:
                function = self._function(case, place)
                self._gives(function, given, place, case)
                handed = ast.copy_location(ast.Call(case, list(operands), []), call)
                lines += self._call(function, handed, names, inside, lines, i)
            taken.append(tuple(ast.copy_location(ast.Name(name, ast.Load()), case) for name in names))
        for name, parts in zip(given, zip(*taken, strict=True), strict=True):
            lines.append(self._node(name, _taken(asked.name, on, parts, call), inside, result=len(given) == 1))
        # What a branch computes is there in the branch alone.
        scope.values.intersection_update(known | {env[name] for name in given})
        for name in scope.loops.keys() - loops.keys():
            del scope.loops[name]
        return lines

    def _hides(self, case: ast.expr) -> frozenset[str]:
        function = self.functions.get(case.id) if isinstance(case, ast.Name) else None
        return function.bound_in_repeats if function is not None else frozenset()

    def _function(self, case: ast.expr, place: Place) -> Function:
        if isinstance(case, ast.Name) and case.id in self.functions:
            return self.functions[case.id]
        known = tuple(self.functions)
        hint = (nearest(case.id, known) if isinstance(case, ast.Name) else "") or (choices(known) if known else "")
        what = f"'{case.id}' is none" if isinstance(case, ast.Name) else "this is none"
        message = f"what is chosen are functions of the experiment's own, or lambdas: lambda x: x * 2; {what}{hint}"
        raise place.fault(message, case)

    def _gives(self, function: Function, given: tuple[str, ...], place: Place, case: ast.expr) -> None:
        value = function.result(place.scope.section)
        tree = None if isinstance(value.value, Mapping) else read_expression(value.value, value.key).tree
        count = len(tree.elts) if isinstance(tree, ast.Tuple | ast.List) else 1
        if count != len(given):
            raise place.fault(_unlike(f"'{function.name}'", count, given), case)

    def _held(self, operand: ast.expr, wish: str, hidden: set[str], place: Place, before: list[Statement]) -> ast.Name:
        """An operand under a name, which it is given by a line before where it has none."""
        frame = place.frame
        if isinstance(operand, ast.Name) and operand.id not in hidden and operand.id not in (*self.dims, *CONSTANTS):
            return operand
        inside = replace(place, name=self._fresh(wish, frame))
        before.append(self._node(inside.name, self._hoisted(operand, inside, before), inside))
        return ast.copy_location(ast.Name(inside.name, ast.Load()), operand)

    def _lambda(
        self,
        case: ast.Lambda,
        operands: list[ast.expr],
        called: str,
        given: tuple[str, ...],
        place: Place,
        branch: int,
    ) -> list[Statement]:
        """The lines of a lambda, `called` so, where it is called; it reads what the lines around it read."""
        parameters = [each.arg for each in case.args.args]
        if len(parameters) != len(operands):
            message = f"the lambda takes {len(parameters)}, and {len(operands)} operands are given"
            raise place.fault(message, case)
        tree = _Put(dict(zip(parameters, operands, strict=True))).visit(copy.deepcopy(case.body))
        one = len(given) == 1
        elements = tree.elts if isinstance(tree, ast.Tuple | ast.List) else [tree]
        if len(elements) != len(given):
            raise place.fault(_unlike("the lambda", len(elements), given), case.body)
        outer = place.frame
        held = {*self.dims, *CONSTANTS, *self.functions, *forms.CALLING}
        read = tuple(dict.fromkeys(name for name in _free(tree, frozenset()) if name not in held))
        label = given[0] if one else self._fresh("_".join(given), outer)
        made = Call(called, label, given, tuple((name, name) for name in read), None, branch)
        known = [self._name(name, place) for name in given]
        frame = replace(outer, env=dict(outer.env), prefix=f"{known[0]}_", calls=(*outer.calls, made))
        lines: list[Statement] = []
        here = replace(place, frame=frame, name=RESULT)
        hoisted = [self._hoisted(part, here, lines) for part in elements]
        for i, (name, part) in enumerate(zip(known, hoisted, strict=True)):
            own = RESULT if one else f"{RESULT}{i}"
            frame.env[own] = name
            lines.append(self._node(own, part, here, result=one))
        return lines


def _unlike(what: str, count: int, given: tuple[str, ...]) -> str:
    gives = "one value" if count == 1 else f"{count} values"
    names = "one name stands" if len(given) == 1 else f"{len(given)} names stand"
    return f"{what} gives {gives}, and {names} before the choice: a, b: cond(p, f, g, x) where both give (a, b)"


def _taken(name: str, on: ast.Name, parts: tuple[ast.Name, ...], call: ast.Call) -> ast.expr:
    """Which of the branches' values is taken; an index out of range takes the nearest."""
    if name == "cond":
        return _where(on, parts[1], parts[0], call)
    found: ast.expr = parts[-1]
    for i, part in reversed(list(enumerate(parts[:-1]))):
        compared = ast.Compare(copy.copy(on), [ast.LtE()], [ast.copy_location(ast.Constant(i), on)])
        # Each part has a place of its own.
        found = _where(ast.copy_location(compared, call.func), part, found, call)
    return found


def _where(condition: ast.expr, x: ast.expr, y: ast.expr, call: ast.Call) -> ast.expr:
    function = ast.copy_location(ast.Name("where", ast.Load()), call.func)
    return ast.copy_location(ast.Call(function, [copy.copy(condition), x, y], []), call)


def _free(tree: ast.AST, own: frozenset[str]) -> Iterator[str]:
    """The names that an expression reads, without those of operations and of lambdas in it."""
    if isinstance(tree, ast.Lambda):
        yield from _free(tree.body, own | {each.arg for each in tree.args.args})
        return
    name = name_of(tree)
    if name is not None and not name.endswith(".T"):
        if name not in own:
            yield name
        return
    for child in ast.iter_child_nodes(tree):
        if not (isinstance(tree, ast.Call) and child is tree.func):
            yield from _free(child, own)


class _Put(ast.NodeTransformer):
    """Operands in the place of the parameters of a lambda."""

    def __init__(self, operands: Mapping[str, ast.expr]) -> None:
        self._operands = operands

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        own = {each.arg for each in node.args.args}
        inner = _Put({name: operand for name, operand in self._operands.items() if name not in own})
        node.body = inner.visit(node.body)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        # A parameter may have the name of an operation or a function that is called.
        node.args = [self.visit(argument) for argument in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        operand = self._operands.get(node.id)
        return node if operand is None else ast.copy_location(copy.copy(operand), node)
