"""Parses a text into its term. Accepts only the language of experiments: see `docs/language.md`."""

from __future__ import annotations

import ast
import textwrap
import warnings
from functools import cached_property

from runner.base.lazy import dataclass, pattern
from runner.graph.language import forms, jax_spellings, printing
from runner.graph.language.operations import METHODS, combination
from runner.graph.language.operations.row import AT
from runner.graph.source import Source
from runner.graph.term import (
    NOTHING,
    Apply,
    Const,
    Group,
    Lambda,
    Listed,
    Name,
    Slice,
    Span,
    Term,
    characters,
    name_of,
    nesting,
    within,
)

_DEEPEST = 100
"""How many levels an expression may nest: the functions that walk it recurse."""

_TOO_DEEP = f"nested more than {_DEEPEST} levels deep; give a part of it a name"

AT_ALONE = f"x.at[index] needs a method: {', '.join(f'.{method}(…)' for method in METHODS)}"

NO_ATTRIBUTE = "attribute '.{}' is not part of the language; only .T and the carries of a repeat are"

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
    """A fault in one expression: the message, and the half-open span of characters at fault."""

    def __init__(self, message: str, start: int, end: int) -> None:
        super().__init__(message)
        self.message = message
        self.start = start
        self.end = end


def fault_in(text: str, message: str, at: Span | None) -> SyntaxFault:
    """Build a fault at a span of bytes of a text; None is the whole text."""
    return SyntaxFault(message, *characters(text, at))


def fault_at(message: str, source: Source) -> SyntaxFault:
    """Build a fault at the place of an equation."""
    return SyntaxFault(message, *source.span)


