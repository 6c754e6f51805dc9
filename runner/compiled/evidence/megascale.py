"""Reads the kind of collective, and the groups, of a transfer between slices.

TPU's compiler uses a `send` and a `recv` through the hosts for the data-centre network, whose attributes say which
collective they implement. A device's id is the number of its slice, from 1, times 100,000, plus its number in the
slice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from runner.base.grouping import by_key
from runner.compiled.evidence.hlo import Computation, Instruction

_TYPE = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_TARGET = re.compile(r'_xla_megascale_target="?(\{[^"\s]*\})(?:"|,_xla|,is_|\})')
_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="([^"]*)"')
_REDUCTION = re.compile(r'_xla_megascale_reduce_operation="(\w+)"')
_KINDS = {
    "ALL_REDUCE": "all-reduce", "ALL_GATHER": "all-gather", "REDUCE_SCATTER": "reduce-scatter",
    "ALL_TO_ALL": "all-to-all", "ONE_TO_ONE": "collective-permute",
}  # fmt: skip
_SLICE = 100_000


def kind(instruction: Instruction) -> str | None:
    """The kind of collective that a `send` or `recv` between slices is; None for any other instruction."""
    if instruction.opcode not in ("send", "recv"):
        return None
    match = _TYPE.search(instruction.attributes)
    return None if match is None else _KINDS.get(match.group(1))


def received(computation: Computation, send: Instruction) -> Instruction | None:
    """The `recv` that matches `send`."""
    meeting = _meeting(send)
    receivers = (
        instruction
        for instruction in computation.instructions.values()
        if instruction.opcode == "recv" and _meeting(instruction) == meeting
    )
    return next(receivers, None) if meeting is not None else None


def _meeting(instruction: Instruction) -> str | None:
    match = _RENDEZVOUS.search(instruction.attributes)
    return match and match.group(1)


def reduction(instruction: Instruction) -> str | None:
    """How a reducing collective combines values, in the record's words: `sum`."""
    match = _REDUCTION.search(instruction.attributes)
    return match and match.group(1).lower()


def target(instruction: Instruction) -> str | None:
    """The groups or pairs of a transfer, as text of the module."""
    match = _TARGET.search(instruction.attributes)
    return match and match.group(1)


def generated(instruction: Instruction) -> bool:
    """Whether the partitioner inserted it; a collective that the program asks for has no such mark."""
    return 'is_spmd_generated="true"' in instruction.attributes


def everywhere(inside: np.ndarray, partitions: int, ids: Sequence[int]) -> np.ndarray:
    """The groups or pairs of all slices, if each of several slices runs a module with this many partitions.

    The module numbers the devices of its slice in the order of the mesh, whose devices have `ids`.
    """
    slices = by_key((device // _SLICE, place) for place, device in enumerate(ids))
    alike = all(len(places) == partitions for places in slices.values())
    if len(slices) < 2 or not alike or (inside.size and int(inside.max()) >= partitions):
        return inside
    return np.concatenate([np.array(places)[inside] for places in slices.values()])


def groups(text: str, ids: Sequence[int]) -> np.ndarray | None:
    """The groups of a transfer, or for a permutation its pairs: positions in the mesh whose devices have `ids`.

    - `{1,2}x{0:3}`: over slices 1 and 2, each device with those of the same number
    - `{{100000,200000},{100001,200001}}`: groups
    - `{{100000->200000},{200000->100000}}`: pairs
    """
    position = {device: place for place, device in enumerate(ids)}
    product = re.fullmatch(r"\{([\d,]+)\}x\{(\d+):(\d+)\}", text)
    if product is not None:
        first, last = int(product.group(2)), int(product.group(3))
        slices = [int(number) for number in product.group(1).split(",")]
        rows = [[part * _SLICE + chip for part in slices] for chip in range(first, last + 1)]
    else:
        rows = [[int(number) for number in re.findall(r"\d+", row)] for row in re.findall(r"\{([\d,>-]+)\}", text)]
    if not rows or len({len(row) for row in rows}) > 1 or not all(device in position for row in rows for device in row):
        return None
    return np.array([[position[device] for device in row] for row in rows])
