"""The text of `graph` or `per_device` in; its checked statements out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runner.experiment.model import Line, Loop, Node, Statement
from runner.experiment.plain import check_name, located, read_expression, read_size
from runner.faults import InvalidExperiment, Key, invalid, nearest
from runner.language import bounds
from runner.language.check import Scope, check
from runner.language.syntax import Expression, SyntaxFault, names

_LOOP_KEYS = ("repeat", "index", "carry", "body", "unroll")


def read_statements(
    config: Mapping[str, Any], key: Key, scope: Scope, dims: Mapping[str, int], within: Line | None = None
) -> tuple[Statement, ...]:
    """The statements of a section, or of the body of the loop `within`; `scope` grows by their names."""
    parsed = {
        name: None if isinstance(value, Mapping) else read_expression(value, (*key, name))
        for name, value in config.items()
    }
    statements: list[Statement] = []
    for position, (name, value) in enumerate(config.items()):
        line = Line(name) if within is None else within.inside(name)
        later = dict(list(parsed.items())[position:])
        local = replace(scope, later=later)
        expression = parsed[name]
        if expression is None:
            loop = _loop(line, value, (*key, name), local, dims)
            statements.append(loop)
            scope.loops[name] = tuple(carried for carried, _ in loop.carry)
        else:
            _check(expression, (*key, name), local, cycle_of=name)
            statements.append(Node(line, expression))
            scope.values.add(name)
    return tuple(statements)


def _check(expression: Expression, key: Key, scope: Scope, cycle_of: str | None = None) -> None:
    try:
        check(expression, scope)
        bounds.check(expression, scope.sizes, scope.mesh if scope.section == "per_device" else None)
    except SyntaxFault as fault:
        cycle = _cycle(cycle_of, scope) if cycle_of else None
        if cycle and "used before it stands" in fault.message:
            fault.message = f"a cycle: {' → '.join(cycle)}; no order of the lines can compute it"
        raise InvalidExperiment(located(key, expression.text, fault)) from None


def _cycle(start: str, scope: Scope) -> list[str] | None:
    """The names along which `start` depends on itself, if it does."""
    paths = [[start]]
    while paths:
        path = paths.pop()
        expression = scope.later.get(path[-1])
        for node in names(expression.tree) if expression else ():
            if node.id in scope.values or node.id not in scope.later:
                continue
            if node.id == start:
                return [*path, start]
            if node.id not in path:
                paths.append([*path, node.id])
    return None


def _loop(line: Line, config: Mapping[str, Any], key: Key, scope: Scope, dims: Mapping[str, int]) -> Loop:
    for entry in config:
        if entry not in _LOOP_KEYS:
            hint = nearest(entry, _LOOP_KEYS) or f"; a repeat has {', '.join(_LOOP_KEYS)}"
            raise invalid((*key, entry), f"a repeat has no key '{entry}'{hint}")
    for entry in ("repeat", "carry", "body"):
        if entry not in config:
            raise invalid(key, f"the repeat '{line.name}' has no '{entry}'")
    for entry in ("carry", "body"):
        if not isinstance(config[entry], Mapping) or not config[entry]:
            raise invalid((*key, entry), f"the {entry} of a repeat maps names to expressions")
    steps = read_size(config["repeat"], (*key, "repeat"), dims, scope.mesh if scope.section == "per_device" else None)
    if steps < 0:
        raise invalid((*key, "repeat"), f"the repeat '{line.name}' has {steps} steps")
    index = config.get("index", "i")
    unroll = config.get("unroll", True)
    if not isinstance(unroll, bool):
        raise invalid((*key, "unroll"), "unroll is true (a Python loop) or false (jax.lax.fori_loop)")
    for inner, where in (
        (index, "index"),
        *((n, "carry") for n in config["carry"]),
        *((n, "body") for n in config["body"]),
    ):
        check_name(inner, (*key, where))
        if inner in dims:
            raise invalid((*key, where), f"'{inner}' is a dim already; a name means one thing")
    carry: list[tuple[str, Expression]] = []
    for carried, first in config["carry"].items():
        expression = read_expression(first, (*key, "carry", carried))
        _check(expression, (*key, "carry", carried), scope)
        carry.append((carried, expression))
    if index in config["carry"] or index in config["body"]:
        raise invalid((*key, "index"), f"'{index}' counts the steps and cannot be assigned")
    inside = scope.nested()
    inside.values |= {carried for carried, _ in carry} | {index}
    inside.loops = {n: c for n, c in inside.loops.items() if n not in config["body"]}
    body = read_statements(config["body"], (*key, "body"), inside, dims, line)
    for statement in body:
        if statement.name in scope.values and statement.name not in config["carry"]:
            message = f"'{statement.name}' is a name outside the repeat already; carry it, or choose another name"
            raise invalid((*key, "body", statement.name), message)
        if isinstance(statement, Loop) and statement.name in config["carry"]:
            raise invalid(
                (*key, "body", statement.name), f"'{statement.name}' is carried; a repeat cannot be assigned to it"
            )
    return Loop(line, steps, index, tuple(carry), body, unroll)
