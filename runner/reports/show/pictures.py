"""Makes the picture of a layout as plain data: shards, two-dimensional grids to draw, text and colours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from runner.base import dtypes
from runner.base.grouping import by_key
from runner.base.layout import Layout
from runner.base.lazy import dataclass
from runner.base.words import bytes_text, devices_text
from runner.experiment.patterns import folded
from runner.reports.record.model import PicturedArray, PicturedMesh, Pictures, Shard
from runner.reports.show.colours import colours

Range = tuple[int, int]


@dataclass(frozen=True)
class Cell:
    """One box of a grid: its `index` in words, and its devices."""

    index: str
    devices: tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """Rows and columns of cells: a whole array or mesh of rank 0, 1 or 2, or a slice of a larger one.

    `rows` and `columns` are the headings, `heights` and `widths` the numbers of elements under each of them.
    """

    title: str
    row_axis: str
    column_axis: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    heights: tuple[int, ...]
    widths: tuple[int, ...]
    cells: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class ArrayPicture(PicturedArray):
    """The picture of an array or of an output."""

    unit = "shards"
    captions: tuple[str, ...] = ()
    """The programs of each output among several arrays with one layout; `name` has all their names."""

    @property
    def shard_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Every shard shape, the largest first; several if the compiler split unevenly."""
        return tuple(sorted({s.shape for s in self.shards}, key=lambda shape: (-math.prod(shape), shape)))

    @property
    def whole(self) -> bool:
        """Whether each device has a full copy, so that a picture is one box."""
        return len(self.shards) == 1

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """The shape of the largest shard."""
        return self.shard_shapes[0]

    @property
    def bytes_per_device(self) -> int:
        """The bytes of the largest shard."""
        return math.prod(self.shard_shape) * self.itemsize

    @property
    def device_ids(self) -> tuple[int, ...]:
        """Every device that holds a part, ascending."""
        return tuple(sorted({d for shard in self.shards for d in shard.devices}))

    def grids(self) -> tuple[Grid, ...]:
        """The array as one grid; above rank 2 one grid per block of the leading dimensions, row-major."""
        exact = {shard.ranges: shard.devices for shard in self.shards}

        def cell(*ranges: Range) -> Cell:
            devices = exact.get(ranges)
            if devices is None:
                devices = [d for shard in self.shards if _contains(shard.ranges, ranges) for d in shard.devices]
            return Cell(_index(ranges), tuple(sorted(set(devices))))

        blocks = [_intervals(n, [s.ranges[k] for s in self.shards]) for k, n in enumerate(self.shape)]
        *leading, rows, columns = [None] * (2 - len(blocks)) + blocks
        names = [None] * (2 - len(blocks)) + list(self.dims)
        drawn: list[Grid] = []
        for lead in itertools.product(*(dimension for dimension in leading if dimension)):
            drawn.append(
                Grid(
                    title="slice [" + ", ".join([*map(_range, lead), ":", ":"]) + "]" if lead else "",
                    row_axis=_short(names[-2] or ""),
                    column_axis=_short(names[-1] or ""),
                    rows=tuple(map(_range, rows)) if rows else ("",),
                    columns=tuple(map(_range, columns)) if columns else ("",),
                    heights=tuple(b - a for a, b in rows) if rows else (1,),
                    widths=tuple(b - a for a, b in columns) if columns else (1,),
                    cells=tuple(
                        tuple(cell(*lead, *row, *column) for column in ([(c,) for c in columns] if columns else [()]))
                        for row in ([(r,) for r in rows] if rows else [()])
                    ),
                )
            )
        return tuple(drawn)

    def without(self) -> str:
        """The devices that an uneven split leaves empty, in words; "" if there are none."""
        if 0 in self.shape:
            return ""
        idle = sorted(d for s in self.shards if 0 in s.shape for d in s.devices)
        return f"{devices_text(idle, self.platform)}: an empty shard" if idle else ""

    def lines(self) -> tuple[str, ...]:
        """The heading: type; PartitionSpec; shard and bytes; copies; programs."""
        sizes = [f"{dim}={n}" if dim else str(n) for dim, n in zip(self.dims, self.shape, strict=True)]
        shapes = ", ".join(str(list(shape)) for shape in self.shard_shapes)
        largest = "up to " if len(self.shard_shapes) > 1 else ""
        lines = [
            f"{self.dtype}[{', '.join(sizes)}]",
            self.spec,
            f"shard{'s' if largest else ''} {shapes}  {largest}{bytes_text(self.bytes_per_device)} per device",
            self._copies(),
        ]
        if self.role == "output":
            lines.append(f"output of {', '.join(self.programs)}" if self.programs else "output")
        return (*lines, *self.captions)

    def _copies(self) -> str:
        counts = sorted({len(shard.devices) for shard in self.shards})
        if len(counts) > 1:
            return f"{counts[0]} to {counts[-1]} copies of each shard"
        if counts[0] == 1:
            return "one copy of each shard"
        if self.whole:
            return f"a full copy on each of {counts[0]} devices"
        return f"{counts[0]} copies of each shard"


