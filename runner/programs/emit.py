"""An expression of the language in; the same as one of JAX out."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping

from runner.experiment.model import Experiment
from runner.language import trees
from runner.language.operations import COMPUTATIONS, CONSTANTS, OPERATIONS, computation
from runner.language.syntax import place
from runner.programs.names import Names
from runner.programs.spelling import resharded, sharding
from runner.sharding.repairs import Repair


class Emit(ast.NodeTransformer):
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
