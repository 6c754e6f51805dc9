"""One frozen `Experiment`, which every room reads: its arrays, its statements, its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from runner import dtypes
from runner.experiment import checkpoints, definition, expect, graphs, imported
from runner.experiment.hardware import Hardware
from runner.experiment.imported import Imports
from runner.experiment.lines import (
    Call,
    Checkpoint,
    Choice,
    Flat,
    Invocation,
    Line,
    Loop,
    Node,
    Origin,
    Statement,
    Unit,
    entered_by,
    expressions,
    flat,
    lines,
    paths,
    rejoined,
    results,
    units,
)
from runner.experiment.program import Program
from runner.experiment.rules import Logical
from runner.experiment.showing import Show
from runner.experiment.topology import Topology
from runner.faults import Key
from runner.graph.model import Graph, literal, walk
from runner.graph.source import SECTIONS, Frame, Section
from runner.graph.term import Name
from runner.language.syntax import Expression
from runner.layout import Layout, Mesh, Spec, SpecEntries

__all__ = [
    "GRADIENTS", "Array", "Call", "Checkpoint", "Choice", "Experiment", "Flat", "Gradient", "Invocation", "Line",
    "Loop", "Node", "Origin", "Section", "Statement", "Target", "expressions", "lines", "paths", "results",
]  # fmt: skip


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
    are no products of whole axes of the topology, which only the worker can tell. Of several `processes` each has as
    many of the simulated devices, the first the first ones. `cluster` is whether a cluster started them.
    """

    platform: str
    devices: int
    topology: Topology | None = None
    split_axes: bool = False
    processes: int = 1
    cluster: bool = False

    @property
    def devices_each(self) -> int:
        """The number of devices that each process simulates."""
        return self.devices // self.processes


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
    definition: Mapping[str, Any] = field(repr=False)
    """What it was read from, as plain data: every key of the file, with its default where nobody gave it a value."""
    reader: Callable[[Mapping[str, Any]], Experiment] = field(repr=False, compare=False)
    """What read it."""
    imports: Imports = field(default_factory=Imports)
    """The functions that are Python of the user's own; their lines are among those of `functions`."""
    sections: tuple[Section, ...] = ("graph", "per_device")
    """The sections that the file has, whether a program is written from them or not."""
    left_out: tuple[Program, ...] = ()
    """The programs that are not compiled for a topology unless they are asked for by name."""
    chosen: bool = False
    """Whether the user named the program, rather than taking all that there are."""
    grad: Gradient | None = None
    expected: Mapping[Program, expect.Expectations] = field(default_factory=dict[Program, expect.Expectations])
    """What each program is held to."""
    patterned: Mapping[str, str] = field(default_factory=dict[str, str])
    """The patterns of `constraints` for those values that the file names by one."""
    implied: frozenset[str] = frozenset()
    """The gradients that the file does not name among its outputs."""
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
    logical: Mapping[Key, Logical] = field(default_factory=dict[Key, Logical])
    """The specs that are written with logical names, by their keys."""
    automatic: tuple[str, ...] = ()
    """The mesh axes that `per_device` leaves to the compiler: its collectives and its blocks are of the others."""
    by_hand: Mapping[Section, frozenset[str]] = field(default_factory=dict[Section, frozenset[str]])
    """The gradients that no program of a section computes, since the other section's lines read them: here, lines of
    its own stand in their place."""

    def at(
        self,
        *,
        dims: Mapping[str, int] = MappingProxyType({}),
        mesh: Mapping[str, int] = MappingProxyType({}),
        layouts: Mapping[str, SpecEntries] = MappingProxyType({}),
        **keys: Any,
    ) -> Experiment:
        """The experiment that the same file describes at other sizes, on another mesh, in other layouts.

        - `dims`, `mesh`: the sizes of some dims, and of some axes of the mesh, by their names.
        - `layouts`: specs by the keys of the file that say them: `{"arrays.A.spec": ["x", None]}`.
        - `keys`: other values of other keys of the file, each whole.

        Of a part of an experiment, such as one section, it is the whole. Raises `InvalidExperiment`.
        """
        return self.reader({**definition.at(self.definition, dims, mesh, layouts), **keys})

    def with_line(self, section: Section, key: Key, text: str | int) -> Experiment | None:
        """The experiment of the file with a line of another text, as `section` has it; None where no line is there.

        Raises `InvalidExperiment`.
        """
        changed = definition.with_line(self.definition, section, key, text)
        return None if changed is None else self.reader(changed)

    def alone(self, section: Section) -> Experiment:
        """The experiment of one section: its lines, and the outputs that the programs written from it compute."""
        return self._alone[section]

    @cached_property
    def _alone(self) -> dict[Section, Experiment]:
        experiments: dict[Section, Experiment] = {}
        for section in SECTIONS:
            by_hand = self.by_hand.get(section, frozenset())
            wrt = tuple(array for array in self.grad.wrt if f"{GRADIENTS}.{array}" not in by_hand) if self.grad else ()
            grad = Gradient(self.grad.of, wrt) if self.grad and wrt else None
            there = results(self.lines(section)) | set(grad.names if grad else ())
            experiments[section] = replace(
                self,
                graph=self.graph if section == "graph" else (),
                per_device=self.per_device if section == "per_device" else (),
                grad=grad,
                outputs={name: spec for name, spec in self.outputs.items() if name in there},
            )
        return experiments

    @cached_property
    def apart(self) -> frozenset[str]:
        """The outputs that hang on a gradient which one section reads, while the other has lines in its place."""
        if self.grad is None or not (self.graph and self.per_device):
            return frozenset()
        sections = [self.lines(section) for section in SECTIONS]
        read = [frozenset[str]().union(*(line.names for line in lines)) & {*self.grad.names} for lines in sections]
        entered = [entered_by(lines, read[0] ^ read[1]) for lines in sections]
        return frozenset(name for lines in entered for name in results(lines) if name in self.results)

    @cached_property
    def manual(self) -> Mesh:
        """The mesh that `per_device` sees: the axes over which it is manual."""
        return self.mesh.without(self.automatic)

    def block(self, layout: Layout) -> Layout:
        """How an array lies for `per_device`: over the automatic axes a device's block is whole."""
        return replace(layout, spec=layout.spec.over(self.manual.axes)) if self.automatic else layout

    def blocks(self, shape: tuple[int, ...], output: str) -> Layout:
        """How the output of that name, and of a shape, lies for `per_device`."""
        return self.block(Layout(self.mesh, shape, self.outputs[output]))

    @property
    def inside(self) -> Experiment:
        """The experiment of the manual axes alone: what `per_device` is on its own."""
        if not self.automatic:
            return self
        mesh = self.manual

        def seen(spec: Spec) -> Spec:
            return spec.over(mesh.axes)

        return replace(
            self,
            mesh=mesh,
            arrays=tuple(replace(a, layout=Layout(mesh, a.shape, seen(a.layout.spec))) for a in self.arrays),
            outputs={name: seen(spec) for name, spec in self.outputs.items()},
            constraints={},
            automatic=(),
        )

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
        read = frozenset[str]().union(*(line.names for section in SECTIONS for line in self.lines(section)))
        return (*self.arrays, *(self._gradient(name) for name in self.grad.names if name in read))

    def _gradient(self, name: str) -> Array:
        array = self.array(name.removeprefix(f"{GRADIENTS}."))
        return Array(name, Layout(self.mesh, array.shape, self.outputs[name]), array.dims, array.dtype, None)

    @property
    def reads_gradients(self) -> bool:
        """Whether some line reads a gradient."""
        return len(self.given) > len(self.arrays)

    def before(self, section: Section) -> tuple[Statement, ...]:
        """The statements of a section that need no gradient, which are what is differentiated."""
        return self._divided[section][0]

    def after(self, section: Section) -> tuple[Statement, ...]:
        """The statements that need gradients, and before them again those they read that no array enters."""
        return self._divided[section][1]

    @cached_property
    def _divided(self) -> dict[Section, tuple[tuple[Statement, ...], tuple[Statement, ...]]]:
        return {section: self._divide(self.section(section)) for section in SECTIONS}

    def _divide(self, statements: tuple[Statement, ...]) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
        """Statements before and after the gradients: of a call that these part, the lines; a choice stays whole."""
        statement_units = units(statements)
        needing = entered_by(statement_units, self.grad.names if self.grad else ())
        parted = set(needing)
        before = [unit for unit in statement_units if unit not in parted]
        entered = set(entered_by(statement_units, (array.name for array in self.arrays)))
        read = frozenset[str]().union(*(unit.names for unit in needing))
        again: list[Unit] = []
        for unit in reversed(before):
            if unit not in entered and unit.defines & read:
                read |= unit.names
                again.insert(0, unit)
        return rejoined(before, statements), rejoined((*again, *needing), statements)

    def passed(self, section: Section) -> tuple[str, ...]:
        """The values that lines give which need no gradient, and that lines read which do."""
        after = flat(self.after(section))
        read = frozenset[str]().union(*(line.names for line in after))
        known, before = results(after), flat(self.before(section))
        return tuple(name for line in before for name in sorted(line.defines & read) if name not in known)

    @property
    def forward(self) -> Experiment:
        """The experiment as far as it needs no gradient: what is differentiated."""
        graph, per_device = self.before("graph"), self.before("per_device")
        both = [results(flat(part)) for part, whole in ((graph, self.graph), (per_device, self.per_device)) if whole]
        there = set[str].intersection(*both) | set(self.grad.names if self.grad else ())
        return replace(
            self,
            graph=graph,
            per_device=per_device,
            outputs={name: spec for name, spec in self.outputs.items() if name in there},
        )

    @cached_property
    def constrained(self) -> dict[str, Spec]:
        """The constraints by the paths of the values of `graph` and of the arrays: inside of a repeat too."""
        known = {array.name: array.name for array in self.arrays} | dict(paths(self.lines("graph")))
        return {path: self.constraints[name] for path, name in known.items() if name in self.constraints}

    @cached_property
    def constrained_inside(self) -> dict[str, Spec]:
        """The constraints by the paths of the values of `per_device` and of the arrays, over the automatic axes."""
        if not self.automatic:
            return {}
        known = {array.name: array.name for array in self.arrays} | dict(paths(self.lines("per_device")))
        specs = {name: spec.over(self.automatic) for name, spec in self.constraints.items()}
        return {path: specs[name] for path, name in known.items() if name in specs}

    @property
    def traced(self) -> Program:
        """The program whose values a trace shows: `shard_map`; `derived` if the file has no `per_device`."""
        return Program.SHARD_MAP if "per_device" in self.sections else Program.DERIVED

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

    def keeping(self, program: Program) -> Experiment | None:
        """The experiment that keeps everything for the backward pass, if a program of it does not."""
        if self.grad is None or not any(checkpoints.of(self.section(program.lines))):
            return None
        return replace(self, graph=checkpoints.without(self.graph), per_device=checkpoints.without(self.per_device))

    def array(self, name: str) -> Array:
        """The operand of that name."""
        return next(array for array in self.arrays if array.name == name)

    @property
    def layout_keys(self) -> list[str]:
        """The keys of the file that say how something lies."""
        keys = [f"arrays.{array.name}.spec" for array in self.arrays]
        keys += dict.fromkeys(map(self.key_of_constraint, self.constraints))
        return [*keys, *(f"outputs.{name}" for name in self.outputs)]

    def key_of_constraint(self, name: str) -> str:
        """The key of the file that constrains a value."""
        return f"constraints.{self.patterned.get(name, name)}"

    def key_of_layout(self, name: str) -> str:
        """The key of the file that says how an array or an output lies; a gradient lies as its array by default."""
        if any(array.name == name for array in self.arrays):
            return f"arrays.{name}.spec"
        return f"arrays.{name.removeprefix(f'{GRADIENTS}.')}.spec" if name in self.implied else f"outputs.{name}"

    def computed(self, section: Section) -> Graph:
        """A section as a graph of its single lines: all that is computed, in no function."""
        return self._computed[section]

    @cached_property
    def _computed(self) -> dict[Section, Graph]:
        given = [array.name for array in self.given]
        return {section: graphs.graph(self.lines(section), given) for section in SECTIONS}

    def section(self, name: Section) -> tuple[Statement, ...]:
        """The statements of `graph` or of `per_device`."""
        return self.graph if name == "graph" else self.per_device

    def lines(self, section: Section) -> tuple[Flat, ...]:
        """A section as single lines, those of functions in the place of calls, under the section's names."""
        return self._lines[section]

    @cached_property
    def _lines(self) -> dict[Section, tuple[Flat, ...]]:
        return {section: flat(self.section(section)) for section in SECTIONS}

    @cached_property
    def frames(self) -> Mapping[Section, Mapping[str, Frame]]:
        """Where the lines of functions of Python stand in the user's files, by section and name."""
        of_sections: dict[Section, dict[str, Frame]] = {}
        for section in SECTIONS:
            frames = imported.frames(self.section(section), self.imports)
            of_sections[section] = {str(line): frame for line, frame in frames.items()}
        return of_sections

    def places(self, section: Section) -> dict[str, str]:
        """What readers know names by that no file has: the path of a leaf, the place of a line in a file of Python."""
        return {**self.imports.paths, **{line: frame.place for line, frame in self.frames[section].items()}}

    @cached_property
    def given_frames(self) -> Mapping[Section, Mapping[str, Frame]]:
        """The same as `frames`, and those of lines that only name another one: what a call of such a function gives."""
        of_sections: dict[Section, dict[str, Frame]] = {section: {**frames} for section, frames in self.frames.items()}
        for section, places in of_sections.items():
            for line in self.lines(section):
                named = line.expression.term if isinstance(line, Node) else None
                if isinstance(named, Name) and named.name in places:
                    places.setdefault(line.name, places[named.name])
        return of_sections

    def place(self, section: Section, line: str) -> str:
        """What readers know a line by: the user's line of Python that it comes of, or its key."""
        return str(self.given_frames[section].get(line) or f"{section}.{line}")

    @cached_property
    def x64(self) -> bool:
        """Whether some array or expression names a dtype that JAX has only with 64 bits switched on."""
        if any(array.dtype in dtypes.WIDE for array in self.arrays):
            return True
        named = (
            literal(operand)
            for section in SECTIONS
            for equation in walk(self.computed(section))
            for operand in equation.flat
        )
        return any(isinstance(name, str) and name in dtypes.WIDE for name in named)
