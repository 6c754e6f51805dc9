"""The overrides of a sweep in; how many points they are, and which Hydra lays over single points only, out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runner.config.compose import InvalidConfiguration
from runner.config.quoting import WORD

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

_GROUPS = ("experiment", "mesh", "target", "rules")
"""The config groups that a sweep may choose of."""

_TOLD = 10**18
"""So many points are said as more than that."""

MOST = "sweep.most"
"""The key of how many points a sweep may have."""


def most(overrides: Sequence[Override], otherwise: object) -> int:
    """How many points a sweep may have: what the command line says, or `otherwise`. Raises `InvalidConfiguration`."""
    limits = [override for override in overrides if override.key_or_group == MOST and not override.is_sweep_override()]
    number = limits[-1].value() if limits else otherwise
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        where = f"command line: {limits[-1].input_line}" if limits else f"configuration  {MOST}"
        raise InvalidConfiguration(f"{where}\n  it is a number of points, of at least 1")
    return number


def require_few(overrides: Sequence[Override], limit: int) -> None:
    """Raise `InvalidConfiguration` where all choices are no point, or more than the limit; none is made."""
    counts = {str(o.input_line or o.get_key_element()): _count(o) for o in overrides if o.is_sweep_override()}
    count = math.prod(counts.values())
    if empty := next((text for text, number in counts.items() if not number), None):
        raise InvalidConfiguration(f"command line: {empty}\n  this has no value, so that the sweep has no point")
    if count > limit:
        several = {text: number for text, number in counts.items() if number > 1}
        product = f"{' × '.join(map(_counted, several.values()))} = " if len(several) > 1 and count < _TOLD else ""
        raise too_many(" ".join(several), f"{product}{_counted(count)}", limit)


def _counted(points: int) -> str:
    return f"{points:,}" if points < _TOLD else "more than 10^18"


def too_many(overrides: str, count: str, limit: int) -> InvalidConfiguration:
    """The refusal of some overrides that would be so many points."""
    return InvalidConfiguration(
        f"command line: {overrides}\n  this would be {count} points, and {MOST} is {limit:,}: sweep over fewer values, "
        f"or set {MOST} to what you mean"
    )


def _count(override: Override) -> int:
    """How many values a swept key has; those of a range are not made."""
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
            f"command line: {override.input_line}\n  a range has finite ends and a step that is not 0"
        )
    # Of integers exactly, however large.
    whole = all(isinstance(bound, int) for bound in (start, stop, step))
    count = -((int(start) - int(stop)) // int(step)) if whole else math.ceil((stop - start) / step)
    return max(count, 0)


def withheld(overrides: Sequence[str]) -> frozenset[str]:
    """What is typed of the overrides that Hydra cannot lay over the whole of a sweep.

    The values below a key, as `dims.M=8`, where the experiment itself is swept: only a point has the key. And the word
    `all` where it stands for every layout, since each point has one of these.

    Raises Hydra's `OverrideParseException`.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    # Another sweeper does not know of them.
    if any(override.key_or_group == "hydra/sweeper" for override in parsed):
        return frozenset()
    words = {str(o.input_line) for o in parsed if WORD.match(str(o.input_line))}
    if not any(override.key_or_group == "experiment" and override.is_sweep_override() for override in parsed):
        return frozenset(words)
    below = [override for override in parsed if "." in override.key_or_group and not override.is_hydra_override()]
    return frozenset(str(override.input_line) for override in below) | words
