"""Computes `jax.lax`'s collectives in plain NumPy, on one value per device.

Each function takes the mesh, then `x`: a list with one value per device, by the device's row-major position. The other
arguments have JAX's names and meaning. Devices that receive the same result share one object, which is computed once,
because the interpreter that calls these functions memoises by identity.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from runner.base.layout import Mesh, first_holders

Axes = str | Sequence[str]
"""One mesh axis, or several, major to minor."""

Groups = Sequence[Sequence[int]] | None
"""Groups of indices along the axes that communicate with each other; None: one group of all."""


def psum(mesh: Mesh, x: list[Any], axis_name: Axes, *, axis_index_groups: Groups = None) -> list[Any]:
    """The sum over the axes; booleans are summed in int32, other integers in their own dtype."""
    if not _names(mesh, axis_name):
        return list(x)
    # JAX multiplies a constant by the size of the first group in every group.
    equal = _is_constant(x[0])
    return _reduce(_sum, x, _groups("psum", mesh, axis_name, axis_index_groups, equal=equal))


def pmean(mesh: Mesh, x: list[Any], axis_name: Axes, *, axis_index_groups: Groups = None) -> list[Any]:
    """The mean over the axes: `psum`, divided by the number of devices."""
    # JAX divides by the size of the first group in every group.
    groups = _groups("pmean", mesh, axis_name, axis_index_groups, equal=True)
    return _reduce(lambda values: _sum(values) / len(values), x, groups)


def pmax(mesh: Mesh, x: list[Any], axis_name: Axes, *, axis_index_groups: Groups = None) -> list[Any]:
    """The elementwise maximum over the axes."""
    return _reduce(_fold(np.maximum, max), x, _groups("pmax", mesh, axis_name, axis_index_groups))


def pmin(mesh: Mesh, x: list[Any], axis_name: Axes, *, axis_index_groups: Groups = None) -> list[Any]:
    """The elementwise minimum over the axes."""
    return _reduce(_fold(np.minimum, min), x, _groups("pmin", mesh, axis_name, axis_index_groups))


def psum_scatter(
    mesh: Mesh,
    x: list[Any],
    axis_name: Axes,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Groups = None,
    tiled: bool = False,
) -> list[Any]:
    """The sum over n devices, of which device i keeps block i along `scatter_dimension`.

    If `tiled`, a dimension of size k becomes k/n; if not, its size must be n and it is removed.
    """
    if not _names(mesh, axis_name):
        return list(x)
    if np.asarray(x[0]).dtype == np.bool_:
        raise ValueError("psum_scatter does not add booleans; convert them to int32 first")
    groups = _groups("psum_scatter", mesh, axis_name, axis_index_groups, equal=True)
    axis = _dimension("psum_scatter", "scatter_dimension", scatter_dimension, np.ndim(x[0]))
    _check_split("psum_scatter", "scatter_dimension", np.shape(x[0])[axis], len(groups[0]), tiled)
    return _exchange(lambda values: _blocks(_sum(values), len(values), axis, tiled), x, groups)


def all_gather(
    mesh: Mesh,
    x: list[Any],
    axis_name: Axes,
    *,
    axis_index_groups: Groups = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
) -> list[Any]:
    """The values of n devices in order: concatenated along `axis` if `tiled`, else stacked to a new axis.

    `to` (`varying` or `invarying`) sets the type of the result in JAX, not its value.
    """
    if to not in ("varying", "invarying"):
        raise ValueError(f"all_gather takes to='varying' or to='invarying', not {to!r}")
    if not _names(mesh, axis_name):
        return list(x)
    groups = _groups("all_gather", mesh, axis_name, axis_index_groups, equal=True)
    axis = _dimension("all_gather", "axis", axis, np.ndim(x[0]) + (not tiled))
    join = np.concatenate if tiled else np.stack
    return _reduce(lambda values: join(values, axis=axis), x, groups)


def all_to_all(
    mesh: Mesh,
    x: list[Any],
    axis_name: Axes,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: Groups = None,
    tiled: bool = False,
) -> list[Any]:
    """Device i of n receives block i along `split_axis` of every device, in order along `concat_axis`.

    If `tiled`, blocks are concatenated and no dimension is added or removed; if not, `split_axis` has size n and is
    removed, and the blocks are stacked to a new axis, `concat_axis` of the result.
    """
    groups = _groups("all_to_all", mesh, axis_name, axis_index_groups, equal=True)
    split = _dimension("all_to_all", "split_axis", split_axis, np.ndim(x[0]))
    concat = _dimension("all_to_all", "concat_axis", concat_axis, np.ndim(x[0]))
    _check_split("all_to_all", "split_axis", np.shape(x[0])[split], len(groups[0]), tiled)
    join = np.concatenate if tiled else np.stack

    def compute(values: list[Any]) -> list[Any]:
        sent = [_blocks(value, len(values), split, tiled) for value in values]
        return [join(received, axis=concat) for received in zip(*sent, strict=True)]

    return _exchange(compute, x, groups)


def ragged_all_to_all(
    mesh: Mesh,
    operand: list[Any],
    output: list[Any],
    input_offsets: list[Any],
    send_sizes: list[Any],
    output_offsets: list[Any],
    recv_sizes: list[Any],
    *,
    axis_name: Axes,
    axis_index_groups: Groups = None,
) -> list[Any]:
    """Each device's `output`, with slices of the devices' `operand` written into it along the first dimension.

    A device sends the first K/n of its K slices to the first of n devices, and so on. Slice j is the `send_sizes[j]`
    rows of its `operand` from `input_offsets[j]`; the receiver writes them from the sender's `output_offsets[j]`.
    `recv_sizes` are the sizes that a device receives, by sender. Rows that no device writes keep their value in
    `output`.

    Raises `Misplaced` where the sizes of two devices disagree, a slice ends outside an array, or two slices overlap.
    """
    groups = _groups("ragged_all_to_all", mesh, axis_name, axis_index_groups, equal=True)
    fields = (operand, output, input_offsets, send_sizes, output_offsets, recv_sizes)
    # Devices with the same arguments share one tuple, as `_exchange` compares by identity.
    rows = list(zip(*fields, strict=True))
    return _exchange(_ragged, [rows[first] for first in first_holders(*fields)], groups)


def _ragged(held: list[tuple[Any, ...]]) -> list[Any]:
    """The results of the devices of one group; `held` are the arguments of each."""
    lengths: set[tuple[int, ...]] = {np.shape(argument) for row in held for argument in row[2:]}
    length = next(iter(lengths))
    if len(lengths) > 1 or len(length) != 1 or length[0] % len(held):
        raise ValueError(f"ragged_all_to_all takes offsets and sizes of one length, a multiple of {len(held)}")
    every = length[0] // len(held)
    results = [np.array(output, copy=True, subok=True) for _, output, *_ in held]
    # The device that wrote each row, counted from 1; 0: none.
    writers: list[list[int]] = [[0] * len(output) for _, output, *_ in held]
    for sender, (operand, _, starts, sizes, places, _) in enumerate(held):
        for number in range(length[0]):
            start, size, place = int(starts[number]), int(sizes[number]), int(places[number])
            to, at = number // every, sender * every + number % every
            which = f"slice {number} of device {sender}, for device {to}"
            expected = int(held[to][5][at])
            if size != expected:
                raise Misplaced(f"{which}: send_sizes[{number}] is {size}, and there recv_sizes[{at}] is {expected}")
            if size < 0 or start < 0 or start + size > len(operand):
                raise Misplaced(f"{which}, is operand[{start}:{start + size}], which has {len(operand)} rows")
            rows = f"is written to output[{place}:{place + size}]"
            if place < 0 or place + size > len(results[to]):
                raise Misplaced(f"{which}, {rows}, which has {len(results[to])} rows")
            if any(before := writers[to][place : place + size]):
                raise Misplaced(f"{which}, {rows}, where device {max(before) - 1} writes too")
            writers[to][place : place + size] = [sender + 1] * size
            results[to][place : place + size] = operand[start : start + size]
    return results


class Misplaced(ValueError):
    """The offsets or sizes of a ragged collective, which are known at run time, do not fit its arrays."""


def ppermute(
    mesh: Mesh,
    x: list[Any],
    axis_name: Axes,
    perm: Sequence[Sequence[int]] | None = None,
    *,
    shift: int | None = None,
) -> list[Any]:
    """Each pair `(source, destination)` of `perm` sends one value; a device that is no destination receives zeros.

    `shift`, which JAX does not have, is short for `perm=[(i, (i + shift) % n) for i in range(n)]`.
    """
    if (perm is None) == (shift is None):
        raise ValueError("ppermute takes either perm= or shift=")
    groups = _groups("ppermute", mesh, axis_name)
    size = len(groups[0])
    if any(group != sorted(group) for group in groups):
        # JAX 0.10 always reads the indices in the mesh's order, and JAX 0.12 raises.
        ordered = tuple(name for name in mesh.axes if name in axis_name)
        raise ValueError(f"ppermute over several axes names them in the mesh's order: {ordered}")
    if perm is None:
        assert shift is not None
        pairs = [(source, (source + shift) % size) for source in range(size)]
    else:
        if any(len(pair) != 2 for pair in perm):
            raise ValueError(f"ppermute takes pairs (source, destination), not {_plain(perm)}")
        if any(not -size <= index < size for pair in perm for index in pair):
            raise ValueError(f"ppermute's perm has an index outside 0 to {size - 1}: {_plain(perm)}")
        pairs = [(source % size, destination % size) for source, destination in perm]
    for end in zip(*pairs, strict=True):
        if len(set(end)) != len(end):
            raise ValueError(f"ppermute's sources and destinations have to be unique: {_plain(pairs)}")
    source_of = {destination: source for source, destination in pairs}
    zeros = np.zeros_like(x[0]) if len(pairs) < size else None

    def compute(values: list[Any]) -> list[Any]:
        return [values[source_of[i]] if i in source_of else zeros for i in range(size)]

    return _exchange(compute, x, groups)


def pshuffle(mesh: Mesh, x: list[Any], axis_name: Axes, perm: Sequence[int]) -> list[Any]:
    """Device i receives the value of device `perm[i]`."""
    size = len(_groups("pshuffle", mesh, axis_name)[0])
    if sorted(perm) != list(range(size)):
        raise ValueError(f"pshuffle's perm has to be a permutation of 0 to {size - 1}, not {list(perm)}")
    return ppermute(mesh, x, axis_name, [(source, destination) for destination, source in enumerate(perm)])


def pbroadcast(mesh: Mesh, x: list[Any], axis_name: Axes, source: int) -> list[Any]:
    """Every device receives the value of device `source`. JAX compiles this for GPUs only."""
    groups = _groups("pbroadcast", mesh, axis_name)
    if not 0 <= source < len(groups[0]):
        raise ValueError(f"pbroadcast's source has to be one of 0 to {len(groups[0]) - 1}, not {source}")
    return _reduce(lambda values: values[source], x, groups)


def pcast(mesh: Mesh, x: list[Any], axis_name: Axes, *, to: str) -> list[Any]:
    """Return `x`: a cast of JAX's types changes no value."""
    _names(mesh, axis_name)
    if to != "varying":
        raise ValueError(f"pcast takes to='varying', not {to!r}")
    return list(x)


