"""The text of a program's file in; the source of its function `program` out.

Users may have edited the file with any Python syntax, so Python itself parses it.
"""

from __future__ import annotations

import ast


def function(text: str) -> str | None:
    """Return the source lines of the function `program`; None if the file has none.

    Raises `SyntaxError` or `ValueError` if the text is not Python.
    """
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == "program":
            return "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
    return None
