"""Makes an experiment of a call: writes `called.py` and `called.pkl`, and the mapping that calls the function.

The function may be defined anywhere: in a module, a script, a notebook or another function. It is pickled with its
operands to `called.pkl` in the run folder; `called.py` beside it is a module that unpickles them, which the experiment
and the programs import.
"""

from __future__ import annotations

import inspect
import keyword
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.app.called import module
from runner.app.called.meshes import CallMesh, call_mesh, devices_of_caller
from runner.app.called.module import MODULE
from runner.app.called.specs import WrongSpecs, is_spec, per_operand, spread
from runner.base.faults import Key
from runner.base.lazy import dataclass
from runner.base.untyped import is_mapping
from runner.experiment.forms import IDENTIFIER, PLATFORMS
from runner.experiment.identifiers import importable, name_of
from runner.experiment.imported import CALLED, DEEPEST, SETTINGS_OF_A_PROCESS
from runner.graph.language.operations import CONSTANTS, OPERATIONS


class Unpicklable(ValueError):
    """The function, or something that it refers to, cannot be pickled for another process."""


@dataclass(frozen=True)
class CalledExperiment:
    """The experiment of a call.

    - `keys`: its mapping.
    - `arguments`: what the caller of `runner.check` wrote for each of its keys.
    """

    keys: dict[str, Any]
    arguments: Mapping[Key, str]


def experiment(
    function: Callable[..., Any],
    operands: Sequence[Any],
    folder: Path,
    caller: str = "check",
    /,
    *,
    kwargs: Mapping[str, Any] | None = None,
    mesh: Any = None,
    in_specs: Any = None,
    out_specs: Any = None,
    reference: Callable[..., Any] | None = None,
    program: str | Sequence[str] | None = None,
    **keys: Any,
) -> CalledExperiment:
    """Write `called.py` and `called.pkl` to `folder`, and return the experiment that calls the function.

    `keys` are further keys of the experiment; `caller`: the function of `runner` that messages name; the other
    arguments are those of `runner.check`. Raises `Unpicklable`,
    `WrongSpecs`, and `ValueError` for an invalid mesh or a wrong number of specs.
    """
    if kwargs is not None and not (is_mapping(kwargs) and all(isinstance(name, str) for name in kwargs)):
        raise ValueError(f"kwargs is {kwargs!r}; give a mapping of the names of keyword arguments, {{'train': True}}")
    given = (*operands, *(kwargs or {}).values())
    keywords = tuple(kwargs or {})
    own = _name(function)
    names = _names(function, len(operands), keywords, {own, "result", MODULE})
    for name, operand in zip(names, given, strict=True):
        if is_deeper(operand, DEEPEST):
            raise ValueError(
                f"{_name(function)}: the operand {name} is a tree of more than {DEEPEST} levels, for which no program "
                "can be written; pass its leaves in a list, and build the tree in the function"
            )
    leaves = [_arrays(operand) for operand in given]
    asked = _jitted(function, given, keywords)
    of_caller = [[getattr(leaf, "sharding", None) for leaf in each] for each in leaves]
    shardings = [[*map(_first, *pair)] for pair in zip(asked.in_shardings or of_caller, of_caller, strict=True)]
    of_specs = [each for each in _leaves_of(in_specs) if hasattr(each, "mesh")]
    on = call_mesh(mesh, [*of_specs, *(each for own in shardings for each in own)], (function, reference))
    spec_trees, places = _in_specs(in_specs, given, shardings, names, keywords)
    try:
        module.write(
            folder,
            settings=_settings(),
            specs=(spec_trees, out_specs),
            call=(function, reference, tuple(map(_sent, given)), keywords),
            axes=dict(on.axes),
            explicit=on.explicit,
            ambient=on.ambient,
            names=names,
            donated=[name for name, own in zip(names, asked.donated, strict=True) if own],
            elsewhere=_is_elsewhere(keys.get("target")),
            folders=[str(Path(each).resolve()) for each in sys.path],
        )
    except Exception as error:  # A pickled object's own code may raise anything.
        message = f"{_name(function)} cannot be pickled for the worker process: {type(error).__name__}: {error}"
        raise Unpicklable(message) from error
    arrays = {
        name: {"tree": f"{MODULE}.operands[{i}]", "specs": f"{MODULE}.in_specs[{i}]"}
        for i, name in enumerate(names)
        if leaves[i]
    }
    file = str((folder / CALLED).resolve())
    mapping = {
        "mesh": on.keys,
        **_target(on, keys),
        "imports": {MODULE: file, own: f"{file}:function"},
        "references": {} if reference is None else {own: f"{file}:reference"},
        "arrays": arrays,
        "graph": {"result": f"{own}({', '.join(arrays)})"},
        "outputs": {"result": f"{MODULE}.out_specs"},
        # The caller's own precision: nothing is overridden.
        "precision": "default",
        "program": program or ("explicit" if on.explicit else "auto"),
        **keys,
    }
    call = f"runner.{caller}({name_of(function)}, …)"
    return CalledExperiment(mapping, _arguments(call, names, places, leaves))