@dataclass(frozen=True)
class Expression:
    """One expression: its text as written, and its term, which may be a part of it or have names in place of parts."""

    text: str
    term: Term

    @classmethod
    def of(cls, term: Term) -> Expression:
        """Print a term to an expression, with the spans of its parts. Raises `SyntaxFault` for one that is too deep."""
        if nesting(term) > _DEEPEST:
            raise SyntaxFault(_TOO_DEEP, 0, 1)
        return cls(*printing.written(term))

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name in it, including operations: `A`, `psum`, `ring` and `ring.acc`, `A` and `A.T`."""
        return frozenset(name for part in within(self.term) for name in _names(part))

    def fault(self, message: str, part: Term | None = None) -> SyntaxFault:
        """Build a `SyntaxFault` at a part, or over the whole expression."""
        return fault_in(self.text, message, None if part is None else part.at)


def _names(part: Term) -> tuple[str, ...]:
    match part:
        case Name(name=name):
            return (name, part.head)
        case Apply(spelled=".T"):
            return () if (name := name_of(part)) is None else (name,)
        case Apply(operation=operation, spelled="call"):
            return (operation,)
        case Listed(index=index):
            return ("range", index)
        case _:
            return ()


def parse(text: str) -> Expression:
    """Parse one expression.

    Raises `SyntaxFault` for text that is not Python, or not the language; its span refers to `on_one_line(text)`.
    """
    source = on_one_line(text)
    if not source:
        raise SyntaxFault("the expression is empty", 0, 1)
    try:
        with warnings.catch_warnings():
            # An unknown escape in a string, or `1if`: Python deprecates these, so they are errors here.
            warnings.simplefilter("error")
            tree = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        if (message := _of_statements(text)) is not None:
            raise SyntaxFault(message, 0, len(source)) from None
        start = (error.offset or 0) - 1
        end = (error.end_offset or 0) - 1 if error.end_lineno in (None, 1) else start + 1
        if error.lineno not in (None, 1) or not 0 <= start < len(source):
            # The text ended too early: mark its last character.
            start, end = len(source) - 1, len(source)
        raise SyntaxFault(_not_python(error.msg, source, start), start, max(end, start + 1)) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxFault(f"not a Python expression: {error}", 0, len(source)) from None
    tree = jax_spellings.plain(tree) if "." in source else tree
    _check(source, tree)
    if (at := _comment(source, tree)) is not None:
        raise SyntaxFault("a comment is not part of an expression; write it as a comment of the YAML", at, len(source))
    return Expression(source, term(tree))


def header(text: str) -> list[tuple[str, str | None]] | None:
    """Parse a function header, `name(x, y=1)`: its parameters with the texts of their defaults; None for other text.

    Raises `SyntaxFault` for parameters with `*` or `/`.
    """
    try:
        (function,) = ast.parse(f"def {text}: pass").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # ValueError also for several statements.
        return None
    match function:
        case ast.FunctionDef(args=arguments, returns=None, body=[ast.Pass()]):
            pass
        case _:
            return None
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
        raise SyntaxFault("a function has parameters by their names, no '*' and no '/'", 0, len(text))
    without = len(arguments.args) - len(arguments.defaults)
    defaults = (*(None for _ in range(without)), *map(ast.unparse, arguments.defaults))
    return [(parameter.arg, default) for parameter, default in zip(arguments.args, defaults, strict=True)]


def _of_statements(text: str) -> str | None:
    """Return the message for a text of assignments, as in a Python function; None for any other."""
    try:
        body = ast.parse(textwrap.dedent(text).strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    match body:
        case [ast.Assign(targets=[ast.Name(id=name)], value=value), *_]:
            return f"a line is one expression, and its key the name: write {name}: {ast.unparse(value)}"
        case _:
            return None


_SUBSCRIPTS = pattern(r"einsum\(\s*([A-Za-z., ]*->[A-Za-z.]*)")


def _not_python(message: str, source: str, start: int) -> str:
    if "integer string conversion" in message:
        return "a number of more than 4,300 digits; no dtype has an integer of more than 64 bits"
    if (subscripts := _SUBSCRIPTS.search(source)) is not None:
        return f"the subscripts of einsum are a text: einsum('{subscripts[1].strip()}', …)"
    if start == len(source) - 1 and source[-1] in "+-*/@,(":
        return f"the expression ends after '{source[-1]}'; in YAML ' #' begins a comment"
    return f"not a Python expression: {message}"


def on_one_line(text: str) -> str:
    """Join the lines of an expression, which a YAML block scalar may have split, as it is parsed and shown."""
    source = text.strip()
    return " ".join(source.split()) if "\n" in source or "\r" in source else source


def _comment(source: str, tree: ast.expr) -> int | None:
    """The position of a comment, which after joining would hide the lines below it; None where there is none."""
    if "#" not in source:
        return None
    inside = [characters(source, span(node)) for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    for at, character in enumerate(source):
        if character == "#" and not any(start <= at < end for start, end in inside):
            return at
    return None


def _fault(text: str, message: str, node: ast.AST) -> SyntaxFault:
    return fault_in(text, message, span(node))


def _check(text: str, node: ast.expr, depth: int = 0) -> None:
    if depth > _DEEPEST:
        raise _fault(text, _TOO_DEEP, node)
    depth += 1
    match node:
        case ast.Constant(value=str() as value) if any("\ud800" <= character <= "\udfff" for character in value):
            raise _fault(text, "it contains a lone surrogate, which is no character", node)
        case ast.Name() | ast.Constant(value=bool() | int() | float() | complex() | str() | None):
            return
        case ast.Constant(value=value) if value is Ellipsis:
            raise _fault(text, "'...' belongs in an index only: x[..., 0]", node)
        case ast.Constant():
            raise _fault(text, f"{node.value!r} is not part of the language", node)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            _check(text, left, depth)
            _check(text, right, depth)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            _check(text, operand, depth)
        case ast.UnaryOp():
            raise _fault(text, "'not' does not work on arrays; use ~ or logical_not", node)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            if len(ops) > 1:
                raise _fault(text, "a chained comparison does not work on arrays; use (a < b) & (b < c)", node)
            if type(ops[0]) not in OPERATORS:
                raise _fault(text, "'is' and 'in' are not part of the language", node)
            _check(text, left, depth)
            _check(text, comparators[0], depth)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            for element in elements:
                _check(text, element, depth)
        case ast.Subscript(value=value, slice=index):
            _check(text, value, depth)
            _check_index(text, index, depth)
        case ast.ListComp(
            elt=element, generators=[ast.comprehension(target=ast.Name(), iter=over, ifs=[], is_async=0)]
        ):
            match over:
                case ast.Call(func=ast.Name(id="range"), args=[_, *_] as bounds, keywords=[]) if len(bounds) < 4:
                    for part in (element, *bounds):
                        _check(text, part, depth)
                case _:
                    raise _fault(text, _COMPREHENSION, node)
        case ast.Slice(lower=lower, upper=upper, step=step):
            for part in (lower, upper, step):
                if part is not None:
                    _check(text, part, depth)
        case ast.Attribute(value=value, attr=attribute):
            if attribute.startswith("_"):
                raise _fault(text, f"attribute '.{attribute}' is not part of the language", node)
            _check(text, value, depth)
            if attribute == "at" and not isinstance(value, ast.Name):
                raise _fault(text, AT_ALONE, node)
            if attribute != "T" and not isinstance(value, ast.Name):
                message = jax_spellings.attribute(ast.unparse(value), attribute)
                raise _fault(text, message or NO_ATTRIBUTE.format(attribute), node)
        case ast.Call():
            _check_call(text, node, depth)
        case _:
            message = _REFUSED.get(type(node), f"{type(node).__name__} is not part of the language")
            raise _fault(text, message, node)


def _check_call(text: str, node: ast.Call, depth: int) -> None:
    call = called(node)
    if call is None:
        if not isinstance(node.func, ast.Attribute):
            _check(text, node.func, depth)
        raise _fault(text, jax_spellings.refusal(node.func, node), node.func)
    name, operands = call
    updates = isinstance(node.func, ast.Attribute)
    if updates and (method := name.removeprefix(AT)) not in METHODS:
        message = f"there is no x.at[index].{method}(…); there are {', '.join(METHODS)}"
        raise _fault(text, message, node.func)
    combining = combination(name, operands, [(str(keyword.arg), keyword.value) for keyword in node.keywords])
    for position, operand in enumerate(operands):
        if position in forms.FUNCTIONS.get(name, ()):
            _check_branch(text, operand, depth)
        elif name == forms.SWITCH and position == 1 and isinstance(operand, ast.List | ast.Tuple):
            for case in operand.elts:
                _check_branch(text, case, depth)
        elif operand is combining:
            _check_lambda(text, operand, depth)
        elif updates and position == 1:
            _check_index(text, operand, depth)
        else:
            _check(text, operand, depth)
    for position, keyword in enumerate(node.keywords):
        if keyword.arg is None:
            raise _fault(text, "'**' is not part of the language", keyword.value)
        if any(keyword.arg == earlier.arg for earlier in node.keywords[:position]):
            raise _fault(text, f"the argument '{keyword.arg}' is given twice", keyword)
        if keyword.value is combining:
            _check_lambda(text, keyword.value, depth)
        else:
            _check(text, keyword.value, depth)


def _check_branch(text: str, node: ast.expr, depth: int) -> None:
    match node:
        case ast.Lambda(
            args=ast.arguments(posonlyargs=[], kwonlyargs=[], vararg=None, kwarg=None, defaults=[]), body=body
        ):
            _check(text, body, depth)
        case ast.Lambda():
            raise _fault(text, "a lambda here has plain parameters: lambda x, w: x @ w", node)
        case _:
            _check(text, node, depth)


def _check_lambda(text: str, node: ast.expr, depth: int) -> None:
    match node:
        case ast.Lambda(
            args=ast.arguments(
                args=[ast.arg(arg=left), ast.arg(arg=right)],
                posonlyargs=[],
                kwonlyargs=[],
                vararg=None,
                kwarg=None,
                defaults=[],
            ),
            body=body,
        ) if left != right:
            _check(text, body, depth)
        case ast.Lambda():
            raise _fault(text, "a lambda that combines two values has two parameters: lambda a, b: a + b", node)
        case _:
            _check(text, node, depth)


def _check_index(text: str, index: ast.expr, depth: int) -> None:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    rest = [part for part in parts if not (isinstance(part, ast.Constant) and part.value is ...)]
    if len(parts) - len(rest) > 1:
        raise _fault(text, "'...' appears twice in one index", index)
    for part in rest:
        _check(text, part, depth)


OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
    ast.Pow: "power",
    ast.MatMult: "matmul",
    ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor",
    ast.LShift: "left_shift",
    ast.RShift: "right_shift",
    ast.USub: "negative",
    ast.UAdd: "positive",
    ast.Invert: "invert",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
"""The operations of Python's operators."""


