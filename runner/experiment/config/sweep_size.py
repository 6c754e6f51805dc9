"""Counts the points of a sweep by its overrides, and finds those that apply to single points only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runner.experiment.config.compose import InvalidConfiguration
from runner.experiment.config.quoting import WORD

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

_GROUPS = ("experiment", "mesh", "target", "hardware", "rules")
"""The config groups whose options a sweep may range over."""

_MANY = 10**18
"""From this number of points on, a message says "more than 10^18"."""

MOST = "sweep.most"
"""The key of the largest number of points of a sweep."""


def most(overrides: Sequence[Override], otherwise: object) -> int:
    """The largest allowed number of points: that of the command line, or `otherwise`. Raises `InvalidConfiguration`."""
    limits = [override for override in overrides if override.key_or_group == MOST and not override.is_sweep_override()]
    number = limits[-1].value() if limits else otherwise
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        where = f"command line: {limits[-1].input_line}" if limits else f"configuration  {MOST}"
        raise InvalidConfiguration(f"{where}\n  the number of points must be at least 1")
    return number


def require_few(overrides: Sequence[Override], limit: int) -> None:
    """Raise `InvalidConfiguration` for a sweep with no point or more than `limit`; counts without generating points."""
    counts = {str(o.input_line or o.get_key_element()): _count(o) for o in overrides if o.is_sweep_override()}
    count = math.prod(counts.values())
    if empty := next((text for text, number in counts.items() if not number), None):
        raise InvalidConfiguration(f"command line: {empty}\n  this has no value, so the sweep has no points")
    if count > limit:
        several = {text: number for text, number in counts.items() if number > 1}
        product = f"{' × '.join(map(_counted, several.values()))} = " if len(several) > 1 and count < _MANY else ""
        raise too_many(" ".join(several), f"{product}{_counted(count)}", limit)


def _counted(points: int) -> str:
    return f"{points:,}" if points < _MANY else "more than 10^18"


def too_many(overrides: str, count: str, limit: int) -> InvalidConfiguration:
    """Return the exception for overrides that would make `count` points, more than `limit`."""
    return InvalidConfiguration(
        f"command line: {overrides}\n  this would be {count} points, and {MOST} is {limit:,}: sweep over fewer values, "
        f"or raise {MOST}"
    )


def _count(override: Override) -> int:
    """The number of values of a swept key, without generating a range. Raises `InvalidConfiguration`."""
    from hydra.core.override_parser.types import Glob, IntervalSweep, RangeSweep

    swept: Any = override.value()
    if isinstance(swept, IntervalSweep):
        raise InvalidConfiguration(
            f"command line: {override.input_line}\n  an interval is for sweepers that draw from it (hydra/sweeper=…); "
            "write a range or a list of values"
        )
    if isinstance(swept, Glob) and "/" not in override.key_or_group and override.key_or_group not in _GROUPS:
        raise InvalidConfiguration(
            f"command line: {override.input_line}\n  glob chooses among the files of a config group, "
            f"{' or '.join(_GROUPS)}; '{override.key_or_group}' is a value"
        )
    if not isinstance(swept, RangeSweep):
        return sum(1 for _ in override.sweep_string_iterator())
    start, stop, step = swept.start or 0, swept.stop or 0, swept.step
    if step == 0 or not all(map(math.isfinite, (start, stop, step))):
        raise InvalidConfiguration(
            f"command line: {override.input_line}\n  a range needs finite ends and a step other than 0"
        )
    # Exact for integers of any size.
    whole = all(isinstance(bound, int) for bound in (start, stop, step))
    count = -((int(start) - int(stop)) // int(step)) if whole else math.ceil((stop - start) / step)
    return max(count, 0)


def withheld(overrides: Sequence[str]) -> frozenset[str]:
    """The overrides, as typed, that apply to each point but not to the sweep's own configuration.

    These are values below a key, such as `dims.M=8`, where the experiment is swept, since only a point has the key; and
    `all` for every mesh or layout, since each point has one of these. Raises Hydra's `OverrideParseException`.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    # Another sweeper does not support withheld overrides.
    if any(override.key_or_group == "hydra/sweeper" for override in parsed):
        return frozenset()
    words = {str(o.input_line) for o in parsed if WORD.match(str(o.input_line))}
    if not any(override.key_or_group == "experiment" and override.is_sweep_override() for override in parsed):
        return frozenset(words)
    below = [override for override in parsed if "." in override.key_or_group and not override.is_hydra_override()]
    return frozenset(str(override.input_line) for override in below) | words
