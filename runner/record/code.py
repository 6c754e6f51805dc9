"""The text of a program's file in; its function `program`, as it stands there, out.

The file is Python's, with whatever a user may have changed in it since: so it is Python that parses it.
"""

from __future__ import annotations

import ast


def function(text: str) -> str | None:
    """The lines of the function `program`; None where the file has none.

    Raises `SyntaxError` or `ValueError` for what is no Python.
    """
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == "program":
            return "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
    return None
