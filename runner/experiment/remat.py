"""Reads what is kept for the backward pass: the key `checkpoint` of a function or a repeat, and the key `remat`.

`remat` says what each `checkpoint: auto` of a file, and `policy=runner.AUTO` of a function, save.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from runner.base.chosen import EVERYTHING
from runner.base.faults import Key, invalid, nearest
from runner.base.untyped import is_list, is_mapping
from runner.experiment.forms import AUTO, BY_NAMES, POLICIES, yaml_hint
from runner.graph.model import Branches, CalledFunction, Equation, Graph, Repeat, literal, walk
from runner.graph.source import SECTIONS, Checkpoint, FunctionCall

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


_FORM = f"write true, one of {', '.join(POLICIES)}, or {{{BY_NAMES[0]}: [NAME]}}"


def read_checkpoint(value: Any, key: Key) -> Checkpoint | None:
    """The policy. Raises `InvalidExperiment` for an unknown one."""
    if isinstance(value, bool) or value is None:
        return Checkpoint() if value else None
    if isinstance(value, str):
        if value in BY_NAMES:
            raise invalid(key, f"'{value}' takes names: write {{{value}: [NAME]}}")
        if value not in POLICIES:
            raise invalid(key, f"no policy '{value}'{nearest(value, (*POLICIES, *BY_NAMES)) or f'; {_FORM}'}")
        return Checkpoint(value)
    if not is_mapping(value) or len(value) != 1:
        raise invalid(key, f"{value!r} is not a policy; {_FORM}")
    ((policy, names),) = value.items()
    if policy not in BY_NAMES:
        hint = nearest(str(policy), BY_NAMES) or f"; there are {', '.join(BY_NAMES)}"
        raise invalid((*key, policy), f"no policy of names is called '{policy}'{hint}")
    given: list[Any] = names if is_list(names) else [names]
    for i, name in enumerate(given):
        if not isinstance(name, str):
            at = (*key, policy, i) if is_list(names) else (*key, policy)
            raise invalid(at, f"{name!r} is not a name{yaml_hint(name)}")
    if not given:
        raise invalid((*key, policy), f"'{policy}' has no names")
    return Checkpoint(policy, tuple(given))


def check_names(graph: Graph) -> None:
    """Raise `InvalidExperiment` for a policy with names that no `checkpoint_name` of a section defines."""
    known = sorted(names(graph))
    for checkpoint, key in of(graph):
        for name in checkpoint.names:
            if name not in known:
                hint = nearest(name, known) or f"; checkpoint_name(x, '{name}') gives it to a value"
                raise invalid((*key, str(checkpoint.policy)), f"nothing has the name '{name}'{hint}")


def of(graph: Graph) -> Iterator[tuple[Checkpoint, Key]]:
    """The policies of the functions and repeats of a section, each with its key."""
    for equation in walk(graph):
        match equation.form:
            case Repeat(checkpoint=Checkpoint() as checkpoint, line=line):
                yield checkpoint, (*(line.origin.key if line.origin else ()), "checkpoint")
            case CalledFunction(call=call):
                yield from _of_call(call)
            case Branches(calls=calls):
                yield from itertools.chain.from_iterable(map(_of_call, calls))
            case _:
                pass


def _of_call(call: FunctionCall) -> Iterator[tuple[Checkpoint, Key]]:
    if call.checkpoint is not None:
        yield call.checkpoint, ("functions", call.function, "checkpoint")


def without(graph: Graph) -> Graph:
    """The same section without policies, which keeps everything."""
    return replace(graph, equations=tuple(map(_without, graph.equations)))


def _without(equation: Equation) -> Equation:
    form = equation.form
    if form is None:
        return equation
    match form:
        case Repeat():
            form = replace(form, checkpoint=None)
        case CalledFunction(call=call):
            form = replace(form, call=replace(call, checkpoint=None))
        case Branches(calls=calls):
            form = replace(form, calls=tuple(replace(call, checkpoint=None) for call in calls))
    return replace(equation, form=form, bodies=tuple(map(without, equation.bodies)))
