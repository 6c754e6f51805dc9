"""One operation where it stands in; its arguments as values, as numbers that are known, and as text, out."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from runner.derivation.rules import Assignment, Dimensions, Rule, Value
from runner.derivation.trees import constant
from runner.language.operations import CONSTANTS, OPERATIONS
from runner.programs.types import Typed
from runner.untyped import is_sequence

if TYPE_CHECKING:
    from runner.derivation.writer import Writer
    from runner.layout import Spec

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.Div: lambda one, other: one / other, ast.FloorDiv: lambda one, other: one // other,
    ast.Pow: lambda one, other: one**other,
}  # fmt: skip


class NotStatic(Exception):
    """A number that is only known on the devices, or in each step of a loop."""


@dataclass(frozen=True)
class Statics:
    """What can be known of an expression without arrays: `steps` are names of numbers that are not known yet."""

    dims: Mapping[str, int]
    steps: frozenset[str]
    type_of: Callable[[ast.expr], Typed | None]

    def tree(self, node: ast.expr) -> ast.expr | None:
        """The expression, if no array enters it; the shape of an array is a number."""
        match node:
            case ast.Constant() | ast.Lambda():
                # What combines two values reads no others.
                return node
            case ast.Name(id=name):
                return node if name in self.dims or name in CONSTANTS or name in self.steps else None
            case ast.Call(func=ast.Name(id=name), args=[argument]) if OPERATIONS[name].kind == "static":
                typed = self.type_of(argument)
                if typed is None or node.keywords:
                    return None
                known = {"shape": typed.shape, "ndim": len(typed.shape), "size": math.prod(typed.shape)}
                return constant(known[name]) if name in known else None
            case ast.BinOp(left=left, op=op, right=right):
                one, other = self.tree(left), self.tree(right)
                return None if one is None or other is None else ast.BinOp(one, op, other)
            case ast.Compare(left=left, ops=ops, comparators=[right]):
                one, other = self.tree(left), self.tree(right)
                return None if one is None or other is None else ast.Compare(one, ops, [other])
            case ast.UnaryOp(op=op, operand=operand):
                one = self.tree(operand)
                return None if one is None else ast.UnaryOp(op, one)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                known = [self.tree(element) for element in elements]
                return None if None in known else type(node)([each for each in known if each is not None])
            case ast.Subscript(value=value, slice=index):
                one, at = self.tree(value), self.tree(index)
                return None if one is None or at is None else ast.Subscript(one, at)
            case ast.Slice(lower=lower, upper=upper, step=step):
                parts = [None if part is None else self.tree(part) for part in (lower, upper, step)]
                given = (lower, upper, step)
                missing = any(part is None and one is not None for part, one in zip(parts, given, strict=True))
                return None if missing else ast.Slice(*parts)
            case _:
                return None

    def value(self, node: ast.expr) -> Any:
        """The number, the tuple or the string that an expression stands for. Raises `NotStatic`."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in self.dims:
                return self.dims[name]
            case ast.Name(id=name) if name in CONSTANTS:
                return CONSTANTS[name]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                try:
                    return _BINARY[type(op)](self.value(left), self.value(right))
                except (ArithmeticError, TypeError, ValueError):
                    raise NotStatic from None
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.value(operand)
            case ast.Tuple(elts=elements):
                return tuple(self.value(element) for element in elements)
            case ast.List(elts=elements):
                return [self.value(element) for element in elements]
            case ast.Subscript(value=value, slice=index):
                try:
                    return self.value(value)[self.value(index)]
                except (TypeError, IndexError):
                    raise NotStatic from None
            case ast.Call():
                tree = self.tree(node)
                if tree is not None and not isinstance(tree, ast.Call):
                    return self.value(tree)
            case _:
                pass
        raise NotStatic


