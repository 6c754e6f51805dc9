"""Finds the float dtype that an equation explicitly casts to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.base import dtypes
from runner.graph.language.operations import DTYPES, Operation
from runner.graph.model import Equation, Operand, flat, is_number, literal
from runner.graph.term import NOTHING


def narrowed(operation: Operation, equation: Equation, dtype_of: Callable[[Operand], str]) -> str | None:
    """The float dtype that a call names, if it is less precise than some operand; else None.

    `dtype_of` returns an operand's dtype in JAX, and `float64` for a Python number.
    """
    named, arguments = _names_dtype(operation, equation)
    written = _float(named, arguments)
    if written is None:
        return None
    narrow = dtypes.dtype(written)
    given = [part for name, value in arguments.items() if name != named for part in _parts(value)]
    finest = min((dtypes.dtype(dtype_of(part)).eps for part in given), default=0.0)
    return narrow.name if finest < narrow.eps else None


def to_float(operation: Operation, equation: Equation) -> str | None:
    """The float dtype that a call names, whatever its operands; None if it names none or draws random numbers."""
    return _float(*_names_dtype(operation, equation))


def _names_dtype(operation: Operation, equation: Equation) -> tuple[str | None, dict[str, Any]]:
    """The parameter of a call that names the dtype to cast to, if any, and the operands by parameter."""
    named = next((name for name in DTYPES if name in operation.signature.parameters), None)
    if named is None or operation.kind != "array" or operation.random:
        return None, {}
    return named, bound(operation, equation).arguments


def _float(named: str | None, arguments: Mapping[str, Any]) -> str | None:
    name = literal(arguments.get(named)) if named else None
    return name if name in dtypes.NAMES and dtypes.dtype(name).kind in ("float", "complex") else None


def of_own_dtype(operation: Operation, equation: Equation) -> tuple[Operand, ...]:
    """The operands on whose dtypes in JAX the result of a call depends, if there are any."""
    if not operation.dtype_of:
        return ()
    arguments = bound(operation, equation).arguments
    given = (arguments.get(name) for name in operation.dtype_of)
    return tuple(argument for argument in given if argument not in (None, NOTHING))


def own_dtype(operands: Sequence[Operand], dtype_of: Callable[[Operand], str], *, x64: bool) -> str:
    """The dtype in which JAX computes with floats: of a number, that of the arrays; `dtype_of` is as in `narrowed`."""
    given = {dtype_of(operand) for operand in operands if not is_number(operand)}
    if not given:
        return "float64" if x64 else "float32"
    widest = max(dtypes.dtype(name).itemsize for name in given)
    # Two dtypes of the same size have a larger one in common.
    common = [name for name in given if dtypes.dtype(name).itemsize == widest]
    return common[0] if len(common) == 1 else "float32"


def bound(operation: Operation, equation: Equation) -> inspect.BoundArguments:
    """Bind the operands of a call to its parameters."""
    return operation.signature.bind(*equation.operands, **dict(equation.named))


def _parts(value: Operand | tuple[Operand, ...]) -> Sequence[Operand]:
    # A variadic parameter is bound to a tuple of operands.
    return value if isinstance(value, tuple) else flat([value])
