"""Makes one random experiment of a seed and a number, always the same one.

The lines are the samples of every operation (`tests/samples.py`), with other names, sizes and numbers. A line that the
language or JAX's abstract evaluation refuses is drawn again.
"""

from __future__ import annotations

import ast
import copy
import math
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import yaml

from benchmarks.fuzz.devices import per_device
from benchmarks.fuzz.shrink import texts, used_names
from runner.base import dtypes
from runner.base.faults import InvalidExperiment
from runner.base.layout import Mesh
from runner.experiment.graphs import of_line
from runner.experiment.reader import read
from runner.graph.language.check import VisibleNames, canonical, check
from runner.graph.language.syntax import SyntaxFault, parse
from runner.graph.source import Line
from runner.worker.walk import Walker
from tests.harness import config
from tests.samples import ARRAYS, SAMPLES

Config = dict[str, Any]

ROLES: dict[str, dict[str, Any]] = yaml.safe_load(ARRAYS % dict.fromkeys("AUWBSVTQJ", "[]"))["arrays"]
"""The arrays of the samples: the value that replaces one in a case has the same rank and kind of dtype."""

MESHES = ((2,), (3,), (4,), (8,), (2, 2), (2, 2), (2, 3), (3, 2), (2, 4), (4, 2), (1, 4), (2, 2, 2), (2, 2, 2))
LENGTHS = (1, 1, 2, 2, 3, 4, 5, 6)
AXES = ("x", "y", "z", "data", "model", "i", "a", "expert")
SIZES = (1, 2, 2, 3, 4, 4, 6, 8, 8, 12, 16)
DTYPES: dict[str, dict[str, int]] = {
    "float": {"float32": 12, "bfloat16": 3, "float16": 2, "float8_e4m3fn": 1, "float64": 0},
    "int": {"int32": 6, "int8": 1, "uint8": 1, "int16": 1, "uint32": 1},
    "bool": {"bool": 1},
    "complex": {"complex64": 1},
}
"""The dtypes of each kind, repeated by weight; float64 only in cases that have no other floats."""

LARGEST = 4096
TRIES = 40


@dataclass(frozen=True)
class Typed:
    """The shape and dtype of a value."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def kind(self) -> str:
        """float, int, bool or complex."""
        return dtypes.dtype(self.dtype).kind


@dataclass
class Draft:
    """A case under construction."""

    rng: random.Random
    mesh: dict[str, int]
    sizes: dict[int, int]
    wide: bool
    allowed: frozenset[str]
    arrays: dict[str, dict[str, Any]] = field(default_factory=dict)
    graph: dict[str, Any] = field(default_factory=dict)
    types: dict[str, Typed] = field(default_factory=dict)
    operations: list[str] = field(default_factory=list)


def case(
    seed: int,
    number: int,
    names: frozenset[str] = frozenset(dtypes.NAMES),
    *,
    meshes: Sequence[tuple[int, ...]] = MESHES,
    lengths: Sequence[int] = LENGTHS,
    whole_only: bool = False,
    sizes: Sequence[int] = (),
) -> tuple[Config, list[str]]:
    """Return the complete configuration of a case, and the operations in its lines.

    `names` are the dtypes to choose from, `lengths` the numbers of lines, repeated by weight; `whole_only` asks for a
    graph alone. `sizes` are those of dimensions, which the mesh need not divide.
    """
    rng = random.Random(f"{seed}/{number}")
    shape = rng.choice(meshes)
    mesh: dict[str, int] = dict(zip(rng.sample(AXES, len(shape)), shape, strict=True))
    chosen = {size: rng.choice(sizes) for size in (2, 4, 8)} if sizes else _sizes(rng, shape)
    draft = Draft(rng, mesh, chosen, rng.random() < 0.06, names)
    for i in range(rng.choice(lengths)):
        if rng.random() < 0.06 and draft.types:
            _loop(draft, f"r{i}")
        else:
            _line(draft, f"n{i}")
    plain: Config = {
        "name": f"case_{seed}_{number}",
        "mesh": {"axes": list(mesh), "shape": list(shape)},
        "arrays": draft.arrays,
        "graph": draft.graph,
        "seed": rng.randrange(1000),
        "timeout": 120,
    }
    for name in draft.types:
        if name not in draft.arrays and "." not in name and rng.random() < 0.3:
            plain.setdefault("constraints", {})[name] = _spec(draft, draft.types[name].shape)
    computed = [name for name in draft.types if name not in draft.arrays]
    read_again = {name for text in draft.graph.values() for part in texts(text) for name in used_names(part)}
    often = {name: 0.15 if name.split(".")[0] in read_again else 0.8 for name in computed}
    shown = [name for name in computed[:-1] if rng.random() < often[name]] + computed[-1:]
    plain["outputs"] = {name: _spec(draft, draft.types[name].shape) for name in shown}
    if rng.random() < 0.15:
        _differentiate(draft, plain)
    if rng.random() < 0.5 and not whole_only:
        per_device(rng, plain, {name: typed.shape for name, typed in draft.types.items()})
    return complete(plain), draft.operations


def complete(plain: Config) -> Config:
    """Return the resolved configuration of an experiment, as the command composes it."""
    return config(yaml.safe_dump(plain, sort_keys=False))


def _sizes(rng: random.Random, mesh: tuple[int, ...]) -> dict[int, int]:
    """Replace the samples' sizes 2, 4 and 8: by multiples, or by any sizes, mostly such that an axis divides them."""
    if rng.random() < 0.4:
        factor = rng.choice((1, 3 if 3 in mesh else 1, 2, 3))
        return {size: factor * size for size in (2, 4, 8)}
    divided = [size for size in SIZES if any(size % axis == 0 for axis in mesh if axis > 1)] or SIZES
    return {size: rng.choice(divided if rng.random() < 0.8 else SIZES) for size in (2, 4, 8)}


