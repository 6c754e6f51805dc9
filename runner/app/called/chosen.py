"""The spec that stands for what the planner chooses: AUTO, or the text `auto`."""

from __future__ import annotations

from typing import Any, Final

from runner.experiment.forms import AUTO as WRITTEN


class Auto:
    """The spec of an array whose layout the planner chooses."""

    def __repr__(self) -> str:
        return "AUTO"

    def __reduce__(self) -> str:
        return "AUTO"


AUTO: Final = Auto()
"""The spec of an array whose layout the planner chooses; so is the text `auto`."""


def is_auto(value: Any) -> bool:
    """Whether a spec is AUTO, or the text `auto`."""
    return isinstance(value, Auto) or (isinstance(value, str) and value == WRITTEN)
