"""Reads Python text: its names, its functions, its documented fields, or the tree of one of its expressions.

For text that is no expression of the language: programs, a PartitionSpec, a condition. It needs no table of operations,
so it is imported quickly.
"""

from __future__ import annotations

import ast
import inspect
from typing import Literal

from runner.base.lazy import dataclass

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}


@dataclass(frozen=True)
class PythonPart:
    """A part of a Python expression.

    - `kind`: `name` if it is one, also with dots; `sequence` for a tuple or a list; `other` for what has no word here.
    - `text`: as Python prints it.
    - `value`: the value of a `literal`.
    - `inside`: the elements of a sequence, the positional arguments of a call, a value and its index for an `item`, the
      operands of the others.
    - `named`: the keyword arguments of a call.
    - `words`: the operators of a `comparison`, the class of that of `arithmetic`; for a `call` its function, then the
      names of its keyword arguments.
    """

    kind: Literal[
        "literal", "name", "sequence", "call", "item", "and", "or", "not", "comparison", "arithmetic", "other"
    ]
    text: str
    value: object = None
    inside: tuple[PythonPart, ...] = ()
    words: tuple[str, ...] = ()
    named: tuple[tuple[str, PythonPart], ...] = ()


def expression(text: str) -> PythonPart:
    """Parse one expression. Raises what Python does: `SyntaxError`, `ValueError`, `RecursionError`, `MemoryError`."""
    return _part(ast.parse(text.strip(), mode="eval").body)


def is_compound(source: str) -> bool:
    """Whether the source of an expression needs parentheses inside of another one."""
    try:
        node = ast.parse(source, mode="eval").body
    except SyntaxError:
        return " " in source
    return isinstance(node, ast.BinOp | ast.UnaryOp | ast.BoolOp | ast.Compare | ast.IfExp | ast.Lambda)


def _part(node: ast.expr) -> PythonPart:
    text = ast.unparse(node)
    match node:
        case ast.Constant(value=value):
            return PythonPart("literal", text, value)
        case ast.Name() | ast.Attribute():
            return PythonPart("name", text)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return PythonPart("sequence", text, inside=tuple(map(_part, elements)))
        case ast.Call(func=function, args=arguments, keywords=keywords):
            names = (keyword.arg or "**" for keyword in keywords)
            named = tuple((keyword.arg, _part(keyword.value)) for keyword in keywords if keyword.arg)
            words = (ast.unparse(function), *names)
            return PythonPart("call", text, inside=tuple(map(_part, arguments)), words=words, named=named)
        case ast.BoolOp(op=word, values=values):
            return PythonPart("and" if isinstance(word, ast.And) else "or", text, inside=tuple(map(_part, values)))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return PythonPart("not", text, inside=(_part(operand),))
        case ast.BinOp(left=left, op=operator, right=right):
            return PythonPart("arithmetic", text, inside=(_part(left), _part(right)), words=(type(operator).__name__,))
        case ast.Subscript(value=value, slice=index):
            return PythonPart("item", text, inside=(_part(value), _part(index)))
        case ast.Compare(left=left, ops=operators, comparators=others):
            words = tuple(_COMPARISONS[type(operator)] for operator in operators)
            return PythonPart("comparison", text, inside=tuple(map(_part, (left, *others))), words=words)
        case _:
            return PythonPart("other", text)


def names(text: str) -> frozenset[str]:
    """The names that lines of Python read or assign."""
    return frozenset(node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name))


def function(text: str, name: str) -> str | None:
    """The source lines of a function of a module; None if it has none of that name.

    Raises `SyntaxError` or `ValueError` if the text is not Python.
    """
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
    return None


def parameters(text: str) -> dict[str, list[str]]:
    """The functions of a module that have no leading underscore, each with the names of its positional parameters.

    Raises `SyntaxError` or `ValueError` if the text is not Python.
    """
    functions = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    return {
        node.name: [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        for node in functions
        if not node.name.startswith("_")
    }


def fields(text: str) -> dict[str, dict[str, str]]:
    """For each class of a module its annotated fields, each with the docstring below it, or ""."""
    classes: dict[str, dict[str, str]] = {}
    for node in ast.parse(text).body:
        if not isinstance(node, ast.ClassDef):
            continue
        documented = classes.setdefault(node.name, {})
        for line in node.body:
            match line:
                case ast.AnnAssign(target=ast.Name(id=name)):
                    documented[name] = ""
                case ast.Expr(value=ast.Constant(value=str(docstring))) if documented:
                    documented[list(documented)[-1]] = inspect.cleandoc(docstring)
                case _:
                    pass
    return classes
