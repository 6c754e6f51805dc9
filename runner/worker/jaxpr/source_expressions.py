"""Spells the equations of a jaxpr as the expressions of the user's Python that compute their values.

Equations of one expression are consecutive: `jnp.mean(x)` is a sum and a quotient. Those of its values that it does not
read itself are what the expression gives.
"""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from runner.base.lazy import dataclass
from runner.worker.versions import UserFrame, user_frame

_LONGEST = 80
"""The longest source of an expression, in characters, that is shown in whole."""

_TARGETS = re.compile(r"\s*(?P<names>\w+(?:\s*,\s*\w+)*)\s*(?::[^=]+)?=\s*\(?\s*")
"""What stands before an expression whose values a line assigns."""


@dataclass(frozen=True)
class SourceOf:
    """How the source spells a value: the `text` of its expression, the `variable` that it is assigned to, or both."""

    text: str = ""
    variable: str = ""


def spelled(equations: Sequence[Any], read: Sequence[Collection[Any]]) -> Mapping[Any, SourceOf]:
    """How the source spells the variables of equations; `read` are the variables that each of them reads."""
    sources: dict[Any, SourceOf] = {}
    frames = [_frame(equation) for equation in equations]
    for frame, run in itertools.groupby(range(len(equations)), key=lambda at: frames[at]):
        if frame is None:
            continue
        run = [*run]
        inside = {variable for at in run for variable in read[at]}
        given = [variable for at in run for variable in equations[at].outvars if variable not in inside]
        text, variables = _source(frame)
        if not text:
            continue
        if len(given) == 1:
            sources[given[0]] = SourceOf(text, variables[0] if len(variables) == 1 else "")
        elif len(given) == len(variables):
            sources.update((value, SourceOf("", name)) for value, name in zip(given, variables, strict=True))
    return sources


def position(equation: Any) -> tuple[Any, str]:
    """Where an equation is in Python, down to a library's own code: equal ones are of one expression that ran again."""
    return equation.source_info.traceback, equation.primitive.name


def is_derivative(equation: Any) -> bool:
    """Whether an equation may be of a derivative: it has the place of what is differentiated, `cos(x)` of `sin(x)`."""
    stack = str(equation.source_info.name_stack)
    return "transpose(" in stack or "jvp(" in stack


def _frame(equation: Any) -> UserFrame | None:
    """The place of an equation's expression; None where it may be of a derivative."""
    if is_derivative(equation):
        return None
    frame = user_frame(equation.source_info)
    return frame if frame is not None and frame.last_column > 0 else None


def _source(frame: UserFrame) -> tuple[str, tuple[str, ...]]:
    """The source at a place, on one line, and the variables that its line assigns it to."""
    lines = [linecache.getline(frame.file, number).encode() for number in range(frame.line, frame.last_line + 1)]
    if not lines or not all(lines):
        return "", ()
    before, after = lines[0][: frame.column], lines[-1][frame.last_column :]
    lines[-1] = lines[-1][: frame.last_column]
    lines[0] = lines[0][frame.column :]
    text = re.sub(r"\s+", " ", b" ".join(lines).decode(errors="replace")).strip()
    targets = _TARGETS.fullmatch(before.decode(errors="replace"))
    whole = after.decode(errors="replace").partition("#")[0].strip() in ("", ")")
    names = tuple(re.split(r"\s*,\s*", targets["names"])) if targets is not None and whole else ()
    return (text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"), names
