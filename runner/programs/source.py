"""An experiment in; the parts that every program's source is made of out: header, data, lines, printing.

A program is a module with these functions, which its own `main` calls and the runner calls:

- `inputs()`: the arrays, whole, in NumPy.
- `make_mesh(devices=None)` and `shardings(mesh)`: the mesh and one sharding per array (not in `vmap`).
- `program(mesh)`: the jitted function from arrays to a tuple of outputs.

For a topology that is not here, `runner/programs/absent.py` has what stands in the place of the data.
"""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import textwrap
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner import __version__, dtypes
from runner.experiment import data
from runner.experiment.model import Array, Experiment, Loop, Node, Statement, program_section
from runner.language import trees
from runner.language.operations import COMPUTATIONS, CONSTANTS, OPERATIONS, computation
from runner.language.syntax import Expression
from runner.layout import Spec, spec_text

_RESERVED = frozenset(
    {*keyword.kwlist, *dir(builtins)}
    | {"jax", "jnp", "np", "ml_dtypes", "P", "AxisType", "NamedSharding", "rng", "mesh", "devices"}
    | {"os", "mesh_utils", "topologies", "topology", "abstract_inputs"}
    | {"inputs", "make_mesh", "shardings", "program", "main", "split", "join", "per_device", "step", "carry"}
)


class Names:
    """The experiment's names as Python identifiers, each distinct and none that the script needs itself."""

    def __init__(self, experiment: Experiment) -> None:
        self._identifiers: dict[str, str] = {}
        self._taken = set(_RESERVED)
        for name in (*experiment.dims, *(array.name for array in experiment.arrays)):
            self.add(name)
        self.function = self._free(experiment.name.replace("-", "_").replace(".", "_").replace("+", "_"))

    def reserve(self, wish: str) -> str:
        """An identifier of the script's own, close to `wish`, that no name of the experiment gets."""
        return self._free(wish)

    def _free(self, wish: str) -> str:
        if not wish.isidentifier():
            wish = f"experiment_{wish}"
        while wish in self._taken:
            wish += "_"
        self._taken.add(wish)
        return wish

    def add(self, name: str) -> str:
        """The identifier of a name, made when it is new."""
        if name not in self._identifiers:
            self._identifiers[name] = self._free(name.replace(".", "_"))
        return self._identifiers[name]

    def __getitem__(self, name: str) -> str:
        return self._identifiers[name]


@dataclass(frozen=True)
class Repair:
    """What explicit sharding asks of one call: the sharding of its result, or of some of its operands.

    Found by `runner/worker/explicit.py`. Operands are numbered as `operands` lists them; those of
    an operator, left then right.
    """

    out_sharding: Spec | None = None
    operands: Mapping[int, Spec] = field(default_factory=dict)


@dataclass(frozen=True)
class Repairs:
    """The repairs of a whole section.

    - `calls`: for each statement's path, the repair of the call at each place in `ast.walk` order.
    - `reshard`: the spec to which an array, a statement's result, or a loop's carry `loop/carry` is resharded.
    - `returned`: the spec to which an output is resharded last, where the graph goes on with another.
    - `constant`: whether no output depends on an array, so that nothing but the outputs tells JAX the mesh.
    """

    calls: Mapping[str, Mapping[int, Repair]] = field(default_factory=dict)
    reshard: Mapping[str, Spec] = field(default_factory=dict)
    returned: Mapping[str, Spec] = field(default_factory=dict)
    constant: bool = False


@dataclass(frozen=True)
class Typed:
    """The shape and the dtype of one value."""

    shape: tuple[int, ...]
    dtype: str


Floats = dict[str, dict[str, str]]
"""The dtypes of floats that are neither float32 nor complex64: for each line, by the place in its expression."""


@dataclass(frozen=True)
class Types:
    """What JAX's abstract evaluation found, as plain data: `runner/worker/types.py` makes it.

    - `outputs`: the whole outputs.
    - `nodes`: every named value of each section (in `per_device` as one device sees it).
    - `repairs`: what explicit sharding asks for.
    - `unsupported`: the programs that JAX cannot express, with the reason.
    - `floats`: for each section, the dtypes of what its expressions are made of.
    - `derived`: the experiment with the lines derived from its graph as `per_device`; `derivation` is the same as plain
      data, with what there is to say of it.
    """

    outputs: Mapping[str, Typed]
    nodes: Mapping[str, Mapping[str, Typed]]
    repairs: Repairs
    unsupported: Mapping[str, str]
    floats: Mapping[str, Floats] = field(default_factory=dict)
    derived: Experiment | None = None
    derivation: Mapping[str, Any] = field(default_factory=dict)


