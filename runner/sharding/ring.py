"""A collective in; what one device sends for it, on a ring, out: the figure in which programs are compared.

Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005; the
PERFORMANCE.md of nccl-tests, where the same factors make a bus bandwidth of a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from runner import executions
from runner.executions import Count, InBranch

RAGGED = "ragged-all-to-all"
"""Only its operands tell how much it sends; the first is what is sent."""


def sent(kind: str, devices: int, bytes_in: int | None, bytes_out: int | None) -> int | None:
    """The bytes that a device sends in one execution, in a group of so many `devices`; None where it is not known.

    `bytes_in` and `bytes_out` are what it holds before and after. With n devices a gather and a scatter take (n-1)/n of
    the whole, a reduction of the whole twice that, an all-to-all (n-1)/n of what the device holds. A permutation sends
    what the device holds; who takes part in one has a partner. A group of one sends nothing.
    """
    if devices <= 1:
        return 0
    held = {"all-gather": bytes_out, "recv": 0}.get(kind, bytes_in)
    if held is None or kind not in _SHARES:
        return None
    times, shared = _SHARES[kind]
    return round(times * held * (devices - 1) / devices) if shared else times * held


class Sending(Protocol):
    """A collective that is compiled, asked for or planned."""

    @property
    def count(self) -> Count:
        """How often it runs."""
        ...

    @property
    def branches(self) -> Sequence[InBranch]:
        """The branches in which it stands."""
        ...

    @property
    def bytes_sent(self) -> int | None:
        """What a device sends in one execution."""
        ...


def total(collectives: Iterable[Sending]) -> Count:
    """The bytes that a device sends for all of them, over all their executions; None where one is not known."""
    return executions.total(
        (collective.count, collective.branches, collective.bytes_sent) for collective in collectives
    )


def bus_factor(kind: str, devices: int) -> float:
    """How much a device sends of each byte that it holds, or of the whole: nccl-tests' factor of a bus bandwidth.

    Raises `KeyError` for a kind whose operands alone tell.
    """
    times, shared = _SHARES[kind]
    return times * (devices - 1) / devices if shared else times


_SHARES = {
    "all-gather": (1, True), "reduce-scatter": (1, True), "all-reduce": (2, True), "all-to-all": (1, True),
    "collective-permute": (1, False), "collective-broadcast": (1, False), "send": (1, False), "recv": (1, False),
    "slice": (0, False), "sharded-to-unreduced": (0, False), "replicated-to-unreduced": (0, False),
}  # fmt: skip
"""How often what is held is sent, and whether each device keeps its own part of it; of `RAGGED` nothing says."""
