"""Holds the tensors, operations and transfers that a plan is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal, TypeAlias

from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.compiled.estimate.prices import Work
from runner.graph.source import Checkpoint, Frame
from runner.programs.derivation.rules import Rule


@dataclass
class Tensor:
    """An array, or a value of the graph, with one layout.

    - `name`: its name in a line or in the file, "" if it has none; `line`: the path of the line that computes it.
    - `spec`: the layout that the file gives, None if the plan chooses it.
    - `whole_first`: whether its first dimension is whole, since a repeat slices it or stacks along it.
    - `steps`: how often it is computed in a run; `copies`: the number of arrays and outputs with its layout, and
      `outputs` that of outputs.
    - `readers`: the number of operations that read it.
    - `differentiated`: whether the backward pass runs through it.
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
    outputs: int = 0
    readers: int = 0
    differentiated: bool = False


@dataclass(frozen=True)
class Operand:
    """An operand of an operation, by the number of its tensor.

    - `place`: its place among the arguments; None if it must be whole.
    - `stored`: whether it is read from memory, rather than fused with the operation before.
    """

    tensor: int
    place: str | None
    stored: bool


@dataclass
class RuledOperation:
    """One operation of a line, with the rule that covers it.

    - `called`: its name; `number`: that of its result in the graph.
    - `work`: the flops of its products; `stored`: whether its result is written to memory.
    - `results`: the numbers of its tensors; `steps`: how often it runs.
    - `differentiated`: whether the backward pass runs through it.
    - `inside`: the bytes of a value between its products, such as an attention's weights, on all devices together.
    - `region`: the number of the `checkpoint` around it; `names_result`: the name that `checkpoint_name` gives.
    - `recomputed`: the number of the last operation of this checkpoint, if the backward pass computes it again.
    """

    called: str
    number: int
    line: str
    rule: Rule
    operands: tuple[Operand, ...]
    results: tuple[int, ...]
    steps: int
    work: Work = field(default_factory=Work)
    stored: bool = False
    differentiated: bool = False
    inside: float = 0.0
    region: int | None = None
    names_result: str = ""
    recomputed: int | None = None


Passing: TypeAlias = Literal["as it is", "slice", "stack"]


@dataclass(frozen=True)
class Transfer:
    """A tensor that is passed on: unchanged, as slices along its first dimension, or stacked along a new one."""

    before: int
    after: int
    kind: Passing
    line: str
    steps: int


@dataclass
class Layable:
    """The tensors, operations and transfers to lay out.

    - `free`: the tensors whose layouts are wanted, by the file's keys: `arrays.w1.spec`.
    - `arrays`: the tensors of the file's arrays, with the names of their dimensions in the file.
    - `states`: the results that are the next values of arrays, with these: the next call takes them as it takes the
      arrays.
    - `values`: the tensors of the graph's values, by number; None for a value that is no array.
    - `named`: the tensors of the graph's lines, by the names that `constraints` may use; `inside`: of lines in loops.
    - `paths`: the paths of the leaves of trees, by the names of their arrays and outputs; `frames`: the lines of the
      user's Python, by the paths of the graph's lines.
    - `forward`: the number of operations before the first one that reads a gradient; None if none does.
    - `checkpoints`: the policies that save values for the backward pass.
    - `loops`: the first and the last operation of each loop, by its line's path.
    - `gradients`: the operations that read the gradient of an array, by the number of the array's tensor.
    - `notes`: what is unknown, and therefore taken as whole or free of cost.
    """

    tensors: list[Tensor] = field(default_factory=list[Tensor])
    operations: list[RuledOperation] = field(default_factory=list[RuledOperation])
    transfers: list[Transfer] = field(default_factory=list[Transfer])
    free: dict[str, int] = field(default_factory=dict[str, int])
    named: dict[str, int] = field(default_factory=dict[str, int])
    inside: dict[str, int] = field(default_factory=dict[str, int])
    arrays: dict[int, tuple[str | None, ...]] = field(default_factory=dict[int, tuple[str | None, ...]])
    states: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    values: dict[int, tuple[int, ...] | None] = field(default_factory=dict[int, tuple[int, ...] | None])
    paths: Mapping[str, str] = field(default_factory=dict[str, str])
    frames: dict[str, Frame] = field(default_factory=dict[str, Frame])
    forward: int | None = None
    checkpoints: Sequence[Checkpoint] = ()
    loops: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    gradients: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    notes: list[str] = field(default_factory=list[str])

    def label(self, tensor: int) -> str:
        """The name of a tensor in the user's words: of an array or a line, the path of a leaf, or `mlp.py:12`."""
        name, line = self.tensors[tensor].name, self.tensors[tensor].line
        if name in self.paths:
            return self.paths[name]
        return self.place(line) if line in self.frames else name or "a part"

    def place(self, line: str) -> str:
        """The place of a line: `mlp.py:12` in a Python function of the user's, else its path."""
        return self.frames[line].place if line in self.frames else self.paths.get(line, line)

    def written(self, line: str) -> str:
        """A line as the user wrote it, with its place: `mlp.py:12 y = h @ w`; outside Python its path."""
        return str(self.frames[line]) if line in self.frames else self.paths.get(line, line)

    def note(self, what: str) -> None:
        """Add a note, unless it is there already."""
        if what not in self.notes:
            self.notes.append(what)
