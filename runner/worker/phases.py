"""What this process does now in; an event that says so out, which the parent tells where a result is long in coming."""

from __future__ import annotations

from collections.abc import Callable

from runner.link.events import Phase

Emit = Callable[[Phase], None]

_emit: Emit | None = None


def told_by(emit: Emit) -> None:
    """Have what this process does told by a function, from now on."""
    global _emit
    _emit = emit


def tell(doing: str) -> None:
    """Say what it does: `auto was running`."""
    if _emit is not None:
        _emit(Phase(doing=doing))