class Lines:
    """The source lines of a section, one named scope per node."""

    def __init__(
        self, experiment: Experiment, names: Names, repairs: Repairs | None = None, *, under_vmap: bool = False
    ) -> None:
        self._experiment = experiment
        self._names = names
        self._repairs = repairs or Repairs()
        self._under_vmap = under_vmap
        self._lines: list[str] = []

    def section(self, statements: Iterable[Statement], constrained: Mapping[str, Spec] | None = None) -> str:
        """The lines of `statements`; the values named in `constrained` get a `with_sharding_constraint`."""
        self._constrained = constrained or {}
        for array in self._experiment.arrays:
            self._follow(array.name, self._names[array.name], "")
        self._statements(statements, "", "")
        return "\n".join(self._lines)

    def _put(self, indent: str, line: str) -> None:
        self._lines.append(indent + line)

    def _statements(self, statements: Iterable[Statement], indent: str, path: str) -> None:
        for statement in statements:
            if isinstance(statement, Loop):
                self._loop(statement, indent, f"{path}{statement.name}")
            else:
                self._node(statement, indent, f"{path}{statement.name}")

    def _node(self, node: Node, indent: str, path: str) -> None:
        source = self._expression(node.expression, path)
        identifier = self._names.add(node.name)
        self._put(indent, f'with jax.named_scope("{node.name}"):')
        self._put(indent, f"    {identifier} = {source}")
        self._follow(path, identifier, indent + "    ")

    def _follow(self, path: str, identifier: str, indent: str) -> None:
        """What follows a definition. Only what stands in no loop's body has a name for its path."""
        if path in self._repairs.reshard:
            self._put(indent, f"{identifier} = {resharded(identifier, self._repairs.reshard[path])}")
        if path in self._constrained:
            self._put(indent, f"{identifier} = {constrained(identifier, self._constrained[path])}")

    def _loop(self, loop: Loop, indent: str, path: str) -> None:
        firsts = [self._expression(first, f"{path}/carry/{name}") for name, first in loop.carry]
        body = self._names.add(loop.name)
        carried = [self._names.add(name) for name, _ in loop.carry]
        index = self._names.add(loop.index)
        self._put(indent, f"def {body}({index}, carry):")
        self._put(indent, f"    {tuple_of(carried)} = carry")
        self._statements(loop.body, indent + "    ", f"{path}/body/")
        returned = [
            resharded(identifier, self._repairs.reshard[f"{path}/{name}"])
            if f"{path}/{name}" in self._repairs.reshard
            else identifier
            for (name, _), identifier in zip(loop.carry, carried, strict=True)
        ]
        self._put(indent, f"    return {tuple_of(returned)}")
        self._put(indent, "")
        self._put(indent, f'with jax.named_scope("{loop.name}"):')
        if loop.unroll:
            self._put(indent, f"    carry = {tuple_of(firsts)}")
            self._put(indent, f"    for step in range({loop.steps}):")
            self._put(indent, f"        carry = {body}(step, carry)")
        else:
            self._put(indent, f"    carry = jax.lax.fori_loop(0, {loop.steps}, {body}, {tuple_of(firsts)})")
        results = [self._names.add(f"{loop.name}.{name}") for name, _ in loop.carry]
        self._put(indent, f"    {tuple_of(results)} = carry")
        for (name, _), identifier in zip(loop.carry, results, strict=True):
            self._follow(f"{path}.{name}", identifier, indent + "    ")

    def _expression(self, expression: Expression, path: str) -> str:
        repairs = self._repairs.calls.get(path, {})
        places = {id(node): place for place, node in enumerate(ast.walk(expression.tree))}
        tree = _Emit(self._experiment, self._names, repairs, places, self._under_vmap).visit(expression.tree)
        return ast.unparse(ast.fix_missing_locations(tree))


