"""The part of an array that one device holds."""

from __future__ import annotations

from collections.abc import Callable

from runner.base.layout import Spec
from runner.base.lazy import dataclass
from runner.graph.term import Term, bare


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
