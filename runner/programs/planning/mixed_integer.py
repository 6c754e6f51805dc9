"""Solves a network by mixed-integer programming with HiGHS, which also proves a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.programs.planning import clock
from runner.programs.planning.costs import EQUAL
from runner.programs.planning.network import Choice, Costs, Network, Table

LARGEST = 1_000_000
"""The most entries of all pairs in a network for HiGHS; more would take hours."""


_NODES = 20
"""The nodes of its tree that HiGHS examines in a second, in networks as large as these."""

_ENTRY = 2e-5
"""The seconds of its first linear program for an entry of the tables."""

_BUSY = 10
"""How much longer HiGHS may take by the clock than its nodes take on a processor with nothing else to do."""

_INFEASIBLE = 2
"""SciPy's status of a program without any solution."""


def programmed(
    network: Network, seconds: float, shares: Sequence[Mapping[tuple[int, ...], Table]] = ()
) -> tuple[Choice | None, float]:
    """The best choice that HiGHS finds, None if it finds none, and its lower bound on the cost.

    - `seconds`: the work that it may do, as the nodes of its tree that take so long.
    - `shares`: for each limit the share of it that values of variables, and of pairs of the network, take; a choice
      takes at most 1 of each. Without any choice within the limits the bound is infinite.
    """
    # SciPy is slow to import and rarely needed.
    import scipy.optimize as optimize  # pyright: ignore[reportMissingTypeStubs]
    from scipy.sparse import coo_array  # pyright: ignore[reportMissingTypeStubs]

    sizes = [len(costs) for costs in network.alone]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    ends, edges = int(starts[-1]), list(network.pairs)
    firsts: list[int] = []
    for a, b in edges:
        firsts.append(ends)
        ends += sizes[a] * sizes[b]
    flat = np.concatenate([*network.alone, *(network.pairs[edge].ravel() for edge in edges)])
    first_of = dict(zip(edges, firsts, strict=True))
    rows, columns, values, wanted = list[NDArray[np.intp]](), list[NDArray[np.intp]](), list[Costs](), list[float]()

    def constrain(ones: NDArray[np.intp], minus: int | None, equals: float) -> None:
        number = len(wanted)
        members = ones if minus is None else np.append(ones, minus)
        rows.append(np.full(len(members), number))
        columns.append(members)
        values.append(np.where(members == minus, -1.0, 1.0) if minus is not None else np.ones(len(members)))
        wanted.append(equals)

    for variable, size in enumerate(sizes):
        constrain(starts[variable] + np.arange(size), None, 1.0)
    for (a, b), first in zip(edges, firsts, strict=True):
        numbers = first + np.arange(sizes[a] * sizes[b]).reshape(sizes[a], sizes[b])
        for i in range(sizes[a]):
            constrain(numbers[i], int(starts[a]) + i, 0.0)
        for j in range(sizes[b]):
            constrain(numbers[:, j], int(starts[b]) + j, 0.0)
    least = [*wanted, *[-np.inf] * len(shares)]
    for limit in shares:
        number = len(wanted)
        for over, table in limit.items():
            first = int(starts[over[0]]) if len(over) == 1 else first_of[over[0], over[1]]
            rows.append(np.full(table.costs.size, number))
            columns.append(first + np.arange(table.costs.size))
            values.append(table.costs.ravel())
        wanted.append(1.0)
    place = np.concatenate(rows), np.concatenate(columns)
    matrix = coo_array((np.concatenate(values), place), shape=(len(wanted), ends))
    integral = np.zeros(ends)
    integral[: starts[-1]] = 1
    there = np.isfinite(flat)
    # HiGHS expects coefficients of about 1.
    scale = float(np.max(flat[there], initial=0.0)) or 1.0
    result: Any = optimize.milp(  # pyright: ignore[reportUnknownMemberType]
        np.where(there, flat, 0.0) / scale,
        integrality=integral,
        bounds=optimize.Bounds(np.zeros(len(flat)), there.astype(float)),  # pyright: ignore[reportArgumentType]
        constraints=optimize.LinearConstraint(matrix.tocsr(), least, wanted),  # pyright: ignore[reportArgumentType]
        options={
            "node_limit": max(1, int(seconds * _NODES)),
            "time_limit": _BUSY * seconds,
            "mip_rel_gap": EQUAL,
        },
    )
    clock.spend(min(seconds, _ENTRY * len(flat) + int(result.mip_node_count or 0) / _NODES))
    bound = -np.inf if result.mip_dual_bound is None else float(result.mip_dual_bound) * scale
    if result.x is None:
        return None, np.inf if result.status == _INFEASIBLE else bound
    taken: Costs = np.asarray(result.x)
    chosen = (int(taken[start : start + size].argmax()) for start, size in zip(starts[:-1], sizes, strict=True))
    return tuple(chosen), bound
