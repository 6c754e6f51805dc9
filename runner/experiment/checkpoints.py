"""Reads the key `checkpoint` of a function or a repeat: what is kept for the backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from runner.base.faults import Key, invalid, nearest
from runner.base.untyped import is_list, is_mapping
from runner.experiment.forms import BY_NAMES, POLICIES, yaml_hint
from runner.experiment.lines import Checkpoint, Invocation, Loop, Statement, expressions, flat, inside, with_inside
from runner.graph.term import Const, calls, within

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


def check_names(statements: Sequence[Statement]) -> None:
    """Raise `InvalidExperiment` for a policy with names that no `checkpoint_name` of the statements defines."""
    known = sorted(set(_given(statements)))
    for checkpoint, key in of(statements):
        for name in checkpoint.names:
            if name not in known:
                hint = nearest(name, known) or f"; checkpoint_name(x, '{name}') gives it to a value"
                raise invalid((*key, str(checkpoint.policy)), f"nothing has the name '{name}'{hint}")


def _given(statements: Iterable[Statement]) -> Iterator[str]:
    for _, expression in expressions(flat(statements)):
        for part in within(expression.term):
            if calls(part, ("checkpoint_name",)):
                given = part.arguments[-1]
                yield from [str(given.value)] if isinstance(given, Const) else []


def of(statements: Iterable[Statement]) -> Iterator[tuple[Checkpoint, Key]]:
    """The policies of functions and repeats among some statements, each with its key."""
    for statement in statements:
        if isinstance(statement, Invocation) and statement.call.checkpoint is not None:
            yield statement.call.checkpoint, ("functions", statement.call.function, "checkpoint")
        if isinstance(statement, Loop) and statement.checkpoint is not None:
            origin = statement.line.origin
            yield statement.checkpoint, (*(origin.key if origin else ()), "checkpoint")
        yield from of(inside(statement))


def without(statements: Iterable[Statement]) -> tuple[Statement, ...]:
    """The same statements without policies, which keep everything."""
    return tuple(map(_without, statements))


def _without(statement: Statement) -> Statement:
    statement = with_inside(statement, without(inside(statement)))
    if isinstance(statement, Invocation):
        return replace(statement, call=replace(statement.call, checkpoint=None))
    return replace(statement, checkpoint=None) if isinstance(statement, Loop) else statement