_LISTED = 4
"""The most processes of which the heading of a mesh lists the devices."""


@dataclass(frozen=True)
class MeshPicture(PicturedMesh):
    """The picture of a mesh."""

    name = "mesh"
    unit = "devices"

    def grids(self) -> tuple[Grid, ...]:
        """The mesh as one grid; above two axes one grid per position along the leading axes, row-major."""
        ids = iter(self.device_ids)
        *leading, rows, columns = [1] * (2 - len(self.shape)) + list(self.shape)
        *_, row_axis, column_axis = "", "", *self.axes
        drawn: list[Grid] = []
        for lead in itertools.product(*map(range, leading)):
            title = mesh_place(self.axes, lead) if len(self.axes) > 2 else ""
            cells: list[tuple[Cell, ...]] = []
            for row in range(rows):
                places = [(*lead, row, column)[-len(self.axes) :] for column in range(columns)]
                cells.append(tuple(Cell(mesh_place(self.axes, at), (next(ids),)) for at in places))
            drawn.append(
                Grid(
                    title=title,
                    row_axis=_short(row_axis),
                    column_axis=_short(column_axis),
                    rows=tuple(map(str, range(rows))) if row_axis else ("",),
                    columns=tuple(map(str, range(columns))) if column_axis else ("",),
                    heights=(1,) * rows,
                    widths=(1,) * columns,
                    cells=tuple(cells),
                )
            )
        return tuple(drawn)

    def without(self) -> str:
        """Return "": a mesh has a device in every position."""
        return ""

    def lines(self) -> tuple[str, ...]:
        """The heading: axes; number of devices; the devices of each process, if there are several."""
        count, among = len(self.device_ids), len(self.processes)
        processes = self.processes if among <= _LISTED else ()
        return (
            ", ".join(f"{axis}={n}" for axis, n in zip(self.axes, self.shape, strict=True)),
            f"{count} {self.platform.upper()} device{'s' if count != 1 else ''}"
            + (f" of {self.topology}, compiled only" if self.topology else "")
            + (f" of {among} processes" if among else ""),
            *(f"process {n}: {devices_text(ids, self.platform)}" for n, ids in enumerate(processes)),
        )


Picture = ArrayPicture | MeshPicture


def recorded(mesh: MeshPicture, arrays: Iterable[ArrayPicture]) -> Pictures:
    """Return the pictures as a record has them; captions are made when they are drawn."""
    plain = [PicturedArray(**{key: value for key, value in vars(each).items() if key != "captions"}) for each in arrays]
    return Pictures(mesh=PicturedMesh(**vars(mesh)), arrays=plain)


def read(drawn: Pictures) -> tuple[MeshPicture, list[ArrayPicture]]:
    """Read the pictures of a record."""
    return MeshPicture(**vars(drawn.mesh)), [ArrayPicture(**vars(picture)) for picture in drawn.arrays]


