"""The resolved configuration in; one frozen, validated `Experiment` out. Nothing after this checks user input.

What only JAX can know (shapes and dtypes of the nodes) is checked by `runner/worker/types.py`.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from runner import dtypes, expect, topology
from runner.faults import Fault, InvalidExperiment, Key, invalid, nearest
from runner.language import static
from runner.language.check import Scope, canonical, check, missing_axis
from runner.language.operations import CONSTANTS
from runner.language.syntax import Expression, SyntaxFault, names, on_one_line, parse
from runner.layout import Layout, Mesh, Spec
from runner.topology import Topology

Section = Literal["graph", "per_device"]

GRAPH_PROGRAMS = ("auto", "constraint", "explicit")
PER_DEVICE_PROGRAMS = ("shard_map", "vmap")
PROGRAMS = GRAPH_PROGRAMS + PER_DEVICE_PROGRAMS
PRECISIONS = ("default", "high", "highest", "bfloat16", "tensorfloat32", "float32")
PLATFORMS = ("cpu", "gpu", "tpu")

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*\Z")


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
class Node:
    """One line: a name and the expression that it stands for."""

    name: str
    expression: Expression

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

    name: str
    steps: int
    index: str
    carry: tuple[tuple[str, Expression], ...]
    body: tuple[Statement, ...]
    unroll: bool

    @property
    def defines(self) -> frozenset[str]:
        """The names of what is carried, after the last step: `ring.acc`."""
        return frozenset(f"{self.name}.{carried}" for carried, _ in self.carry)

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name in its expressions, those of its body too."""
        return frozenset().union(*(first.names for _, first in self.carry), *(inside.names for inside in self.body))


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
    programs: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """The programs that are not compiled for a topology unless they are asked for by name."""
    chosen: bool = field(default=False)
    """Whether the user named the program, rather than taking all that there are."""
    seed: int = 0
    precision: str = "highest"
    check_vma: bool = True
    trace: bool = False
    profile: bool = False
    timeout: float = 600.0
    grad: Gradient | None = None
    tested: tuple[str, ...] = ("cpu",)
    """The targets for which `pytest` runs it: options of the config group `target`."""
    expected: Mapping[str, expect.Expectations] = field(default_factory=dict)
    """What each program is held to."""
    probed: frozenset[str] = frozenset()
    """The values of `graph` that are among the outputs only so that the compiler tells their layouts."""
    verify_dims: Mapping[str, int] = field(default_factory=dict)
    approximate: Mapping[str, float] = field(default_factory=dict)
    """How far `per_device` is from `graph` on purpose: for an output, the share of its root mean square."""
    weak: frozenset[str] = frozenset()
    """The outputs whose `value` check may be blunt."""
    wrong: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Per program the outputs that JAX is known to give wrong, with the versions that do: "" is all of them."""

    @cached_property
    def results(self) -> dict[str, Spec]:
        """The outputs that the sections compute: all but the gradients."""
        gradients = self.grad.names if self.grad else ()
        return {name: spec for name, spec in self.outputs.items() if name not in gradients}

    def probing(self, program: str) -> Experiment | None:
        """The experiment that returns also the values whose layouts the program is held to, if there are any."""
        wanted = self.expected[program].layouts if program in GRAPH_PROGRAMS else ()
        probed = frozenset(wanted) - self.outputs.keys()
        return replace(self, outputs={**self.outputs, **dict.fromkeys(probed, ())}, probed=probed) if wanted else None

    @property
    def checks(self) -> tuple[str, ...]:
        """What is checked of the results of every program, in the order in which a report has it."""
        gradient, values = ("gradient",) if self.grad else (), ("values",) if self.values else ()
        return ("value", "layout", "replicas", "agreement", *gradient, *values)

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
            f"'{name}'" in text or f'"{name}"' in text
            for statement in (*self.graph, *self.per_device)
            for _, expression in expressions(statement)
            for text in [expression.text]
            for name in dtypes.WIDE
        )


def expressions(statement: Statement, key: Key = ()) -> Iterator[tuple[Key, Expression]]:
    """Every expression of a statement with its key below the section."""
    key = (*key, statement.name)
    if isinstance(statement, Node):
        yield key, statement.expression
        return
    for name, first in statement.carry:
        yield (*key, "carry", name), first
    for inner in statement.body:
        yield from expressions(inner, (*key, "body"))


def program_section(program: str) -> Section:
    """The section that a program is written from."""
    return "graph" if program in GRAPH_PROGRAMS else "per_device"


_AS_THEY_ARE = ("seed", "precision", "check_vma", "trace", "profile", "timeout")
"""The keys whose values need no reading."""

_NOTHING: dict[str, Any] = {
    "name": None, "summary": "", "source": "", "mesh": {}, "target": {}, "dims": {}, "verify_dims": {},
    "arrays": {}, "graph": {}, "per_device": {}, "constraints": {}, "outputs": {}, "grad": {}, "expect": {},
    "test": {}, "program": "all",
}  # fmt: skip
"""A key that the command line deletes (`~graph`) is as good as empty."""


def read(config: Mapping[str, Any]) -> Experiment:
    """Validate a resolved configuration.

    Raises `InvalidExperiment` with the first fault, in the order in which a reader meets the keys.
    """
    config = {**_NOTHING, **{key: value for key, value in config.items() if value is not None}}
    name = config["name"]
    if not name:
        raise invalid(("name",), "the experiment has no name")
    if not _FILE_NAME.match(name):
        raise invalid(("name",), f"{name!r} cannot name a folder; use letters, digits, '_', '-', '.'")
    mesh = _mesh(config["mesh"])
    dims = _dims(config["dims"])
    verify_dims = _verify_dims(config["verify_dims"], dims)
    arrays = tuple(_array(array, config["arrays"][array], mesh, dims) for array in config["arrays"])
    _distinct_names(config, arrays, dims)
    values = {array.name for array in arrays}
    sections: dict[Section, tuple[Statement, ...]] = {}
    for section in ("graph", "per_device"):
        scope = Scope(section, mesh, set(values), set(dims))
        sections[section] = _statements(config[section], (section,), scope, dims)
    if not sections["graph"] and not sections["per_device"]:
        raise invalid((), "there is nothing to run: the experiment needs a graph, a per_device, or both")
    outputs = _specs(config["outputs"], "outputs", mesh)
    grad = _gradient(config["grad"], arrays, outputs, sections)
    _check_outputs(outputs, sections, grad)
    outputs |= _undeclared(grad, arrays, outputs)
    constraints = _specs(config["constraints"], "constraints", mesh)
    for constrained in constraints:
        _known_result(constrained, "constraints", sections["graph"], values, "graph")
    programs, chosen = _programs(config["program"], sections)
    target = _target(config["target"], mesh, programs)
    # One device with the work of all says nothing of hardware that has them all.
    left_out = tuple(program for program in programs if target.topology and not chosen and program == "vmap")
    programs = tuple(program for program in programs if program not in left_out)
    expectable = _expectable(sections, grad, outputs, mesh, dims)
    experiment = Experiment(
        name=name,
        summary=config["summary"],
        source=config["source"],
        mesh=mesh,
        target=target,
        dims=dims,
        verify_dims=verify_dims,
        arrays=arrays,
        graph=sections["graph"],
        # A user who asks for one program of the graph may sweep layouts that per_device was not written for.
        per_device=sections["per_device"] if set(programs) & set(PER_DEVICE_PROGRAMS) else (),
        constraints=constraints,
        outputs=outputs,
        values=_values(config["expect"].get("values") or {}, outputs),
        programs=programs,
        left_out=left_out,
        chosen=chosen,
        grad=grad,
        tested=_tested(config["test"]),
        approximate=_approximate(config["expect"].get("sections") or {}, outputs, sections),
        weak=_weak(config["expect"].get("weak"), outputs),
        expected=expect.read(config["expect"], programs, target.platform, expectable),
        wrong=expect.known_wrong(config["expect"], programs, target.platform, expectable),
        **{key: config[key] for key in _AS_THEY_ARE if key in config},
    )
    if experiment.precision not in PRECISIONS:
        raise invalid(("precision",), f"no precision '{experiment.precision}'; there are {', '.join(PRECISIONS)}")
    if experiment.seed < 0:
        raise invalid(("seed",), "the seed must not be negative")
    if not experiment.timeout > 0:
        raise invalid(("timeout",), "the timeout is a number of seconds above 0")
    if experiment.trace and not sections["per_device"]:
        raise invalid(("trace",), "trace=true needs a per_device")
    if experiment.trace and not experiment.per_device:
        message = f"trace=true shows per_device, which program={experiment.programs[0]} does not run"
        raise invalid(("trace",), message + _list(PER_DEVICE_PROGRAMS))
    return experiment


def _mesh(config: Mapping[str, Any]) -> Mesh:
    axes, shape = config.get("axes"), config.get("shape")
    if axes is None or shape is None:
        raise invalid(("mesh",), "there is no mesh; name one (mesh=x2_y2) or give mesh.axes and mesh.shape")
    for i, axis in enumerate(axes):
        if not isinstance(axis, str) or not _IDENTIFIER.match(axis):
            raise invalid(("mesh", "axes", i), f"{axis!r} is not an axis name{_yaml_hint(axis)}")
        if axis in axes[:i]:
            raise invalid(("mesh", "axes", i), f"the mesh axis '{axis}' stands twice")
    if not axes:
        raise invalid(("mesh", "axes"), "the mesh has no axes")
    for i, size in enumerate(shape):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise invalid(("mesh", "shape", i), f"{size!r} is not the size of an axis; it is an integer of at least 1")
    if len(axes) != len(shape):
        raise invalid(("mesh", "shape"), f"{_count(shape, 'size')} for {_count(axes, 'axis', 'axes')}")
    return Mesh(tuple(axes), tuple(shape))


def _name(name: object, key: Key) -> None:
    if not isinstance(name, str) or not _IDENTIFIER.match(name):
        raise invalid(key, f"{name!r} is not a name; use letters, digits and '_'{_yaml_hint(name)}")
    if keyword.iskeyword(name):
        raise invalid(key, f"'{name}' is a word of Python's, which no expression can use as a name")
    if name in CONSTANTS:
        raise invalid(key, f"'{name}' is a number in every expression; a name means one thing")


def _yaml_hint(value: object) -> str:
    return "; YAML reads yes, no, on and off as true and false: put it in quotes" if isinstance(value, bool) else ""


def _count(things: Any, singular: str, plural: str | None = None) -> str:
    return f"{len(things)} {singular if len(things) == 1 else plural or singular + 's'}"


def _expression(text: object, key: Key) -> Expression:
    return canonical(_parsed(text, key))


def _parsed(text: object, key: Key) -> Expression:
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise invalid(key, f"{text!r} is not an expression{_yaml_hint(text)}")
    try:
        return parse(str(text))
    except SyntaxFault as fault:
        raise InvalidExperiment(located(key, str(text), fault)) from None


def located(key: Key, text: str, fault: SyntaxFault) -> Fault:
    """A fault inside the expression `text` that stands at `key`."""
    return Fault(key, fault.message, on_one_line(text), fault.start, fault.end)


def _size(value: object, key: Key, sizes: Mapping[str, int], mesh: Mesh | None = None) -> int:
    """An integer, or an expression of dims."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and _IDENTIFIER.match(value) and value not in sizes:
        raise _no_dim(value, key, sizes)
    if not isinstance(value, str):
        raise invalid(key, f"{value!r} is not a size; it is an integer, a dim, or an expression of dims")
    expression = _expression(value, key)
    try:
        return static.evaluate(expression, sizes, mesh)
    except SyntaxFault as fault:
        raise InvalidExperiment(located(key, expression.text, fault)) from None


