"""What a rule sees of one operation where it stands, as data: its name, its arguments, the types of its results.

An argument is an array, of which the type is known; a number, a tuple, … that is evaluated; or several arguments. What
is known of neither kind is a number that only the devices know, or each step of a loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from runner.dtypes import NAMES, dtype
from runner.language.notation import Labels
from runner.language.operations import OPERATIONS
from runner.programs.types import Typed
from runner.untyped import is_sequence


class NotStatic(Exception):
    """A number that is only known on the devices, or in each step of a loop."""


class _Unknown:
    """The value of what is not static."""


UNKNOWN = _Unknown()

Kind = Literal["", "tuple", "list", "slice"]
"""What the parts of an argument make."""


@dataclass(frozen=True)
class Argument:
    """One argument, or a part of one.

    - `place`: where it stands in the call: `x`, `arrays[1]`.
    - `typed`: the type of an array; `below`: a bound that every integer of it lies under, from 0, where that is known;
      `counts`: the dimension along which it counts its places, if it does; `halo`: the dimensions of which a device has
      its block and its neighbours' edges.
    - `static`: whether no array enters it; `value`: what it is then, where that is known; a function is its term.
    - `parts`: of what has a `kind`, a tuple or a list, each of them; of a slice, its three.
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
        """Its value. Raises `NotStatic`."""
        if self.value is UNKNOWN:
            raise NotStatic
        return self.value

    @property
    def is_all(self) -> bool:
        """Whether it is the slice `:`."""
        return self.kind == "slice" and self.value == slice(None)

    def arrays(self) -> Iterator[Argument]:
        """The arrays in it."""
        if self.typed is not None:
            yield self
        for part in self.parts or ():
            yield from part.arrays()


@dataclass(frozen=True)
class Call:
    """One operation where it stands.

    - `name`: its row's, or `subscript`; `arguments`: by their names in JAX's signature.
    - `typed`: the type of the result; `elements`: of an operation that gives several arrays, the type of each; `alone`:
      whether the first of these is all that is read.
    - `labels`: of a contraction, those of its operands' dimensions and of the result's.
    - `trimmed`: the dimensions of which all that reads the result takes as much as the first operand has, by slices
      that count from the edges; `starts`: where each of these slices begins, dimension by dimension.
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
        """The arguments that the operation may have, with their defaults."""
        return OPERATIONS[self.name].signature

    @property
    def result(self) -> Typed:
        """The type of the result; of several, of the first."""
        typed = self.elements[0] if self.elements else self.typed
        assert typed is not None
        return typed

    @property
    def operand(self) -> Argument:
        """The first argument; of those of which there may be any number, the only one. Raises `NotStatic`."""
        first = next(iter(self.arguments.values()))
        if first.place.startswith("*") and first.parts is not None:
            if len(first.parts) != 1:
                raise NotStatic
            return first.parts[0]
        return first

    @property
    def array(self) -> Typed:
        """The type of the first operand. Raises `NotStatic` where it is no array."""
        return self.type(self.operand)

    def type_of(self, *names: str) -> Typed:
        """The type of an argument, the first of these that there is. Raises `NotStatic` where it is no array."""
        return self.type(next((self.arguments[name] for name in names if name in self.arguments), None))

    @staticmethod
    def type(argument: Argument | None) -> Typed:
        """The type of an argument. Raises `NotStatic` where it is no array."""
        if argument is None or argument.typed is None:
            raise NotStatic
        return argument.typed

    def static(self, name: str, default: Any = None) -> Any:
        """An argument that has to be known. Raises `NotStatic`."""
        return self.arguments[name].known() if name in self.arguments else default

    def given(self, *names: str) -> bool:
        """Whether the call has one of the arguments, and it is not None."""
        return any(name in self.arguments and self.arguments[name].value is not None for name in names)

    def axes(self, name: str = "axis", *, rank: int, default: Any = None) -> tuple[int, ...]:
        """The dimensions that an argument names, from 0; all of them where it is None."""
        axis = self.static(name, default)
        if axis is None:
            return tuple(range(rank))
        listed = axis if is_sequence(axis) else (axis,)
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in listed):
            raise NotStatic
        return tuple(each % rank for each in listed)


def is_number(typed: Typed, *kinds: str) -> bool:
    """Whether its elements are numbers of these kinds; of any kind that may be added where none is named."""
    return typed.dtype in NAMES and dtype(typed.dtype).kind in (kinds or ("float", "int", "complex"))


def itemsize(of: str) -> int:
    """The bytes of an element; of a random key, about as many."""
    return dtype(of).itemsize if of in NAMES else 8
