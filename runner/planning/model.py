"""What is to be laid out, as data: arrays and values of a graph, operations on them, what passes between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from runner.derivation.rules import Rule
from runner.layout import Spec
from runner.planning.prices import Work


@dataclass
class Tensor:
    """An array, or a value of the graph, that lies in one layout.

    - `name`: what a line or the file calls it, "" where nothing does; `line`: the path of the line that gives it.
    - `spec`: the layout that the file gives it; None where the plan finds one. `whole_first`: its first dimension is
      whole, since a repeat takes slices along it or stacks them.
    - `steps`: how often it is computed in a run; `copies`: how many arrays and outputs lie as it does.
    - `readers`: how many operations read it.
    """

    name: str
    line: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    spec: Spec | None = None
    whole_first: bool = False
    steps: int = 1
    copies: int = 0
    readers: int = 0
    differentiated: bool = False


@dataclass(frozen=True)
class Operand:
    """A tensor that an operation reads, by its number; `place`: its argument's, None where it has to be whole.

    `stored`: whether it is read from memory for this operation, and not left on the chip by the one before.
    """

    tensor: int
    place: str | None
    stored: bool


@dataclass
class Operation:
    """One operation of a line, with the rule that covers it.

    - `called`: its name; `work`: what its products compute; `stored`: whether its result goes to memory.
    - `results`: its tensors; `steps`: how often it runs; `differentiated`: whether a backward pass runs through it.
    """

    called: str
    line: str
    rule: Rule
    operands: tuple[Operand, ...]
    results: tuple[int, ...]
    steps: int
    work: Work = field(default_factory=Work)
    stored: bool = False
    differentiated: bool = False


Passing: TypeAlias = Literal["as it is", "slice", "stack"]


@dataclass(frozen=True)
class Transfer:
    """A tensor that becomes another one: as it is, as its slices along the first dimension, or stacked along one."""

    before: int
    after: int
    kind: Passing
    line: str
    steps: int


@dataclass
class Layable:
    """All of it.

    - `free`: the tensors whose layouts are asked for, by the keys of the file: `arrays.w1.spec`.
    - `named`: the tensors of the graph's lines, by the names that `constraints` may use.
    - `notes`: what is not known, and so is taken to be whole, or to cost nothing.
    """

    tensors: list[Tensor] = field(default_factory=list[Tensor])
    operations: list[Operation] = field(default_factory=list[Operation])
    transfers: list[Transfer] = field(default_factory=list[Transfer])
    free: dict[str, int] = field(default_factory=dict[str, int])
    named: dict[str, int] = field(default_factory=dict[str, int])
    notes: list[str] = field(default_factory=list[str])

    def note(self, what: str) -> None:
        """Say something once."""
        if what not in self.notes:
            self.notes.append(what)
