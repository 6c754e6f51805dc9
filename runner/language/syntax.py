"""Text in; a checked Python syntax tree out. Only the language of experiments gets through: see `docs/language.md`."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from functools import cached_property

from runner.graph.source import Source
from runner.graph.term import Term
from runner.language import forms, updates
from runner.language.operations import combination
from runner.language.operators import OPERATORS
from runner.language.terms import term
from runner.language.trees import method_of

_DEEPEST = 100
"""How many levels an expression may nest: whatever walks the tree recurses."""

AT_ALONE = f"after x.at[index] comes what is done there: {', '.join(f'.{method}(…)' for method in updates.METHODS)}"

_COMPREHENSION = "a comprehension is over one range: [(i, (i + 1) % n) for i in range(n)]"

_REFUSED: dict[type[ast.AST], str] = {
    ast.Lambda: "a lambda is not part of the language; write another line with a name instead",
    ast.IfExp: "an if-expression is not part of the language; use where(condition, a, b)",
    ast.BoolOp: "'and'/'or' do not work on arrays; use & and |, with parentheses",
    ast.NamedExpr: "':=' is not part of the language; write another line with a name instead",
    ast.ListComp: _COMPREHENSION,
    ast.GeneratorExp: "a comprehension is not part of the language; write the list out, or use a repeat",
    ast.SetComp: "a comprehension is not part of the language",
    ast.DictComp: "a comprehension is not part of the language",
    ast.Dict: "a dict is not part of the language",
    ast.Set: "a set is not part of the language",
    ast.JoinedStr: "an f-string is not part of the language",
    ast.Starred: "'*' before an argument is not part of the language",
}


class SyntaxFault(Exception):
    """A fault in one expression: what is wrong, and the half-open span of characters that is at fault."""

    def __init__(self, message: str, start: int, end: int) -> None:
        super().__init__(message)
        self.message = message
        self.start = start
        self.end = end


def fault_at(message: str, source: Source) -> SyntaxFault:
    """A fault where an equation is written."""
    return SyntaxFault(message, *source.span)


@dataclass(frozen=True)
class Expression:
    """One parsed expression: its text as written and its syntax tree."""

    text: str
    tree: ast.expr
    local: ast.expr | None = None
    """The tree with the names of the function that the line stands in; None for a line of a section."""

    @cached_property
    def term(self) -> Term:
        """It as a term."""
        return term(self.tree)

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name in it, of operations too: `A`, `psum`, `ring.acc`."""
        return frozenset(name for node in ast.walk(self.tree) if (name := name_of(node)) is not None)

    def fault(self, message: str, node: ast.AST | None = None) -> SyntaxFault:
        """A `SyntaxFault` at `node`, or over the whole expression."""
        start, end = span(self.text, node) if node is not None else (0, len(self.text))
        return SyntaxFault(message, start, end)


def span(text: str, node: ast.AST) -> tuple[int, int]:
    """The half-open span of characters of `text` from which `node` was parsed."""
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)

    def offset(line: int, column: int) -> int:
        # ast counts columns in UTF-8 bytes.
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode(errors="ignore"))

    begin = offset(getattr(node, "lineno", 1), getattr(node, "col_offset", 0))
    end_line, end_column = getattr(node, "end_lineno", None), getattr(node, "end_col_offset", None)
    end = offset(end_line, end_column) if end_line is not None and end_column is not None else begin + 1
    return begin, max(end, begin + 1)