def require_call(function: Any, operands: Any, caller: str) -> None:
    """Raise `ValueError` unless `runner.check`, or another `caller`, is given a function and its operands."""
    if not callable(function):
        raise ValueError(f"{function!r} is not a function")
    if hasattr(operands, "_fields") or not isinstance(operands, list | tuple):
        raise ValueError(
            f"the operands are a tuple, runner.{caller}({_name(function)}, (x, w)), not {_described(operands)}"
        )


def _target(on: CallMesh, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The number of devices to simulate, where the caller's process has more than the mesh."""
    size = 1
    for axis in on.axes.values():
        size *= axis
    more = devices_of_caller()
    return {"target": {"devices": more}} if more > size and "target" not in keys else {}


def _is_elsewhere(target: Any) -> bool:
    """Whether a target is of devices that are not here."""
    return "topology" in target if is_mapping(target) else isinstance(target, str) and target not in PLATFORMS


def _arguments(
    call: str, names: Sequence[str], places: Sequence[str], leaves: Sequence[Sequence[Any]]
) -> dict[Key, str]:
    """What the caller wrote for each key of the experiment, `runner.check(f, …)`; longer keys count first."""
    arguments: dict[Key, str] = {("graph",): call, ("functions",): call, ("mesh",): "mesh", ("outputs",): "out_specs"}
    arguments |= {("imports",): call, ("references",): "reference", ("target",): "target"}
    for at, (name, place) in enumerate(zip(names, places, strict=True)):
        paths = [*_paths(leaves[at])] or [("", "")]
        for leaf, key in paths:
            arguments["arrays", "_".join(filter(None, (name, leaf)))] = f"{name}{key}"
            arguments["arrays", "_".join(filter(None, (name, leaf))), "spec"] = f"{place}{key}"
    return arguments


def is_deeper(tree: Any, levels: int) -> bool:
    """Whether dicts, lists and tuples are nested in more than so many levels, as one that contains itself is."""
    pending: list[tuple[Any, int]] = [(tree, 1)]
    while pending:
        container, depth = pending.pop()
        if not _is_container(container):
            continue
        if depth > levels:
            return True
        parts: Iterable[Any] = container.values() if is_mapping(container) else container
        pending += ((part, depth + 1) for part in parts)
    return False


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list | tuple)


class _Leaves(list[Any]):
    """The arrays among the leaves of an operand, with the keys of their paths."""

    keys: list[tuple[str, str]]


def _paths(leaves: Sequence[Any]) -> Iterable[tuple[str, str]]:
    return leaves.keys if isinstance(leaves, _Leaves) else ()


def _arrays(operand: Any) -> _Leaves:
    """The arrays among the leaves of an operand."""
    # Without JAX imported, an operand is a NumPy array, not a pytree.
    jax: Any = sys.modules.get("jax")
    if jax is None:
        arrays = _Leaves([operand] if _is_array(operand) else [])
        arrays.keys = [("", "")] * len(arrays)
        return arrays
    pairs = [pair for pair in jax.tree_util.tree_flatten_with_path(operand)[0] if _is_array(pair[1])]
    arrays = _Leaves([leaf for _, leaf in pairs])
    arrays.keys = [("_".join(map(_part, path)), jax.tree_util.keystr(path)) for path, _ in pairs]
    return arrays


def _part(key: Any) -> str:
    """One part of the path of a leaf, as a part of a name."""
    text = str(next((getattr(key, name) for name in ("key", "name", "idx") if hasattr(key, name)), key))
    return "".join(character if character.isalnum() or character == "_" else "_" for character in text).strip("_")


def _sent(operand: Any) -> Any:
    """An operand as it goes to the worker, which places arrays anew: in NumPy; zeros of size 0 for such a type."""
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return operand
    np: Any = sys.modules["numpy"]

    def leaf(value: Any) -> Any:
        if isinstance(value, jax.ShapeDtypeStruct):
            return np.zeros(value.shape, value.dtype) if 0 in value.shape else value
        if not isinstance(value, jax.Array) or jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            return value
        return np.asarray(value) if value.is_fully_addressable else value

    return jax.tree.map(leaf, operand)


def _first(own: Any, other: Any) -> Any:
    return other if own is None else own


def _leaves_of(specs: Any) -> list[Any]:
    jax: Any = sys.modules.get("jax")
    return [] if jax is None or specs is None else jax.tree.leaves(specs, is_leaf=is_spec)


