"""An experiment in; the same per-device code with a name for every value that a trace shows, out.

Naming a part of an expression changes nothing of what is computed, so the named code is an experiment like any other:
`runner/programs/trace.py` writes it as a program, and the SPMD interpreter runs it as it stands.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from runner.experiment.model import Experiment, Line, Loop, Node, Statement
from runner.experiment.program import Program
from runner.language import trees
from runner.language.operations import CONSTANTS, OPERATIONS
from runner.language.syntax import Expression, name_of

TRACED = Program.SHARD_MAP
"""The program whose values a trace shows."""

VALUES = 500
"""How many values a trace may have; above it the steps of loops are not traced, only what they end with."""

ELEMENTS = 1_000_000
"""How many elements the values of a trace may have on all devices together; above it there is no trace."""


@dataclass(frozen=True)
class Value:
    """One line of a trace.

    - `name`: as it is shown: `C`, `C/psum#0` for a collective inside an expression, `C/psum#0/before` for the operand
      of one, `ring[2].acc` for a step of a loop.
    - `node`: its name in the named code; `expression`: as the user wrote it.
    - `operation`, `axes`: those of the collective that it is the result of; None and () if it is of none.
    - `before`: the array or node that is the collective's operand; None where that is a number.
    """

    name: str
    node: str
    expression: str
    operation: str | None = None
    axes: tuple[str, ...] = ()
    before: str | None = None


@dataclass(frozen=True)
class Traced:
    """The named code as an `experiment` without outputs, and its `values` in the order in which they are computed.

    `results` gives for each output of the original its name in the named code, `stepped` the `jax.lax.fori_loop`s whose
    steps the trace runs one by one, `whole` the loops whose steps it does not show.
    """

    experiment: Experiment
    values: tuple[Value, ...]
    results: Mapping[str, str]
    stepped: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()


def named(experiment: Experiment) -> Traced:
    """The per-device code of `experiment` with its loops unrolled and a name for each collective and its operand."""
    loops = [statement for statement in experiment.per_device if isinstance(statement, Loop)]
    try:
        meaning: dict[str, ast.expr] = {}
        naming = _Naming(experiment, unroll=True)
        naming.run(experiment.per_device, meaning, "")
        whole: tuple[str, ...] = ()
    except _TooMany:
        meaning = {}
        naming = _Naming(experiment, unroll=False)
        naming.run(experiment.per_device, meaning, "")
        whole = tuple(loop.name for loop in loops)
    gradients = {name: experiment.outputs[name] for name in (experiment.grad.names if experiment.grad else ())}
    code = replace(experiment, per_device=tuple(naming.statements), outputs=gradients, programs=(TRACED,))
    results = {name: name_of(meaning[name]) or name if name in meaning else name for name in experiment.outputs}
    return Traced(code, tuple(naming.values), results, tuple(dict.fromkeys(naming.stepped)), whole)


def too_large(elements: int) -> str:
    """Why there is no trace of values with so many elements in all."""
    return f"its values have {elements} elements on all devices together; a trace holds {ELEMENTS} at most"


class _TooMany(Exception):
    """The loops have too many steps to show them all."""


Meaning = Mapping[str, ast.expr]
"""What the names of a loop's body, and the results of loops, stand for in the named code."""


class _Naming:
    def __init__(self, experiment: Experiment, *, unroll: bool) -> None:
        self._numbers = {*experiment.dims, *CONSTANTS}
        self._unroll = unroll
        self._taken = {*experiment.dims, *(array.name for array in experiment.arrays)}
        self._taken |= {name for statement in experiment.per_device for name in _all_names(statement)}
        self.statements: list[Statement] = []
        self.values: list[Value] = []
        self.stepped: list[str] = []

    def run(self, statements: tuple[Statement, ...], meaning: dict[str, ast.expr], prefix: str) -> None:
        """Name `statements`, which stand in the loop's step `prefix`; `meaning` grows by their names."""
        for statement in statements:
            shown = prefix + statement.name
            if isinstance(statement, Node):
                node = self._node(statement.expression, meaning, shown, None if prefix else statement.name)
                meaning[statement.name] = ast.Name(node)
            elif self._unroll:
                self._steps(statement, meaning, shown)
            else:
                self.statements.append(statement)
                results = [f"{statement.name}.{name}" for name in statement.results]
                self.values += [Value(name, name, f"after {statement.steps} steps") for name in results]

    def _steps(self, loop: Loop, meaning: dict[str, ast.expr], shown: str) -> None:
        if not loop.unroll:
            self.stepped.append(shown)
        carried = {name: self._first(first, meaning, f"{shown}/carry/{name}") for name, first in loop.carry}
        whole = {name: self._first(first, meaning, f"{shown}/over/{name}") for name, first in loop.over}
        steps: dict[str, list[ast.expr]] = {name: [] for name, _ in loop.stack}
        for step in range(loop.steps):
            slices = {name: ast.Subscript(value, ast.Constant(step)) for name, value in whole.items()}
            inside = {**meaning, **carried, **slices, loop.index: _index(step, known=loop.unroll)}
            self.run(loop.body, inside, f"{shown}[{step}].")
            carried = {name: inside[name] for name in carried}
            for name, inner in loop.stack:
                steps[name].append(inside.get(inner, ast.Name(inner)))
        for name, each in steps.items():
            stacked = ast.Call(ast.Name("stack"), [ast.List(each)], [])
            text = f"{loop.stack_of(name)} of all {loop.steps} steps"
            meaning[f"{loop.name}.{name}"] = ast.Name(self.define((stacked, None, (), None), f"{shown}.{name}", text))
        for name, value in carried.items():
            meaning[f"{loop.name}.{name}"] = value

    def _first(self, expression: Expression, meaning: Meaning, shown: str) -> ast.expr:
        """What a carried name starts as: another name for a value that there is, or a value of its own."""
        if isinstance(expression.tree, ast.Name | ast.Attribute | ast.Constant):
            tree = _Named(self, meaning, shown).visit(expression.tree)
            if isinstance(tree, ast.Name | ast.Constant):
                return tree
        return ast.Name(self._node(expression, meaning, shown))

    def _node(self, expression: Expression, meaning: Meaning, shown: str, node: str | None = None) -> str:
        parts = _Named(self, meaning, shown)
        tree = expression.tree
        if _communicates(tree):
            return self.define(parts.collective(tree), shown, expression.text, node)
        return self.define((parts.visit(tree), None, (), None), shown, expression.text, node)

    def define(self, what: _Collective, shown: str, text: str, node: str | None = None) -> str:
        """Add one value; return its name in the named code."""
        if self._unroll and len(self.values) >= VALUES:
            raise _TooMany
        tree, operation, axes, before = what
        node = node or self._free(shown)
        self.statements.append(Node(Line(node), Expression(trees.text(tree), tree)))
        self.values.append(Value(shown, node, text, operation, axes, before))
        return node

    def _free(self, shown: str) -> str:
        node = re.sub(r"\W+", "_", shown)
        while node in self._taken:
            node += "_"
        self._taken.add(node)
        return node

    def is_value(self, tree: ast.expr) -> bool:
        """Whether an operand is more than numbers and dims."""
        return any(
            isinstance(node, ast.Call) or (isinstance(node, ast.Name) and node.id not in self._numbers)
            for node in ast.walk(tree)
        )