def _spec(draft: Draft, shape: tuple[int, ...]) -> list[Any]:
    """Draw a PartitionSpec that divides the shape, mostly one that uses axes."""
    free = list(draft.mesh)
    draft.rng.shuffle(free)
    spec: list[Any] = []
    for size in shape:
        entry: list[str] = []
        while free and draft.rng.random() < (0.6 if not entry else 0.35):
            axis = free.pop()
            if size % math.prod(draft.mesh[a] for a in (*entry, axis)) == 0:
                entry.append(axis)
        spec.append(None if not entry else entry[0] if len(entry) == 1 else entry)
    return spec


# Lines.


def _line(draft: Draft, name: str) -> None:
    """Add one line that JAX accepts, if one is found."""
    operation = draft.rng.choice(list(SAMPLES))
    for _ in range(TRIES):
        if draft.rng.random() < 0.1:
            operation = draft.rng.choice(list(SAMPLES))
        tree, arrays = _candidate(draft, draft.rng.choice(SAMPLES[operation]))
        text = ast.unparse(tree)
        typed = _typed(draft, text, arrays)
        if typed is not None:
            _accept(draft, name, text, typed, arrays)
            draft.operations.append(operation)
            return


def _loop(draft: Draft, name: str) -> None:
    """Add a repeat whose body is a sample that keeps the type of the carried value."""
    first = draft.rng.choice(list(draft.types))
    carried = draft.types[first]
    for _ in range(TRIES):
        operation = draft.rng.choice(list(SAMPLES))
        tree, arrays = _candidate(draft, draft.rng.choice(SAMPLES[operation]), carry=(first, "c"))
        text = ast.unparse(tree)
        uses = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if "c" not in uses or _typed(draft, text, {**arrays, "c": _array_of(carried)}) != carried:
            continue
        loop = {
            "repeat": draft.rng.choice((1, 2, 3)),
            "carry": {"c": first},
            "body": {"c": text},
            "unroll": draft.rng.random() < 0.5,
        }
        draft.arrays |= arrays
        draft.types |= {array: _type_of(given) for array, given in arrays.items()}
        draft.graph[name] = loop
        draft.types[f"{name}.c"] = carried
        draft.operations += [operation, "repeat"]
        return


def _accept(draft: Draft, name: str, text: str, typed: Typed, arrays: dict[str, dict[str, Any]]) -> None:
    draft.arrays |= arrays
    draft.types |= {array: _type_of(given) for array, given in arrays.items()}
    draft.graph[name] = text
    draft.types[name] = typed


def _array_of(typed: Typed) -> dict[str, Any]:
    return {"shape": list(typed.shape), "dtype": typed.dtype}


