"""Recognizes the spec that stands for what the planner chooses: AUTO, or the text `auto`."""

from __future__ import annotations

from typing import Any

from runner.base.chosen import AUTO, Auto
from runner.experiment.forms import AUTO as WRITTEN

__all__ = ["AUTO", "is_auto"]


def is_auto(value: Any) -> bool:
    """Whether a spec is AUTO, or the text `auto`."""
    return isinstance(value, Auto) or (isinstance(value, str) and value == WRITTEN)
