"""Finds, for a collective of a trace, the devices that each block of its result comes from.

The collective is interpreted again on marks in place of its operand: each device holds a bit of its own. Moved elements
keep their bit, and a sum has the bits of all its terms. It is interpreted once more on the indices of the operand's
elements, which show where in the operand a block comes from.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from runner.base.lazy import dataclass
from runner.checks.reference import PerDevice, interpret
from runner.experiment import graphs
from runner.experiment.model import Experiment
from runner.graph.language.lines import argument, place_of, with_argument
from runner.graph.language.operations import OPERATIONS
from runner.graph.source import Line
from runner.graph.term import Apply, Const, Term, calls
from runner.reports.record.model import TracedBlock, TracedOrigins

DEVICES = 16
"""The largest number of devices for which origins are recorded, since no more are drawn."""

BLOCKS = 64
"""The largest number of blocks of a result on a device for which origins are recorded."""


@dataclass(frozen=True)
class Block:
    """A part of a result on one device: its half-open ranges, and the positions of the devices that it comes from.

    Without positions no device sent it, and it is zeros. `part` has the ranges of the operand that it comes from; None
    if that is the whole operand or not a single block of it.
    """

    ranges: tuple[tuple[int, int], ...]
    positions: tuple[int, ...]
    part: tuple[tuple[int, int], ...] | None


def of_collective(
    experiment: Experiment, line: Line, term: Term, operation: str, before: str, values: Mapping[str, PerDevice]
) -> list[list[Block]] | None:
    """The blocks of the result of a line with this term on each device; None if there are too many to draw.

    `before` names the operand among the `values` of the named code.
    """
    size = experiment.mesh.size
    if size > DEVICES:
        return None
    # The union of marks is their sum, whatever the reduction.
    marking = graphs.of_line(line, _summing(term) if reduction(operation) else _marked(term), values)

    def moved(operand: PerDevice) -> PerDevice:
        given = {**values, before: operand}
        return interpret(experiment, "per_device", {}, marking, given=given, keep=[line.name]).values[line.name]

    shape = np.shape(values[before][0])
    bits = moved([np.full(shape, 1 << position, np.int32) for position in range(size)])
    numbers = moved([np.arange(math.prod(shape), dtype=np.int32).reshape(shape)] * size)
    blocks = [
        _blocks(np.asarray(marked), np.asarray(number), shape, size)
        for marked, number in zip(bits, numbers, strict=True)
    ]
    return None if any(len(of_device) > BLOCKS for of_device in blocks) else blocks


def reduction(operation: str) -> str | None:
    """How an operation combines the values of devices: `+`, `mean`, `max` or `min`; None if it only moves them."""
    over = OPERATIONS[operation].over
    if not (over.reduction or over.linear):
        return None
    return "+" if over.reduction in ("sum", "") else over.reduction


def _marked(term: Term) -> Term:
    """A call in which the array that it writes into has no marks: rows that it keeps come from no device."""
    at = place_of(term, "output") if calls(term) else None
    if not calls(term) or at is None:
        return term
    empty = Apply("zeros_like", (argument(term, at),), (("dtype", Const("int32")),))
    return with_argument(term, at, empty)


def _summing(term: Term) -> Term:
    assert calls(term)
    return replace(term, operation="psum") if OPERATIONS[term.operation].reduces else term


def _blocks(marked: np.ndarray, numbers: np.ndarray, shape: tuple[int, ...], size: int) -> list[Block]:
    """Split an array into the blocks between neighbouring elements that differ."""
    cuts = [_cuts(marked, axis) for axis in range(marked.ndim)]
    blocks: list[Block] = []
    for ranges in itertools.product(*(itertools.pairwise(bounds) for bounds in cuts)):
        bits = int(marked[tuple(start for start, _ in ranges)]) if marked.size else 0
        positions = tuple(p for p in range(size) if bits >> p & 1)
        here = numbers[tuple(slice(*bounds) for bounds in ranges)]
        # A sum of equal numbers is the number times the count of terms.
        part = _part(here // len(positions), shape) if positions and here.size else None
        blocks.append(Block(tuple(ranges), positions, part))
    return blocks


def _part(numbers: np.ndarray, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...] | None:
    """The ranges of an array of `shape` that the elements with these numbers fill; None if whole or no block."""
    if not shape:
        return None
    at = np.unravel_index(numbers.ravel(), shape)
    part = tuple((int(indices.min()), int(indices.max()) + 1) for indices in at)
    inside = math.prod(stop - start for start, stop in part)
    whole = part == tuple((0, n) for n in shape)
    return None if whole or inside != np.unique(numbers).size else part


def _cuts(marked: np.ndarray, axis: int) -> list[int]:
    other_axes = tuple(k for k in range(marked.ndim) if k != axis)
    changes = (np.diff(marked, axis=axis) != 0).any(axis=other_axes)
    return [0, *(int(k) + 1 for k in np.flatnonzero(changes)), marked.shape[axis]]


def recorded(blocks: Sequence[Sequence[Block]], operation: str, device_ids: Sequence[int]) -> TracedOrigins:
    """The blocks as the record has them."""
    return TracedOrigins(
        combined=reduction(operation),
        blocks=[
            [
                TracedBlock(
                    index=[list(bounds) for bounds in block.ranges],
                    source=[device_ids[p] for p in block.positions],
                    part=None if block.part is None else [list(bounds) for bounds in block.part],
                )
                for block in of_device
            ]
            for of_device in blocks
        ],
    )
