"""Reads the specs of a call in which AUTO stands for what the planner chooses.

In: the specs, with AUTO for an operand, for a leaf, or for a part of a tree. Out: specs without it, and the layouts of
leaves by their paths, in which the file's own `auto` stands.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, cast

from runner.app.called.experiment import CalledExperiment, experiment, is_deeper, require_call
from runner.app.called.module import MODULE
from runner.app.called.specs import WrongSpecs, is_auto, is_spec, per_operand, spread
from runner.base.lazy import dataclass
from runner.base.untyped import is_mapping
from runner.base.words import as_spec, listed
from runner.experiment.forms import AUTO as WRITTEN
from runner.experiment.imported import DEEPEST
from runner.experiment.patterns import fits


@dataclass(frozen=True)
class OpenSpecs:
    """Specs of operands without AUTO.

    - `in_specs`: for `runner.app.called`; `layouts`: for each operand with AUTO, by number, its leaves' layouts in the
      file's syntax, in the order of the leaves that are arrays; `auto` where one is to be chosen.
    """

    in_specs: Any
    layouts: Mapping[int, Sequence[Any]] = field(default_factory=dict[int, Sequence[Any]])


def opened(in_specs: Any, operands: Sequence[Any]) -> OpenSpecs:
    """Take AUTO out of the specs of operands. Raises `WrongSpecs` and `ValueError` as `runner.check` does."""
    jax: Any = sys.modules.get("jax")
    if not _has_auto(jax, in_specs):
        return OpenSpecs(in_specs)
    if is_mapping(in_specs):
        raise ValueError(f"in_specs is {in_specs!r}; give a PartitionSpec, or a tree of them, for each operand")
    chosen = jax.sharding.PartitionSpec(_CHOSEN)

    def mark(spec: Any) -> Any:
        return chosen if is_auto(spec) else spec

    def unmark(spec: Any) -> Any:
        return plain if spec == chosen else spec

    marked = jax.tree.map(mark, in_specs, is_leaf=_is_leaf)
    given, places = per_operand(marked, [f"operand {at}" for at in range(len(operands))], ())
    plain = jax.sharding.PartitionSpec()
    clean, layouts = list[Any](), dict[int, Sequence[Any]]()
    for at, (spec, operand, place) in enumerate(zip(given, operands, places, strict=True)):
        leaves = spread(spec, operand, place)
        clean.append(jax.tree.map(unmark, spec, is_leaf=is_spec))
        if chosen in leaves:
            arrays = [hasattr(leaf, "shape") for leaf in jax.tree.leaves(operand)]
            layouts[at] = [
                WRITTEN if each == chosen else written(each)
                for each, is_array in zip(leaves, arrays, strict=True)
                if is_array
            ]
    return OpenSpecs(tuple(clean), layouts)


_CHOSEN = " chosen by the planner"
"""The name of an axis that no mesh has: it marks a spec that was AUTO."""


def paths(name: str, operand: Any) -> list[str]:
    """The paths of the arrays of an operand, as the file's patterns have them: `state/params/w`."""
    jax: Any = sys.modules["jax"]
    pairs = jax.tree_util.tree_flatten_with_path(operand)[0]
    return ["/".join([name, *map(_part, path)]) for path, leaf in pairs if hasattr(leaf, "shape")]


def outputs(out_specs: Any, name: str) -> dict[str, Any]:
    """The layouts of a result, by patterns of its paths, where `out_specs` fixes them."""
    jax: Any = sys.modules["jax"]
    if out_specs is None or is_auto(out_specs):
        return {}
    pairs = jax.tree_util.tree_flatten_with_path(out_specs, is_leaf=_is_leaf)[0]
    other = next((leaf for _, leaf in pairs if not (leaf is None or is_auto(leaf) or is_spec(leaf))), None)
    if other is not None:
        raise WrongSpecs("out_specs", f"a spec is a PartitionSpec, not {other!r}{as_spec(out_specs)}")
    fixed = {
        "/".join([name, *map(_part, path)]): written(spec)
        for path, spec in pairs
        if spec is not None and not is_auto(spec)
    }
    return {f"{path}/**": spec for path, spec in fixed.items()}


def written(spec: Any) -> list[Any]:
    """A PartitionSpec in the file's syntax."""
    entries: Sequence[Any] = () if spec is None else getattr(spec, "spec", spec)
    return [[*cast("tuple[Any, ...]", entry)] if isinstance(entry, tuple) else entry for entry in entries]


def _has_auto(jax: Any, specs: Any) -> bool:
    return jax is not None and any(is_auto(leaf) for leaf in jax.tree.leaves(specs, is_leaf=_is_leaf))


