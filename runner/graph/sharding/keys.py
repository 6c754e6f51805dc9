"""Who sets the layouts in a module: arrays, results and constraints, each with the key that a reader knows it by."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import field

from runner.base.layout import Mesh, Spec
from runner.base.lazy import dataclass


@dataclass(frozen=True)
class KeyedArray:
    """An array that a program is given: the names of its dimensions, its layout, and the key that sets it."""

    dims: tuple[str | None, ...]
    spec: Spec | None
    key: str


@dataclass(frozen=True)
class LayoutKeys:
    """What the reader of a plan needs of the file, or the process, that a module comes from.

    - `keys`: the keys that set layouts, in their order; those of constraints may be missing. `arrays`, `outputs`: by
      name.
    - `constraint`: the key that constrains one of these lines to a layout, or to any; None if none does.
    - `typed`: whether a line's key also holds for a value whose type has the layout, without a request for it.
    - `python`: the files of a user's Python, whose lines lay out values without a key.
    - `results`: for each line inside calls the names of the calls' results, the innermost call first.
    """

    mesh: Mesh
    keys: Sequence[str]
    arrays: Mapping[str, KeyedArray]
    outputs: Mapping[str, tuple[str, Spec]] = field(default_factory=dict[str, tuple[str, Spec]])
    constraint: Callable[[Sequence[str], Spec | None], str | None] = lambda names, layout: None
    typed: bool = True
    python: Container[str] = ()
    results: Mapping[str, list[tuple[str, ...]]] = field(default_factory=dict[str, list[tuple[str, ...]]])