@dataclass(frozen=True)
class Site:
    """One operation: the node, the type of its result, and the layout that a line ends with."""

    writer: Writer
    node: ast.expr
    typed: Typed | None
    goal: Spec | None
    elements: tuple[Typed, ...] = ()
    """Of an operation that gives several arrays, the type of each."""
    alone: bool = False
    """Whether the first of these is all that is read."""

    @property
    def result(self) -> Typed:
        """The type of the result; of several, of the first."""
        typed = self.elements[0] if self.elements else self.typed
        assert typed is not None
        return typed

    @property
    def wanted(self) -> Spec | None:
        """The layout in which the result has to end, or in which the plan has it; None where neither says any."""
        return self.writer.wanted(self)

    def run(
        self,
        operands: Sequence[tuple[ast.expr, Dimensions]],
        result: Dimensions,
        sizes: Mapping[int, int],
        reduced: Mapping[int, str] | None = None,
        *,
        replaced: Callable[[Assignment], Mapping[int, ast.expr]] = lambda _: {},
        allowed: Callable[[Assignment], bool] = lambda _: True,
        moves: bool = False,
    ) -> Value:
        """Run the operation as it is written, on the operands' blocks.

        `replaced` are the arguments, by their `id`, that are others on a block; `moves` says that the result has the
        elements of the first operand and no others.
        """
        parts = [part for part, _ in operands]

        def write(trees: list[ast.expr], assignment: Assignment) -> ast.expr:
            blocks = {id(part): tree for part, tree in zip(parts, trees, strict=True)}
            return self.rewritten(blocks | dict(replaced(assignment)))

        dimensions = tuple(each for _, each in operands)
        rule = Rule(dimensions, result, sizes, write, dict(reduced or {}), allowed=allowed)
        values = [self.value(part) for part in parts]
        value = self.writer.apply(self, values, rule)
        return replace(value, below=values[0].below) if moves else value

    @cached_property
    def arguments(self) -> dict[str, ast.expr]:
        """The arguments of a call by their names."""
        assert isinstance(self.node, ast.Call)
        assert isinstance(self.node.func, ast.Name)
        keywords = {str(keyword.arg): keyword.value for keyword in self.node.keywords}
        bound = OPERATIONS[self.node.func.id].signature.bind(*self.node.args, **keywords)
        return dict(bound.arguments)

    @property
    def name(self) -> str:
        """The operation that is called."""
        assert isinstance(self.node, ast.Call)
        assert isinstance(self.node.func, ast.Name)
        return self.node.func.id

    def type_of(self, node: ast.expr) -> Typed | None:
        """The type of a part that is an array; None for numbers that are known, tuples, …"""
        return None if self.writer.statics.tree(node) is not None else self.writer.type_of(node)

    def static(self, name: str, default: Any = None) -> Any:
        """An argument that has to be known. Raises `NotStatic`."""
        return self.writer.statics.value(self.arguments[name]) if name in self.arguments else default

    def given(self, *names: str) -> bool:
        """Whether the call has one of the arguments, and it is not None."""
        given = (self.arguments[name] for name in names if name in self.arguments)
        return any(not (isinstance(part, ast.Constant) and part.value is None) for part in given)

    def axes(self, name: str = "axis", *, rank: int, default: Any = None) -> tuple[int, ...]:
        """The dimensions that an argument names, from 0; all of them where it is None."""
        axis = self.static(name, default)
        if axis is None:
            return tuple(range(rank))
        listed = axis if is_sequence(axis) else (axis,)
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in listed):
            raise NotStatic
        return tuple(each % rank for each in listed)

    def rewritten(self, replaced: Mapping[int, ast.expr], skip: frozenset[str] = frozenset()) -> ast.expr:
        """The operation with other expressions in the place of some of its parts, which `id` names."""

        def visit(part: ast.expr) -> ast.expr:
            if id(part) in replaced:
                return replaced[id(part)]
            if isinstance(part, ast.Tuple | ast.List):
                return type(part)([visit(element) for element in part.elts])
            static = self.writer.statics.tree(part)
            return self.writer.whole(part) if static is None else static

        match self.node:
            case ast.Call(func=func, args=args, keywords=keywords):
                kept = [ast.keyword(k.arg, visit(k.value)) for k in keywords if k.arg not in skip]
                return ast.Call(func, [visit(each) for each in args], kept)
            case ast.BinOp(left=left, op=op, right=right):
                return ast.BinOp(visit(left), op, visit(right))
            case ast.UnaryOp(op=op, operand=operand):
                return ast.UnaryOp(op, visit(operand))
            case ast.Compare(left=left, ops=ops, comparators=[right]):
                return ast.Compare(visit(left), ops, [visit(right)])
            case ast.Attribute(value=value, attr=attr):
                return ast.Attribute(visit(value), attr)
            case ast.Subscript(value=value, slice=index):
                return ast.Subscript(visit(value), visit(index))
            case _:
                raise AssertionError(ast.dump(self.node))

    def value(self, node: ast.expr) -> Value:
        """A part of the operation as one device computes it."""
        return self.writer.value(node)
