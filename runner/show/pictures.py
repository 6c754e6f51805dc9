"""A layout in; a picture as plain data out: its shards, the two-dimensional grids that draw it, words and colours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from runner.experiment.patterns import folded
from runner.layout import Layout
from runner.show.colours import colours
from runner.untyped import is_dict, is_sequence
from runner.words import bytes_text, devices_text

Range = tuple[int, int]


@dataclass(frozen=True)
class Shard:
    """One half-open index range per dimension, and the ids of all devices that hold it."""

    ranges: tuple[Range, ...]
    devices: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each dimension."""
        return tuple(stop - start for start, stop in self.ranges)


@dataclass(frozen=True)
class Cell:
    """What one box of a grid stands for: `index` in words, and the devices there."""

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
class ArrayPicture:
    """All there is to draw about one array or output; `programs` are those whose output lies like this."""

    name: str
    role: Literal["array", "output"]
    shape: tuple[int, ...]
    dtype: str
    dims: tuple[str | None, ...]
    spec: str
    shards: tuple[Shard, ...]
    itemsize: int
    platform: str
    programs: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    """Of several arrays that lie alike, which of them are whose outputs; `name` has all their names."""

    @property
    def shard_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Every shape that a shard has, the largest first: more than one where the compiler split unevenly."""
        return tuple(sorted({s.shape for s in self.shards}, key=lambda shape: (-math.prod(shape), shape)))

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

    @property
    def unit(self) -> str:
        """What a cell is."""
        return "shards"

    def grids(self) -> tuple[Grid, ...]:
        """The array as one grid, or above rank 2 as one per block of the leading dimensions, row-major."""
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
        """The devices that an uneven split leaves with nothing, in words; empty where there are none."""
        if 0 in self.shape:
            return ""
        idle = sorted(d for s in self.shards if 0 in s.shape for d in s.devices)
        return f"{devices_text(idle, self.platform)}: an empty shard" if idle else ""

    def lines(self) -> tuple[str, ...]:
        """The heading in words: type; PartitionSpec; shard and bytes; copies; programs."""
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
        return (*lines, *self.told)

    def _copies(self) -> str:
        counts = sorted({len(shard.devices) for shard in self.shards})
        if len(counts) > 1:
            return f"{counts[0]} to {counts[-1]} copies of each shard"
        if counts[0] == 1:
            return "one copy of each shard"
        if len(self.shards) == 1:
            return f"a full copy on each of {counts[0]} devices"
        return f"{counts[0]} copies of each shard"

    def to_json(self) -> dict[str, Any]:
        """Plain mappings, lists, strings and numbers, which `from_json` reads back."""
        return {key: value for key, value in _plain(asdict(self)).items() if key != "told"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ArrayPicture:
        """The picture that `to_json` wrote; fields that a later version added are ignored."""
        return cls(
            name=data["name"],
            role=data["role"],
            shape=tuple(data["shape"]),
            dtype=data["dtype"],
            dims=tuple(data["dims"]),
            spec=data["spec"],
            shards=tuple(
                Shard(tuple((start, stop) for start, stop in s["ranges"]), tuple(s["devices"])) for s in data["shards"]
            ),
            itemsize=data["itemsize"],
            platform=data["platform"],
            programs=tuple(data["programs"]),
        )


_TOLD = 4
"""Up to this many processes, the mesh says which devices each has."""


@dataclass(frozen=True)
class MeshPicture:
    """The mesh itself: `device_ids` row-major, the last axis fastest; `topology` is the absent devices'.

    `processes` has for each of several the ids of its devices.
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    device_ids: tuple[int, ...]
    platform: str
    topology: str = ""
    processes: tuple[tuple[int, ...], ...] = ()

    name = "mesh"
    unit = "devices"

    def grids(self) -> tuple[Grid, ...]:
        """The mesh as one grid, or above two axes as one per place along the leading axes, row-major."""
        ids = iter(self.device_ids)
        *leading, rows, columns = [1] * (2 - len(self.shape)) + list(self.shape)
        *_, row_axis, column_axis = "", "", *self.axes
        drawn: list[Grid] = []
        for lead in itertools.product(*map(range, leading)):
            title = _place(self.axes, lead) if len(self.axes) > 2 else ""
            cells: list[tuple[Cell, ...]] = []
            for row in range(rows):
                places = [(*lead, row, column)[-len(self.axes) :] for column in range(columns)]
                cells.append(tuple(Cell(_place(self.axes, place), (next(ids),)) for place in places))
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
        """Nothing: a mesh has a device in every place."""
        return ""

    def lines(self) -> tuple[str, ...]:
        """The heading in words: axes; number of devices; which process has which, where there are a few."""
        count, among = len(self.device_ids), len(self.processes)
        processes = self.processes if among <= _TOLD else ()
        return (
            ", ".join(f"{axis}={n}" for axis, n in zip(self.axes, self.shape, strict=True)),
            f"{count} {self.platform.upper()} device{'s' if count != 1 else ''}"
            + (f" of {self.topology}, not here" if self.topology else "")
            + (f" of {among} processes" if among else ""),
            *(f"process {n}: {devices_text(ids, self.platform)}" for n, ids in enumerate(processes)),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain mappings, lists, strings and numbers, which `from_json` reads back."""
        plain = _plain(asdict(self))
        return plain if self.processes else {key: value for key, value in plain.items() if key != "processes"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MeshPicture:
        """The picture that `to_json` wrote; fields that a later version added are ignored."""
        ids, topology = tuple(data["device_ids"]), data.get("topology", "")
        processes = tuple(tuple(devices) for devices in data.get("processes", ()))
        return cls(tuple(data["axes"]), tuple(data["shape"]), ids, data["platform"], topology, processes)


Picture = ArrayPicture | MeshPicture


def from_layout(
    layout: Layout,
    *,
    name: str,
    role: Literal["array", "output"],
    dtype: str,
    itemsize: int,
    dims: Sequence[str | None],
    device_ids: Sequence[int],
    platform: str,
    programs: Sequence[str] = (),
) -> ArrayPicture:
    """The picture of an array that lies as its PartitionSpec promises; `device_ids` are the mesh's, row-major."""
    held: dict[tuple[Range, ...], list[int]] = {}
    for _, positions in layout.holders():  # blocks of an array without elements have the same ranges
        held.setdefault(layout.ranges(positions[0]), []).extend(device_ids[p] for p in positions)
    shards = tuple(Shard(ranges, tuple(sorted(ids))) for ranges, ids in held.items())
    spec = str(layout.spec)
    return ArrayPicture(
        name, role, layout.shape, dtype, tuple(dims), spec, shards, itemsize, platform, programs=tuple(programs)
    )


def merge(arrays: Iterable[ArrayPicture]) -> tuple[ArrayPicture, ...]:
    """The pictures in their order, those of one output that lie alike in several programs joined into the first."""
    merged: dict[ArrayPicture, tuple[str, ...]] = {}
    specs: dict[ArrayPicture, str] = {}
    for picture in arrays:
        # Programs may spell one layout differently: P('x') and P('x', None).
        layout = replace(picture, programs=(), spec="", shards=tuple(sorted(picture.shards, key=lambda s: s.ranges)))
        specs.setdefault(layout, picture.spec)
        merged[layout] = tuple(dict.fromkeys((*merged.get(layout, ()), *picture.programs)))
    return tuple(replace(layout, programs=programs, spec=specs[layout]) for layout, programs in merged.items())


def alike(arrays: Iterable[ArrayPicture]) -> tuple[ArrayPicture, ...]:
    """Each distinct layout once, with the names of all arrays and outputs that have it, in their order."""
    groups: dict[ArrayPicture, list[ArrayPicture]] = {}
    for picture in merge(arrays):
        groups.setdefault(replace(picture, name="", role="array", programs=()), []).append(picture)
    return tuple(group[0] if len(group) == 1 else _joined(group) for group in groups.values())


def _joined(group: Sequence[ArrayPicture]) -> ArrayPicture:
    outputs: dict[str, list[str]] = {}
    for picture in group:
        if picture.role == "output":
            outputs.setdefault(picture.lines()[-1], []).append(picture.name)
    lines = [f"{name}: {line}" for line, names in outputs.items() for name in folded(names)]
    names = ", ".join(folded(picture.name for picture in group))
    return replace(group[0], name=names, role="array", programs=(), told=tuple(lines))


def figure_colours(mesh: MeshPicture, arrays: Iterable[ArrayPicture]) -> dict[int, str]:
    """`colours` of every device in a figure."""
    return colours(itertools.chain(mesh.device_ids, *(picture.device_ids for picture in arrays)))


def balanced(count: int, most: int) -> int:
    """How many stand in each row, at most `most`, so that as many rows are as full as one another."""
    return -(-count // -(-count // max(most, 1)))


def clip(count: int, limit: int) -> list[int | None]:
    """The indices to show of `count`: all, or the first ones, None for those left out, and the last one."""
    if count <= max(limit, 1):
        return list(range(count))
    return [0, None] if limit < 2 else [*range(limit - 1), None, count - 1]


def _intervals(size: int, ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The finest split of one dimension that every shard's range is a union of."""
    cuts = {0, size, *(edge for start, stop in ranges if start < stop for edge in (start, stop))}
    return tuple(itertools.pairwise(sorted(cuts))) or ((0, 0),)


def _contains(outer: Sequence[Range], inner: Sequence[Range]) -> bool:
    return all(a <= c and d <= b for (a, b), (c, d) in zip(outer, inner, strict=True))


def _range(bounds: Range) -> str:
    return f"{bounds[0]}:{bounds[1]}"


def _index(ranges: Sequence[Range]) -> str:
    return "[" + ", ".join(map(_range, ranges)) + "]"


def _place(axes: Sequence[str], place: Sequence[int]) -> str:
    return ", ".join(f"{axis}={i}" for axis, i in zip(axes, place, strict=False))


def _short(name: str) -> str:
    return name if len(name) <= 12 else name[:11] + "…"


def _plain(value: Any) -> Any:
    if is_dict(value):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if is_sequence(value) else value