def _no_dim(name: str, key: Key, dims: Mapping[str, int]) -> InvalidExperiment:
    known = f"; the dims are {', '.join(dims)}" if dims else "; there are no dims"
    return invalid(key, f"no dim '{name}'{nearest(name, dims) or known}")


def _dims(config: Mapping[str, Any]) -> dict[str, int]:
    dims: dict[str, int] = {}
    for name, value in config.items():
        key = ("dims", name)
        _name(name, key)
        dims[name] = _dim(name, value, key, dims)
    return dims


def _dim(name: str, value: object, key: Key, dims: Mapping[str, int]) -> int:
    size = _size(value, key, dims)
    if size < 1:
        raise invalid(key, f"the dim '{name}' is {size}; a size is at least 1")
    return size


def _verify_dims(config: Mapping[str, Any], dims: Mapping[str, int]) -> dict[str, int]:
    smaller = {}
    for name, value in config.items():
        key = ("verify_dims", name)
        if name not in dims:
            raise _no_dim(name, key, dims)
        smaller[name] = _dim(name, value, key, dims)
    return smaller


def _array(name: str, config: Mapping[str, Any], mesh: Mesh, dims: Mapping[str, int]) -> Array:
    key = ("arrays", name)
    if config.get("shape") is None:
        raise invalid(key, f"the array '{name}' has no shape")
    shape = tuple(_size(entry, (*key, "shape", i), dims) for i, entry in enumerate(config["shape"]))
    for i, size in enumerate(shape):
        if size < 1:
            raise invalid((*key, "shape", i), f"dimension {i} of '{name}' has size {size}; a size is at least 1")
    if config["dtype"] not in dtypes.NAMES:
        hint = nearest(config["dtype"], dtypes.NAMES)
        raise invalid(
            (*key, "dtype"), f"no dtype '{config['dtype']}'{hint or '; for example float32, bfloat16, int32'}"
        )
    letters = tuple(entry if isinstance(entry, str) else None for entry in config["shape"])
    spec = _spec(config["spec"], (*key, "spec"), mesh)
    fits(spec, shape, letters, mesh, (*key, "spec"), name)
    init = config["init"]
    if isinstance(init, str):
        # NumPy makes it: `canonical` would give `normal` the arguments of JAX's.
        init = _parsed(init, (*key, "init"))
    return Array(name, Layout(mesh, shape, spec), letters, config["dtype"], init)


