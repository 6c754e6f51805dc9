"""The statements of a section in; the lines of a program that compute them out, one named scope per node.

The lines that stand in the place of a call of one of the experiment's functions are a function of the program, called.
Two calls share one where its lines are the same in both; explicit sharding or a constraint may make them differ.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from runner.experiment.model import Call, Experiment, Line, Loop, Node, Statement, expressions
from runner.language import trees
from runner.language.operations import COMPUTATIONS, CONSTANTS, OPERATIONS, computation
from runner.language.syntax import Expression, place
from runner.layout import Spec
from runner.programs.names import Names
from runner.programs.spelling import checkpointed, constrained, constrained_inside, resharded, sharding, tuple_of
from runner.programs.types import Repairs
from runner.sharding.repairs import Repair


class Lines:
    """The source lines of a section, one named scope per node.

    `definitions` are the functions that they call, once the lines are written.
    """

    def __init__(
        self,
        experiment: Experiment,
        names: Names,
        repairs: Repairs | None = None,
        *,
        under_vmap: bool = False,
        inside: bool = False,
    ) -> None:
        self._experiment = experiment
        self._names = names
        self._repairs = repairs or Repairs()
        self._under_vmap = under_vmap
        self._inside = inside
        """Whether the lines are a device's, of which the compiler lays out automatic axes alone."""
        self._lines: list[str] = []
        self._depth = 0
        """In how many calls the lines stand that are being written as a function."""
        self._defined: dict[tuple[str, str], str] = {}
        """The functions that are written already, by their names in the experiment and their text."""
        self._split: set[tuple[Call, ...]] = set()
        """The calls of which some lines stand elsewhere, since they need gradients or need none: these are no call."""
        self._functions: list[str] = []

    @property
    def definitions(self) -> str:
        """The functions that the lines call, each after those that it calls."""
        return "\n".join(self._functions)

    def section(
        self,
        statements: Iterable[Statement],
        constrained: Mapping[str, Spec] | None = None,
        *,
        of: Iterable[Statement] = (),
        after: bool = False,
    ) -> str:
        """The lines of `statements`; the values named in `constrained` get a `with_sharding_constraint`.

        They may be some `of` a section's, and stand `after` others, whose names they have.
        """
        self._constrained = constrained or {}
        self._lines = []
        statements = tuple(statements)
        here, whole = (Counter(each.line.calls[:1] for each in lines) for lines in (statements, of))
        self._split = {call for call, count in here.items() if whole[call] > count}
        read = frozenset[str]().union(*(statement.names for statement in statements))
        for array in self._experiment.arrays:
            if array.name in read or not after:
                self._follow(array.name, self._names[array.name], "")
        self._statements(statements, "")
        return "\n".join(self._lines)

    def _put(self, indent: str, line: str) -> None:
        self._lines.append((indent + line).rstrip())

    def _statements(self, statements: Iterable[Statement], indent: str) -> None:
        for call, of_call in itertools.groupby(statements, self._called):
            group = list(of_call)
            if call is not None and _is_whole(group) and (self._depth or (call,) not in self._split):
                self._call(call, group, indent)
                continue
            for statement in group:
                if isinstance(statement, Loop):
                    self._loop(statement, indent)
                else:
                    self._node(statement, indent)

    def _called(self, statement: Statement) -> Call | None:
        calls = statement.line.calls
        return calls[self._depth] if len(calls) > self._depth else None

    def _name(self, line: Line) -> str:
        """What a line is called where it is being written."""
        return line.label if self._depth else line.name

    def _scope(self, line: Line) -> str:
        return f'with jax.named_scope("{"/".join(line.scopes(self._depth))}"):'

    def _node(self, node: Node, indent: str) -> None:
        source = self._expression(node.expression, node.line)
        identifier = self._names.add(self._name(node.line))
        self._put(indent, self._scope(node.line))
        self._put(indent, f"    {identifier} = {source}")
        self._follow(node.line.path, identifier, indent + "    ")

    def _call(self, call: Call, group: Sequence[Statement], indent: str) -> None:
        """A call of a function, which is written where it is not yet."""
        arguments = [self._names[name] for _, name in call.arguments]
        function = self._function(call, group)
        results = group[-len(call.results) :]
        names = [
            statement.line.name if not self._depth else name
            for statement, name in zip(results, call.results, strict=True)
        ]
        identifiers = [self._names.add(name) for name in names]
        self._put(indent, f'with jax.named_scope("{call.label}"):')
        self._put(indent, f"    {', '.join(identifiers)} = {function}({', '.join(arguments)})")
        for statement, identifier in zip(results, identifiers, strict=True):
            self._follow(statement.line.path, identifier, indent + "    ")

    def _function(self, call: Call, group: Sequence[Statement]) -> str:
        """The name of the function of the program that has these lines."""
        outer = self._names, self._lines, self._depth
        self._names, self._lines, self._depth = self._names.inside(), [], self._depth + 1
        parameters = [self._names.add(parameter) for parameter, _ in call.arguments]
        last = group[-len(call.results) :]
        self._statements(group[: -len(call.results)], "    ")
        given: list[str] = []
        for statement in last:
            assert isinstance(statement, Node)
            if len(last) == 1:
                given.append(self._expression(statement.expression, statement.line))
                continue
            identifier = self._names.add(statement.line.label)
            self._put("    ", self._scope(statement.line))
            self._put("    ", f"    {identifier} = {self._expression(statement.expression, statement.line)}")
            given.append(identifier)
        text = "\n".join([f"({', '.join(parameters)}):", *self._lines, f"    return {', '.join(given)}"])
        inner = self._names
        self._names, self._lines, self._depth = outer
        known = self._defined.get((call.function, text))
        if known is None:
            known = self._defined[call.function, text] = self._names.reserve_function(call.function, inner)
            kept = "" if call.checkpoint is None else f"\n{known} = {checkpointed(known, call.checkpoint)}\n"
            self._functions.append(f"def {known}{text}\n{kept}")
        return known

    def _follow(self, path: str, identifier: str, indent: str) -> None:
        """What follows a definition."""
        if path in self._repairs.reshard:
            self._put(indent, f"{identifier} = {resharded(identifier, self._repairs.reshard[path])}")
        if path in self._constrained:
            put = constrained_inside if self._inside else constrained
            self._put(indent, f"{identifier} = {put(identifier, self._constrained[path])}")

    def _loop(self, loop: Loop, indent: str) -> None:
        firsts = tuple_of([self._expression(first, loop.first(name)) for name, first in loop.carry])
        over = [self._over(loop, name, whole) for name, whole in loop.over]
        name_of_loop = self._name(loop.line)
        body = self._names.add(name_of_loop)
        carried, slices, stacked = self._body(loop, body, indent)
        results = [self._names.add(f"{name_of_loop}.{name}") for name in loop.results]
        last, after = tuple_of(results[: len(carried)]), results[len(carried) :]
        self._put(indent, "")
        self._put(indent, self._scope(loop.line))
        if loop.scans and not loop.unroll:
            if len(slices) > len(over):
                over.append(f"jnp.arange({loop.steps}, dtype='int32')")
            left = f"{last if carried else '_'}, {tuple_of(after) if stacked else '_'}"
            xs = tuple_of(over) if over else f"None, length={loop.steps}"
            self._put(indent, f"    {left} = jax.lax.scan({body}, {firsts}, {xs})")
        elif loop.unroll:
            self._put(indent, f"    carry = {firsts}")
            if stacked:
                self._put(indent, "    steps = []")
            if over:
                self._put(indent, f"    over = {tuple_of(over)}")
            self._put(indent, f"    for step in range({loop.steps}):")
            arguments = ", ".join(["step", "carry", *(["tuple(x[step] for x in over)"] if over else [])])
            self._put(indent, f"        {'carry, each' if stacked else 'carry'} = {body}({arguments})")
            if stacked:
                self._put(indent, "        steps.append(each)")
        else:
            self._put(indent, f"    carry = jax.lax.fori_loop(0, {loop.steps}, {body}, {firsts})")
        if carried and (loop.unroll or not loop.scans):
            self._put(indent, f"    {last} = carry")
        if stacked and loop.unroll:
            self._put(indent, f"    {tuple_of(after)} = map(jnp.stack, zip(*steps, strict=True))")
        for name, identifier in zip(loop.results, results, strict=True):
            self._follow(loop.result(name), identifier, indent + "    ")

    def _over(self, loop: Loop, name: str, whole: Expression) -> str:
        """What a repeat takes slices of."""
        path, source = loop.whole(name).path, self._expression(whole, loop.whole(name))
        return resharded(source, self._repairs.reshard[path]) if path in self._repairs.reshard else source

    def _body(self, loop: Loop, body: str, indent: str) -> tuple[list[str], list[str], list[str]]:
        """Write the function of one step; what it carries, takes slices of, and gives besides."""
        carried = [self._names.add(name) for name, _ in loop.carry]
        slices = [self._names.add(name) for name, _ in loop.over]
        index = self._names.add(loop.index)
        scanned = loop.scans and not loop.unroll
        if scanned and any(loop.index in statement.names for statement in loop.body):
            slices.append(index)
        parameters = ["carry", *(["over"] if slices or scanned else [])]
        self._put(indent, f"def {body}({', '.join(parameters if scanned else [index, *parameters])}):")
        if carried:
            self._put(indent, f"    {tuple_of(carried)} = carry")
        if slices:
            self._put(indent, f"    {tuple_of(slices)} = over")
        self._statements(loop.body, indent + "    ")
        returned = tuple_of(
            [
                resharded(identifier, self._repairs.reshard[loop.end(name)])
                if loop.end(name) in self._repairs.reshard
                else identifier
                for (name, _), identifier in zip(loop.carry, carried, strict=True)
            ]
        )
        stacked = [self._names[name] for name in (loop.locally if self._depth else (inner for _, inner in loop.stack))]
        if scanned or stacked:
            returned = f"{returned}, {tuple_of(stacked) if stacked else 'None'}"
        self._put(indent, f"    return {returned}")
        if loop.checkpoint is not None:
            self._put(indent, "")
            # In an unrolled loop the step is one of Python's numbers; in JAX's own nothing can be merged over steps.
            more = "static_argnums=(0,)" if loop.unroll else "prevent_cse=False"
            self._put(indent, f"{body} = {checkpointed(body, loop.checkpoint, more)}")
        return carried, slices, stacked

    def _expression(self, expression: Expression, line: Line) -> str:
        repairs = self._repairs.calls.get(line.path, {})
        here = expression.tree
        if self._depth:
            assert expression.local is not None
            here = expression.local
        tree = _Emit(self._experiment, self._names, repairs, self._under_vmap).visit(here)
        return ast.unparse(ast.fix_missing_locations(tree))


