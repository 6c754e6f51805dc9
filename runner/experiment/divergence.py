"""An experiment in; what is wrong with a collective that some devices of its group never come to, out.

A branch whose predicate differs between devices is taken by some of them. A collective in it over an axis along which
the predicate differs waits for the others, as long as the runtime lets it; XLA's CPU waits for all devices of the mesh
in a collective-permute. So does the sum in which differentiation ends what a branch reads that is the same along such
an axis.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from runner import dtypes
from runner.experiment import branches
from runner.experiment.branches import Choice
from runner.experiment.model import Experiment, Loop, Node, Statement, expressions
from runner.experiment.plain import located
from runner.faults import InvalidExperiment
from runner.language.operations import OPERATIONS, Operation
from runner.language.syntax import name_of
from runner.language.trees import nodes
from runner.words import quoted


def check(experiment: Experiment) -> None:
    """Raise `InvalidExperiment` for such a collective of `per_device`."""
    experiment = experiment.alone("per_device")
    differing = _Differing(experiment)
    for array in experiment.given:
        differing.axes[array.name] = differing.split(array.layout.spec.axes)
        if dtypes.dtype(array.dtype).kind in ("float", "complex"):
            differing.floats.add(array.name)
    differing.run(experiment.per_device, 0)


@dataclass
class _Differing:
    """Over which axes values may differ between devices, and which of them have a gradient."""

    experiment: Experiment
    axes: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    floats: set[str] = field(default_factory=set[str])

    def split(self, axes: Iterable[str]) -> frozenset[str]:
        """Of some axes those along which there is more than one device."""
        return frozenset(axis for axis in axes if self.experiment.mesh.sizes[axis] > 1)

    def run(self, statements: Sequence[Statement], depth: int) -> None:
        for part in branches.parts(statements, depth):
            if isinstance(part, Choice):
                self._choice(part)
            elif isinstance(part, Node):
                self._give(part.name, part.expression.tree)
            else:
                self._loop(part)

    def _give(self, name: str, tree: ast.expr) -> None:
        self.axes[name] = self._of(tree)
        self._mark(name, any(name in self.floats for name in _moving(tree)))

    def _mark(self, name: str, is_float: bool) -> None:
        if is_float:
            self.floats.add(name)

    def _loop(self, loop: Loop) -> None:
        for name, first in (*loop.carry, *loop.over):
            self._give(name, first.tree)
        self.axes[loop.index] = frozenset()
        known: dict[str, frozenset[str]] = {}
        while known != {name: self.axes[name] for name in loop.given}:
            known = {name: self.axes[name] for name in loop.given}
            self.run(loop.body, len(loop.line.calls))
            for name, before in known.items():
                self.axes[name] |= before
        for name in loop.results:
            inner = dict(loop.stack).get(name, name)
            self.axes[f"{loop.name}.{name}"] = self.axes[inner]
            self._mark(f"{loop.name}.{name}", inner in self.floats)

    def _choice(self, choice: Choice) -> None:
        on = self.axes[choice.on]
        for branch in choice.branches:
            self.run(branch.lines, choice.depth)
            if on:
                self._communicates(choice, branch.lines, on)
        for i, line in enumerate(choice.results):
            given = [branch.gives[i] for branch in choice.branches]
            self.axes[line.name] = on.union(*(self.axes[each.name] for each in given))
            self._mark(line.name, any(each.name in self.floats for each in given))

    def _communicates(self, choice: Choice, lines: tuple[Statement, ...], on: frozenset[str]) -> None:
        over = quoted([axis for axis in self.experiment.mesh.axes if axis in on])
        label = choice.call.label
        why = f"what the choice '{label}' hangs on may differ along {over}, and devices that take another branch"
        own = {line.name for line, _ in expressions(lines)}.union(*(line.defines for line in lines))
        experiment = self.experiment
        differentiated = {line.line for line in experiment.before("per_device")}
        summed = (
            experiment.grad is not None
            and experiment.check_vma
            and any(line.line in differentiated for line in choice.results)
        )
        for line, expression in expressions(lines):
            for node in nodes(expression.tree):
                message = None
                row, axes = _collective(node)
                if row is not None and row.communicates and (axes & on or _waits_for_all(row)):
                    message = f"{why} never come to this {row.name}; take it before the choice"
                elif row is not None and row.over and row.over.does == "cast" and axes & on and summed:
                    message = f"{why} never come to the sum that its gradient is; cast before the choice"
                elif summed and (name := name_of(node)) in self.floats - own and (same := on - self.axes[str(name)]):
                    cast = sorted(same)
                    written = repr(cast[0] if len(cast) == 1 else tuple(cast))
                    message = (
                        f"{why} never come to the sum over {quoted(cast)} that the gradient of '{name}' is; "
                        f"a line before it: {name}_here: pcast({name}, {written}, to='varying')"
                    )
                if message is not None:
                    key, uses = line.written("per_device")
                    raise InvalidExperiment(located(key, expression.text, expression.fault(message, node), uses))

    def _of(self, tree: ast.AST) -> frozenset[str]:
        """Over which axes the value of an expression may differ."""
        row, axes = _collective(tree)
        if row is not None and row.over is not None:
            assert isinstance(tree, ast.Call)
            axes = self.split(axes)
            inside = self._union(_operands(tree, row))
            grouped = any(keyword.arg == "axis_index_groups" for keyword in tree.keywords)
            match row.over.does:
                case "size":
                    return frozenset()
                case "sum" | "mean" | "extreme" | "gather" | "broadcast" if not grouped:
                    return inside - axes
                case _:
                    return inside | axes
        name = name_of(tree)
        if name is not None and name in self.axes:
            return self.axes[name]
        return self._union(ast.iter_child_nodes(tree))

    def _union(self, trees: Iterable[ast.AST]) -> frozenset[str]:
        return frozenset[str]().union(*(self._of(tree) for tree in trees))


def _collective(node: ast.AST) -> tuple[Operation | None, frozenset[str]]:
    """The operation over mesh axes that a node calls, and these."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return None, frozenset()
    row = OPERATIONS[node.func.id]
    if row.over is None:
        return None, frozenset()
    bound = row.signature.bind(*node.args, **{str(keyword.arg): keyword.value for keyword in node.keywords})
    named = ast.literal_eval(bound.arguments["axis_name"])
    return row, frozenset((named,) if isinstance(named, str) else named)


def _operands(call: ast.Call, row: Operation) -> list[ast.expr]:
    """What a collective reads on each device."""
    assert row.over is not None
    bound = row.signature.bind(*call.args, **{str(keyword.arg): keyword.value for keyword in call.keywords})
    return [bound.arguments[name] for name in row.over.operands if name in bound.arguments]


def _waits_for_all(row: Operation) -> bool:
    return row.over is not None and row.over.does == "permute"


def _moving(tree: ast.AST) -> Iterator[str]:
    """The names by which an expression moves: not those that it compares, or holds fixed."""
    if isinstance(tree, ast.Compare):
        return
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and OPERATIONS[tree.func.id].constant:
        return
    name = name_of(tree)
    if name is not None:
        yield name
    for child in ast.iter_child_nodes(tree):
        yield from _moving(child)
