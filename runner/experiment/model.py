"""One frozen `Experiment`, which every room reads: its arrays, its statements, its outputs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from runner import dtypes
from runner.experiment import expect
from runner.experiment.hardware import Hardware
from runner.experiment.program import Program
from runner.experiment.showing import Show
from runner.experiment.topology import Topology
from runner.faults import Key
from runner.language.check import Section
from runner.language.syntax import Expression
from runner.layout import Layout, Mesh, Spec

PRECISIONS = ("default", "high", "highest", "bfloat16", "tensorfloat32", "float32")


PLATFORMS = ("cpu", "gpu", "tpu")


@dataclass(frozen=True)
class Array:
    """A named operand. `init` is an expression, or a number or nested list taken literally."""

    name: str
    layout: Layout
    dims: tuple[str | None, ...]
    dtype: str
    init: Expression | Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""
        return self.layout.shape


@dataclass(frozen=True)
class Call:
    """A call of a function of the experiment's own, in the place of which the function's lines stand.

    - `label`: what the lines around it call its result; `results`: the names there of all that it gives.
    - `arguments`: for each parameter that is given a value, the name there of that value.
    """

    function: str
    label: str
    results: tuple[str, ...]
    arguments: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Origin:
    """Where a line is written.

    - `key`: in the configuration; `uses`: the lines that call the function that it stands in, innermost first.
    - `calls`: the calls in the place of which it stands, outermost first; `label`: its name in the function.
    - `result`: whether it is what the innermost call gives, and has no scope of its own.
    - `gives`: into how many names the lines after it take its value apart; 0: into none.
    """

    key: Key
    uses: tuple[Key, ...] = ()
    calls: tuple[Call, ...] = ()
    label: str = ""
    result: bool = False
    gives: int = 0


@dataclass(frozen=True)
class Line:
    """The identity of a line of a section, or of what a carried name of a repeat starts as, which is its `first`.

    `loops` are the repeats that it stands in, outermost first. Printed it is as evidence and messages have it: `C`,
    `ring.acc`. `origin` is where it is written, which is no part of its identity; None for a line that is the house's.
    """

    name: str
    loops: tuple[str, ...] = ()
    first: bool = False
    origin: Origin | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return ".".join((*self.loops, self.name))

    @cached_property
    def key(self) -> Key:
        """Where it stands in the section: `("ring", "body", "acc")`."""
        within = ["body"] * (len(self.loops) - 1) + ["carry" if self.first else "body"]
        return (*(part for pair in zip(self.loops, within, strict=False) for part in pair), self.name)

    @cached_property
    def path(self) -> str:
        """Its key as one word, which no other line of the section has: `ring/body/acc`."""
        return "/".join(map(str, self.key))

    def inside(self, name: str, *, first: bool = False) -> Line:
        """A line of the body of the repeat that stands here, or the first value of a name that it carries."""
        origin = (
            None if self.origin is None or not first else replace(self.origin, key=(*self.origin.key, "carry", name))
        )
        return Line(name, (*self.loops, self.name), first, origin)

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of functions in the place of which it stands, outermost first."""
        return () if self.origin is None else self.origin.calls

    @property
    def label(self) -> str:
        """Its name in the function that it stands in."""
        return self.origin.label if self.origin is not None and self.origin.label else self.name

    def scopes(self, within: int = 0) -> tuple[str, ...]:
        """The named scopes of its operations, outermost first, without those of `within` calls: `("y", "gate")`."""
        around = tuple(call.label for call in self.calls[within:])
        return around if self.origin is not None and self.origin.result and around else (*around, self.label)

    def written(self, section: Section) -> tuple[Key, tuple[Key, ...]]:
        """Its key in the configuration, and the keys of the lines that call the function that it stands in."""
        return ((section, *self.key), ()) if self.origin is None else (self.origin.key, self.origin.uses)


@dataclass(frozen=True)
class Node:
    """One line with the expression that it stands for."""

    line: Line
    expression: Expression

    @property
    def name(self) -> str:
        """The name that the lines after it read."""
        return self.line.name

    @property
    def defines(self) -> frozenset[str]:
        """The name that it gives."""
        return frozenset((self.name,))

    @property
    def names(self) -> frozenset[str]:
        """Every name in its expression."""
        return self.expression.names


