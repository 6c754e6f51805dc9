"""Takes the calls of imported Python functions out of an expression.

Such a call is Python, restricted to names, literals, attributes, calls, containers and arithmetic. The restriction
keeps a line simple; it is no sandbox, since the call runs the user's own code.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

from runner.base.lazy import dataclass
from runner.graph.language.syntax import SyntaxFault, on_one_line

_ALLOWED = (
    ast.Call, ast.Attribute, ast.Name, ast.Load, ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.keyword, ast.UnaryOp,
    ast.USub, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.Subscript,
)  # fmt: skip


@dataclass(frozen=True)
class PythonCall:
    """A call of a Python function: its text, the function's dotted name (`llama.loss`), and the names that it reads."""

    text: str
    function: str
    names: tuple[str, ...]

    def filled(self, texts: Mapping[str, str]) -> str:
        """Return its text with names replaced."""
        return filled(self.text, texts)


@dataclass(frozen=True)
class OwnCall:
    """A call of a function of the experiment: its text, the function's name, and the texts of its arguments."""

    text: str
    function: str
    operands: tuple[str, ...]
    named: tuple[tuple[str, str], ...]


def taken_out(
    text: str, imports: Collection[str], own: Collection[str] = ()
) -> tuple[str, dict[str, PythonCall | OwnCall]]:
    """Replace each call of a function in `imports` or in `own` by a new name.

    Returns the expression and the calls by these names, inner calls first: an argument of a call of the experiment's
    `own` functions is an expression, which may contain such names. Text that is not Python is returned unchanged.
    Raises `SyntaxFault` for syntax that is not allowed in a call of Python.
    """
    text = on_one_line(text)
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return text, {}
    calls: dict[str, PythonCall | OwnCall] = {}

    class CallsToNames(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> Any:
            written = ast.unparse(node)
            if _root(node.func) in imports:
                call = _call(node, text)
            elif isinstance(node.func, ast.Name) and node.func.id in own:
                self.generic_visit(node)
                operands = tuple(map(ast.unparse, node.args))
                named = tuple((keyword.arg or "", ast.unparse(keyword.value)) for keyword in node.keywords)
                call = OwnCall(written, node.func.id, operands, named)
            else:
                return self.generic_visit(node)
            name = f"call_{len(calls) + 1}_"
            calls[name] = call
            return ast.Name(name, ast.Load())

    expression = ast.unparse(CallsToNames().visit(tree))
    return (expression, calls) if calls else (text, {})


def read(text: str) -> PythonCall:
    """Parse an expression that is Python as a whole; `function` is "" where it is no call. Raises `SyntaxFault`."""
    try:
        node = ast.parse(on_one_line(text).strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise SyntaxFault(f"Python cannot read it: {error}", 0, len(text)) from None
    return _call(node, text)


def filled(text: str, texts: Mapping[str, str]) -> str:
    """Replace names in a Python expression, also dotted ones, by texts, which need not be names."""

    class Filled(ast.NodeTransformer):
        def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
            text = texts.get(ast.unparse(node))
            return cast("ast.expr", self.generic_visit(node)) if text is None else ast.Name(text, node.ctx)

        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.Name(texts.get(node.id, node.id), node.ctx)

    return ast.unparse(Filled().visit(ast.parse(text, mode="eval")))


def _call(node: ast.expr, text: str) -> PythonCall:
    for part in ast.walk(node):
        if not isinstance(part, _ALLOWED) or (isinstance(part, ast.Attribute) and part.attr.startswith("_")):
            shown = ast.unparse(part) if isinstance(part, ast.expr) else type(part).__name__
            message = f"'{shown}' cannot be used in a call of Python; give it a line, or a function, of its own"
            raise SyntaxFault(message, 0, len(text))
    return PythonCall(
        ast.unparse(node),
        ast.unparse(node.func) if isinstance(node, ast.Call) else "",
        tuple(dict.fromkeys(_names(node))),
    )


def _names(node: ast.expr) -> Iterator[str]:
    return (part.id for part in ast.walk(node) if isinstance(part, ast.Name))


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
