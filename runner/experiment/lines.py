"""The statements of a section as they are read: lines, repeats, calls of functions and choices.

Only the readers of YAML and of traced functions know them; `runner/experiment/graphs.py` makes a graph of them.
"""

from __future__ import annotations

from typing import TypeAlias

from runner.base.lazy import dataclass
from runner.graph.language.syntax import Expression
from runner.graph.model import Region
from runner.graph.source import Checkpoint, FunctionCall, Line


@dataclass(frozen=True)
class Node:
    """A line with its expression, in the names of the lines around it."""

    line: Line
    expression: Expression


@dataclass(frozen=True)
class Invocation:
    """A call of a function of the experiment's own, or of a lambda that a choice selects.

    - `call`: the function, its arguments and its results, in the names around it.
    - `body`: its lines; `gives`: the lines of its results, one each. Both are in the function's own names.
    """

    call: FunctionCall
    body: tuple[Statement, ...]
    gives: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """A call of `cond` or `switch`.

    - `call`: its argument is the predicate or index; `branches`: in JAX's order.
    - `gives`: for each result the line that selects one branch's value where all are computed.
    """

    call: FunctionCall
    branches: tuple[Invocation, ...]
    gives: tuple[Node, ...]


@dataclass(frozen=True)
class Loop:
    """A repeat: `body` runs `steps` times over the carried values; then `name.carry` are names.

    With a `region` it is a `shard_map`: `body` runs once on all devices, on the shards of what it is `over`, and the
    shards of what the `stack` names are joined to the results. Without a number of steps it is a `while`, which takes a
    step as long as the carried value `going` is true, and has no index.

    - `over`: for a name in the body, the array of which it is a slice in each step, along the first dimension.
    - `stack`: the names of the stacked results, each with its name in the body.
    - `checkpoint`: what is kept of a step for the backward pass; None: everything.
    - `counted`: the lines from which its number of steps is computed.
    """

    line: Line
    steps: int | None
    index: str
    carry: tuple[tuple[str, Expression], ...]
    body: tuple[Statement, ...]
    unroll: bool
    over: tuple[tuple[str, Expression], ...] = ()
    stack: tuple[tuple[str, str], ...] = ()
    checkpoint: Checkpoint | None = None
    counted: frozenset[str] = frozenset()
    region: Region | None = None
    going: str = ""

    @property
    def bound(self) -> tuple[str, ...]:
        """The names that its body starts with, the index last where it has one."""
        given = tuple(name for name, _ in (*self.carry, *self.over))
        return given if self.region is not None or self.going else (*given, self.index)

    @property
    def results(self) -> tuple[str, ...]:
        """The results after the last step: the carried names, then the stacked ones."""
        return tuple(name for name, _ in (*self.carry, *self.stack))


Statement: TypeAlias = "Node | Loop | Invocation | Choice"
"""The statements of a section or a function."""