@dataclass(frozen=True)
class Loop:
    """A repeat: `body` runs `steps` times over the carried values, then `name.carry` are names."""

    line: Line
    steps: int
    index: str
    carry: tuple[tuple[str, Expression], ...]
    body: tuple[Statement, ...]
    unroll: bool

    @property
    def name(self) -> str:
        """What the names of its results begin with."""
        return self.line.name

    def first(self, carried: str) -> Line:
        """What a carried name starts as."""
        return self.line.inside(carried, first=True)

    def end(self, carried: str) -> str:
        """The path of what a carried name has at the end of a step."""
        return f"{self.line.path}/{carried}"

    def result(self, carried: str) -> str:
        """The path of what a carried name has after the last step: its name, where the repeat stands in no other."""
        return f"{self.line.path}.{carried}"

    @property
    def defines(self) -> frozenset[str]:
        """The names of what is carried, after the last step: `ring.acc`."""
        return frozenset(f"{self.name}.{carried}" for carried, _ in self.carry)

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name in its expressions, those of its body too."""
        parts = (*(first for _, first in self.carry), *self.body)
        return frozenset[str]().union(*(part.names for part in parts))


Statement = Node | Loop


@dataclass(frozen=True)
class Gradient:
    """The gradients of the scalar output `of` with respect to the arrays `wrt`, which join the outputs."""

    of: str
    wrt: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The outputs that they are: `grad.w`."""
        return tuple(f"{GRADIENTS}.{array}" for array in self.wrt)


GRADIENTS = "grad"
"""What the names of gradients begin with, as if a repeat of that name had carried them."""


@dataclass(frozen=True)
class Target:
    """What the programs are compiled for; `devices` is the number to simulate on `cpu`.

    Where there is a `topology`, its devices are not here: nothing is run. `split_axes` is whether the axes of the mesh
    are no products of whole axes of the topology, which only the worker can tell.
    """

    platform: str
    devices: int
    topology: Topology | None = None
    split_axes: bool = False