def from_layout(
    layout: Layout,
    name: str,
    role: Literal["array", "output"],
    dtype: str,
    dims: Sequence[str | None],
    device_ids: Sequence[int],
    platform: str,
    programs: Sequence[str] = (),
) -> ArrayPicture:
    """Return the picture of an array with the layout of its PartitionSpec; `device_ids` are row-major in the mesh."""
    held: dict[tuple[Range, ...], list[int]] = {}
    for _, positions in layout.holders():  # blocks of an array without elements have the same ranges
        held.setdefault(layout.ranges(positions[0]), []).extend(device_ids[p] for p in positions)
    shards = tuple(Shard(ranges, tuple(sorted(ids))) for ranges, ids in held.items())
    spec, itemsize = str(layout.spec), dtypes.dtype(dtype).itemsize
    return ArrayPicture(
        name, role, layout.shape, dtype, tuple(dims), spec, shards, itemsize, platform, programs=tuple(programs)
    )


def merge(arrays: Iterable[ArrayPicture]) -> tuple[ArrayPicture, ...]:
    """Join the pictures of one output that has the same layout in several programs; keep the order."""
    merged: dict[ArrayPicture, tuple[str, ...]] = {}
    specs: dict[ArrayPicture, str] = {}
    for picture in arrays:
        # Programs may spell one layout differently: P('x') and P('x', None).
        layout = replace(picture, programs=(), spec="", shards=tuple(sorted(picture.shards, key=lambda s: s.ranges)))
        specs.setdefault(layout, picture.spec)
        merged[layout] = tuple(dict.fromkeys((*merged.get(layout, ()), *picture.programs)))
    return tuple(replace(layout, programs=programs, spec=specs[layout]) for layout, programs in merged.items())


def alike(arrays: Iterable[ArrayPicture]) -> tuple[ArrayPicture, ...]:
    """Return each distinct layout once, with the names of all its arrays and outputs, in order."""
    groups = by_key((replace(picture, name="", role="array", programs=()), picture) for picture in merge(arrays))
    return tuple(group[0] if len(group) == 1 else _joined(group) for group in groups.values())


def _joined(group: Sequence[ArrayPicture]) -> ArrayPicture:
    outputs = by_key((picture.lines()[-1], picture.name) for picture in group if picture.role == "output")
    names = ", ".join(folded(picture.name for picture in group))
    mine = {", ".join(folded(of)): f"{'outputs' if of[1:] else 'output'}{line[6:]}" for line, of in outputs.items()}
    lines = [line if of == names else f"{of}: {line}" for of, line in mine.items()]
    return replace(group[0], name=names, role="array", programs=(), captions=tuple(lines))


def figure_colours(mesh: MeshPicture, arrays: Iterable[ArrayPicture]) -> dict[int, str]:
    """Return the `colours` of every device in a figure."""
    return colours(itertools.chain(mesh.device_ids, *(picture.device_ids for picture in arrays)))


def balanced(count: int, most: int) -> int:
    """Return how many items to put in each row, at most `most`, so that rows are equally full."""
    return -(-count // -(-count // max(most, 1)))


def clip(count: int, limit: int) -> list[int | None]:
    """Return the indices to show of `count`: all, or the first ones, None for the omitted ones, and the last one."""
    if count <= max(limit, 1):
        return list(range(count))
    return [0, None] if limit < 2 else [*range(limit - 1), None, count - 1]


def _intervals(size: int, ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return the coarsest split of one dimension of which every shard's range is a union."""
    cuts = {0, size, *(edge for start, stop in ranges if start < stop for edge in (start, stop))}
    return tuple(itertools.pairwise(sorted(cuts))) or ((0, 0),)


def _contains(outer: Sequence[Range], inner: Sequence[Range]) -> bool:
    return all(a <= c and d <= b for (a, b), (c, d) in zip(outer, inner, strict=True))


def _range(bounds: Range) -> str:
    return f"{bounds[0]}:{bounds[1]}"


def _index(ranges: Sequence[Range]) -> str:
    return "[" + ", ".join(map(_range, ranges)) + "]"


def mesh_place(axes: Sequence[str], coordinates: Sequence[int]) -> str:
    """Return a place in a mesh as text: `x=0, y=1`."""
    return ", ".join(f"{axis}={at}" for axis, at in zip(axes, coordinates, strict=False))


def _short(name: str) -> str:
    return name if len(name) <= 12 else name[:11] + "…"
