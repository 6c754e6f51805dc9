"""An expression that no array enters in; the number, the tuple or the string that it stands for out."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.derivation.calls import NotStatic
from runner.derivation.trees import constant
from runner.language.bridge import OPERATORS
from runner.language.operations import CONSTANTS, OPERATIONS
from runner.programs.types import Typed

_COUNTED = (ast.Add, ast.Sub, ast.Mult, ast.Mod, ast.Div, ast.FloorDiv, ast.Pow)


@dataclass(frozen=True)
class Statics:
    """What can be known of an expression without arrays; `is_step`: whether a name is a number that comes later."""

    dims: Mapping[str, int]
    is_step: Callable[[str], bool]
    type_of: Callable[[ast.expr], Typed | None]

    def tree(self, node: ast.expr) -> ast.expr | None:
        """The expression, if no array enters it; the shape of an array is a number."""
        match node:
            case ast.Constant() | ast.Lambda():
                # What combines two values reads no others.
                return node
            case ast.Name(id=name):
                return node if name in self.dims or name in CONSTANTS or self.is_step(name) else None
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
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _COUNTED):
                try:
                    return OPERATORS[type(op)].python(self.value(left), self.value(right))
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
