"""Counts the work of a search, in seconds of an idle processor, so that no plan depends on the load of a machine.

The sizes of tables are counted as they are worked on, so that the same search takes the same time by this clock on any
machine. The rates were measured on one core of a server.
"""

from __future__ import annotations

import threading

_TABLE = 1.5e-9
"""Seconds for an entry of a table that is read once."""

_CALL = 1.5e-5
"""Seconds for each table, whatever its size."""


class _Worked(threading.local):
    """The seconds of each thread."""

    seconds = 0.0


_worked = _Worked()


def now() -> float:
    """The seconds of work that this thread has counted."""
    return _worked.seconds


def spend(seconds: float) -> None:
    """Count work that takes so long."""
    _worked.seconds += seconds


def count(entries: float, tables: int = 1) -> None:
    """Count work on tables that have so many entries together."""
    _worked.seconds += _TABLE * entries + _CALL * tables
