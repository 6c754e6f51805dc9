"""Says what to write where JAX's sharding types refuse a line of a user's function.

The function's lines are evaluated under the same types, and repaired as lines of an experiment are: what is suggested
has been accepted by JAX.
"""

from __future__ import annotations

import inspect
import linecache
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from runner.base.faults import nearest
from runner.base.layout import Mesh, Spec
from runner.base.lazy import pattern
from runner.base.words import listed
from runner.graph.language import python_source
from runner.graph.language.python_source import PythonPart
from runner.graph.sharding.repairs import OperandLayout, Repair, moves
from runner.worker import calls
from runner.worker.refusing import text_of
from runner.worker.specs import spec_of
from runner.worker.versions import is_own

_IN_SPECS = pattern(
    r"in_specs passed to shard_map: (P\(.*?\)) does not match the specs of the input: (P\(.*?\)) for arg: (\S+?)\. "
)
_TAKE_OUT_SHARDING = pattern(
    r"(?:^|\.)(?:matmul|dot|einsum|tensordot|dot_general|get|zeros|ones|full|reshape)$"
    r"|\.at\[.*\]\.\w+$",
    re.DOTALL,
)
_CARRIED = pattern(
    r"input carry (?:component )?(\S+) has type (\w+)\[(\S*?)\] but the corresponding output carry component has type "
    r"(\w+)\[(\S*?)\](?=[.,\s]|$)"
)
_BRANCHES = pattern(
    r"The output of .+? has type (\w+)\[(\S*?)\] but the corresponding output of (.+?) has type "
    r"(\w+)\[(\S*?)\](?=[.,\s]|$)"
)
_VARYING = "was given out_specs which require replication"
_ASSERTING = "`with_sharding_constraint` acts as an assert"
_ABSENT = pattern(r"Resource axis: (\S+) of P\(.*\) is not found in mesh")
_UNDIVIDED = pattern(
    r"Sharding spec (\(.*?\)|\S+) implies that array axis (\d+) is partitioned (\d+) times, but does not evenly divide "
    r"the dimension size (\d+)"
)
_REPEATED = pattern(r"P\((.*?)\) has duplicate entries for `(\w+)`")
_TOO_LONG = pattern(
    r"(?:^\(|Length of sharding.spec \(\d+\) must be equal to aval's ndim \()(\d+)(?:, |\).*?spec )"
    r"P\((.*?)\)(?:\)$|, aval)"
)
"""Before JAX 0.11 the words of an assertion are the rank and the spec alone."""

_MOST = 50
"""The number of ways to reshard the operands of a refused expression that are tried."""

_CONTRACTED = "requires contracting dimensions to have the same shape"
_SCANNED = pattern(r"0th dimension of all xs should be replicated. Got P\((.*)\)")


_AXIS = pattern(r"\baxis=(\d+)\b")


_CAPTURED = pattern(
    r"Manual.*(?:should match the mesh of|mesh of sharding)|clos(?:ed?|ing)[- ]over", re.DOTALL | re.IGNORECASE
)


def of_captured(error: BaseException, captured: Mapping[str, str]) -> str:
    """What to write where JAX refuses a `shard_map` that closes over a sharded array.

    `captured` describes those of the call; without any, those that the refused function reads in its module count.
    """
    if _CAPTURED.search(text_of(error)) is None:
        return ""
    arrays = [*captured.values()] or [*_read_around(error)]
    if not arrays:
        return ""
    verb = "is" if len(arrays) == 1 else "are"
    each = "it as an argument" if len(arrays) == 1 else "them as arguments"
    return f"{listed(arrays)} {verb} captured: pass {each} of the shard_map, with specs in in_specs"