_Collective = tuple[ast.expr, str | None, tuple[str, ...], str | None]
"""The tree of a value; the operation, the axes and the operand of the collective that it is the result of."""


class _Named(ast.NodeTransformer):
    """An expression with a name in the place of each collective. Builds new nodes: those that were given stay."""

    def __init__(self, naming: _Naming, meaning: Meaning, shown: str) -> None:
        self._naming = naming
        self._meaning = meaning
        self._shown = shown
        self._count: Counter[str] = Counter()

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return type(node)(**trees.fields(node, self.visit))

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._meaning.get(node.id, ast.Name(node.id))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name):
            result = f"{node.value.id}.{node.attr}"
            if result in self._meaning:
                return self._meaning[result]
            if node.attr != "T":
                return ast.Attribute(ast.Name(node.value.id), node.attr)
        return ast.Attribute(self.visit(node.value), node.attr)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if not _communicates(node):
            return self._call(node)
        what = self.collective(node)
        shown = f"{self._shown}/{what[1]}#{self._count[str(what[1])] - 1}"
        return ast.Name(self._naming.define(what, shown, trees.text(node)))

    def _call(self, node: ast.Call) -> ast.Call:
        keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
        return ast.Call(node.func, [self.visit(argument) for argument in node.args], keywords)

    def collective(self, tree: ast.expr) -> _Collective:
        """A collective whose operand, unless it is a number, has a name."""
        assert isinstance(tree, ast.Call)
        assert isinstance(tree.func, ast.Name)
        operation = tree.func.id
        arguments = dict(_bound(tree))
        call = self._call(tree)
        moved = _moved(tree)
        at, operand = next((at, x) for at, (name, x) in enumerate(_bound(call)) if name == moved)
        number = self._count[operation]
        self._count[operation] += 1
        before = None
        if isinstance(operand, ast.Attribute) and operand.attr != "T":
            before = name_of(operand)
        elif self._naming.is_value(operand):
            if not isinstance(operand, ast.Name):
                shown = f"{self._shown}/{operation}#{number}/before"
                text = trees.text(arguments[str(moved)])
                operand = ast.Name(self._naming.define((operand, None, (), None), shown, text))
            before = operand.id
        if at < len(call.args):
            call.args[at] = operand
        else:
            call.keywords[at - len(call.args)].value = operand
        axes = ast.literal_eval(arguments["axis_name"])
        return call, operation, (axes,) if isinstance(axes, str) else tuple(axes), before


def _communicates(tree: ast.expr) -> bool:
    """Whether an expression is one collective: what moves values between devices, or casts their types."""
    return _moved(tree) is not None


def _moved(tree: ast.expr) -> str | None:
    """The argument that is moved or cast, if an expression is one collective."""
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        return None
    over = OPERATIONS[tree.func.id].over
    return over.operands[0] if over is not None and over.operands else None


def _bound(call: ast.Call) -> list[tuple[str, ast.expr]]:
    """The arguments of a collective by name, in the order in which the call has them."""
    assert isinstance(call.func, ast.Name)
    positional = zip(OPERATIONS[call.func.id].signature.parameters, call.args, strict=False)
    return [*positional, *((str(k.arg), k.value) for k in call.keywords)]


def _index(step: int, *, known: bool) -> ast.expr:
    """The number of a step: Python's in an unrolled loop, an array of a weak type in `jax.lax.fori_loop`."""
    return ast.Constant(step) if known else ast.Call(ast.Name("asarray"), [ast.Constant(step)], [])


def _all_names(statement: Statement) -> set[str]:
    """The names that a statement and what stands inside it give."""
    if isinstance(statement, Node):
        return {statement.name}
    inner = itertools.chain.from_iterable(_all_names(inside) for inside in statement.body)
    return {statement.name, statement.index, *statement.given, *inner}