def _spec(value: object, key: Key, mesh: Mesh) -> Spec:
    if not isinstance(value, list):
        raise invalid(key, f"{value!r} is not a PartitionSpec; it is a list such as [x, null]")
    spec: list[tuple[str, ...]] = []
    for i, entry in enumerate(value):
        axes = [] if entry is None else entry if isinstance(entry, list) else [entry]
        for axis in axes:
            if not isinstance(axis, str):
                message = f"{axis!r} is not a mesh axis, null, or a list of axes{_yaml_hint(axis)}"
                raise invalid((*key, i), message)
            if axis not in mesh.axes:
                raise invalid((*key, i), missing_axis(axis, mesh) + nearest(axis, mesh.axes))
            if axis in axes[: axes.index(axis)] or any(axis in earlier for earlier in spec) or axes.count(axis) > 1:
                raise invalid(
                    (*key, i), f"the mesh axis '{axis}' is used twice; each axis shards one dimension at most"
                )
        spec.append(tuple(axes))
    return tuple(spec)


def fits(spec: Spec, shape: tuple[int, ...], dims: tuple[str | None, ...], mesh: Mesh, key: Key, name: str) -> None:
    """Raise `InvalidExperiment` unless `spec` can lay out an array of `shape`."""
    if len(spec) > len(shape):
        raise invalid(key, f"the spec has {_count(spec, 'entry', 'entries')}, but '{name}' has rank {len(shape)}")
    for i, axes in enumerate(spec):
        parts = mesh.axis_size(axes)
        if shape[i] % parts:
            letter = f" ({dims[i]})" if i < len(dims) and dims[i] else ""
            over = " × ".join(f"{axis}={mesh.sizes[axis]}" for axis in axes)
            raise invalid((*key, i), f"dimension {i}{letter} of '{name}' has size {shape[i]}, "
                                     f"which {over} does not divide")  # fmt: skip


