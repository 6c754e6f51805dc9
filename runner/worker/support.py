"""Says why a call is unsupported where JAX gives no reason or an obscure one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np

from runner.base.lazy import dataclass
from runner.base.untyped import is_sequence
from runner.base.words import quoted
from runner.experiment.model import Experiment
from runner.graph.language.operations import FROM_ZERO, Limit, Operation, row_of
from runner.graph.model import walk
from runner.worker.versions import varying_axes

_STRIDES = ("strides", "window_strides")


def strides(operation: Operation, positional: Sequence[Any], named: Mapping[str, Any]) -> str | None:
    """The reason why a call's strides are invalid: JAX divides by them without checking."""
    if not any(name in operation.signature.parameters for name in _STRIDES):
        return None
    arguments = operation.signature.bind(*positional, **named).arguments
    for name in _STRIDES:
        stride = arguments.get(name)
        steps = stride if is_sequence(stride) else [stride]
        if any(isinstance(step, int | np.integer) and step < 1 for step in steps):
            return f"'{name}' of {operation.name} are at least 1, not {stride}"
    return None


def numbers(operation: Operation, positional: Sequence[Any]) -> str | None:
    """The reason why a call's operands are invalid: some functions of JAX fail on Python numbers."""
    number = next((each for each in positional if isinstance(each, int | float)), None)
    if not operation.numberless or number is None:
        return None
    return f"{operation.name} takes arrays only: write asarray({number}) for {number}"


@dataclass(frozen=True)
class _Call:
    """A call of a collective: its arguments by name, the axes that it names and the number of devices along them."""

    operation: Operation
    arguments: Mapping[str, Any]
    experiment: Experiment
    under_vmap: bool

    @property
    def name(self) -> str:
        return self.operation.name

    @cached_property
    def axes(self) -> tuple[str, ...]:
        axes = self.arguments.get("axis_name", ())
        return (axes,) if isinstance(axes, str) else tuple(axes)

    @cached_property
    def size(self) -> int:
        return self.experiment.mesh.axis_size(self.axes)

    @property
    def x(self) -> Any:
        """The operand that is moved."""
        return next((self.arguments.get(name) for name in self.operation.over.operands), None)

    @property
    def groups(self) -> Any:
        return self.arguments.get("axis_index_groups")

    @property
    def varying(self) -> frozenset[str] | None:
        """The axes over which `x` varies by its type; None without `check_vma`."""
        kept = not self.under_vmap and self.experiment.check_vma and hasattr(self.x, "shape")
        return varying_axes(jax.typeof(self.x)) if kept else None

    def split(self, varying: frozenset[str]) -> tuple[list[str], list[str]]:
        """The named axes over which the operand varies, and the other named axes."""
        return [axis for axis in self.axes if axis in varying], [axis for axis in self.axes if axis not in varying]


def not_here(experiment: Experiment) -> str | None:
    """The reason why the target's platform does not support the per-device lines; None where it does."""
    platform = experiment.target.platform
    for equation in walk(experiment.computed("per_device")):
        row = row_of(equation.operation)
        if platform in row.over.not_on:
            held = "graph" in experiment.sections and not experiment.chosen
            return (
                f"XLA has no {row.name} for {_PLATFORMS[platform]}: compile it for hardware that has one, as with "
                f"target=v5e_2x2{'; the check sections holds the lines to the graph all the same' if held else ''}"
            )
    return None


_PLATFORMS = {"cpu": "CPUs", "gpu": "GPUs", "tpu": "TPUs"}


def collective(
    operation: Operation, arguments: Mapping[str, Any], experiment: Experiment, *, under_vmap: bool
) -> str | None:
    """The reason, or None. `arguments` are by name."""
    call = _Call(operation, arguments, experiment, under_vmap)
    for limit, reason_of in LIMITS:
        if limit is None or limit in operation.over.limits:
            reason = reason_of(call)
            if reason:
                return reason
    return None


