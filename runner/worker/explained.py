"""Explains the compiled module of a step in the caller's process: jitted, lowered or compiled.

This is the one module that touches the caller's JAX objects. It lowers and compiles what is not compiled yet, on the
caller's devices and under the caller's mesh context. Nothing runs, no array is copied, and no process is started.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import NamedSharding

from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.base.words import listed
from runner.compiled.evidence.hlo import Metadata
from runner.compiled.evidence.source_lines import is_users
from runner.compiled.explanation import estimating, meshes, modules, profiles, reasons
from runner.compiled.explanation.model import Argument, Explanation, layouts_of
from runner.compiled.explanation.modules import Known, ReadModule, UnreadableModule
from runner.compiled.explanation.profiles import Recording
from runner.graph.sharding.propagation import LayoutKeys
from runner.worker import cost, propagation

stages, trees, util = cast("Any", jax.stages), cast("Any", jax.tree), cast("Any", jax.tree_util)

_NAMED = 4
"""How many arguments a sentence names."""


@dataclass(frozen=True)
class Staged:
    """A step as lowered, if it was lowered here or by the caller, and as compiled."""

    lowered: Any
    compiled: Any
    name: str


def explained(
    step: Any,
    arguments: Sequence[Any],
    mesh: Mapping[str, int] | None,
    hardware: str | None,
    recording: Recording | None,
    tell: Callable[[str], None],
) -> Explanation:
    """The explanation of a step: a function, jitted or not, with its arguments, a `Lowered` or a `Compiled`.

    - `hardware`: the file of the hardware for an estimate; None: that of the step's devices, if there is one.
    - `recording`: a profile in which the step ran.
    - `tell`: hears what is being done.

    Raises `TypeError` for anything else, `UnreadableModule`, `meshes.InvalidMesh`, `estimating.InvalidHardware`, and
    what JAX raises when it lowers and compiles.
    """
    taken = staged(step, arguments, tell)
    tell("reading the module")
    return _explained(taken, mesh, hardware, recording)


@modules.uncollected()
def _explained(
    taken: Staged, mesh: Mapping[str, int] | None, hardware: str | None, recording: Recording | None
) -> Explanation:
    module = read(taken, mesh)
    if recording is not None:
        program = recording.chosen(module.explanation.module)
        module = replace(module, explanation=profiles.profiled(module, recording, program))
    name = hardware or estimating.hardware_of(module.explanation.device)
    explanation = module.explanation
    if name is not None:
        explanation = estimating.estimated(module, name, None if hardware else _coordinates(taken.compiled))
    explanation = _with_layouts(explanation, taken.compiled)
    return explanation if taken.lowered is None else _with_reasons(module, explanation, taken)


def _coordinates(compiled: Any) -> list[tuple[int, ...]] | None:
    """The places of the devices of a TPU in the mesh's order: slice, chip in the torus, core."""
    shardings: list[Any] = [s for s in _leaves(compiled.input_shardings) if isinstance(s, NamedSharding)]
    devices = list(shardings[0].mesh.devices.flat) if shardings else []
    if not devices or not all(hasattr(device, "coords") for device in devices):
        return None
    return [(getattr(device, "slice_index", 0), *device.coords, device.core_on_chip) for device in devices]


def staged(step: Any, arguments: Sequence[Any], tell: Callable[[str], None]) -> Staged:
    """Lower and compile what is not yet; `tell` hears of it. Raises as `explained` does."""
    tell("tracing")
    lowered: Any = None
    name = getattr(step, "__name__", type(step).__name__)
    step = _unwrapped(step)
    if isinstance(step, (stages.Compiled, stages.Lowered, stages.Traced)):
        if arguments:
            raise TypeError(f"a {name} has its arguments already: runner.explain(step)")
        if isinstance(step, stages.Compiled):
            return Staged(None, step, name)
        lowered = step.lower() if isinstance(step, stages.Traced) else step
    elif isinstance(step, np.ufunc):
        raise TypeError(f"NumPy computes numpy.{name}, which jit cannot trace; give jax.numpy.{name}")
    elif callable(step):
        _require_fitting(step, name, arguments)
        jitted: Any = step if hasattr(step, "lower") else cast("Any", jax).jit(step)
        lowered = _unwrapped(jitted.lower(*arguments))
    else:
        raise TypeError(
            f"a value of the type {type(step).__name__} is neither a function nor what jit lowers or compiles"
        )
    tell("XLA is compiling")
    return Staged(lowered, lowered.compile(), name)


def _unwrapped(step: Any) -> Any:
    """What JAX lowered or compiled, where a library has it in an object of its own, as Equinox and Flax do."""
    held = (getattr(step, name, None) for name in ("lowered", "compiled"))
    return next((inner for inner in held if isinstance(inner, (stages.Lowered, stages.Compiled))), step)


def _require_fitting(step: Any, name: str, arguments: Sequence[Any]) -> None:
    """Raise `TypeError` for arguments that a function does not take; what its signature does not say, JAX says."""
    try:
        signature = inspect.signature(step)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        only: Any = arguments[0] if len(arguments) == 1 else None
        instead = (
            f": runner.explain({name}, {', '.join(signature.parameters)})" if isinstance(only, tuple | list) else ""
        )
        raise TypeError(f"{name}: {error}; its arguments are given one by one{instead}") from None


def read(step: Staged, mesh: Mapping[str, int] | None) -> ReadModule:
    """Read the compiled module of a step. Raises `UnreadableModule` and `meshes.InvalidMesh`."""
    compiled = step.compiled
    text = compiled.as_text()
    if not text:
        raise UnreadableModule(f"{step.name}: the backend does not show the compiled module")
    shardings = [*_leaves(compiled.input_shardings), *_leaves(compiled.output_shardings)]
    device: Any = next((next(iter(sharding.device_set)) for sharding in shardings), None)
    known = Known(
        mesh=mesh or _axes(shardings),
        memory=cost.memory(compiled, device.platform if device else ""),
        platform=device.platform if device else None,
        device=device.device_kind if device else None,
        versions={"jax": jax.__version__, "jaxlib": metadata.version("jaxlib")},
    )
    return modules.read(text, step.name, known)


