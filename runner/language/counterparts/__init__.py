"""An operation's arguments in; what its JAX function gives of them, in NumPy and float64, out."""
