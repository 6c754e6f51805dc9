"""Reads Python text: its names, functions, fields, products, and the statements that pass values and numbers on.

For text that is no expression of the language: programs, a PartitionSpec, a condition. It needs no table of operations,
so it is imported quickly. Where a line was left out, or Python computes a number, no operation comes from that line:
only its text tells.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from runner.base.lazy import dataclass
from runner.graph.source import Frame

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


def passed_on(frame: Frame) -> Frame | None:
    """The first statement after a line that passes on, as it is, the value that the line gives a name."""
    function = function_at(frame.file, frame.line)
    if function is None:
        return None
    statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt)]
    names = [name for node in statements if node.lineno <= frame.line <= end_of(node) for name in assigned(node)]
    if not names:
        return None
    later = sorted((node for node in statements if node.lineno > frame.line), key=lambda node: node.lineno)
    passing = next((node for node in later if any(name in _passed(node) for name in names)), None)
    return None if passing is None else frame_of(frame.file, passing.lineno)


def given_as_it_is(frame: Frame, name: str) -> Frame | None:
    """The statement of the function of a line that gives a name the value of another one as it is: `top = new`.

    A step of a loop may read the value by another name than that by which the step before gave it: `last, v = v, new`.
    """
    function = function_at(frame.file, frame.line)
    statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt)] if function else []
    read = _names_read(_statement_at(statements, frame.line))
    for node in statements:
        passed, given = _passed(node), {*assigned(node)}
        if node.lineno != frame.line and passed and (name in given or (name in passed and not read.isdisjoint(given))):
            return frame_of(frame.file, node.lineno)
    return None


def returned_as_it_is(frame: Frame, name: str) -> Frame | None:
    """The return of the function of a line that gives a value as it is: `return k, out` of the body of a loop."""
    function = function_at(frame.file, frame.line)
    returns = [node for node in ast.walk(function) if isinstance(node, ast.Return)] if function else []
    return next((frame_of(frame.file, node.lineno) for node in returns if name in _passed(node)), None)


def passing_to(frame: Frame) -> Iterator[Frame]:
    """The statements before a line that give names which it reads the values of others as they are."""
    function = function_at(frame.file, frame.line)
    statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt)] if function else []
    read = _names_read(_statement_at(statements, frame.line))
    for node in statements:
        if node.lineno < frame.line and _passed(node) and not read.isdisjoint(assigned(node)):
            yield frame_of(frame.file, node.lineno)


def _statement_at(statements: Sequence[ast.stmt], line: int) -> list[ast.AST]:
    """The parts of the innermost of some statements that has a line."""
    around = (node for node in statements if node.lineno <= line <= end_of(node))
    innermost = max(around, key=lambda node: node.lineno, default=None)
    return [] if innermost is None else [*ast.walk(innermost)]


def _names_read(parts: Sequence[ast.AST]) -> set[str]:
    return {node.id for node in parts if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def end_of(node: ast.stmt) -> int:
    """The last line of a statement."""
    return node.end_lineno or node.lineno


def frame_of(file: str, line: int) -> Frame:
    """The line of a file with this number."""
    return Frame(file, line, _text(file).splitlines()[line - 1].strip())


@functools.lru_cache(maxsize=64)
def _text(file: str) -> str:
    """The text of a file; empty where it is not there, as for a cell of a notebook."""
    path = Path(file)
    return path.read_text("utf-8") if path.is_file() else ""


@functools.lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module:
    """The syntax tree of a file; empty where it is no Python, as after a change since it was imported."""
    try:
        return ast.parse(_text(file))
    except SyntaxError:
        return ast.Module([], [])


@functools.lru_cache(maxsize=64)
def _functions(file: str) -> tuple[ast.FunctionDef, ...]:
    return tuple(node for node in ast.walk(_tree(file)) if isinstance(node, ast.FunctionDef))


def functions_at(file: str, line: int) -> list[ast.FunctionDef]:
    """The functions that have a line, the innermost first."""
    around = (node for node in _functions(file) if node.lineno <= line <= end_of(node))
    return sorted(around, key=lambda node: -node.lineno)


def function_at(file: str, line: int) -> ast.FunctionDef | None:
    """The innermost function that has a line."""
    return next(iter(functions_at(file, line)), None)


def assigned(node: ast.stmt) -> Iterator[str]:
    """The names that a statement without statements inside gives values."""
    match node:
        case ast.Assign(targets=targets):
            for target in targets:
                yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
            yield name
        case _:
            return


def _passed(node: ast.stmt) -> set[str]:
    """The names whose values a statement passes on as they are."""
    match node:
        case ast.Assign(value=value) | ast.Return(value=value):
            return {part.id for part in _elements(value) if isinstance(part, ast.Name)}
        case _:
            return set()


def _elements(value: ast.expr | None) -> Iterator[ast.expr]:
    """What a tuple consists of, through those in it; of another expression itself, without what only lays it out."""
    match value:
        case ast.Tuple(elts=parts):
            for part in parts:
                yield from _elements(part)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[part, *_]) if name in _LAYING_OUT:
            yield from _elements(part)
        case None:
            return
        case _:
            yield value


_LAYING_OUT = {"reshard", "with_sharding_constraint", "device_put", "pcast", "pvary", "checkpoint_name"}
"""The names of JAX's functions that give the values which they are given, laid out otherwise or marked."""


@dataclass(frozen=True)
class Given:
    """The statement that gives a name, by its first line; `last`: the number of its last line.

    `passed`: the names whose values it gives as they are; `spelled`: the number that it spells, if it does.
    """

    name: str
    frame: Frame
    last: int
    passed: frozenset[str]
    spelled: float | None = None