def _specs(config: Mapping[str, Any], section: str, mesh: Mesh) -> dict[str, Spec]:
    return {name: _spec([] if value is None else value, (section, name), mesh) for name, value in config.items()}


def _distinct_names(config: Mapping[str, Any], arrays: tuple[Array, ...], dims: Mapping[str, int]) -> None:
    for array in arrays:
        _name(array.name, ("arrays", array.name))
        if array.name in dims:
            raise invalid(("arrays", array.name), f"'{array.name}' is a dim already; a name means one thing")
    taken = {array.name: "an array" for array in arrays} | dict.fromkeys(dims, "a dim")
    for section in ("graph", "per_device"):
        for name in config[section]:
            _name(name, (section, name))
            if name in taken:
                raise invalid((section, name), f"'{name}' is {taken[name]} already; a name means one thing")


_LOOP_KEYS = ("repeat", "index", "carry", "body", "unroll")


def _statements(config: Mapping[str, Any], key: Key, scope: Scope, dims: Mapping[str, int]) -> tuple[Statement, ...]:
    """The statements of a section or of a loop's body; `scope` grows by their names."""
    parsed = {
        name: None if isinstance(value, Mapping) else _expression(value, (*key, name)) for name, value in config.items()
    }
    statements: list[Statement] = []
    for position, (name, value) in enumerate(config.items()):
        later = dict(list(parsed.items())[position:])
        local = replace(scope, later=later)
        expression = parsed[name]
        if expression is None:
            loop = _loop(name, value, (*key, name), local, dims)
            statements.append(loop)
            scope.loops[name] = tuple(carried for carried, _ in loop.carry)
        else:
            _check(expression, (*key, name), local, cycle_of=name)
            statements.append(Node(name, expression))
            scope.values.add(name)
    return tuple(statements)