@dataclass(frozen=True)
class Experiment:
    """One validated experiment.

    `outputs` and `constraints` map names to PartitionSpecs (whose length only the nodes' ranks can bound), `values`
    maps outputs to the numbers that the experiment pins, `programs` are those to run. The gradients of `grad` are
    among the outputs; `results` are the others.
    """

    name: str
    summary: str
    source: str
    mesh: Mesh
    target: Target
    dims: Mapping[str, int]
    arrays: tuple[Array, ...]
    graph: tuple[Statement, ...]
    per_device: tuple[Statement, ...]
    constraints: Mapping[str, Spec]
    outputs: Mapping[str, Spec]
    values: Mapping[str, Any]
    programs: tuple[Program, ...]
    seed: int
    precision: str
    check_vma: bool
    trace: bool
    profile: bool
    timeout: float
    tested: tuple[str, ...]
    """The targets for which `pytest` runs it: options of the config group `target`."""
    left_out: tuple[Program, ...] = ()
    """The programs that are not compiled for a topology unless they are asked for by name."""
    chosen: bool = False
    """Whether the user named the program, rather than taking all that there are."""
    grad: Gradient | None = None
    expected: Mapping[Program, expect.Expectations] = field(default_factory=dict[Program, expect.Expectations])
    """What each program is held to."""
    probed: frozenset[str] = frozenset()
    """The values of `graph` that are among the outputs only so that the compiler tells their layouts."""
    verify_dims: Mapping[str, int] = field(default_factory=dict[str, int])
    approximate: Mapping[str, float] = field(default_factory=dict[str, float])
    """How far `per_device` is from `graph` on purpose: for an output, the share of its root mean square."""
    weak: frozenset[str] = frozenset()
    """The outputs whose `value` check may be blunt."""
    explain: bool = False
    """Whether the terminal says of each collective why it is there."""
    show: Show = "auto"
    """What of the arrays and outputs is shown: a word, or names."""
    hardware: Hardware | None = None
    """For which the time of a run is estimated."""
    wrong: Mapping[Program, Mapping[str, str]] = field(default_factory=dict[Program, Mapping[str, str]])
    """Per program the outputs that JAX is known to give wrong, with the versions that do: "" is all of them."""

    @cached_property
    def results(self) -> dict[str, Spec]:
        """The outputs that the sections compute: all but the gradients."""
        gradients = self.grad.names if self.grad else ()
        return {name: spec for name, spec in self.outputs.items() if name not in gradients}

    @cached_property
    def given(self) -> tuple[Array, ...]:
        """What the lines begin with: the arrays, and the gradients that lines read, laid out as outputs are."""
        if self.grad is None:
            return self.arrays
        read = frozenset[str]().union(*(statement.names for statement in (*self.graph, *self.per_device)))
        return (*self.arrays, *(self._gradient(name) for name in self.grad.names if name in read))

    def _gradient(self, name: str) -> Array:
        array = self.array(name.removeprefix(f"{GRADIENTS}."))
        return Array(name, Layout(self.mesh, array.shape, self.outputs[name]), array.dims, array.dtype, None)

    @property
    def reads_gradients(self) -> bool:
        """Whether some line reads a gradient."""
        return len(self.given) > len(self.arrays)

    def before(self, section: Section) -> tuple[Statement, ...]:
        """The lines of a section that need no gradient, which are what is differentiated."""
        needing = _needing(self.section(section), set(self.grad.names if self.grad else ()))
        return tuple(line for line in self.section(section) if line not in needing)

    def after(self, section: Section) -> tuple[Statement, ...]:
        """The lines of a section that need gradients, and before them again those they read that no array enters."""
        lines = self.section(section)
        needing = _needing(lines, set(self.grad.names if self.grad else ()))
        entered = _needing(lines, {array.name for array in self.arrays})
        again = [line for line in lines if line not in needing and line not in entered]
        read = frozenset[str]().union(*(line.names for line in needing))
        for line in reversed(again):
            read |= line.names if line.defines & read else frozenset()
        return (*(line for line in again if line.defines & read), *needing)

    def passed(self, section: Section) -> tuple[str, ...]:
        """The values that lines give which need no gradient, and that lines read which do."""
        after = self.after(section)
        read = frozenset[str]().union(*(line.names for line in after))
        known = results(after)
        return tuple(name for line in self.before(section) for name in sorted(line.defines & read) if name not in known)

    @property
    def forward(self) -> Experiment:
        """The experiment as far as it needs no gradient: what is differentiated."""
        graph, per_device = self.before("graph"), self.before("per_device")
        there = results(graph) | results(per_device) | set(self.grad.names if self.grad else ())
        return replace(
            self,
            graph=graph,
            per_device=per_device,
            outputs={name: spec for name, spec in self.outputs.items() if name in there},
        )

    @property
    def on_mesh(self) -> bool:
        """Whether some program needs all devices of the mesh."""
        return any(program.on_mesh for program in self.programs)

    def probing(self, program: Program) -> Experiment | None:
        """The experiment that returns also the values whose layouts the program is held to, if there are any."""
        wanted = self.expected[program].layouts if program.whole else ()
        probed = frozenset(wanted) - self.outputs.keys()
        return (
            replace(self, outputs={**self.outputs, **dict.fromkeys(probed, Spec())}, probed=probed) if wanted else None
        )

    def checks(self, program: Program) -> tuple[str, ...]:
        """What is checked of the results of a program, in the order in which a report has it."""
        gradient, values = ("gradient",) if self.grad else (), ("values",) if self.values else ()
        lines = ("derivation",) if program is Program.DERIVED else ()
        return ("value", "layout", "replicas", "agreement", *gradient, *values, *lines)

    def array(self, name: str) -> Array:
        """The operand of that name."""
        return next(array for array in self.arrays if array.name == name)

    def section(self, name: Section) -> tuple[Statement, ...]:
        """The statements of `graph` or of `per_device`."""
        return self.graph if name == "graph" else self.per_device

    @cached_property
    def x64(self) -> bool:
        """Whether some array or expression names a dtype that JAX has only with 64 bits switched on."""
        if any(array.dtype in dtypes.WIDE for array in self.arrays):
            return True
        return any(
            isinstance(node, ast.Constant) and node.value in dtypes.WIDE
            for _, expression in expressions((*self.graph, *self.per_device))
            for node in ast.walk(expression.tree)
        )


def expressions(statements: Iterable[Statement]) -> Iterator[tuple[Line, Expression]]:
    """Every expression of some statements and of what stands inside them, with its line."""
    for statement in statements:
        if isinstance(statement, Node):
            yield statement.line, statement.expression
            continue
        for name, first in statement.carry:
            yield statement.first(name), first
        yield from expressions(statement.body)


def _needing(statements: Iterable[Statement], names: set[str]) -> list[Statement]:
    """The statements that some of these names enter."""
    found: list[Statement] = []
    names = set(names)
    for statement in statements:
        if statement.names & names:
            found.append(statement)
            names |= statement.defines
    return found


def results(statements: Iterable[Statement]) -> set[str]:
    """The names of values after `statements`: `C`, `ring.acc`."""
    return {name for statement in statements for name in statement.defines}


def lines(statements: Iterable[Statement]) -> Iterator[str]:
    """The lines of a section as evidence names them: `C`, of a loop `ring` and `ring.lhs`."""
    for statement in statements:
        yield str(statement.line)
        if isinstance(statement, Loop):
            yield from lines(statement.body)
