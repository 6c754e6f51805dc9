"""Counts the bytes that one device sends for a collective on a ring, the figure that compares programs.

Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005; and the
PERFORMANCE.md of nccl-tests, which uses the same factors for bus bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from runner.base import executions
from runner.base.executions import Count, InBranch

RAGGED = "ragged-all-to-all"
"""The kind whose bytes depend on the values of its operands; the first operand is the data."""


def sent(kind: str, devices: int, bytes_in: int | None, bytes_out: int | None) -> int | None:
    """The bytes that a device sends in one execution, in a group of `devices`; None where not known.

    `bytes_in` and `bytes_out` are the bytes that it holds before and after. With n devices, an all-gather sends (n-1)/n
    of `bytes_out`, a reduce-scatter and an all-to-all (n-1)/n of `bytes_in`, an all-reduce twice that. A permutation or
    a broadcast sends `bytes_in`. A group of one sends nothing.
    """
    if devices <= 1:
        return 0
    size = {"all-gather": bytes_out, "recv": 0}.get(kind, bytes_in)
    if size is None or kind not in _SHARES:
        return None
    return round(_of(kind, devices, size))


def of_block(kind: str, devices: int, block: float) -> float:
    """The bytes that a device sends if it holds `block` bytes before, as in `sent`, not rounded.

    So a cost may be that of a part of an execution. Raises `KeyError` for `RAGGED`.
    """
    return _of(kind, devices, devices * block if kind == "all-gather" else block)


class RingCollective(Protocol):
    """A collective that is compiled, asked for or planned."""

    @property
    def count(self) -> Count:
        """How often the collective runs."""
        ...

    @property
    def branches(self) -> Sequence[InBranch]:
        """The branches around it, outermost first."""
        ...

    @property
    def bytes_sent(self) -> int | None:
        """The bytes that a device sends in one execution."""
        ...


def total(collectives: Iterable[RingCollective]) -> Count:
    """The bytes that a device sends in all executions of all `collectives`; None where one is not known."""
    return executions.total(
        (collective.count, collective.branches, collective.bytes_sent) for collective in collectives
    )


def runs(collectives: Iterable[RingCollective]) -> Count:
    """How often all `collectives` run together; None where one is not known."""
    return executions.total((collective.count, collective.branches, 1) for collective in collectives)


def bus_factor(kind: str, devices: int) -> float:
    """The bytes sent per byte held, as in `sent`: the factor from algorithm to bus bandwidth in nccl-tests.

    Raises `KeyError` for `RAGGED`, which has no fixed factor.
    """
    return _of(kind, devices, 1)


def _of(kind: str, devices: int, size: float) -> float:
    times, shared = _SHARES[kind]
    return times * size * (devices - 1) / devices if shared else times * size


_SHARES = {
    "all-gather": (1, True), "reduce-scatter": (1, True), "all-reduce": (2, True), "all-to-all": (1, True),
    "collective-permute": (1, False), "collective-broadcast": (1, False), "send": (1, False), "recv": (1, False),
    "slice": (0, False), "sharded-to-unreduced": (0, False), "replicated-to-unreduced": (0, False),
}  # fmt: skip
"""How many times a device's bytes are sent, and whether its own share is subtracted; `RAGGED` has no entry."""
