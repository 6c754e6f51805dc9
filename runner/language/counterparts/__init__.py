"""An operation's arguments in; the result of its JAX function, computed by NumPy with floats in float64, out."""
