"""Says in which lines of Python a function is checked, for a word such as `my.py:loss` in an experiment's place."""

from __future__ import annotations

import re
from pathlib import Path

from runner.graph.language import python_source

_WORD = re.compile(r"(?P<file>.*\.py)(?::(?P<function>\w+))?")
_SPEC = re.compile(r"\bP(?:artitionSpec)?\(([^()]*)\)")


def call(word: str) -> str | None:
    """Return the message for the name of a file of Python, with the lines to write; None for any other word."""
    match = _WORD.fullmatch(word)
    if match is None:
        return None
    file = Path(match["file"])
    try:
        text = file.read_text(encoding="utf-8")
        functions = python_source.parameters(text)
    except (OSError, ValueError, SyntaxError):
        return "this is no file of Python that can be read; runner.check, in Python, checks a function"
    name = match["function"] or next(iter(functions), None)
    if name not in functions:
        known = f"; it has {', '.join(functions)}" if functions else ""
        return f"{file} has no function{f' {name!r}' if name else ''}{known}"
    operands = functions[name]
    axes = dict.fromkeys(re.findall(r"['\"](\w+)['\"]", " ".join(_SPEC.findall(text)))) or {"x": None}
    mesh = ", ".join(f'"{axis}": 2' for axis in axes)
    lines = (
        "import runner",
        "from jax.sharding import PartitionSpec as P",
        f"from {file.stem} import {name}",
        f"runner.check({name}, {_tuple(operands)}, mesh={{{mesh}}}, in_specs={_tuple(['P()'] * len(operands))})",
    )
    says = "a function is checked in Python, where its operands are, with a spec for each; write"
    return "\n    ".join((says, *lines))


def _tuple(items: list[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