class _Emit(ast.NodeTransformer):
    """An expression of the language as one of JAX. Builds new nodes: the experiment's trees stay as they are."""

    def __init__(
        self,
        experiment: Experiment,
        names: Names,
        repairs: Mapping[int, Repair],
        places: Mapping[int, int],
        under_vmap: bool,
    ) -> None:
        self._experiment = experiment
        self._names = names
        self._repairs = repairs
        self._places = places
        self._under_vmap = under_vmap

    def _repair(self, node: ast.AST) -> Repair:
        return self._repairs.get(self._places[id(node)], Repair())

    def generic_visit(self, node: ast.AST) -> ast.AST:
        return type(node)(**trees.fields(node, self.visit))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return _parse(f"jnp.{node.id}") if node.id in CONSTANTS else ast.Name(self._names[node.id])

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.attr != "T":
            return ast.Name(self._names[f"{node.value.id}.{node.attr}"])
        return ast.Attribute(self.visit(node.value), node.attr)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        repair = self._repair(node)
        operands = self._operands([self.visit(node.left), self.visit(node.right)], repair)
        if repair.out_sharding is not None:
            keyword_ = ast.keyword("out_sharding", _parse(sharding(repair.out_sharding)))
            return ast.Call(_parse("jnp.matmul"), operands, [keyword_])
        return ast.BinOp(operands[0], node.op, operands[1])

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        left, right = self._operands([self.visit(node.left), self.visit(node.comparators[0])], self._repair(node))
        return ast.Compare(left, node.ops, [right])

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        repair = self._repair(node)
        several = isinstance(node.slice, ast.Tuple)
        value, *parts = self._operands([self.visit(operand) for operand in operands(node)], repair)
        index = ast.Tuple(parts) if several else parts[0]
        if repair.out_sharding is None:
            return ast.Subscript(value, index)
        get = ast.Attribute(ast.Subscript(ast.Attribute(value, "at"), index), "get")
        return ast.Call(get, [], [ast.keyword("out_sharding", _parse(sharding(repair.out_sharding)))])

    def visit_Call(self, node: ast.Call) -> ast.expr:
        assert isinstance(node.func, ast.Name)
        operation = OPERATIONS[node.func.id]
        if self._under_vmap and operation.name == "pcast":
            # vmap knows no varying axes.
            return self.visit(node.args[0])
        repair = self._repair(node)
        named_function = computation(node)
        written = [
            _parse(COMPUTATIONS[ast.literal_eval(operand)]) if operand is named_function else self.visit(operand)
            for operand in operands(node)
        ]
        flat = iter(self._operands(written, repair))
        positional, named = [
            [
                type(argument)([next(flat) for _ in argument.elts])
                if isinstance(argument, ast.List | ast.Tuple)
                else next(flat)
                for argument in arguments
            ]
            for arguments in (node.args, [k.value for k in node.keywords])
        ]
        keywords = [
            ast.keyword(k.arg, value)
            for k, value in zip(node.keywords, named, strict=True)
            # vmap knows no varying axes.
            if not (self._under_vmap and k.arg == "to")
        ]
        if operation.name == "ppermute":
            keywords = [self._shift(node, k) if k.arg == "shift" else k for k in keywords]
        if repair.out_sharding is not None:
            keywords.append(ast.keyword("out_sharding", _parse(sharding(repair.out_sharding))))
        return ast.Call(_parse(operation.jax), positional, keywords)

    def _operands(self, operands: list[ast.expr], repair: Repair) -> list[ast.expr]:
        return [
            _parse(resharded(ast.unparse(ast.fix_missing_locations(operand)), repair.operands[i]))
            if i in repair.operands
            else operand
            for i, operand in enumerate(operands)
        ]

    def _shift(self, node: ast.Call, shift: ast.keyword) -> ast.keyword:
        """`shift=` as the permutation that it stands for."""
        bound = OPERATIONS["ppermute"].signature.bind(*node.args, **{str(k.arg): k.value for k in node.keywords})
        size = self._experiment.mesh.axis_size(ast.literal_eval(bound.arguments["axis_name"]))
        by = ast.unparse(shift.value)
        sign, by = ("-", by[1:]) if by.startswith("-") else ("+", by)
        return ast.keyword("perm", _parse(f"[(j, (j {sign} {by}) % {size}) for j in range({size})]"))


def operands(node: ast.Call | ast.Subscript) -> list[ast.expr]:
    """The arguments of a call, positional then by keyword, lists and tuples taken apart; what a subscript reads."""
    if isinstance(node, ast.Subscript):
        return [node.value, *(node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])]
    flat: list[ast.expr] = []
    for argument in (*node.args, *(k.value for k in node.keywords)):
        flat += argument.elts if isinstance(argument, ast.List | ast.Tuple) else [argument]
    return flat


