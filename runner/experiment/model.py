"""The frozen `Experiment` that all packages read: its arrays, its sections, its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

from runner.base import codec, dtypes
from runner.base.faults import Key
from runner.base.layout import Layout, Mesh, Spec, SpecEntries
from runner.base.lazy import dataclass
from runner.experiment import definition, expect, imported, remat
from runner.experiment.forms import AS_WRITTEN
from runner.experiment.hardware import Derive, Hardware
from runner.experiment.imported import Imports
from runner.experiment.program import Program
from runner.experiment.rules import Logical
from runner.experiment.showing import Show
from runner.experiment.source_text import SourceText
from runner.experiment.topology import Topology
from runner.graph.dividing import divided
from runner.graph.inlining import inlined, of_equations, with_inputs
from runner.graph.language.lines import paths, reached
from runner.graph.language.syntax import Expression
from runner.graph.model import Graph, Ref, Repeat, literal, walk
from runner.graph.source import SECTIONS, Checkpoint, Frame, FunctionCall, Line, Origin, Section

__all__ = ["GRADIENTS", "Array", "Checkpoint", "Experiment", "FunctionCall", "Gradient", "Line", "Origin", "Section",
           "Target"]  # fmt: skip


@dataclass(frozen=True)
class Array:
    """A named input array. `init` is an expression, or a number or nested list that is used as it is."""

    name: str
    layout: Layout
    dims: tuple[str | None, ...]
    dtype: str = field(metadata=AS_WRITTEN)
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
        """The names of the gradients among the outputs: `grad.w`."""
        return tuple(f"{GRADIENTS}.{array}" for array in self.wrt)


GRADIENTS = "grad"
"""The first part of the names of gradients, which look like the carries of a repeat."""


@dataclass(frozen=True)
class Target:
    """The devices that the programs are compiled for.

    - `devices`: the number of devices to simulate on `cpu`.
    - `topology`: compile for the devices of this topology, which are not present, and run nothing.
    - `split_axes`: whether some mesh axis is not a product of whole axes of the topology, which only the worker can
      tell.
    - `processes`: how many processes share the simulated devices, in equal consecutive blocks.
    - `cluster`: whether a cluster manager started the processes.
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

    `outputs` and `constraints` map names to PartitionSpecs, whose lengths are checked when the ranks are known.
    `values` maps outputs to the numbers that the experiment pins, `programs` are those to run. The gradients of `grad`
    are among the outputs; `results` are the others.
    """

    name: str
    summary: str = field(metadata=AS_WRITTEN)
    source: str = field(metadata=AS_WRITTEN)
    mesh: Mesh
    target: Target
    dims: Mapping[str, int]
    arrays: tuple[Array, ...]
    graph: Graph
    per_device: Graph
    constraints: Mapping[str, Spec]
    outputs: Mapping[str, Spec]
    values: Mapping[str, Any]
    programs: tuple[Program, ...]
    seed: int = field(metadata=AS_WRITTEN)
    precision: str = field(metadata=AS_WRITTEN)
    verify: str = field(metadata=AS_WRITTEN)
    diagnose: float = field(metadata=AS_WRITTEN)
    check_vma: bool = field(metadata=AS_WRITTEN)
    trace: bool = field(metadata=AS_WRITTEN)
    profile: bool = field(metadata=AS_WRITTEN)
    timeout: float = field(metadata=AS_WRITTEN)
    tested: tuple[str, ...]
    """The targets on which `pytest` runs the experiment: options of the config group `target`."""
    definition: Mapping[str, Any] = field(repr=False)
    """The plain data that it was read from: every key of the file, with defaults filled in."""
    reader: Callable[[Mapping[str, Any]], Experiment] = field(repr=False, compare=False)
    """The function that read it, which `at` and `with_line` call again."""
    imports: Imports = field(default_factory=Imports)
    """The user's own Python functions; their lines are among those of `functions`."""
    sections: tuple[Section, ...] = ("graph", "per_device")
    """The sections that the file has, including those that no program is written from."""
    left_out: tuple[Program, ...] = ()
    """The programs that are compiled for a topology only if the user names them."""
    chosen: bool = False
    """Whether the user named the programs instead of taking all."""
    grad: Gradient | None = None
    expected: Mapping[Program, expect.Expectations] = field(default_factory=dict[Program, expect.Expectations])
    """The expectations that each program is checked against."""
    patterned: Mapping[str, str] = field(default_factory=dict[str, str])
    """For each value that the file constrains by a pattern, that pattern."""
    implied: frozenset[str] = frozenset()
    """The gradients that are outputs although the file does not list them there."""
    probed: frozenset[str] = frozenset()
    """The values of `graph` that are outputs only so that the compiled program has their layouts."""
    verify_dims: Mapping[str, int] = field(default_factory=dict[str, int])
    approximate: Mapping[str, float] = field(default_factory=dict[str, float])
    """For each output that `per_device` only approximates, the allowed error relative to its root mean square."""
    weak: frozenset[str] = frozenset()
    """The outputs whose `value` check may be too blunt to notice a mistake of 10 %."""
    explain: bool | Literal["full"] = field(default=False, metadata=AS_WRITTEN)
    """Whether the terminal shows each collective with its reason, in brief or in full."""
    show: Show = "auto"
    """The arrays and outputs to draw: a word, or names."""
    hardware: Hardware | None = None
    """The hardware for which the time of a run is estimated."""
    derive: Derive = field(default_factory=Derive)
    """What `derived` chooses by."""
    wrong: Mapping[Program, Mapping[str, str]] = field(default_factory=dict[Program, Mapping[str, str]])
    """For each program, the outputs that JAX is known to compute wrongly, and in which versions; "" is all."""
    logical: Mapping[Key, Logical] = field(default_factory=dict[Key, Logical])
    """The specs that are written with logical axis names, by their keys."""
    automatic: tuple[str, ...] = ()
    """The mesh axes that `per_device` leaves to the compiler; its collectives and blocks use the others."""
    by_hand: Mapping[Section, frozenset[str]] = field(default_factory=dict[Section, frozenset[str]])
    """For each section, the gradients that its programs do not compute, because lines of its own compute them; lines of
    the other section read them."""

    def at(
        self,
        *,
        dims: Mapping[str, int] = MappingProxyType({}),
        mesh: Mapping[str, int] = MappingProxyType({}),
        layouts: Mapping[str, SpecEntries] = MappingProxyType({}),
        **keys: Any,
    ) -> Experiment:
        """Read the same file with other sizes, another mesh or other layouts.

        - `dims`, `mesh`: new sizes of some dims and some mesh axes, by name.
        - `layouts`: new specs by their keys in the file: `{"arrays.A.spec": ["x", None]}`.
        - `keys`: new values of other top-level keys.

        Returns the whole experiment, even where `self` is a part such as one section. Raises `InvalidExperiment`.
        """
        return self.reader({**definition.at(self.definition, dims, mesh, layouts), **keys})

    def with_line(self, section: Section, key: Key, text: str | int) -> Experiment | None:
        """Read the same file with the text of one line replaced; None where `section` has no line at `key`.

        Raises `InvalidExperiment`.
        """
        if key[0] == "functions" and key[1] in self.imports.functions:
            imports = self.imports.with_line(key, text)
            changed = None if imports is None else {**self.definition, imported.KEY: codec.plain(imports)}
        else:
            changed = definition.with_line(self.definition, section, key, text)
        return None if changed is None else self.reader(changed)

    def alone(self, section: Section) -> Experiment:
        """The experiment of one section: its lines, and the outputs that its programs compute."""
        return self._alone[section]

    @cached_property
    def _alone(self) -> dict[Section, Experiment]:
        experiments: dict[Section, Experiment] = {}
        for section in SECTIONS:
            by_hand = self.by_hand.get(section, frozenset())
            wrt = tuple(array for array in self.grad.wrt if f"{GRADIENTS}.{array}" not in by_hand) if self.grad else ()
            grad = Gradient(self.grad.of, wrt) if self.grad and wrt else None
            whole = self.section(section)
            own = with_inputs(whole, {*(array.name for array in self.arrays), *whole.needed})
            there = self._defined(own) | set(grad.names if grad else ())
            experiments[section] = replace(
                self,
                graph=own if section == "graph" else of_equations(own.inputs, ()),
                per_device=own if section == "per_device" else of_equations(own.inputs, ()),
                grad=grad,
                outputs={name: spec for name, spec in self.outputs.items() if name in there},
            )
        return experiments

    @cached_property
    def apart(self) -> frozenset[str]:
        """The outputs that depend on a gradient which one section reads and the other computes with its own lines."""
        if self.grad is None or not (self.graph and self.per_device):
            return frozenset()
        computed = [self.computed(section) for section in SECTIONS]
        read = [graph.needed & {*self.grad.names} for graph in computed]
        entered = [reached(graph, read[0] ^ read[1]) for graph in computed]
        named = [(graph.names, numbers) for graph, numbers in zip(computed, entered, strict=True)]
        return frozenset(name for names, numbers in named for name in self.results if names.get(name) in numbers)

    @cached_property
    def manual(self) -> Mesh:
        """The mesh of the axes over which `per_device` is manual."""
        return self.mesh.without(self.automatic)

    def block(self, layout: Layout) -> Layout:
        """The layout of an array as `per_device` sees it: not sharded over the automatic axes."""
        return replace(layout, spec=layout.spec.over(self.manual.axes)) if self.automatic else layout

    def blocks(self, shape: tuple[int, ...], output: str) -> Layout:
        """The layout, as `per_device` sees it, of the output called `output`, whose global shape is `shape`."""
        return self.block(Layout(self.mesh, shape, self.outputs[output]))

    @property
    def inside(self) -> Experiment:
        """The experiment on the mesh of the manual axes alone, in which `per_device` runs."""
        if not self.automatic:
            return self
        mesh = self.manual

        def over_manual(spec: Spec) -> Spec:
            return spec.over(mesh.axes)

        return replace(
            self,
            mesh=mesh,
            arrays=tuple(replace(a, layout=Layout(mesh, a.shape, over_manual(a.layout.spec))) for a in self.arrays),
            outputs={name: over_manual(spec) for name, spec in self.outputs.items()},
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
        """The inputs of the lines: the arrays, and the gradients that lines read, with their output layouts."""
        if self.grad is None:
            return self.arrays
        read = self.graph.needed | self.per_device.needed
        return (*self.arrays, *(self._gradient(name) for name in self.grad.names if name in read))

    def _gradient(self, name: str) -> Array:
        array = self.array(name.removeprefix(f"{GRADIENTS}."))
        return Array(name, Layout(self.mesh, array.shape, self.outputs[name]), array.dims, array.dtype, None)

    @property
    def reads_gradients(self) -> bool:
        """Whether some line reads a gradient."""
        return len(self.given) > len(self.arrays)

    def before(self, section: Section) -> Graph:
        """The lines of a section that need no gradient: the forward pass that is differentiated."""
        return self._divided[section][0]

    def after(self, section: Section) -> Graph:
        """The lines that need gradients, after copies of those that they read and that depend on no array."""
        return self._divided[section][1]

    @cached_property
    def _divided(self) -> dict[Section, tuple[Graph, Graph]]:
        gradients = self.grad.names if self.grad else ()
        return {section: divided(self.section(section), gradients) for section in SECTIONS}

    def passed(self, section: Section) -> tuple[str, ...]:
        """The values from the forward pass that lines after the gradients read."""
        given = {value.name for value in self.section(section).inputs}
        return tuple(value.name for value in self.after(section).inputs if value.name not in given)

    @property
    def forward(self) -> Experiment:
        """The experiment of the lines that need no gradient: the forward pass that is differentiated."""
        graph, per_device = self.before("graph"), self.before("per_device")
        parts = ((graph, self.graph), (per_device, self.per_device))
        both = [self._defined(part) for part, whole in parts if whole]
        there = set[str].intersection(*both) | set(self.grad.names if self.grad else ())
        return replace(
            self,
            graph=graph,
            per_device=per_device,
            outputs={name: spec for name, spec in self.outputs.items() if name in there},
        )

    @cached_property
    def constrained(self) -> dict[str, Spec]:
        """The constraints on arrays and values of `graph`, by path, including values inside repeats."""
        return {path: self.constraints[name] for path, name in self.constraint_names.items()}

    @cached_property
    def constraint_names(self) -> dict[str, str]:
        """The names in `constraints` of arrays and values of `graph`, by path, including values inside repeats."""
        known = {array.name: array.name for array in self.arrays} | dict(paths(self.computed("graph")))
        return {path: name for path, name in known.items() if name in self.constraints}

    @cached_property
    def constrained_inside(self) -> dict[str, Spec]:
        """The constraints on arrays and values of `per_device`, by path, restricted to the automatic axes."""
        if not self.automatic:
            return {}
        known = {array.name: array.name for array in self.arrays} | dict(paths(self.computed("per_device")))
        specs = {name: spec.over(self.automatic) for name, spec in self.constraints.items()}
        return {path: specs[name] for path, name in known.items() if name in specs}

    @property
    def traced(self) -> Program:
        """The program whose values a trace shows: `shard_map`; if the file has no `per_device`, `auto` where `graph`
        calls functions with a `shard_map` of their own, and else `derived`.
        """
        if "per_device" in self.sections:
            return Program.SHARD_MAP
        return Program.AUTO if (self.written or self).regions else Program.DERIVED

    @property
    def on_mesh(self) -> bool:
        """Whether some program needs all devices of the mesh."""
        return any(program.on_mesh for program in self.programs)

    def promises(self, program: Program, output: str) -> bool:
        """Whether a program gives an output the layout of its spec; if not, the compiler or the types choose one."""
        if program.places and program.section == "graph":
            return output not in self.imports.open or program is Program.DERIVED
        return program.places or output in self.imports.held

    def probing(self, program: Program) -> Experiment | None:
        """The experiment that also outputs the values whose layouts are expected; None where there are none."""
        wanted = self.expected[program].layouts if program.whole else ()
        probed = frozenset(wanted) - self.outputs.keys()
        return (
            replace(self, outputs={**self.outputs, **dict.fromkeys(probed, Spec())}, probed=probed) if wanted else None
        )

    def keeping(self, program: Program) -> Experiment | None:
        """The experiment without checkpoints; None where the program has no gradient or no checkpoint."""
        if self.grad is None or not any(remat.of(self.section(program.lines))):
            return None
        return replace(self, graph=remat.without(self.graph), per_device=remat.without(self.per_device))

    def array(self, name: str) -> Array:
        """The input array called `name`."""
        return self._named[name]

    @cached_property
    def _named(self) -> Mapping[str, Array]:
        return {array.name: array for array in self.arrays}

    @property
    def layout_keys(self) -> list[str]:
        """The keys of the file that set layouts."""
        keys = [f"arrays.{array.name}.spec" for array in self.arrays]
        keys += dict.fromkeys(map(self.key_of_constraint, self.constraints))
        return [*keys, *(f"outputs.{name}" for name in self.outputs)]

    def key_of_constraint(self, name: str) -> str:
        """The key of the file that constrains a value."""
        return f"constraints.{self.patterned.get(name, name)}"

    def key_of_layout(self, name: str) -> str:
        """The key of the file that sets the layout of an array or an output; by default a gradient has its array's."""
        if name in self._named:
            return f"arrays.{name}.spec"
        return f"arrays.{name.removeprefix(f'{GRADIENTS}.')}.spec" if name in self.implied else f"outputs.{name}"

    def section(self, name: Section) -> Graph:
        """The graph of `graph` or of `per_device`, in which calls are equations."""
        return self.graph if name == "graph" else self.per_device

    def computed(self, section: Section) -> Graph:
        """The graph of a section's lines, with all functions inlined, in the section's names."""
        return self._computed[section]

    @cached_property
    def _computed(self) -> dict[Section, Graph]:
        return {section: inlined(self.section(section)) for section in SECTIONS}

    @staticmethod
    def _defined(graph: Graph) -> set[str]:
        """The names that the lines of a section define."""
        return {*inlined(graph).names} - {value.name for value in graph.inputs}

    @cached_property
    def frames(self) -> Mapping[Section, Mapping[str, Frame]]:
        """The places in the user's files of lines that come from Python functions, by section and name."""
        of_sections: dict[Section, dict[str, Frame]] = {}
        for section in SECTIONS:
            frames = imported.frames(self.section(section), self.imports)
            of_sections[section] = {str(line): frame for line, frame in frames.items()}
        return of_sections

    @cached_property
    def python_files(self) -> frozenset[str]:
        """The user's files with the lines that come from Python functions."""
        return frozenset(frame.file for frames in self.frames.values() for frame in frames.values())

    def places(self, section: Section) -> dict[str, str]:
        """Readable forms of generated names: the path of a leaf, or the place of a line in a Python file."""
        return {**self.imports.paths, **{line: frame.place for line, frame in self.frames[section].items()}}

    @cached_property
    def given_frames(self) -> Mapping[Section, Mapping[str, Frame]]:
        """Like `frames`, with the lines that only name another one, which are the results of Python functions."""
        of_sections: dict[Section, dict[str, Frame]] = {section: {**frames} for section, frames in self.frames.items()}
        for section, places in of_sections.items():
            graph = self.computed(section)
            names = {number: name for name, number in graph.names.items()}
            for equation in graph.equations:
                own, read = equation.results[0].name, equation.operands[0] if equation.spelled == "name" else None
                if own and isinstance(read, Ref) and (named := names.get(read.number)) in places:
                    places.setdefault(own, places[named])
        return of_sections

    @cached_property
    def added_sums(self) -> Mapping[Section, Mapping[str, str]]:
        """The lines that are sums that JAX adds to derivatives, by section; each with its operand's name, if known."""
        return {section: imported.added_sums(self.section(section), self.imports) for section in SECTIONS}

    @cached_property
    def source_text(self) -> Mapping[Section, SourceText]:
        """How the user's Python spells values and expressions of each section's lines."""
        return {section: imported.source_text(self.section(section), self.imports) for section in SECTIONS}

    @cached_property
    def written(self) -> Experiment | None:
        """The experiment whose graph calls the user's functions themselves in the place of their references.

        None where none of those has lines.
        """
        if not self.imports.written:
            return None

        def own(line: Any) -> Any:
            for reference, function in self.imports.written.items() if isinstance(line, str) else ():
                line = line.replace(reference, function)
            return line

        graph = {name: own(line) for name, line in self.definition["graph"].items()}
        return self.reader({**self.definition, "graph": graph})

    def run_by(self, program: Program) -> Experiment:
        """The experiment with the lines that a program runs: those of the user's functions, not of their references."""
        return (self.written or self if program.whole else self).alone(program.section)

    @cached_property
    def regions(self) -> tuple[str, ...]:
        """The places of the `shard_map`s inside the user's functions that `graph` reads."""
        if not self.imports.functions:
            return ()
        forms = ((equation.form, equation.source.line) for equation in walk(self.computed("graph")))
        names = [str(line) for form, line in forms if isinstance(form, Repeat) and form.region is not None]
        frames = self.frames["graph"]
        return tuple(dict.fromkeys(frames[name].place if name in frames else name for name in names))

    @cached_property
    def rules(self) -> tuple[str, ...]:
        """The places of the user's functions with a derivative of their own, if the experiment has gradients."""
        every = (rule for function in self.imports.functions.values() for rule in function.rules)
        return tuple(dict.fromkeys(every)) if self.grad else ()

    def place(self, section: Section, line: str) -> str:
        """The readable form of a line: the line of the user's Python that it comes from, or its key."""
        return str(self.given_frames[section].get(line) or f"{section}.{line}")

    @cached_property
    def x64(self) -> bool:
        """Whether `jax_enable_x64` is on: a user's file sets it, or an array or an expression names a 64-bit dtype."""
        if self.imports.x64 or any(array.dtype in dtypes.WIDE for array in self.arrays):
            return True
        named = (
            literal(operand)
            for section in SECTIONS
            for equation in walk(self.computed(section))
            for operand in equation.flat
        )
        return any(isinstance(name, str) and name in dtypes.WIDE for name in named)