def _is_leaf(value: Any) -> bool:
    return is_spec(value) or is_auto(value)


def _part(key: Any) -> str:
    return str(next((getattr(key, name) for name in ("key", "name", "idx") if hasattr(key, name)), key))


def experiment_of(
    function: Callable[..., Any],
    operands: Sequence[Any],
    folder: Path,
    planned: bool = False,
    /,
    *,
    in_specs: Any = None,
    out_specs: Any = None,
    hold: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> CalledExperiment:
    """The experiment of a call, with `auto` in the place of AUTO; the arguments are those of `called.experiment`.

    - `planned`: whether the call is `runner.plan`'s, to which results are open too where `out_specs` says nothing.
    - `hold`: layouts by patterns of leaves' paths, or by operations inside of the function.
    """
    caller = "plan" if planned else "check"
    require_call(function, operands, caller)
    unlike = next((name for name in ("specs", "constraints") if not is_mapping(arguments.get(name) or {})), None)
    if unlike is not None:
        operands_have = "; the specs of the operands are in_specs=…" if unlike == "specs" and in_specs is None else ""
        raise WrongSpecs(unlike, f"{arguments[unlike]!r} is no mapping of paths to specs{operands_have}")
    made = next((key for key in _MADE if key in arguments), None)
    if made is not None:
        raise WrongSpecs(made, f"it is made of the call; leave {made} out")
    for name, tree in (("in_specs", in_specs), ("out_specs", out_specs)):
        # JAX would end with a RecursionError, and with another one at each later call.
        if is_deeper(tree, DEEPEST + 1):
            raise WrongSpecs(name, f"it is a tree of more than {DEEPEST} levels, or contains itself")
    open_specs = opened(in_specs, operands)
    planned_outputs = planned or _has_auto(sys.modules.get("jax"), out_specs)
    called = experiment(
        function,
        operands,
        folder,
        caller,
        in_specs=open_specs.in_specs,
        out_specs=None if planned_outputs else out_specs,
        **arguments,
    )
    keys = dict(called.keys)
    arrays, layouts = dict(keys["arrays"]), dict(keys.get("specs") or {})
    for at, specs in open_specs.layouts.items():
        tree = f"{MODULE}.operands[{at}]"
        name = next((name for name, array in arrays.items() if array["tree"] == tree), None)
        if name is None:
            # An operand without arrays has no layout.
            continue
        arrays[name] = {"tree": arrays[name]["tree"]}
        layouts |= dict(zip(paths(name, operands[at]), specs, strict=True))
    if planned_outputs:
        single = out_specs is not None and is_spec(out_specs)
        keys["outputs"] = {"result": written(out_specs) if single else WRITTEN}
        layouts |= {} if single else outputs(out_specs, "result")
    held, inside = _held(hold or {}, layouts, keys)
    # The first pattern that a path fits counts.
    keys["constraints"] = inside | dict(keys.get("constraints") or {})
    left = {path: spec for path, spec in layouts.items() if not any(fits(name, path) for name in held)}
    keys["specs"] = held | left
    return replace(called, keys={**keys, "arrays": arrays})


_MADE = ("arrays", "graph", "imports", "outputs")
"""The keys of an experiment that are made of the call."""


def _held(
    hold: Mapping[str, Any], layouts: Mapping[str, Any], keys: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The layouts to hold: of leaves, and of operations inside of the function. Raises `WrongSpecs`."""
    leaves, inside = dict[str, Any](), dict[str, Any]()
    if not is_mapping(hold):
        raise WrongSpecs("hold", f"{hold!r} is no mapping of paths to specs, {{'params/**/embed': P('model')}}")
    for name, spec in hold.items():
        if not isinstance(name, str):
            raise WrongSpecs(f"hold[{name!r}]", "a path of leaves is a text, such as 'params/**/embed'")
        if not is_spec(spec):
            raise WrongSpecs(f"hold[{name!r}]", f"{spec!r} is not a PartitionSpec")
        if name.partition("/")[0] in keys["outputs"] or any(fits(name, path) for path in layouts):
            leaves[name] = written(spec)
        elif _OPERATION.fullmatch(name):
            inside[f"**/{name}"] = written(spec)
        else:
            known = sorted(path for path, layout in layouts.items() if layout == WRITTEN)[:_NAMED]
            there = [*([listed(known)] if known else []), "operations: dot_general.1"]
            message = f"no leaf that is AUTO has this path; there are {', and '.join(there)}"
            raise WrongSpecs(f"hold[{name!r}]", message)
    return leaves, inside


_OPERATION = re.compile(r"[a-z_]+\.[0-9]+")
"""The name of an operation inside of a function: `dot_general.3`."""

_NAMED = 12
"""The most paths that a message names."""