def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def tuple_of(items: list[str]) -> str:
    """`(a, b)`, `(a,)`."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def sharding(spec: Spec) -> str:
    """`NamedSharding(mesh, P('x', None))`."""
    return f"NamedSharding(mesh, {spec_text(spec)})"


def resharded(value: str, spec: Spec) -> str:
    """`value`, laid out by explicit sharding."""
    return f"jax.reshard({value}, {sharding(spec)})"


def constrained(value: str, spec: Spec) -> str:
    """`value`, laid out by the compiler."""
    return f"jax.lax.with_sharding_constraint({value}, {sharding(spec)})"


def header(experiment: Experiment, program: str, names: Names, body: str, *, mesh: bool) -> str:
    """The docstring, the imports, the configuration of JAX and the dims, for a program whose function has this body."""
    title = textwrap.fill(f"{experiment.name}: {experiment.summary}".rstrip(": "), 110).replace('"""', "'''")
    lines = [
        f'"""{title}',
        "",
        f"Program {program}, written by shardproof {__version__}. {_use(experiment, program)}",
        '"""',
        "",
        *_imports(experiment, body, mesh=mesh),
        "",
    ]
    if experiment.target.topology:
        lines += experiment.target.topology.configuration
    elif experiment.target.platform == "cpu":
        devices = 1 if program == "vmap" and len(experiment.programs) == 1 else experiment.target.devices
        lines += [
            'jax.config.update("jax_platforms", "cpu")',
            f'jax.config.update("jax_num_cpu_devices", {devices})',
        ]
    if experiment.x64:
        lines.append('jax.config.update("jax_enable_x64", True)')
    if experiment.precision != "default":
        lines.append(f'jax.config.update("jax_default_matmul_precision", "{experiment.precision}")')
    sizes = dims(experiment, names, body)
    return "\n".join([*lines, "", sizes] if sizes else lines).rstrip()


def _use(experiment: Experiment, program: str) -> str:
    if experiment.target.topology is None:
        return f"It runs alone: python program_{program}.py"
    return f"It compiles for {experiment.target.topology.name}, alone:\npython program_{program}.py"


def _imports(experiment: Experiment, body: str, *, mesh: bool) -> list[str]:
    absent = experiment.target.topology
    named = {dtypes.dtype(array.dtype).source.split(".")[0] for array in experiment.arrays}
    lines = ["import os", "", "import jax"] if absent and absent.configuration else ["import jax"]
    if "jnp." in body:
        lines.append("import jax.numpy as jnp")
    if "ml_dtypes" in named:
        lines.append("import ml_dtypes")
    if absent is None or "np" in named or "np." in body.replace("jnp.", ""):
        lines.append("import numpy as np")
    if absent:
        split = "mesh_utils, " if mesh and experiment.target.split_axes else ""
        lines.append(f"from jax.experimental import {split}topologies")
    if mesh:
        lines.append("from jax.sharding import AxisType, NamedSharding")
        lines.append("from jax.sharding import PartitionSpec as P")
    return lines


def dims(experiment: Experiment, names: Names, body: str) -> str:
    """One line that defines the dims that the body reads: `I, J = 4, 4`."""
    read = {node.id for node in ast.walk(ast.parse(textwrap.dedent(body))) if isinstance(node, ast.Name)}
    used = [dim for dim in experiment.dims if names[dim] in read]
    if not used:
        return ""
    return f"{', '.join(names[d] for d in used)} = {', '.join(str(experiment.dims[d]) for d in used)}"


def inputs(experiment: Experiment, names: Names, folder: Path) -> str:
    """The function that makes the arrays."""
    lines = ["def inputs():", '    """The arrays, whole, in NumPy."""']
    if any("rng." in data.source(array, dict(experiment.dims), folder) for array in experiment.arrays):
        lines.append(f"    rng = np.random.default_rng({experiment.seed})")
    for array in experiment.arrays:
        lines.append(f"    {names[array.name]} = {data.source(array, dict(experiment.dims), folder)}")
    lines.append(f"    return {tuple_of([names[a.name] for a in experiment.arrays]) if experiment.arrays else '()'}")
    return "\n".join(lines)