def called(call: ast.Call) -> tuple[str, list[ast.expr]] | None:
    """The name that a call calls, and its positional operands; `x.at[index].add(v)` gives `at[].add`, x, index and v.

    None for a call of anything but a name or an update. Users cannot write the name `at[].add`.
    """
    match call.func:
        case ast.Name(id=name):
            return name, call.args
        case ast.Attribute(value=ast.Subscript(value=ast.Attribute(value=x, attr="at"), slice=index), attr=method):
            return f"{AT}{method}", [x, index, *call.args]
        case _:
            return None


def term(tree: ast.expr) -> Term:
    """Convert a tree that `runner.graph.language.syntax` has checked."""
    at = span(tree)
    match tree:
        case ast.Constant(value=value) if not isinstance(value, bytes):
            return Const(value, at)
        case ast.Name(id=name):
            return Name(name, at)
        case ast.Attribute(value=value, attr="T"):
            return Apply("transpose", (term(value),), spelled=".T", at=at)
        case ast.Attribute(value=ast.Name(id=loop), attr=carried):
            return Name(f"{loop}.{carried}", at)
        case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
            return Apply(OPERATORS[type(op)], (term(left), term(right)), spelled="operator", at=at)
        case ast.UnaryOp(op=op, operand=operand):
            return Apply(OPERATORS[type(op)], (term(operand),), spelled="operator", at=at)
        case ast.Tuple(elts=elements):
            return Group(tuple(map(term, elements)), at=at)
        case ast.List(elts=elements):
            return Group(tuple(map(term, elements)), "list", at)
        case ast.Slice(lower=lower, upper=upper, step=step):
            lower, upper, step = (NOTHING if part is None else term(part) for part in (lower, upper, step))
            return Slice(lower, upper, step, at)
        case ast.Subscript(value=value, slice=index):
            return Apply("index", (term(value), term(index)), spelled="index", at=at)
        case ast.Call(keywords=keywords) if (call := called(tree)) is not None:
            name, operands = call
            parts = tuple(map(term, operands))
            if isinstance(tree.func, ast.Attribute):
                x, index, *values = parts
                parts = (x, _as_operand(index), *values)
            return Apply(name, parts, tuple((str(keyword.arg), term(keyword.value)) for keyword in keywords), at=at)
        case ast.Lambda(args=arguments, body=body):
            return Lambda(tuple(argument.arg for argument in arguments.args), term(body), at)
        case ast.ListComp(
            elt=element, generators=[ast.comprehension(target=ast.Name(id=index), iter=ast.Call(args=bounds))]
        ):
            return Listed(term(element), index, tuple(map(term, bounds)), at)
        case _:
            raise AssertionError(ast.dump(tree))  # `runner/graph/language/syntax.py` rejects everything else


def _as_operand(index: Term) -> Term:
    """Return the index of an update; a slice, `None` or `...` alone, which is no value, is put in a tuple."""
    alone = isinstance(index, Slice) or (isinstance(index, Const) and index.value in (None, ...))
    return Group((index,), at=index.at) if alone else index


def span(tree: ast.AST) -> Span | None:
    """The half-open span of bytes from which a node was parsed; None for a generated node."""
    start, end = getattr(tree, "col_offset", None), getattr(tree, "end_col_offset", None)
    return None if start is None or end is None else (start, end)