def _check(expression: Expression, key: Key, scope: Scope, cycle_of: str | None = None) -> None:
    try:
        check(expression, scope)
    except SyntaxFault as fault:
        cycle = _cycle(cycle_of, scope) if cycle_of else None
        if cycle and "used before it stands" in fault.message:
            fault.message = f"a cycle: {' → '.join(cycle)}; no order of the lines can compute it"
        raise InvalidExperiment(located(key, expression.text, fault)) from None


def _cycle(start: str, scope: Scope) -> list[str] | None:
    """The names along which `start` depends on itself, if it does."""
    paths = [[start]]
    while paths:
        path = paths.pop()
        expression = scope.later.get(path[-1])
        for node in names(expression.tree) if expression else ():
            if node.id in scope.values or node.id not in scope.later:
                continue
            if node.id == start:
                return [*path, start]
            if node.id not in path:
                paths.append([*path, node.id])
    return None


def _loop(name: str, config: Mapping[str, Any], key: Key, scope: Scope, dims: Mapping[str, int]) -> Loop:
    for entry in config:
        if entry not in _LOOP_KEYS:
            hint = nearest(entry, _LOOP_KEYS) or f"; a repeat has {', '.join(_LOOP_KEYS)}"
            raise invalid((*key, entry), f"a repeat has no key '{entry}'{hint}")
    for entry in ("repeat", "carry", "body"):
        if entry not in config:
            raise invalid(key, f"the repeat '{name}' has no '{entry}'")
    for entry in ("carry", "body"):
        if not isinstance(config[entry], Mapping) or not config[entry]:
            raise invalid((*key, entry), f"the {entry} of a repeat maps names to expressions")
    steps = _size(config["repeat"], (*key, "repeat"), dims, scope.mesh if scope.section == "per_device" else None)
    if steps < 0:
        raise invalid((*key, "repeat"), f"the repeat '{name}' has {steps} steps")
    index = config.get("index", "i")
    unroll = config.get("unroll", True)
    if not isinstance(unroll, bool):
        raise invalid((*key, "unroll"), "unroll is true (a Python loop) or false (jax.lax.fori_loop)")
    for inner, where in (
        (index, "index"),
        *((n, "carry") for n in config["carry"]),
        *((n, "body") for n in config["body"]),
    ):
        _name(inner, (*key, where))
        if inner in dims:
            raise invalid((*key, where), f"'{inner}' is a dim already; a name means one thing")
    carry = []
    for carried, first in config["carry"].items():
        expression = _expression(first, (*key, "carry", carried))
        _check(expression, (*key, "carry", carried), scope)
        carry.append((carried, expression))
    if index in config["carry"] or index in config["body"]:
        raise invalid((*key, "index"), f"'{index}' counts the steps and cannot be assigned")
    inside = scope.nested()
    inside.values |= {carried for carried, _ in carry} | {index}
    inside.loops = {n: c for n, c in inside.loops.items() if n not in config["body"]}
    body = _statements(config["body"], (*key, "body"), inside, dims)
    for statement in body:
        if statement.name in scope.values and statement.name not in config["carry"]:
            message = f"'{statement.name}' is a name outside the repeat already; carry it, or choose another name"
            raise invalid((*key, "body", statement.name), message)
        if isinstance(statement, Loop) and statement.name in config["carry"]:
            raise invalid(
                (*key, "body", statement.name), f"'{statement.name}' is carried; a repeat cannot be assigned to it"
            )
    return Loop(name, steps, index, tuple(carry), body, unroll)


