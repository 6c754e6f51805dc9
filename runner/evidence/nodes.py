"""JAX's name stacks in; the lines of the experiment that they lead back to out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from runner.experiment.model import Experiment, Flat, Loop, Section
from runner.language.operations import OPERATIONS
from runner.programs.names import Names

_WRAPPED = re.compile(r"^(?:[\w.]+\()*([^()]*)\)*$")
"""What JAX's transformations wrap a scope in: `jvp(C)`, `transpose(jvp(vmap(C)))`."""

_FUNCTION = re.compile(r"\bp?jit\([^()]*\)*$")
"""The name of a function, which is none of a line, though a line may have the same."""

PRIMITIVES = frozenset(
    {"pgather", "psend", "precv"}
    | {primitive for row in OPERATIONS.values() if row.over is not None for primitive in row.over.primitives}
)
"""JAX's collective primitives: what stands last in the name of a collective that the program itself asks for.

Some the table's operations lower to, some none does.

Source: jax/_src/lax/parallel.py, where those that begin an asynchronous one end in `_start`.
"""


@dataclass(frozen=True)
class Origin:
    """Where an operation comes from: its line (`C`, `ring.lhs`, an array), and what JAX made of it."""

    node: str
    primitive: str
    gradient: bool


def stacks(op_name: str) -> list[str]:
    """The name stacks in the name of an instruction: several where the compiler merged instructions.

    `a/b;a/c` of two that computed the same, `a/(b:c)` of two that became one collective (openxla/xla#40903).
    """
    opened = re.search(r"(?:^|/)\(", op_name)
    if opened is None or not op_name.endswith(")"):
        return op_name.split(";")
    before, inside = op_name[: opened.end() - 1], op_name[opened.end() : -1]
    return [stack for part in _parts(inside) for stack in stacks(before + part)]


def _parts(text: str) -> list[str]:
    """What stands between the colons that no parenthesis encloses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == ":" and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def asked(stack: str) -> bool:
    """Whether a name stack names a collective that the program asks for: a line does, or JAX's differentiation."""
    scopes, _, primitive = stack.rpartition("/")
    return bool(scopes) and primitive.removesuffix("_start") in PRIMITIVES


def backward(stack: str) -> bool:
    """Whether a name stack belongs to a backward pass."""
    return any(part.startswith("transpose(") for part in stack.split("/"))


def again(stack: str) -> bool:
    """Whether a name stack belongs to what `jax.checkpoint` computes again in a backward pass."""
    return "rematted_computation" in stack.split("/")


NestedScopes: TypeAlias = "Mapping[str, tuple[str, NestedScopes]]"
"""The scopes that may stand in a name stack, each with its line and the scopes that may stand inside it."""


class Origins:
    """The lines of one section, by JAX's name stacks."""

    def __init__(self, experiment: Experiment, section: Section) -> None:
        gradients = experiment.grad.names if experiment.grad else ()
        of_gradients: dict[str, tuple[str, NestedScopes]] = {name: (name, {}) for name in gradients}
        self._scope = _scope(experiment.lines(section)) | of_gradients
        names = Names(experiment)
        self._arrays = {names[array.name]: array.name for array in experiment.arrays}
        self._automatic = frozenset(experiment.automatic if section == "per_device" else ())
        self.of = lru_cache(maxsize=None)(self._of)

    def leave(self, axes: Iterable[str]) -> bool:
        """Whether the lines leave some axes, all of them, to the compiler."""
        over = frozenset(axes)
        return bool(over) and over <= self._automatic

    def _of(self, op_name: str) -> tuple[Origin, ...]:
        """The origins of an instruction; several where the compiler merged operations. Empty where it does not say."""
        origins = [origin for stack in stacks(op_name) if (origin := self._origin(stack)) is not None]
        return tuple(dict.fromkeys(origins))

    def lost(self, op_name: str) -> list[str]:
        """The name stacks of collectives that the program asks for in no line."""
        return [stack for stack in stacks(op_name) if asked(stack) and self._origin(stack) is None]

    def tells(self, op_name: str) -> bool:
        """Whether a name leads to a line, or to a collective that the program asks for."""
        return bool(self.of(op_name)) or bool(self.lost(op_name))

    def _origin(self, stack: str) -> Origin | None:
        if stack in self._arrays:
            return Origin(self._arrays[stack], "", False)
        parts = stack.split("/")
        line, scope = None, self._scope
        skip = False
        for part, following in zip(parts, [*parts[1:], ""], strict=True):
            if skip:
                skip = False
                continue
            # A loop of JAX's own stands between a repeat and its body, which may have lines of these names.
            skip = part == "while" and following in ("body", "cond")
            if skip:
                continue
            line, scope = scope.get(_unwrapped(part), (line, scope))
        return None if line is None else Origin(line, parts[-1], backward(stack))


def _unwrapped(part: str) -> str:
    if _FUNCTION.search(part):
        return ""
    match = _WRAPPED.match(part)
    return match.group(1) if match else part


def _scope(statements: Sequence[Flat], within: int = 0) -> dict[str, tuple[str, NestedScopes]]:
    """The scopes of some lines, without as many as are around them."""
    scopes: dict[str, Any] = {}
    for statement in statements:
        *around, own = statement.line.scopes[within:]
        here = scopes
        for scope in around:
            # What is a scope of no line belongs to the first line inside it.
            here = here.setdefault(scope, (str(statement.line), {}))[1]
        inside = _scope(statement.body, len(statement.line.scopes) - 1) if isinstance(statement, Loop) else {}
        known = here.get(own, ("", {}))[1]
        here[own] = str(statement.line), {**known, **inside}
    return scopes