def _leaves(tree: Any) -> list[Any]:
    return trees.leaves(tree)


def _axes(shardings: Sequence[Any]) -> dict[str, int] | None:
    """The axes of the mesh of these shardings, by their sizes; of several meshes the one with the most axes."""
    devices = max((len(sharding.device_set) for sharding in shardings), default=1)
    sizes = [dict(sharding.mesh.shape) for sharding in shardings if isinstance(sharding, NamedSharding)]
    sizes = [axes for axes in sizes if math.prod(axes.values()) == devices > 1]
    return max(sizes, key=len, default=None)


def _with_reasons(module: ReadModule, explanation: Explanation, step: Staged) -> Explanation:
    """Add the reasons of collectives, by Shardy's plan of the lowered module."""
    shapes = {
        argument.name: tuple(info.shape)
        for argument, info in zip(explanation.arguments, _infos(step.compiled.args_info), strict=False)
    }
    arrays = reasons.arrays_of(explanation.arguments, shapes)
    outputs = {
        f"out_shardings{util.keystr(path)}": sharding
        for path, sharding in util.tree_leaves_with_path(step.compiled.output_shardings)
    }
    keys = LayoutKeys(
        mesh=meshes.layout_mesh(explanation.mesh, explanation.partitions),
        keys=[*arrays, *outputs],
        arrays=arrays,
        outputs={
            name: (name, Spec.of(sharding.spec) if isinstance(sharding, NamedSharding) else Spec())
            for name, sharding in outputs.items()
        },
        constraint=reasons.constraint,
        users=is_users,
        typed=False,
    )

    def where(metadata: Metadata) -> propagation.Place:
        return propagation.place(module.places.of(metadata))

    def array(name: str) -> str | None:
        return name if name in arrays else None

    planned = propagation.read(step.lowered, keys, propagation.ModuleNames(where, array, tuple(outputs)))
    explanation = replace(explanation, layouts=layouts_of(planned.operations))
    return reasons.explained(explanation, planned.summary(), arrays)


# Layouts and donation, which JAX knows and a module's text may not have.


def _with_layouts(explanation: Explanation, compiled: Any) -> Explanation:
    shardings = _leaves(compiled.input_shardings)
    donated = [info.donated for info in _infos(compiled.args_info)]
    arguments = explanation.arguments
    if len(shardings) == len(donated) == len(arguments):
        # An argument that the program does not use has no parameter; then which is which is not known.
        each = zip(arguments, shardings, donated, strict=True)
        arguments = [replace(_laid_out(argument, lies), donated=gives) for argument, lies, gives in each]
    return replace(explanation, arguments=arguments, notes=[*explanation.notes, *_moved(compiled)])


def _laid_out(argument: Argument, sharding: Any) -> Argument:
    if not isinstance(sharding, NamedSharding):
        return argument
    return replace(argument, spec=Spec.of(sharding.spec).padded(len(argument.shape)))


@dataclass(frozen=True)
class _Tree:
    """An argument or a result: the shardings of its leaves, by their paths, and their shapes and dtypes."""

    shape: Any
    paths: list[str]
    shardings: list[Any]
    types: list[tuple[Any, Any]]

    def alike(self, other: _Tree) -> bool:
        """Whether both have one structure, and arrays of the same shapes and dtypes."""
        return bool(self.types) and (self.shape, self.types) == (other.shape, other.types)


def _tree(shardings: Any, infos: Any) -> _Tree:
    paths = [util.keystr(path) for path, _ in util.tree_leaves_with_path(shardings)]
    types = [(info.shape, info.dtype) for info in _infos(infos)]
    return _Tree(trees.structure(shardings), paths, _leaves(shardings), types)


def _moved(compiled: Any) -> list[str]:
    """A sentence for each argument that is returned in another layout than it was given.

    A result is taken for the new state of an argument if it has its structure, and arrays of its shapes and dtypes.
    """
    outputs, infos = compiled.output_shardings, compiled.out_info
    single = not isinstance(outputs, tuple)
    given = list(map(_tree, compiled.input_shardings[0], compiled.args_info[0]))
    returned = [_tree(outputs, infos)] if single else list(map(_tree, cast("tuple[Any, ...]", outputs), infos))
    sentences: list[str] = []
    for number, before in enumerate(given):
        place = next((place for place, after in enumerate(returned) if before.alike(after)), None)
        if place is None:
            continue
        leaves = zip(before.paths, before.shardings, returned[place].shardings, before.types, strict=True)
        changes = [
            f"{path or 'the array'} from {_spelled(was, len(kind[0]))} to {_spelled(now, len(kind[0]))}"
            for path, was, now, kind in leaves
            if not was.is_equivalent_to(now, len(kind[0]))
        ]
        if changes:
            shown = changes[:_NAMED] + ([f"{len(changes) - _NAMED} more"] if len(changes) > _NAMED else [])
            sentences.append(f"argument {number} comes back as result {place} in another layout: {listed(shown)}")
    return sentences


def _infos(tree: Any) -> list[Any]:
    return trees.leaves(tree, is_leaf=_typed)


def _typed(leaf: Any) -> bool:
    return hasattr(leaf, "dtype")


def _spelled(sharding: Any, rank: int) -> str:
    if isinstance(sharding, NamedSharding):
        return str(Spec.of(sharding.spec).padded(rank))
    return str(sharding)
