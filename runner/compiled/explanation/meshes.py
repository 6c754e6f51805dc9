"""Finds the mesh of a module: given by the caller, named in the text, or its sizes from groups and shardings."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping

import numpy as np

from runner.base.faults import BadInput
from runner.base.layout import Mesh
from runner.compiled.evidence import groups
from runner.compiled.explanation.model import ExplainedMesh

_NAMED = re.compile(r"mesh\[((?:'[^']+'=\d+,? ?)+)\]")
_SHARDY = re.compile(r'#sdy\.mesh<\[((?:\\?"[^"\\]+\\?"=\d+(?:, )?)+)\]')
_LOWERED = re.compile(r"sdy\.mesh @\S+ = <\[((?:\"[^\"]+\"=\d+(?:, )?)+)\]")
_AXIS = re.compile(r"""\\?["']([^"'\\]+)\\?["']=(\d+)""")
_MADE_UP = re.compile(r"(?:_?axis_\d+|_flat_axis)$")
"""The names of axes that the compiler makes up where a sharding comes from tiles."""

_TILES = re.compile(r"devices=\[[0-9,]+\]<=\[([0-9,]+)\]")
_GROUPS = re.compile(
    r"replica_groups=(\{\{[0-9,{} ]*\}\}|\[[0-9,]+\]<=\[[0-9,]+\](?:T\([0-9,]+\))?|mesh\[[^\]]*\] \{[^}]*\})"
)

_PRINTED = 400
"""The most different groups that are looked at."""


class InvalidMesh(BadInput, ValueError):
    """The mesh that a caller gives does not fit the module, or is not one; the message says why."""


def mesh_of(text: str, partitions: int, given: Mapping[str, int] | None = None) -> ExplainedMesh | None:
    """The mesh of a module's text; None if it runs on one device, or nothing says how its devices lie.

    - `partitions`: the number of devices that run it.
    - `given`: the axes and their sizes, if the caller knows them.

    Raises `InvalidMesh` if `given` has another number of devices.
    """
    if given is not None:
        size = math.prod(given.values())
        if size != partitions:
            axes = " × ".join(f"{axis}={count}" for axis, count in given.items())
            raise InvalidMesh(f"the mesh {axes} has {size} devices, the module runs on {partitions}")
        return ExplainedMesh(axes=[*given], shape=[*given.values()], source="given")
    if partitions < 2:
        return None
    candidates = [dict.fromkeys(_NAMED.findall(text)), dict.fromkeys(_SHARDY.findall(text))]
    named = [{axis: int(size) for axis, size in _AXIS.findall(row)} for rows in candidates for row in rows]
    named = [axes for axes in named if math.prod(axes.values()) == partitions and not any(map(_MADE_UP.match, axes))]
    if named:
        axes = max(named, key=len)
        return ExplainedMesh(axes=[*axes], shape=[*axes.values()], source="module")
    sizes = _sizes(text, partitions)
    return ExplainedMesh(axes=[f"axis_{at}" for at in range(len(sizes))], shape=sizes, source="groups")


def of_lowered(text: str) -> dict[str, int] | None:
    """The axes of the mesh that a module before XLA's passes names, by their sizes; of several the one with the most.

    - `text`: of StableHLO, or of HLO.
    """
    rows = dict.fromkeys(row for pattern in (_LOWERED, _SHARDY, _NAMED) for row in pattern.findall(text))
    named: list[list[tuple[str, str]]] = [_AXIS.findall(row) for row in rows]
    return {axis: int(size) for axis, size in max(named, key=len)} if named else None


def devices_of(text: str) -> int:
    """How many devices the groups and the meshes in a module's text have; 1 without any."""
    meshes = [math.prod(int(size) for _, size in _AXIS.findall(row)) for row in dict.fromkeys(_NAMED.findall(text))]
    rows = (groups.read(spelled, 1) for spelled in itertools.islice(dict.fromkeys(_GROUPS.findall(text)), _PRINTED))
    return max([1, *meshes, *(row.size for row in rows if row is not None)])


_DIGITS = 20
"""A number has fewer digits where it is the size of an axis."""


def parsed(text: str) -> dict[str, int]:
    """The axes of a mesh as a command line has it: `data=4,model=2`. Raises `InvalidMesh`."""
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        number = int(size) if size.isdecimal() and len(size) < _DIGITS else 0
        if not name.isidentifier() or not 0 < number < 1 << 31 or name in axes:
            raise InvalidMesh(f"{text!r} is no mesh; write its axes and their sizes: data=4,model=2")
        axes[name] = number
    return axes


def layout_mesh(mesh: ExplainedMesh | None, partitions: int) -> Mesh:
    """The mesh for the readers of `compiled/evidence/`; without one, all devices along one axis."""
    if mesh is None:
        return Mesh(("devices",), (max(partitions, 1),))
    return Mesh(tuple(mesh.axes), tuple(mesh.shape))


def _sizes(text: str, partitions: int) -> list[int]:
    """The sizes of the axes along which groups and shardings divide the devices, the slowest first."""
    cuts = {1, partitions}
    for shape in dict.fromkeys(_TILES.findall(text)):
        cuts |= _products([int(size) for size in shape.split(",")], partitions)
    for spelled in itertools.islice(dict.fromkeys(_GROUPS.findall(text)), _PRINTED):
        rows = groups.read(spelled, partitions)
        if rows is not None and rows.size == partitions:
            cuts |= _strides(rows, partitions)
    chain = [1]
    for cut in sorted(cuts):
        if cut > chain[-1] and cut % chain[-1] == 0:
            chain.append(cut)
    if chain[-1] != partitions:
        return [partitions]
    return [after // before for before, after in itertools.pairwise(chain)][::-1]


def _products(shape: Iterable[int], partitions: int) -> set[int]:
    """How many devices lie within each place of the last axes of a grid."""
    products = set(itertools.accumulate(list(shape)[::-1], int.__mul__))
    return {product for product in products if product and partitions % product == 0}


def _strides(rows: np.ndarray, partitions: int) -> set[int]:
    """Between which distances the devices of a group lie, if they lie evenly along some axes."""
    first = np.sort(rows[0])
    first = first - first[0]
    if first.size < 2:
        return set()
    stride, count = int(first[1]), 1
    while count < first.size and first[count] == stride * count:
        count += 1
    # Along a second axis that is no neighbour of the first, the same again after a jump.
    jump, again = int(first[count]) if count < first.size else 0, first.size // count
    even = [far * jump + near * stride for far in range(again) for near in range(count)]
    if stride < 1 or even != first.tolist():
        return set()
    cuts = [stride, stride * count, *([jump, jump * again] if jump else [])]
    return {cut for cut in cuts if cut <= partitions and partitions % cut == 0}
