"""A call and the dtypes of its parts in; the dtype that it narrows a float to out: a cast is part of what is meant."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable

from runner import dtypes
from runner.language.operations import DTYPES, Operation


def narrowed(operation: Operation, call: ast.Call, dtype_of: Callable[[ast.expr], str]) -> str | None:
    """The float dtype that `call` names, if it holds less than what the call is given; None if it casts nothing.

    `dtype_of` gives the dtype that JAX says of a part: `float64` for a number of Python's, which can be any number.
    """
    told = to_float(operation, call)
    if told is None:
        return None
    narrow, named = dtypes.dtype(told), _named(operation)
    bound = _bound(operation, call)
    given = [part for name, value in bound.arguments.items() if name != named for part in _parts(value)]
    finest = min((dtypes.dtype(dtype_of(part)).eps for part in given), default=0.0)
    return narrow.name if finest < narrow.eps else None


def to_float(operation: Operation, call: ast.Call) -> str | None:
    """The float dtype that `call` names, whatever it is given; None if it names none, or draws."""
    named = _named(operation)
    if named is None or operation.kind != "array" or operation.random:
        return None
    told = _bound(operation, call).arguments.get(named)
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
