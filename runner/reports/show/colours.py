"""Gives each device its colour in every picture of a mesh, and an ink that is readable on it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

# Eight colours for labelled cells, black text on each. From Paul Tol's "light" scheme (https://sronpersonalpages.nl/
# ~pault/), moved apart until any two differ by 17 in CIE Lab under simulated protanopia, deuteranopia and tritanopia.
PALETTE = ("#81A6D9", "#ED8962", "#F1DE88", "#FFA4B7", "#31AC89", "#BBCC33", "#99DCFE", "#E7EAF0")

# More devices cannot all have distinct hues: colours go from light to dark in the order of the ids, so that the order
# is visible without distinguishing hues. The middle of ColorBrewer's YlGnBu.
_RAMP = ("#EDF8B1", "#C7E9B4", "#7FCDBB", "#41B6C4", "#1D91C0", "#225EA8")


def colours(device_ids: Iterable[int]) -> dict[int, str]:
    """Return a background colour `#RRGGBB` for each device, the same in every picture of one mesh."""
    ids = sorted(set(device_ids))
    if len(ids) <= len(PALETTE):
        return dict(zip(ids, PALETTE, strict=False))
    scale = (len(_RAMP) - 1) / (len(ids) - 1)
    return {device: _mix(position * scale) for position, device in enumerate(ids)}


def ramp(place: float) -> str:
    """Return a colour between light (0) and dark (1), ordered by lightness so that hues need not be distinguished."""
    return _mix(place * (len(_RAMP) - 1))


def ink(background: str) -> str:
    """Return black or white: at least one of them has a contrast of 4.58 on any colour (WCAG asks for 4.5)."""
    return "#000000" if _luminance(background) > 0.179 else "#FFFFFF"


def mean(several: Sequence[str]) -> str:
    """Return the average of several colours."""
    sums = [sum(channels) / len(several) for channels in zip(*map(_channels, several), strict=True)]
    return "#" + "".join(f"{round(channel):02X}" for channel in sums)


def _mix(place: float) -> str:
    low = min(int(place), len(_RAMP) - 2)
    pairs = zip(_channels(_RAMP[low]), _channels(_RAMP[low + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - low)):02X}" for a, b in pairs)


@lru_cache(maxsize=4096)
def _luminance(colour: str) -> float:
    """Return the relative luminance (https://www.w3.org/TR/WCAG22/#dfn-relative-luminance)."""
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in _channels(colour)]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _channels(colour: str) -> Iterator[int]:
    return (int(colour[k : k + 2], 16) for k in (1, 3, 5))
