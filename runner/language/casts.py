"""A call and the dtypes of its parts in; the dtype that it narrows a float to out: a cast is part of what is meant."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from runner import dtypes
from runner.language.operations import DTYPES, Operation


def narrowed(operation: Operation, call: ast.Call, dtype_of: Callable[[ast.expr], str]) -> str | None:
    """The float dtype that `call` names, if it holds less than what the call is given; None if it casts nothing.

    `dtype_of` gives the dtype that JAX says of a part: `float64` for a number of Python's, which can be any number.
    """
    named, arguments = _names_dtype(operation, call)
    told = _told(named, arguments)
    if told is None:
        return None
    narrow = dtypes.dtype(told)
    given = [part for name, value in arguments.items() if name != named for part in _parts(value)]
    finest = min((dtypes.dtype(dtype_of(part)).eps for part in given), default=0.0)
    return narrow.name if finest < narrow.eps else None


def to_float(operation: Operation, call: ast.Call) -> str | None:
    """The float dtype that `call` names, whatever it is given; None if it names none, or draws."""
    return _told(*_names_dtype(operation, call))


def _names_dtype(operation: Operation, call: ast.Call) -> tuple[str | None, dict[str, Any]]:
    """The parameter that names a dtype, if there is one that casts, and the arguments by their parameters."""
    named = _named(operation)
    if named is None or operation.kind != "array" or operation.random:
        return None, {}
    return named, _bound(operation, call).arguments


def _told(named: str | None, arguments: Mapping[str, Any]) -> str | None:
    told = arguments.get(named) if named else None
    if not isinstance(told, ast.Constant) or not isinstance(told.value, str) or told.value not in dtypes.NAMES:
        return None
    return told.value if dtypes.dtype(told.value).kind in ("float", "complex") else None


def drawn(operation: Operation, call: ast.Call) -> ast.expr | None:
    """The argument whose dtype says which random numbers a call draws, if it has one."""
    if operation.draws is None:
        return None
    argument = _bound(operation, call).arguments.get(operation.draws)
    return None if isinstance(argument, ast.Constant) and argument.value is None else argument


def _named(operation: Operation) -> str | None:
    return next((name for name in DTYPES if name in operation.signature.parameters), None)


def _bound(operation: Operation, call: ast.Call) -> inspect.BoundArguments:
    return operation.signature.bind(*call.args, **{str(k.arg): k.value for k in call.keywords})


def _parts(value: ast.expr | tuple[ast.expr, ...]) -> list[ast.expr]:
    if isinstance(value, tuple):
        return list(value)
    return value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