def results(statements: tuple[Statement, ...]) -> set[str]:
    """The names of values after `statements`: `C`, `ring.acc`."""
    return {name for statement in statements for name in statement.defines}


def _known_result(name: str, section: str, statements: tuple[Statement, ...], arrays: set[str], where: str) -> None:
    known = results(statements) | arrays
    if name not in known:
        raise invalid((section, name), f"{where} computes no '{name}'{nearest(name, known)}")


def _check_outputs(
    outputs: Mapping[str, Spec], sections: Mapping[Section, tuple[Statement, ...]], grad: Gradient | None
) -> None:
    if not outputs:
        raise invalid(("outputs",), "the experiment has no outputs; map the names of its results to PartitionSpecs")
    for name in outputs:
        if grad and name.startswith(f"{GRADIENTS}."):
            if name not in grad.names:
                raise invalid(("outputs", name), f"grad.wrt has no '{name.removeprefix(f'{GRADIENTS}.')}'"
                                                 f"{nearest(name, grad.names) or _list(grad.names)}")  # fmt: skip
            continue
        for section, statements in sections.items():
            if statements:
                _known_result(name, "outputs", statements, set(), section)


DIFFERENCES = 1000
"""Of how many elements, at most, the oracle takes central differences one by one."""


def _gradient(
    config: Mapping[str, Any],
    arrays: tuple[Array, ...],
    outputs: Mapping[str, Spec],
    sections: Mapping[Section, tuple[Statement, ...]],
) -> Gradient | None:
    of, wrt = config.get("of"), config.get("wrt") or []
    wrt = wrt if isinstance(wrt, list) else [wrt]
    if of is None and not wrt:
        return None
    if of is None:
        raise invalid(("grad",), "grad.of is missing: the scalar output that is differentiated")
    if not wrt:
        raise invalid(("grad",), "grad.wrt is missing: the arrays with respect to which the gradient is taken")
    if of not in outputs:
        known = any(of in results(statements) for statements in sections.values())
        hint = "; give it a PartitionSpec there: []" if known else nearest(of, outputs)
        raise invalid(("grad", "of"), f"'{of}' is not among the outputs{hint}")
    named = {array.name: array for array in arrays}
    for i, name in enumerate(wrt):
        key = ("grad", "wrt", i) if isinstance(config["wrt"], list) else ("grad", "wrt")
        if not isinstance(name, str) or name not in named:
            raise invalid(key, f"there is no array {name!r}{nearest(str(name), named) or _list(tuple(named))}")
        if name in wrt[:i]:
            raise invalid(key, f"'{name}' stands twice")
        if dtypes.dtype(named[name].dtype).kind != "float":
            raise invalid(key, f"'{name}' is {named[name].dtype}; a gradient is with respect to an array of floats")
    for section, statements in sections.items():
        if any(statement.name == GRADIENTS for statement in statements):
            raise invalid((section, GRADIENTS), f"the gradients are called {GRADIENTS}.…; choose another name")
    elements = sum(math.prod(named[name].shape) for name in wrt)
    if not sections["graph"] and elements > DIFFERENCES:
        raise invalid(
            ("grad", "wrt"),
            f"without a graph the gradient's oracle is a central difference for every element, and {elements} are more "
            f"than {DIFFERENCES}: add a graph, or make the arrays smaller",
        )
    return Gradient(of, tuple(wrt))