def _read_around(error: BaseException) -> Iterator[str]:
    """Describe the sharded arrays that the innermost of the user's functions reads from around it."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if is_own(frame.f_code.co_filename)]
    for frame in frames[-1:]:
        names = dict.fromkeys((*frame.f_code.co_names, *frame.f_code.co_freevars))
        for name in names:
            value: Any = frame.f_locals.get(name, frame.f_globals.get(name))
            if isinstance(value, jax.Array) and isinstance(getattr(value, "sharding", None), NamedSharding):
                yield _described_array(name, value)


def _described_array(name: str, array: Any) -> str:
    """`table (float32[8, 8], P('a', 'b'))`."""
    return f"{name} ({array.dtype}{list(array.shape)}, {array.sharding.spec})"


@dataclass(frozen=True)
class Place:
    """A place in the user's own files at which JAX refused a call.

    - `part`: the call's source; None where it cannot be read.
    - `receiver`: what a method is called on, as `x` in `x.reshape(8)`; None where a function is called.
    - `stating`: whether the callee has a parameter `out_sharding`, as a layer of Flax NNX.
    - `frame`: where it ran.
    """

    filename: str
    lineno: int | None
    part: PythonPart | None
    receiver: PythonPart | None
    stating: bool
    frame: FrameType


def refused_at(error: BaseException) -> Place | None:
    """The innermost place in the user's own files at which an error was raised."""
    tb = error.__traceback__
    calls = zip(traceback.walk_tb(tb), traceback.extract_tb(tb), strict=True)
    own = [(frame, place) for (frame, _), place in calls if is_own(place.filename)]
    if not own:
        return None
    frame, place = own[-1]
    part = _source(place)
    return Place(place.filename, place.lineno, part, part and _receiver(part, frame), _states(part, frame), frame)


def _states(part: PythonPart | None, frame: FrameType) -> bool:
    """Whether a call is of a function that takes an `out_sharding`, by its signature."""
    if part is None or part.kind != "call" or not re.fullmatch(r"[\w.]+", part.words[0]):
        return False
    name, *path = part.words[0].split(".")
    callee: Any = frame.f_locals.get(name, frame.f_globals.get(name))
    for attribute in path:
        callee = inspect.getattr_static(callee, attribute, None)
    try:
        return "out_sharding" in inspect.signature(callee).parameters
    except (TypeError, ValueError):
        return False


def _receiver(part: PythonPart, frame: FrameType) -> PythonPart | None:
    """What the method of a call is called on; None where a function of a module is called."""
    owner = part.words[0].rpartition(".")[0] if part.kind == "call" else ""
    root = re.match(r"\w*", owner)
    name = root[0] if root else ""
    if not owner or isinstance(frame.f_locals.get(name, frame.f_globals.get(name)), ModuleType):
        return None
    return python_source.expression(owner)


def of_in_specs(error: BaseException, typed: Mapping[str, Any]) -> str | None:
    """What to write where the `in_specs` of a `shard_map` are not the layouts of its arguments.

    `typed`: the types of the function's operands, by their paths, such as `p/w`.
    """
    mismatch = _IN_SPECS.search(text_of(error) + " ")
    if mismatch is None:
        return None
    wanted, _, kind = mismatch.groups()
    names = [name for name, struct in typed.items() if _described(struct) == kind]
    argument = names[0] if len(names) == 1 else "the argument"
    operand = argument if argument.isidentifier() else "…"
    return f"reshard {argument} before the call: jax.reshard({operand}, {wanted}), or give in_specs that are its layout"