def _is_whole(group: Sequence[Statement]) -> bool:
    """Whether the lines of a call are as its function has them: what was edited since has the section's names only."""
    return all(expression.local is not None for _, expression in expressions(group))


class _Emit(ast.NodeTransformer):
    """An expression of the language as one of JAX. Builds new nodes: the experiment's trees stay as they are."""

    def __init__(
        self,
        experiment: Experiment,
        names: Names,
        repairs: Mapping[str, Repair],
        under_vmap: bool,
    ) -> None:
        self._experiment = experiment
        self._names = names
        self._repairs = repairs
        self._under_vmap = under_vmap

    def _repair(self, node: ast.expr) -> Repair:
        where = place(node)
        return Repair() if where is None else self._repairs.get(where, Repair())

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return type(node)(**trees.fields(node, self.visit))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return _parse(f"jnp.{node.id}") if node.id in CONSTANTS else ast.Name(self._names[node.id])

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.attr != "T":
            return ast.Name(self._names[f"{node.value.id}.{node.attr}"])
        return ast.Attribute(self.visit(node.value), node.attr)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        repair = self._repair(node)
        operands = self._operands([self.visit(node.left), self.visit(node.right)], repair)
        if repair.out_sharding is not None:
            keyword_ = ast.keyword("out_sharding", _parse(sharding(repair.out_sharding)))
            return ast.Call(_parse("jnp.matmul"), operands, [keyword_])
        return ast.BinOp(operands[0], node.op, operands[1])

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        left, right = self._operands([self.visit(node.left), self.visit(node.comparators[0])], self._repair(node))
        return ast.Compare(left, node.ops, [right])

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        repair = self._repair(node)
        several = isinstance(node.slice, ast.Tuple)
        value, *parts = self._operands([self.visit(operand) for operand in operands(node)], repair)
        index = ast.Tuple(parts) if several else parts[0]
        if repair.out_sharding is None:
            return ast.Subscript(value, index)
        get = ast.Attribute(ast.Subscript(ast.Attribute(value, "at"), index), "get")
        return ast.Call(get, [], [ast.keyword("out_sharding", _parse(sharding(repair.out_sharding)))])

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        inside, own = copy.copy(self), [each.arg for each in node.args.args]
        inside._names = self._names.within(own)
        parameters = [ast.arg(inside._names[name]) for name in own]
        arguments = ast.arguments(posonlyargs=[], args=parameters, kwonlyargs=[], kw_defaults=[], defaults=[])
        return ast.Lambda(arguments, inside.visit(node.body))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        assert isinstance(node.func, ast.Name)
        operation = OPERATIONS[node.func.id]
        if self._under_vmap and operation.over is not None and operation.over.does == "cast":
            # vmap knows no varying axes.
            return self.visit(node.args[0])
        repair = self._repair(node)
        named_function = computation(node)
        written = [
            _parse(COMPUTATIONS[ast.literal_eval(operand)]) if operand is named_function else self.visit(operand)
            for operand in operands(node)
        ]
        flat = iter(self._operands(written, repair))
        positional, named = [
            [
                type(argument)([next(flat) for _ in argument.elts])
                if isinstance(argument, ast.List | ast.Tuple)
                else next(flat)
                for argument in arguments
            ]
            for arguments in (node.args, [k.value for k in node.keywords])
        ]
        keywords = [
            ast.keyword(k.arg, value)
            for k, value in zip(node.keywords, named, strict=True)
            # vmap knows no varying axes.
            if not (self._under_vmap and k.arg == "to")
        ]
        if operation.over is not None:
            keywords = [self._shift(node, k) if k.arg == "shift" else k for k in keywords]
        if repair.out_sharding is not None:
            keywords.append(ast.keyword("out_sharding", _parse(sharding(repair.out_sharding))))
        if operation.method is not None:
            return trees.method_call(operation.method, positional, keywords)
        return ast.Call(_parse(operation.jax), positional, keywords)

    def _operands(self, operands: list[ast.expr], repair: Repair) -> list[ast.expr]:
        return [
            _parse(resharded(ast.unparse(ast.fix_missing_locations(operand)), repair.operands[i]))
            if i in repair.operands
            else operand
            for i, operand in enumerate(operands)
        ]

    def _shift(self, node: ast.Call, shift: ast.keyword) -> ast.keyword:
        """`shift=` as the permutation that it stands for."""
        assert isinstance(node.func, ast.Name)
        signature = OPERATIONS[node.func.id].signature
        bound = signature.bind(*node.args, **{str(k.arg): k.value for k in node.keywords})
        size = self._experiment.mesh.axis_size(ast.literal_eval(bound.arguments["axis_name"]))
        match shift.value:
            case ast.UnaryOp(op=ast.USub(), operand=by):
                moved = ast.BinOp(ast.Name("j"), ast.Sub(), by)
            case by:
                moved = ast.BinOp(ast.Name("j"), ast.Add(), by)
        return ast.keyword("perm", _parse(f"[(j, ({ast.unparse(moved)}) % {size}) for j in range({size})]"))


def operands(node: ast.Call | ast.Subscript) -> list[ast.expr]:
    """The arguments of a call, positional then by keyword, lists and tuples taken apart; what a subscript reads."""
    if isinstance(node, ast.Subscript):
        return [node.value, *(node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])]
    flat: list[ast.expr] = []
    for argument in (*node.args, *(k.value for k in node.keywords)):
        flat += argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
    return flat


def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
