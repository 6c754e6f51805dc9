"""Computes the index range that each device holds, by mesh, PartitionSpec and shape. No JAX, no devices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from runner.base.lazy import dataclass

if TYPE_CHECKING:
    import numpy as np

Coordinates = tuple[int, ...]
"""A device's place in the mesh: one index per mesh axis."""

SpecEntries: TypeAlias = list[str | list[str] | None]
"""The entries of a PartitionSpec in JSON."""


class Typed(NamedTuple):
    """The shape and the dtype of a value."""

    shape: tuple[int, ...]
    dtype: str

    JSON = tuple[tuple[int, ...], str]

    @classmethod
    def of(cls, written: tuple[tuple[int, ...], str]) -> Typed:
        """Build from the pair `(shape, dtype)`."""
        return cls(*written)

    def json(self) -> tuple[tuple[int, ...], str]:
        """Return the pair `(shape, dtype)`."""
        return self.shape, self.dtype


Parts: TypeAlias = Mapping[int, Typed | tuple[Typed, ...] | None]
"""The type of each value of a graph by number; a tuple for a tuple; None where the steps of a loop differ."""


class Spec(tuple[tuple[str, ...], ...]):
    """A PartitionSpec: for each dimension, the mesh axes that shard it, major to minor.

    Dimensions without an entry are not sharded. It is printed as JAX prints it: `P('x', None)`.
    """

    __slots__ = ()

    JSON = SpecEntries

    @classmethod
    def of(cls, entries: Iterable[str | Iterable[str] | None]) -> Spec:
        """Build a spec from entries of YAML, JSON or JAX: None, an axis, or several axes."""
        return cls(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries)

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that shard any dimension, in the order of the dimensions."""
        return tuple(itertools.chain.from_iterable(self))

    def over(self, axes: Iterable[str]) -> Spec:
        """Restrict the spec to the given mesh `axes`."""
        kept = frozenset(axes)
        return Spec(tuple(axis for axis in entry if axis in kept) for entry in self)

    def padded(self, rank: int) -> Spec:
        """Append empty entries up to `rank` dimensions."""
        return Spec((*self, *((),) * (rank - len(self))))

    def __repr__(self) -> str:
        return f"P({', '.join(_entry(axes) for axes in self)})"

    def json(self) -> SpecEntries:
        """Return the entries as lists: `['x', None]`, `[['x', 'y'], None]`."""
        return [None if not axes else axes[0] if len(axes) == 1 else list(axes) for axes in self]

    def yaml(self) -> str:
        """Format as YAML: `[x, null]`, `[[x, y], null]`."""
        entries = ["null" if not axes else axes[0] if len(axes) == 1 else f"[{', '.join(axes)}]" for axes in self]
        return f"[{', '.join(entries)}]"


def spec_text(spec: Spec | None) -> str:
    """Format a spec as JAX prints it; None as `no PartitionSpec`."""
    return "no PartitionSpec" if spec is None else str(spec)


def _entry(axes: tuple[str, ...]) -> str:
    names = ", ".join(map(repr, axes))
    return "None" if not axes else names if len(axes) == 1 else f"({names})"


@dataclass(frozen=True)
class Mesh:
    """Named axes and their sizes, in the order of `jax.make_mesh`.

    - `devices`: the ids of its devices, row-major; None where `jax.make_mesh` chooses.
    - `whole`: the mesh of which this one has some axes; the compiler has the others. None: this one has all.
    - `auto`: the axes that are `Auto` in explicit sharding; the others are `Explicit`.
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    devices: tuple[int, ...] | None = None
    whole: Mesh | None = None
    auto: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " × ".join(f"{axis}={size}" for axis, size in self.sizes.items())

    @cached_property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)

    @property
    def explicit(self) -> tuple[str, ...]:
        """The axes that are `Explicit` in explicit sharding."""
        return tuple(axis for axis in self.axes if axis not in self.auto)

    @property
    def needed(self) -> int:
        """The number of devices that must exist for the mesh."""
        return self.size if self.devices is None else max(self.devices) + 1

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Axis name to axis size."""
        return dict(zip(self.axes, self.shape, strict=True))

    @cached_property
    def coordinates(self) -> tuple[Coordinates, ...]:
        """The coordinates of every device, row-major: the last axis varies fastest."""
        return tuple(itertools.product(*(range(n) for n in self.shape)))

    @property
    def automatic(self) -> tuple[str, ...]:
        """The axes of the whole mesh that this one lacks."""
        return () if self.whole is None else tuple(axis for axis in self.whole.axes if axis not in self.axes)

    def over(self, axes: Container[str]) -> Mesh:
        """The mesh of those axes of the whole mesh that are among `axes`; the whole mesh if all are."""
        whole = self.whole or self
        kept = tuple(axis for axis in whole.axes if axis in axes)
        return whole if kept == whole.axes else Mesh(kept, tuple(map(whole.axis_size, kept)), whole=whole)

    def without(self, automatic: Container[str]) -> Mesh:
        """The mesh without the given axes, which are left to the compiler."""
        return self.over([axis for axis in self.axes if axis not in automatic])

    def axis_index(self, position: int, axes: str | Sequence[str]) -> int:
        """The index of the device at row-major `position` along one axis, or along several, major to minor."""
        names = (axes,) if isinstance(axes, str) else tuple(axes)
        index = 0
        for name in names:
            index = index * self.sizes[name] + self.coordinates[position][self.axes.index(name)]
        return index

    def axis_size(self, axes: str | Sequence[str]) -> int:
        """The size of one axis, or the product of the sizes of several."""
        sizes = self.sizes
        if isinstance(axes, str):
            return sizes[axes]
        size = 1
        for name in axes:
            size *= sizes[name]
        return size

    def divides(self, shape: Sequence[int], spec: Iterable[Sequence[str]]) -> bool:
        """Whether a spec with an entry for every dimension of `shape` divides each evenly."""
        return all(size % self.axis_size(axes) == 0 for size, axes in zip(shape, spec, strict=True))

    def groups(self, axes: str | Sequence[str]) -> list[list[int]]:
        """The row-major positions that communicate over `axes`: one list per group, in order of `axis_index`."""
        names = (axes,) if isinstance(axes, str) else tuple(axes)
        others = [name for name in self.axes if name not in names]
        groups: dict[int, list[tuple[int, int]]] = {}
        for position in range(self.size):
            groups.setdefault(self.axis_index(position, others), []).append(
                (self.axis_index(position, names), position)
            )
        return [[position for _, position in sorted(members)] for _, members in sorted(groups.items())]


@dataclass(frozen=True)
class Layout:
    """The layout of an array of global `shape` on `mesh` under `spec`, which is padded to the rank."""

    mesh: Mesh
    shape: tuple[int, ...]
    spec: Spec

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", self.spec.padded(len(self.shape)))

    @classmethod
    def of_shards(cls, mesh: Mesh, shard_shape: Sequence[int], spec: Spec) -> Layout:
        """Build the layout of the array whose shards have `shard_shape`."""
        sizes = zip(shard_shape, spec.padded(len(shard_shape)), strict=True)
        return cls(mesh, tuple(n * mesh.axis_size(axes) for n, axes in sizes), spec)

    @cached_property
    def shards(self) -> tuple[int, ...]:
        """The number of shards along each dimension."""
        return tuple(self.mesh.axis_size(axes) for axes in self.spec)

    @cached_property
    def shard_shape(self) -> tuple[int, ...]:
        """The shape of one device's shard."""
        return tuple(n // k for n, k in zip(self.shape, self.shards, strict=True))

    def block(self, position: int) -> tuple[int, ...]:
        """The index along each dimension of the shard that the device at row-major `position` holds."""
        return tuple(self.mesh.axis_index(position, axes) for axes in self.spec)

    def ranges(self, position: int) -> tuple[tuple[int, int], ...]:
        """The half-open index range, per dimension, that the device at row-major `position` holds."""
        return tuple((b * n, (b + 1) * n) for b, n in zip(self.block(position), self.shard_shape, strict=True))

    def within(self, position: int, block: Layout) -> tuple[slice, ...]:
        """The slices of the device's shard within its larger shard under the layout `block`."""
        starts = [start for start, _ in block.ranges(position)]
        ranges = zip(self.ranges(position), starts, strict=True)
        return tuple(slice(start - first, stop - first) for (start, stop), first in ranges)

    def index(self, position: int) -> tuple[slice, ...]:
        """`ranges` as slices into the whole array."""
        return tuple(slice(start, stop) for start, stop in self.ranges(position))

    def holders(self) -> Iterator[tuple[tuple[int, ...], list[int]]]:
        """Yield every shard index, row-major, with the row-major positions of the devices that hold a copy."""
        positions: dict[tuple[int, ...], list[int]] = {}
        for position in range(self.mesh.size):
            positions.setdefault(self.block(position), []).append(position)
        yield from sorted(positions.items())

    def assembled(self, shards: Sequence[np.ndarray], step: int = 1) -> np.ndarray:
        """Assemble the global array from the `shards`, by row-major position; of copies, the first is used.

        Returns every `step`th row.
        """
        # Imported late: pictures and specs need no NumPy.
        import numpy as np

        if not any(self.spec):
            return np.asarray(shards[0])[::step] if step > 1 else np.asarray(shards[0])
        rows = -(-self.shape[0] // step)
        whole = np.zeros((rows, *self.shape[1:]), np.asarray(shards[0]).dtype)
        for _, positions in self.holders():
            first, *rest = self.index(positions[0])
            skipped = -first.start % step
            part = np.asarray(shards[positions[0]])[skipped::step]
            at = (first.start + skipped) // step
            whole[(slice(at, at + len(part)), *rest)] = part
        return whole

    @property
    def replicated_over(self) -> tuple[str, ...]:
        """The mesh axes along which every device holds the same shard."""
        return tuple(axis for axis in self.mesh.axes if axis not in self.spec.axes)


def first_holders(*values: Sequence[Any]) -> list[int]:
    """Return for each device the first device that holds the same objects: one of each of `values`.

    Each of `values` has one entry per device. Devices that hold equal shards share one object, which is what tells a
    copy, since arrays cannot be hashed and comparing their elements would take as long as the work that copies save.
    """
    first: dict[tuple[int, ...], int] = {}
    return [first.setdefault(tuple(map(id, held)), at) for at, held in enumerate(zip(*values, strict=True))]


def distinct(values: Sequence[Any]) -> list[Any]:
    """Return the objects that devices hold, each once. `values` has one entry per device."""
    return [value for at, (value, first) in enumerate(zip(values, first_holders(values), strict=True)) if at == first]
