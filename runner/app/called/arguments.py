"""Answers arguments of `runner.check` and `runner.plan` that JAX's functions call otherwise, with what to write."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from runner.app.called.specs import WrongSpecs

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