def _type_of(array: dict[str, Any]) -> Typed:
    return Typed(tuple(array["shape"]), array["dtype"])


def _candidate(
    draft: Draft, sample: str, carry: tuple[str, str] | None = None
) -> tuple[ast.expr, dict[str, dict[str, Any]]]:
    """Return a sample with the names and numbers of the draft, and the new arrays that it needs."""
    tree = ast.parse(sample, mode="eval").body
    roles = sorted({node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in ROLES})
    names: dict[str, str] = {}
    arrays: dict[str, dict[str, Any]] = {}
    if carry is not None and roles:
        names[draft.rng.choice(roles)] = carry[1]
    for role in roles:
        if role not in names:
            names[role] = _operand(draft, role, arrays)
    mapped = draft.rng.random() < 0.8
    mutated = draft.rng.random() < 0.2
    return _Renamed(draft, names, mapped=mapped, mutated=mutated).visit(copy.deepcopy(tree)), arrays


def _operand(draft: Draft, role: str, arrays: dict[str, dict[str, Any]]) -> str:
    """Return the name of a value for a role: an existing one, or a new array."""
    given = ROLES[role]
    kind = dtypes.dtype(given.get("dtype", "float32")).kind
    alike = [n for n, t in draft.types.items() if len(t.shape) == len(given["shape"]) and t.kind == kind]
    computed = [n for n in alike if n not in draft.arrays]
    room = len(draft.arrays) + len(arrays) < 4
    if computed and draft.rng.random() < 0.7:
        return draft.rng.choice(computed)
    if alike and (not room or draft.rng.random() < 0.5):
        return draft.rng.choice(alike)
    name = next(n for n in (role, *(f"{role}{i}" for i in range(9))) if n not in draft.types and n not in arrays)
    shape = [draft.sizes[size] for size in given["shape"]]
    arrays[name] = {
        "shape": shape,
        "dtype": _dtype(draft, kind),
        "init": _init(role, draft),
        "spec": _spec(draft, tuple(shape)),
    }
    return name


def _dtype(draft: Draft, kind: str) -> str:
    if draft.wide and kind in ("float", "complex"):
        return {"float": "float64", "complex": "complex128"}[kind]
    weights = {name: often for name, often in DTYPES[kind].items() if name in draft.allowed} or DTYPES[kind]
    return draft.rng.choices(list(weights), list(weights.values()))[0]


def _init(role: str, draft: Draft) -> str:
    bounds = {"I": f"integers(0, {draft.sizes[8]})", "J": f"integers(0, {draft.sizes[4]})"}
    return bounds.get(role) or ROLES[role]["init"]


class _Renamed(ast.NodeTransformer):
    """A sample's tree with new names; sizes are those of the draft if `mapped`, changed if `mutated`."""

    def __init__(self, draft: Draft, names: dict[str, str], *, mapped: bool, mutated: bool) -> None:
        self._draft, self._names, self._mapped, self._mutated = draft, names, mapped, mutated

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(self._names.get(node.id, node.id), mode="eval").body

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        value = node.value
        if not isinstance(value, int) or isinstance(value, bool):
            return node
        rng = self._draft.rng
        if self._mutated and rng.random() < 0.5:
            return ast.Constant(rng.choice((0, 1, 2, 3, value + 1, max(value - 1, 0), rng.choice(SIZES))))
        if self._mapped:
            sizes = self._draft.sizes
            return ast.Constant({**sizes, 16: 2 * sizes[8], 32: sizes[4] * sizes[8]}.get(value, value))
        return node


# JAX's abstract evaluation of a line.


