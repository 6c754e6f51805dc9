"""What the house knows of arguments by their names, whichever operation takes them."""

from __future__ import annotations

COMPUTATIONS = {name: f"jax.lax.{name}" for name in ("add", "mul", "max", "min")}
"""By which names a call may have a function of JAX's, and which that is."""

PADDINGS = ("SAME", "SAME_LOWER", "VALID")
"""What the argument `padding` may be, where it is a string."""

DTYPES = ("dtype", "preferred_element_type")
"""The arguments in which a call names the dtype of its result."""

FROM_ZERO = ("scatter_dimension", "split_axis", "concat_axis")
"""The arguments that name a dimension, counted from the first and not from the last."""

DIMENSIONS = ("axis", *FROM_ZERO, "dimension")
"""The arguments that name a dimension."""

DIAGONAL = "k"
"""The argument that names a diagonal."""

AT = "at[]."
"""What the names begin with of the operations that are spelled `x.at[index].add(values)`."""
