"""Reads the specs of a call: a tree of specs for each operand becomes a spec for each leaf, AUTO what is planned.

What is wrong is said of the caller's argument, `in_specs[0]["up"]`; an argument that JAX's functions call otherwise is
answered with what to write.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from runner.base.chosen import AUTO, Auto
from runner.base.words import as_spec, listed
from runner.experiment.forms import AUTO as WRITTEN


class WrongSpecs(Exception):
    """Specs that do not fit their operands: the `argument` of the caller, and what is wrong with it."""

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(message)
        self.argument = argument


def is_spec(value: Any) -> bool:
    """Whether a value is the spec of an array: a PartitionSpec, a NamedSharding, or None."""
    jax: Any = sys.modules.get("jax")
    return value is None or (
        jax is not None and isinstance(value, jax.sharding.PartitionSpec | jax.sharding.NamedSharding)
    )


def per_operand(specs: Any, names: Sequence[str], keywords: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Return the specs of each operand, and what the caller calls them; the operands' `names` end with `keywords`.

    A single spec is for all operands. Raises `ValueError` and `WrongSpecs`.
    """
    if isinstance(specs, str):
        raise WrongSpecs("in_specs", _of_text(specs))
    if specs is not None and is_spec(specs):
        return [specs] * len(names), ["in_specs"] * len(names)
    if not isinstance(specs, Sequence):
        raise ValueError(f"in_specs is {specs!r}; give a PartitionSpec, or a tree of them, for each operand")
    given = list(cast("Sequence[Any]", specs))
    places = [f"in_specs[{at}]" for at in range(len(given))]
    count = len(names) - len(keywords)
    if keywords and len(given) == count + 1 and isinstance(given[-1], Mapping):
        own, place = cast("Mapping[str, Any]", given.pop()), places.pop()
        unknown = [name for name in own if name not in keywords]
        if unknown:
            raise WrongSpecs(f"{place}[{unknown[0]!r}]", f"no such keyword argument; there are {listed(keywords)}")
        given += [own.get(name) for name in keywords]
        places += [f"{place}[{name!r}]" for name in keywords]
    elif keywords and len(given) == count:
        given += [None] * len(keywords)
        places += [f"in_specs of {name}" for name in keywords]
    if len(given) != len(names):
        entries, operands = (
            f"{n} {what}{'' if n == 1 else 's'}" for n, what in ((len(given), "spec"), (len(names), "operand"))
        )
        message = f"in_specs has {entries}, and the function is called with {operands}; give one for each"
        raise ValueError(message + ", and None for one that stays as it lies")
    return given, places


def spread(specs: Any, tree: Any, place: str) -> list[Any]:
    """Return the PartitionSpec of each leaf of a tree of which `specs` is a prefix. Raises `WrongSpecs`.

    None is for arrays that lie as they lie, as for `in_shardings` of `jax.jit`: those without a mesh are replicated.
    `place` is what the caller calls `specs`.
    """
    tree_util: Any = sys.modules["jax"].tree_util
    leaves: list[Any] = tree_util.tree_leaves(tree)
    if is_spec(specs):
        return [_partition(leaf.sharding if specs is None and hasattr(leaf, "sharding") else specs) for leaf in leaves]
    if isinstance(specs, str):
        raise WrongSpecs(place, _of_text(specs))
    mine, theirs = _children(tree_util, specs), _children(tree_util, tree)
    if mine is None or (theirs is None and isinstance(specs, tuple)):
        hint = as_spec(cast("object", specs))
        raise WrongSpecs(place, f"a spec is a PartitionSpec, not {specs!r}{hint}")
    if theirs is None:
        raise WrongSpecs(place, f"it is a tree of specs, and the operand there is {_described(tree)}; give one spec")
    # The attributes of a module may be named by a mapping, as `nnx.get_partition_spec` names them.
    by_name = {_name(key): key for key in theirs}
    mine = {by_name.get(_name(key), key): part for key, part in mine.items()}
    theirs = {key: part for key, part in theirs.items() if key in mine or tree_util.tree_leaves(part)}
    for key in [key for key in mine if key not in theirs]:
        known = f"it has {listed([*theirs])}" if theirs else "it has none"
        raise WrongSpecs(f"{place}{key}", f"the operand has no {key}; {known}")
    for key in [key for key in theirs if key not in mine]:
        raise WrongSpecs(place, f"there is no spec for {key}; give one, or one for all of {place}")
    return [spec for key, part in theirs.items() for spec in spread(mine[key], part, f"{place}{key}")]


def _children(tree_util: Any, tree: Any) -> dict[str, Any] | None:
    """The parts of a node of a tree by their keys, as Python writes them; None for a leaf."""

    def is_part(part: Any) -> bool:
        return part is not tree

    pairs: Iterable[tuple[Any, Any]] = tree_util.tree_flatten_with_path(tree, is_leaf=is_part)[0]
    parts = {tree_util.keystr(path): part for path, part in pairs}
    return None if "" in parts else parts


def _name(key: str) -> str:
    """Return the name in the key of a part, `up` of `.up` and of `['up']`."""
    return key.strip("[].'")


def _partition(spec: Any) -> Any:
    partition_spec: Any = sys.modules["jax"].sharding.PartitionSpec
    return spec if isinstance(spec, partition_spec) else getattr(spec, "spec", partition_spec())


def _of_text(text: str) -> str:
    return f"a spec is a PartitionSpec, not the text {text!r}: write P({text!r})"


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" if shape is None else f"one array of shape {list(shape)}"


_SPECS = "write it as {today}=…"
_STATIC = "an operand that is no array is passed as it is: write it among the operands"

_TODAY: Mapping[str, str] = {
    **dict.fromkeys(("in_shardings", "in_axis_resources"), _SPECS.format(today="in_specs")),
    **dict.fromkeys(("out_shardings", "out_axis_resources"), _SPECS.format(today="out_specs")),
    **dict.fromkeys(("static_argnums", "static_argnames"), _STATIC),
    **dict.fromkeys(("donate_argnums", "donate_argnames"), "write jax.jit(function, {name}=…) as the function"),
    "args": "the operands come second, as a tuple: write (x, w)",
}
"""Arguments of `jax.jit` and `jax.shard_map`, and what is written in their place."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def refuse(keys: Mapping[str, Any]) -> None:
    """Raise `WrongSpecs` for the first of the `keys` that is no key of an experiment but JAX's name for an argument."""
    for name in keys:
        if name in _TODAY:
            raise WrongSpecs(name, f"there is no argument '{name}'; {_TODAY[name].format(name=name)}")


def of_one_tuple(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let a function of a function and its operands say how the operands are written if they are not one tuple."""

    @functools.wraps(function)
    def checked(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        if len(arguments) > 2:
            called = getattr(arguments[0], "__name__", "f")
            operands = ", ".join(_names(arguments[0], len(arguments) - 1))
            message = f"the operands are one tuple: write runner.{function.__name__}({called}, ({operands}), …)"
            raise TypeError(message)
        return function(*arguments, **keywords)

    return checked


def _names(function: object, count: int) -> list[str]:
    """The names of a function's first parameters; letters where it does not name so many."""
    try:
        names = list(inspect.signature(function).parameters) if callable(function) else []
    except (TypeError, ValueError):
        names = []
    return names[:count] if len(names) >= count else [chr(ord("a") + at) for at in range(count)]


__all__ = ["AUTO", "is_auto"]


def is_auto(value: Any) -> bool:
    """Whether a spec is AUTO, or the text `auto`."""
    return isinstance(value, Auto) or (isinstance(value, str) and value == WRITTEN)
