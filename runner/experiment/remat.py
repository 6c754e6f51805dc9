"""Reads the key `remat`: what each `checkpoint: auto` of a file, and `policy=runner.AUTO` of a function, save."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from runner.base.chosen import EVERYTHING
from runner.base.faults import Key, invalid, nearest
from runner.base.untyped import is_list, is_mapping
from runner.experiment.forms import AUTO
from runner.graph.model import Graph, literal, walk
from runner.graph.source import SECTIONS

Saved: TypeAlias = "tuple[str, ...] | Literal['everything']"
"""The names of the values that are saved, or everything."""

_SECTIONS = ("functions", "both", *SECTIONS)


def is_open(config: Mapping[str, Any]) -> bool:
    """Whether the planner must choose what is saved."""
    return config.get("remat") == AUTO


def saving(config: Mapping[str, Any], saved: Sequence[str]) -> dict[str, Any]:
    """The configuration in which the checkpoints that are `auto` save these values."""
    return {**config, "remat": saved if isinstance(saved, str) else list(saved)}


def resolved(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the policy of `remat` in the place of each `checkpoint: auto`, and without `remat`.

    Raises `InvalidExperiment` where there is one, and `remat` does not say what it saves.
    """
    remat = config.get("remat")
    return {**config, "remat": None, **{name: _resolved(config.get(name), remat, (name,)) for name in _SECTIONS}}


def require_read(config: Mapping[str, Any], graphs: Iterable[Graph]) -> None:
    """Raise `InvalidExperiment` if nothing reads the key `remat` of a configuration, or a name in it.

    `graphs` are those of its sections, with the calls taken out.
    """
    remat = config["remat"]
    if remat is None:
        return
    if not config["imports"] and not reads(config):
        raise invalid(("remat",), "nothing reads it: write checkpoint: auto in a function or a repeat")
    known = {name for graph in graphs for name in names(graph)}
    for at, name in enumerate(remat if is_list(remat) else ()):
        if name not in known:
            hint = nearest(name, sorted(known)) or f"; checkpoint_name(x, '{name}') gives it to a value"
            raise invalid(("remat", at), f"nothing has the name '{name}'{hint}")


def _resolved(value: Any, remat: Any, key: Key) -> Any:
    if is_mapping(value):
        return {
            name: _policy(remat, (*key, name))
            if name == "checkpoint" and part == AUTO
            else _resolved(part, remat, (*key, name))
            for name, part in value.items()
        }
    if is_list(value):
        return [_resolved(part, remat, (*key, at)) for at, part in enumerate(value)]
    return value


def reads(value: Any) -> bool:
    """Whether a part of a configuration has a `checkpoint: auto`."""
    if is_mapping(value):
        return any((name == "checkpoint" and part == AUTO) or reads(part) for name, part in value.items())
    return is_list(value) and any(map(reads, value))


def _policy(remat: Any, key: Key) -> Any:
    if remat is None:
        message = "nothing says what is saved: write remat: auto, and the planner finds it, or remat: [NAME]"
        raise invalid(key, message)
    if remat == EVERYTHING:
        return False
    return {"save_only_these_names": list(remat)} if remat else True


def names(graph: Graph) -> tuple[str, ...]:
    """The names that `checkpoint_name` gives values of a graph, in order."""
    named = (equation.arguments[-1] for equation in walk(graph) if equation.operation == "checkpoint_name")
    return tuple(dict.fromkeys(str(name) for name in map(literal, named) if name is not None))


_WHOLE = 5
"""The most names of which every choice is planned."""


def choices(known: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the choices of few names, those with most names first."""
    for many in range(len(known), -1, -1):
        yield from itertools.combinations(known, many)


def are_few(known: Sequence[str]) -> bool:
    """Whether every choice of names is planned."""
    return len(known) <= _WHOLE


def policy(saved: Sequence[str]) -> str:
    """The policy of `jax.checkpoint`, to paste."""
    if isinstance(saved, str):
        return "jax.checkpoint_policies.everything_saveable"
    if not saved:
        return "jax.checkpoint_policies.nothing_saveable"
    return f"jax.checkpoint_policies.save_only_these_names({', '.join(map(repr, saved))})"


def words(saved: Sequence[str]) -> str:
    """What is saved, in words: names, everything or nothing."""
    return saved if isinstance(saved, str) else ", ".join(saved) or "nothing"


def supersets(saved: Sequence[str], of: Iterable[tuple[str, ...]]) -> bool:
    """Whether a choice is part of one of others."""
    return any(set(saved) <= set(other) for other in of)
