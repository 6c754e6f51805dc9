"""Properties of arguments that depend on their names alone, not on the operation."""

from __future__ import annotations

COMPUTATIONS = {name: f"jax.lax.{name}" for name in ("add", "mul", "max", "min")}
"""The names by which a call passes a function of JAX's, and that function's path."""

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
