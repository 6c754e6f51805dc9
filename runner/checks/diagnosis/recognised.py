"""Compares the values of an edited function with those of its reference, wherever a device or a loop may hold them.

Elements are compared, not arrays: of a block, a permutation, a slot of a stack or a transposed value they are those of
the reference. Numbers that are common (0, 1, other integers, infinities) say nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from runner.base.layout import Mesh
from runner.base.lazy import dataclass
from runner.checks.reference import PerDevice
from runner.graph.source import Line

Executed = Mapping[Line, Sequence[PerDevice]]
"""The values of lines, in the order of running; the last of them is that of the whole line."""

_BITS = 20
"""The bits of a mantissa by which elements are compared: equal ones differ by rounding, and literals have 24 bits."""

_SHARE = 0.95
"""The share of a value's elements that others have if they have the value."""

_ELEMENTS = 1024
"""The largest number of elements of a value that are looked up."""


@dataclass(frozen=True)
class Evidence:
    """What the values of an edited function say of the edit.

    - `covered`: the number of values of the reference that the edited function has.
    - `lost`: whether the reference has what an edited line gave, and not what it gives.
    """

    covered: int
    lost: bool


class Recognising:
    """The values of a reference, those that it is `given` among them, and of a function, whose regions have a mesh."""

    def __init__(self, reference: Executed, function: Executed, mesh: Mesh, given: Iterable[PerDevice] = ()) -> None:
        self._mesh = mesh
        self._given = [_codes_of(value) for value in given]
        values = [_codes_of(value) for several in reference.values() for value in several]
        self._wanted = [*{codes.tobytes(): codes for codes in values if codes.size}.values()]
        self._reference = _united(self._wanted)
        self._function = function

    def evidence(self, edited: Executed, lines: Iterable[Line]) -> Evidence:
        """What an edit of some lines makes of the function's values."""
        lost = any(
            _all(self.has(value) for value in self._function.get(line, ())[-1:])
            and _all(self.has(value) or self._is_given(value) for value in edited.get(line, ())[-1:]) is False
            for line in lines
        )
        return Evidence(self.covered(edited), lost)

    def covered(self, function: Executed) -> int:
        """The number of values of the reference that a function has."""
        codes = _united(
            [_codes(part) for values in function.values() for value in values for part in self._parts(value)]
        )
        return sum(_share(wanted, codes) >= _SHARE for wanted in self._wanted)

    def has(self, value: PerDevice) -> bool | None:
        """Whether the reference has a value, or a sum of it over devices; None if nothing tells it from others."""
        # Where a value has zeros, as that of a relu, its other elements may be those of what it is made of.
        every = ((part, _codes(part)) for part in self._parts(value))
        telling = [codes for part, codes in every if codes.size > _SHARE * part.size]
        return any(map(self._is_known, telling)) if telling else None

    def _is_given(self, value: PerDevice) -> bool:
        """Whether a value is of one of the arrays that the reference is given, in whatever order or part."""
        codes = _codes_of(value)
        return bool(codes.size) and any(_share(codes, given) >= _SHARE for given in self._given)

    def _is_known(self, codes: np.ndarray) -> bool:
        """Whether elements are those of a value of the reference, or of some of its values in a stack.

        A choice between elements of several values, as a `where` makes it, is another value.
        """
        if _share(codes, self._reference) < _SHARE:
            return False
        if any(_share(codes, wanted) >= _SHARE for wanted in self._wanted):
            return True
        elements = np.unique(codes)
        inside = [wanted for wanted in self._wanted if _share(wanted, elements) >= _SHARE]
        return _share(codes, _united(inside)) >= _SHARE

    def _parts(self, value: PerDevice) -> Iterator[np.ndarray]:
        """What the devices have of a value, and its sums over axes of the mesh if they have different parts."""
        parts = [np.asarray(part) for part in _distinct(value) if _is_numeric(part)]
        yield from parts
        if len(parts) < 2 or len(value) != self._mesh.size:
            return
        held = np.stack([np.asarray(part) for part in value]).reshape(*self._mesh.shape, *np.shape(value[0]))
        for count in range(1, len(self._mesh.shape) + 1):
            for axes in itertools.combinations(range(len(self._mesh.shape)), count):
                yield held.sum(axes)


def _all(has: Iterable[bool | None]) -> bool | None:
    """Whether all are; None if nothing is known of one."""
    each = [*has]
    return None if not each or None in each else all(each)


def _is_numeric(part: object) -> bool:
    return getattr(getattr(part, "dtype", None), "kind", "") in ("f", "c")


def _distinct(value: PerDevice) -> PerDevice:
    """What devices have, once where all have the same object."""
    return value[:1] if all(part is value[0] for part in value) else value


def _codes_of(value: PerDevice) -> np.ndarray:
    return _united([_codes(np.asarray(part)) for part in _distinct(value) if _is_numeric(part)])


def _codes(array: np.ndarray) -> np.ndarray:
    """A number for each element that tells it apart, whatever its sign; next to each other for equal ones."""
    both = [np.real(array), np.imag(array)] if array.dtype.kind == "c" else [array]
    flat = np.concatenate([np.asarray(part, np.float64).ravel() for part in both])
    flat = np.abs(flat[np.isfinite(flat)])
    mantissa, exponent = np.frexp(flat[flat != np.round(flat)])
    return (exponent.astype(np.int64) << (_BITS + 2)) + np.rint(mantissa * (1 << _BITS)).astype(np.int64)


def _united(codes: Sequence[np.ndarray]) -> np.ndarray:
    return np.unique(np.concatenate(codes)) if codes else np.zeros(0, np.int64)


def _share(codes: np.ndarray, known: np.ndarray) -> float:
    """The share of some elements that are among known ones, which are sorted."""
    if not known.size:
        return 0.0
    some = codes[:: 1 + codes.size // _ELEMENTS]
    near = known[np.minimum(np.searchsorted(known, some - 1), known.size - 1)]
    return float(np.mean(np.abs(near - some) <= 1))
