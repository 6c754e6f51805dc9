"""Represents an operation at its place in the graph as its rule sees it: name, arguments and result types.

An argument is an array, whose type is known; a static value (a number, a tuple, …); or a sequence of arguments. A
number that is known only on the devices, or only in each step of a loop, is neither array nor static. What one
device holds of an array is a `DeviceValue`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any, Literal

from runner.base.dtypes import NAMES, dtype
from runner.base.layout import Spec, Typed
from runner.base.lazy import dataclass
from runner.base.untyped import is_sequence
from runner.graph.language.notation import Labels
from runner.graph.language.operations import OPERATIONS
from runner.graph.term import Term, bare


class NotStatic(Exception):
    """A value is known only on the devices, or only in each step of a loop."""


class _Unknown:
    """The value of an argument that is not static."""


UNKNOWN = _Unknown()

Kind = Literal["", "tuple", "list", "slice"]
"""The container that the parts of an argument form; "" for an argument without parts."""


@dataclass(frozen=True)
class Argument:
    """One argument, or a part of one.

    - `place`: its place in the call: `x`, `arrays[1]`.
    - `typed`: the type of an array.
    - `below`: an exclusive bound on its integers, which start from 0; None where none is known.
    - `counts`: the dimension along which its elements are 0, 1, 2, …; None if there is none.
    - `halo`: the dimensions along which a device holds its block and the edges of its neighbours.
    - `static`: whether it depends on no array.
    - `value`: its static value, `UNKNOWN` if it is not known; of a function, its term.
    - `parts`: the elements of a tuple or list, or the three parts of a slice, as `kind` says.
    """

    place: str
    typed: Typed | None = None
    static: bool = False
    value: Any = UNKNOWN
    parts: tuple[Argument, ...] | None = None
    kind: Kind = ""
    below: int | None = None
    counts: int | None = None
    halo: frozenset[int] = frozenset()

    def known(self) -> Any:
        """The static value. Raises `NotStatic` if it is unknown."""
        if self.value is UNKNOWN:
            raise NotStatic
        return self.value

    @property
    def is_all(self) -> bool:
        """Whether the argument is the slice `:`."""
        return self.kind == "slice" and self.value == slice(None)

    def arrays(self) -> Iterator[Argument]:
        """Yield the arrays among the argument and its parts."""
        if self.typed is not None:
            yield self
        for part in self.parts or ():
            yield from part.arrays()


@dataclass(frozen=True)
class Call:
    """One operation at its place in the graph.

    - `name`: the key of its row in the table of operations, or `subscript`.
    - `arguments`: the arguments by their names in JAX's signature.
    - `typed`: the type of the result.
    - `elements`: the type of each result of an operation with several.
    - `alone`: whether only the first of these is read.
    - `labels`: the labels of a contraction's operand and result dimensions.
    - `trimmed`: the dimensions along which every reader slices the result, relative to its edges, back to the length of
      the first operand.
    - `starts`: the start of each of these slices, one number per dimension.
    """

    name: str
    arguments: Mapping[str, Argument]
    typed: Typed | None
    elements: tuple[Typed, ...] = ()
    alone: bool = False
    labels: Labels | None = None
    trimmed: frozenset[int] = field(default=frozenset())
    starts: frozenset[tuple[int, ...]] = field(default=frozenset())

    @property
    def signature(self) -> inspect.Signature:
        """The signature of the operation."""
        return OPERATIONS[self.name].signature

    @property
    def result(self) -> Typed:
        """The type of the result, or of the first of several."""
        typed = self.elements[0] if self.elements else self.typed
        assert typed is not None
        return typed

    @property
    def operand(self) -> Argument:
        """The first argument; of a variadic operation, its only one. Raises `NotStatic` if it has another number."""
        first = next(iter(self.arguments.values()))
        if first.place.startswith("*") and first.parts is not None:
            if len(first.parts) != 1:
                raise NotStatic
            return first.parts[0]
        return first

    @property
    def array(self) -> Typed:
        """The type of the first operand. Raises `NotStatic` if it is no array."""
        return self.type(self.operand)

    def type_of(self, *names: str) -> Typed:
        """The type of the first of these arguments that is present. Raises `NotStatic` if it is no array."""
        return self.type(next((self.arguments[name] for name in names if name in self.arguments), None))

    @staticmethod
    def type(argument: Argument | None) -> Typed:
        """The type of an argument. Raises `NotStatic` if it is no array."""
        if argument is None or argument.typed is None:
            raise NotStatic
        return argument.typed

    def static(self, name: str, default: Any = None) -> Any:
        """The static value of an argument, or `default` if it is absent. Raises `NotStatic` if it is unknown."""
        return self.arguments[name].known() if name in self.arguments else default

    def given(self, *names: str) -> bool:
        """Whether any of the arguments is present and not None."""
        return any(name in self.arguments and self.arguments[name].value is not None for name in names)

    def axes(self, name: str = "axis", *, rank: int, default: Any = None) -> tuple[int, ...]:
        """The dimensions that an argument names, all in `range(rank)`; every dimension where it is None."""
        axis = self.static(name, default)
        if axis is None:
            return tuple(range(rank))
        listed = axis if is_sequence(axis) else (axis,)
        if not all(isinstance(axis, int) and not isinstance(axis, bool) for axis in listed):
            raise NotStatic
        return tuple(axis % rank for axis in listed)


def is_number(typed: Typed, *kinds: str) -> bool:
    """Whether the dtype is of one of these kinds, or of any kind that supports addition if none is given."""
    return typed.dtype in NAMES and dtype(typed.dtype).kind in (kinds or ("float", "int", "complex"))


def itemsize(of: str) -> int:
    """The size of one element in bytes; 8, a rough figure, for random keys."""
    return dtype(of).itemsize if of in NAMES else 8


class Unmade(Exception):
    """An expression without array operands cannot be written in this layout."""


@dataclass(frozen=True)
class DeviceValue:
    """An array as one device holds it: its term, the global shape and the layout.

    - `shape`: None for a value that is no array, which is the same on every device.
    - `make`: writes the value in any layout without communication, or raises `Unmade`; only where it depends on no
      array.
    - `static`: whether the value is static.
    - `below`: an exclusive bound on its integers, which start from 0; None where none is known.
    - `counts`: the dimension along which its elements are 0, 1, 2, …; None if there is none.
    - `halo`: the dimensions along which a device holds its block and the edges of its neighbours.
    - `elements`: the arrays of a tuple; `free`: whether it depends on no array.
    - `turned`: for `x.T`, the value of `x`, which other lines may read in other layouts.
    - `made`: the number in the graph of a result whose layout is free.
    """

    term: Term
    shape: tuple[int, ...] | None
    spec: Spec
    dtype: str = "float32"
    make: Callable[[Spec], Term] | None = None
    static: bool = False
    below: int | None = None
    counts: int | None = None
    halo: frozenset[int] = frozenset()
    elements: tuple[DeviceValue, ...] = ()
    free: bool = False
    turned: DeviceValue | None = None
    made: int | None = None

    @property
    def name(self) -> str | None:
        """The name of the line that gives it; None if its term is an expression."""
        return bare(self.term)
