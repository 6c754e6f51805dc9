"""Compares the errors of a whole output that do not average out with the measured effect of rounding."""

from __future__ import annotations

import math

import numpy as np

from runner.base.lazy import dataclass
from runner.checks.compare import MANY, lucky, of_bytes, units
from runner.checks.reference import Rounding
from runner.checks.reference.rounding import moments

COMMON = {1: 0.03125, 2: 0.25, 4: 2.0, 8: 2.0}
"""The error, in units, that all elements may share, so that it does not average out."""

ROUGH = {1: 0.0, 2: 0.0, 4: 1.0, 8: 1.0}
"""The root mean square of the errors, in units, where no rounding was measured."""

COMMON_TO_SOME = {1: 0.125, 2: 0.125, 4: 2.0, 8: 2.0}
"""The error, in units, that all elements with one index may share."""

GROUP = 16
"""Means along a dimension are taken over at least this many elements."""

ERRORS = 5.0
"""The number of standard errors by which a slope or a mean may be off."""

LIKE = {1: 1.5, 2: 1.5, 4: 3.0, 8: 3.0}
"""How many times the measured rounding error's root mean square that of a correct program may be.

JAX's on CPUs was at most 0.9 times it in bfloat16 and 1.8 times in float32, where the order of sums varies.
"""


@dataclass(frozen=True)
class Whole:
    """What an output as a whole is compared with, and how far off it was.

    - `measured`, `least`, `most`: of each measure its value, and its bounds.
    - `power`: the smallest mistake that would have been noticed, as a share of the root mean square.
    """

    measured: dict[str, float]
    least: dict[str, float]
    most: dict[str, float]
    power: float

    @property
    def outside(self) -> list[str]:
        """The measures that are outside their bounds."""
        return [name for name, value in self.measured.items() if not self.least[name] <= value <= self.most[name]]


def as_a_whole(actual: np.ndarray, expected: np.ndarray, dtype: str, rounding: Rounding) -> Whole | None:
    """Check the measures of a whole output in which rounding averages out and mistakes do not; None for few elements.

    The slope of a straight line through 0 of actual against expected, the mean error and the means along each dimension
    must be within the range of the measured draws, widened if these are few, by the units of `COMMON`, and by five
    standard errors. The root mean square of all errors may be `LIKE` times the draws', and so may the standard errors.
    All errors are scaled as `Moments` describes.
    """
    size = expected.size
    errors = moments(actual - expected, expected) if size >= MANY else None
    if errors is None or not rounding.about:
        return None
    drawn = rounding.about
    common, like = units(dtype, COMMON), of_bytes(dtype, LIKE)
    deviation = like * max(draw.deviation for draw in drawn)
    # A value that many elements share, such as a sum by which all are divided, is rounded in one direction.
    slopes = [lucky(len(drawn)) * side * draw.slope for draw in drawn for side in (-1, 1)]
    measures = {"slope": (errors.slope, slopes, common + ERRORS * deviation / math.sqrt(errors.weight))}
    means = [lucky(len(drawn)) * abs(draw.mean) for draw in drawn]
    measures["mean"] = (abs(errors.mean), means, common + ERRORS * deviation / math.sqrt(size))
    for axis, along in enumerate(errors.along):
        per_index = size // max(len(along), 1)
        if per_index >= GROUP:
            # If the elements of an index have larger errors than the others, they are compared with their own.
            apart = np.maximum(deviation, like * np.max([draw.apart[axis] for draw in drawn], axis=0))
            margins = units(dtype, COMMON_TO_SOME) + (ERRORS + 1) * apart / math.sqrt(per_index)
            largest = lucky(len(drawn) * len(along)) * max(float(np.max(np.abs(d.along[axis]))) for d in drawn)
            worst = int(np.argmax(np.abs(along) / (largest + margins)))
            measures[f"means along dimension {axis}"] = (abs(along[worst]), [largest], float(margins[worst]))
    # The measured root mean square is itself an estimate from this many elements.
    spread = like * max(draw.spread for draw in drawn) * (1 + ERRORS / math.sqrt(2 * size)) + units(dtype, ROUGH)
    measures["spread"] = (errors.spread, [], spread)
    least = {name: min(0.0, *where, 0.0) - margin for name, (_, where, margin) in measures.items()}
    most = {name: max(0.0, *where, 0.0) + margin for name, (_, where, margin) in measures.items()}
    power = min(max(most["slope"], -least["slope"]), most["spread"] * math.sqrt(size / errors.weight))
    return Whole({name: float(value) for name, (value, _, _) in measures.items()}, least, most, power)
