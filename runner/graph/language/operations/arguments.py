"""Properties of arguments that depend on their names alone, not on the operation."""

from __future__ import annotations

import math

from runner.base.lazy import dataclass


@dataclass(frozen=True)
class Combiner:
    """A function of two values that a call passes by name: its name in `jax.lax`, and the operation that it is.

    `identity`: the value that changes no other.
    """

    name: str
    operation: str
    identity: float

    @property
    def jax(self) -> str:
        """The function's path in JAX."""
        return f"jax.lax.{self.name}"


COMPUTATIONS = {
    each.name: each
    for each in (
        Combiner("add", "add", 0),
        Combiner("mul", "multiply", 1),
        Combiner("max", "maximum", -math.inf),
        Combiner("min", "minimum", math.inf),
    )
}
"""The functions that a call passes by name."""

PADDINGS = ("SAME", "SAME_LOWER", "VALID")
"""The strings that the argument `padding` may be."""

DTYPES = ("dtype", "preferred_element_type")
"""The arguments that set the dtype of the result."""

FROM_ZERO = ("scatter_dimension", "split_axis", "concat_axis")
"""The arguments that name a dimension and may not be negative."""

DIMENSIONS = ("axis", *FROM_ZERO, "dimension")
"""The arguments that name a dimension."""

DIAGONAL = "k"
"""The argument that names a diagonal."""

AT = "at[]."
"""The prefix of the names of operations that are spelled `x.at[index].add(values)`."""