def of_words(error: BaseException, mesh: Mesh) -> str | None:
    """What to write where the words of JAX's error suffice to say so."""
    text, axes = text_of(error), mesh.axes
    if _VARYING in text:
        return "name in out_specs each axis along which the values differ, or make them one, as psum and all_gather do"
    if (absent := _ABSENT.search(text)) is not None:
        return f"the mesh has no axis '{absent[1]}'{nearest(absent[1], axes)}"
    if (undivided := _UNDIVIDED.search(text)) is not None:
        dimension, parts, size = map(int, undivided.groups()[1:])
        return _dividing(re.findall(r"\w+", undivided[1]), dimension, parts, size, mesh)
    if (repeated := _REPEATED.search(text)) is not None:
        return f"an axis shards one dimension alone: leave '{repeated[2]}' out of the others of P({repeated[1]})"
    if (too_long := _TOO_LONG.search(text)) is not None:
        return f"the array has rank {too_long[1]}, and P({too_long[2]}) has more entries"
    if _CONTRACTED in text and (refused := RefusedExpression.of(error)) is not None:
        return f"it reads {listed(refused.types)}"
    place = refused_at(error)
    if place is None or place.part is None or place.part.kind != "call":
        return None
    operands = place.part.inside
    if text.startswith(_ASSERTING) and len(operands) == 2:
        return f"write jax.reshard({operands[0].text}, {operands[1].text})"
    if text and not isinstance(error, NameError):
        return None
    # JAX refuses an unknown axis of some collectives by an assertion without words.
    absent = [each.value for each in operands if isinstance(each.value, str) and each.value not in axes]
    return f"the mesh has no axis '{absent[0]}'{nearest(absent[0], axes)}" if absent else None


def _dividing(axes: Sequence[str], dimension: int, parts: int, size: int, mesh: Mesh) -> str:
    """What to write for axes that do not divide a dimension: those of them that do, or a larger dimension."""
    fitting = [axis for axis in axes if size % mesh.sizes.get(axis, size + 1) == 0]
    padded = f"pad dimension {dimension} from {size} to {-(-size // parts) * parts}"
    return f"shard dimension {dimension} over '{fitting[0]}' alone, or {padded}" if fitting else padded


def of_control_flow(error: BaseException, place: Place | None) -> str | None:
    """What to write where a `scan` slices a sharded dimension, or a carry or the results of branches differ in layout.

    A carry begins in another layout than a step gives it, and each branch has a layout of its own.
    """
    text = text_of(error)
    if (carried := _CARRIED.search(text)) is not None:
        name, dtype, shape, dtype_after, shape_after = carried.groups()
        layout = _other_layout((dtype_after, shape_after), (dtype, shape))
        return layout and f"let {name} begin in the layout that a step gives it: jax.reshard(…, {layout})"
    if (branches := _BRANCHES.search(text)) is not None:
        dtype, shape, other, dtype_of_other, shape_of_other = branches.groups()
        layout = _other_layout((dtype, shape), (dtype_of_other, shape_of_other))
        return layout and f"let all branches give one layout: jax.reshard(…, {layout}) in {other}"
    refused = _SCANNED.search(text)
    part = None if place is None else place.part
    if refused is None or part is None or part.kind != "call" or not part.words[0].endswith("scan"):
        return None
    scanned = part.inside[2:3]
    if not scanned or scanned[0].kind == "sequence":
        return "reshard what is scanned before the scan: its dimension 0 has to be whole on every device"
    rest = refused[1].partition(", ")[2]
    return f"reshard what is scanned: jax.reshard({scanned[0].text}, P(None{f', {rest}' if rest else ''}))"


def _other_layout(wanted: tuple[str, str], given: tuple[str, str]) -> str | None:
    """The layout of a dtype and a shape, `4@expert,16`, that differs from another in nothing else."""
    dimensions, others = _dimensions(wanted[1]), _dimensions(given[1])
    if (
        wanted[0] != given[0]
        or dimensions == others
        or [size for size, _ in dimensions] != [size for size, _ in others]
    ):
        return None
    return _spec(Spec(axes for _, axes in dimensions))


def _dimensions(shape: str) -> list[tuple[str, tuple[str, ...]]]:
    """The sizes and mesh axes in a type's dimensions: 4 on `expert` and 16 on none, of `4@expert,16`."""
    dimensions = re.findall(r"(\d+)(?:@(?:\(([^)]*)\)|(\w+)))?", shape)
    return [(size, tuple(filter(None, (*several.split(","), single)))) for size, several, single in dimensions]


