"""A step in the caller's process, jitted, lowered or compiled, in; what is known of its compiled module out.

This is the one module that touches the caller's JAX objects. It lowers and compiles what is not compiled yet, on the
caller's devices and under the caller's mesh context. Nothing runs, no array is copied, and no process is started.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import jaxlib
from jax.sharding import NamedSharding

from runner.explanation import modules
from runner.explanation.model import Argument, Explanation
from runner.explanation.modules import Known, ReadModule, UnreadableModule
from runner.layout import Spec
from runner.link.events import Memory
from runner.words import bytes_text, listed

_NAMED = 4
"""How many arguments a sentence names."""


@dataclass(frozen=True)
class Stages:
    """A step as lowered, if it was lowered here or by the caller, and as compiled."""

    lowered: Any
    compiled: Any
    name: str


def explained(step: Any, arguments: Sequence[Any], mesh: Mapping[str, int] | None = None) -> Explanation:
    """The explanation of a step: a function, jitted or not, with its arguments, a `Lowered` or a `Compiled`.

    Raises `TypeError` for anything else, `UnreadableModule`, `meshes.InvalidMesh`, and what JAX raises when it lowers
    and compiles.
    """
    stages = staged(step, arguments)
    return _with_layouts(read(stages, mesh).explanation, stages.compiled)


def staged(step: Any, arguments: Sequence[Any]) -> Stages:
    """Lower and compile what is not yet. Raises as `explained` does."""
    compiled = lowered = None
    name = getattr(step, "__name__", type(step).__name__)
    if isinstance(step, jax.stages.Compiled | jax.stages.Lowered | jax.stages.Traced):
        if arguments:
            raise TypeError(f"a {name} has its arguments already: runner.explain(step)")
        if isinstance(step, jax.stages.Compiled):
            return Stages(None, step, name)
        lowered = step.lower() if isinstance(step, jax.stages.Traced) else step
    elif callable(step):
        jitted: Any = step if hasattr(step, "lower") else jax.jit(cast("Callable[..., Any]", step))
        lowered = jitted.lower(*arguments)
    else:
        raise TypeError(f"{step!r} is neither a function nor what jit lowers or compiles")
    compiled = lowered.compile()
    return Stages(lowered, compiled, name)


def read(stages: Stages, mesh: Mapping[str, int] | None) -> ReadModule:
    """Read the compiled module of a step. Raises `UnreadableModule` and `meshes.InvalidMesh`."""
    compiled = stages.compiled
    text = compiled.as_text()
    if not text:
        raise UnreadableModule(f"{stages.name}: the backend does not show the compiled module")
    shardings = [*_leaves(compiled.input_shardings), *_leaves(compiled.output_shardings)]
    device: Any = next((next(iter(sharding.device_set)) for sharding in shardings), None)
    known = Known(
        mesh=mesh or _axes(shardings),
        memory=_memory(compiled, device),
        platform=device.platform if device else None,
        device=device.device_kind if device else None,
        versions={"jax": jax.__version__, "jaxlib": jaxlib.__version__},
    )
    return modules.read(text, stages.name, known)


def _leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree)


def _axes(shardings: Sequence[Any]) -> dict[str, int] | None:
    """The axes of the mesh of these shardings, by their sizes; of several meshes the one with the most axes."""
    devices = max((len(sharding.device_set) for sharding in shardings), default=1)
    meshes = [dict(sharding.mesh.shape) for sharding in shardings if isinstance(sharding, NamedSharding)]
    meshes = [axes for axes in meshes if math.prod(axes.values()) == devices > 1]
    return max(meshes, key=len, default=None)


def _memory(compiled: Any, device: Any) -> Memory | None:
    stats = compiled.memory_analysis()
    if stats is None:
        return None
    # XLA's figure for CPUs omits temporaries.
    peak = stats.peak_memory_in_bytes if device is not None and device.platform == "tpu" else None
    return Memory.of(
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes,
        stats.temp_size_in_bytes,
        stats.alias_size_in_bytes,
        peak,
    )


# Layouts and donation, which JAX knows and a module's text may not have.


def _with_layouts(explanation: Explanation, compiled: Any) -> Explanation:
    shardings, donated = _leaves(compiled.input_shardings), _donated(compiled)
    arguments = explanation.arguments
    notes = list(explanation.notes)
    if len(shardings) == len(arguments):
        # An argument that the program does not use has no parameter; then which is which is not known.
        arguments = [_laid_out(argument, sharding) for argument, sharding in zip(arguments, shardings, strict=True)]
        given = zip(arguments, donated, strict=True) if len(donated) == len(arguments) else ()
        notes += _unusable([argument for argument, gives in given if gives and argument.output is None])
    return replace(explanation, arguments=arguments, notes=[*notes, *_moved(compiled)])


def _laid_out(argument: Argument, sharding: Any) -> Argument:
    if not isinstance(sharding, NamedSharding):
        return argument
    return replace(argument, spec=Spec.of(sharding.spec).padded(len(argument.shape)))


def _donated(compiled: Any) -> list[bool]:
    """Whether each argument is donated."""
    return [info.donated for info in jax.tree.leaves(compiled.args_info, is_leaf=lambda x: hasattr(x, "donated"))]


def _unusable(arguments: Sequence[Argument]) -> list[str]:
    if not arguments:
        return []
    size = bytes_text(sum(argument.bytes for argument in arguments))
    are = "is donated, but no result reuses its" if len(arguments) == 1 else "are donated, but no result reuses their"
    return [f"{_listed([argument.name for argument in arguments])} {are} memory ({size} a device)"]


def _moved(compiled: Any) -> list[str]:
    """A sentence for each argument that is returned in another layout than it was given.

    A result is taken for the new state of an argument if it has its tree, and arrays of its shapes and dtypes.
    """
    given = compiled.input_shardings[0]
    infos = compiled.args_info[0] if isinstance(compiled.args_info, tuple) else ()
    outputs = compiled.output_shardings
    avals: Any = getattr(compiled, "out_info", None)
    if not isinstance(outputs, tuple):
        outputs, avals = (outputs,), (avals,)
    sentences: list[str] = []
    for number, (layouts, info) in enumerate(zip(given, infos, strict=False)):
        for place, result in enumerate(outputs):
            if not _alike(info, layouts, avals[place] if avals is not None else None, result):
                continue
            names = [
                _change(path, before, after, leaf)
                for (path, before), after, leaf in zip(
                    jax.tree_util.tree_leaves_with_path(layouts), _leaves(result), _infos(info), strict=True
                )
                if not before.is_equivalent_to(after, len(leaf.shape))
            ]
            if names:
                where = f"argument {number} comes back as result {place} in another layout"
                sentences.append(f"{where}: {_listed(names)}")
            break
    return sentences


def _infos(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda leaf: hasattr(leaf, "donated"))


def _alike(info: Any, layouts: Any, avals: Any, result: Any) -> bool:
    """Whether a result has the tree, the shapes and the dtypes of an argument."""
    before, after = _infos(info), _leaves(avals)
    if not before or len(before) != len(after) or jax.tree.structure(layouts) != jax.tree.structure(result):
        return False
    return all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in zip(before, after, strict=True))


def _change(path: Any, before: Any, after: Any, leaf: Any) -> str:
    name = jax.tree_util.keystr(path) or "the array"
    return f"{name} from {_spelled(before, leaf)} to {_spelled(after, leaf)}"


def _spelled(sharding: Any, leaf: Any) -> str:
    if isinstance(sharding, NamedSharding):
        return str(Spec.of(sharding.spec).padded(len(leaf.shape)))
    return str(sharding)


def _listed(names: Sequence[str]) -> str:
    return listed([*names[:_NAMED], *([f"{len(names) - _NAMED} more"] if len(names) > _NAMED else [])])
