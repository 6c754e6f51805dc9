"""The overrides of a sweep in; those out that Hydra cannot compose the whole of it with, only its points."""

from __future__ import annotations

import re
from collections.abc import Sequence

WORD = re.compile(r"\+*(?:(?P<mesh>mesh\.shape)|arrays\.(?P<array>\w+)\.spec)=all\Z")
"""The override that stands for every mesh of the devices, or for every layout of an array."""


def withheld(overrides: Sequence[str]) -> frozenset[str]:
    """Of what Hydra cannot lay over the whole of a sweep what is typed.

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