def _described(struct: Any) -> str:
    """A type as JAX writes it: `float32[4@expert,16]`."""
    spec = [*(struct.sharding.spec if struct.sharding is not None else ())]
    spec += [None] * (len(struct.shape) - len(spec))
    sizes = (
        f"{size}" if axes is None else f"{size}@{axes if isinstance(axes, str) else '(' + ','.join(axes) + ')'}"
        for size, axes in zip(struct.shape, spec, strict=True)
    )
    return f"{struct.dtype}[{','.join(sizes)}]"


def written(repair: Repair, place: Place) -> str | None:
    """A repair of a call, as it may be written in place of the source at a place; None if that is no single call."""
    if place.part is None:
        return None
    if repair.out_sharding is not None:
        return _with_out_sharding(place, place.part, repair.out_sharding)
    operands = _operands(place.part, place.receiver)
    if operands is None or any(at >= len(operands) for at in repair.operands):
        return None
    moved = [f"jax.reshard({operands[at].text}, {_spec(spec)})" for at, spec in sorted(repair.operands.items())]
    return " and ".join(moved)


def on_auto_axes(repair: Repair, mesh: Mesh) -> str | None:
    """What to do where a call, as of a library's layer, takes no `out_sharding`: a mesh whose axes are Auto."""
    if repair.out_sharding is None:
        return None
    made = f"jax.make_mesh({mesh.shape}, {mesh.axes}, axis_types=(jax.sharding.AxisType.Auto,) * {len(mesh.axes)})"
    return f"the call takes no out_sharding; check the function on Auto axes: mesh={made}"


@dataclass(frozen=True)
class RefusedExpression:
    """A refused expression as a function of the arrays that it reads, which have their types there in `operands`."""

    place: Place
    operands: dict[str, Any]
    structure: Any
    around: dict[str, Any]

    @classmethod
    def of(cls, error: BaseException) -> RefusedExpression | None:
        """The innermost expression in the user's own files at which an error was raised; None if it reads no array."""
        place = refused_at(error)
        if place is None or place.part is None:
            return None
        around = {**place.frame.f_globals, **place.frame.f_locals}
        read = {name: around[name] for name in sorted(python_source.names(place.part.text)) if name in around}
        leaves, structure = calls.tree.flatten({name: value for name, value in read.items() if _has_arrays(value)})
        if not leaves or not all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves):
            return None
        operands = {f"operand_{at}": jax.typeof(leaf) for at, leaf in enumerate(leaves)}
        return cls(place, operands, structure, {**around, "P": PartitionSpec, "jax": jax, "jnp": jax.numpy})

    def function(self, text: str | None = None) -> Callable[..., list[Any]]:
        """A function of the operands: the expression, or another `text` in its place."""
        code = compile(text or self._text, "<refused>", "eval")

        def function(*leaves: Any) -> list[Any]:
            return calls.tree.leaves(eval(code, {**self.around, **calls.tree.unflatten(self.structure, leaves)}))

        return function

    def mended(self, repair: Repair) -> tuple[str, str] | None:
        """What to write for a repair, and the expression with it; None if it cannot be written."""
        text, part = written(repair, self.place), self.place.part
        if text is None or part is None:
            return None
        if repair.out_sharding is not None:
            return text, text
        whole, rest, receiver = "", part.text, self.place.receiver
        if part.kind == "call" and receiver is None:
            whole, rest = part.words[0], rest.removeprefix(part.words[0])
        for at, operand in enumerate(_operands(part, receiver) or ()):
            # Operands stand in the text in their order.
            before, _, rest = rest.partition(operand.text)
            spec = repair.operands.get(at)
            moved = operand.text if spec is None else f"jax.reshard({operand.text}, {_spec(spec)})"
            whole += f"{before}{moved}"
        return text, whole + rest

    def resharded(self, mesh: Mesh) -> list[tuple[str, str]]:
        """What may be written to reshard operands, and the expression with it, the fewest bytes first.

        An operand that the user reshards there already stays as it is.
        """
        assert self.place.part is not None
        layouts: dict[int, OperandLayout] = {}
        operands = _operands(self.place.part, self.place.receiver) or ()
        stated = {at for at, operand in enumerate(operands) if operand.words and operand.words[0].endswith("reshard")}
        for at, operand in enumerate(operands):
            kinds = calls.eval_shape(self.function(operand.text), *self.operands.values())
            if len(kinds) == 1 and (spec := spec_of(kinds[0].sharding)) is not None:
                shape = tuple(kinds[0].shape)
                layouts[at] = OperandLayout(spec.padded(len(shape)), shape, kinds[0].dtype.itemsize)
        ways = [repair for repair in moves(layouts, mesh) if stated.isdisjoint(repair.operands)][:_MOST]
        return [mended for repair in ways if (mended := self.mended(repair)) is not None]

    @property
    def types(self) -> list[str]:
        """The arrays that the expression reads, in its order, with their types: `x float32[8, 8]`."""
        tree: dict[str, Any] = calls.tree.unflatten(self.structure, self.operands.values())
        paths: list[tuple[Any, Any]] = [
            ((name, *path), kind)
            for name in sorted(tree, key=self._text.index)
            for path, kind in calls.tree_util.tree_flatten_with_path(tree[name])[0]
        ]
        return [f"{path[0]}{calls.tree_util.keystr(path[1:])} {kind.dtype}{list(kind.shape)}" for path, kind in paths]

    @property
    def _text(self) -> str:
        assert self.place.part is not None
        return self.place.part.text