@dataclass(frozen=True)
class Reading:
    """What a line reads: the statements that give its names, and the numbers that its source spells."""

    given: tuple[Given, ...]
    spelled: frozenset[float]


def reading(frame: Frame) -> Reading:
    """Return what a line of a function reads that a statement before it, in the function or in one around it, gives;
    nothing where the file is not there.
    """
    given: dict[str, Given] = {}
    inside: list[ast.AST] = []
    for function in functions_at(frame.file, frame.line):
        statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]
        inside = inside or _statement_at(statements, frame.line)
        names, own = _names_read(inside), dict[str, Given]()
        for node in sorted(statements, key=lambda node: node.lineno):
            for name in assigned(node) if node.lineno < frame.line else ():
                if name in names:
                    at = frame_of(frame.file, node.lineno)
                    own[name] = Given(name, at, end_of(node), frozenset(_passed(node)), _number_of(node))
        given = {**own, **given}
    numbers = (node.value for node in inside if isinstance(node, ast.Constant))
    return Reading(tuple(given.values()), frozenset(float(n) for n in numbers if isinstance(n, int | float)))


def _number_of(node: ast.stmt) -> float | None:
    """The number that a statement spells as the value of a name."""
    match node:
        case ast.Assign(value=ast.Constant(value=int() | float() as number)):
            return float(number)
        case _:
            return None


def passed_by_rules(frame: Frame) -> Iterator[Frame]:
    """The statements of the backward rules of what a line calls that pass on, as they are, what they are given."""
    rules = _backward_rules(frame.file)
    statements = [node for node in ast.walk(_tree(frame.file)) if isinstance(node, ast.stmt)] if rules else []
    for name in sorted(_names_read(_statement_at(statements, frame.line)) & rules.keys()):
        for node in ast.walk(rules[name]):
            if isinstance(node, ast.Return) and _passed(node):
                yield frame_of(frame.file, node.lineno)


_DERIVATIVES = {"grad", "value_and_grad", "vjp", "linearize", "jacrev"}
"""The names of JAX's functions that differentiate the function which they are given first."""


def differentiated(frame: Frame) -> Frame | None:
    """The line that takes the derivative of a function in which a line is."""
    around = functions_at(frame.file, frame.line)
    for function, scope in zip(around, (*around[1:], _tree(frame.file)), strict=True):
        for node in ast.walk(scope):
            match node:
                case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[ast.Name(id=of), *_]):
                    if name in _DERIVATIVES and of == function.name:
                        return frame_of(frame.file, node.lineno)
                case _:
                    pass
    return None


@functools.lru_cache(maxsize=64)
def _backward_rules(file: str) -> Mapping[str, ast.FunctionDef]:
    """The functions of a file that are the backward rules of others, by the names of these."""
    functions, rules = {node.name: node for node in _functions(file)}, dict[str, ast.FunctionDef]()
    for node in ast.walk(_tree(file)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="defvjp"), args=[_, ast.Name(id=rule), *_]):
                if rule in functions:
                    rules[name] = functions[rule]
            case _:
                pass
    return rules


def around_products(source: str, function: str, arguments: Mapping[int, Sequence[str]]) -> str:
    """The source with each product of some lines in a call of a function, with a second argument.

    `arguments`: for each line the second arguments of its products, in the order in which they are computed; more than
    the line has are of a backward pass. Of a line without products the call of a layer is wrapped, if there is one
    and it computes one product. What is no Python stays as it is.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source
    starts = _starts(source)
    products = [node for node in ast.walk(tree) if _is_product(node)]
    inserted: list[tuple[int, int, bytes]] = []
    for line, texts in arguments.items():
        nodes: list[Any] = sorted(
            (node for node in products if getattr(node, "lineno", 0) == line), key=lambda node: _span(node, starts)[1]
        )
        if not nodes and len(texts) <= _OF_LAYER:
            nodes = _layers(tree, line)
        for node, text in zip(nodes, texts, strict=False):
            start, end = _span(node, starts)
            inserted += [(start, -end, f"{function}(".encode()), (end, -start, f", {text})".encode())]
    text = source.encode()
    for at, _, piece in sorted(inserted, reverse=True):
        text = text[:at] + piece + text[at:]
    return text.decode()


def _is_product(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    if isinstance(node, ast.Call):
        # Whatever module the function is of. The table takes long to import, and configurations need this module.
        from runner.graph.language.operations import row_of

        row = row_of(getattr(node.func, "attr", getattr(node.func, "id", "")))
        return row.contraction is not None or (row.multiply_adds is not None and row.costly)
    return False


_OF_LAYER = 3
"""The products of a layer: its own, and those of the gradients of its operands."""


def _layers(tree: ast.AST, line: int) -> list[Any]:
    """The call of a layer on a line: `nn.Dense(8)(x)`, else `self.dense(x)`, else its only call; none of several."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.lineno == line]
    made = [node for node in calls if isinstance(node.func, ast.Call)]
    own = [node for node in calls if isinstance(node.func, ast.Attribute) and _is_self(node.func.value)]
    kinds = [kind for kind in (made, own, calls) if kind]
    return kinds[0] if kinds and len(kinds[0]) == 1 else []


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _starts(source: str) -> list[int]:
    """The number of bytes before each line."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    return starts


def _span(node: Any, starts: Sequence[int]) -> tuple[int, int]:
    """The half-open span of bytes of a node."""
    first, last = int(node.lineno), int(node.end_lineno)
    return starts[first - 1] + int(node.col_offset), starts[last - 1] + int(node.end_col_offset)
