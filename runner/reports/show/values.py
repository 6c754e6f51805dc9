"""Prints small values of the programs' outputs in the format of `print`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from runner.base import dtypes
from runner.base.grouping import by_key
from runner.base.words import listed
from runner.reports.record.model import OutputRecord

if TYPE_CHECKING:
    import numpy as np

ELEMENTS = 64
"""The most elements of an array that is printed."""

SHOWN = 4
"""The most outputs whose values are printed unasked."""

_DIGITS = 4
"""Values that agree to this many digits count as equal up to their last digits."""

_WIDTH = 75
"""NumPy's default line width."""


def lines(
    outputs: Mapping[str, Mapping[str, OutputRecord]],
    wanted: Callable[[str], bool],
    width: int,
    most: int | None = None,
) -> list[str]:
    """Return each small `wanted` output with its value; of more than `most` outputs, the names of the others.

    Programs whose values differ only in the last digits are printed once.
    """
    small = dict.fromkeys(name for held in outputs.values() for name in held if wanted(name) and _is_small(held[name]))
    names, drawn = list(small), list[str]()
    for name in names[:most]:
        held = {program: has[name] for program, has in outputs.items() if name in has}
        held = {program: output for program, output in held.items() if _is_small(output)}
        groups = by_key((_rounded(output.values, output.dtype), program) for program, output in held.items())
        for programs in groups.values():
            drawn += [*_value(name, {program: held[program] for program in programs}, len(groups) > 1, width), ""]
    if most is not None and (rest := names[most:]):
        drawn += [f"{len(rest)} more outputs have few elements; show={rest[0]} prints a value", ""]
    return drawn


def _value(name: str, held: Mapping[str, OutputRecord], one_of_several: bool, width: int) -> list[str]:
    """Return one value, which several programs share except for its last digits."""
    texts = {program: text(output.values, output.dtype, width) for program, output in held.items()}
    first, *others = texts
    differing = [program for program in others if texts[program] != texts[first]]
    head = f"{name} of {listed(list(held))}" if one_of_several else name
    if differing:
        head += f", as {first} has it; the last digits differ in {listed(differing)}"
    return [head, *texts[first].splitlines()]


def _is_small(output: OutputRecord) -> bool:
    return output.values is not None and math.prod(output.shape) <= ELEMENTS


def text(values: Any, dtype: str | None, width: int = _WIDTH) -> str:
    """Format nested lists as NumPy prints an array, within a width."""
    import numpy as np

    with np.printoptions(linewidth=min(width, _WIDTH)):
        return str(_array(values, dtype))


def _rounded(values: Any, dtype: str) -> str:
    """Return a text that is equal for values that differ only in their last digits."""
    import numpy as np

    return np.array2string(_array(values, dtype), precision=_DIGITS)


def _array(values: Any, dtype: str | None) -> np.ndarray:
    import numpy as np

    return np.array(values, dtypes.dtype(dtype).numpy if dtype is not None else None)
