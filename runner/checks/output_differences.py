"""Takes the values of an output that a program should compute and those that it has; says where they differ.

It is what a diagnosis says if no edit mends the program: which devices, which part of the array, and by which factor.
No line is named, since lines before the mistake need have no counterpart in the graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from runner.base.grouping import by_key
from runner.base.layout import Layout
from runner.base.words import listed, on_devices
from runner.checks.reference import PerDevice
from runner.checks.reference.arithmetic import magnitude
from runner.experiment.patterns import folded

_ALIKE = 1e-6
"""The largest difference of two equal values, relative to the largest element."""

FEWEST = 4
"""The fewest elements whose common factor is reported; of fewer only one that a number of devices may be."""

_SENTENCES = 6
"""The most sentences on where results differ."""


def sentences(of_outputs: Mapping[str, str]) -> list[str]:
    """Return sentences from what is said of each output by `differences`; what is said of several is said once."""
    outputs_of = by_key((text, name) for name, text in of_outputs.items())
    texts = [
        f"{listed(folded(names))}{': each' if len(names) > 1 else ''} {text}" for text, names in outputs_of.items()
    ]
    more = sum(map(len, [*outputs_of.values()][_SENTENCES:]))
    return [*texts[:_SENTENCES], *([f"{more} more results differ"] if more else [])]


def differences(layout: Layout, graph: PerDevice, actual: PerDevice) -> str | None:
    """Return where an output differs, without its name, such as "has shape …"; None if it does not.

    `graph` has one whole value; `actual` has each device's part, or one whole value, of which each device has its part.
    """
    whole, parts = np.asarray(graph[0]), _parts(layout, graph, actual)
    wrong = np.zeros(whole.shape, bool)
    devices: list[int] = []
    for position, (held, wanted) in enumerate(parts):
        if held.shape != wanted.shape:
            return f"has shape {list(held.shape)} on device {position}, not {list(wanted.shape)}"
        off = ~np.isclose(held, wanted, rtol=0.0, atol=_ALIKE * magnitude([whole]), equal_nan=True)
        if off.any():
            devices.append(position)
            wrong[layout.index(position)] |= off
    if not devices:
        return None
    by = _factor(parts)
    if by is not None and (whole.size >= FEWEST or _counts(by, layout.mesh.size)):
        return f"is {by:.4g}× the reference on every element of every device"
    others = "" if len(devices) == layout.mesh.size else "; the other devices agree with it"
    return f"begins to differ from the reference on {on_devices(devices)}{_there(wrong)}{others}"


def _counts(factor: float, devices: int) -> bool:
    """Whether a factor is a number of devices, or the share of one of them."""
    return any(abs(factor * other - 1.0) <= 1e-3 for n in range(2, devices + 1) for other in (n, 1 / n))


def factor(layout: Layout, graph: PerDevice, actual: PerDevice) -> float | None:
    """The factor by which all elements of an output are off on all devices; None if there is none. Arguments are those
    of `differences`.
    """
    parts = _parts(layout, graph, actual)
    return _factor(parts) if all(held.shape == wanted.shape for held, wanted in parts) else None


def _parts(layout: Layout, graph: PerDevice, actual: PerDevice) -> list[tuple[np.ndarray, np.ndarray]]:
    """What each device has of an output, and what it should have."""
    whole, first = np.asarray(graph[0]), np.asarray(actual[0])
    indices = [layout.index(position) for position in range(layout.mesh.size)]
    if len(actual) > 1:
        held = [np.asarray(actual[position]) for position in range(layout.mesh.size)]
    else:
        held = [first[at] if first.shape == whole.shape else first for at in indices]
    return [(part, whole[at]) for part, at in zip(held, indices, strict=True)]


def _there(wrong: np.ndarray) -> str:
    """The smallest block that has all differences, if it is not the whole array."""
    if not wrong.ndim:
        return ""
    at = np.argwhere(wrong)
    block = [(int(a), int(b) + 1) for a, b in zip(at.min(0), at.max(0), strict=True)]
    if all(bounds == (0, n) for bounds, n in zip(block, wrong.shape, strict=True)):
        return ""
    return f", in [{', '.join(f'{a}:{b}' for a, b in block)}] of {list(wrong.shape)}"


def _factor(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> float | None:
    """The factor by which all elements are off; None if there is none."""
    a, b = (np.concatenate([np.ravel(part) for part in side]) for side in zip(*parts, strict=True))
    if a.dtype.kind == "c" or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    there = np.abs(b) > _ALIKE * magnitude([b])
    if not there.any() or np.abs(a[~there]).max(initial=0.0) > _ALIKE * magnitude([a]):
        return None
    ratio = a[there] / b[there]
    factor = float(np.median(ratio))
    same = math.isfinite(factor) and np.abs(ratio - factor).max() <= 1e-3 * abs(factor) and abs(factor - 1) > 1e-3
    return factor if same else None
