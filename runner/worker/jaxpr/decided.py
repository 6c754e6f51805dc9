"""Takes the decisions of constants, such as the steps `ceil((t1 - t0) / dt)` of three numbers, as a program takes them.

The reference is computed in float64, which may decide otherwise; and if rounding may change a decision, nothing that
depends on it can be judged. But all programs compute constants alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from runner.worker import calls
from runner.worker.jaxpr.primitives.collectives import over_axes
from runner.worker.setting import without
from runner.worker.versions import Literal

_DECIDING = frozenset({"ceil", "floor", "round", "sign", "eq", "ne", "lt", "le", "gt", "ge"})
"""The primitives that decide, beside casts of floats to integers."""

_OUTSIDE = frozenset({"pure_callback", "io_callback", "debug_callback", "random_bits", "rng_bit_generator"})
"""Primitives that are not evaluated for a decision."""


class Constants:
    """The scalars of a jaxpr that depend on no operand, each with a function that computes it."""

    def __init__(self) -> None:
        self._values: dict[Any, Callable[[], Any]] = {}

    def know(self, variables: Iterable[Any], values: Iterable[Any]) -> None:
        """Note the scalars among the arrays that a jaxpr captures."""
        for variable, value in zip(variables, values, strict=True):
            if _is_number(variable):
                self._values[variable] = lambda value=value: value

    def give(self, inside: Constants, variables: Sequence[Any], operands: Sequence[Any]) -> None:
        """Make the operands of a call known to its body."""
        for variable, operand in zip(variables, operands, strict=True):
            if _is_number(operand) and (isinstance(operand, Literal) or operand in self._values):
                inside._values[variable] = lambda operand=operand: self._value(operand)

    def note(self, equation: Any) -> None:
        """Note the results of an equation whose operands are constants."""
        if not self._has(equation) or not all(map(_is_number, equation.outvars)):
            return
        name, params = equation.primitive.name, equation.params
        if equation.effects or name in _OUTSIDE or over_axes(name, params):
            return

        @cache
        def results() -> Sequence[Any]:
            primitive = equation.primitive
            given = primitive.bind(*map(self._value, equation.invars), **primitive.get_bind_params(params))
            return given if primitive.multiple_results else [given]

        for at, variable in enumerate(equation.outvars):
            self._values[variable] = lambda at=at: results()[at]

    def decided(self, equation: Any) -> Any | None:
        """The result of a decision of float constants; None if the equation is no such decision."""
        if not self._has(equation) or not any(jnp.issubdtype(v.aval.dtype, jnp.floating) for v in equation.invars):
            return None
        (result,) = equation.outvars[:1]
        casts = equation.primitive.name == "convert_element_type" and not jnp.issubdtype(result.aval.dtype, jnp.inexact)
        if result not in self._values or not (casts or equation.primitive.name in _DECIDING):
            return None
        with without(), jax.ensure_compile_time_eval():
            return self._values[result]()

    def _has(self, equation: Any) -> bool:
        """Whether an equation has operands, and all are constants."""
        operands = equation.invars
        return bool(operands) and all(isinstance(v, Literal) or v in self._values for v in operands)

    def _value(self, operand: Any) -> Any:
        return (
            calls.asarray(operand.val, operand.aval.dtype) if isinstance(operand, Literal) else self._values[operand]()
        )


def _is_number(variable: Any) -> bool:
    """Whether a variable is a single number or truth."""
    aval = variable.aval
    return getattr(aval, "shape", None) == () and getattr(aval.dtype, "kind", "?") in "biufV"
