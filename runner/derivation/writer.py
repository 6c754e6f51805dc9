"""The statements of a graph, their types and Shardy's layouts in; the lines of one device out.

Each operation runs on shards in the way for which a device sends the fewest bytes (`rules.py`), towards the layout that
the plan has for its result. An operation without a rule of its own gets whole operands, which is always right.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.derivation import tables
from runner.derivation.completing import Completing
from runner.derivation.inlining import inlined
from runner.derivation.laying import Unmade, itemsize
from runner.derivation.rules import Question, Rule, Value, assigned, choose, layout
from runner.derivation.scopes import Binding, NotDerived, Parts, Scope
from runner.derivation.site import NotStatic, Site, Statics
from runner.derivation.trees import built
from runner.experiment.model import Experiment, Loop, Node, Statement
from runner.language.syntax import Expression, parse, place
from runner.language.trees import text
from runner.layout import Spec
from runner.sharding import moves

Hints = Mapping[str, Mapping[str, Spec]]
"""How the plan has them lie."""

_TRIALS = 24
"""How many layouts of what a loop carries are tried, at most."""


class Writer(Completing):
    """Writes the per-device lines of one graph."""

    def __init__(self, experiment: Experiment, parts: Parts, hints: Hints, *, invarying: bool, casts: bool) -> None:
        super().__init__(experiment, parts, invarying=invarying)
        self.casts = casts
        """Whether JAX is told what differs from device to device."""
        self.differentiated = experiment.grad is not None
        self.notes: list[str] = []
        self._hints = hints
        self._singled: dict[str, ast.expr] = {}

    # What is written.

    def write(self) -> tuple[Statement, ...]:
        """The lines of the graph, whose outputs lie as `outputs` says."""
        experiment = self.experiment
        for array in experiment.given:
            spec = moves.plain(self.mesh, array.layout.spec, len(array.shape))
            tree = self._singled.get(array.name, ast.Name(array.name))
            value = Value(tree, array.shape, spec, array.dtype, below=_below(array.init, experiment))
            self.scopes[0].names[array.name] = Binding(value)
            if array.name in experiment.constraints:
                moved = self.reshard(value, moves.plain(self.mesh, experiment.constraints[array.name], len(value.spec)))
                self.scopes[0].names[array.name] = Binding(moved)
        self._run(experiment.graph, "", {})
        for name, spec in experiment.results.items():
            if name in self._twice():
                value = self.reshard(self.binding(name).value, self._plain(spec, self.binding(name).value))
                self.scopes[0].put(name, value.tree)
        return inlined(tuple(self.scopes[0].lines), self.moved)

    def singled(self) -> None:
        """Say that arrays are the same along the mesh axes of size 1 in their specs; nothing is sent for it."""
        for array in self.experiment.arrays:
            tree: ast.expr = ast.Name(array.name)
            for d, axes in enumerate(array.layout.spec):
                if single := tuple(axis for axis in axes if self.mesh.sizes[axis] == 1):
                    template = "all_gather({x}, {over}, axis={d}, tiled=True, to='invarying')"
                    tree = built(template, x=tree, over=single, d=d)
            if not isinstance(tree, ast.Name):
                name = self.fresh(f"{array.name}_same")
                self.scopes[0].put(name, tree)
                self._singled[array.name] = ast.Name(name)

    def _twice(self) -> set[str]:
        """The outputs that a constraint lays out otherwise where they are computed."""
        experiment = self.experiment
        return {
            name
            for name, spec in experiment.results.items()
            if name in experiment.constraints and experiment.constraints[name] != spec
        }

    def _run(self, statements: Sequence[Statement], path: str, forced: Mapping[str, Spec]) -> None:
        for at, statement in enumerate(statements):
            here = f"{path}{statement.name}"
            self.beside, self.prefix = statements, path
            if isinstance(statement, Loop):
                self._loop(statement, here)
            else:
                again = any(later.name == statement.name for later in statements[at + 1 :])
                self._line(statement, here, forced={} if again else forced, inside=bool(path))

    def _line(self, line: Node, path: str, forced: Mapping[str, Spec], inside: bool) -> None:
        experiment, name = self.experiment, line.name
        self.path = path
        goal: Spec | None = forced.get(name, experiment.constrained.get(path))
        renamed = not inside and name in self._twice()
        if not inside:
            goal = experiment.constraints.get(name, experiment.results.get(name))
        for call in line.line.calls:
            if call.checkpoint is not None:
                self.note(f"what the function '{call.function}' computes is kept: these lines have no functions")
            if call.chooses:
                why = "these lines have no functions to choose between"
                self.note(f"every branch of '{call.label}' is computed: {why}")
        value = self.value(line.expression.tree, goal)
        if goal is not None and value.shape is not None:
            value = self.reshard(value, self._plain(goal, value))
        if goal is not None and value.shape is None and any(goal):
            raise NotDerived(f"'{name}' is no array, which could lie so")
        self.define(self.fresh(f"{name}_inner") if renamed else name, value, name)
        where = place(line.expression.tree)
        if goal is None and where is not None:
            self.binding(name).made = path, where

    def _loop(self, loop: Loop, path: str) -> None:
        firsts: list[Value] = []
        for name, first in loop.carry:
            self.path = f"{path}/carry/{name}"
            value = self.value(first.tree, None)
            if value.static:
                value = Value(value.tree, (), Spec(), _number(value))
            if value.elements:
                value = Value(self.whole(first.tree), None, Spec())
            firsts.append(value)
        overs = [self._over(name, whole, f"{path}/over/{name}") for name, whole in loop.over]
        best: tuple[float, int, tuple[Spec, ...]] | None = None
        tried = list(itertools.islice(itertools.product(*self._layouts(loop, path, firsts)), _TRIALS))
        for order, specs in enumerate(tried):
            if len(tried) > 1:
                kept = [scope.copied() for scope in self.scopes], self.cost, set(self.taken), set(self.moved)
                notes, asked = list(self.notes), dict(self.asked)
                self._repeat(loop, path, firsts, specs, overs)
                found = (round(self.cost, 3), order, specs)
                self.scopes, self.cost, self.taken, self.moved = kept
                self.asked = asked
                self.notes = notes
            else:
                found = (0.0, 0, specs)
            best = found if best is None or found < best else best
        assert best is not None
        self._repeat(loop, path, firsts, best[2], overs)

    def _over(self, name: str, whole: Expression, path: str) -> Value:
        """What a repeat takes slices of, whole along its first dimension."""
        self.path = path
        value = self.value(whole.tree, None)
        if value.shape is None:
            raise NotDerived(f"'{name}' is a slice of what is no array")
        return self.reshard(value, Spec(((), *self._plain(value.spec, value)[1:])))

    def _repeat(self, loop: Loop, path: str, firsts: list[Value], specs: tuple[Spec, ...], overs: list[Value]) -> None:
        carried = [
            (n, self.reshard(first, spec)) for (n, _), first, spec in zip(loop.carry, firsts, specs, strict=True)
        ]
        scope = Scope(self.scopes[-1].steps * max(loop.steps, 1), self.scopes[-1].line(loop.name))
        for name, value in carried:
            scope.names[name] = Binding(replace(value, tree=ast.Name(name), make=None, free=False))
        for (name, _), whole in zip(loop.over, overs, strict=True):
            assert whole.shape is not None
            value = Value(ast.Name(name), whole.shape[1:], Spec(whole.spec[1:]), whole.dtype)
            scope.names[name] = Binding(value)
        outer = self.index
        if loop.unroll:
            self.index = self.index | {loop.index}
        else:
            scope.names[loop.index] = Binding(Value(ast.Name(loop.index), (), Spec(), "int32"))
        self.scopes.append(scope)
        forced = {name: value.spec for name, value in carried if value.shape is not None}
        if loop.steps:
            self._run(loop.body, f"{path}/body/", forced)
        stacked = self._stacked(loop)
        # Another one where the layouts of a repeat inside were tried.
        scope = self.scopes.pop()
        ends = {name: scope.names[name].value for name, _ in carried}
        self.index = outer
        carry = tuple((name, parse(text(self._varying(value)))) for name, value in carried)
        # What never runs has no types: it stays as it is, and nothing traces it.
        body, unroll = (tuple(scope.lines), loop.unroll) if loop.steps else (loop.body, True)
        over = tuple((name, parse(text(value.tree))) for (name, _), value in zip(loop.over, overs, strict=True))
        stack = tuple((name, value.tree.id) for name, value in stacked if isinstance(value.tree, ast.Name))
        line = self.scopes[-1].line(loop.name)
        self.scopes[-1].lines.append(
            Loop(line, loop.steps, loop.index, carry, body, unroll, over, stack, loop.checkpoint)
        )
        for name, value in stacked:
            tree = ast.Attribute(ast.Name(loop.name), name)
            shape, spec = (loop.steps, *(value.shape or ())), Spec(((), *value.spec))
            self.scopes[-1].names[f"{loop.name}.{name}"] = Binding(Value(tree, shape, spec, value.dtype))
        for name, value in carried:
            if ends[name].shape != value.shape:
                raise NotDerived(f"what the repeat '{loop.name}' carries changes its shape")
            tree = ast.Attribute(ast.Name(loop.name), name)
            self.scopes[-1].names[f"{loop.name}.{name}"] = Binding(replace(ends[name], tree=tree, make=None))

    def _stacked(self, loop: Loop) -> list[tuple[str, Value]]:
        """What each step gives to be stacked, by a name in the body, laid out as the whole has to be."""
        found: list[tuple[str, Value]] = []
        for name, inner in loop.stack:
            value, result = self.binding(inner).value, f"{loop.name}.{name}"
            if value.shape is None:
                raise NotDerived(f"what '{result}' is stacked of is no array")
            goal = None
            if len(self.scopes) == 2:
                goal = self.experiment.constraints.get(result, self.experiment.results.get(result))
            if goal is not None:
                goal = moves.plain(self.mesh, goal, len(value.shape) + 1)
                if goal[0]:
                    raise NotDerived(f"the steps of '{result}' are to be on several devices")
                value = self.reshard(value, Spec(goal[1:]))
            if not isinstance(value.tree, ast.Name):
                value = self.define(self.fresh(f"{name}_each"), value)
            found.append((name, value))
        return found

    def _varying(self, value: Value) -> ast.expr:
        """What a loop starts with: JAX has to be told that what no array entered differs from device to device."""
        axes = tuple(axis for axis in self.mesh.axes if axis in value.spec.axes)
        if not self.casts or not value.free or not axes:
            return value.tree
        return built("pcast({x}, {over}, to='varying')", x=value.tree, over=axes)

    def _layouts(self, loop: Loop, path: str, firsts: list[Value]) -> Iterator[list[Spec]]:
        """For each name that a loop carries the layouts that it may have."""
        for (name, _), first in zip(loop.carry, firsts, strict=True):
            result = f"{loop.name}.{name}"
            goal = self.experiment.constraints.get(result, self.experiment.results.get(result))
            if first.shape is None:
                yield [Spec()]
            elif goal is not None and len(self.scopes) == 1:
                yield [self._plain(goal, first)]
            else:
                last = next((s for s in loop.body if isinstance(s, Node) and s.name == name), None)
                fixed = self.experiment.constrained.get(f"{path}/body/{name}")
                if fixed is not None:
                    yield [self._plain(fixed, first)]
                    continue
                hint = None if last is None else self._hint(last.expression.tree, first.shape, f"{path}/body/{name}")
                whole = Spec().padded(len(first.shape))
                yield list(dict.fromkeys([*([hint] if hint is not None else []), first.spec, whole]))

    # What expressions become.

    def value(self, node: ast.expr, goal: Spec | None = None) -> Value:
        """An expression as one device computes it, laid out as is cheapest on the way to `goal` or to the plan's."""
        static = self.statics.tree(node)
        if static is not None:
            return Value(static, None, Spec(), static=True)
        match node:
            case ast.Name(id=name):
                return self.binding(name).value
            case ast.Attribute(value=ast.Name(id=loop), attr=carried) if carried != "T" or self.is_bound(f"{loop}.T"):
                return self.binding(f"{loop}.{carried}").value
            case ast.Tuple() | ast.List():
                return Value(self.whole(node), None, Spec())
            case _:
                pass
        return tables.written(self.site(node, goal))

    def site(self, node: ast.expr, goal: Spec | None = None) -> Site:
        """An operation where it stands."""
        return Site(self, node, self.type_of(node), goal, self.elements_of(node))

    def apply(self, site: Site, values: Sequence[Value], rule: Rule) -> Value:
        """Run an operation by its rule."""
        typed = site.result
        wanted = site.wanted
        width = itemsize(typed.dtype)
        choice = choose(Question(self.mesh, rule, values, typed.shape, width, wanted, self.cost_of))
        trees = [self.reshard(value, spec).tree for value, spec in zip(values, choice.operands, strict=True)]
        tree = self.completed(rule.write(trees, choice.assignment), choice, typed)
        self.spend(rule.inner(choice.assignment))
        if site.elements:
            trees = tree.elts if isinstance(tree, ast.Tuple) else None
            elements = tuple(
                Value(
                    built("{x}[{i}]", x=tree, i=i) if trees is None else trees[i],
                    t.shape,
                    choice.spec.padded(len(t.shape)),
                    t.dtype,
                )
                for i, t in enumerate(site.elements)
            )
            return Value(tree, None, Spec(), elements=elements)
        make = self._maker(values, rule)
        value = Value(tree, typed.shape, choice.spec, typed.dtype, make=make, free=make is not None)
        if wanted is not None and wanted != choice.spec:
            steps = moves.moves(self.mesh, typed.shape, width, choice.spec, wanted)
            if all(step.kind == "slice" for step in steps):
                return self.reshard(value, wanted)
        return value

    def _maker(self, values: Sequence[Value], rule: Rule) -> Callable[[Spec], ast.expr] | None:
        """What no array enters can be written under any layout."""
        if rule.reduced or any(value.make is None for value in values):
            return None

        def make(spec: Spec) -> ast.expr:
            assignment = assigned(self.mesh, rule, rule.result, spec)
            operands = [layout(self.mesh, rule, dimensions, assignment) for dimensions in rule.operands]
            made = layout(self.mesh, rule, rule.result, assignment)
            if made != spec or not rule.allowed(assignment) or rule.inner(assignment) or None in operands:
                raise Unmade
            trees = [v.make(s) for v, s in zip(values, operands, strict=True) if v.make is not None and s is not None]
            return rule.write(trees, assignment)

        return make

    def ours(self, what: str) -> None:
        """Note that a part of the line is not the plan's, which leaves it to the partitioner."""
        self.note(f"{what} in '{self.line}' is Shardproof's own; the plan leaves it to the partitioner")

    def note(self, note: str) -> None:
        """Say something of the lines, once."""
        if note not in self.notes:
            self.notes.append(note)

    def whole(self, node: ast.expr) -> ast.expr:
        """An expression of which every device has the whole; of tuples and lists, each element."""
        if isinstance(node, ast.Tuple | ast.List):
            return type(node)([self.whole(element) for element in node.elts])
        if isinstance(node, ast.Slice):
            parts = (None if part is None else self.whole(part) for part in (node.lower, node.upper, node.step))
            return ast.Slice(*parts)
        value = self.value(node)
        if any(any(element.spec) for element in value.elements):
            return ast.Tuple([self.reshard(e, Spec().padded(len(e.shape or ()))).tree for e in value.elements])
        return value.tree if value.shape is None else self.reshard(value, Spec().padded(len(value.shape))).tree

    def wanted(self, site: Site) -> Spec | None:
        """The layout in which the result of an operation has to end, or in which the plan has it."""
        shape = site.result.shape
        if any(element.shape != shape for element in site.elements):
            return None
        if site.goal is not None and len(site.goal) <= len(shape):
            return moves.plain(self.mesh, site.goal, len(shape))
        return self._hint(site.node, shape, self.path)

    def _hint(self, node: ast.expr, shape: tuple[int, ...], path: str) -> Spec | None:
        where = place(node)
        hint = None if where is None else self._hints.get(path, {}).get(where)
        if hint is None or len(hint) != len(shape):
            return None
        spec: list[tuple[str, ...]] = []
        for size, axes in zip(shape, moves.plain(self.mesh, hint, len(shape)), strict=True):
            while axes and size % self.mesh.axis_size(axes):
                axes = axes[:-1]
            spec.append(axes)
        return Spec(spec)

    def _plain(self, spec: Spec, value: Value) -> Spec:
        assert value.shape is not None
        return moves.plain(self.mesh, spec, len(value.shape))


def _number(value: Value) -> str:
    """The dtype of an array that is made of a number."""
    literal = value.tree.value if isinstance(value.tree, ast.Constant) else None
    return "bool" if isinstance(literal, bool) else "int32" if isinstance(literal, int) else "float32"


def _below(init: Any, experiment: Experiment) -> int | None:
    """A bound of the integers of an array whose `init` says it: `integers(0, V)`."""
    tree = getattr(init, "tree", None)
    match tree:
        case ast.Call(func=ast.Name(id="integers"), args=[ast.Constant(value=0), bound], keywords=[]):
            try:
                return int(Statics(experiment.dims, frozenset(), lambda _: None).value(bound))
            except NotStatic:
                return None
        case _:
            return None
