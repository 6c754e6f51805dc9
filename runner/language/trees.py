"""Expressions as Python's trees: their parts, and the same with another part in one place."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import Any

from runner.language.operations.arguments import AT
from runner.untyped import is_list


def nodes(tree: ast.expr) -> Iterator[ast.expr]:
    """The parts of an expression that have a value of their own, the whole first."""
    yield tree
    match tree:
        case ast.Call(args=args, keywords=keywords):
            children = [*args, *(keyword.value for keyword in keywords)]
        case ast.BinOp(left=left, right=right):
            children = [left, right]
        case ast.Compare(left=left, comparators=comparators):
            children = [left, *comparators]
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            # The index of an update has slices.
            children = [element for element in elements if not isinstance(element, ast.Slice)]
        case ast.UnaryOp(operand=operand):
            children = [operand]
        case ast.Subscript(value=value, slice=index):
            children = [value, *(index.elts if isinstance(index, ast.Tuple) else [index])]
            children = [child for child in children if not isinstance(child, ast.Slice)]
        case ast.Attribute(value=value, attr="T"):
            children = [value]
        case _:
            children = []
    for child in children:
        yield from nodes(child)


def swapped(tree: ast.expr, old: ast.expr, new: ast.expr) -> ast.expr:
    """`tree` with `new` in the place of `old`; what lies beside the way there is shared."""
    if tree is old:
        return new
    copied = copy.copy(tree)
    for name, value in ast.iter_fields(tree):
        if isinstance(value, ast.expr):
            setattr(copied, name, swapped(value, old, new))
        elif is_list(value):
            setattr(copied, name, [_swapped_in(each, old, new) for each in value])
    return copied


def _swapped_in(value: object, old: ast.expr, new: ast.expr) -> object:
    if isinstance(value, ast.expr):
        return swapped(value, old, new)
    if isinstance(value, ast.keyword):
        return ast.keyword(value.arg, swapped(value.value, old, new))
    return value


def fields(node: ast.AST, visit: Callable[[ast.AST], Any]) -> dict[str, Any]:
    """The fields of a node, with what `visit` makes of each node in them."""
    found: dict[str, Any] = {}
    for name, value in ast.iter_fields(node):
        if is_list(value):
            found[name] = [visit(item) if isinstance(item, ast.AST) else item for item in value]
        else:
            found[name] = visit(value) if isinstance(value, ast.AST) else value
    return found


def parsed_call(text: str) -> ast.Call:
    """The tree of a call whose text is ours, and no user's."""
    tree = ast.parse(text, mode="eval").body
    assert isinstance(tree, ast.Call), text
    return tree


def plus(node: ast.expr, by: int) -> ast.expr:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
        return ast.Constant(node.value + by)
    return ast.BinOp(node, ast.Add() if by > 0 else ast.Sub(), ast.Constant(abs(by)))


def transposed(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Attribute) and node.attr == "T":
        return node.value
    return ast.Attribute(node, "T", ast.Load())


def axes_node(axes: tuple[str, ...]) -> ast.expr:
    constants: list[ast.expr] = [ast.Constant(axis) for axis in axes]
    return constants[0] if len(constants) == 1 else ast.Tuple(constants)


def with_argument(call: ast.Call, at: int, new: ast.expr) -> ast.Call:
    return ast.Call(call.func, [*call.args[:at], new, *call.args[at + 1 :]], call.keywords)


def with_keyword(call: ast.Call, at: int, new: ast.expr) -> ast.Call:
    keywords = list(call.keywords)
    keywords[at] = ast.keyword(keywords[at].arg, new)
    return ast.Call(call.func, call.args, keywords)


def axes_by_position(call: ast.Call) -> ast.Call:
    """`psum(x, axis_name='x')` as `psum(x, 'x')`."""
    named = [keyword for keyword in call.keywords if keyword.arg == "axis_name"]
    if not named:
        return call
    rest = [keyword for keyword in call.keywords if keyword is not named[0]]
    return ast.Call(call.func, [*call.args, named[0].value], rest)


def text(tree: ast.expr) -> str:
    """The tree as text of the language."""
    return ast.unparse(ast.fix_missing_locations(_Spelled().visit(tree)))


def method_of(node: ast.AST) -> str | None:
    """The method of a call of such an operation."""
    match node:
        case ast.Call(func=ast.Name(id=name)) if name.startswith(AT):
            return name.removeprefix(AT)
        case _:
            return None


def method_call(method: str, arguments: list[ast.expr], keywords: list[ast.keyword]) -> ast.Call:
    """The call as Python has it: the arguments are the array, the index and the values."""
    x, index, *values = arguments
    if isinstance(index, ast.Tuple) and len(index.elts) == 1:
        (index,) = index.elts
    reference = ast.Subscript(ast.Attribute(x, "at", ast.Load()), index, ast.Load())
    return ast.Call(ast.Attribute(reference, method, ast.Load()), values, keywords)


class _Spelled(ast.NodeTransformer):
    """Puts `x.at[index].add(values)` in the place of calls of operations, as Python unparses it."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        # New nodes: what is shown stays what it is.
        return type(node)(**fields(node, self.visit))

    def visit_Call(self, node: ast.Call) -> Any:
        new = self.generic_visit(node)
        assert isinstance(new, ast.Call)
        method = method_of(new)
        return new if method is None else method_call(method, new.args, new.keywords)