def _has_arrays(value: Any) -> bool:
    return any(isinstance(leaf, jax.Array | np.ndarray) for leaf in calls.tree.leaves(value))


def _source(place: traceback.FrameSummary) -> PythonPart | None:
    """The expression at a place of a traceback."""
    if place.lineno is None or place.colno is None or place.end_colno is None:
        return None
    last = place.end_lineno or place.lineno
    lines = [linecache.getline(place.filename, at).encode() for at in range(place.lineno, last + 1)]
    lines[-1] = lines[-1][: place.end_colno]
    lines[0] = lines[0][place.colno :]
    try:
        return python_source.expression(b" ".join(line.strip() for line in lines).decode(errors="replace"))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _with_out_sharding(place: Place, part: PythonPart, spec: Spec) -> str | None:
    """A call with an `out_sharding`, which most methods of arrays do not take."""
    out, receiver = f"out_sharding={_spec(spec)}", place.receiver
    match part:
        case PythonPart(kind="arithmetic", words=("MatMult",), inside=(left, right)):
            return f"jnp.matmul({left.text}, {right.text}, {out})"
        case PythonPart(kind="item", inside=(value, index)):
            parts = index.inside if index.kind == "sequence" else (index,)
            return f"{value.text}.at[{', '.join(each.text for each in parts)}].get({out})"
        case PythonPart(kind="call", words=(function, *_), inside=(value, index, *_)) if function.endswith("take"):
            axis = _AXIS.search(part.text)
            return None if axis is None else f"{value.text}.at[{':, ' * int(axis[1])}{index.text}].get({out})"
        case PythonPart(kind="call", words=(function, *_), inside=(value,)) if receiver and function.endswith(".dot"):
            return f"jnp.dot({receiver.text}, {value.text}, {out})"
        case PythonPart(kind="call", words=(function, *_)) if place.stating or _TAKE_OUT_SHARDING.search(function):
            inside = part.text[len(function) + 1 : -1]
            return f"{function}({f'{inside}, ' if inside else ''}{out})"
        case _:
            return None


def _operands(part: PythonPart, receiver: PythonPart | None) -> Sequence[PythonPart] | None:
    """The operands of an expression, with those of a list or of several indices one by one."""
    if part.kind not in ("arithmetic", "call", "comparison", "item"):
        return None
    given = part.inside if receiver is None else (receiver, *part.inside)
    return [each for operand in given for each in (operand.inside if operand.kind == "sequence" else (operand,))]


def _spec(spec: Spec) -> str:
    return repr(spec)