def _in_specs(
    specs: Any,
    operands: Sequence[Any],
    shardings: Sequence[Sequence[Any]],
    names: Sequence[str],
    keywords: Sequence[str],
) -> tuple[list[Any], list[str]]:
    """The specs of each operand, in the tree of its arrays, and what the caller calls them."""
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return [None] * len(operands), [*names]
    trees = [jax.tree.map(_array, operand) for operand in operands]
    empty = jax.sharding.PartitionSpec()
    if specs is None:
        given = [[_spec(each, empty) for each in own] for own in shardings]
        return [jax.tree.unflatten(jax.tree.structure(tree), own) for tree, own in zip(trees, given, strict=True)], [
            f"the sharding of {name}" for name in names
        ]
    given, places = per_operand(specs, names, keywords)
    out: list[Any] = []
    for operand, tree, own, place in zip(operands, trees, given, places, strict=True):
        whole = spread(own, operand, place)
        arrays = [_is_array(leaf) for leaf in jax.tree.leaves(operand)]
        if isinstance(operand, bool | int | float | complex) and any(whole[0]) and place != "in_specs":
            number = f"the operand there is the Python number {operand!r}, which is passed unchanged"
            raise WrongSpecs(place, f"{whole[0]} shards an array, and {number}; give None")
        kept = [spec for spec, is_array in zip(whole, arrays, strict=True) if is_array]
        out.append(jax.tree.unflatten(jax.tree.structure(tree), kept))
    return out, places


def _spec(sharding: Any, empty: Any) -> Any:
    given = sharding if isinstance(sharding, type(empty)) else getattr(sharding, "spec", None)
    return empty if given is None else given


@dataclass(frozen=True)
class _Jitted:
    """What a jitted function says of its operands: whether each is donated, and the shardings of their arrays."""

    donated: list[bool]
    in_shardings: list[list[Any]] | None = None


def _jitted(function: Any, operands: Sequence[Any], keywords: Sequence[str]) -> _Jitted:
    jax: Any = sys.modules.get("jax")
    # JAX's public API gives them only by tracing and lowering the function.
    info = getattr(function, "_jit_info", None)
    if jax is None or info is None:
        return _Jitted([False] * len(operands))
    count = len(operands) - len(keywords)
    donated = [number in info.donate_argnums for number in range(count)]
    donated += [name in info.donate_argnames for name in keywords]
    shardings = _in_shardings(jax, info, operands[:count])
    if shardings is not None:
        shardings += [[None] * len(jax.tree.leaves(jax.tree.map(_array, operand))) for operand in operands[count:]]
    return _Jitted(donated, shardings)


def _in_shardings(jax: Any, info: Any, operands: Sequence[Any]) -> list[list[Any]] | None:
    """The `in_shardings` of a jitted function for each array of its operands; None if it has none."""
    if not getattr(info, "user_specified_in_shardings", False):
        return None
    static = {number % len(operands) for number in info.static_argnums if operands}
    trees = [jax.tree.map(_array, operand) for operand in operands]
    traced = tuple(tree for number, tree in enumerate(trees) if number not in static)
    kinds = (jax.sharding.Sharding, jax.sharding.PartitionSpec, type(None))

    def is_given(part: object) -> bool:
        return isinstance(part, kinds)

    try:
        prefix = jax.tree.unflatten(info.in_shardings_treedef, info.in_shardings_leaves)
        whole = iter(jax.tree.broadcast(prefix, traced, is_leaf=is_given))
    except ValueError:
        # They do not fit the operands: JAX says so when the function is traced.
        return None
    given: list[list[Any]] = []
    for number, tree in enumerate(trees):
        own = (
            [None] * len(jax.tree.leaves(tree)) if number in static else jax.tree.leaves(next(whole), is_leaf=is_given)
        )
        # A leaf without one has an object of JAX's own.
        given.append([part if is_given(part) else None for part in own])
    return given


def _described(value: Any) -> str:
    """Return the class of a value with its article: `an Array`, `a dict`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _settings() -> dict[str, Any]:
    """The caller's settings of JAX that a run takes over."""
    jax: Any = sys.modules.get("jax")
    if jax is None:
        return {}
    given = {name: getattr(value, "value", value) for name, value in jax.config.values.items()}
    simple = (bool, int, float, str, type(None))
    return {
        name: value for name, value in given.items() if name not in SETTINGS_OF_A_PROCESS and isinstance(value, simple)
    }


def _is_array(leaf: Any) -> bool:
    """Whether a leaf is an array of numbers, not of strings or objects, and not an empty one."""
    kind = getattr(getattr(leaf, "dtype", None), "kind", "V")
    return hasattr(leaf, "shape") and kind not in "OSUMm" and 0 not in leaf.shape


def _array(leaf: Any) -> Any:
    return leaf if _is_array(leaf) else None


def _name(function: Callable[..., Any]) -> str:
    """Return the function's name, with `_` appended if the name is taken in the language or in programs."""
    return importable(name_of(function), (*OPERATIONS, *CONSTANTS, "result", MODULE))


def _names(function: Callable[..., Any], count: int, keywords: Sequence[str], taken: set[str]) -> list[str]:
    """Return the operands' names: the function's parameters if known; `_` is appended to a name that is taken."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    wished = [
        parameters[i].name
        if i < len(parameters) and parameters[i].kind is not inspect.Parameter.VAR_POSITIONAL
        else f"operand{i}"
        for i in range(count)
    ]
    names: list[str] = []
    for wish in (*wished, *keywords):
        name = wish.strip("_") if IDENTIFIER.match(wish) else f"operand{len(names)}"
        while not name or name in taken or name in (*OPERATIONS, *CONSTANTS) or keyword.iskeyword(name):
            name += "_"
        taken.add(name)
        names.append(name)
    return names
