"""The plan of a graph in; each of its lines in the scaling book's notation, with what it communicates and why, out.

`hidden[B_data, F_model] = gelu(x[B_data, D] · w1[D, F_model])`: a dimension's name and the mesh axes that shard it.

Source: How to Scale Your Model (Austin et al., 2025), "Sharded Matrices and How to Multiply Them".
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from runner.experiment.lines import Loop
from runner.experiment.model import Experiment, Statement, expressions
from runner.language import trees
from runner.language.bridge import name_of
from runner.layout import Spec
from runner.sharding.plan import Plan, PlannedCollective, PlannedLine, PlannedOperation, PlannedValue
from runner.why import needs
from runner.words import bytes_text

_Lying: TypeAlias = "tuple[list[str], Spec]"
"""The names of a value's dimensions, or their sizes, and how it lies."""


def lines(experiment: Experiment, plan: Plan) -> list[PlannedLine]:
    """The lines of the graph in their order, of a repeat those of each step; none where there is no plan."""
    if plan.missing is not None:
        return []
    values: dict[str, _Lying] = {}
    for array in experiment.given:
        dims = [name or str(size) for name, size in zip(array.dims, array.shape, strict=True)]
        values[array.name] = dims, array.layout.spec.padded(len(array.shape))
    last: dict[str, PlannedValue] = {}
    for operation in plan.operations:
        if operation.line is not None and not operation.gradient and operation.results:
            last[operation.line] = operation.results[0]
    told = [one for one in plan.collectives if one.kind != "slice"]
    operations = plan.summary().operations
    known = needs.keys_of(experiment)
    names = {line.path: str(line) for line, _ in expressions(experiment.graph)}
    repeats = _repeats(experiment.graph)
    found: list[PlannedLine] = []
    headed: set[str] = set()
    for line, expression in expressions(experiment.graph):
        loop = ".".join(line.loops)
        if loop and line.first != "carry" and loop not in headed:
            headed.add(loop)
            found.append(PlannedLine(line=loop, text=f"{loop}: {repeats[loop].steps} steps, in each of which"))
        around, slice_of = (line.loops[:-1], repeats[loop]) if line.first else (line.loops, None)
        lies = _known(values, around, repeats)
        read = lies(_name(expression.tree))
        asked = experiment.constrained.get(line.path, experiment.results.get(line.path))
        if read is not None and asked is not None:
            read = read[0], asked.padded(len(read[0]))
        own = _of(last[line.path]) if line.path in last else read
        text = _expression(expression.tree, lies)
        if line.first == "over" and slice_of is not None:
            text = f"{text}[{slice_of.index}]"
            own = (read[0][1:], Spec(read[1][1:])) if read else None
        if own is not None:
            values[str(line)] = own
        text = f"{line}{written(*own) if own else ''} = {text}{' at first' if line.first == 'carry' else ''}"
        mine = [one for one in told if one.line == line.path]
        moves = [_collective(one, operations, known, names) for one in mine]
        found.append(PlannedLine(line=str(line), text=text, collectives=moves))
    return found


def written(dims: Sequence[str], spec: Spec) -> str:
    """`[B_data, F_{data,model}]`; a dimension without a name has its size."""
    parts: list[str] = []
    for name, axes in zip(dims, spec, strict=False):
        over = axes[0] if len(axes) == 1 else f"{{{','.join(axes)}}}"
        parts.append(f"{name}_{over}" if axes else name)
    return f"[{', '.join(parts)}]" if parts else ""


def _of(value: PlannedValue) -> _Lying:
    return [name or str(size) for name, size in zip(value.dims, value.shape, strict=True)], value.spec


def _repeats(statements: Sequence[Statement], around: tuple[str, ...] = ()) -> dict[str, Loop]:
    """The repeats by their names, with those that they stand in: `outer.inner`."""
    found: dict[str, Loop] = {}
    for statement in statements:
        if isinstance(statement, Loop):
            inside = (*around, statement.name)
            found |= {".".join(inside): statement, **_repeats(statement.body, inside)}
    return found


def _known(
    values: Mapping[str, _Lying], around: tuple[str, ...], repeats: Mapping[str, Loop]
) -> Callable[[str | None], _Lying | None]:
    """How what a name stands for lies, to those who stand in some repeats: what is nearest has that name."""

    def lies(name: str | None) -> _Lying | None:
        for depth in range(len(around), -1, -1) if name is not None else ():
            path = ".".join((*around[:depth], name or ""))
            loop, _, own = path.rpartition(".")
            # What the steps stack has a dimension more than the value of a step.
            if loop in repeats and len(around) < len(loop.split(".")) and own in dict(repeats[loop].stack):
                return None
            if path in values:
                return values[path]
        return None

    return lies


def _name(tree: ast.expr) -> str | None:
    return name_of(tree) if isinstance(tree, ast.Name | ast.Attribute) else None


def _expression(tree: ast.expr, lies: Callable[[str | None], _Lying | None]) -> str:
    """An expression with the layout of each value in it; `·` is the product of matrices."""
    naming = _Naming(lies)
    text = trees.text(naming.visit(copy.deepcopy(tree))).replace(" @ ", " · ")
    for number in reversed(range(len(naming.texts))):
        text = text.replace(f"_value{number}_", naming.texts[number])
    return text


class _Naming(ast.NodeTransformer):
    """Puts a mark in the place of each name of a value, and of each text, in the order of `texts`."""

    def __init__(self, lies: Callable[[str | None], _Lying | None]) -> None:
        self._lies = lies
        self._own = frozenset[str]()
        """The parameters of the lambdas around, which are no values of the section's."""
        self.texts: list[str] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        # The name of an operation is that of no value.
        node.args = [self.visit(argument) for argument in node.args]
        node.keywords = [ast.keyword(keyword.arg, self.visit(keyword.value)) for keyword in node.keywords]
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        outside = self._own
        self._own = outside | {argument.arg for argument in node.args.args}
        node.body = self.visit(node.body)
        self._own = outside
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return self._mark(repr(node.value)) if isinstance(node.value, str) else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        lying = None if node.id in self._own else self._lies(node.id)
        return node if lying is None else self._mark(node.id + written(*lying))

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        name = _name(node)
        lying = self._lies(name)
        return self.generic_visit(node) if lying is None or name is None else self._mark(name + written(*lying))

    def _mark(self, text: str) -> ast.Name:
        self.texts.append(text)
        return ast.Name(f"_value{len(self.texts) - 1}_", ast.Load())


def _collective(
    one: PlannedCollective,
    operations: Sequence[PlannedOperation],
    known: needs.Keys,
    names: Mapping[str, str],
) -> str:
    over = f"over {', '.join(one.axes)}"
    why = needs.of_collective(needs.renamed(one, names), operations, known).text
    of = names.get(one.of, one.of)
    dims = [name or str(size) for name, size in zip(one.dims, one.shape, strict=False)]
    backward = " (backward)" if one.gradient else ""
    sends = f"a device sends {bytes_text(one.bytes_sent)}"
    if one.before == one.after or not dims:
        return f"{one.kind}{backward} {over}, {sends}: {why}"
    change = f"{of}{written(dims, one.before)} → {of}{written(dims, one.after)}"
    return f"{one.kind}{backward} of {of} {over}: {change}, {sends}; {why}"
