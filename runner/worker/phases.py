"""Reports the worker's current phase to the parent, which shows it if a result takes long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from runner.link.events import Phase
from runner.link.steps import Spare

Emit = Callable[[Phase], None]

T = TypeVar("T")

_emit: Emit | None = None
_doing = _shown = ""
_without: Mapping[Spare, str] = {}


def report_to(emit: Emit, without: Mapping[str, str]) -> None:
    """Set the function that reports phases, and the parts that ended an earlier process of the job, with how."""
    global _emit, _without
    _emit, _without = emit, {Spare(part): how for part, how in without.items()}


def tell(doing: str, shown: str = "") -> None:
    """Report the current phase: `auto was running`; `shown` is what a line of progress says of it: `running`."""
    global _doing, _shown
    _doing, _shown = doing, shown
    if _emit is not None:
        _emit(Phase(doing=doing, shown=shown))


def spared(part: Spare, compute: Callable[[], T]) -> T | str:
    """Compute a part that the job can do without; if it ended an earlier process, return how.

    The parent is told, so that a crash costs only this part.
    """
    if part in _without:
        return _without[part]
    if _emit is not None:
        _emit(Phase(doing=_doing, spare=part))
    value = compute()
    tell(_doing, _shown)
    return value
