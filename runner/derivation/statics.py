"""A term that no array enters in; the number, the tuple or the string that it stands for out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.derivation.calls import NotStatic
from runner.derivation.terms import constant
from runner.graph.term import Apply, Const, Group, Lambda, Name, Slice, Term, children, mapped
from runner.language.operations import CONSTANTS, OPERATIONS
from runner.language.operators import BY_NAME
from runner.programs.types import Typed

_COUNTED = ("add", "subtract", "multiply", "remainder", "divide", "floor_divide", "power")


@dataclass(frozen=True)
class Statics:
    """What can be known of a term without arrays; `is_step`: whether a name is a number that comes later."""

    dims: Mapping[str, int]
    is_step: Callable[[str], bool]
    type_of: Callable[[Term], Typed | None]

    def term(self, term: Term) -> Term | None:
        """The term, if no array enters it; the shape of an array is a number."""
        match term:
            case Const() | Lambda():
                # What combines two values reads no others.
                return term
            case Name(name=name):
                return term if name in self.dims or name in CONSTANTS or self.is_step(name) else None
            case Apply(spelled="call"):
                return self._of_shape(term)
            case Group() | Slice() | Apply(spelled="operator" | "index"):
                parts: list[Term] = []
                for child in children(term):
                    part = self.term(child)
                    if part is None:
                        return None
                    parts.append(part)
                given = iter(parts)
                return mapped(term, lambda _: next(given))
            case _:
                return None

    def _of_shape(self, call: Apply) -> Term | None:
        if OPERATIONS[call.operation].kind != "static" or call.named or len(call.operands) != 1:
            return None
        typed = self.type_of(call.operands[0])
        if typed is None:
            return None
        known = {"shape": typed.shape, "ndim": len(typed.shape), "size": math.prod(typed.shape)}
        return constant(known[call.operation]) if call.operation in known else None

    def value(self, term: Term) -> Any:
        """The number, the tuple or the string that a term stands for. Raises `NotStatic`."""
        match term:
            case Const(value=value):
                return value
            case Name(name=name) if name in self.dims:
                return self.dims[name]
            case Name(name=name) if name in CONSTANTS:
                return CONSTANTS[name]
            case Apply(operation="negative", operands=(operand,), spelled="operator"):
                return -self.value(operand)
            case Apply(operation="positive", operands=(operand,), spelled="operator"):
                return self.value(operand)
            case Apply(operation=operation, operands=(left, right), spelled="operator") if operation in _COUNTED:
                try:
                    return BY_NAME[operation].python(self.value(left), self.value(right))
                except (ArithmeticError, TypeError, ValueError):
                    raise NotStatic from None
            case Group(items=items, kind=kind):
                values = map(self.value, items)
                return tuple(values) if kind == "tuple" else list(values)
            case Apply(operands=(x, index), spelled="index"):
                try:
                    return self.value(x)[self.value(index)]
                except (TypeError, IndexError):
                    raise NotStatic from None
            case Apply(spelled="call"):
                known = self._of_shape(term)
                if known is not None:
                    return self.value(known)
            case _:
                pass
        raise NotStatic