def _from_zero(call: _Call) -> str | None:
    for argument in FROM_ZERO:
        value = call.arguments.get(argument)
        if isinstance(value, int) and value < 0:
            # JAX 0.12 counts from the end; 0.10 accepts it and fails in the compiler.
            return f"{call.name}'s {argument} counts from 0: {value + np.ndim(call.x)} instead of {value}"
    return None


def _booleans(call: _Call) -> str | None:
    if getattr(call.x, "dtype", None) != np.bool_:
        return None
    return f"{call.name} does not add booleans; convert them first: astype(…, 'int32')"


def _gpus(call: _Call) -> str | None:
    return None if call.experiment.target.platform == "gpu" else f"JAX compiles {call.name} for GPUs only"


def _mesh_order(call: _Call) -> str | None:
    ordered = tuple(axis for axis in call.experiment.mesh.axes if axis in call.axes)
    # JAX 0.10 reads the indices in the mesh's order whatever the order here; 0.12 refuses.
    return None if call.axes == ordered else f"{call.name} over several axes names them in the mesh's order: {ordered}"


def _pairs(call: _Call) -> str | None:
    name, arguments, size = call.name, call.arguments, call.size
    if ("perm" in arguments) == ("shift" in arguments):
        return f"{name} takes either perm=[[source, destination], …] or shift="
    if "shift" in arguments:
        known = isinstance(arguments["shift"], int)
        return None if known else f"{name}'s shift is an integer that is known before the program runs"
    pairs = arguments["perm"]
    if any(not is_sequence(pair) or len(pair) != 2 for pair in pairs):
        return f"{name} takes pairs [source, destination], not {list(pairs)}"
    if any(not 0 <= index < size for pair in pairs for index in pair):
        return f"{name}'s perm has an index outside 0 to {size - 1}: {_plain(pairs)}"
    if any(len(set(ends)) < len(pairs) for ends in zip(*pairs, strict=True)):
        # Under vmap JAX accepts this.
        return f"{name}'s sources and destinations have to be unique: {_plain(pairs)}"
    return None


def _permutation(call: _Call) -> str | None:
    perm = call.arguments["perm"]
    right = sorted(perm) == list(range(call.size))
    return None if right else f"{call.name}'s perm is a permutation of 0 to {call.size - 1}, not {list(perm)}"


def _groups(call: _Call) -> str | None:
    if call.groups is None or sorted(index for members in call.groups for index in members) == list(range(call.size)):
        return None
    return f"{call.name}'s axis_index_groups hold each of 0 to {call.size - 1} once, not {_plain(call.groups)}"


def _one_axis_under_vmap(call: _Call) -> str | None:
    # JAX's vmap gives several axes at once either an assertion or, silently, the first axis alone.
    return f"jax.vmap has no {call.name} over several axes" if call.under_vmap and len(call.axes) > 1 else None


def _every_device_under_vmap(call: _Call) -> str | None:
    if not call.under_vmap or len(call.arguments.get("perm", range(call.size))) >= call.size:
        return None
    return f"jax.vmap has no {call.name} whose perm leaves a device out"


def _groups_under_vmap(call: _Call) -> str | None:
    if not call.under_vmap or call.groups is None:
        return None
    return f"jax.vmap has no {call.name} with axis_index_groups"


def _groups_and_types(call: _Call) -> str | None:
    if call.varying is None or call.groups is None:
        return None
    return f"under shard_map, JAX has {call.name} with axis_index_groups only with check_vma: false"


def _cast(call: _Call) -> str | None:
    if call.varying is None:
        return None
    there, _ = call.split(call.varying)
    if not there:
        return None
    return f"its operand {_type(call.x)} varies over {quoted(there)} already; {call.name} to the other axes only"


