"""What `checkpoint` of a function or a repeat says in; what is kept of it for the backward pass out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from runner.experiment.lines import Checkpoint, Loop, Node, Statement, expressions
from runner.experiment.plain import yaml_hint
from runner.faults import Key, invalid, nearest
from runner.graph.term import Const, calls, within
from runner.untyped import is_list, is_mapping

POLICIES = (
    "nothing_saveable", "everything_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable",
    "checkpoint_dots", "checkpoint_dots_with_no_batch_dims",
)  # fmt: skip
"""Those of `jax.checkpoint_policies` that are one; those that move values to the host's memory are not among them."""

BY_NAMES = ("save_only_these_names", "save_anything_except_these_names", "save_any_names_but_these")
"""Those that are made of names, which `checkpoint_name` gives."""

_FORM = f"write true, one of {', '.join(POLICIES)}, or {{{BY_NAMES[0]}: [NAME]}}"


def read_checkpoint(value: Any, key: Key) -> Checkpoint | None:
    """What is kept. Raises `InvalidExperiment` for what is no policy."""
    if isinstance(value, bool) or value is None:
        return Checkpoint() if value else None
    if isinstance(value, str):
        if value in BY_NAMES:
            raise invalid(key, f"'{value}' is of names: write {{{value}: [NAME]}}")
        if value not in POLICIES:
            raise invalid(key, f"no policy '{value}'{nearest(value, (*POLICIES, *BY_NAMES)) or f'; {_FORM}'}")
        return Checkpoint(value)
    if not is_mapping(value) or len(value) != 1:
        raise invalid(key, f"{value!r} does not say what is kept; {_FORM}")
    ((policy, names),) = value.items()
    if policy not in BY_NAMES:
        hint = nearest(str(policy), BY_NAMES) or f"; there are {', '.join(BY_NAMES)}"
        raise invalid((*key, policy), f"no policy of names is called '{policy}'{hint}")
    given: list[Any] = names if is_list(names) else [names]
    for i, name in enumerate(given):
        if not isinstance(name, str):
            at = (*key, policy, i) if is_list(names) else (*key, policy)
            raise invalid(at, f"{name!r} is no name{yaml_hint(name)}")
    if not given:
        raise invalid((*key, policy), f"'{policy}' has no names")
    return Checkpoint(policy, tuple(given))


def check_names(statements: Sequence[Statement]) -> None:
    """Raise `InvalidExperiment` for a policy with names that no `checkpoint_name` of the statements gives."""
    known = sorted(set(_given(statements)))
    for checkpoint, key in of(statements):
        for name in checkpoint.names:
            if name not in known:
                hint = nearest(name, known) or f"; checkpoint_name(x, '{name}') gives it to a value"
                raise invalid((*key, str(checkpoint.policy)), f"nothing has the name '{name}'{hint}")


def _given(statements: Iterable[Statement]) -> Iterator[str]:
    for _, expression in expressions(statements):
        for part in within(expression.term):
            if calls(part, ("checkpoint_name",)):
                given = part.arguments[-1]
                yield from [str(given.value)] if isinstance(given, Const) else []


def of(statements: Iterable[Statement]) -> Iterator[tuple[Checkpoint, Key]]:
    """What is kept of the functions and the repeats of some statements, and where that stands."""
    for statement in statements:
        for call in statement.line.calls:
            if call.checkpoint is not None:
                yield call.checkpoint, ("functions", call.function, "checkpoint")
        if isinstance(statement, Loop):
            if statement.checkpoint is not None:
                origin = statement.line.origin
                yield statement.checkpoint, (*(origin.key if origin else ()), "checkpoint")
            yield from of(statement.body)


def without(statements: Iterable[Statement]) -> tuple[Statement, ...]:
    """The same statements, which keep everything."""
    return tuple(map(_without, statements))


def _without(statement: Statement) -> Statement:
    line = statement.line
    if line.origin is not None and any(call.checkpoint for call in line.calls):
        calls = tuple(replace(call, checkpoint=None) for call in line.calls)
        line = replace(line, origin=replace(line.origin, calls=calls))
    if isinstance(statement, Node):
        return replace(statement, line=line)
    return replace(statement, line=line, checkpoint=None, body=without(statement.body))