def _undeclared(grad: Gradient | None, arrays: tuple[Array, ...], outputs: Mapping[str, Spec]) -> dict[str, Spec]:
    """The PartitionSpecs of the gradients that `outputs` does not name: each lies as its array does."""
    if grad is None:
        return {}
    specs = {f"{GRADIENTS}.{array.name}": array.layout.spec for array in arrays}
    return {name: specs[name] for name in grad.names if name not in outputs}


def _programs(program: str, sections: Mapping[Section, tuple[Statement, ...]]) -> tuple[tuple[str, ...], bool]:
    there = tuple(p for p in PROGRAMS if sections[program_section(p)])
    if program == "all":
        return there, False
    if program not in PROGRAMS:
        raise invalid(("program",), f"no program '{program}'{nearest(program, PROGRAMS) or _list(('all', *PROGRAMS))}")
    if program not in there:
        raise invalid(
            ("program",),
            f"program '{program}' is written from {program_section(program)}, which this experiment does not have"
            f"{_list(there)}",
        )
    return (program,), True


def _list(candidates: tuple[str, ...]) -> str:
    return f"; there are {', '.join(candidates)}"


def _target(config: Mapping[str, Any], mesh: Mesh, programs: tuple[str, ...]) -> Target:
    platform, devices = config.get("platform") or "cpu", config.get("devices")
    if platform not in PLATFORMS:
        raise invalid(
            ("target", "platform"), f"no platform '{platform}'{nearest(platform, PLATFORMS) or _list(PLATFORMS)}"
        )
    absent = None if config.get("topology") is None else topology.parse(config["topology"], platform)
    platform = absent.platform if absent else platform
    if devices is not None and absent:
        raise invalid(("target", "devices"), f"{absent.name} has its own {absent.devices} devices")
    if devices is not None and platform != "cpu":
        raise invalid(
            ("target", "devices"), f"only CPU devices can be simulated; {platform} has the devices that are here"
        )
    if devices is not None and devices < mesh.size:
        raise invalid(("mesh", "shape"), f"the mesh {mesh} needs {mesh.size} devices, but target.devices is {devices}")
    if absent and mesh.size != absent.devices and programs != ("vmap",):
        # libtpu refuses to compile for a part of some slices, such as 8x8 of v5e:16x16.
        each = ", two on each chip" if absent.devices_per_chip == 2 else ""
        fits = ",".join(map(str, absent.mesh_shape(len(mesh.axes))))
        raise invalid(
            ("mesh", "shape"),
            f"the mesh {mesh} has {mesh.size} device{'s' if mesh.size > 1 else ''}, but {absent.name} has "
            f"{absent.devices}{each}; a mesh takes all of them: mesh.shape=[{fits}]",
        )
    return Target(platform, devices or mesh.size, absent)