def mesh_functions(experiment: Experiment, axis_type: str) -> str:
    """`make_mesh` and `shardings`."""
    mesh = experiment.mesh
    axis_types = tuple_of([f"AxisType.{axis_type}"] * len(mesh.axes))
    devices = "" if experiment.target.platform == "cpu" else f' or jax.devices("{experiment.target.platform}")'
    count = f"[:{mesh.size}]" if devices else ""
    argument = f"(devices{devices}){count}" if devices else "devices"
    lines = [
        "def make_mesh(devices=None):",
        f"    return jax.make_mesh({mesh.shape!r}, {mesh.axes!r}, axis_types={axis_types}, devices={argument})",
        "",
        "",
        "def shardings(mesh):",
        '    """How each array lies on the mesh."""',
    ]
    entries = [sharding(array.layout.spec) for array in experiment.arrays]
    if len(entries) == 1:
        lines.append(f"    return ({entries[0]},)")
    elif not entries:
        lines.append("    return ()")
    else:
        lines += ["    return (", *(f"        {entry}," for entry in entries), "    )"]
    return "\n".join(lines)


def main(experiment: Experiment, program: str) -> str:
    """The function that runs the program and prints its outputs."""
    spec = "spec" if program == "auto" else "output.sharding.spec"
    lines = [
        "def main():",
        "    mesh = make_mesh()",
        "    arrays = jax.device_put(inputs(), shardings(mesh))",
        "    outputs = program(mesh)(*arrays)",
        f"    for name, output in zip({tuple(experiment.outputs)!r}, outputs, strict=True):",
        # What depends on no array the compiler leaves on one device, which has no PartitionSpec.
        *(['        spec = getattr(output.sharding, "spec", None)'] if program == "auto" else []),
        f'        print(f"{{name}}  {{output.dtype}}{{list(output.shape)}}  {{{spec}}}")',
        "        print(np.asarray(output))",
        "",
        "",
        'if __name__ == "__main__":',
        "    main()",
    ]
    return "\n".join(lines)


def returned(experiment: Experiment, names: Names, laid_out: Mapping[str, str] | None = None) -> str:
    """The tuple of outputs that a program's function returns; `laid_out` has those that need more than their name."""
    return tuple_of([(laid_out or {}).get(name, names[name]) for name in experiment.results])


def with_gradients(
    experiment: Experiment,
    names: Names,
    forward: str,
    laid_out: Mapping[str, str],
    jit: Iterable[str] = ("@jax.jit",),
) -> str:
    """The program's function where it returns gradients too.

    `forward` is the function from the arrays to the scalar and, beside it, the tuple of all results; `laid_out` has for
    a gradient the expression that gives it its layout.
    """
    assert experiment.grad is not None
    arrays = [array.name for array in experiment.arrays]
    places = [arrays.index(name) for name in experiment.grad.wrt]
    gradients = [names.add(name) for name in experiment.grad.names]
    results = tuple_of([names[name] for name in experiment.results])
    argnums, left = (places[0], gradients[0]) if len(places) == 1 else (tuple(places), tuple_of(gradients))
    operands = parameters(experiment, names)
    lines = [
        *jit,
        f"def {names.function}({operands}):",
        f"    {left}, {results} = jax.grad({forward}, argnums={argnums}, has_aux=True)({operands})",
    ]
    for name, identifier in zip(experiment.grad.names, gradients, strict=True):
        if name in laid_out:
            lines += [f'    with jax.named_scope("{name}"):', f"        {identifier} = {laid_out[name]}"]
    everything = tuple_of([names[name] for name in experiment.outputs])
    return "\n".join([*lines, f"    return {everything}"])


def parameters(experiment: Experiment, names: Names) -> str:
    """The parameters of a program's function: the arrays."""
    return ", ".join(names[array.name] for array in experiment.arrays)


def statements(experiment: Experiment, program: str) -> tuple[Statement, ...]:
    """The statements that a program is written from."""
    return experiment.section(program_section(program))


def indent(text: str, by: int) -> str:
    """`text` indented by `by` spaces, empty lines left empty."""
    return textwrap.indent(text, " " * by, lambda line: bool(line.strip()))


def shapes_comment(arrays: Iterable[Array], names: Names, *, shards: bool) -> str:
    """`A[4, 2], B[2, 4]`: what a program's function sees of each array."""
    return ", ".join(
        f"{names[array.name]}{list(array.layout.shard_shape if shards else array.shape)}" for array in arrays
    )


def module(*parts: str) -> str:
    """The parts of a module, two empty lines between them, its strings in double quotes as formatters have them."""
    text = "\n\n\n".join(part for part in parts if part) + "\n"
    tokens = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        string = token.string
        if token.type == tokenize.STRING and string[0] == "'" and string[:3] != "'''" and '"' not in string:
            token = token._replace(string=f'"{string[1:-1]}"')
        tokens.append(token)
    return tokenize.untokenize(tokens)
