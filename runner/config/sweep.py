"""The overrides of a sweep in; those out that Hydra cannot compose the whole of it with, only its points."""

from __future__ import annotations

from collections.abc import Sequence


def withheld(overrides: Sequence[str]) -> frozenset[str]:
    """The values below a key, as `dims.M=8`, where the experiment itself is swept: only a point has the key.

    Raises Hydra's `OverrideParseException`.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(overrides))
    # Another sweeper does not know of them.
    if any(override.key_or_group == "hydra/sweeper" for override in parsed):
        return frozenset()
    if not any(override.key_or_group == "experiment" and override.is_sweep_override() for override in parsed):
        return frozenset()
    below = [override for override in parsed if "." in override.key_or_group and not override.is_hydra_override()]
    return frozenset(str(override.input_line) for override in below)
