"""Finds the constructor of a tracker by name: shardproof's own, or an installed package's.

A tracker is looked up by entry point and never by a dotted name, so a configuration can only name what was
installed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from runner.reports.track.entry import Tracker

GROUP = "shardproof.trackers"
"""The group of the entry points that name trackers."""

SHIPPED = {
    "mlflow": "runner.reports.track.mlflow:MLflow",
    "tensorboard": "runner.reports.track.tensorboard:TensorBoard",
    "wandb": "runner.reports.track.wandb:WandB",
}
"""Those that come with shardproof, which no installed package replaces."""


class UnknownTracker(Exception):
    """No tracker has that name; the message lists the known ones."""


def maker(name: str) -> Callable[..., Tracker]:
    """The constructor of a tracker. Raises `UnknownTracker`, or `ImportError` where it does not import."""
    named = {point.name: point for point in entry_points(group=GROUP)}
    named |= {shipped: EntryPoint(shipped, value, GROUP) for shipped, value in SHIPPED.items()}
    if name not in named:
        raise UnknownTracker(
            f"there is no tracker {name!r}; there are {', '.join(sorted(named))}; "
            f"one of your own is an entry point of an installed package, in the group {GROUP}"
        )
    return named[name].load()