def _typed(draft: Draft, text: str, arrays: dict[str, dict[str, Any]]) -> Typed | None:
    """Return the type of a line over the draft's values and `arrays`; None if it is refused, or too large."""
    types = draft.types | {name: _type_of(given) for name, given in arrays.items()}
    mesh = Mesh(tuple(draft.mesh), tuple(draft.mesh.values()))
    loops = {name.split(".")[0]: ("c",) for name in types if "." in name}
    try:
        expression = canonical(parse(text))
        check(expression, VisibleNames("graph", mesh, {name for name in types if "." not in name}, {}, loops))
    except SyntaxFault:
        return None

    def evaluate(*values: Any) -> Any:
        walker = Walker(_ANY, dict(zip(types, values, strict=True)))
        walker.run(of_line(Line("case"), expression.term, walker.values), "graph")
        return walker.values["case"]

    structs = [jax.ShapeDtypeStruct(t.shape, dtypes.dtype(t.dtype).numpy) for t in types.values()]
    wide = any(t.dtype in dtypes.WIDE for t in types.values())
    with jax.enable_x64(wide), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            struct = jax.eval_shape(evaluate, *structs)
        except InvalidExperiment:
            return None
    if not isinstance(struct, jax.ShapeDtypeStruct) or str(struct.dtype) not in dtypes.NAMES:
        return None
    if not 0 < math.prod(struct.shape) <= LARGEST or len(struct.shape) > 5:
        return None
    return Typed(tuple(struct.shape), str(struct.dtype))


_ANY = read(config("{arrays: {A: {shape: [1], spec: []}}, graph: {B: A}, outputs: {B: []}}"))
"""An experiment for the walker, which asks it for dims and the mesh of collectives; lines of `graph` have neither."""


# Gradients.


def _differentiate(draft: Draft, plain: Config) -> None:
    """Add a loss, the sum of the last float of the graph, and its gradients by the arrays that it depends on."""
    smooth = [n for n, t in draft.types.items() if n not in draft.arrays and t.kind == "float" and _smooth(draft, n)]
    of = [name for name in draft.arrays if draft.types[name].kind == "float"]
    if not smooth or not of:
        return
    typed = _typed(draft, f"sum({smooth[-1]})", {})
    wrt = [name for name in of if name in ancestors(plain["graph"], smooth[-1])]
    if typed is None or typed.kind != "float" or not wrt:
        return
    plain["graph"] = {**plain["graph"], "loss": f"sum({smooth[-1]})"}
    draft.types["loss"] = typed
    plain["outputs"]["loss"] = []
    plain["grad"] = {"of": "loss", "wrt": wrt}


def _smooth(draft: Draft, name: str) -> bool:
    """Return whether a value only depends on operations that are differentiable in their whole domain."""
    above = ancestors(draft.graph, name)
    if any(draft.types[n].kind != "float" for n in above if n in draft.types):
        return False
    lines = [draft.graph[n] for n in {name.split(".")[0], *above} if n in draft.graph]
    return all(_SMOOTH.issuperset(_calls(text)) for line in lines for text in texts(line))


def _calls(text: str) -> set[str]:
    """Return the operations that an expression calls, and its operators that are not smooth."""
    operations = set()
    for node in ast.walk(ast.parse(text, mode="eval")):
        match node:
            case ast.Call(func=ast.Name(id=called)):
                operations.add(called)
            case ast.BinOp(op=ast.Mod() | ast.FloorDiv()) | ast.Compare():
                operations.add("//")
    return operations


_SMOOTH_NAMES = """
add subtract multiply square negative positive exp exp2 expm1 sin cos tanh arctan atan sinh cosh
arcsinh erf erfc logistic sigmoid silu swish gelu softplus log_sigmoid squareplus mish sum mean var
logsumexp logmeanexp softmax log_softmax logaddexp cumsum cumlogsumexp diff trapezoid matmul dot
vdot inner tensordot einsum vecdot matvec vecmat outer kron cross trace convolve correlate polyval
conv_general_dilated conv conv_transpose reshape ravel transpose permute_dims matrix_transpose
swapaxes moveaxis expand_dims squeeze broadcast_to concatenate concat stack vstack hstack dstack
column_stack append split array_split hsplit vsplit unstack tile repeat flip fliplr flipud rot90
roll pad tril triu diag diagonal atleast_1d atleast_2d atleast_3d slice slice_in_dim index_in_dim
array asarray dot_product_attention ones zeros eye zeros_like ones_like full full_like stop_gradient
segment_sum
"""
_SMOOTH = frozenset(_SMOOTH_NAMES.split())


def ancestors(section: Config, name: str) -> set[str]:
    """Return every name that the value of `name` depends on."""
    names: set[str] = set()
    waiting = [name]
    while waiting:
        line = section.get(waiting.pop().split(".")[0])
        if line is None:
            continue
        fresh = {used for text in texts(line) for used in used_names(str(text))} - names
        names |= fresh
        waiting += fresh
    return names