def axis_index(mesh: Mesh, axis_name: Axes) -> list[np.int32]:
    """Each device's index along one axis, or along several, major to minor."""
    names = _names(mesh, axis_name)
    indices = [np.int32(index) for index in range(mesh.axis_size(names))]
    return [indices[mesh.axis_index(position, names)] for position in range(mesh.size)]


def axis_size(mesh: Mesh, axis_name: Axes) -> int:
    """The size of one axis, or the product of the sizes of several."""
    return mesh.axis_size(_names(mesh, axis_name))


def _names(mesh: Mesh, axis_name: Axes) -> tuple[str, ...]:
    names = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
    for name in names:
        if name not in mesh.axes:
            raise ValueError(f"mesh axis {name!r} does not exist; the mesh has {', '.join(mesh.axes)}")
    if len(set(names)) != len(names):
        # In JAX 0.12, this makes XLA abort the process.
        raise ValueError(f"axis_name names an axis twice: {names}")
    return names


def _groups(
    call: str, mesh: Mesh, axis_name: Axes, axis_index_groups: Groups = None, equal: bool = False
) -> list[list[int]]:
    """The groups of row-major positions that communicate, each in JAX's order of its members."""
    names = _names(mesh, axis_name)
    groups = mesh.groups(names)
    if axis_index_groups is None:
        return groups
    size = mesh.axis_size(names)
    if sorted(index for members in axis_index_groups for index in members) != list(range(size)):
        raise ValueError(
            f"axis_index_groups has to hold each of 0 to {size - 1} exactly once, not {_plain(axis_index_groups)}"
        )
    if equal and len({len(members) for members in axis_index_groups}) > 1:
        raise ValueError(f"{call} needs axis_index_groups of equal size, not {_plain(axis_index_groups)}")
    return [[group[index] for index in members] for group in groups for members in axis_index_groups]


