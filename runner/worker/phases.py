"""The worker's current phase in; an event for the parent, which shows it if a result takes long, out."""

from __future__ import annotations

from collections.abc import Callable

from runner.link.events import Phase

Emit = Callable[[Phase], None]

_emit: Emit | None = None


def report_to(emit: Emit) -> None:
    """Set the function that reports phases."""
    global _emit
    _emit = emit


def tell(doing: str) -> None:
    """Report the current phase: `auto was running`."""
    if _emit is not None:
        _emit(Phase(doing=doing))
