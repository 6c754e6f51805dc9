"""Describes one application of a primitive, registers the readers of primitives, and writes numbers in their dtypes.

The functions of JAX's own that a jaxpr calls by name are listed with the operations that they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from runner.base import dtypes
from runner.base.lazy import dataclass
from runner.graph import model
from runner.graph.language.operations import CONSTANTS
from runner.graph.term import Const, Term, bare, operates
from runner.programs.derivation.terms import Part, built, constant
from runner.worker import calls


def filled(template: str, **parts: Part) -> Term:
    """Fill a template; parameters of JAX may be NumPy integers."""
    return built(template, **{name: plain(part) for name, part in parts.items()})


def plain(part: Any) -> Any:
    """A parameter of JAX with Python integers in place of NumPy's."""
    match part:
        case np.integer():
            return int(cast("int", part))
        case tuple():
            return tuple(map(plain, cast("tuple[Any, ...]", part)))
        case list():
            return list(map(plain, cast("list[Any]", part)))
        case _:
            return part


REFERENCE = "name a reference for it, or for a jitted function that calls it"


class Unread(Exception):
    """The language cannot express a primitive, or a use of one; the text says which and why."""


@dataclass(frozen=True)
class Application:
    """One application of a primitive.

    - `operands`: the terms of its operands; `inputs`, `outputs`: their abstract values, with `shape` and `dtype`.
    - `named`: gives a term a name, so that it can be read more than once; `meant`: the term that a name stands for.
    """

    name: str
    params: Mapping[str, Any]
    operands: tuple[Term, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    named: Callable[[Term, str], Term]
    meant: Callable[[Term], Term]

    @property
    def x(self) -> Term:
        """The first operand."""
        return self.operands[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first operand."""
        return tuple(self.inputs[0].shape)

    @property
    def rank(self) -> int:
        """The rank of the first operand."""
        return len(self.inputs[0].shape)

    @property
    def dtype(self) -> str:
        """The dtype of the first operand."""
        return str(self.inputs[0].dtype)

    @property
    def result(self) -> str:
        """The dtype of the first result."""
        return str(self.outputs[0].dtype)

    def made(self, template: str, **parts: Part) -> Term:
        """Fill a template with the operands as `x`, `y`, `z`: `made("sum({x}, axis={axis})", axis=(0,))`."""
        return filled(template, **dict(zip("xyz", self.operands, strict=False)), **parts)


Read = Callable[[Application], Term]
"""Gives the expression of a primitive; with several results, an expression of them all."""


READERS: dict[str, Read] = {}
"""The readers, by primitive."""


PLACING: set[str] = set()
"""The primitives that place elements by all of their dimensions."""


def reads(*names: str, places: bool = False) -> Callable[[Read], Read]:
    """Register a function for primitives of these names; `places`: by all of their dimensions."""

    def register(read: Read) -> Read:
        READERS.update(dict.fromkeys(names, read))
        PLACING.update(names if places else ())
        return read

    return register


def as_array(term: Term, aval: Any) -> Term:
    """The term with a number as an array of the dtype of `aval`; other terms unchanged."""
    if model.literal(term) is not None:
        return built("asarray({x}, {t})", x=term, t=str(aval.dtype))
    return of_its_dtype(term, aval)


def of_its_dtype(term: Term, aval: Any) -> Term:
    """The term with a number as an array if JAX gives the number another dtype than that of `aval`."""
    usual = str(aval.dtype) in (_USUAL_WITH_X64 if calls.x64() else _USUAL)
    return term if usual or not _is_number(term) else built("asarray({x}, {t})", x=term, t=str(aval.dtype))


def of_their_dtype(operands: Sequence[Term], inputs: Sequence[Any], output: Any) -> tuple[Term, ...]:
    """Operands of which at least one that has the dtype of the output is an array of it, if any has this dtype."""
    alike = [aval.dtype == output.dtype for aval in inputs]
    if not all(_is_number(term) for term, is_alike in zip(operands, alike, strict=True) if is_alike):
        return tuple(operands)
    given = zip(operands, inputs, alike, strict=True)
    return tuple(of_its_dtype(term, aval) if is_alike else term for term, aval, is_alike in given)


def _is_number(term: Term) -> bool:
    if operates(term, ("negative", "subtract")):
        return all(map(_is_number, term.operands))
    return isinstance(model.literal(term), bool | int | float | complex) or bare(term) in CONSTANTS


_USUAL = ("bool", "int32", "float32", "complex64")
_USUAL_WITH_X64 = ("bool", "int64", "float64", "complex128")
"""The dtypes that Python numbers have, without and with `jax_enable_x64`."""


def literal(value: Any, dtype: str) -> Term:
    """The term of a number in a jaxpr, with the digits that its dtype has."""
    if dtype == "bool":
        return Const(bool(value))
    kind = numpy_dtype(dtype)
    if dtype in dtypes.NARROW_INTEGERS:
        # Python numbers are not promoted to these dtypes.
        return filled("asarray({n}, {t})", n=int(value), t=dtype)
    if np.issubdtype(kind, np.integer):
        # Without x64 a Python integer is an int32.
        wide = int(value) >= 2**31 and dtype.startswith("u")
        return filled("asarray({n}, {t})", n=int(value), t=dtype) if wide else constant(int(value))
    if np.issubdtype(kind, np.complexfloating):
        return constant(complex(value))
    number = float(str(np.asarray(value).astype(kind)[()]))
    if math.isnan(number):
        return filled("inf - inf")
    if math.isinf(number):
        return filled("inf" if number > 0 else "-inf")
    return constant(number)


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a name; float32 for the floats that NumPy lacks."""
    try:
        return np.dtype(name)
    except TypeError:
        return np.dtype(np.float32)


def axes_part(axes: Sequence[int]) -> Part:
    """The argument `axis` for these dimensions."""
    return axes[0] if len(axes) == 1 else tuple(axes)


LIBRARY: Mapping[str, Callable[[Application], tuple[str, Mapping[str, Any]]]] = {
    **{name: (lambda application: (application.name, {})) for name in (
        "relu", "silu", "softplus", "relu6", "inv", "det", "slogdet", "solve", "clip", "floor_divide", "remainder",
        "signbit", "copysign", "logaddexp", "isfinite", "square", "log_sigmoid", "interp",
    )},
    "_where": lambda _: ("where", {}),
    "_interp": lambda _: ("interp", {}),
    **{f"_{name}": (lambda application: (application.name.lstrip("_"), _drawn(application))) for name in (
        "normal", "uniform", "gumbel", "exponential", "laplace", "truncated_normal", "randint",
    )},
    "_bernoulli": lambda application: ("bernoulli", {"shape": tuple(application.outputs[0].shape)}),
    "_shuffle": lambda _: ("permutation", {}),
}  # fmt: skip
"""For the name of each function: the operation that it may be, and the arguments that are no operands."""


ORDERS: Mapping[str, tuple[str, ...]] = {
    "clip": ("arr", "max", "min"),
    "uniform": ("key", "minval", "maxval"),
    "randint": ("key", "minval", "maxval"),
    "truncated_normal": ("key", "lower", "upper"),
    "bernoulli": ("key", "p"),
}
"""The parameters of the operands in order, where these are not the first ones: `jit` sorts those that are named."""


def _drawn(application: Application) -> Mapping[str, Any]:
    return {"shape": tuple(application.outputs[0].shape), "dtype": application.result}
