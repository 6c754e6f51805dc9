"""Reads an operand that depends on no array: its term, or the number, tuple or string that it stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from runner.base.layout import Typed
from runner.base.lazy import dataclass
from runner.graph.language.operations import CONSTANTS, OPERATIONS
from runner.graph.language.operators import BY_NAME
from runner.graph.model import CombiningFunction, Equation, Operand, Ref, Size, inside, valued, with_parts
from runner.graph.spelling import Spelling
from runner.graph.term import Apply, Name, Term
from runner.programs.derivation.calls import NotStatic
from runner.programs.derivation.terms import constant


@dataclass(frozen=True)
class Statics:
    """The static terms and values of operands.

    - `dims`: the sizes by name.
    - `is_step`: whether a name stands for a number known only in each step of a loop.
    - `type_of`: the type of an operand that is an array.
    """

    dims: Mapping[str, int]
    spelling: Spelling
    is_step: Callable[[str], bool]
    type_of: Callable[[Operand], Typed | None]

    def term(self, operand: Operand) -> Term | None:
        """The term of an operand that depends on no array, else None; an array's shape counts as static."""
        match operand:
            case Size() | CombiningFunction():
                # A combining function reads nothing but its two operands.
                return self.spelling.operand(operand)
            case Ref(number=number) if number in self.spelling.parts:
                return self.of(self.spelling.parts[number])
            case Ref(number=number):
                name = self.spelling.named[number]
                return Name(name) if self.is_step(name) else None
            case _:
                parts = self._all(*inside(operand))
                return None if parts is None else with_parts(operand, parts)

    def of(self, equation: Equation) -> Term | None:
        """The term of an equation that depends on no array, else None."""
        match equation.spelled:
            case "name":
                return self.term(equation.operands[0])
            case "call":
                number = self._of_shape(equation)
                return None if number is None else constant(number)
            case "operator" | "index":
                parts = self._all(*equation.operands)
                return None if parts is None else Apply(equation.operation, parts, spelled=equation.spelled)
            case ".T":
                return None

    def _all(self, *operands: Operand) -> tuple[Term, ...] | None:
        parts: list[Term] = []
        for operand in operands:
            part = self.term(operand)
            if part is None:
                return None
            parts.append(part)
        return tuple(parts)

    def _of_shape(self, call: Equation) -> int | tuple[int, ...] | None:
        if OPERATIONS[call.operation].kind != "static" or call.named or len(call.operands) != 1:
            return None
        typed = self.type_of(call.operands[0])
        if typed is None:
            return None
        return OPERATIONS[call.operation].numpy(np.broadcast_to(0, typed.shape))

    def value(self, operand: Operand) -> Any:
        """The number, tuple, slice or string that an operand stands for. Raises `NotStatic`."""
        match operand:
            case Size(name=name):
                return CONSTANTS[name] if name in CONSTANTS else self.dims[name]
            case Ref(number=number) if number in self.spelling.parts:
                return self._value(self.spelling.parts[number])
            case Ref() | CombiningFunction():
                raise NotStatic
            case _:
                return valued(operand, map(self.value, inside(operand)))

    def _value(self, equation: Equation) -> Any:
        match equation:
            case Equation(operation=operation, operands=operands, spelled="operator"):
                try:
                    return BY_NAME[operation].python(*map(self.value, operands))
                except (ArithmeticError, TypeError, ValueError):
                    raise NotStatic from None
            case Equation(operands=(x, index), spelled="index"):
                try:
                    return self.value(x)[self.value(index)]
                except (TypeError, IndexError):
                    raise NotStatic from None
            case Equation(spelled="call") if (number := self._of_shape(equation)) is not None:
                return number
            case _:
                raise NotStatic
