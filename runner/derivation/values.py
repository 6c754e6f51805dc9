"""What one device has of an array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runner.graph.term import Term
from runner.layout import Spec


class Unmade(Exception):
    """A layout that an expression without arrays cannot be written in."""


@dataclass(frozen=True)
class Value:
    """An array as one device has it: the expression, the whole shape, and how the whole lies.

    - `shape` is None for what is no array: it is the same on every device.
    - `make` writes it under any layout without communication, since no array enters it; or raises `Unmade`.
    - `below` is a bound that every integer of it lies under, from 0, where that is known; `counts` the dimension along
      which it counts its places, from 0 on, if it does.
    - `halo`: the dimensions of which a device has its block and its neighbours' edges.
    - `elements`: of a tuple of arrays, each of them; `free`: no array entered it.
    - `turned`: of `x.T`, the array that is transposed, which others may need in other layouts too.
    - `made`: of what an equation gives whose layout is free, its number in the graph.
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
    elements: tuple[Value, ...] = ()
    free: bool = False
    turned: Value | None = None
    made: int | None = None