def name_of(node: ast.AST) -> str | None:
    """The name that a node is: `A`, `ring.acc` (or `A.T`, which looks like one); None for any other node."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            return f"{name}.{attribute}"
        case _:
            return None


def place(node: ast.expr) -> str | None:
    """Where a node stands in its expression, which no other evaluated node does; None for one that was not parsed."""
    if not hasattr(node, "lineno"):
        return None
    return f"{node.col_offset}:{node.end_col_offset}"


def parse(text: str) -> Expression:
    """Parse one expression.

    Raises `SyntaxFault` for text that is not Python, or is Python but not the language. The spans of its faults are
    those of `on_one_line(text)`.
    """
    source = on_one_line(text)
    if not source:
        raise SyntaxFault("the expression is empty", 0, 1)
    try:
        with warnings.catch_warnings():
            # An unknown escape in a string, or `1if`: what Python will refuse one day is refused today.
            warnings.simplefilter("error")
            tree = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        start = (error.offset or 0) - 1
        end = (error.end_offset or 0) - 1 if error.end_lineno in (None, 1) else start + 1
        if error.lineno not in (None, 1) or not 0 <= start < len(source):
            # Python looked for more where the text ends.
            start, end = len(source) - 1, len(source)
        raise SyntaxFault(_not_python(error.msg), start, max(end, start + 1)) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxFault(f"not a Python expression: {error}", 0, len(source)) from None
    try:
        tree = updates.called(tree)
    except updates.Unknown as unknown:
        raise Expression(source, tree).fault(
            f"there is no x.at[index].{unknown.node.attr}(…); there are {', '.join(updates.METHODS)}", unknown.node
        ) from None
    except RecursionError as error:
        raise SyntaxFault(f"not a Python expression: {error}", 0, len(source)) from None
    expression = Expression(source, tree)
    _check(expression, tree)
    if (at := _comment(source, tree)) is not None:
        raise SyntaxFault("a comment is not part of an expression; write it as a comment of the YAML", at, len(source))
    return expression


def _not_python(message: str) -> str:
    if "integer string conversion" in message:
        return "a number of more than 4,300 digits; no dtype has an integer of more than 64 bits"
    return f"not a Python expression: {message}"


def on_one_line(text: str) -> str:
    """The text of an expression as it is parsed and shown: a block scalar may have broken it over lines."""
    source = text.strip()
    return " ".join(source.split()) if "\n" in source or "\r" in source else source


def _comment(source: str, tree: ast.expr) -> int | None:
    """Where a comment begins. On one line it would swallow the lines that were joined to it."""
    if "#" not in source:
        return None
    inside = [span(source, node) for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    for at, character in enumerate(source):
        if character == "#" and not any(start <= at < end for start, end in inside):
            return at
    return None


def _check(expression: Expression, node: ast.expr, depth: int = 0) -> None:
    if depth > _DEEPEST:
        raise expression.fault(f"nested more than {_DEEPEST} levels deep; give a part of it a name", node)
    depth += 1
    match node:
        case ast.Constant(value=str() as text) if any("\ud800" <= character <= "\udfff" for character in text):
            raise expression.fault("a part of it is half of a character, and no text", node)
        case ast.Name() | ast.Constant(value=bool() | int() | float() | complex() | str() | None):
            return
        case ast.Constant(value=value) if value is Ellipsis:
            raise expression.fault("'...' stands in an index only: x[..., 0]", node)
        case ast.Constant():
            raise expression.fault(f"{node.value!r} is not part of the language", node)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            _check(expression, left, depth)
            _check(expression, right, depth)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            _check(expression, operand, depth)
        case ast.UnaryOp():
            raise expression.fault("'not' does not work on arrays; use ~ or logical_not", node)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            if len(ops) > 1:
                raise expression.fault("a chained comparison does not work on arrays; use (a < b) & (b < c)", node)
            if type(ops[0]) not in OPERATORS:
                raise expression.fault("'is' and 'in' are not part of the language", node)
            _check(expression, left, depth)
            _check(expression, comparators[0], depth)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            for element in elements:
                _check(expression, element, depth)
        case ast.Subscript(value=value, slice=index):
            _check(expression, value, depth)
            _check_index(expression, index, depth)
        case ast.ListComp(
            elt=element, generators=[ast.comprehension(target=ast.Name(), iter=over, ifs=[], is_async=0)]
        ):
            match over:
                case ast.Call(func=ast.Name(id="range"), args=[_, *_] as bounds, keywords=[]) if len(bounds) < 4:
                    for part in (element, *bounds):
                        _check(expression, part, depth)
                case _:
                    raise expression.fault(_COMPREHENSION, node)
        case ast.Slice(lower=lower, upper=upper, step=step):
            for part in (lower, upper, step):
                if part is not None:
                    _check(expression, part, depth)
        case ast.Attribute(value=value, attr=attribute):
            if attribute.startswith("_"):
                raise expression.fault(f"attribute '.{attribute}' is not part of the language", node)
            _check(expression, value, depth)
            if attribute == "at" and not isinstance(value, ast.Name):
                raise expression.fault(AT_ALONE, node)
            if attribute != "T" and not isinstance(value, ast.Name):
                raise expression.fault(
                    f"attribute '.{attribute}' is not part of the language; only .T and the carries of a repeat are",
                    node,
                )
        case ast.Call(func=function, args=arguments, keywords=keywords):
            if not isinstance(function, ast.Name):
                _check(expression, function, depth)
                raise expression.fault("only operations can be called, by their name: sum(x), not x.sum()", function)
            combining, branches = combination(node), forms.called_in(node)
            for position, argument in enumerate(arguments):
                if argument in branches:
                    _check_branch(expression, argument, depth)
                elif isinstance(argument, ast.List | ast.Tuple) and branches and argument.elts == branches:
                    for branch in branches:
                        _check_branch(expression, branch, depth)
                elif argument is combining:
                    _check_lambda(expression, argument, depth)
                elif position == 1 and method_of(node) is not None:
                    _check_index(expression, argument, depth)
                else:
                    _check(expression, argument, depth)
            for position, keyword in enumerate(keywords):
                if keyword.arg is None:
                    raise expression.fault("'**' is not part of the language", keyword.value)
                if any(keyword.arg == earlier.arg for earlier in keywords[:position]):
                    raise expression.fault(f"the argument '{keyword.arg}' is given twice", keyword)
                if keyword.value is combining:
                    _check_lambda(expression, keyword.value, depth)
                else:
                    _check(expression, keyword.value, depth)
        case _:
            message = _REFUSED.get(type(node), f"{type(node).__name__} is not part of the language")
            raise expression.fault(message, node)


def _check_branch(expression: Expression, node: ast.expr, depth: int) -> None:
    match node:
        case ast.Lambda(
            args=ast.arguments(posonlyargs=[], kwonlyargs=[], vararg=None, kwarg=None, defaults=[]), body=body
        ):
            _check(expression, body, depth)
        case ast.Lambda():
            raise expression.fault("what is chosen is a lambda of names alone: lambda x, w: x @ w", node)
        case _:
            _check(expression, node, depth)


def _check_lambda(expression: Expression, node: ast.expr, depth: int) -> None:
    match node:
        case ast.Lambda(
            args=ast.arguments(
                args=[ast.arg(arg=one), ast.arg(arg=other)],
                posonlyargs=[],
                kwonlyargs=[],
                vararg=None,
                kwarg=None,
                defaults=[],
            ),
            body=body,
        ) if one != other:
            _check(expression, body, depth)
        case ast.Lambda():
            raise expression.fault("what combines two values is a lambda of two: lambda a, b: a + b", node)
        case _:
            _check(expression, node, depth)


def _check_index(expression: Expression, index: ast.expr, depth: int) -> None:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    rest = [part for part in parts if not (isinstance(part, ast.Constant) and part.value is ...)]
    if len(parts) - len(rest) > 1:
        raise expression.fault("'...' stands twice in one index", index)
    for part in rest:
        _check(expression, part, depth)


def names(tree: ast.AST) -> list[ast.Name]:
    """The names that an expression reads, leftmost first, without the names of the operations that it calls."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))