def _exchange(compute: Callable[[list[Any]], list[Any]], x: list[Any], groups: list[list[int]]) -> list[Any]:
    """Apply `compute`, from the members' values to their results, to each group; groups of equal values share it."""
    results: list[Any] = [None] * len(x)
    computed: dict[tuple[int, ...], list[Any]] = {}
    first = first_holders(x)
    for group in groups:
        key = tuple(first[position] for position in group)
        if key not in computed:
            computed[key] = compute([x[position] for position in group])
        for position, result in zip(group, computed[key], strict=True):
            results[position] = result
    return results


def _reduce(compute: Callable[[list[Any]], Any], x: list[Any], groups: list[list[int]]) -> list[Any]:
    return _exchange(lambda values: [compute(values)] * len(values), x, groups)


def _is_constant(value: Any) -> bool:
    return isinstance(value, bool | int | float) and not isinstance(value, np.generic)


def _sum(values: list[Any]) -> Any:
    if _is_constant(values[0]):
        return sum(values)
    first = np.asarray(values[0])
    total = first.astype(np.int32 if first.dtype == np.bool_ else first.dtype)
    for value in values[1:]:
        total += value
    return total


def _fold(ufunc: np.ufunc, builtin: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    return lambda values: builtin(values) if _is_constant(values[0]) else functools.reduce(ufunc, values)


def _blocks(value: Any, n: int, axis: int, tiled: bool) -> list[Any]:
    return np.split(value, n, axis) if tiled else [np.take(value, i, axis) for i in range(n)]


def _dimension(call: str, argument: str, axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        raise ValueError(f"{call}'s {argument} {axis} is out of bounds for {ndim} dimensions")
    return axis % ndim


def _check_split(call: str, argument: str, length: int, n: int, tiled: bool) -> None:
    if tiled and length % n:
        raise ValueError(f"{call} splits {argument} of size {length} over {n} devices, which does not divide it")
    if not tiled and length != n:
        raise ValueError(f"{call} without tiled=True needs {argument} of size {n}, one per device, not {length}")


def _plain(groups: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(members) for members in groups]