def _axes_of_one_kind(call: _Call) -> str | None:
    if call.varying is None:
        return None
    there, others = call.split(call.varying)
    if not there or not others:
        return None
    return (
        f"its operand {_type(call.x)} varies over {quoted(there)} but is the same along {quoted(others)}, and JAX "
        f"does not accept a mixture; leave {quoted(others)} out, or use pcast(…, {others[0]!r}, to='varying') first"
    )


def _never_under_vmap(call: _Call) -> str | None:
    return f"jax.vmap has no {call.name} over the axis that it maps" if call.under_vmap else None


def _ragged(call: _Call) -> str | None:
    operands = [call.arguments[name] for name in call.operation.over.operands]
    if any(not hasattr(array, "shape") for array in operands):
        return f"{call.name} takes arrays"
    operand, output, *places = map(jax.typeof, operands)
    if not operand.shape or operand.shape[1:] != output.shape[1:] or operand.dtype != output.dtype:
        return f"{call.name} moves rows of {_type(operands[0])} into {_type(operands[1])}, of another shape or dtype"
    count = call.size if call.groups is None else len(call.groups[0])
    shapes = {array.shape for array in places}
    if len(shapes) > 1 or len(places[0].shape) != 1 or not places[0].shape[0] or places[0].shape[0] % count:
        lengths = ", ".join(str(list(array.shape)) for array in places)
        return f"{call.name} takes offsets and sizes of one length, a multiple of the {count} devices, not {lengths}"
    if any(not np.issubdtype(array.dtype, np.integer) for array in places):
        return f"{call.name} takes offsets and sizes that are integers, not {', '.join(str(e.dtype) for e in places)}"
    if call.groups is not None and len({len(members) for members in call.groups}) > 1:
        return f"{call.name} needs axis_index_groups of equal size, not {_plain(call.groups)}"
    return None


def _as_its_output(call: _Call) -> str | None:
    """The reason why `output` of a ragged all-to-all must vary over all axes of the operands: JAX copies its type."""
    if call.varying is None:
        return None
    varying = [varying_axes(jax.typeof(call.arguments[name])) for name in call.operation.over.operands]
    needed = frozenset(call.axes).union(*varying)
    missing = [axis for axis in call.experiment.mesh.axes if axis in needed - varying[1]]
    if not missing:
        return None
    cast = repr(missing[0] if len(missing) == 1 else tuple(missing))
    return (
        f"its result may differ along {quoted(missing)}, but JAX types it like the operand `output`, which is the same "
        f"there: cast that first, pcast(…, {cast}, to='varying')"
    )


LIMITS: tuple[tuple[Limit | None, Callable[[_Call], str | None]], ...] = (
    (None, _from_zero),
    ("adds no booleans", _booleans),
    ("compiles for GPUs only", _gpus),
    ("axes in the mesh's order", _mesh_order),
    ("takes pairs or a shift", _pairs),
    ("takes a permutation", _permutation),
    (None, _groups),
    ("one axis under vmap", _one_axis_under_vmap),
    ("every device under vmap", _every_device_under_vmap),
    (None, _groups_under_vmap),
    ("groups without check_vma", _groups_and_types),
    ("never under vmap", _never_under_vmap),
    ("ragged operands", _ragged),
    ("typed as its output", _as_its_output),
    ("casts what is the same", _cast),
    ("axes of one kind", _axes_of_one_kind),
)
"""The limits of collectives, checked in this order; a limit applies to the rows that have it, or to all if none has."""


def _type(x: Any) -> str:
    kind = jax.typeof(x)
    return f"{kind.dtype}{list(kind.shape)}"


def _plain(groups: Any) -> list[list[int]]:
    return [list(members) for members in groups]


def elements(value: Any) -> str | None:
    """The reason why a value has too many elements for XLA; Shardy's passes do not terminate on it."""
    count = math.prod(getattr(value, "shape", ()))
    return None if count < 2**63 else f"it has {count:,} elements, and XLA counts them in 64 bits"
