"""Finds the statement of a user's file that passes a value on as it is: `back = out`, `return y`, `return a, out`.

Where something was left out, no operation comes from the line at which it belongs, only the value before it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from runner.graph.source import Frame


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
    """The statement of the function of a line that gives a name the value of another one as it is: `top = new`."""
    function = function_at(frame.file, frame.line)
    statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt)] if function else []
    giving = (node for node in statements if name in assigned(node) and _passed(node) and node.lineno != frame.line)
    return next((frame_of(frame.file, node.lineno) for node in giving), None)


def passing_to(frame: Frame) -> Iterator[Frame]:
    """The statements before a line that give names which it reads the values of others as they are."""
    function = function_at(frame.file, frame.line)
    statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt)] if function else []
    around = [node for node in statements if node.lineno <= frame.line <= end_of(node)]
    inside = ast.walk(max(around, key=lambda node: node.lineno)) if around else ()
    read = {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for node in statements:
        if node.lineno < frame.line and _passed(node) and not read.isdisjoint(assigned(node)):
            yield frame_of(frame.file, node.lineno)


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
def _functions(file: str) -> tuple[ast.FunctionDef, ...]:
    try:
        tree = ast.parse(_text(file))
    except SyntaxError:
        # It has changed since it was imported.
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def function_at(file: str, line: int) -> ast.FunctionDef | None:
    """The innermost function that has a line."""
    around = [node for node in _functions(file) if node.lineno <= line <= end_of(node)]
    return max(around, key=lambda node: node.lineno, default=None)


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
            parts = value.elts if isinstance(value, ast.Tuple) else [value]
            return {part.id for part in parts if isinstance(part, ast.Name)}
        case _:
            return set()