def _tested(config: Mapping[str, Any]) -> tuple[str, ...]:
    targets = config.get("targets", ["cpu"])
    if not targets:
        raise invalid(("test", "targets"), "there is no target to test; the default is [cpu]")
    for i, target in enumerate(targets):
        if not isinstance(target, str):
            raise invalid(("test", "targets", i), f"{target!r} is not the name of a target{_yaml_hint(target)}")
        if target in targets[:i]:
            raise invalid(("test", "targets", i), f"the target '{target}' stands twice")
    return tuple(targets)


def _values(config: Mapping[str, Any], outputs: Mapping[str, Spec]) -> dict[str, Any]:
    for name, value in config.items():
        if name not in outputs:
            raise invalid(("expect", "values", name), f"'{name}' is not an output{nearest(name, outputs)}")
        if 0 in _rectangular(value, ("expect", "values", name)):
            raise invalid(("expect", "values", name), f"there is no number that '{name}' could be compared with")
    return dict(config)


def _approximate(
    config: Mapping[str, Any], outputs: Mapping[str, Spec], sections: Mapping[Section, tuple[Statement, ...]]
) -> dict[str, float]:
    for name, share in config.items():
        key = ("expect", "sections", name)
        if name not in outputs:
            raise invalid(key, f"'{name}' is not an output{nearest(name, outputs)}")
        if not (sections["graph"] and sections["per_device"]):
            raise invalid(key, "there are not two sections that could differ")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < math.inf:
            raise invalid(key, f"{share!r} is not a share of the output's root mean square, such as 1e-2")
    return {name: float(share) for name, share in config.items()}


def _weak(config: Any, outputs: Mapping[str, Spec]) -> frozenset[str]:
    names = [] if config is None else config if isinstance(config, list) else [config]
    for i, name in enumerate(names):
        if not isinstance(name, str) or name not in outputs:
            key = ("expect", "weak", i) if isinstance(config, list) else ("expect", "weak")
            raise invalid(key, f"{name!r} is not an output{nearest(str(name), outputs)}")
    return frozenset(names)


def _expectable(
    sections: Mapping[Section, tuple[Statement, ...]],
    grad: Gradient | None,
    outputs: Mapping[str, Spec],
    mesh: Mesh,
    dims: Mapping[str, int],
) -> expect.Names:
    gradients = grad.names if grad else ()
    return expect.Names(
        programs=PROGRAMS,
        platforms=PLATFORMS,
        lines={program: {*lines(sections[program_section(program)]), *gradients} for program in PROGRAMS},
        values=results(sections["graph"]),
        outputs=tuple(outputs),
        sections={p: section for p in PROGRAMS if not sections[section := program_section(p)]},
        spec=lambda value, key: _spec(value, key, mesh),
        size=lambda value, key: _size(value, key, dims, mesh),
    )


def lines(statements: Iterable[Statement], path: str = "") -> Iterator[str]:
    """The lines of a section as evidence names them: `C`, of a loop `ring` and `ring.lhs`."""
    for statement in statements:
        yield f"{path}{statement.name}"
        if isinstance(statement, Loop):
            yield from lines(statement.body, f"{path}{statement.name}.")


def _rectangular(value: Any, key: Key) -> tuple[int, ...]:
    """The shape of a nested list of numbers."""
    if not isinstance(value, list):
        if not isinstance(value, bool | int | float):
            raise invalid(key, f"{value!r} is not a number")
        return ()
    shapes = [_rectangular(entry, (*key, i)) for i, entry in enumerate(value)]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise invalid((*key, i), f"the rows have different shapes: {list(shapes[0])} and {list(shape)}")
    return (len(value), *(shapes[0] if shapes else ()))


def literal_shape(value: Any, key: Key) -> tuple[int, ...]:
    """The shape of a number or nested list of numbers. Raises `InvalidExperiment` if it is ragged."""
    return _rectangular(value, key)


def size_text(shape: tuple[int, ...]) -> str:
    """`4 × 4 = 16`, for messages."""
    return " × ".join(map(str, shape)) + (f" = {math.prod(shape)}" if len(shape) > 1 else "") if shape else "1"
