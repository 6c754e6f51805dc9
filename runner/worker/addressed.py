"""Finds what is wrong with the mesh axes and devices that a collective of a user's function names.

JAX traces such a collective. It refuses it when it is lowered, without the line: `IndexError: list index out of range`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from runner.base.words import quoted
from runner.graph.language.operations import COMMUNICATING
from runner.worker.primitives.collectives import named_axes


def fault(name: str, params: Mapping[str, Any], sizes: Mapping[str, int]) -> str | None:
    """What is wrong with the axes and devices of an application of the primitive `name`; None if nothing is.

    `sizes` are those of the mesh axes.
    """
    axes = named_axes(name, params)
    twice = [axis for axis, count in Counter(axes).items() if count > 1]
    if twice:
        return f"{COMMUNICATING.get(name, name)} is over {quoted(axes)}: name '{twice[0]}' once"
    if name != "ppermute" or not sizes.keys() >= set(axes):
        return None
    count = math.prod(sizes[axis] for axis in axes)
    pairs = [(int(source), int(target)) for source, target in params["perm"]]
    for source, target in pairs:
        for device in (source, target):
            if not 0 <= device < count:
                return (
                    f"ppermute has the pair {source, target}, and there is no device {device}: the {count} along "
                    f"{' and '.join(axes)} are 0 to {count - 1}; write % {count} to come back to the first"
                )
    for side, devices in (("sends from", [pair[0] for pair in pairs]), ("sends to", [pair[1] for pair in pairs])):
        several = [device for device, times in Counter(devices).items() if times > 1]
        if several:
            return f"ppermute {side} device {several[0]} twice, in {pairs}; a device sends once and receives once"
    return None
