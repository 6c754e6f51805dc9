"""Reads the key `checkpoint` of a function or a repeat: what is kept for the backward pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from runner.base.faults import Key, invalid, nearest
from runner.base.untyped import is_list, is_mapping
from runner.experiment.forms import BY_NAMES, POLICIES, yaml_hint
from runner.experiment.remat import names
from runner.graph.model import Branches, CalledFunction, Equation, Graph, Repeat, walk
from runner.graph.source import Checkpoint, FunctionCall

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
