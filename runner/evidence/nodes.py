"""JAX's name stacks in; the lines of the experiment that they lead back to out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from runner.experiment import Experiment, Loop, Section, Statement
from runner.programs.source import Names

_WRAPPED = re.compile(r"^(?:[\w.]+\()*([^()]*)\)*$")
"""What JAX's transformations wrap a scope in: `jvp(C)`, `transpose(jvp(vmap(C)))`."""

_FUNCTION = re.compile(r"\bp?jit\([^()]*\)*$")
"""The name of a function, which is none of a line, though a line may have the same."""

_PRIMITIVES = frozenset(
    {"psum", "psum_invariant", "psum2", "pmax", "pmin", "ppermute", "pbroadcast", "all_to_all", "ragged_all_to_all"}
    | {"all_gather", "all_gather_invariant", "all_gather_reduced", "reduce_scatter", "psum_scatter", "unreduced_psum"}
    | {"unreduced_reduce_scatter", "pgather", "psend", "precv", "pcollectivebroadcast", "all_gather_start"}
)
"""JAX's collective primitives: what stands last in the name of a collective that the program itself asks for."""


@dataclass(frozen=True)
class Origin:
    """Where an operation comes from: its line (`C`, `ring.lhs`, an array), and what JAX made of it."""

    node: str
    primitive: str
    gradient: bool

    @property
    def written(self) -> bool:
        """Whether the operation is a collective of the program's own."""
        return self.primitive in _PRIMITIVES


Scope = Mapping[str, "Scope | None"]
"""The scopes that may stand in a name stack: a loop's name with those of its body, a node's with None."""


class Origins:
    """The lines of one section, by JAX's name stacks."""

    def __init__(self, experiment: Experiment, section: Section) -> None:
        gradients = experiment.grad.names if experiment.grad else ()
        self._scope = _scope(experiment.section(section)) | dict.fromkeys(gradients)
        names = Names(experiment)
        self._arrays = {names[array.name]: array.name for array in experiment.arrays}
        self.of = lru_cache(maxsize=None)(self._of)

    def _of(self, op_name: str) -> tuple[Origin, ...]:
        """The origins of an instruction; several where the compiler merged operations. Empty where it does not say."""
        found = [origin for stack in op_name.split(";") if (origin := self._origin(stack)) is not None]
        return tuple(dict.fromkeys(found))

    def _origin(self, stack: str) -> Origin | None:
        if stack in self._arrays:
            return Origin(self._arrays[stack], "", False)
        parts = stack.split("/")
        path: list[str] = []
        scope: Scope = self._scope
        skip = False
        for part, following in zip(parts, [*parts[1:], ""], strict=True):
            if skip:
                skip = False
                continue
            # A loop of JAX's own stands between a repeat and its body.
            skip = bool(path) and part == "while" and following in ("body", "cond")
            if skip:
                continue
            name = _unwrapped(part)
            if name not in scope:
                continue
            path.append(name)
            inner = scope[name]
            if inner is None:
                break
            scope = inner
        if not path:
            return None
        gradient = any(part.startswith("transpose(") for part in parts)
        return Origin(".".join(path), parts[-1], gradient)


def _unwrapped(part: str) -> str:
    if _FUNCTION.search(part):
        return ""
    found = _WRAPPED.match(part)
    return found.group(1) if found else part


def _scope(statements: Sequence[Statement]) -> dict[str, Scope | None]:
    return {statement.name: _scope(statement.body) if isinstance(statement, Loop) else None for statement in statements}
