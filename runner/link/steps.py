"""The steps of a job: a program, or the taking of its profile."""

from __future__ import annotations

_STEP = "profile "


def profile_of(program: str) -> str:
    """The name, in a job, of taking a program's profile."""
    return _STEP + program


def profiled(step: str) -> str | None:
    """The program whose profile a step of a job takes; None for any other step."""
    return step.removeprefix(_STEP) if step.startswith(_STEP) else None
